/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send.c - messages into frames: urgent first, several to a frame, within the peer's credit, kept until acknowledged.
 *
 * CREDIT. The peer has WFI_RECEIVE_DEPTH receives posted and tells how many frames it consumed. Of what is left, requests
 * leave WFI_CREDIT_RESERVE untouched, urgent messages one less, a bare acknowledgement may take the last. A bare
 * acknowledgement is only sent when it returns at least one credit, so two sides that have used up everything cannot both
 * be waiting: the later of the two acknowledgements that used the last credits has told of what the other one needs.
 *
 * A frame is a head and messages, put together in the frame's own buffer: the hash is over all of it, which touches every
 * byte anyway, and a message is its owner's again as soon as it is acknowledged.
 */
#include "net/net_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- Buffers --------------------------------------------------------------------------------------------------- */

static wfi_tx *tx_create(wfi_net *net)
{
    wfi_tx *tx = malloc(sizeof(*tx));
    if (!tx)
        return NULL;
    wfi_list_init(&tx->flight.link);
    tx->flight.kind = WFI_FLIGHT_FRAME;
    tx->region = NULL;
    if (net->limits->needs_local_regions &&
        net->ops->region_open(net->fabric, tx->data, sizeof(tx->data), WFI_LOCAL, &tx->region)) {
        free(tx);
        return NULL;
    }
    return tx;
}

/* An empty frame. Without memory for one, whatever waits for it is tried again soon. */
static wfi_tx *tx_take(wfi_net *net)
{
    wfi_list *spare = wfi_list_pop_front(&net->spare_frames);
    wfi_tx *tx = spare ? wfi_container_of(wfi_container_of(spare, wfi_flight, link), wfi_tx, flight) : tx_create(net);
    if (!tx) {
        wfi_net_starve(net);
        return NULL;
    }
    net->spare_frame_count -= spare != NULL;
    tx->count = 0;
    tx->used = WFI_FRAME_HEAD;
    return tx;
}

void wfi_tx_recycle(wfi_net *net, wfi_tx *tx)
{
    if (net->spare_frame_count < WFI_SPARE_FRAMES && !net->closing) {
        wfi_list_push_front(&net->spare_frames, &tx->flight.link);
        net->spare_frame_count++;
        return;
    }
    if (tx->region)
        net->ops->region_close(net->fabric, tx->region);
    free(tx);
}

/* ---- Packing --------------------------------------------------------------------------------------------------- */

static void put_bytes(wfi_tx *tx, const void *data, size_t size)
{
    if (size)
        memcpy(tx->data + tx->used, data, size);
    tx->used += size;
}

static bool put_message(wfi_tx *tx, const wfi_message *message)
{
    size_t size = wfi_message_size(message);
    if (tx->count == UINT8_MAX || tx->used + WFI_MESSAGE_HEAD + size > WFI_FRAME_BYTES)
        return false;
    wfi_frame_message(tx->data + tx->used, message->type, size);
    tx->used += WFI_MESSAGE_HEAD;
    put_bytes(tx, message->head, message->head_size);
    for (int i = 0; i < message->part_count; i++)
        put_bytes(tx, message->parts[i].data, message->parts[i].size);
    tx->count++;
    return true;
}

static bool put_list(wfi_tx *tx, wfi_list *from, wfi_list *end)
{
    for (; from != end; from = from->next) {
        if (!put_message(tx, wfi_container_of(from, wfi_message, link)))
            return false;
    }
    return true;
}

/* ---- Frames ---------------------------------------------------------------------------------------------------- */

_Static_assert(WFI_RECEIVE_DEPTH < WFI_BRIEF_AHEAD, "credits keep fewer frames on their way");

/* Takes the frame over, unless it fails. */
static weft_status post_frame(wfi_conn *conn, wfi_tx *tx, uint64_t first)
{
    wfi_net *net = conn->net;
    wfi_peer *peer = conn->line->peer;
    wfi_frame head = {.count = tx->count,
                      .number = conn->frames_sent,
                      .first = first,
                      .ack = peer->received,
                      .consumed = conn->frames_consumed,
                      .size = (uint32_t)tx->used};
    wfi_part whole = {.data = tx->data, .size = tx->used, .region = tx->region};
    wfi_frame_write(&head, conn->keys->out, tx->data);
    tx->flight.conn = conn;
    weft_status status = WEFT_ERR_MEMORY;
    if (tx->used <= net->limits->brief_max)
        status = net->ops->send_brief(conn->lane, tx->data, tx->used);
    bool is_brief = !status;
    if (status == WEFT_ERR_MEMORY) /* it is too long for that, or there was no room for a copy */
        status = net->ops->send(conn->lane, &tx->flight.op, &whole, 1);
    if (status)
        return status;
    if (is_brief)
        wfi_tx_recycle(net, tx);
    else
        conn->outstanding++;
    conn->frames_sent++;
    conn->frames_told = conn->frames_consumed;
    peer->owes_ack = false;
    net->stats.frames_sent++;
    return WEFT_OK;
}

/* The lane would not take it: later, or never. */
static void post_refused(wfi_conn *conn, wfi_tx *tx, weft_status status)
{
    wfi_tx_recycle(conn->net, tx);
    if (status == WEFT_ERR_AGAIN)
        conn->net->stuck = true;
    else
        wfi_line_broken(conn);
}

