/* SPDX-License-Identifier: Apache-2.0 */
/* accept.c - what the fabric says of connections: requests, that one is up, that one has ended. */
#include "net/net_internal.h"

#define JUMP_MAX (UINT32_C(1) << 30)

/* Whether the peer's request takes the place of what the line has. */
static bool request_wins(const wfi_line *line, uint32_t generation)
{
    const wfi_conn *conn = line->conn;
    if (!conn)
        return true;
    if (generation != conn->generation)
        return generation > conn->generation;
    return conn->ours && !conn->up && line->peer->rank < line->peer->net->rank;
}

static weft_status take_request(wfi_line *line, wfi_connect_request *request, const wfi_hello *asked)
{
    wfi_net *net = line->peer->net;
    uint8_t data[WFI_CONNECT_DATA_MAX];
    wfi_hello hello;
    wfi_conn *conn = wfi_conn_create(line, false, asked->generation);
    if (!conn) {
        net->ops->reject(net->fabric, request);
        return WEFT_ERR_MEMORY;
    }
    conn->peer_nonce = asked->nonce;
    wfi_conn_make_keys(conn);
    wfi_line_hello(line, conn, &hello);
    size_t size = wfi_hello_write(net->keys, wfi_peer_pair_key(line->peer), &hello, &line->peer->member, data);
    line->conn = conn;
    weft_status status = net->ops->accept(net->fabric, request, data, size, (void *)(uintptr_t)conn->id, &conn->lane);
    if (!status)
        status = wfi_conn_post_receives(conn);
    if (!status)
        status = wfi_timer_set(&net->progress, &line->timer, wfi_now(net->progress.clock) + wfi_line_limit(line));
    if (status)
        wfi_conn_close(conn);
    return status;
}

static bool position_makes_sense(const wfi_peer *peer, const wfi_hello *hello)
{
    if (hello->kind == WFI_BULK)
        return true; /* a count of its own */
    return hello->position >= peer->acknowledged && hello->position <= peer->sequence;
}

/* What the hello says besides. */
static void take_position(wfi_peer *peer, const wfi_hello *hello)
{
    if (hello->kind == WFI_CONTROL) {
        wfi_peer_acknowledge(peer, hello->position);
        return;
    }
    peer->excused = peer->excused || hello->position != peer->ended_by_peer;
    peer->ended_by_peer = hello->position;
}

/*
 * Who says that it asks; NULL if the answer is no. One that is newer than what the store has told us asks again, and by then we have
 * been told, its public key too; one that is older is dead, and whoever speaks in its name gets nowhere.
 */
static wfi_peer *asker(wfi_net *net, const wfi_hello *hello)
{
    wfi_peer *peer = net->peers[hello->rank];
    if (peer && hello->incarnation == peer->member.incarnation)
        return peer;
    if (peer && hello->incarnation < peer->member.incarnation) {
        wfi_net_refused(net, "a connection of an incarnation of worker %d that is over was refused", hello->rank);
    }
    return NULL;
}

/* A worker numbers its requests upwards: an old number is a recording, a very large one wants to use the numbers up. */
static bool is_new(const wfi_line *line, uint32_t generation)
{
    return generation > line->asked && (generation < line->generation || generation - line->generation < JUMP_MAX);
}

/* Who asks, and has proved it; NULL: the answer is no. */
static wfi_peer *proven_asker(wfi_net *net, const wfi_event *event, wfi_hello *hello)
{
    if (!wfi_hello_read(net, event->data, event->data_size, 0, hello) || hello->answer) {
        wfi_net_refused(net, "a connection without proof of the job's key was refused");
        return NULL;
    }
    wfi_peer *peer = asker(net, hello);
    const uint8_t *pair_key = peer ? wfi_peer_pair_key(peer) : NULL;
    if (!pair_key || wfi_hello_is_proven(pair_key, &net->self, event->data, 0))
        return pair_key ? peer : NULL;
    wfi_net_refused(net, "a connection in the name of worker %d, without proof of its key, was refused", hello->rank);
    return NULL;
}

static void on_request(wfi_net *net, const wfi_event *event)
{
    wfi_hello hello;
    wfi_peer *peer = proven_asker(net, event, &hello);
    if (!peer) {
        net->ops->reject(net->fabric, event->request);
        return;
    }
    wfi_line *line = &peer->lines[hello.kind];
    if (!is_new(line, hello.generation)) {
        wfi_net_refused(net, "a connection that was asked for before was refused; worker %d", hello.rank);
        net->ops->reject(net->fabric, event->request);
        return;
    }
    wfi_silent_excuse(net, hello.generation - line->asked - 1);
    line->asked = hello.generation;
    if (peer->status || net->closing || !position_makes_sense(peer, &hello) || !request_wins(line, hello.generation)) {
        net->ops->reject(net->fabric, event->request);
        return;
    }
    if (line->conn) {
        line->lost = line->lost || line->conn->up;
        wfi_conn_close(line->conn);
    }
    if (hello.generation > line->generation)
        line->generation = hello.generation;
    take_position(peer, &hello);
    weft_status status = take_request(line, event->request, &hello);
    if (status)
        wfi_line_failed(line, status, "a connection could not be taken");
}

static void on_connected(wfi_net *net, wfi_conn *conn, const wfi_event *event)
{
    wfi_line *line = conn->line;
    wfi_peer *peer = line->peer;
    if (conn->ours) {
        wfi_hello hello;
        bool right = wfi_hello_read(net, event->data, event->data_size, conn->nonce, &hello) && hello.answer &&
                     wfi_hello_is_proven(wfi_peer_pair_key(peer), &net->self, event->data, conn->nonce) &&
                     hello.rank == peer->rank && hello.incarnation == peer->member.incarnation &&
                     hello.kind == line->kind && hello.generation == conn->generation;
        if (!right || !position_makes_sense(peer, &hello)) {
            wfi_net_refused(net, "the answer to a connection had no proof of worker %d's key", peer->rank);
            wfi_attempt_failed(conn, "the one who answered could not prove its key");
            return;
        }
        take_position(peer, &hello);
        conn->peer_nonce = hello.nonce;
        wfi_conn_make_keys(conn);
    }
    conn->outstanding++; /* keeps it while it may close under us */
    wfi_line_is_up(line);
    wfi_frames_early(conn);
    wfi_conn_reported(conn);
}

void wfi_net_event(wfi_net *net, const wfi_event *event)
{
    wfi_assert_held(&net->progress.lock);
    if (event->kind == WFI_EVENT_REQUEST) {
        on_request(net, event);
        return;
    }
    if (event->kind == WFI_EVENT_STRANGERS) {
        wfi_silent_came(net, event->count);
        return;
    }
    wfi_conn *conn = wfi_map_get(&net->conns, (uint64_t)(uintptr_t)event->lane_user);
    if (!conn)
        return;
    if (event->kind == WFI_EVENT_CONNECTED)
        on_connected(net, conn, event);
    else if (!conn->up && !conn->closed && event->why)
        wfi_attempt_failed(conn, event->why);
    else
        wfi_line_broken(conn);
}
