/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.c - decides when a batch begins; see batch.h. */
#include "rpc/batch/batch.h"

#include <string.h>

typedef enum wfi_reason { NOT_YET, BY_SIZE, BY_TIME, BY_CALLERS, BY_CLOSING } wfi_reason;

/* ---- Whether a batch is due -------------------------------------------------------------------------------------- */

/* Whether no call of this rank is expected: it is not alive, or both it and this worker serve or close. */
static bool is_done(const weft_agent *agent, int rank)
{
    if (rank == wfi_agent_rank(agent))
        return wfi_agent_is_ending(agent);
    if (!wfi_agent_knows_alive(agent, rank))
        return true;
    return wfi_agent_is_ending(agent) && wfi_peer_is_ending(wfi_net_peer(agent->net, rank));
}

/* Whether `batch` has a ready row of each expected caller. `batch` NULL: whether all open batches together have. */
static bool all_expected_are_in(wfi_batcher *batcher, const weft_batch *batch)
{
    const weft_batch_options *o = &batcher->options;
    for (size_t i = 0; i < o->caller_count; i++) {
        const wfi_batch_client *client = wfi_batch_client_of(batcher, o->callers[i]);
        bool is_in = client && (batch ? wfi_batch_count_of(batch, client).ready : client->waiting > 0);
        if (!is_in && !is_done(batcher->agent, o->callers[i]))
            return false;
    }
    return o->caller_count > 0;
}

/* Whether this worker closes or serves, and no caller can add a call to the batch: all others do so too, or have all
 * the rows that they may have. With expected callers only these count: see all_expected_are_in. */
static bool nobody_can_add(const weft_batch *batch)
{
    wfi_batcher *batcher = batch->batcher;
    const weft_agent *agent = batcher->agent;
    if (!wfi_agent_is_ending(agent) || batcher->options.caller_count)
        return false;
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        wfi_row_count its = wfi_batch_count_of(batch, wfi_batch_client_of(batcher, rank));
        if (!(batcher->options.one_per_caller && its.taken) && !is_done(agent, rank))
            return false;
    }
    return true;
}

/*
 * If the expected callers send different shapes, no batch ever has calls of all of them. So when each of them has a
 * call in some open batch, and no batch is due by itself, these batches stop waiting for further callers. False:
 * nothing has changed.
 */
static bool let_all_go(wfi_batcher *batcher)
{
    bool any = false;
    if (!all_expected_are_in(batcher, NULL))
        return false;
    WFI_FOR_LIST (weft_batch, batch, &batcher->open, link) {
        any |= batch->ready && !batch->takes_no_others;
        batch->takes_no_others |= batch->ready > 0;
    }
    return any;
}

/* When the batch is due by time. */
static uint64_t time_limit(const weft_batch *batch)
{
    int64_t wait_us = batch->batcher->options.wait_us;
    uint64_t wait_ns = wait_us == WEFT_FOREVER ? WFI_NEVER : wfi_ns_of_us(wait_us);
    return wait_ns < WFI_NEVER - batch->first_ns ? batch->first_ns + wait_ns : WFI_NEVER;
}

