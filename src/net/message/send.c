/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send.c - packs messages into frames: urgent ones first, several to a frame, as far as the credit allows.
 *
 * CREDIT. The peer has WFI_RECEIVE_DEPTH receives posted, and each of its frames tells how many frames it has consumed.
 * WFI_RECEIVE_DEPTH minus the sent frames that are not consumed is the credit. Only urgent messages may use the last
 * credit but one, and only a bare acknowledgement (a frame without messages) the last one. A bare acknowledgement is
 * sent only if it returns at least one credit. So the two sides never both wait for credit: if one has none left, its
 * last frame was a bare acknowledgement, and the other side can send again when that has arrived.
 *
 * A frame is a head and messages, copied into the frame's buffer. The copy costs little, because an ordinary frame is
 * short. A long message has a frame of its own. Its owner may have written it into the frame
 * (wfi_frame_create); then it is not copied, except if it is sent again while the frame is still in flight.
 */
#include "net/message/message.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CREDIT_RESERVE 2 /* of the peer's receives: one for urgent messages, one for a bare acknowledgement */
#define SPARE_FRAMES 16  /* frames kept for reuse, of about 4 KiB each */

/* ---- Buffers --------------------------------------------------------------------------------------------------- */

static const wfi_io_ops tx_ops;

static wfi_tx *tx_allocate(size_t room)
{
    wfi_tx *tx = malloc(sizeof(*tx) + room);
    if (!tx)
        return NULL;
    wfi_list_init(&tx->io.link);
    tx->io.ops = &tx_ops;
    tx->region = NULL;
    tx->room = room;
    atomic_init(&tx->refs, 1);
    return tx;
}

wfi_tx *wfi_frame_create(size_t size)
{
    return tx_allocate(WFI_FRAME_HEAD + WFI_MESSAGE_HEAD + size);
}

uint8_t *wfi_frame_bytes(wfi_tx *frame)
{
    return frame->data + WFI_FRAME_HEAD + WFI_MESSAGE_HEAD;
}

void wfi_frame_unref(wfi_tx *frame)
{
    if (frame && atomic_fetch_sub(&frame->refs, 1) == 1)
        free(frame);
}

/* An empty frame that is long enough for the message `first` (NULL: for none). If memory is out, returns NULL, and the
 * post is repeated soon. */
static wfi_tx *tx_take(wfi_conn *conn, const wfi_message *first)
{
    wfi_net_fabric *fabric = conn->fabric;
    bool registers = fabric->limits->needs_local_regions;
    bool is_long = first && wfi_message_size(first) > WFI_MESSAGE_MAX;
    size_t room = is_long ? WFI_FRAME_BYTES + wfi_message_size(first) : WFI_FRAME_BYTES;
    wfi_tx *tx = is_long ? first->frame : NULL; /* it contains the message already, but may be in flight */
    wfi_list *spare = is_long ? NULL : wfi_list_pop_front(&fabric->spares);
    if (tx && !registers && atomic_load(&tx->refs) == 1) {
        atomic_fetch_add(&tx->refs, 1);
    } else if (spare) {
        fabric->spare_count--;
        tx = wfi_container_of(spare, wfi_tx, io.link);
    } else {
        tx = tx_allocate(room);
        if (tx && registers &&
            fabric->ops->region_open(fabric->fabric, &WFI_HOST_MEMORY(tx->data, room), WFI_LOCAL, &tx->region) &&
            room > fabric->limits->copied_max) {
            free(tx);
            tx = NULL;
        }
    }
    if (!tx) {
        wfi_conn_starve(conn);
        return NULL;
    }
    tx->count = 0;
    tx->used = WFI_FRAME_HEAD;
    return tx;
}

static void tx_recycle(wfi_net_fabric *fabric, wfi_tx *tx)
{
    bool is_ours = tx->room == WFI_FRAME_BYTES && atomic_load(&tx->refs) == 1; /* not a message's */
    if (is_ours && fabric->spare_count < SPARE_FRAMES && !fabric->transport->closing) {
        wfi_list_push_front(&fabric->spares, &tx->io.link);
        fabric->spare_count++;
        return;
    }
    if (tx->region)
        fabric->ops->region_close(fabric->fabric, tx->region);
    wfi_frame_unref(tx);
}

void wfi_frames_unregister_spares(wfi_net_fabric *fabric)
{
    if (fabric->limits->copied_max < WFI_FRAME_BYTES)
        return;
    WFI_FOR_LIST (wfi_tx, tx, &fabric->spares, io.link) {
        if (tx->region)
            fabric->ops->region_close(fabric->fabric, tx->region);
        tx->region = NULL;
    }
}

