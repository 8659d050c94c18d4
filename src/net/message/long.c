/* SPDX-License-Identifier: Apache-2.0 */
/*
 * long.c - long messages: negotiates that a peer posts receives that are long enough for them.
 *
 * A worker that wants to send long messages asks the peer (LONG). From then on the peer posts every receive as a long
 * one, when the frame before it in that receive has been consumed. When all are long it sends LONG_READY, and the
 * worker may send long messages. Until then, which takes WFI_RECEIVE_DEPTH frames, it sends none, and does not wait.
 *
 * LONG and LONG_READY are delivered across connections like all messages, and stay in effect: a later connection has
 * long receives from its beginning. If it was made before the peer received LONG, a long message breaks it, and is sent
 * again on the next connection.
 */
#include "base/alloc.h"
#include "net/message/message.h"

#include <stdlib.h>

#define PAGE_BYTES 4096
#define LONG_BYTES ((size_t)(WFI_LONG_FRAME_BYTES + 63) / 64 * 64) /* of one receive */

static_assert(WFI_FRAME_HEAD + WFI_MESSAGE_HEAD + WFI_LONG_MESSAGE_MAX <= WFI_LONG_FRAME_BYTES, "one fits a frame");
static_assert(WFI_LONG_MESSAGE_MAX <= UINT16_MAX, "the size of a message is two bytes");

void wfi_peer_ask_long(wfi_peer *peer)
{
    wfi_control *control = wfi_peer_control(peer);
    wfi_assert_held(&peer->transport->progress->lock);
    if (control->asks_long || peer->status || peer->transport->message_max < WFI_LONG_FRAME_BYTES)
        return;
    control->asks_long = true;
    wfi_control_message_send(&control->long_asked, WFI_CONTROL_LONG, 0);
}

/* ---- Receives -------------------------------------------------------------------------------------------------- */

static weft_status make_room(wfi_conn *conn)
{
    wfi_frames *frames = wfi_conn_frames(conn);
    wfi_net_fabric *fabric = conn->fabric;
    size_t bytes = (WFI_RECEIVE_DEPTH * LONG_BYTES + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    frames->long_data = aligned_alloc(PAGE_BYTES, bytes);
    if (!frames->long_data || !fabric->limits->needs_local_regions)
        return frames->long_data ? WEFT_OK : WEFT_ERR_MEMORY;
    weft_status status = fabric->ops->region_open(fabric->fabric, &WFI_HOST_MEMORY(frames->long_data, bytes), WFI_LOCAL,
                                                  &frames->long_region);
    if (status) {
        free(frames->long_data);
        frames->long_data = NULL;
    }
    return status;
}

void wfi_long_free(wfi_conn *conn)
{
    wfi_frames *frames = wfi_conn_frames(conn);
    if (frames->long_region)
        conn->fabric->ops->region_close(conn->fabric->fabric, frames->long_region);
    free(frames->long_data);
}

weft_status wfi_long_receive(wfi_rx *rx)
{
    wfi_conn *conn = rx->flight.conn;
    wfi_frames *frames = wfi_conn_frames(conn);
    const wfi_control *control = wfi_control_of(conn->channel);
    if (rx->is_long || !control->takes_long)
        return WEFT_OK;
    weft_status status = frames->long_data ? WEFT_OK : make_room(conn);
    if (status) /* if memory is out they become long later, unless the peer may already send long messages */
        return control->told_long ? status : WEFT_OK;
    rx->head = frames->long_data + (size_t)(rx - frames->receives) * LONG_BYTES;
    rx->rest = rx->head + WFI_RECEIVE_HEAD;
    rx->is_long = true;
    frames->long_receives++;
    return WEFT_OK;
}

void wfi_long_posted(wfi_conn *conn)
{
    wfi_control *control = wfi_control_of(conn->channel);
    if (control->told_long || wfi_conn_frames(conn)->long_receives < WFI_RECEIVE_DEPTH)
        return;
    control->told_long = true;
    wfi_control_message_send(&control->long_ready, WFI_CONTROL_LONG_READY, 0);
}

/* ---- Messages of peers ----------------------------------------------------------------------------------------- */

static void take_message(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    wfi_control *control = wfi_peer_control(from);
    (void)arg, (void)bytes, (void)size;
    if (type == WFI_CONTROL_LONG)
        control->takes_long = true;
    else if (control->asks_long)
        control->sends_long = true;
}

const wfi_upcalls wfi_long_upcalls = {.message = take_message};

static void arrived(wfi_control_message *own)
{
    (void)own; /* the peer's answer is a message of its own */
}

void wfi_long_init(wfi_control *control, wfi_peer *peer)
{
    wfi_control_message_init(&control->long_asked, peer, arrived);
    wfi_control_message_init(&control->long_ready, peer, arrived);
}
