/* SPDX-License-Identifier: Apache-2.0 */
/* client.c - the callers of a batched function, and how many of their calls may wait; see batch.h. */
#include "rpc/batch/batch.h"

#include "base/alloc.h"

#include <stdlib.h>

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
    client = wfi_calloc(1, sizeof(*client));
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

/*
 * A caller's first call needs a free place. With further ones it may have as many calls in the queue as places are
 * free: one caller that floods the queue gets half of it, two get a third each. Source: A. K. Choudhury and
 * E. L. Hahne, Dynamic queue length thresholds for shared-memory packet switches, IEEE/ACM Transactions on Networking
 * 6(2), 1998 (alpha = 1). If a batch needs calls of several callers, each has at most an equal share: otherwise a few
 * could hold all places, and their batches would wait for the others.
 */
weft_error *wfi_batch_admit(weft_call *call)
{
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    wfi_batch_client *client = find_or_add(batcher, call->from);
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (!client)
        return wfi_call_error(call, WEFT_ERR_MEMORY, "no memory to note its caller");
    const weft_batch_options *o = &batcher->options;
    size_t queue = (size_t)o->queue, needed = o->one_per_caller ? (size_t)o->size : o->caller_count;
    bool is_full = client->queued + batcher->queued >= queue || (needed && client->queued >= queue / needed);
    if (batcher->queued >= queue || (client->queued && is_full)) {
        batcher->stats.refused++;
        call->agent->stats.calls_refused++;
        return wfi_call_error(
            call, WEFT_ERR_BUSY,
            "%zu calls of \"%s\" wait for their batch, %zu of them from rank %d: batch.queue is %zu, and one caller "
            "may have as many calls there as places are free, and no more than its share",
            batcher->queued, call->function->name, client->queued, client->rank, queue);
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
