/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c - the callee's side of a remote call: the message is checked, its arguments are taken in (inbound.c), the handler
 * runs (src/net's leader or the executor), and respond.c sends what it gave.
 */
#include "rpc/server/server.h"
#include "rpc/agent/notify.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/text/log.h"
#include "rpc/batch/batch.h"
#include "rpc/agent/budget.h"
#include "rpc/group/group.h"
#include "rpc/server/accumulate.h"
#include "rpc/server/stream.h"

#include <stdlib.h>
#include <string.h>

weft_error *wfi_call_error(const weft_call *call, weft_status code, const char *format, ...)
{
    wfi_error_detail detail = {.code = code, .worker = wfi_agent_rank(call->agent)};
    detail.function = call->function ? call->function->name : NULL;
    detail.remote_code = call->ran ? WEFT_ERR_UNKNOWN : WEFT_OK; /* so the caller knows whether it may be made again */
    va_list args;
    va_start(args, format);
    weft_error *error = wfi_error_create_v(&detail, format, args);
    va_end(args);
    return error;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

void wfi_serve_release_work(weft_call *call)
{
    if (call->slot.drop)
        call->slot.drop(call->slot.value);
    call->slot = (wfi_call_slot){0};
    if (call->deferred)
        return; /* its handler may still be on its way out, and let go of the arguments there */
    weft_values_unref(call->args);
    call->args = NULL;
    if (call->arguments)
        wfi_intake_fini(call->arguments);
}

static void free_task(wfi_task *task)
{
    weft_call *call = wfi_container_of(task, weft_call, release);
    wfi_lodging_unref(call->lodging, NULL); /* it outlived its agent's books */
    call->deferred = false;
    wfi_serve_release_work(call);
    wfi_pack_fini(&call->pack);
    wfi_writer_fini(&call->header);
    free(call->pushes);
    weft_values_unref(call->results);
    wfi_object_drop(call->object);
    weft_error_unref(call->error);
    weft_error_unref(call->inner);
    weft_error_unref(call->failure);
    weft_future_unref(call->local_future);
    weft_future_unref(call->cancellation);
    wfi_parts_out_free(call->parts);
    wfi_parts_in_free(call->local_parts);
    weft_rref_unref(call->local_rref);
    weft_values_unref(call->local_land);
    wfi_agent_unref(call->agent);
    free(call->arguments);
    free(call);
}

void wfi_serve_drop_hold(weft_call *call)
{
    if (--call->holds)
        return;
    if (call->peer)
        wfi_budget_release(call);
    if (call->is_owed)
        wfi_group_answer_settled(call->agent);
    wfi_peer_unref(call->peer);
    wfi_letters_release(call->agent, &call->letters);
    call->release.run = free_task;
    wfi_net_defer(call->agent->net, &call->release, WFI_DEFER_RELEASE);
}

void wfi_serve_leave_table(weft_call *call)
{
    wfi_serve_lean(call, false);
    if (!call->in_table)
        return;
    call->in_table = false;
    if (call->in_map)
        wfi_map_take(&call->agent->peers[call->from].serving, call->id);
    call->in_map = false;
    wfi_serve_drop_hold(call);
}

void wfi_serve_lean(weft_call *call, bool lean)
{
    if (call->peer && call->leans != lean)
        wfi_peer_lean(call->peer, lean ? 1 : -1);
    call->leans = lean;
}

void wfi_serve_uncount(weft_call *call)
{
    call->agent->serving -= call->counted;
    call->counted = false;
}

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

bool wfi_signature_fits(const weft_type *types, weft_args values, char *problem, size_t room)
{
    size_t i = 0;
    for (; i < WEFT_MAX_SIGNATURE && types[i] != WEFT_NONE; i++) {
        if (types[i] == WEFT_REST)
            return true;
        if (i >= values.count) {
            snprintf(problem, room, "%zu values where a %s should follow", values.count, weft_type_name(types[i]));
            return false;
        }
        if (types[i] != WEFT_ANY && types[i] != values.items[i].type) {
            snprintf(problem, room, "value %zu is a %s where the signature says %s", i,
                     weft_type_name(values.items[i].type), weft_type_name(types[i]));
            return false;
        }
    }
    if (i < values.count)
        snprintf(problem, room, "%zu values where the signature ends after %zu", values.count, i);
    return i >= values.count;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

void wfi_serve_answer(weft_call *call)
{
    if (call->peer)
        wfi_answer(call);
    else
        wfi_answer_local(call);
}

static void refuse_task(wfi_task *task)
{
    wfi_serve_answer(wfi_container_of(task, weft_call, task));
}

/* The handler left a deferred call, which others may have finished meanwhile. The second hold of wfi_serve_run keeps the memory
 * here, and with `deferred` set nobody else touches the arguments before that hold goes. */
static void leave_deferred(weft_call *call)
{
    wfi_net *net = call->agent->net;
    if (!call->keep_arguments) {
        weft_values_unref(call->args);
        call->args = NULL;
    }
    wfi_net_lock(net);
    if (call->peer && !call->keep_arguments)
        wfi_budget_release_arguments(call);
    if (call->stage == WFI_SERVE_SERVING && !call->cancelled)
        wfi_serve_lean(call, true);
    if (!call->peer)
        wfi_local_left(call);
    wfi_serve_drop_hold(call);
    wfi_net_unlock(net);
}

static void run_wanted(weft_call *call)
{
    wfi_observe_running(call);
    call->ran = true;
    weft_status st = call->function->run(call, call->function->user);
    if (st != WEFT_DEFERRED && !call->deferred) {
        weft_call_finish(call, st);
    } else if (!call->deferred) {
        weft_call_fail(call, WEFT_ERR_STATE, "the handler returned WEFT_DEFERRED without weft_call_defer");
        weft_call_finish(call, WEFT_ERR_STATE);
    } else {
        if (st != WEFT_DEFERRED)
            wfi_log_agent(call->agent, WEFT_LOG_WARN, call->id,
                          "\"%s\" deferred its call and returned %s: somebody has to finish it all the same",
                          call->function->name, weft_status_name(st));
        leave_deferred(call);
    }
}

weft_status wfi_serve_begin(weft_call *call)
{
    wfi_net *net = call->agent->net;
    weft_status why = (weft_status)atomic_load(&call->unwanted);
    if (why)
        return why;
    if (call->deadline_ns == WFI_NEVER || wfi_now(wfi_net_clock(net)) < call->deadline_ns)
        return call->peer ? WEFT_OK : wfi_local_begin(call);
    wfi_net_lock(net);
    wfi_serve_unwanted(call, WEFT_ERR_TIMEOUT, "the call's time ran out");
    wfi_net_unlock(net);
    return WEFT_ERR_TIMEOUT;
}

void wfi_serve_handler_task(wfi_task *task)
{
    weft_call *call = wfi_container_of(task, weft_call, task);
    weft_status why = wfi_serve_begin(call);
    if (why)
        call->error = wfi_call_error(call, why, "nobody waited for it any more when its turn came: it did not run");
    else if (call->function->land && (!call->peer || call->function->flags & WEFT_LAND_ADD))
        call->error = wfi_land_when_run(call);
    if (call->error)
        refuse_task(task);
    else
        run_wanted(call);
}

wfi_urgency wfi_serve_urgency(const weft_function *function)
{
    if (function->flags & WEFT_URGENT)
        return WFI_URGENT;
    return function->flags & WEFT_LAZY ? WFI_LAZY : WFI_NORMAL;
}

void wfi_serve_run(weft_call *call)
{
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (call->function->run_batch) {
        wfi_batch_join(call);
        return;
    }
    call->stage = WFI_SERVE_SERVING;
    wfi_observe_ready(call);
    call->holds += 2; /* the user's, until finished, and the handler task's */
    call->task.run = wfi_serve_handler_task;
    call->task.urgency = wfi_serve_urgency(call->function);
    bool is_inline = call->function->flags & WEFT_INLINE;
    wfi_defer_kind kind = is_inline ? WFI_DEFER_INLINE : WFI_DEFER_WORKER;
    if (call->function->flags & WFI_AT_ONCE)
        kind = WFI_DEFER_RELEASE;
    wfi_net_defer(call->agent->net, &call->task, kind);
    wfi_stall_watch(call->agent);
}

void wfi_serve_withdraw(weft_call *call, weft_error *error)
{
    call->error = error;
    call->task.run = refuse_task;
    wfi_net_defer(call->agent->net, &call->task, WFI_DEFER_RELEASE);
}

void wfi_serve_turn_away(weft_call *call)
{
    wfi_serve_withdraw(
        call, wfi_call_error(call, WEFT_ERR_BUSY, "all workers of %s wait: it did not run", call->agent->options.name));
}

void wfi_serve_refuse(weft_call *call, weft_error *error)
{
    call->error = error;
    call->stage = WFI_SERVE_SERVING;
    wfi_observe_ready(call);
    call->holds += 2; /* as in wfi_serve_run */
    call->task.run = refuse_task;
    call->task.urgency = WFI_NORMAL;
    wfi_net_defer(call->agent->net, &call->task, WFI_DEFER_RELEASE);
}

/* ---- Arrival ----------------------------------------------------------------------------------------------------- */

static void arguments_ready(wfi_intake *intake, weft_status status)
{
    weft_call *call = intake->owner;
    char problem[128];
    weft_error *error = NULL;
    if (status) {
        error = wfi_call_error(call, status, "the arguments: %s", intake->problem);
    } else {
        call->args = intake->values;
        intake->values = NULL;
        if (!wfi_signature_fits(call->function->takes, weft_values_args(call->args), problem, sizeof problem))
            error = wfi_call_error(call, WEFT_ERR_TYPE, "%s", problem);
    }
    if (!error) {
        wfi_serve_run(call);
        return;
    }
    if (call->queued)
        wfi_batch_leave(call);
    wfi_serve_refuse(call, error);
}

static weft_status arguments_admit(wfi_intake *intake, uint64_t bytes)
{
    return wfi_budget_admit(intake->owner, bytes, intake->problem, sizeof intake->problem);
}

static weft_tensor *user_place(void *arg, size_t index, weft_dtype dtype, weft_shape shape)
{
    weft_call *call = arg;
    return call->function->land(call->from, index, dtype, shape, call->function->user);
}

/* WEFT_ERR_EXISTS: a peer that uses an id twice. */
static weft_status make_call(weft_agent *agent, wfi_peer *from, uint64_t id, weft_call **out)
{
    weft_call *call = wfi_calloc(1, sizeof *call);
    wfi_intake *arguments = wfi_calloc(1, sizeof *arguments);
    if (!call || !arguments) {
        free(call);
        free(arguments);
        return WEFT_ERR_MEMORY;
    }
    call->agent = agent;
    call->peer = from;
    call->from = wfi_peer_rank(from);
    call->id = id;
    call->life = wfi_peer_incarnation(from);
    call->arguments = arguments;
    arguments->agent = agent;
    arguments->peer = from;
    arguments->ready = arguments_ready;
    arguments->admit = arguments_admit;
    arguments->owner = call;
    wfi_list_init(&call->children);
    wfi_writer_init_growing(&call->header);
    weft_status st = wfi_letters_promise(agent, 1, &call->letters);
    if (!st)
        st = wfi_map_put(&agent->peers[call->from].serving, id, call);
    if (st) {
        wfi_letters_release(agent, &call->letters);
        free(arguments);
        free(call);
        return st;
    }
    wfi_agent_ref(agent);
    wfi_peer_ref(from);
    call->in_map = call->in_table = true;
    call->holds = 1;
    wfi_budget_charge(call, WFI_SERVE_BYTES);
    call->counted = true;
    agent->serving++;
    *out = call;
    return WEFT_OK;
}

/* The part of the header that says under which name the result stays here. */
static weft_status read_remote(weft_call *call, wfi_reader *reader)
{
    wfi_rref_name name = wfi_read_rref_name(reader);
    uint64_t fork = wfi_read_u64(reader);
    if (reader->failed || name.owner != (uint32_t)wfi_agent_rank(call->agent) || name.creator != (uint32_t)call->from)
        return WEFT_ERR_PROTOCOL;
    return wfi_owned_create_for(call->agent, call->peer, call->id, &name, fork, &call->owned);
}

/* Nothing depends on what the peer says here: it is only shown. */
static wfi_span read_span(const weft_agent *agent, uint8_t flags, wfi_reader *reader)
{
    wfi_span span = {0};
    if (!(flags & WFI_CALL_TRACED))
        return span;
    span.trace = wfi_read_u64(reader);
    span.parent = wfi_read_u64(reader);
    span.left_ns = wfi_observe_own_ns(agent, wfi_read_u64(reader));
    return span;
}

static void take_in(weft_call *call, wfi_reader *body)
{
    const weft_function *function = call->function;
    weft_error *error = function->run_batch ? wfi_batch_admit(call) : NULL;
    if (error) {
        wfi_serve_refuse(call, error);
        return;
    }
    wfi_intake *arguments = call->arguments;
    arguments->user_places = function->land && !(function->flags & WEFT_LAND_ADD);
    if (arguments->user_places)
        arguments->options = (wfi_unpack_options){.place = user_place, .place_arg = call};
    else if (function->run_batch)
        arguments->options =
            (wfi_unpack_options){.place = wfi_batch_place, .place_arg = call, .expect = wfi_batch_expect};
    wfi_intake_start(arguments, body);
}

void wfi_serve_on_call(weft_agent *agent, wfi_peer *from, wfi_reader *reader)
{
    char name[WFI_FUNCTION_NAME_MAX + 1] = "";
    uint64_t id = wfi_read_u64(reader);
    uint8_t flags = wfi_read_u8(reader);
    uint64_t timeout_ns = wfi_read_u64(reader);
    uint8_t name_size = wfi_read_u8(reader);
    const uint8_t *name_bytes = wfi_read_bytes(reader, name_size);
    size_t context_size;
    wfi_read_blob(reader, WFI_MESSAGE_MAX, &context_size);
    wfi_span span = read_span(agent, flags, reader);
    weft_call *call = NULL;
    weft_status made = WEFT_ERR_PROTOCOL;
    if (!reader->failed)
        made = wfi_refuses_calls_of(agent, from) ? WEFT_ERR_BUSY : make_call(agent, from, id, &call);
    if (made == WEFT_ERR_MEMORY || made == WEFT_ERR_BUSY)
        wfi_refuse_call(agent, from, id, made == WEFT_ERR_MEMORY);
    if (made)
        return; /* else it is nonsense */
    if (name_size <= WFI_FUNCTION_NAME_MAX)
        memcpy(name, name_bytes, name_size);
    call->span = span;
    wfi_observe_arrived(call);
    uint64_t now = call->span.begun_ns;
    call->deadline_ns = timeout_ns > WFI_NEVER - now ? WFI_NEVER : now + timeout_ns;
    call->function = wfi_function_find(agent, name);
    weft_status remote = flags & WFI_CALL_REMOTE ? read_remote(call, reader) : WEFT_OK;
    weft_status parts = flags & WFI_CALL_PARTS ? wfi_parts_out_create(&call->parts) : WEFT_OK;
    if (parts)
        wfi_serve_refuse(call, wfi_call_error(call, parts, "no memory for its parts"));
    else if (remote)
        wfi_serve_refuse(call, wfi_call_error(call, remote,
                                              remote == WEFT_ERR_MEMORY ? "no memory for the reference to its result"
                                                                        : "malformed name of a remote reference"));
    else if (agent->refuses_calls)
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_PEER_LEFT, "%s is leaving the job", agent->options.name));
    else if (!call->function)
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_NOT_FOUND, "no function \"%s\" is registered on %s", name,
                                              agent->options.name));
    else
        take_in(call, reader);
}

