/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control_message.c - control messages, which a net sends to a peer's net among the messages of the layers above.
 *
 *   0xF0 PING         nothing: that it is acknowledged is the answer
 *   0xF1 REVALIDATE   number u64, address u64, key u64, size u64, access u8: may I still read (1) or write (2) that?
 *   0xF2 REVALIDATED  number u64, yes u8
 *   0xF3 DIAL         nothing: I cannot open a bulk connection to you, so open one to me
 *   0xF4 LONG         nothing: I would send long messages (long.c)
 *   0xF5 LONG_READY   nothing: all my receives are long
 *
 * Of each type one message is under way at a time, and it is embedded beside the peer: so sending needs no memory, and
 * no peer can make us keep more. A peer that asks again before our answer has arrived gets an answer to its newest
 * question only.
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
    own->out = false; /* the peer is gone, or we are */
    wfi_peer_unref(own->peer);
}
