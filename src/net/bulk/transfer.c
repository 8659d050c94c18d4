/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - transfers large payloads in chunks, which are read or written on the peer's bulk channel.
 *
 * A bitmap has the chunks that are in flight or done. A transfer that lost chunks with its connection asks the peer
 * (revalidate.c), and continues with the missing chunks. The transfers of a peer take turns, one chunk each.
 */
#include "base/alloc.h"
#include "net/bulk/bulk.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_BYTES (4u << 20) /* in flight on one connection; it limits the completions of one round */
/* The same while messages are received: a message waits for the bytes in flight, because one thread moves both. */
#define NARROW_BYTES (512u << 10)
#define NARROW_CHUNKS 16 /* after this many chunks without a new frame the window is wide again */
#define WINDOW_CHUNKS WFI_LANE_SENDS

/* ---- Chunks ---------------------------------------------------------------------------------------------------- */

static const wfi_io_ops chunk_ops;

static wfi_chunk *chunk_take(wfi_transport *transport)
{
    wfi_list *spare = wfi_list_pop_front(&transport->spare_chunks);
    if (spare)
        return wfi_container_of(spare, wfi_chunk, io.link);
    wfi_chunk *chunk = wfi_calloc(1, sizeof(*chunk));
    if (!chunk)
        return NULL;
    wfi_list_init(&chunk->io.link);
    chunk->io.ops = &chunk_ops;
    return chunk;
}

static weft_status state_post_next(wfi_conn *conn, wfi_transfer_state *state)
{
    const wfi_fabric_ops *ops = conn->fabric->ops;
    uint64_t offset, size;
    size_t which;
    wfi_chunk *chunk = chunk_take(conn->transport);
    if (!chunk) {
        wfi_conn_starve(conn);
        return WEFT_ERR_AGAIN;
    }
    const wfi_segment *segment = wfi_transfer_state_place(state, state->next, &offset, &size, &which);
    wfi_region *region = state->regions ? state->regions[which] : NULL;
    char *local = (char *)segment->local + offset;
    uint64_t remote = segment->remote.address + offset, key = segment->remote.key;
    chunk->state = state;
    chunk->index = state->next;
    chunk->size = size;
    chunk->io.conn = conn;
    weft_status status = state->owner->kind == WFI_PULL
                             ? ops->read(conn->lane, &chunk->io.op, local, size, region, remote, key)
                             : ops->write(conn->lane, &chunk->io.op, local, size, region, remote, key);
    if (status) {
        wfi_list_push_front(&conn->transport->spare_chunks, &chunk->io.link);
        return status;
    }
    conn->channel->starved = 0;
    state->taken[chunk->index / 64] |= UINT64_C(1) << (chunk->index % 64);
    state->under_way++;
    conn->outstanding++;
    wfi_net_fabric_count(&conn->fabric->posted, 1);
    wfi_window *window = wfi_conn_window(conn);
    if (!window->chunk_count++)
        window->moved_ns = wfi_progress_now(conn->transport->progress);
    window->chunk_bytes += chunk->size;
    window->narrow -= window->narrow > 0;
    wfi_list_push_back(&conn->ios, &chunk->io.link);
    return WEFT_OK;
}

static void chunk_leave(wfi_chunk *chunk)
{
    wfi_window *window = wfi_conn_window(chunk->io.conn);
    window->chunk_count--;
    window->chunk_bytes -= chunk->size;
    chunk->state->under_way--;
    chunk->state = NULL;
}

/* The connection was closed while the chunk was in flight. */
static void chunk_dropped(wfi_io *io)
{
    wfi_chunk *chunk = wfi_container_of(io, wfi_chunk, io);
    wfi_transfer_state *state = chunk->state;
    uint64_t index = chunk->index;
    state->taken[index / 64] &= ~(UINT64_C(1) << (index % 64));
    if (index < state->next)
        state->next = index;
    state->interrupted = true;
    chunk_leave(chunk);
    wfi_transfer_state_finish(state);
}

static void chunk_done(wfi_chunk *chunk)
{
    wfi_conn *conn = chunk->io.conn;
    weft_stats *stats = &conn->transport->stats;
    wfi_transfer_state *state = chunk->state;
    wfi_transfer *owner = state->owner;
    uint64_t *count = owner->kind == WFI_PULL ? &stats->bytes_received : &stats->bytes_sent;
    *count += chunk->size;
    wfi_list_remove(&chunk->io.link);
    chunk_leave(chunk);
    wfi_conn_window(conn)->moved_ns = wfi_progress_now(conn->transport->progress);
    state->done++;
    state->unvalidated = state->validated = false;
    wfi_channel_moved(conn);
    uint64_t offset, size;
    size_t at;
    (void)wfi_transfer_state_place(state, chunk->index, &offset, &size, &at);
    owner->ops->chunk(owner, at, offset, size);
    wfi_transfer_state_finish(state);
    wfi_transfers_pump(wfi_bulk_of(conn->channel));
}

/* Memory of the chunk cannot be accessed, here or at the peer. The connection is good. */
static void chunk_spoilt(wfi_chunk *chunk)
{
    wfi_transfer_state *state = chunk->state;
    wfi_conn *conn = chunk->io.conn;
    uint64_t offset, size;
    size_t at;
    (void)wfi_transfer_state_place(state, chunk->index, &offset, &size, &at);
    wfi_list_remove(&chunk->io.link);
    chunk_leave(chunk);
    wfi_transfer_state_spoilt(state, at, !wfi_transfer_state_has_local(state, chunk->index));
    wfi_transfers_pump(wfi_bulk_of(conn->channel));
}

