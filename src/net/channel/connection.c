/* SPDX-License-Identifier: Apache-2.0 */
/* connection.c - creates and closes connections, and frees a closed one when its last operation was reported. */
#include "base/alloc.h"
#include "base/guarded.h"
#include "net/channel/channel.h"

#include <stdlib.h>

static void conn_free(wfi_conn *conn)
{
    wfi_net_fabric_count(&conn->fabric->conns, (size_t)-1);
    conn->channel->ops->release(conn);
    wfi_peer_unref(conn->peer);
    wfi_guarded_free(conn->keys);
    free(conn);
}

wfi_conn *wfi_conn_create(wfi_channel *channel, wfi_net_fabric *fabric, bool ours, uint32_t generation)
{
    wfi_transport *transport = channel->peer->transport;
    wfi_conn *conn = wfi_calloc(1, sizeof(*conn) + channel->ops->conn_bytes);
    if (!conn)
        return NULL;
    conn->transport = transport;
    conn->fabric = fabric;
    wfi_net_fabric_count(&fabric->conns, 1);
    conn->peer = wfi_peer_ref(channel->peer);
    conn->channel = channel;
    conn->ours = ours;
    conn->generation = generation;
    wfi_list_init(&conn->ios);
    wfi_list_init(&conn->dial);
    wfi_net_random_bytes(transport->sim, &conn->nonce, sizeof(conn->nonce));
    conn->keys = wfi_guarded_calloc(sizeof(*conn->keys));
    if (!conn->keys || !wfi_peer_pair_key(channel->peer) || channel->ops->prepare(conn))
        goto free_conn;
    conn->id = ++transport->next_id;
    if (wfi_map_put(&transport->conns, conn->id, conn))
        goto free_conn;
    return conn;
free_conn:
    conn_free(conn);
    return NULL;
}

void wfi_conn_attempt_ended(wfi_conn *conn)
{
    wfi_transport *transport = conn->transport;
    if (!conn->attempt)
        return;
    conn->attempt = false;
    transport->attempts--;
    bool waiting = !wfi_list_empty(&transport->turns) || !wfi_list_empty(&transport->turns_again);
    if (waiting && !transport->turn_timer.heap_index && !transport->closing)
        (void)wfi_timer_set(transport->progress, &transport->turn_timer,
                            wfi_now(transport->progress->clock)); /* by a timer: here lanes are being changed */
}

void wfi_conn_close(wfi_conn *conn)
{
    wfi_transport *transport = conn->transport;
    wfi_assert_held(&transport->progress->lock);
    if (conn->closed)
        return;
    wfi_channel *channel = conn->channel;
    conn->closed = true;
    wfi_conn_attempt_ended(conn);
    wfi_list_remove(&conn->dial);
    (void)wfi_map_take(&transport->conns, conn->id);
    if (channel->crossing == conn) {
        channel->crossing = NULL;
    } else if (channel->conn == conn) {
        channel->conn = channel->crossing;
        channel->crossing = NULL;
        wfi_timer_clear(transport->progress, &channel->timer);
    }
    if (conn->lane)
        conn->fabric->ops->lane_close(conn->lane);
    conn->lane = NULL;
    /* The owners get their operations back; the fabric still has to report these. */
    for (wfi_list *node; (node = wfi_list_pop_front(&conn->ios));) {
        wfi_io *io = wfi_container_of(node, wfi_io, link);
        io->ops->dropped(io);
    }
    channel->ops->down(channel, conn);
    conn->up = false;
    if (conn->outstanding)
        conn->fabric->zombies++;
    else
        conn_free(conn);
}

void wfi_conn_reported(wfi_conn *conn)
{
    conn->outstanding--;
    if (!conn->closed || conn->outstanding)
        return;
    conn->fabric->zombies--;
    conn_free(conn);
}

bool wfi_conn_is_private(const wfi_conn *conn)
{
    const wfi_fabric_ops *ops = conn->fabric->ops;
    return ops->is_private && ops->is_private(conn->lane);
}

void wfi_io_ignore_drop(wfi_io *io)
{
    (void)io;
}
