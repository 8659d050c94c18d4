/* SPDX-License-Identifier: Apache-2.0 */
/*
 * long.c - long and large messages: negotiates that a peer posts receives that are long enough for them.
 *
 * A worker that wants to send such messages asks the peer (LONG, with the length). From then on the peer posts every
 * receive with that length, when the frame before it in that receive has been consumed. When all have it, the peer
 * sends LONG_READY, and the worker may send such messages. Until then, which takes WFI_RECEIVE_DEPTH frames, it sends
 * none, and does not wait.
 *
 * LARGE RECEIVES are 0.8 MiB for a peer, so they are only lent. A worker posts them for LARGE_PEERS peers at a time.
 * For other peers it posts long ones. If a worker has sent no large message for WFI_LARGE_KEPT_NS, it asks for long
 * receives again. It repeats this LONG until the peer has answered, because the peer gets a receive back only with a
 * frame; after REPEATS times it pauses for REPEAT_NS.
 *
 * A SLOW LINK. Nothing is acknowledged while a frame is on its way, on neither side. If one takes longer than
 * death_timeout_ms, the detector of either side breaks the connection, and the message is sent again. So after each
 * such break a side that has sent large messages, or may receive some, waits twice as long. It sends no further ones.
 *
 * A worker keeps copies of large messages until the peer has acknowledged them. At most WFI_LARGE_MESSAGE_MAX bytes are
 * kept for a peer (wfi_peer_message_max): what is beyond is read by the peer. So a slow peer does not make it keep many
 * copies, and an urgent message waits behind about as many bytes.
 *
 * LONG and LONG_READY are delivered across connections like all messages, and stay in effect: a later connection has
 * receives of that length from its beginning. If it was made before the peer received LONG, a long message breaks it,
 * and is sent again on the next connection.
 */
#include "base/alloc.h"
#include "base/codec.h"
#include "net/message/message.h"

#include <stdlib.h>

#define PAGE_BYTES 4096
#define LARGE_PEERS 16
#define REPEATS (2 * WFI_RECEIVE_DEPTH)
#define REPEAT_NS UINT64_C(1000000000)

static_assert(WFI_FRAME_HEAD + WFI_MESSAGE_HEAD <= WFI_FRAME_OTHER, "a message fits a frame of its length");

/* ---- Asking ---------------------------------------------------------------------------------------------------- */

static wfi_progress *progress_of(const wfi_control *control)
{
    return control->channel.peer->transport->progress;
}

static void put_question(wfi_control_message *message, uint8_t type, uint32_t number, wfi_length length)
{
    wfi_writer writer;
    wfi_writer_init(&writer, message->bytes, sizeof(message->bytes));
    wfi_write_u32(&writer, number);
    wfi_write_u8(&writer, (uint8_t)length);
    wfi_control_message_send(message, type, writer.size);
}

static void send_long(wfi_control *control)
{
    control->asked_sent = control->asked;
    put_question(&control->long_asked, WFI_CONTROL_LONG, control->asked, control->wants);
}

static void ask(wfi_control *control, wfi_length wanted)
{
    control->returns = wanted < control->wants;
    control->repeats = 0;
    control->wants = wanted;
    control->asked++;
    if (!control->long_asked.out) /* otherwise long_arrived sends it */
        send_long(control);
}

static void long_arrived(wfi_control_message *own)
{
    wfi_control *control = wfi_container_of(own, wfi_control, long_asked);
    if (control->asked != control->asked_sent || (control->returns && ++control->repeats % REPEATS))
        send_long(control);
    else if (control->returns)
        (void)wfi_timer_set(progress_of(control), &control->large_end,
                            wfi_progress_now(progress_of(control)) + REPEAT_NS); /* reserved */
}

static void large_end_due(wfi_timer *timer)
{
    wfi_control *control = wfi_container_of(timer, wfi_control, large_end);
    wfi_progress *progress = progress_of(control);
    uint64_t now = wfi_progress_now(progress), due_ns = control->large_ns + WFI_LARGE_KEPT_NS;
    if (control->returns) {
        if (!control->long_asked.out)
            send_long(control);
        return;
    }
    if (control->large_bytes || now < due_ns) {
        (void)wfi_timer_set(progress, timer, now < due_ns ? due_ns : now + WFI_LARGE_KEPT_NS);
        return;
    }
    if (control->sends == WFI_LARGE)
        control->sends = WFI_LONG;
    ask(control, WFI_LONG);
}

/* Whether the present connection moves as many bytes faster by a message than by a read. */
static bool large_pays(const wfi_peer *peer)
{
    const wfi_conn *conn = wfi_channel_up(peer->channels[WFI_CONTROL]);
    return conn && conn->fabric->limits->long_pays;
}

void wfi_peer_ask_long(wfi_peer *peer, size_t size)
{
    wfi_control *control = wfi_peer_control(peer);
    wfi_length wanted = size > WFI_LONG_MESSAGE_MAX ? WFI_LARGE : WFI_LONG;
    wfi_assert_held(&peer->transport->progress->lock);
    if (control->wants >= wanted || peer->status || (wanted == WFI_LARGE && (control->slow || !large_pays(peer))) ||
        peer->transport->message_max < wfi_length_max(wanted) + WFI_FRAME_OTHER)
        return;
    if (wanted == WFI_LARGE)
        wfi_control_use_large(control);
    ask(control, wanted);
}