static int64_t credit(const wfi_conn *conn)
{
    return WFI_RECEIVE_DEPTH - (int64_t)(uint32_t)(conn->frames_sent - conn->frames_returned);
}

/* What left gets its sequence. From `list`, which lost the first `count` to the frame; returns how many are left of them. */
static unsigned commit(wfi_peer *peer, wfi_list *list, unsigned count)
{
    if (count && !wfi_list_empty(list) && wfi_list_empty(&peer->sent)) /* from now on silence means something */
        peer->waiting_ns = wfi_progress_now(&peer->net->progress);
    while (count && !wfi_list_empty(list)) {
        wfi_message *message = wfi_container_of(list->next, wfi_message, link);
        wfi_list_remove(&message->link);
        message->net.sequence = ++peer->sequence;
        wfi_list_push_back(&peer->sent, &message->link);
        peer->net->stats.bytes_sent += wfi_message_size(message);
        count--;
    }
    return count;
}

/* One frame of what has to leave again. */
static bool send_again(wfi_conn *conn)
{
    wfi_peer *peer = conn->line->peer;
    wfi_tx *tx = tx_take(conn->net);
    if (!tx)
        return false;
    uint64_t first = wfi_container_of(peer->resend, wfi_message, link)->net.sequence;
    (void)put_list(tx, peer->resend, &peer->sent);
    unsigned count = tx->count;
    weft_status status = post_frame(conn, tx, first);
    if (status) {
        post_refused(conn, tx, status);
        return false;
    }
    while (count--)
        peer->resend = peer->resend->next;
    return true;
}

static bool send_new(wfi_conn *conn, bool requests_too)
{
    wfi_peer *peer = conn->line->peer;
    wfi_tx *tx = tx_take(conn->net);
    if (!tx)
        return false;
    if (put_list(tx, peer->urgent.next, &peer->urgent) && requests_too)
        (void)put_list(tx, peer->queued.next, &peer->queued);
    unsigned count = tx->count;
    weft_status status = post_frame(conn, tx, peer->sequence + 1);
    if (status) {
        post_refused(conn, tx, status);
        return false;
    }
    (void)commit(peer, &peer->queued, commit(peer, &peer->urgent, count));
    return true;
}

void wfi_peer_flush(wfi_peer *peer)
{
    bool more = true;
    while (more) {
        wfi_conn *conn = wfi_line_up(&peer->lines[WFI_CONTROL]);
        if (!conn)
            return;
        int64_t left = credit(conn);
        bool requests = left > WFI_CREDIT_RESERVE;
        if (peer->resend != &peer->sent)
            more = requests && send_again(conn);
        else if (!wfi_list_empty(&peer->urgent))
            more = left > WFI_CREDIT_RESERVE - 1 && send_new(conn, requests);
        else if (!wfi_list_empty(&peer->queued))
            more = requests && send_new(conn, true);
        else
            more = false;
    }
}

void wfi_peer_send_ack(wfi_peer *peer)
{
    wfi_conn *conn = wfi_line_up(&peer->lines[WFI_CONTROL]);
    if (!conn || conn->frames_consumed == conn->frames_told || credit(conn) < 1)
        return;
    wfi_tx *tx = tx_take(conn->net);
    if (!tx)
        return;
    weft_status status = post_frame(conn, tx, peer->sequence + 1);
    if (status)
        post_refused(conn, tx, status);
}

void wfi_frame_sent(wfi_tx *tx, weft_status status)
{
    wfi_conn *conn = tx->flight.conn;
    wfi_net *net = conn->net;
    if (!conn->closed && status)
        wfi_line_broken(conn);
    wfi_tx_recycle(net, tx);
}

/* ---- The contract ---------------------------------------------------------------------------------------------- */

weft_status wfi_net_send(wfi_net *net, wfi_peer *peer, wfi_message *message)
{
    wfi_assert_held(&net->progress.lock);
    if (wfi_message_size(message) > WFI_MESSAGE_MAX)
        return WEFT_ERR_TOO_LARGE;
    if (net->closing)
        return WEFT_ERR_CLOSED;
    if (peer->status)
        return peer->status;
    if (!message->urgent && !message->owed && peer->kept_bytes >= net->queue_limit_bytes)
        return WEFT_ERR_AGAIN;
    message->net.sequence = 0;
    wfi_list_init(&message->link);
    wfi_list_push_back(message->urgent ? &peer->urgent : &peer->queued, &message->link);
    peer->kept_bytes += wfi_message_weight(message);
    if (wfi_line_up(&peer->lines[WFI_CONTROL]))
        wfi_peer_flush(peer);
    else
        wfi_line_want(&peer->lines[WFI_CONTROL]);
    wfi_reach_watch(peer);
    return WEFT_OK;
}

bool wfi_net_unsend(wfi_net *net, wfi_peer *peer, wfi_message *message)
{
    (void)net; /* where nothing is asserted */
    wfi_assert_held(&net->progress.lock);
    /* One that is done is on its way to its owner, one with a sequence may have arrived. */
    if (message->net.sequence || peer->status || wfi_list_empty(&message->link))
        return false;
    wfi_list_remove(&message->link);
    peer->kept_bytes -= wfi_message_weight(message);
    return true;
}
