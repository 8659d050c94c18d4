/* SPDX-License-Identifier: Apache-2.0 */
/* control.c - the control channel's functions for channel.c. */
#include "net/message/message.h"

static bool control_needed(const wfi_channel *channel)
{
    return wfi_peer_has_to_send(channel->peer);
}

static bool control_idle(const wfi_channel *channel)
{
    (void)channel; /* a control connection is never closed for being idle */
    return false;
}

static void control_ask(wfi_channel *channel)
{
    (void)channel; /* the store asks peers that are suspected */
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
    wfi_long_init(control, peer);
}