size_t wfi_peer_message_max(const wfi_peer *peer)
{
    const wfi_control *control = wfi_peer_control(peer);
    if (control->sends < WFI_LARGE)
        return wfi_length_max(control->sends);
    if (control->slow)
        return WFI_LONG_MESSAGE_MAX;
    size_t left = control->large_bytes < WFI_LARGE_MESSAGE_MAX ? WFI_LARGE_MESSAGE_MAX - control->large_bytes : 0;
    return left > WFI_LONG_MESSAGE_MAX && large_pays(peer) ? left : WFI_LONG_MESSAGE_MAX;
}

/* ---- Receives -------------------------------------------------------------------------------------------------- */

static size_t receive_bytes(wfi_length length)
{
    return (wfi_length_max(length) + WFI_FRAME_OTHER + 63) / 64 * 64;
}

static weft_status make_room(const wfi_conn *conn, wfi_length length, wfi_long_room *room)
{
    wfi_net_fabric *fabric = conn->fabric;
    size_t bytes = (WFI_RECEIVE_DEPTH * receive_bytes(length) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    room->data = aligned_alloc(PAGE_BYTES, bytes);
    if (!room->data || !fabric->limits->needs_local_regions)
        return room->data ? WEFT_OK : WEFT_ERR_MEMORY;
    weft_status status =
        fabric->ops->region_open(fabric->fabric, &WFI_HOST_MEMORY(room->data, bytes), WFI_LOCAL, &room->region);
    if (status) {
        free(room->data);
        room->data = NULL;
    }
    return status;
}

static void free_room(const wfi_conn *conn, wfi_long_room *room)
{
    if (room->region)
        conn->fabric->ops->region_close(conn->fabric->fabric, room->region);
    free(room->data);
    *room = (wfi_long_room){0};
}

/* The peer counts no more among those with large receives, if it has none left and gets none. */
static void uncount(wfi_control *control)
{
    wfi_conn *conn = wfi_channel_up(&control->channel);
    if (!control->has_large || control->takes == WFI_LARGE ||
        (conn && wfi_conn_frames(conn)->rooms[WFI_LARGE].receives))
        return;
    control->channel.peer->transport->large_peers--;
    control->has_large = false;
}

void wfi_long_free(wfi_conn *conn)
{
    for (wfi_length length = WFI_LONG; length < WFI_LENGTHS; length++)
        free_room(conn, &wfi_conn_frames(conn)->rooms[length]);
    uncount(wfi_control_of(conn->channel));
}

weft_status wfi_long_receive(wfi_rx *rx)
{
    wfi_conn *conn = rx->io.conn;
    wfi_frames *frames = wfi_conn_frames(conn);
    wfi_control *control = wfi_control_of(conn->channel);
    wfi_long_room *room = &frames->rooms[control->takes], *former = &frames->rooms[rx->length];
    if (rx->length == control->takes)
        return WEFT_OK;
    weft_status status = room->data ? WEFT_OK : make_room(conn, control->takes, room);
    if (status) /* if memory is out they change later, unless the peer may already send longer messages */
        return rx->length < control->announced ? status : WEFT_OK;
    rx->head = room->data + (size_t)(rx - frames->receives) * receive_bytes(control->takes);
    rx->rest = rx->head + WFI_RECEIVE_HEAD;
    room->receives++;
    if (rx->length && --former->receives == 0)
        free_room(conn, former);
    rx->length = control->takes;
    uncount(control);
    return WEFT_OK;
}

void wfi_long_posted(wfi_conn *conn)
{
    wfi_control *control = wfi_control_of(conn->channel);
    bool are_all = wfi_conn_frames(conn)->rooms[control->takes].receives == WFI_RECEIVE_DEPTH;
    if (control->answered == control->question || !are_all || control->long_ready.out)
        return;
    control->announced = control->takes;
    control->answered = control->question;
    put_question(&control->long_ready, WFI_CONTROL_LONG_READY, control->answered, control->announced);
}

static void ready_arrived(wfi_control_message *own)
{
    wfi_control *control = wfi_container_of(own, wfi_control, long_ready);
    wfi_conn *conn = wfi_channel_up(&control->channel);
    if (conn)
        wfi_long_posted(conn);
}

/* ---- Messages of peers ----------------------------------------------------------------------------------------- */

static void take_long(wfi_control *control, uint32_t number, wfi_length length)
{
    wfi_transport *transport = control->channel.peer->transport;
    bool has_place = control->has_large || transport->large_peers < LARGE_PEERS;
    if (length == WFI_LARGE && (!has_place || !large_pays(control->channel.peer)))
        length = WFI_LONG;
    if (length == WFI_LARGE && !control->has_large) {
        transport->large_peers++;
        control->has_large = true;
    }
    control->question = number;
    control->takes = length;
    if (control->announced > length) /* no longer message follows */
        control->announced = length;
    uncount(control);
}

static void take_message(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    wfi_control *control = wfi_peer_control(from);
    wfi_reader reader;
    (void)arg;
    wfi_reader_init(&reader, bytes, size);
    uint32_t number = wfi_read_u32(&reader);
    uint8_t length = wfi_read_u8(&reader);
    if (reader.failed || length < WFI_LONG || length > WFI_LARGE) {
        wfi_channel_protocol_error(from->channels[WFI_CONTROL]->conn, "a malformed LONG");
    } else if (type == WFI_CONTROL_LONG) {
        take_long(control, number, length);
    } else if (number == control->asked && length <= control->wants) {
        control->sends = length;
        control->returns = false;
    }
}

const wfi_upcalls wfi_long_upcalls = {.message = take_message};

void wfi_long_init(wfi_control *control, wfi_peer *peer)
{
    control->large_end = (wfi_timer){.fire = large_end_due, .reserved = true};
    wfi_control_message_init(&control->long_asked, peer, long_arrived);
    wfi_control_message_init(&control->long_ready, peer, ready_arrived);
}
