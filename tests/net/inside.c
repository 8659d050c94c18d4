/* SPDX-License-Identifier: Apache-2.0 */
/* inside.c - see inside.h. */
#include "net/inside.h"
#include "lanes.h"

#include "rpc/must.h"

#include <stdlib.h>
#include <string.h>

size_t inside_peers(wfi_net *net)
{
    size_t count = 0;
    wfi_net_lock(net);
    for (wfi_list *link = net->transport.known.next; link != &net->transport.known; link = link->next)
        count++;
    wfi_net_unlock(net);
    return count;
}

static size_t locked(wfi_net *net, const size_t *count)
{
    wfi_net_lock(net);
    size_t value = *count;
    wfi_net_unlock(net);
    return value;
}

size_t inside_timers(wfi_net *net)
{
    return locked(net, &net->progress.heap_count);
}

size_t inside_timers_reserved(wfi_net *net)
{
    return locked(net, &net->progress.heap_reserved);
}

weft_stats inside_stats(wfi_net *net)
{
    weft_stats stats = {0};
    wfi_net_lock(net);
    wfi_net_stats(net, &stats);
    wfi_net_unlock(net);
    return stats;
}

uint64_t inside_silent(wfi_net *net)
{
    wfi_net_lock(net);
    uint64_t silent = net->transport.silent;
    wfi_net_unlock(net);
    return silent;
}

static wfi_peer *peer_of(wfi_net *net, int rank)
{
    wfi_peer *peer = wfi_net_peer(net, rank);
    MUST(peer);
    return peer;
}

static wfi_whole_peer *whole(wfi_net *net, int rank)
{
    return wfi_container_of(peer_of(net, rank), wfi_whole_peer, peer);
}

bool inside_interested(wfi_net *net, int rank)
{
    wfi_net_lock(net);
    MUST(wfi_list_empty(&net->interest_changed));
    bool interested = whole(net, rank)->interest_announced;
    wfi_net_unlock(net);
    return interested;
}

uint64_t inside_suspected_ns(wfi_net *net, int rank)
{
    wfi_net_lock(net);
    uint64_t ns = whole(net, rank)->suspected_ns;
    wfi_net_unlock(net);
    return ns;
}

uint64_t inside_asked(wfi_net *net, int rank, wfi_lane_kind kind)
{
    wfi_net_lock(net);
    uint64_t asked = peer_of(net, rank)->channels[kind]->highest_request;
    wfi_net_unlock(net);
    return asked;
}

/* ---- Connections ---------------------------------------------------------------------------------------------- */

wfi_conn *inside_up(wfi_net *net, int rank, wfi_lane_kind kind)
{
    const wfi_peer *peer = wfi_net_peer(net, rank);
    return peer ? wfi_channel_up(peer->channels[kind]) : NULL;
}

bool inside_has_conn(wfi_net *net, int rank, wfi_lane_kind kind)
{
    wfi_net_lock(net);
    bool has = peer_of(net, rank)->channels[kind]->conn;
    wfi_net_unlock(net);
    return has;
}

size_t inside_moving(wfi_net *net, int rank)
{
    wfi_net_lock(net);
    const wfi_conn *conn = inside_up(net, rank, WFI_BULK);
    size_t moving = conn ? wfi_conn_window(conn)->chunk_bytes : 0;
    wfi_net_unlock(net);
    return moving;
}

void inside_close_conn(wfi_net *net, int rank)
{
    wfi_net_lock(net);
    wfi_conn *conn = peer_of(net, rank)->channels[WFI_CONTROL]->conn;
    if (conn)
        wfi_conn_close(conn);
    wfi_net_unlock(net);
}

void inside_break(wfi_net *net, int rank)
{
    wfi_net_lock(net);
    wfi_conn *conn = inside_up(net, rank, WFI_CONTROL);
    MUST(conn);
    wfi_channel_broken(conn);
    wfi_net_unlock(net);
}

void inside_count_up(wfi_net *net, int rank, int by)
{
    wfi_net_lock(net);
    peer_of(net, rank)->channels[WFI_CONTROL]->generation += (unsigned)by;
    wfi_net_unlock(net);
}

void inside_hang_up_on(wfi_net *net, size_t strangers)
{
    wfi_net_lock(net);
    wfi_transport_event(&net->transport.fabrics[0], &(wfi_event){.kind = WFI_EVENT_SILENT, .count = strangers});
    wfi_net_unlock(net);
}

/* ---- Frames --------------------------------------------------------------------------------------------------- */

wfi_frame inside_next_frame(const wfi_conn *conn, size_t size)
{
    const wfi_control *control = wfi_peer_control(conn->channel->peer);
    return (wfi_frame){.count = 1,
                       .number = wfi_conn_frames(conn)->sent,
                       .first = control->sequence + 1,
                       .ack = control->received,
                       .consumed = wfi_conn_frames(conn)->consumed,
                       .size = (uint32_t)size};
}

const uint8_t *inside_frame_key(const wfi_conn *conn, bool theirs)
{
    return wfi_conn_is_private(conn) ? NULL : theirs ? conn->keys->in : conn->keys->out;
}

void inside_leave_credit(wfi_conn *conn, uint32_t credits)
{
    wfi_frames *frames = wfi_conn_frames(conn);
    frames->returned = frames->sent - (WFI_RECEIVE_DEPTH - credits);
    frames->announced = frames->consumed - 1;
}

size_t inside_receives(wfi_net *net, int rank, wfi_length length)
{
    wfi_net_lock(net);
    const wfi_conn *conn = inside_up(net, rank, WFI_CONTROL);
    size_t count = conn ? wfi_conn_frames(conn)->rooms[length].receives : 0;
    wfi_net_unlock(net);
    return count;
}

