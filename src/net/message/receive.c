/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receive.c - frames that arrived: checked whole, then their messages handed up once each, in order.
 *
 * Nothing comes twice: a hello tells what its writer has received, the other side sends what comes after that, and nothing
 * more is read from an older connection. So a message that is not the next one is refused with its frame.
 */
#include "base/alloc.h"
#include "net/net_internal.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 4096
#define HEADS_BYTES ((size_t)WFI_RECEIVE_DEPTH * WFI_RECEIVE_HEAD)
#define REST_BYTES (WFI_FRAME_BYTES - WFI_RECEIVE_HEAD)

static_assert(HEADS_BYTES <= PAGE_BYTES, "the heads fit a page");

/* ---- Receives -------------------------------------------------------------------------------------------------- */

/*
 * Most frames are small. So that a peer with which only such were exchanged costs one page and not one for each receive, the
 * first bytes of all receives lie together in a page, and what longer frames have besides behind it.
 */
weft_status wfi_conn_make_receives(wfi_conn *conn)
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

/* ---- Frames ---------------------------------------------------------------------------------------------------- */

/* Walks the messages without handing them up: a frame that is malformed changes nothing. */
static bool well_formed(const wfi_frame *frame, const uint8_t *data, size_t size)
{
    size_t at = WFI_FRAME_HEAD, length;
    const uint8_t *bytes;
    uint8_t type;
    for (unsigned i = 0; i < frame->count; i++) {
        if (!wfi_frame_next(data, size, &at, &type, &bytes, &length))
            return false;
    }
    return at == size;
}

/* What is wrong with a frame; NULL if nothing. */
static const char *objection(const wfi_conn *conn, const wfi_frame *frame)
{
    const wfi_peer *peer = conn->line->peer;
    if (frame->number != conn->frames_consumed)
        return "a frame that was replayed, or is out of its order";
    if ((uint32_t)(frame->consumed - conn->frames_returned) > (uint32_t)(conn->frames_sent - conn->frames_returned))
        return "a frame that returns credits we never used";
    if (frame->ack > peer->sequence)
        return "a frame that acknowledges what was never sent";
    if (frame->ack < peer->acknowledged)
        return "a frame that takes back an acknowledgement";
    if (frame->count && frame->first != peer->received + 1)
        return "messages that are not the next ones";
    return NULL;
}

static void hand_up(wfi_conn *conn, const wfi_frame *frame, const uint8_t *data, size_t size)
{
    wfi_net *net = conn->net;
    wfi_peer *peer = conn->line->peer;
    size_t at = WFI_FRAME_HEAD, length;
    const uint8_t *bytes;
    uint8_t type;
    for (unsigned i = 0; i < frame->count && !conn->closed; i++) {
        if (!wfi_frame_next(data, size, &at, &type, &bytes, &length))
            return;
        peer->received++;
        if (!peer->owes_ack) /* it may be anew: what the last message made leave may have told of that one only */
            peer->owed_since_ns = net->progress.now_ns;
        peer->owes_ack = true;
        net->stats.bytes_received += length;
        net->untaken = false;
        if (type >= WFI_NET_MESSAGES)
            wfi_notes_take(conn, type, bytes, length);
        else
            net->upcalls.message(net->arg, peer, type, bytes, length);
        if (net->untaken) { /* a new connection begins behind what we have received */
            peer->received--;
            wfi_line_broken(conn);
        }
    }
}

void wfi_net_untake(wfi_net *net)
{
    wfi_assert_held(&net->progress.lock);
    net->untaken = true;
}

static void take_frame(wfi_conn *conn, const uint8_t *data, size_t size)
{
    wfi_peer *peer = conn->line->peer;
    wfi_frame frame;
    if (!wfi_frame_read(data, size, conn->keys->in, &frame) || !well_formed(&frame, data, size)) {
        wfi_peer_nonsense(conn, "a malformed frame");
        return;
    }
    const char *wrong = objection(conn, &frame);
    if (wrong) {
        wfi_peer_nonsense(conn, wrong);
        return;
    }
    conn->useful = true;
    conn->line->failures = 0;
    conn->frames_returned = frame.consumed;
    conn->net->stats.frames_received++;
    peer->heard_ns = conn->net->progress.now_ns;
    wfi_peer_acknowledge(peer, frame.ack);
    hand_up(conn, &frame, data, size);
}

/* Returns credits: at once when the peer may be short of them, else soon, unless something goes there anyway. */
static void answer(wfi_conn *conn)
{
    wfi_peer *peer = conn->line->peer;
    wfi_net *net = conn->net;
    wfi_peer_flush(peer);
    if (conn->closed)
        return;
    bool many = conn->frames_consumed - conn->frames_told >= WFI_ACK_AFTER_FRAMES;
    if (many || (peer->owes_ack && !peer->ack.heap_index &&
                 wfi_timer_set(&net->progress, &peer->ack, net->progress.now_ns + WFI_ACK_DELAY_NS)))
        wfi_peer_send_ack(peer);
}

static void receive(wfi_rx *rx, size_t size)
{
    wfi_conn *conn = rx->flight.conn;
    take_frame(conn, wfi_rx_frame(rx, size), size);
    if (conn->closed)
        return;
    if (wfi_rx_post(rx)) {
        wfi_line_broken(conn);
        return;
    }
    conn->frames_consumed++; /* only now: the credit stands for a receive that is posted */
    answer(conn);
}

void wfi_frame_received(wfi_rx *rx, const wfi_completion *completion)
{
    wfi_conn *conn = rx->flight.conn;
    if (conn->closed)
        return;
    if (completion->status) {
        wfi_line_broken(conn);
    } else if (!conn->keyed) { /* the peer's first frames overtook its answer: they come by another queue */
        rx->size = completion->size;
        wfi_list_push_back(&conn->early, &rx->flight.link);
    } else {
        receive(rx, completion->size);
    }
}

void wfi_frames_early(wfi_conn *conn)
{
    wfi_list *node;
    while (!conn->closed && (node = wfi_list_pop_front(&conn->early))) {
        wfi_rx *rx = wfi_container_of(wfi_container_of(node, wfi_flight, link), wfi_rx, flight);
        receive(rx, rx->size);
    }
}

/* Set for an earlier frame, perhaps, which something has answered: where calls follow each other, the next answer is on its way. */
void wfi_peer_ack_due(wfi_timer *timer)
{
    wfi_peer *peer = wfi_container_of(timer, wfi_peer, ack);
    wfi_net *net = peer->net;
    uint64_t due_ns = peer->owed_since_ns + WFI_ACK_DELAY_NS;
    if (peer->owes_ack && (net->progress.now_ns >= due_ns || wfi_timer_set(&net->progress, timer, due_ns)))
        wfi_peer_send_ack(peer);
}