/* Why the batch is due. Until its time limit it waits for rows that are not ready, whatever the reason. */
static wfi_reason is_due(const weft_batch *batch, uint64_t now_ns)
{
    if (!batch->ready)
        return NOT_YET;
    bool in_time = now_ns < time_limit(batch);
    if (in_time && batch->ready < batch->taken)
        return NOT_YET;
    if (batch->taken == (size_t)batch->batcher->options.size)
        return BY_SIZE;
    if (batch->takes_no_others || all_expected_are_in(batch->batcher, batch))
        return BY_CALLERS;
    if (nobody_can_add(batch))
        return BY_CLOSING;
    return in_time ? NOT_YET : BY_TIME;
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

void wfi_batch_count(weft_batch *batch, uint64_t now_ns)
{
    wfi_batcher *batcher = batch->batcher;
    weft_batch_stats *stats = &batcher->stats;
    stats->batches++;
    stats->calls += batch->count;
    stats->by_size += batch->reason == BY_SIZE;
    stats->by_time += batch->reason == BY_TIME;
    stats->by_callers += batch->reason == BY_CALLERS;
    wfi_histogram_record(&batcher->sizes, batch->count);
    for (size_t i = 0; i < batch->count; i++)
        wfi_histogram_record(&batcher->waits, now_ns - batch->calls[i]->span.ready_ns);
}

/* The same worker, function and number of the batch give the same seed. [agent lock] */
static uint64_t seed_of(const weft_batch *batch)
{
    const char *name = batch->batcher->function->name;
    int rank = wfi_agent_rank(batch->agent);
    uint64_t key[] = {(uint64_t)rank, wfi_net_member(batch->agent->net, rank)->incarnation,
                      wfi_hash_bytes(name, strlen(name)), batch->batcher->begun};
    return wfi_hash_bytes(key, sizeof(key));
}

static void begin_batch(weft_batch *batch, wfi_reason reason)
{
    wfi_batcher *batcher = batch->batcher;
    const weft_function *function = batcher->function;
    batch->reason = reason;
    wfi_batch_take_calls(batch);
    size_t faded = batcher->recent_max - batcher->recent_max / 8;
    batcher->recent_max = batch->count > faded ? batch->count : faded;
    batcher->begun++;
    batch->seed = seed_of(batch);
    batcher->running++;
    batch->holds = 2;
    batch->task.run = batcher->run;
    batch->task.urgency = wfi_serve_urgency(function);
    bool is_inline = function->flags & WEFT_FUNCTION_INLINE;
    wfi_net_defer(batch->agent->net, &batch->task, is_inline ? WFI_DEFER_INLINE : WFI_DEFER_WORKER);
    wfi_overload_watch(batch->agent);
}

/* ---- Checking the open batches ----------------------------------------------------------------------------------- */

typedef struct scan {
    weft_batch *due; /* the due batch whose first call has waited longest; NULL: none is due */
    wfi_reason reason;
    uint64_t again_ns; /* when to check again */
} scan;

/* Called while fewer than in_flight batches run. */
static void scan_batch(weft_batch *batch, uint64_t now_ns, scan *seen)
{
    wfi_reason why = is_due(batch, now_ns);
    if (why && (!seen->due || batch->first_ns < seen->due->first_ns)) {
        seen->due = batch;
        seen->reason = why;
    }
    if (batch->ready && time_limit(batch) < seen->again_ns)
        seen->again_ns = time_limit(batch);
}

void wfi_batcher_pump(wfi_batcher *batcher)
{
    wfi_net *net = batcher->agent->net;
    wfi_assert_held(wfi_net_mutex(net));
    if (batcher->agent->stopped) { /* all waiting calls are being refused */
        wfi_net_timer_clear(net, &batcher->timer);
        return;
    }
    if (wfi_agent_is_ending(batcher->agent) && !wfi_list_empty(&batcher->open))
        wfi_net_follow_ending(net);
    uint64_t now_ns = wfi_net_now(net);
    scan seen = {.again_ns = WFI_NEVER};
    while (batcher->running < (size_t)batcher->options.in_flight) {
        seen = (scan){.again_ns = WFI_NEVER};
        WFI_FOR_LIST (weft_batch, batch, &batcher->open, link)
            scan_batch(batch, now_ns, &seen);
        if (seen.due)
            begin_batch(seen.due, seen.reason);
        else if (!let_all_go(batcher))
            break;
    }
    batcher->scan_ns = seen.due ? WFI_NEVER : seen.again_ns;
    if (batcher->scan_ns == WFI_NEVER)
        wfi_net_timer_clear(net, &batcher->timer);
    else if (wfi_net_timer_set(net, &batcher->timer, batcher->scan_ns)) {
        batcher->scan_ns = WFI_NEVER;
        WFI_FOR_LIST (weft_batch, batch, &batcher->open, link) {
            if (!batch->ready)
                continue;
            begin_batch(batch, BY_TIME); /* no memory for a timer: begins it too early, not never */
            break;
        }
    }
}

/*
 * Whether a call that has joined this batch can make a batch due. Without expected callers it cannot
 * make another batch due. There may be as many batches as queued calls, so checking all of them for each call would
 * take quadratic time.
 */
static bool matters(weft_batch *batch, uint64_t now_ns)
{
    const wfi_batcher *batcher = batch->batcher;
    const weft_batch_options *o = &batcher->options;
    scan seen = {.again_ns = WFI_NEVER};
    if (o->caller_count || wfi_agent_is_ending(batcher->agent))
        return true;
    if (batcher->running >= (size_t)o->in_flight)
        return false;
    scan_batch(batch, now_ns, &seen);
    return seen.due || seen.again_ns < batcher->scan_ns;
}

void wfi_batch_timer(wfi_timer *timer)
{
    wfi_batcher_pump(wfi_container_of(timer, wfi_batcher, timer));
}

void wfi_batchers_pump(weft_agent *agent)
{
    for (wfi_batcher *batcher = atomic_load(&agent->batchers); batcher; batcher = batcher->next)
        wfi_batcher_pump(batcher);
}

void wfi_batch_arrived(weft_call *call, uint64_t now_ns)
{
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    weft_batch *batch = call->batch;
    batch->first_ns = batch->first_ns ? batch->first_ns : now_ns;
    if (matters(batch, now_ns))
        wfi_batcher_pump(batcher);
}
