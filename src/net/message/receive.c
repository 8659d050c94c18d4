/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receive.c - receives frames: checks each as a whole, then passes its messages to their clients, once and in order.
 *
 * No message is delivered twice. The hello of a connection says how many messages its sender has `received`. The other
 * side sends the later ones, and nothing more is read from the older connection. So a frame whose first message is not
 * the next one is rejected, and its connection closed.
 */
#include "base/alloc.h"
#include "net/message/message.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 4096
#define HEADS_BYTES ((size_t)WFI_RECEIVE_DEPTH * WFI_RECEIVE_HEAD)
#define ACK_AFTER_FRAMES 3   /* half of the window: acknowledge at once */
#define ACK_DELAY_NS 2000000 /* otherwise this long after the first frame that is not acknowledged */
#define REST_BYTES (WFI_FRAME_BYTES - WFI_RECEIVE_HEAD)

static_assert(HEADS_BYTES <= PAGE_BYTES, "the heads fit a page");

static const wfi_io_ops rx_ops;

/* ---- Receives -------------------------------------------------------------------------------------------------- */

/*
 * Most frames are small. The first bytes of all receives are together in one page, and the rest of longer frames
 * follows it. So a peer with small frames only uses one page of memory, not one for each receive.
 */
weft_status wfi_receives_make(wfi_conn *conn)
{
    wfi_frames *frames = wfi_conn_frames(conn);
    wfi_net_fabric *fabric = conn->fabric;
    size_t bytes = (size_t)WFI_RECEIVE_DEPTH * WFI_FRAME_BYTES;
    wfi_list_init(&frames->early);
    frames->receives = wfi_calloc(WFI_RECEIVE_DEPTH, sizeof(*frames->receives));
    frames->receive_data = aligned_alloc(PAGE_BYTES, bytes);
    if (!frames->receives || !frames->receive_data)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < WFI_RECEIVE_DEPTH; i++) {
        frames->receives[i].io.conn = conn;
        frames->receives[i].io.ops = &rx_ops;
        frames->receives[i].head = frames->receive_data + i * WFI_RECEIVE_HEAD;
        frames->receives[i].rest = frames->receive_data + HEADS_BYTES + i * REST_BYTES;
    }
    if (!fabric->limits->needs_local_regions)
        return WEFT_OK;
    const wfi_memory memory = WFI_HOST_MEMORY(frames->receive_data, bytes);
    weft_status status = fabric->ops->region_open(fabric->fabric, &memory, WFI_LOCAL, &frames->receive_region);
    if (status != WEFT_ERR_MEMORY)
        return status;
    /* The memory that a process may lock is limited (ulimit -l). Spare frames, and memory that is registered only for
     * later use, make room. */
    wfi_frames_unregister_spares(fabric);
    if (fabric->cache)
        wfi_reg_cache_trim(fabric->cache);
    return fabric->ops->region_open(fabric->fabric, &memory, WFI_LOCAL, &frames->receive_region);
}

static weft_status rx_post(wfi_rx *rx)
{
    wfi_conn *conn = rx->io.conn;
    const wfi_frames *frames = wfi_conn_frames(conn);
    weft_status status = wfi_long_receive(rx);
    if (status)
        return status;
    size_t rest = wfi_length_max(rx->length) + WFI_FRAME_OTHER - WFI_RECEIVE_HEAD;
    wfi_region *region = rx->length ? frames->rooms[rx->length].region : frames->receive_region;
    const wfi_receive_buffer buffers[] = {{.data = rx->head, .size = WFI_RECEIVE_HEAD, .region = region},
                                          {.data = rx->rest, .size = rest, .region = region}};
    status = conn->fabric->ops->post_recv(conn->lane, &rx->io.op, buffers, 2);
    conn->outstanding += status == WEFT_OK;
    return status;
}

weft_status wfi_receives_post(wfi_conn *conn)
{
    wfi_frames *frames = wfi_conn_frames(conn);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < WFI_RECEIVE_DEPTH && !status; i++)
        status = rx_post(&frames->receives[i]);
    return status;
}

void wfi_receives_free(wfi_conn *conn)
{
    wfi_frames *frames = wfi_conn_frames(conn);
    if (frames->receive_region)
        conn->fabric->ops->region_close(conn->fabric->fabric, frames->receive_region);
    wfi_long_free(conn);
    free(frames->receive_data);
    free(frames->receives);
}

/* ---- Frames ---------------------------------------------------------------------------------------------------- */

/* The client for messages of that type; NULL: none. */
static const wfi_net_client *client_of(const wfi_transport *transport, uint8_t type)
{
    for (size_t i = 0; i < transport->client_count; i++) {
        const wfi_net_client *client = &transport->clients[i];
        if (type >= client->first_type && type <= client->last_type)
            return client;
    }
    return NULL;
}

/* Checks all messages before any is delivered: a malformed frame changes nothing. */
static bool well_formed(const wfi_transport *transport, const wfi_frame *frame, const uint8_t *data, size_t size)
{
    size_t at = WFI_FRAME_HEAD, length;
    const uint8_t *bytes;
    uint8_t type;
    if (size > WFI_FRAME_BYTES && frame->count != 1) /* the MAC would not cover the head of a second message */
        return false;
    for (unsigned i = 0; i < frame->count; i++) {
        if (!wfi_frame_next(data, size, &at, &type, &bytes, &length) || !client_of(transport, type))
            return false;
    }
    return at == size;
}

