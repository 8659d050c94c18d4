/* SPDX-License-Identifier: Apache-2.0 */
/* connection.c - a connection and what is under way on it: made, given receives, closed, freed with its last operation. */
#include "base/alloc.h"
#include "base/guarded.h"
#include "net/net_internal.h"
#include "sim/sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 4096
#define HEADS_BYTES ((size_t)WFI_RECEIVE_DEPTH * WFI_RECEIVE_HEAD)
#define REST_BYTES (WFI_FRAME_BYTES - WFI_RECEIVE_HEAD)

static_assert(HEADS_BYTES <= PAGE_BYTES, "the heads fit a page");

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

/*
 * Most frames are small. So that a peer with which only such were exchanged costs one page and not one for each receive, the
 * first bytes of all receives lie together in a page, and what longer frames have besides behind it.
 */
static weft_status make_receives(wfi_conn *conn)
{
    wfi_net *net = conn->net;
    size_t bytes = (size_t)WFI_RECEIVE_DEPTH * WFI_FRAME_BYTES;
    conn->receives = wfi_calloc(WFI_RECEIVE_DEPTH, sizeof(*conn->receives));
    conn->receive_data = aligned_alloc(PAGE_BYTES, bytes);
    if (!conn->receives || !conn->receive_data)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < WFI_RECEIVE_DEPTH; i++) {
        conn->receives[i].flight.conn = conn;
        conn->receives[i].flight.kind = WFI_FLIGHT_RECEIVE;
        conn->receives[i].head = conn->receive_data + i * WFI_RECEIVE_HEAD;
        conn->receives[i].rest = conn->receive_data + HEADS_BYTES + i * REST_BYTES;
    }
    if (!net->limits->needs_local_regions)
        return WEFT_OK;
    return net->ops->region_open(net->fabric, conn->receive_data, bytes, WFI_LOCAL, &conn->receive_region);
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
    if (!conn->keys || !wfi_peer_pair_key(line->peer) || (line->kind == WFI_CONTROL && make_receives(conn)))
        goto free_conn;
    conn->id = ++net->next_id;
    if (wfi_map_put(&net->conns, conn->id, conn))
        goto free_conn;
    return conn;
free_conn:
    conn_free(conn);
    return NULL;
}

weft_status wfi_rx_post(wfi_rx *rx)
{
    wfi_conn *conn = rx->flight.conn;
    const wfi_room rooms[] = {{.data = rx->head, .size = WFI_RECEIVE_HEAD, .region = conn->receive_region},
                              {.data = rx->rest, .size = REST_BYTES, .region = conn->receive_region}};
    weft_status status = conn->net->ops->post_recv(conn->lane, &rx->flight.op, rooms, 2);
    conn->outstanding += status == WEFT_OK;
    return status;
}

weft_status wfi_conn_post_receives(wfi_conn *conn)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; conn->receives && i < WFI_RECEIVE_DEPTH && !status; i++)
        status = wfi_rx_post(&conn->receives[i]);
    return status;
}

const uint8_t *wfi_rx_frame(wfi_rx *rx, size_t size)
{
    uint8_t *whole = rx->flight.conn->net->whole_frame;
    if (size <= WFI_RECEIVE_HEAD)
        return rx->head;
    memcpy(whole, rx->head, WFI_RECEIVE_HEAD);
    memcpy(whole + WFI_RECEIVE_HEAD, rx->rest, size - WFI_RECEIVE_HEAD);
    return whole;
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
    wfi_assert_held(&net->lock);
    if (conn->closed)
        return;
    wfi_line *line = conn->line;
    if (line->kind == WFI_BULK && conn->up)
        line->peer->stuck_ns = wfi_net_now(net);
    conn->closed = true;
    conn->up = false;
    wfi_attempt_over(conn);
    (void)wfi_map_take(&net->conns, conn->id);
    if (line->conn == conn) {
        line->conn = NULL;
        wfi_net_timer_clear(net, &line->timer);
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
