/* SPDX-License-Identifier: Apache-2.0 */
/* accept.c - handles a fabric's connection events: requests, connections that are up, connections that ended. */
#include "net/channel/channel.h"

#include <unistd.h>

#define JUMP_MAX (UINT32_C(1) << 30)

/* Whether the peer's request replaces the channel's connection or attempt. */
static bool request_replaces(const wfi_channel *channel, uint32_t generation)
{
    const wfi_conn *conn = channel->conn;
    if (!conn)
        return true;
    if (generation != conn->generation)
        return generation > conn->generation;
    return conn->ours && !conn->up && channel->peer->rank < channel->peer->transport->rank;
}

/* Whether the request is answered beside this worker's own attempt, which has the higher generation. The attempt is
 * on another fabric, where the peer may never see it. */
static bool request_crosses(const wfi_channel *channel, const wfi_net_fabric *fabric)
{
    const wfi_conn *conn = channel->conn;
    return conn && conn->ours && !conn->up && conn->fabric != fabric;
}

/* `replaces`: the new connection becomes the channel's. Otherwise it becomes the crossing. */
static weft_status take_request(wfi_channel *channel, wfi_net_fabric *fabric, wfi_connect_request *request,
                                const wfi_hello *hello, bool replaces)
{
    uint8_t data[WFI_CONNECT_DATA_MAX];
    wfi_conn *conn = wfi_conn_create(channel, fabric, false, hello->generation);
    if (!conn) {
        fabric->ops->reject(fabric->fabric, request);
        return WEFT_ERR_MEMORY;
    }
    conn->peer_nonce = hello->nonce;
    wfi_conn_make_keys(conn);
    size_t size = wfi_conn_hello(conn, data);
    if (replaces) {
        channel->conn = conn;
        channel->tried = fabric;
    } else {
        channel->crossing = conn;
    }
    weft_status status = fabric->ops->lane_take(fabric->fabric, request, (void *)(uintptr_t)conn->id, &conn->lane);
    return wfi_channel_attach(conn, status, data, size);
}

/*
 * Returns the peer that sent the request, after its proof was verified. NULL: the request is refused. If its
 * incarnation is newer than the one known here, the worker tries again; it succeeds when the store has announced its
 * public key. An older incarnation has ended.
 */
static wfi_peer *proven_asker(wfi_transport *transport, const wfi_event *event, wfi_hello *hello)
{
    if (!wfi_hello_read(transport, event->data, event->data_size, 0, hello) || hello->answer) {
        wfi_transport_refused(transport, "a connection without proof of the job's key was refused");
        return NULL;
    }
    wfi_peer *peer = transport->peers[hello->rank];
    if (!peer || hello->incarnation > peer->member.incarnation)
        return NULL;
    if (hello->incarnation < peer->member.incarnation) {
        wfi_transport_refused(transport, "a connection of a former incarnation of worker %d was refused", hello->rank);
        return NULL;
    }
    const uint8_t *pair_key = wfi_peer_pair_key(peer);
    if (!pair_key || wfi_hello_is_proven(pair_key, &transport->self, event->data, 0))
        return pair_key ? peer : NULL;
    wfi_transport_refused(transport, "a connection in the name of worker %d, without proof of its key, was refused",
                          hello->rank);
    return NULL;
}

/*
 * Notes that a request with this generation has arrived. False: it arrived before, or is 64 or more generations old and
 * counts as a replay. Requests may arrive in another order than they were sent.
 */
static bool is_first_of_generation(wfi_channel *channel, uint32_t generation)
{
    if (generation > channel->highest_request) {
        uint32_t ahead = generation - channel->highest_request;
        channel->replay_window = (ahead < 64 ? channel->replay_window << ahead : 0) | 1;
        channel->highest_request = generation;
        return true;
    }
    uint32_t behind = channel->highest_request - generation;
    uint64_t bit = behind < 64 ? UINT64_C(1) << behind : 0;
    bool is_first = bit && !(channel->replay_window & bit);
    channel->replay_window |= bit;
    return is_first;
}

/* A peer requests a connection. A request that is proven and newer than all before replaces the channel's
 * connection, or is answered beside this worker's own attempt. All others are rejected. */
