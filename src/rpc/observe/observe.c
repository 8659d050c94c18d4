/* SPDX-License-Identifier: Apache-2.0 */
/* observe.c - records the stages of calls in the table of metrics (table.c) and the trace (trace.c). */
#include "base/alloc.h"
#include "rpc/observe/observe.h"

#include "base/text/refuse.h"

#include <stdlib.h>
#include <string.h>

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static weft_status open_observation(weft_agent *agent, weft_error **error)
{
    (void)error;
    wfi_call_observer *observer = wfi_calloc(1, sizeof(*observer));
    if (!observer)
        return WEFT_ERR_MEMORY;
    observer->agent = agent;
    agent->observer = observer;
    const weft_agent_options *options = &agent->options.values;
    weft_status status = wfi_metrics_init(&observer->metrics);
    if (!status && options->trace_file) {
        status = wfi_trace_create(wfi_clock_of(options->sim), !options->sim && !options->no_threads, &observer->trace);
    }
    return status;
}

static weft_status begin_observation(weft_agent *agent, weft_error **error)
{
    wfi_call_observer *observer = agent->observer;
    const weft_agent_options *options = &agent->options.values;
    const wfi_member *self = wfi_net_member(agent->net, wfi_agent_rank(agent));
    weft_status status = WEFT_OK;
    wfi_net_lock(agent->net);
    observer->incarnation = self ? self->incarnation : 0;
    wfi_net_unlock(agent->net);
    wfi_trace_who who = {.rank = wfi_agent_rank(agent),
                         .world_size = options->world_size,
                         .name = options->name,
                         .interface = wfi_net_interface(agent->net)};
    if (observer->trace)
        status = wfi_trace_begin(observer->trace, options->trace_file, &who, error);
    return status;
}

static void close_observation(weft_agent *agent)
{
    wfi_call_observer *observer = agent->observer;
    if (!observer)
        return;
    agent->observer = NULL;
    wfi_trace_destroy(observer->trace);
    wfi_metrics_fini(&observer->metrics);
    free(observer);
}

/* ---- Spans ------------------------------------------------------------------------------------------------------- */

/* An id that is unique in the job, and the same in every run of a simulation. An id of 0 is skipped. */
static uint64_t new_id(wfi_call_observer *observer)
{
    uint64_t words[3] = {(uint64_t)wfi_agent_rank(observer->agent), observer->incarnation, 0};
    uint64_t id;
    do {
        words[2] = ++observer->last_id;
        id = wfi_hash_bytes(words, sizeof(words));
    } while (!id);
    return id;
}

/* A span within a served call that belongs to a trace belongs to it too, even if this worker writes no trace. */
static void join_trace(wfi_call_observer *observer, wfi_span *span, const wfi_span *within)
{
    if (span->id)
        return; /* a further attempt */
    if (within && within->trace) {
        span->trace = within->trace;
        span->parent = within->id;
    }
    if (!observer->trace) {
        span->id = span->parent;
        return;
    }
    if (!span->trace)
        span->trace = new_id(observer);
    span->id = new_id(observer);
}

static void flush_task(wfi_task *task)
{
    wfi_call_observer *observer = wfi_container_of(task, wfi_call_observer, flush_task);
    atomic_store(&observer->flushing, false); /* first: records that are added from now on may queue the task again */
    wfi_trace_flush(observer->trace);
}

static void add_record(wfi_call_observer *observer, wfi_trace_record *record, const char *function,
                       const weft_error *error)
{
    snprintf(record->function, sizeof(record->function), "%s", function);
    record->remote_status = weft_error_handler_code(error);
    if (record->end_ns < record->span.begun_ns)
        record->end_ns = record->span.begun_ns;
    wfi_trace_free_track(observer->trace, record->side, record->span.track, record->end_ns);
    if (!wfi_trace_add(observer->trace, record) || atomic_exchange(&observer->flushing, true))
        return;
    observer->flush_task.run = flush_task;
    wfi_net_defer(observer->agent->net, &observer->flush_task, WFI_DEFER_RELEASE);
}

static bool is_traced(const weft_agent *agent, const wfi_span *span)
{
    return span->trace && agent->observer->trace;
}

static uint64_t elapsed(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns > from_ns ? to_ns - from_ns : 0;
}

/* ---- For components above rpc ------------------------------------------------------------------------------------ */

bool wfi_observe_has_trace(const weft_agent *agent)
{
    return agent->observer->trace != NULL;
}

void wfi_observe_span_begin(weft_agent *agent, wfi_trace_side side, wfi_span *span)
{
    wfi_call_observer *observer = agent->observer;
    span->begun_ns = wfi_now(wfi_net_clock(agent->net));
    if (!observer->trace) {
        span->id = span->parent; /* its calls become children of the enclosing span */
        return;
    }
    wfi_net_lock(agent->net);
    join_trace(observer, span, NULL);
    span->track = wfi_trace_take_track(observer->trace, side, span->begun_ns);
    wfi_net_unlock(agent->net);
}

void wfi_observe_span_end(weft_agent *agent, wfi_trace_record *record, const char *name)
{
    if (!is_traced(agent, &record->span))
        return;
    wfi_net_lock(agent->net);
    add_record(agent->observer, record, name, NULL);
    wfi_net_unlock(agent->net);
}

/* ---- Spans of the program ---------------------------------------------------------------------------------------- */

_Static_assert(WEFT_TRACE_NAME_MAX <= WFI_FUNCTION_NAME_MAX, "a record has room for the name of a span");

