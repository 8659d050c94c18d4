/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - large payloads, cut in chunks that are read or written on the peer's bulk lane.
 *
 * A bitmap says which chunks are under way or done, so a transfer goes on with what is missing when its lane was lost.
 * Transfers take turns, chunk by chunk. revalidate.c has what they do after a lane was lost.
 */
#include "base/alloc.h"
#include "net/net_internal.h"

#include <stdlib.h>
#include <string.h>

static uint64_t chunk_max(const wfi_net *net)
{
    return net->limits->rma_max < WFI_CHUNK_BYTES ? net->limits->rma_max : WFI_CHUNK_BYTES;
}

static uint64_t work_chunks(const wfi_work *work)
{
    return work->first[work->owner->segment_count];
}

static bool is_taken(const wfi_work *work, uint64_t index)
{
    return work->taken[index / 64] >> (index % 64) & 1;
}

bool wfi_work_has_free(wfi_work *work)
{
    uint64_t count = work_chunks(work);
    while (work->next < count && is_taken(work, work->next))
        work->next++;
    return !work->ending && work->next < count;
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

static uint64_t count_chunks(const wfi_net *net, const wfi_transfer *transfer)
{
    uint64_t count = 0, max = chunk_max(net);
    for (size_t i = 0; i < transfer->segment_count; i++)
        count += transfer->segments[i].size / max + (transfer->segments[i].size % max != 0);
    return count;
}

static weft_status take_regions(wfi_net *net, wfi_work *work)
{
    weft_status status = WEFT_OK;
    if (!net->limits->needs_local_regions)
        return WEFT_OK;
    work->regions = wfi_calloc(work->owner->segment_count + 1, sizeof(*work->regions));
    if (!work->regions)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < work->owner->segment_count && !status; i++)
        work->regions[i] = wfi_local_region(net, work->owner->segments[i].storage, &status);
    return status;
}

static void work_destroy(wfi_work *work)
{
    for (size_t i = 0; work->regions && i < work->owner->segment_count; i++) {
        if (work->regions[i])
            wfi_local_region_put(work->peer->net, work->owner->segments[i].storage);
    }
    free(work->regions);
    free(work->first);
    free(work->taken);
    free(work);
}

static weft_status work_create(wfi_peer *peer, wfi_transfer *transfer, wfi_work **out)
{
    uint64_t chunks = count_chunks(peer->net, transfer), max = chunk_max(peer->net);
    wfi_work *work = wfi_calloc(1, sizeof(*work));
    if (!work)
        return WEFT_ERR_MEMORY;
    work->owner = transfer;
    work->peer = peer;
    work->first = malloc((transfer->segment_count + 1) * sizeof(*work->first));
    work->taken = wfi_calloc(chunks / 64 + 1, sizeof(*work->taken));
    if (!work->first || !work->taken || take_regions(peer->net, work)) {
        work_destroy(work);
        return WEFT_ERR_MEMORY;
    }
    uint64_t first = 0;
    for (size_t i = 0; i < transfer->segment_count; i++) {
        work->first[i] = first;
        first += transfer->segments[i].size / max + (transfer->segments[i].size % max != 0);
    }
    work->first[transfer->segment_count] = first;
    *out = work;
    return WEFT_OK;
}

static void tell_owner(wfi_done *done)
{
    wfi_work *work = wfi_container_of(done, wfi_work, ended);
    wfi_transfer *owner = work->owner;
    weft_status status = work->status;
    work_destroy(work);
    owner->net = NULL;
    owner->done(owner, status);
}

/* It has ended if nothing of it is under way and nothing more will be. */
static void finish_if_over(wfi_work *work)
{
    bool complete = work->done == work_chunks(work);
    if (work->under_way || !(complete || work->ending))
        return;
    if (complete)
        work->status = WEFT_OK;
    if (work->peer->asked == work)
        work->peer->asked = NULL;
    wfi_list_remove(&work->link);
    work->ended.run = tell_owner;
    wfi_progress_end(&work->peer->net->progress, &work->ended, WFI_DONE_TRANSFER);
}

