/* SPDX-License-Identifier: Apache-2.0 */
/* connection.c - a connection and what is under way on it: made, closed, freed with its last operation. */
#include "base/alloc.h"
#include "base/guarded.h"
#include "net/net_internal.h"
#include "sim/sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void conn_free(wfi_conn *conn)
{
    wfi_net *net = conn->net;
    if (conn->receive_region)
        net->ops->region_close(net->fabric, conn->receive_region);
    free(conn->receive_data);
    free(conn->receives);
    wfi_peer_unref(conn->peer);
    wfi_guarded_free(conn->keys);
    free(conn);
}

/* In the simulation from its seed: every byte that travels replays. */
static uint64_t new_nonce(const wfi_net *net)
{
    uint64_t nonce;
    if (net->sim)
        return wfi_sim_random(net->sim);
    randombytes_buf(&nonce, sizeof(nonce));
    return nonce;
}

wfi_conn *wfi_conn_create(wfi_line *line, bool ours, uint32_t generation)
{
    wfi_net *net = line->peer->net;
    wfi_conn *conn = wfi_calloc(1, sizeof(*conn));
    if (!conn)
        return NULL;
    conn->net = net;
    conn->peer = wfi_peer_ref(line->peer);
    conn->line = line;
    conn->ours = ours;
    conn->generation = generation;
    wfi_list_init(&conn->flights);
    wfi_list_init(&conn->early);
    conn->nonce = new_nonce(net);
    conn->keys = wfi_guarded_calloc(sizeof(*conn->keys));
    if (!conn->keys || !wfi_peer_pair_key(line->peer) || (line->kind == WFI_CONTROL && wfi_conn_make_receives(conn)))
        goto free_conn;
    conn->id = ++net->next_id;
    if (wfi_map_put(&net->conns, conn->id, conn))
        goto free_conn;
    return conn;
free_conn:
    conn_free(conn);
    return NULL;
}

/* What was under way goes back to its owners; the operations themselves are still to be reported. */
static void detach_flights(wfi_conn *conn)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&conn->flights))) {
        wfi_flight *flight = wfi_container_of(node, wfi_flight, link);
        wfi_chunk_detach(wfi_container_of(flight, wfi_chunk, flight));
    }
}

void wfi_conn_close(wfi_conn *conn)
{
    wfi_net *net = conn->net;
    wfi_assert_held(&net->progress.lock);
    if (conn->closed)
        return;
    wfi_line *line = conn->line;
    if (line->kind == WFI_BULK && conn->up)
        line->peer->stuck_ns = wfi_progress_now(&net->progress);
    conn->closed = true;
    conn->up = false;
    wfi_attempt_over(conn);
    (void)wfi_map_take(&net->conns, conn->id);
    if (line->conn == conn) {
        line->conn = NULL;
        wfi_timer_clear(&net->progress, &line->timer);
    }
    if (conn->lane)
        net->ops->lane_close(conn->lane);
    conn->lane = NULL;
    detach_flights(conn);
    if (line->kind == WFI_CONTROL && !line->conn)
        line->peer->resend = line->peer->sent.next;
    if (conn->outstanding)
        net->zombies++;
    else
        conn_free(conn);
}

void wfi_conn_reported(wfi_conn *conn)
{
    conn->outstanding--;
    if (!conn->closed || conn->outstanding)
        return;
    conn->net->zombies--;
    conn_free(conn);
}