weft_status weft_trace_begin(weft_agent *agent, const char *name, weft_trace_span *span)
{
    WFI_CHECK_HANDLE(agent);
    if (!span)
        return wfi_refuse_null("weft_trace_begin", "span");
    span->agent = NULL;
    if (!agent || !name)
        return wfi_refuse_null("weft_trace_begin", agent ? "name" : "the agent");
    size_t size = strnlen(name, sizeof(span->name));
    if (!size || size == sizeof(span->name))
        return wfi_refuse(WEFT_ERR_INVALID, "weft_trace_begin: name has %zu bytes: 1 to %d", strlen(name),
                          WEFT_TRACE_NAME_MAX);
    memcpy(span->name, name, size + 1);
    span->begun_ns = agent->observer->trace ? wfi_now(wfi_net_clock(agent->net)) : 0;
    span->agent = agent;
    return WEFT_OK;
}

weft_status weft_trace_end(weft_trace_span *span)
{
    if (!span || !span->agent)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_trace_end: span is %s: pass one that weft_trace_begin began, once",
                          span ? "not begun, or ended" : "NULL");
    weft_agent *agent = span->agent;
    WFI_CHECK_HANDLE(agent);
    span->agent = NULL;
    if (!agent->observer->trace)
        return WEFT_OK;
    wfi_trace_record record = {
        .side = WFI_TRACE_PROGRAM, .span = {.begun_ns = span->begun_ns}, .end_ns = wfi_now(wfi_net_clock(agent->net))};
    wfi_net_lock(agent->net);
    record.span.track = wfi_trace_take_track(agent->observer->trace, WFI_TRACE_PROGRAM, span->begun_ns);
    add_record(agent->observer, &record, span->name, NULL);
    wfi_net_unlock(agent->net);
    return WEFT_OK;
}

/* ---- Calls of this worker ---------------------------------------------------------------------------------------- */

void wfi_observe_started(weft_agent *agent, wfi_span *span, const wfi_span *within)
{
    wfi_trace *trace = agent->observer->trace;
    join_trace(agent->observer, span, within);
    /* CLOCK_REALTIME, which other hosts share (in the simulation, the clock's time) */
    span->left_ns = trace ? span->begun_ns + (uint64_t)wfi_trace_realtime_offset_ns(trace) : 0;
}

void wfi_observe_sent(weft_agent *agent, wfi_span *span)
{
    if (!is_traced(agent, span))
        return;
    span->ready_ns = wfi_net_now(agent->net);
    span->track = wfi_trace_take_track(agent->observer->trace, WFI_TRACE_CALLS, span->begun_ns);
}

void wfi_observe_replied(weft_agent *agent, wfi_span *span)
{
    if (is_traced(agent, span))
        span->run_ns = wfi_net_now(agent->net);
}

void wfi_observe_completed(weft_agent *agent, wfi_observed call, const wfi_span *span)
{
    wfi_call_observer *observer = agent->observer;
    uint64_t end_ns = wfi_net_now(agent->net);
    weft_status status = weft_error_code(call.error);
    wfi_metrics_record(&observer->metrics, WEFT_METRIC_CALLS, call.rank, call.function, elapsed(span->begun_ns, end_ns),
                       status);
    if (status)
        wfi_agent_log(agent, WEFT_LOG_DEBUG, call.id, "\"%s\" of rank %d ended with %s", call.function, call.rank,
                      weft_status_name(status));
    if (!is_traced(agent, span))
        return;
    wfi_trace_record record = {.side = WFI_TRACE_CALLS,
                               .peer = call.rank,
                               .call_id = call.id,
                               .span = *span,
                               .end_ns = end_ns,
                               .status = status};
    for (int kind = 0; call.peer && kind < WFI_LANE_KINDS; kind++)
        record.fabrics[kind] = wfi_peer_fabric_name(call.peer, (wfi_lane_kind)kind);
    add_record(observer, &record, call.function, NULL);
}

/* ---- Served calls ------------------------------------------------------------------------------------------------ */

void wfi_observe_arrived(weft_agent *agent, wfi_span *span)
{
    wfi_call_observer *observer = agent->observer;
    if (!observer->trace) {
        span->left_ns = 0;
        span->id = span->parent; /* its calls become children of its caller's span */
        return;
    }
    if (span->left_ns)
        span->left_ns -= (uint64_t)wfi_trace_realtime_offset_ns(observer->trace);
    span->trace = span->trace ? span->trace : new_id(observer);
    span->id = new_id(observer);
    span->track = wfi_trace_take_track(observer->trace, WFI_TRACE_SERVED, span->begun_ns);
}

void wfi_observe_running(weft_agent *agent, wfi_span *span)
{
    if (is_traced(agent, span))
        span->run_ns = wfi_now(wfi_net_clock(agent->net));
}

void wfi_observe_answered(weft_agent *agent, wfi_observed call, wfi_span *span)
{
    weft_status status = weft_error_code(call.error);
    span->done_ns = wfi_net_now(agent->net);
    wfi_metrics_record(&agent->observer->metrics, WEFT_METRIC_SERVED, call.rank, call.function,
                       elapsed(span->ready_ns, span->done_ns), status);
    if (status)
        wfi_agent_log(agent, WEFT_LOG_DEBUG, call.id, "\"%s\", served for rank %d, ended with %s: %s", call.function,
                      call.rank, weft_status_name(status), weft_error_message(call.error));
}

void wfi_observe_ended(weft_agent *agent, wfi_observed call, wfi_span *span)
{
    if (!is_traced(agent, span) || !span->track)
        return;
    wfi_trace_record record = {.side = WFI_TRACE_SERVED,
                               .peer = call.rank,
                               .call_id = call.id,
                               .span = *span,
                               .end_ns = wfi_net_now(agent->net),
                               .status = weft_error_code(call.error)};
    span->track = 0;
    add_record(agent->observer, &record, call.function, call.error);
}

const wfi_component wfi_observe_component = {
    .open = open_observation,
    .begin = begin_observation,
    .close = close_observation,
};