static void chunk_completed(wfi_io *io, const wfi_completion *completion)
{
    wfi_chunk *chunk = wfi_container_of(io, wfi_chunk, io);
    wfi_conn *conn = io->conn;
    wfi_net_fabric_count(&conn->fabric->posted, (size_t)-1);
    if (chunk->state && completion->status == WEFT_ERR_INVALID)
        chunk_spoilt(chunk);
    else if (chunk->state && completion->status)
        wfi_channel_broken(conn); /* calls chunk_dropped */
    else if (chunk->state)
        chunk_done(chunk);
    wfi_list_push_front(&conn->transport->spare_chunks, &io->link);
}

static const wfi_io_ops chunk_ops = {.completed = chunk_completed, .dropped = chunk_dropped};

/* ---- Turns ----------------------------------------------------------------------------------------------------- */

static wfi_transfer_state *next_state(wfi_bulk *bulk, const wfi_conn *conn)
{
    bool unfit = false;
    WFI_FOR_LIST (wfi_transfer_state, state, &bulk->transfers, link) {
        bool may = !state->unvalidated || (state->validated && !state->under_way);
        if (!may || state->registration || !wfi_transfer_state_has_free(state))
            continue;
        if (wfi_transfer_state_fits(state, conn))
            return state;
        unfit = true;
    }
    if (unfit)
        wfi_transfers_ask(bulk);
    return NULL;
}

/* The limit of bytes in flight. It is narrow after frames were received while chunks were in flight, from any peer. */
static size_t window_bytes(wfi_conn *conn)
{
    wfi_window *window = wfi_conn_window(conn);
    uint64_t received = conn->transport->stats.frames_received;
    if (window->chunk_count && received != window->frames_received)
        window->narrow = NARROW_CHUNKS;
    window->frames_received = received;
    return window->narrow ? NARROW_BYTES : WINDOW_BYTES;
}

void wfi_transfers_pump(wfi_bulk *bulk)
{
    wfi_conn *conn;
    while ((conn = wfi_channel_up(&bulk->channel))) {
        const wfi_window *window = wfi_conn_window(conn);
        bool has_room = window->chunk_bytes < window_bytes(conn) && window->chunk_count < WINDOW_CHUNKS;
        wfi_transfer_state *state = has_room ? next_state(bulk, conn) : NULL;
        if (!state)
            return;
        size_t refused;
        bool is_possible = state->owner->kind == WFI_PULL || conn->fabric->limits->writes;
        weft_status status =
            is_possible ? wfi_transfer_state_register(state, conn->fabric, &refused) : WEFT_ERR_UNSUPPORTED;
        if (is_possible && refused && wfi_channel_turn(conn, refused, state->lack))
            return;
        if (status == WEFT_ERR_AGAIN) /* another thread registers its memory, so it is skipped */
            continue;
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

uint32_t wfi_peer_bulk_generation(const wfi_peer *peer)
{
    const wfi_bulk *bulk = wfi_peer_bulk(peer);
    const wfi_conn *conn = wfi_channel_up(&bulk->channel);
    wfi_assert_held(&peer->transport->progress->lock);
    return conn && conn->generation == bulk->answered_generation ? conn->generation : 0;
}

bool wfi_peer_can_push(const wfi_peer *peer)
{
    const wfi_transport *transport = peer->transport;
    wfi_assert_held(&transport->progress->lock);
    for (size_t i = 0; i < transport->fabric_count; i++) {
        if (wfi_channel_may_use(peer->channels[WFI_BULK], i) && !transport->fabrics[i].limits->writes)
            return false;
    }
    return true;
}

bool wfi_peer_reports_memory(const wfi_peer *peer)
{
    wfi_assert_held(&peer->transport->progress->lock);
    const wfi_net_fabric *fabric = wfi_channel_exposes_on(peer->channels[WFI_BULK]);
    return fabric && fabric->limits->reports_memory;
}

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
    weft_status status = wfi_transfer_state_create(bulk, transfer, &state);
    if (status)
        return status;
    transfer->net = state;
    if (wfi_list_empty(&bulk->transfers))
        bulk->stuck_ns = wfi_progress_now(transport->progress);
    wfi_list_push_back(&bulk->transfers, &state->link);
    wfi_transfer_state_finish(state); /* if it has no chunks */
    const wfi_conn *conn = wfi_channel_up(&bulk->channel);
    if (conn) {
        state->unvalidated = !conn->fabric->limits->keys_per_transfer && transfer->bulk_generation != conn->generation;
        bulk->channel.ops->retry(&bulk->channel); /* asks, or begins */
    } else {
        wfi_channel_want(&bulk->channel);
    }
    wfi_peer_watch(peer);
    if (peer->silence.heap_index && wfi_bulk_is_stuck(bulk)) /* not set if death_timeout_ms is switched off */
        wfi_peer_check_within(peer, wfi_transport_bound_ns(transport) / 4);
    return WEFT_OK;
}

void wfi_transfer_cancel(wfi_transfer *transfer)
{
    wfi_transfer_state *state = transfer->net;
    if (!state || state->ending || (!state->under_way && state->done == wfi_transfer_state_chunks(state)))
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

void wfi_transfer_ignore_chunk(wfi_transfer *transfer, size_t segment, uint64_t offset, uint64_t size)
{
    (void)transfer, (void)segment, (void)offset, (void)size;
}

void wfi_chunks_free_spares(wfi_transport *transport)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&transport->spare_chunks)))
        free(wfi_container_of(node, wfi_chunk, io.link));
}