/* ---- Packing --------------------------------------------------------------------------------------------------- */

static void put_bytes(wfi_tx *tx, const void *data, size_t size)
{
    if (size)
        memcpy(tx->data + tx->used, data, size);
    tx->used += size;
}

/* Appends the messages from `from` to `end`. False: the frame is full. */
static bool put_messages(wfi_tx *tx, wfi_list *from, const wfi_list *end)
{
    const unsigned most = tx->room > WFI_FRAME_BYTES ? 1 : UINT8_MAX;
    for (; from != end; from = from->next) {
        const wfi_message *message = wfi_container_of(from, wfi_message, link);
        size_t size = wfi_message_size(message);
        if (tx->count == most || tx->used + WFI_MESSAGE_HEAD + size > tx->room)
            return false;
        wfi_frame_message(tx->data + tx->used, message->type, size);
        tx->used += WFI_MESSAGE_HEAD;
        if (message->frame == tx)
            tx->used += size; /* it is there */
        else
            put_bytes(tx, message->head, message->head_size);
        for (int i = 0; i < message->part_count; i++)
            put_bytes(tx, message->parts[i].data, message->parts[i].size);
        tx->count++;
    }
    return true;
}

/* ---- Frames ---------------------------------------------------------------------------------------------------- */

static_assert(WFI_RECEIVE_DEPTH < WFI_INJECT_AHEAD, "credits allow fewer frames in flight");

/* Takes the frame over. False: the fabric did not accept it; it may later, or the connection was closed. */
static bool post_frame(wfi_conn *conn, wfi_tx *tx, uint64_t first)
{
    wfi_net_fabric *fabric = conn->fabric;
    wfi_frames *frames = wfi_conn_frames(conn);
    wfi_control *control = wfi_control_of(conn->channel);
    wfi_frame head = {.count = tx->count,
                      .number = frames->sent,
                      .first = first,
                      .ack = control->received,
                      .consumed = frames->consumed,
                      .size = (uint32_t)tx->used};
    wfi_iov whole = {.data = tx->data, .size = tx->used, .region = tx->region};
    wfi_frame_write(&head, wfi_conn_is_private(conn) ? NULL : conn->keys->out, tx->data);
    tx->io.conn = conn;
    weft_status status = WEFT_ERR_MEMORY;
    if (tx->used <= fabric->limits->inject_max)
        status = fabric->ops->inject(conn->lane, tx->data, tx->used);
    bool is_injected = !status;
    if (status == WEFT_ERR_MEMORY) /* it is too long to inject, or there was no memory for a copy */
        status = fabric->ops->send(conn->lane, &tx->io.op, &whole, 1);
    if (status || is_injected) {
        tx_recycle(fabric, tx);
    } else {
        conn->outstanding++;
        wfi_net_fabric_count(&fabric->posted, 1);
    }
    if (status == WEFT_ERR_AGAIN)
        fabric->stuck = true;
    else if (status)
        wfi_channel_broken(conn);
    if (status)
        return false;
    conn->channel->starved = 0;
    frames->sent++;
    frames->announced = frames->consumed;
    control->owes_ack = false;
    conn->transport->stats.frames_sent++;
    return true;
}

static int64_t credit(const wfi_conn *conn)
{
    const wfi_frames *frames = wfi_conn_frames(conn);
    return WFI_RECEIVE_DEPTH - (int64_t)(uint32_t)(frames->sent - frames->returned);
}

/* Gives sequence numbers to sent messages: the first `count` of `list`. Returns how many of the `count` messages were
 * not in `list`. */
static unsigned commit(wfi_control *control, wfi_list *list, unsigned count)
{
    wfi_transport *transport = control->channel.peer->transport;
    if (count && !wfi_list_empty(list) && wfi_list_empty(&control->sent)) /* from now on an acknowledgement is due */
        control->waiting_ns = wfi_progress_now(transport->progress);
    while (count && !wfi_list_empty(list)) {
        wfi_message *message = wfi_container_of(list->next, wfi_message, link);
        wfi_list_remove(&message->link);
        message->net.sequence = ++control->sequence;
        wfi_list_push_back(&control->sent, &message->link);
        transport->stats.bytes_sent += wfi_message_size(message);
        count--;
    }
    return count;
}

/* Sends one frame of messages that must be sent again. */
static bool send_again(wfi_conn *conn)
{
    wfi_control *control = wfi_control_of(conn->channel);
    const wfi_message *message = wfi_container_of(control->resend, wfi_message, link);
    uint64_t first = message->net.sequence;
    wfi_tx *tx = tx_take(conn, message);
    if (!tx)
        return false;
    (void)put_messages(tx, control->resend, &control->sent);
    unsigned count = tx->count;
    if (!post_frame(conn, tx, first))
        return false;
    while (count--)
        control->resend = control->resend->next;
    return true;
}