void wfi_work_end(wfi_work *work, weft_status why)
{
    if (!work->ending)
        work->status = why;
    work->ending = true;
    finish_if_over(work);
}

/* ---- Chunks ---------------------------------------------------------------------------------------------------- */

static wfi_chunk *chunk_take(wfi_net *net)
{
    wfi_list *spare = wfi_list_pop_front(&net->spare_chunks);
    if (spare)
        return wfi_container_of(wfi_container_of(spare, wfi_flight, link), wfi_chunk, flight);
    wfi_chunk *chunk = wfi_calloc(1, sizeof(*chunk));
    if (!chunk)
        return NULL;
    wfi_list_init(&chunk->flight.link);
    chunk->flight.kind = WFI_FLIGHT_CHUNK;
    return chunk;
}

/* The segment that chunk `index` lies in: the last one that does not begin after it. Empty segments have no chunks. */
static size_t segment_of(const wfi_work *work, uint64_t index)
{
    size_t low = 0, high = work->owner->segment_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (work->first[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const wfi_segment *wfi_work_place(const wfi_work *work, uint64_t index, uint64_t *remote, uint64_t *size, size_t *which)
{
    uint64_t max = chunk_max(work->peer->net);
    size_t at = segment_of(work, index);
    const wfi_segment *segment = &work->owner->segments[at];
    uint64_t offset = (index - work->first[at]) * max, left = segment->size - offset;
    *remote = segment->remote_address + offset;
    *size = left < max ? left : max;
    if (which)
        *which = at;
    return segment;
}

static weft_status chunk_post(wfi_conn *conn, wfi_chunk *chunk)
{
    const wfi_fabric_ops *ops = conn->net->ops;
    const wfi_work *work = chunk->work;
    uint64_t remote, size;
    size_t which;
    const wfi_segment *segment = wfi_work_place(work, chunk->index, &remote, &size, &which);
    wfi_region *region = work->regions ? work->regions[which] : NULL;
    char *local = (char *)segment->local + (remote - segment->remote_address);
    chunk->size = size;
    chunk->flight.conn = conn;
    if (work->owner->kind == WFI_PULL)
        return ops->read(conn->lane, &chunk->flight.op, local, size, region, remote, segment->remote_key);
    return ops->write(conn->lane, &chunk->flight.op, local, size, region, remote, segment->remote_key);
}

static weft_status work_post_next(wfi_conn *conn, wfi_work *work)
{
    wfi_chunk *chunk = chunk_take(conn->net);
    if (!chunk) {
        wfi_net_starve(conn->net);
        return WEFT_ERR_AGAIN;
    }
    chunk->work = work;
    chunk->index = work->next;
    weft_status status = chunk_post(conn, chunk);
    if (status) {
        wfi_list_push_front(&conn->net->spare_chunks, &chunk->flight.link);
        return status;
    }
    work->taken[chunk->index / 64] |= UINT64_C(1) << (chunk->index % 64);
    work->under_way++;
    conn->outstanding++;
    conn->chunk_count++;
    conn->chunk_bytes += chunk->size;
    wfi_list_push_back(&conn->flights, &chunk->flight.link);
    return WEFT_OK;
}

static void chunk_leave(wfi_chunk *chunk)
{
    wfi_conn *conn = chunk->flight.conn;
    conn->chunk_count--;
    conn->chunk_bytes -= chunk->size;
    chunk->work->under_way--;
    chunk->work = NULL;
}

void wfi_chunk_detach(wfi_chunk *chunk)
{
    wfi_work *work = chunk->work;
    uint64_t index = chunk->index;
    work->taken[index / 64] &= ~(UINT64_C(1) << (index % 64));
    if (index < work->next)
        work->next = index;
    work->interrupted = true;
    chunk_leave(chunk);
    finish_if_over(work);
}

static void chunk_done(wfi_chunk *chunk)
{
    wfi_conn *conn = chunk->flight.conn;
    wfi_net *net = conn->net;
    wfi_work *work = chunk->work;
    wfi_peer *peer = work->peer;
    uint64_t *count = work->owner->kind == WFI_PULL ? &net->stats.bytes_received : &net->stats.bytes_sent;
    *count += chunk->size;
    wfi_list_remove(&chunk->flight.link);
    chunk_leave(chunk);
    work->done++;
    work->doubted = work->vouched = false;
    conn->useful = true;
    conn->line->failures = 0;
    conn->line->used_ns = net->progress.now_ns;
    peer->heard_ns = net->progress.now_ns;
    finish_if_over(work);
    wfi_works_pump(peer);
}

void wfi_chunk_reported(wfi_chunk *chunk, const wfi_completion *completion)
{
    wfi_conn *conn = chunk->flight.conn;
    if (chunk->work && completion->status)
        wfi_line_broken(conn); /* takes the chunk back */
    else if (chunk->work)
        chunk_done(chunk);
    wfi_list_push_front(&conn->net->spare_chunks, &chunk->flight.link);
}

/* ---- Turns ----------------------------------------------------------------------------------------------------- */

wfi_work *wfi_work_at(wfi_list *node)
{
    return wfi_container_of(node, wfi_work, link);
}

static wfi_work *next_work(wfi_peer *peer)
{
    for (wfi_list *node = peer->works.next; node != &peer->works; node = node->next) {
        wfi_work *work = wfi_work_at(node);
        if (wfi_work_has_free(work) && (!work->doubted || (work->vouched && !work->under_way)))
            return work;
    }
    return NULL;
}

void wfi_works_pump(wfi_peer *peer)
{
    wfi_conn *conn;
    while ((conn = wfi_line_up(&peer->lines[WFI_BULK])) && conn->chunk_bytes < WFI_BULK_WINDOW_BYTES &&
           conn->chunk_count < WFI_BULK_WINDOW_CHUNKS) {
        wfi_work *work = next_work(peer);
        if (!work)
            return;
        weft_status status = work_post_next(conn, work);
        if (status == WEFT_ERR_AGAIN) {
            peer->net->stuck = true;
            return;
        }
        if (status) {
            wfi_line_broken(conn);
            return;
        }
        wfi_list_remove(&work->link);
        wfi_list_push_back(&peer->works, &work->link);
    }
}

void wfi_works_fail(wfi_peer *peer, weft_status why)
{
    while (!wfi_list_empty(&peer->works))
        wfi_work_end(wfi_work_at(peer->works.next), why);
}

/* ---- The contract ---------------------------------------------------------------------------------------------- */

weft_status wfi_net_transfer(wfi_net *net, wfi_peer *peer, wfi_transfer *transfer)
{
    wfi_assert_held(&net->progress.lock);
    wfi_work *work;
    if (net->closing)
        return WEFT_ERR_CLOSED;
    if (peer->status)
        return peer->status;
    weft_status status = work_create(peer, transfer, &work);
    if (status)
        return status;
    transfer->net = work;
    if (wfi_list_empty(&peer->works))
        peer->stuck_ns = wfi_progress_now(&net->progress);
    wfi_list_push_back(&peer->works, &work->link);
    finish_if_over(work); /* nothing to move */
    if (wfi_line_up(&peer->lines[WFI_BULK]))
        wfi_works_pump(peer);
    else
        wfi_line_want(&peer->lines[WFI_BULK]);
    wfi_reach_stuck(peer);
    return WEFT_OK;
}

void wfi_net_transfer_cancel(wfi_net *net, wfi_transfer *transfer)
{
    wfi_assert_held(&net->progress.lock);
    wfi_work *work = transfer->net;
    if (!work || work->ending || (!work->under_way && work->done == work_chunks(work)))
        return;
    wfi_peer *peer = work->peer;
    bool busy = work->under_way > 0;
    wfi_work_end(work, WEFT_ERR_CANCELLED);
    /* A peer that is stopped would leave its chunks under way for ever: only a closed lane says that they have ended. */
    if (busy && peer->lines[WFI_BULK].conn) {
        wfi_line_end(&peer->lines[WFI_BULK]);
        wfi_line_want(&peer->lines[WFI_BULK]);
    }
}
