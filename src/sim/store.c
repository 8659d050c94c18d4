/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - the store inside the simulation, over its channels.
 *
 * Messages arrive in the simulation's loop; ticks come from a fiber of rank 0's group. Both run on one thread, and
 * neither yields while it processes an input, so nothing needs a lock.
 */
#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "base/parker.h"
#include "sim/fiber.h"
#include "sim/sim.h"
#include "sim/store.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

typedef struct end { /* the store's end of a channel */
    wfi_list link;
    struct wfi_sim_store *owner;
    uint64_t id;
    wfi_sim_channel *channel;
    bool is_kept;         /* evicted: nothing is read, closed at the deadline */
    bool is_broken;       /* a send failed: the ticker closes it */
    uint64_t deadline_ns; /* if is_kept */
} end;

struct wfi_sim_store {
    wfi_store *store;
    weft_sim *sim;
    wfi_map by_id;
    wfi_list ends;
    uint64_t last_id;
    wfi_parker *ticker; /* where the ticker waits; on its stack */
    wfi_parker *ender;  /* where a caller waits for the ticker's end */
    uint64_t due_ns;    /* until when the ticker intends to wait */
    bool ticks, ending, draining, must_sweep;
    int64_t grace_ms;
};

static uint64_t now_of(const wfi_sim_store *store)
{
    return wfi_now(wfi_sim_clock(store->sim));
}

/* Wakes the ticker if it has work earlier than planned. Most messages are heartbeats, which do not wake it. */
static void wake_ticker(wfi_sim_store *store)
{
    bool is_due = store->must_sweep || store->ending || wfi_store_due(store->store) < store->due_ns;
    if (store->ticker && is_due)
        wfi_unpark(store->ticker);
}

/* ---- Channels -------------------------------------------------------------------------------------------------- */

static void free_end(end *at)
{
    wfi_map_take(&at->owner->by_id, at->id);
    wfi_list_remove(&at->link);
    free(at);
}

static void close_end(end *at)
{
    wfi_sim_channel_close(at->channel);
    free_end(at);
}

static void end_message(void *arg, wfi_sim_channel *channel, const uint8_t *data, size_t size)
{
    end *at = arg;
    wfi_sim_store *store = at->owner;
    (void)channel;
    if (at->is_kept || at->is_broken)
        return;
    wfi_store_received(store->store, at->id, now_of(store), data, size); /* may free `at` */
    wake_ticker(store);
}

static void end_closed(void *arg, wfi_sim_channel *channel)
{
    end *at = arg;
    wfi_sim_store *store = at->owner;
    uint64_t id = at->id;
    bool known = !at->is_kept;
    (void)channel;
    close_end(at);
    if (known)
        wfi_store_closed(store->store, id, WFI_STORE_ENDED, now_of(store));
    wake_ticker(store);
}

static void end_accepted(void *arg, wfi_sim_channel *channel)
{
    wfi_sim_store *store = arg;
    end *at = wfi_calloc(1, sizeof(*at));
    if (!at)
        goto close_channel;
    *at = (end){.owner = store, .id = ++store->last_id, .channel = channel};
    if (wfi_map_put(&store->by_id, at->id, at))
        goto free_at;
    if (wfi_store_opened(store->store, at->id))
        goto take_id;
    wfi_list_push_back(&store->ends, &at->link);
    wfi_sim_channel_events events = {.message = end_message, .closed = end_closed, .arg = at};
    wfi_sim_channel_on(channel, &events);
    return;

take_id:
    wfi_map_take(&store->by_id, at->id);
free_at:
    free(at);
close_channel:
    wfi_sim_channel_close(channel);
}

static void sim_output_send(void *arg, uint64_t id, const uint8_t *data, size_t size)
{
    wfi_sim_store *store = arg;
    end *at = wfi_map_get(&store->by_id, id);
    if (!at || at->is_broken)
        return;
    weft_status status = wfi_sim_channel_send(at->channel, data, size);
    at->is_broken = status && status != WEFT_ERR_UNREACHABLE; /* if the peer is gone, end_closed tells */
    store->must_sweep |= at->is_broken;
}

static void sim_output_close(void *arg, uint64_t id, int64_t keep_ms)
{
    wfi_sim_store *store = arg;
    end *at = wfi_map_get(&store->by_id, id);
    if (!at)
        return;
    if (keep_ms == 0) {
        close_end(at);
        return;
    }
    at->is_kept = store->must_sweep = true;
    at->deadline_ns = wfi_deadline(wfi_sim_clock(store->sim), keep_ms);
}

static void sim_output_random(void *arg, void *out, size_t size)
{
    wfi_sim_store *store = arg;
    wfi_sim_random_bytes(store->sim, out, size);
}