static bool send_new(wfi_conn *conn, bool requests_too)
{
    wfi_control *control = wfi_control_of(conn->channel);
    const wfi_list *first = wfi_list_empty(&control->urgent) ? &control->queued : &control->urgent;
    wfi_tx *tx = tx_take(conn, wfi_container_of(first->next, wfi_message, link));
    if (!tx)
        return false;
    if (put_messages(tx, control->urgent.next, &control->urgent) && requests_too)
        (void)put_messages(tx, control->queued.next, &control->queued);
    unsigned count = tx->count;
    if (!post_frame(conn, tx, control->sequence + 1))
        return false;
    (void)commit(control, &control->queued, commit(control, &control->urgent, count));
    return true;
}

void wfi_peer_flush(wfi_peer *peer)
{
    wfi_control *control = wfi_peer_control(peer);
    bool more = true;
    while (more) {
        wfi_conn *conn = wfi_channel_up(peer->channels[WFI_CONTROL]);
        if (!conn)
            return;
        int64_t left = credit(conn);
        bool requests = left > CREDIT_RESERVE;
        if (control->resend != &control->sent)
            more = requests && send_again(conn);
        else if (!wfi_list_empty(&control->urgent))
            more = left > CREDIT_RESERVE - 1 && send_new(conn, requests);
        else if (!wfi_list_empty(&control->queued))
            more = requests && send_new(conn, true);
        else
            more = false;
    }
}

void wfi_peer_send_ack(wfi_peer *peer)
{
    wfi_conn *conn = wfi_channel_up(peer->channels[WFI_CONTROL]);
    if (!conn || credit(conn) < 1)
        return;
    const wfi_frames *frames = wfi_conn_frames(conn);
    if (frames->consumed == frames->announced)
        return;
    wfi_tx *tx = tx_take(conn, NULL);
    if (tx)
        (void)post_frame(conn, tx, wfi_peer_control(peer)->sequence + 1);
}

static void frame_sent(wfi_io *io, const wfi_completion *completion)
{
    wfi_conn *conn = io->conn;
    wfi_net_fabric_count(&conn->fabric->posted, (size_t)-1);
    if (!conn->closed && completion->status)
        wfi_channel_broken(conn);
    tx_recycle(conn->fabric, wfi_container_of(io, wfi_tx, io));
}

static const wfi_io_ops tx_ops = {.completed = frame_sent, .dropped = wfi_io_ignore_drop};

/* ---- The functions of message.h -------------------------------------------------------------------------------- */

weft_status wfi_peer_send(wfi_peer *peer, wfi_message *message)
{
    wfi_transport *transport = peer->transport;
    wfi_control *control = wfi_peer_control(peer);
    wfi_assert_held(&transport->progress->lock);
    if (wfi_message_size(message) > wfi_length_max(message->urgent ? WFI_SHORT : control->sends))
        return WEFT_ERR_TOO_LARGE;
    if (transport->closing)
        return WEFT_ERR_CLOSED;
    if (peer->status)
        return peer->status;
    if (!message->urgent && !message->exempt && !wfi_peer_has_room(peer))
        return WEFT_ERR_AGAIN;
    message->net.sequence = 0;
    wfi_list_init(&message->link);
    wfi_list_push_back(message->urgent ? &control->urgent : &control->queued, &message->link);
    wfi_control_keep(control, message);
    if (wfi_channel_up(peer->channels[WFI_CONTROL]))
        wfi_peer_flush(peer);
    else
        wfi_channel_want(peer->channels[WFI_CONTROL]);
    wfi_peer_watch(peer);
    return WEFT_OK;
}

bool wfi_peer_unsend(wfi_peer *peer, wfi_message *message)
{
    wfi_assert_held(&peer->transport->progress->lock);
    /* A finished message will be returned to its owner; one with a sequence number may have arrived. */
    if (message->net.sequence || peer->status || wfi_list_empty(&message->link))
        return false;
    wfi_list_remove(&message->link);
    wfi_control_let_go(wfi_peer_control(peer), message);
    return true;
}

void wfi_frames_free_spares(wfi_transport *transport)
{
    wfi_list *node;
    assert(transport->closing);
    for (size_t i = 0; i < transport->fabric_count; i++)
        while ((node = wfi_list_pop_front(&transport->fabrics[i].spares)))
            tx_recycle(&transport->fabrics[i], wfi_container_of(node, wfi_tx, io.link));
}