static void on_request(wfi_net_fabric *fabric, const wfi_event *event)
{
    wfi_transport *transport = fabric->transport;
    wfi_hello hello;
    wfi_peer *peer = proven_asker(transport, event, &hello);
    if (!peer)
        goto reject;
    wfi_channel *channel = peer->channels[hello.kind];
    /* The generations of a worker's requests grow. A very large one would use them all up. */
    if (hello.generation >= channel->generation && hello.generation - channel->generation >= JUMP_MAX) {
        wfi_transport_refused(transport, "a connection with a far too large generation was refused; worker %d",
                              hello.rank);
        goto reject;
    }
    uint32_t highest = channel->highest_request;
    if (!is_first_of_generation(channel, hello.generation)) {
        wfi_transport_refused(transport, "a repeated request for a connection was refused; worker %d", hello.rank);
        goto reject;
    }
    if (hello.generation <= highest) {
        wfi_log_net(transport, WEFT_LOG_DEBUG, "a request of worker %d arrived after a later one and is ignored",
                    hello.rank);
        goto reject;
    }
    wfi_silent_excuse(transport, hello.generation - highest - 1); /* attempts in between sent no request */
    bool replaces = request_replaces(channel, hello.generation);
    if (peer->status || transport->closing || !(replaces || request_crosses(channel, fabric)) ||
        !channel->ops->take_position(channel, hello.position))
        goto reject;
    if (replaces) {
        channel->lost = channel->lost || wfi_channel_up(channel);
        wfi_channel_close(channel);
    } else if (channel->crossing) {
        wfi_conn_close(channel->crossing);
    }
    if (hello.generation > channel->generation)
        channel->generation = hello.generation;
    weft_status status = take_request(channel, fabric, event->request, &hello, replaces);
    if (status && replaces)
        wfi_channel_failed(channel, status, "a connection could not be taken");
    return;
reject:
    fabric->ops->reject(fabric->fabric, event->request);
}

static void on_connected(wfi_transport *transport, wfi_conn *conn, const wfi_event *event)
{
    wfi_channel *channel = conn->channel;
    wfi_peer *peer = channel->peer;
    if (conn->ours) {
        wfi_hello hello;
        bool right = wfi_hello_read(transport, event->data, event->data_size, conn->nonce, &hello) && hello.answer &&
                     wfi_hello_is_proven(wfi_peer_pair_key(peer), &transport->self, event->data, conn->nonce) &&
                     hello.rank == peer->rank && hello.incarnation == peer->member.incarnation &&
                     hello.kind == channel->kind && hello.generation == conn->generation;
        if (!right || !channel->ops->take_position(channel, hello.position)) {
            wfi_transport_refused(transport, "the answer to a connection had no proof of worker %d's key", peer->rank);
            wfi_attempt_failed(conn, "the answering process could not prove its key");
            return;
        }
        conn->peer_nonce = hello.nonce;
        wfi_conn_make_keys(conn);
    }
    if (channel->kind == WFI_BULK && event->why) {
        wfi_channel_unreadable(conn, event->why);
        return;
    }
    conn->outstanding++; /* the next call may close the connection, which must not be freed */
    if (channel->crossing == conn)
        wfi_channel_prefer(conn);
    wfi_channel_is_up(channel);
    wfi_conn_reported(conn);
}

void wfi_transport_event(wfi_net_fabric *fabric, const wfi_event *event)
{
    wfi_transport *transport = fabric->transport;
    wfi_assert_held(&transport->progress->lock);
    if (event->kind == WFI_EVENT_REQUEST) {
        on_request(fabric, event);
        return;
    }
    if (event->kind == WFI_EVENT_SILENT) {
        wfi_silent_came(transport, event->count);
        return;
    }
    wfi_conn *conn = wfi_map_get(&transport->conns, (uint64_t)(uintptr_t)event->lane_user);
    if (event->kind == WFI_EVENT_PASSED) {
        if (conn && conn->up && !conn->closed)
            wfi_peer_passed(conn->peer, event->fd, event->data, event->data_size);
        close(event->fd);
        return;
    }
    if (!conn)
        return;
    if (event->kind == WFI_EVENT_CONNECTED)
        on_connected(transport, conn, event);
    else if (!conn->up && !conn->closed && event->why)
        wfi_attempt_failed(conn, event->why);
    else
        wfi_channel_broken(conn);
}