/* ---- The ticker ------------------------------------------------------------------------------------------------ */

/* Closes ends that broke or whose deadline has passed; returns when the next is due. */
static uint64_t sweep_ends(wfi_sim_store *store, uint64_t now_ns)
{
    uint64_t due_ns = WFI_NEVER;
    store->must_sweep = false;
    for (wfi_list *node = store->ends.next, *next; node != &store->ends; node = next) {
        next = node->next;
        end *at = wfi_container_of(node, end, link);
        uint64_t deadline_ns = at->is_kept ? at->deadline_ns : WFI_NEVER;
        if (at->is_broken && !at->is_kept) {
            end_closed(at, at->channel);
            store->must_sweep = true;
            return now_ns; /* again, because the store may have closed the next one too */
        }
        if (deadline_ns <= now_ns)
            close_end(at);
        else if (deadline_ns < due_ns)
            due_ns = deadline_ns;
    }
    return due_ns;
}

static uint64_t tick_store(wfi_sim_store *store)
{
    uint64_t now_ns = now_of(store);
    if (store->ending && !store->draining) {
        store->draining = true;
        wfi_store_drain(store->store, now_ns, wfi_deadline(wfi_sim_clock(store->sim), store->grace_ms));
    }
    if (wfi_store_due(store->store) <= now_ns)
        wfi_store_tick(store->store, now_ns);
    uint64_t due_ns = sweep_ends(store, now_ns), store_due_ns = wfi_store_due(store->store);
    return store_due_ns < due_ns ? store_due_ns : due_ns;
}

static void run_store_ticker(void *arg)
{
    wfi_sim_store *store = arg;
    wfi_parker parker;
    wfi_parker_init(&parker);
    store->ticker = &parker;
    for (;;) {
        store->due_ns = tick_store(store);
        if (wfi_store_is_finished(store->store, now_of(store)))
            break;
        (void)wfi_park(&parker, store->due_ns);
    }
    store->ticker = NULL;
    wfi_sim_unlisten(store->sim, 0);
    while (!wfi_list_empty(&store->ends))
        close_end(wfi_container_of(store->ends.next, end, link));
    store->ticks = false;
    if (store->ender)
        wfi_unpark(store->ender);
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

static weft_status sim_create_store(wfi_sim_store *store, const wfi_store_options *how)
{
    wfi_store_options options = *how;
    options.now_ns = now_of(store);
    options.outputs = (wfi_store_outputs){
        .send = sim_output_send, .close = sim_output_close, .random = sim_output_random, .arg = store};
    uint8_t job_key[WFI_JOB_KEY_BYTES];
    wfi_sim_random_bytes(store->sim, job_key, sizeof(job_key));
    options.job_key = job_key;
    weft_status status = wfi_store_create(&options, &store->store);
    sodium_memzero(job_key, sizeof(job_key));
    return status;
}

weft_status wfi_sim_store_start(weft_sim *sim, const wfi_store_options *how, wfi_sim_store **out)
{
    wfi_sim_store *store = wfi_calloc(1, sizeof(*store));
    if (!store)
        return WEFT_ERR_MEMORY;
    store->sim = sim;
    wfi_list_init(&store->ends);
    wfi_map_init(&store->by_id);
    weft_status status = sim_create_store(store, how);
    if (status)
        goto free_store;
    status = wfi_sim_listen(sim, 0, end_accepted, store);
    if (status)
        goto free_store;
    store->ticks = true;
    status = wfi_fiber_spawn(wfi_sim_fibers(sim), 0, run_store_ticker, store);
    if (status)
        goto unlisten;
    *out = store;
    return WEFT_OK;

unlisten:
    wfi_sim_unlisten(sim, 0);
free_store:
    wfi_sim_store_abandon(store);
    return status;
}

void wfi_sim_store_count(const wfi_sim_store *store, wfi_store_counts *out)
{
    wfi_store_count(store ? store->store : NULL, out);
}

void wfi_sim_store_end(wfi_sim_store *store, int64_t grace_ms)
{
    if (!store)
        return;
    wfi_parker parker;
    wfi_parker_init(&parker);
    store->grace_ms = grace_ms;
    store->ending = true;
    store->ender = &parker;
    wake_ticker(store);
    while (store->ticks)
        (void)wfi_park(&parker, WFI_NEVER);
    wfi_sim_store_abandon(store);
}

void wfi_sim_store_abandon(wfi_sim_store *store)
{
    if (!store)
        return;
    while (!wfi_list_empty(&store->ends))
        free_end(wfi_container_of(store->ends.next, end, link));
    wfi_map_fini(&store->by_id);
    wfi_store_destroy(store->store);
    free(store);
}
