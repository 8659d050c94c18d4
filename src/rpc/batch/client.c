/* SPDX-License-Identifier: Apache-2.0 */
/* client.c - the callers of a batched function, and how many of their calls may wait; see batch.h. */
#include "rpc/batch/batch.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>

#define ACTIVE_BATCHES 8 /* a client counts as active until this many batches after its last call */

wfi_batcher *wfi_batcher_of(const weft_function *function)
{
    wfi_runner *runner = wfi_runner_of(function);
    return runner ? wfi_container_of(runner, wfi_batcher, runner) : NULL;
}

wfi_batch_client *wfi_batch_client_of(wfi_batcher *batcher, int rank)
{
    return wfi_map_get(&batcher->clients, (uint64_t)rank);
}

static wfi_batch_client *find_or_add(wfi_batcher *batcher, int rank)
{
    wfi_batch_client *client = wfi_batch_client_of(batcher, rank);
    if (client)
        return client;
    client = wfi_calloc(1, sizeof *client);
    if (!client)
        return NULL;
    client->rank = rank;
    client->number = batcher->clients.count;
    if (wfi_map_put(&batcher->clients, (uint64_t)rank, client)) {
        free(client);
        return NULL;
    }
    return client;
}

void wfi_batch_count_active(wfi_batcher *batcher)
{
    size_t cursor = 0;
    batcher->active = 0;
    for (wfi_batch_client *c; (c = wfi_map_next(&batcher->clients, &cursor, NULL));) {
        c->is_active = c->queued || batcher->begun - c->seen <= ACTIVE_BATCHES;
        batcher->active += c->is_active;
    }
}

/* `quota`: the number of calls of one caller that may wait, if that is the limit; 0: the whole queue is full. */
static weft_error *refused_as_full(const weft_call *call, const wfi_batcher *batcher, const wfi_batch_client *client,
                                   size_t quota)
{
    const weft_batch_options *o = &batcher->options;
    char limit[160];
    if (quota)
        snprintf(limit, sizeof limit, "%zu of one caller may, as batch.queue is %d, and max_per_caller %d of %d", quota,
                 o->queue, o->max_per_caller, o->size);
    else
        snprintf(limit, sizeof limit, "batch.queue is %d", o->queue);
    return wfi_call_error(call, WEFT_ERR_BUSY, "%zu calls of \"%s\" wait for their batch, %zu of them from rank %d: %s",
                          batcher->queued, call->function->name, client->queued, client->rank, limit);
}

weft_error *wfi_batch_admit(weft_call *call)
{
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    wfi_batch_client *client = find_or_add(batcher, call->from);
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (!client)
        return wfi_call_error(call, WEFT_ERR_MEMORY, "no memory to note its caller");
    client->seen = batcher->begun;
    batcher->active += !client->is_active;
    client->is_active = true;
    const weft_batch_options *o = &batcher->options;
    /* A client may use the same fraction of the queue as of a batch, but at least one call may wait. */
    size_t quota = (size_t)o->queue * (size_t)o->max_per_caller / (size_t)o->size;
    quota = quota ? quota : 1;
    bool full = batcher->queued >= (size_t)o->queue;
    if (full || client->queued >= quota) {
        batcher->stats.refused++;
        call->agent->stats.calls_refused++;
        return refused_as_full(call, batcher, client, full ? 0 : quota);
    }
    client->queued++;
    batcher->queued++;
    call->queued = true;
    return NULL;
}

void wfi_batch_unqueue(weft_call *call)
{
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    if (!call->queued)
        return;
    call->queued = false;
    batcher->queued--;
    wfi_batch_client_of(batcher, call->from)->queued--;
}