/* Returns the reason why a frame is not accepted, or NULL. */
static const char *objection(const wfi_conn *conn, const wfi_frame *frame)
{
    const wfi_frames *frames = wfi_conn_frames(conn);
    const wfi_control *control = wfi_control_of(conn->channel);
    if (frame->number != frames->consumed)
        return "a frame that was replayed or reordered";
    if ((uint32_t)(frame->consumed - frames->returned) > (uint32_t)(frames->sent - frames->returned))
        return "a frame that returns unused credits";
    if (frame->ack > control->sequence)
        return "a frame that acknowledges messages that were never sent";
    if (frame->ack < control->acknowledged)
        return "a frame that takes back an acknowledgement";
    if (frame->count && frame->first != control->received + 1)
        return "messages that are not the next ones";
    return NULL;
}

static void hand_up(wfi_conn *conn, const wfi_frame *frame, const uint8_t *data, size_t size)
{
    wfi_transport *transport = conn->transport;
    wfi_control *control = wfi_control_of(conn->channel);
    size_t at = WFI_FRAME_HEAD, length;
    const uint8_t *bytes;
    uint8_t type;
    for (unsigned i = 0; i < frame->count && !conn->closed; i++) {
        if (!wfi_frame_next(data, size, &at, &type, &bytes, &length))
            return;
        control->received++;
        if (!control->owes_ack) /* a frame sent by the last upcall may have acknowledged the earlier ones */
            control->owed_since_ns = transport->progress->now_ns;
        control->owes_ack = true;
        transport->stats.bytes_received += length;
        transport->untaken = false;
        const wfi_net_client *client = client_of(transport, type);
        client->upcalls->message(client->arg, conn->peer, type, bytes, length);
        if (transport->untaken) { /* on a new connection the peer sends this message again */
            control->received--;
            wfi_channel_broken(conn);
        }
    }
}

static void take_frame(wfi_conn *conn, const uint8_t *data, size_t size)
{
    wfi_frames *frames = wfi_conn_frames(conn);
    wfi_frame frame;
    if (!wfi_frame_read(data, size, wfi_conn_is_private(conn) ? NULL : conn->keys->in, &frame) ||
        !well_formed(conn->transport, &frame, data, size)) {
        wfi_channel_protocol_error(conn, "a malformed frame");
        return;
    }
    const char *wrong = objection(conn, &frame);
    if (wrong) {
        wfi_channel_protocol_error(conn, wrong);
        return;
    }
    wfi_channel_moved(conn);
    frames->returned = frame.consumed;
    conn->transport->stats.frames_received++;
    wfi_control_acknowledge(wfi_control_of(conn->channel), frame.ack);
    hand_up(conn, &frame, data, size);
}

static void receive(wfi_rx *rx, size_t size)
{
    wfi_conn *conn = rx->io.conn;
    wfi_frames *frames = wfi_conn_frames(conn);
    uint8_t whole[WFI_FRAME_BYTES];
    /* This worker's own attempt must not replace the connection: its hello does not count this frame. */
    if (conn->channel->crossing == conn)
        wfi_channel_prefer(conn);
    const uint8_t *frame = rx->head;
    if (size > WFI_RECEIVE_HEAD && !rx->length) { /* its two parts are apart */
        memcpy(whole, rx->head, WFI_RECEIVE_HEAD);
        memcpy(whole + WFI_RECEIVE_HEAD, rx->rest, size - WFI_RECEIVE_HEAD);
        frame = whole;
    }
    take_frame(conn, frame, size);
    if (conn->closed)
        return;
    if (rx_post(rx)) {
        wfi_channel_broken(conn);
        return;
    }
    frames->consumed++; /* only now: a credit means a posted receive */
    wfi_long_posted(conn);
    if (conn->closed)
        return;
    /* Any frame to the peer returns credits. Without one they go back at once if the peer may need them, else soon. */
    wfi_peer_flush(conn->peer);
    if (conn->closed)
        return;
    wfi_control *control = wfi_peer_control(conn->peer);
    wfi_progress *progress = conn->transport->progress;
    bool many = frames->consumed - frames->announced >= ACK_AFTER_FRAMES;
    if (many || (control->owes_ack && !control->ack.heap_index &&
                 wfi_timer_set(progress, &control->ack, progress->now_ns + ACK_DELAY_NS)))
        wfi_peer_send_ack(conn->peer);
}

static void frame_received(wfi_io *io, const wfi_completion *completion)
{
    wfi_rx *rx = wfi_container_of(io, wfi_rx, io);
    wfi_conn *conn = io->conn;
    if (conn->closed)
        return;
    if (completion->status) {
        wfi_channel_broken(conn);
    } else if (!conn->keyed) { /* the peer's first frames arrived before its answer, which uses another queue */
        rx->size = completion->size;
        wfi_list_push_back(&wfi_conn_frames(conn)->early, &rx->io.link);
    } else {
        receive(rx, completion->size);
    }
}

static const wfi_io_ops rx_ops = {.completed = frame_received, .dropped = wfi_io_ignore_drop};

void wfi_frames_early(wfi_conn *conn)
{
    wfi_list *node;
    while (!conn->closed && (node = wfi_list_pop_front(&wfi_conn_frames(conn)->early))) {
        wfi_rx *rx = wfi_container_of(node, wfi_rx, io.link);
        receive(rx, rx->size);
    }
}

/* The timer may have been set for an earlier frame, which has been acknowledged since. Then it is set again: if calls
 * follow each other, the next frame will acknowledge them. */
void wfi_control_ack_due(wfi_timer *timer)
{
    wfi_control *control = wfi_container_of(timer, wfi_control, ack);
    wfi_peer *peer = control->channel.peer;
    wfi_transport *transport = peer->transport;
    uint64_t due_ns = control->owed_since_ns + ACK_DELAY_NS;
    if (control->owes_ack &&
        (transport->progress->now_ns >= due_ns || wfi_timer_set(transport->progress, timer, due_ns)))
        wfi_peer_send_ack(peer);
}