/* ---- The end of it ----------------------------------------------------------------------------------------------- */

void wfi_serve_leave_if_over(weft_call *call)
{
    if (call->replied && !call->awaiting_done && !wfi_parts_out_busy(call))
        wfi_serve_leave_table(call);
}

static void done_with(weft_call *call)
{
    weft_agent *agent = call->agent;
    if (!call->awaiting_done || call->pushing)
        return; /* nonsense: nobody can be done with what has not been sent */
    call->awaiting_done = false;
    agent->stats.bytes_sent += wfi_pack_exposed_bytes(&call->pack);
    wfi_pack_withdraw(&call->pack, agent->net, call->peer, true);
    wfi_serve_leave_if_over(call);
}

static weft_call *find(weft_agent *agent, const wfi_peer *from, uint64_t id)
{
    return wfi_map_get(&agent->peers[wfi_peer_rank(from)].serving, id);
}

void wfi_serve_on_done(weft_agent *agent, wfi_peer *from, uint64_t id)
{
    weft_call *call = find(agent, from, id);
    if (call)
        done_with(call);
}

void wfi_serve_on_took(weft_agent *agent, wfi_peer *from, wfi_reader *reader)
{
    weft_call *call = find(agent, from, wfi_read_u64(reader));
    uint32_t number = wfi_read_u32(reader);
    if (!call || reader->failed)
        return;
    wfi_parts_out_took(call, number);
    wfi_serve_leave_if_over(call);
}

