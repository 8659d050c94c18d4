/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control_message.c - control messages, which net sends to a peer's net on the control channel.
 *
 *   0xF0 PING         no content; the acknowledgement is the answer
 *   0xF1 REVALIDATE   number u64, address u64, key u64, fabric u8, size u64, access u8, fabric u8 (revalidate.c)
 *   0xF2 REVALIDATED  number u64, answer u8, address u64, key u64, fabric u8, generation u32
 *   0xF3 DIAL         no content; asks the receiver to connect the bulk channel, which the sender cannot
 *   0xF4 LONG         number u32, length u8: asks the receiver to post receives of that length (wfi_length; long.c)
 *   0xF5 LONG_READY   number u32 of the LONG, length u8: all receives of the sender have at least that length
 *
 * One message of each type is in flight at a time. It is embedded in wfi_whole_peer, so sending allocates nothing, and
 * a peer cannot make this worker keep more. A peer that asks again before the answer has arrived gets an answer only to
 * its newest question.
 */
#include "net/message/message.h"

static void own_done(wfi_message *message, weft_status status)
{
    wfi_control_message *own = wfi_container_of(message, wfi_control_message, message);
    wfi_peer *peer = own->peer;
    own->out = false;
    if (!status)
        own->acknowledged(own);
    wfi_peer_unref(peer);
}

void wfi_control_message_init(wfi_control_message *own, wfi_peer *peer, void (*acknowledged)(wfi_control_message *own))
{
    own->peer = peer;
    own->acknowledged = acknowledged;
}

void wfi_control_message_send(wfi_control_message *own, uint8_t type, size_t size)
{
    own->message = (wfi_message){.type = type, .urgent = true, .head = own->bytes, .head_size = size, .done = own_done};
    own->out = true;
    (void)wfi_peer_ref(own->peer); /* until it is done */
    if (!wfi_peer_send(own->peer, &own->message))
        return;
    own->out = false; /* the peer is gone, or net is closing */
    wfi_peer_unref(own->peer);
}
