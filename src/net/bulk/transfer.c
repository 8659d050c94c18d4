/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - transfers large payloads in chunks, which are read or written on the peer's bulk channel.
 *
 * A bitmap has the chunks that are in flight or done. So a transfer whose connection broke continues with the missing
 * ones, after it has asked the peer (revalidate.c). Transfers take turns, one chunk each.
 */
#include "base/alloc.h"
#include "net/bulk/bulk.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_BYTES (4u << 20) /* in flight on one connection: limits the completions of one round */
#define WINDOW_CHUNKS WFI_LANE_SENDS

static wfi_transport *bulk_transport(const wfi_bulk *bulk)
{
    return bulk->channel.peer->transport;
}

static uint64_t state_chunks(const wfi_transfer_state *state)
{
    return state->first[state->owner->segment_count];
}

bool wfi_transfer_state_has_free(wfi_transfer_state *state)
{
    uint64_t count = state_chunks(state);
    while (state->next < count && (state->taken[state->next / 64] >> (state->next % 64) & 1))
        state->next++;
    return !state->ending && state->next < count;
}

/* ---- Creating and ending --------------------------------------------------------------------------------------- */

static void drop_regions(wfi_transfer_state *state)
{
    for (size_t i = 0; state->regions && i < state->owner->segment_count; i++) {
        if (state->regions[i])
            wfi_reg_cache_put(state->region_fabric->cache, state->owner->segments[i].storage);
    }
    free(state->regions);
    state->regions = NULL;
    state->region_fabric = NULL;
}

/* Registers local memory with the fabric of the connection, if that fabric needs it. A transfer that continues on
 * another fabric has no chunk in flight on the former one. */
static weft_status take_regions(wfi_net_fabric *fabric, wfi_transfer_state *state)
{
    if (state->region_fabric == fabric)
        return WEFT_OK;
    drop_regions(state);
    state->region_fabric = fabric;
    if (!fabric->limits->needs_local_regions)
        return WEFT_OK;
    state->regions = wfi_calloc(state->owner->segment_count + 1, sizeof(*state->regions));
    weft_status status = state->regions ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < state->owner->segment_count && !status; i++) {
        const wfi_segment *segment = &state->owner->segments[i];
        if (segment->size)
            status = wfi_reg_cache_get(fabric->cache, segment->storage, &state->regions[i]);
        if (status && fabric->limits->copied_max) { /* the fabric copies it through buffers of its own */
            state->regions[i] = NULL;
            status = WEFT_OK;
        }
    }
    if (status)
        drop_regions(state);
    return status;
}

static void state_destroy(wfi_transfer_state *state)
{
    drop_regions(state);
    free(state->first);
    free(state->taken);
    free(state);
}

static weft_status state_create(wfi_bulk *bulk, wfi_transfer *transfer, wfi_transfer_state **out)
{
    uint64_t chunks = 0, max = bulk_transport(bulk)->chunk_bytes;
    wfi_transfer_state *state = wfi_calloc(1, sizeof(*state));
    if (!state)
        return WEFT_ERR_MEMORY;
    state->owner = transfer;
    state->bulk = bulk;
    state->first = malloc((transfer->segment_count + 1) * sizeof(*state->first));
    if (!state->first)
        goto destroy;
    for (size_t i = 0; i < transfer->segment_count; i++) {
        state->first[i] = chunks;
        chunks += transfer->segments[i].size / max + (transfer->segments[i].size % max != 0);
    }
    state->first[transfer->segment_count] = chunks;
    state->taken = wfi_calloc(chunks / 64 + 1, sizeof(*state->taken));
    if (!state->taken)
        goto destroy;
    *out = state;
    return WEFT_OK;
destroy:
    state_destroy(state);
    return WEFT_ERR_MEMORY;
}

static void tell_transfer_owner(wfi_done *done)
{
    wfi_transfer_state *state = wfi_container_of(done, wfi_transfer_state, ended);
    wfi_transfer *owner = state->owner;
    weft_status status = state->status;
    state_destroy(state);
    owner->net = NULL;
    owner->ops->done(owner, status);
}

/* Ends the transfer if no chunk is in flight and none will be posted. */
static void finish_if_over(wfi_transfer_state *state)
{
    bool complete = state->done == state_chunks(state);
    if (state->under_way || !(complete || state->ending))
        return;
    if (complete)
        state->status = WEFT_OK;
    if (state->bulk->asked == state)
        state->bulk->asked = NULL;
    wfi_list_remove(&state->link);
    state->ended.run = tell_transfer_owner;
    wfi_progress_end(bulk_transport(state->bulk)->progress, &state->ended, WFI_DONE_TRANSFER);
}

void wfi_transfer_state_end(wfi_transfer_state *state, weft_status why)
{
    if (!state->ending)
        state->status = why;
    state->ending = true;
    finish_if_over(state);
}

