/* SPDX-License-Identifier: Apache-2.0 */
/* bulk.c - the bulk channel's functions for channel.c, and the messages REVALIDATE, REVALIDATED and DIAL. */
#include "net/bulk/bulk.h"

#include "base/codec.h"

/* ---- The channel ----------------------------------------------------------------------------------------------- */

static weft_status bulk_prepare(wfi_conn *conn)
{
    (void)conn; /* nothing is received on it */
    return WEFT_OK;
}

static void bulk_release(wfi_conn *conn)
{
    (void)conn;
}

static bool bulk_needed(const wfi_channel *channel)
{
    return !wfi_list_empty(&wfi_bulk_of(channel)->transfers);
}

static bool bulk_idle(const wfi_channel *channel)
{
    const wfi_bulk *bulk = wfi_bulk_of(channel);
    return wfi_list_empty(&bulk->transfers) && wfi_list_empty(&bulk->exposed);
}

static void bulk_ask(wfi_channel *channel)
{
    wfi_bulk *bulk = wfi_bulk_of(channel);
    if (!bulk->dial.out)
        wfi_control_message_send(&bulk->dial, WFI_CONTROL_DIAL, 0);
}

static void bulk_up(wfi_channel *channel)
{
    wfi_bulk *bulk = wfi_bulk_of(channel);
    wfi_progress *progress = channel->peer->transport->progress;
    (void)wfi_timer_set(progress, &channel->timer, channel->used_ns + WFI_IDLE_NS);
    wfi_transfers_invalidate(bulk);
    wfi_transfers_pump(bulk);
}

static void bulk_down(wfi_channel *channel, wfi_conn *conn)
{
    if (conn->up && !conn->refused)
        wfi_bulk_of(channel)->stuck_ns = wfi_progress_now(channel->peer->transport->progress);
}

static void bulk_retry(wfi_channel *channel)
{
    wfi_transfers_ask(wfi_bulk_of(channel));
    wfi_transfers_pump(wfi_bulk_of(channel));
}

static void bulk_starved(wfi_channel *channel, weft_status lack)
{
    wfi_transfers_fail(wfi_bulk_of(channel), lack);
}

static uint64_t bulk_position(const wfi_channel *channel)
{
    return channel->ended;
}

static bool bulk_take_position(wfi_channel *channel, uint64_t theirs)
{
    wfi_bulk *bulk = wfi_bulk_of(channel);
    channel->excused = channel->excused || theirs != bulk->ended_by_peer;
    bulk->ended_by_peer = theirs;
    return true; /* any count is possible */
}

static const wfi_channel_ops bulk_ops = {.conn_bytes = sizeof(wfi_window),
                                         .prepare = bulk_prepare,
                                         .attach = bulk_prepare,
                                         .release = bulk_release,
                                         .needed = bulk_needed,
                                         .idle = bulk_idle,
                                         .ask = bulk_ask,
                                         .up = bulk_up,
                                         .down = bulk_down,
                                         .retry = bulk_retry,
                                         .starved = bulk_starved,
                                         .position = bulk_position,
                                         .take_position = bulk_take_position};

/* ---- Messages of peers ----------------------------------------------------------------------------------------- */

static void take_message(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    wfi_bulk *bulk = wfi_peer_bulk(from);
    wfi_reader reader;
    (void)arg;
    wfi_reader_init(&reader, bytes, size);
    if (type == WFI_CONTROL_REVALIDATE) {
        wfi_bulk_take_revalidate(bulk, &reader);
    } else if (type == WFI_CONTROL_REVALIDATED) {
        wfi_bulk_take_revalidated(bulk, &reader);
        wfi_transfers_pump(bulk);
    } else {
        wfi_channel_wanted(&bulk->channel);
    }
    if (reader.failed)
        wfi_channel_protocol_error(from->channels[WFI_CONTROL]->conn, "a control message that is too short");
}

const wfi_upcalls wfi_bulk_upcalls = {.message = take_message};

/* ---- Setting up and ending ------------------------------------------------------------------------------------- */

static void revalidate_arrived(wfi_control_message *own)
{
    wfi_transfers_ask(wfi_container_of(own, wfi_bulk, revalidate));
}

static void revalidated_arrived(wfi_control_message *own)
{
    wfi_bulk *bulk = wfi_container_of(own, wfi_bulk, revalidated);
    if (bulk->answer_due)
        wfi_bulk_answer(bulk);
}

static void dial_arrived(wfi_control_message *own)
{
    (void)own; /* the peer tries to connect */
}

void wfi_bulk_init(wfi_bulk *bulk, wfi_peer *peer)
{
    wfi_channel_init(&bulk->channel, peer, WFI_BULK, &bulk_ops);
    wfi_list_init(&bulk->transfers);
    wfi_list_init(&bulk->exposed);
    wfi_control_message_init(&bulk->revalidate, peer, revalidate_arrived);
    wfi_control_message_init(&bulk->revalidated, peer, revalidated_arrived);
    wfi_control_message_init(&bulk->dial, peer, dial_arrived);
}

void wfi_bulk_fail(wfi_bulk *bulk, weft_status why)
{
    wfi_transfers_fail(bulk, why);
    wfi_exposed_end_all(bulk);
}
