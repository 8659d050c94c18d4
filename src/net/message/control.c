/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the control channel as channel.c sees it; and control messages, which a net sends to a peer's net among
 * the messages of the layers above.
 *
 *   0xF0 PING         nothing: that it is acknowledged is the answer
 *   0xF1 REVALIDATE   number u64, address u64, key u64, size u64, access u8: may I still read (1) or write (2) that?
 *   0xF2 REVALIDATED  number u64, yes u8
 *   0xF3 DIAL         nothing: I cannot open a bulk connection to you, so open one to me
 *
 * Of each type one message is under way at a time, and it is embedded beside the peer: so sending needs no memory, and
 * no peer can make us keep more. A peer that asks again before our answer has arrived gets an answer to its newest
 * question only.
 */
#include "net/message/message.h"

/* ---- The channel ----------------------------------------------------------------------------------------------- */

static bool control_needed(const wfi_channel *channel)
{
    return wfi_peer_has_to_send(channel->peer);
}

static bool control_idle(const wfi_channel *channel)
{
    (void)channel; /* it stays */
    return false;
}

static void control_ask(wfi_channel *channel)
{
    (void)channel; /* the store does, of those that are suspected */
}

static void control_up(wfi_channel *channel)
{
    wfi_conn *conn = channel->conn;
    wfi_peer_flush(channel->peer);
    wfi_frames_early(conn);
}

static void control_down(wfi_channel *channel, wfi_conn *conn)
{
    wfi_control *control = wfi_control_of(channel);
    (void)conn;
    if (!channel->conn)
        control->resend = control->sent.next;
}

static void control_retry(wfi_channel *channel)
{
    wfi_peer_flush(channel->peer);
}

static void control_starved(wfi_channel *channel, weft_status lack)
{
    wfi_control_fail_queued(wfi_control_of(channel), lack);
}

static uint64_t control_position(const wfi_channel *channel)
{
    return wfi_control_of(channel)->received;
}

static bool control_take_position(wfi_channel *channel, uint64_t theirs)
{
    wfi_control *control = wfi_control_of(channel);
    bool makes_sense = theirs >= control->acknowledged && theirs <= control->sequence;
    if (makes_sense)
        wfi_control_acknowledge(control, theirs);
    return makes_sense;
}

static const wfi_channel_ops control_ops = {.conn_bytes = sizeof(wfi_frames),
                                            .prepare = wfi_receives_make,
                                            .attach = wfi_receives_post,
                                            .release = wfi_receives_free,
                                            .needed = control_needed,
                                            .idle = control_idle,
                                            .ask = control_ask,
                                            .up = control_up,
                                            .down = control_down,
                                            .retry = control_retry,
                                            .starved = control_starved,
                                            .position = control_position,
                                            .take_position = control_take_position};

void wfi_control_init(wfi_control *control, wfi_peer *peer)
{
    wfi_channel_init(&control->channel, peer, WFI_CONTROL, &control_ops);
    wfi_list_init(&control->urgent);
    wfi_list_init(&control->queued);
    wfi_list_init(&control->sent);
    wfi_list_init(&control->waiters);
    control->resend = &control->sent;
    control->ack = (wfi_timer){.fire = wfi_control_ack_due, .reserved = true};
}

/* ---- Control messages ------------------------------------------------------------------------------------------ */

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