/* ---- Chunks ---------------------------------------------------------------------------------------------------- */

static const wfi_flight_ops chunk_ops;

static wfi_chunk *chunk_take(wfi_transport *transport)
{
    wfi_list *spare = wfi_list_pop_front(&transport->spare_chunks);
    if (spare)
        return wfi_container_of(spare, wfi_chunk, flight.link);
    wfi_chunk *chunk = wfi_calloc(1, sizeof(*chunk));
    if (!chunk)
        return NULL;
    wfi_list_init(&chunk->flight.link);
    chunk->flight.ops = &chunk_ops;
    return chunk;
}

/* The segment of chunk `index`: the last one that does not begin after it. Empty segments have no chunks. */
static size_t segment_of(const wfi_transfer_state *state, uint64_t index)
{
    size_t low = 0, high = state->owner->segment_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (state->first[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const wfi_segment *wfi_transfer_state_place(const wfi_transfer_state *state, uint64_t index, uint64_t *remote,
                                            uint64_t *size, size_t *which)
{
    uint64_t max = bulk_transport(state->bulk)->chunk_bytes;
    size_t at = segment_of(state, index);
    const wfi_segment *segment = &state->owner->segments[at];
    uint64_t offset = (index - state->first[at]) * max, left = segment->size - offset;
    *remote = segment->remote_address + offset;
    *size = left < max ? left : max;
    if (which)
        *which = at;
    return segment;
}

static weft_status state_post_next(wfi_conn *conn, wfi_transfer_state *state)
{
    const wfi_fabric_ops *ops = conn->fabric->ops;
    uint64_t remote, size;
    size_t which;
    wfi_chunk *chunk = chunk_take(conn->transport);
    if (!chunk) {
        wfi_transport_starve(conn->transport);
        return WEFT_ERR_AGAIN;
    }
    const wfi_segment *segment = wfi_transfer_state_place(state, state->next, &remote, &size, &which);
    wfi_region *region = state->regions ? state->regions[which] : NULL;
    char *local = (char *)segment->local + (remote - segment->remote_address);
    chunk->state = state;
    chunk->index = state->next;
    chunk->size = size;
    chunk->flight.conn = conn;
    weft_status status =
        state->owner->kind == WFI_PULL
            ? ops->read(conn->lane, &chunk->flight.op, local, size, region, remote, segment->remote_key)
            : ops->write(conn->lane, &chunk->flight.op, local, size, region, remote, segment->remote_key);
    if (status) {
        wfi_list_push_front(&conn->transport->spare_chunks, &chunk->flight.link);
        return status;
    }
    state->taken[chunk->index / 64] |= UINT64_C(1) << (chunk->index % 64);
    state->under_way++;
    conn->outstanding++;
    wfi_net_fabric_count(&conn->fabric->posted, 1);
    wfi_window *window = wfi_conn_window(conn);
    window->chunk_count++;
    window->chunk_bytes += chunk->size;
    wfi_list_push_back(&conn->flights, &chunk->flight.link);
    return WEFT_OK;
}

static void chunk_leave(wfi_chunk *chunk)
{
    wfi_window *window = wfi_conn_window(chunk->flight.conn);
    window->chunk_count--;
    window->chunk_bytes -= chunk->size;
    chunk->state->under_way--;
    chunk->state = NULL;
}

/* The connection was closed while the chunk was in flight. */
static void chunk_dropped(wfi_flight *flight)
{
    wfi_chunk *chunk = wfi_container_of(flight, wfi_chunk, flight);
    wfi_transfer_state *state = chunk->state;
    uint64_t index = chunk->index;
    state->taken[index / 64] &= ~(UINT64_C(1) << (index % 64));
    if (index < state->next)
        state->next = index;
    state->interrupted = true;
    chunk_leave(chunk);
    finish_if_over(state);
}

static void chunk_done(wfi_chunk *chunk)
{
    wfi_conn *conn = chunk->flight.conn;
    weft_stats *stats = &conn->transport->stats;
    wfi_transfer_state *state = chunk->state;
    wfi_transfer *owner = state->owner;
    uint64_t *count = owner->kind == WFI_PULL ? &stats->bytes_received : &stats->bytes_sent;
    *count += chunk->size;
    wfi_list_remove(&chunk->flight.link);
    chunk_leave(chunk);
    state->done++;
    state->unvalidated = state->validated = false;
    wfi_channel_moved(conn);
    uint64_t remote, size;
    size_t at;
    const wfi_segment *segment = wfi_transfer_state_place(state, chunk->index, &remote, &size, &at);
    owner->ops->chunk(owner, at, remote - segment->remote_address, size);
    finish_if_over(state);
    wfi_transfers_pump(wfi_bulk_of(conn->channel));
}

static void chunk_completed(wfi_flight *flight, const wfi_completion *completion)
{
    wfi_chunk *chunk = wfi_container_of(flight, wfi_chunk, flight);
    wfi_conn *conn = flight->conn;
    wfi_net_fabric_count(&conn->fabric->posted, (size_t)-1);
    if (chunk->state && completion->status)
        wfi_channel_broken(conn); /* calls chunk_dropped */
    else if (chunk->state)
        chunk_done(chunk);
    wfi_list_push_front(&conn->transport->spare_chunks, &flight->link);
}

static const wfi_flight_ops chunk_ops = {.completed = chunk_completed, .dropped = chunk_dropped};

/* ---- Turns ----------------------------------------------------------------------------------------------------- */

static wfi_transfer_state *next_state(wfi_bulk *bulk)
{
    WFI_FOR_LIST (wfi_transfer_state, state, &bulk->transfers, link) {
        if (wfi_transfer_state_has_free(state) && (!state->unvalidated || (state->validated && !state->under_way)))
            return state;
    }
    return NULL;
}

void wfi_transfers_pump(wfi_bulk *bulk)
{
    wfi_conn *conn;
    while ((conn = wfi_channel_up(&bulk->channel))) {
        const wfi_window *window = wfi_conn_window(conn);
        bool has_room = window->chunk_bytes < WINDOW_BYTES && window->chunk_count < WINDOW_CHUNKS;
        wfi_transfer_state *state = has_room ? next_state(bulk) : NULL;
        if (!state)
            return;
        weft_status status = take_regions(conn->fabric, state);
        if (status) {
            wfi_transfer_state_end(state, status);
            continue;
        }
        status = state_post_next(conn, state);
        if (status == WEFT_ERR_AGAIN) {
            conn->fabric->stuck = true;
            return;
        }
        if (status) {
            wfi_channel_broken(conn);
            return;
        }
        wfi_list_remove(&state->link);
        wfi_list_push_back(&bulk->transfers, &state->link);
    }
}

bool wfi_bulk_is_stuck(const wfi_bulk *bulk)
{
    return !wfi_list_empty(&bulk->transfers) && !wfi_channel_up(&bulk->channel);
}

void wfi_transfers_fail(wfi_bulk *bulk, weft_status why)
{
    while (!wfi_list_empty(&bulk->transfers))
        wfi_transfer_state_end(wfi_container_of(bulk->transfers.next, wfi_transfer_state, link), why);
}

/* ---- The functions of bulk.h ----------------------------------------------------------------------------------- */

weft_status wfi_peer_transfer(wfi_peer *peer, wfi_transfer *transfer)
{
    wfi_transport *transport = peer->transport;
    wfi_bulk *bulk = wfi_peer_bulk(peer);
    wfi_assert_held(&transport->progress->lock);
    wfi_transfer_state *state;
    if (transport->closing)
        return WEFT_ERR_CLOSED;
    if (peer->status)
        return peer->status;
    weft_status status = state_create(bulk, transfer, &state);
    if (status)
        return status;
    transfer->net = state;
    if (wfi_list_empty(&bulk->transfers))
        bulk->stuck_ns = wfi_progress_now(transport->progress);
    wfi_list_push_back(&bulk->transfers, &state->link);
    finish_if_over(state); /* if it has no chunks */
    if (wfi_channel_up(&bulk->channel))
        wfi_transfers_pump(bulk);
    else
        wfi_channel_want(&bulk->channel);
    wfi_peer_watch(peer);
    if (peer->silence.heap_index && wfi_bulk_is_stuck(bulk)) /* not set if death_timeout_ms is switched off */
        wfi_peer_look_within(peer, wfi_transport_bound_ns(transport) / 4);
    return WEFT_OK;
}

void wfi_transfer_cancel(wfi_transfer *transfer)
{
    wfi_transfer_state *state = transfer->net;
    if (!state || state->ending || (!state->under_way && state->done == state_chunks(state)))
        return;
    wfi_channel *channel = &state->bulk->channel;
    bool busy = state->under_way > 0;
    wfi_assert_held(&channel->peer->transport->progress->lock);
    wfi_transfer_state_end(state, WEFT_ERR_CANCELLED);
    /* If the peer is stopped, the chunks would stay in flight forever. Closing the connection ends them. */
    if (busy && channel->conn) {
        wfi_channel_end(channel);
        wfi_channel_want(channel);
    }
}

void wfi_transfer_chunk_unheard(wfi_transfer *transfer, size_t segment, uint64_t offset, uint64_t size)
{
    (void)transfer, (void)segment, (void)offset, (void)size;
}

void wfi_chunks_free_spares(wfi_transport *transport)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&transport->spare_chunks)))
        free(wfi_container_of(node, wfi_chunk, flight.link));
}