/* The caller gave up, and has closed its end of whatever was under way; or it is gone. */
static void cancel_call(weft_call *call, weft_status why, const char *text)
{
    call->cancelled = true;
    wfi_serve_unwanted(call, why, text);
    wfi_parts_out_drop(call);
    if (call->stage == WFI_SERVE_SERVING)
        wfi_serve_uncount(call); /* perhaps never finished, and nobody waits for it: closing need not */
    if (call->stage == WFI_SERVE_TAKING)
        wfi_intake_cancel(call->arguments);
    else if (call->pushing)
        wfi_net_transfer_cancel(call->agent->net, &call->push);
    else if (call->awaiting_done)
        done_with(call);
    else
        wfi_serve_leave_if_over(call);
}

void wfi_serve_on_cancel(weft_agent *agent, wfi_peer *from, wfi_reader *reader)
{
    weft_call *call = find(agent, from, wfi_read_u64(reader));
    bool late = wfi_read_u8(reader);
    if (!call || reader->failed)
        return;
    if (late)
        cancel_call(call, WEFT_ERR_TIMEOUT, "the call's time ran out");
    else
        cancel_call(call, WEFT_ERR_CANCELLED, "the caller cancelled the call");
}

void wfi_serve_peer_gone(weft_agent *agent, int rank, weft_status why, const char *text)
{
    wfi_map gone = agent->peers[rank].serving; /* whoever takes the rank next finds none of these */
    size_t cursor = 0;
    uint64_t id;
    weft_call *call;
    wfi_map_init_keyed(&agent->peers[rank].serving, &agent->hash_key);
    while ((call = wfi_map_next(&gone, &cursor, &id)))
        call->in_map = false;
    for (cursor = 0; (call = wfi_map_next(&gone, &cursor, &id));) {
        cancel_call(call, why, text);
        wfi_serve_lean(call, false);
        if (call->stage == WFI_SERVE_SERVING) /* nothing of it is under way, but at its user */
            wfi_serve_leave_table(call);
    }
    wfi_map_fini(&gone);
}

void wfi_serve_finish_late(weft_call *call)
{
    if (--call->holds == 0) /* the handler task's own hold went before the executor did */
        free_task(&call->release);
}

void wfi_serve_orphan_all(weft_agent *agent)
{
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        wfi_map_fini(&agent->peers[rank].serving); /* emptied by wfi_serve_peer_gone when the agent stopped */
    for (wfi_list *link; (link = wfi_list_pop_front(&agent->local_calls));) {
        weft_call *call = wfi_container_of(link, weft_call, local_link);
        if (--call->holds == 0)
            free_task(&call->release);
    }
}