size_t inside_lend(wfi_net *net, size_t peers)
{
    wfi_net_lock(net);
    size_t before = net->transport.large_peers;
    net->transport.large_peers += peers;
    wfi_net_unlock(net);
    return before;
}

uint64_t inside_announced(const wfi_conn *conn)
{
    return wfi_conn_frames(conn)->announced;
}

static void frame_sent(wfi_io *io, const wfi_completion *completion)
{
    free(wfi_container_of(io, wfi_tx, io));
}

static const wfi_io_ops frame_ops = {.completed = frame_sent, .dropped = wfi_io_ignore_drop};

weft_status inside_put(wfi_conn *conn, const void *data, size_t size)
{
    wfi_tx *tx = calloc(1, sizeof(*tx) + size);
    MUST(tx);
    wfi_list_init(&tx->io.link);
    tx->io.ops = &frame_ops;
    tx->io.conn = conn;
    memcpy(tx->data, data, size);
    weft_status status = conn->fabric->ops->send(conn->lane, &tx->io.op, &(wfi_iov){.data = tx->data, .size = size}, 1);
    if (status) {
        free(tx);
        return status;
    }
    conn->outstanding++;
    wfi_conn_frames(conn)->sent++;
    return WEFT_OK;
}

void inside_push_out(wfi_net *net, int rank)
{
    wfi_completion thrown[64];
    wfi_net_lock(net);
    wfi_conn *conn = inside_up(net, rank, WFI_CONTROL);
    if (conn) {
        wfi_conn_frames(conn)->returned = wfi_conn_frames(conn)->sent;
        wfi_peer_flush(conn->channel->peer);
    }
    wfi_net_unlock(net);
    if (conn)
        (void)conn->fabric->ops->poll(conn->fabric->fabric, thrown, 64);
}

/* It lies in front of the spare ones. */
size_t inside_last_frame(wfi_net *net, uint8_t *out)
{
    const wfi_list *spares = &net->transport.fabrics[0].spares;
    MUST(!wfi_list_empty(spares));
    const wfi_tx *tx = wfi_container_of(wfi_container_of(spares->next, wfi_io, link), wfi_tx, io);
    memcpy(out, tx->data, tx->used);
    return tx->used;
}

bool inside_synchronize(wfi_net *net, int rank, const wfi_net *other)
{
    wfi_control *control = wfi_peer_control(peer_of(net, rank));
    control->sequence = wfi_peer_control(other->transport.peers[wfi_net_rank(net)])->received;
    control->acknowledged = control->sequence;
    peer_of(net, rank)->channels[WFI_CONTROL]->failures = 0; /* in no mind to wait */
    return wfi_list_empty(&control->queued);
}

/* ---- Handshakes ----------------------------------------------------------------------------------------------- */

bool inside_hello_of(const wfi_conn *conn, wfi_hello *out)
{
    *out = (wfi_hello){.kind = WFI_CONTROL,
                       .rank = conn->transport->self.rank,
                       .incarnation = conn->transport->self.incarnation,
                       .generation = conn->generation,
                       .nonce = conn->nonce};
    return conn->ours;
}

size_t inside_write_hello(wfi_net *net, const wfi_hello *hello, const uint8_t *pair_key, const wfi_member *to,
                          uint8_t *out)
{
    const uint8_t *key = pair_key ? pair_key : wfi_peer_pair_key(peer_of(net, to->rank));
    return wfi_hello_write(net->transport.keys, key, hello, to, out);
}

bool inside_takes_hello(wfi_net *net, const uint8_t *text, size_t size, uint64_t asked)
{
    wfi_hello read;
    return wfi_hello_read(&net->transport, text, size, asked, &read);
}

bool inside_is_proven(wfi_net *net, int from, const uint8_t *text, uint64_t asked)
{
    return wfi_hello_is_proven(wfi_peer_pair_key(peer_of(net, from)), &net->transport.self, text, asked);
}

const uint8_t *inside_address(const wfi_member *member, size_t *size)
{
    for (uint8_t number = 0; number < UINT8_MAX; number++) {
        const uint8_t *address = wfi_addresses_find(member, number, size);
        if (address)
            return address;
    }
    MUST(false);
    return NULL;
}

const wfi_member *inside_self(const wfi_net *net)
{
    return &net->transport.self;
}

const wfi_net_keys *inside_net_keys(const wfi_net *net)
{
    return net->transport.keys;
}

bool inside_pair_key(wfi_net *net, const wfi_member *self, const wfi_member *other, uint8_t *out)
{
    return wfi_pair_derive(net->transport.keys, self, other, out);
}

wfi_lane *inside_ask(wfi_net *net, int rank, const void *data, size_t size)
{
    const wfi_member *to = wfi_net_member(net, rank);
    wfi_lane *lane = NULL;
    size_t address_size;
    const wfi_net_fabric *fabric = &net->transport.fabrics[0];
    const uint8_t *address = wfi_addresses_find(to, fabric->ops->number, &address_size);
    MUST(address);
    MUST_OK(lanes_connect(fabric->fabric, address, address_size, data, size, NULL, &lane));
    return lane;
}

void inside_hang_up(wfi_net *net, wfi_lane *lane)
{
    net->transport.fabrics[0].ops->lane_close(lane);
}

const wfi_fabric_ops *inside_fabric_ops(wfi_net *net, const wfi_fabric_ops *ops)
{
    const wfi_fabric_ops *before = net->transport.fabrics[0].ops;
    if (ops)
        net->transport.fabrics[0].ops = ops;
    return before;
}

bool inside_is_fabric(const wfi_net *net, const wfi_fabric *fabric)
{
    return net && net->transport.fabrics[0].fabric == fabric;
}
