/* SPDX-License-Identifier: Apache-2.0 */
/*
 * again.c - repeats posts that failed because a queue was full or memory was out.
 *
 * OUT OF MEMORY. A post fails if memory is out, or if the fabric cannot register memory for it. It is repeated every
 * STARVED_NS. After MOVE_TRIES failures the channel moves to another fabric of the peer, on which its posts have not
 * failed. If there is none, the channel's operations that have not begun fail after GIVE_UP_TRIES failures.
 */
#include "net/channel/channel.h"

void wfi_transport_post_again(wfi_transport *transport)
{
    for (int rank = 0; rank < transport->world_size; rank++) {
        wfi_peer *peer = transport->peers[rank];
        for (int kind = 0; peer && kind < WFI_LANE_KINDS; kind++)
            peer->channels[kind]->ops->retry(peer->channels[kind]);
    }
}

#define GIVE_UP_TRIES 200
#define MOVE_TRIES 20
#define STARVED_NS UINT64_C(5000000)

void wfi_conn_starve(wfi_conn *conn)
{
    wfi_transport *transport = conn->transport;
    conn->starving = true;
    if (!transport->starved_timer.heap_index && !transport->closing)
        (void)wfi_timer_set(transport->progress, &transport->starved_timer,
                            wfi_now(transport->progress->clock) + STARVED_NS);
}

/* Whether the peer has another fabric on which the channel's posts have not failed for lack of memory. */
static bool has_other(const wfi_channel *channel, const wfi_net_fabric *fabric)
{
    const wfi_peer *peer = channel->peer;
    unsigned starved = channel->starved | 1u << wfi_net_fabric_index(fabric);
    for (size_t i = 0; i < peer->transport->fabric_count; i++) {
        if (wfi_channel_may_use(channel, i) && !(starved & 1u << i))
            return true;
    }
    return false;
}

static void give_up(wfi_channel *channel, bool moves)
{
    wfi_conn *conn = channel->conn;
    conn->starved = 0;
    channel->starved |= 1u << wfi_net_fabric_index(conn->fabric);
    if (moves) {
        wfi_channel_avoid(channel, conn->fabric, "no memory could be registered for what is sent");
        wfi_channel_broken(conn);
        return;
    }
    channel->starved = 0;
    channel->ops->starved(channel, WEFT_ERR_MEMORY);
}

static void try_again(wfi_channel *channel)
{
    wfi_conn *conn = wfi_channel_up(channel);
    if (!conn)
        return;
    conn->starved = conn->starving ? conn->starved : 0;
    if (!conn->starving)
        return;
    conn->starving = false;
    channel->ops->retry(channel);
    if (wfi_channel_up(channel) != conn)
        return;
    bool moves = has_other(channel, conn->fabric);
    conn->starved = conn->starving ? conn->starved + 1 : 0;
    if (conn->starved >= (moves ? MOVE_TRIES : GIVE_UP_TRIES))
        give_up(channel, moves);
}

void wfi_transport_starved_due(wfi_timer *timer)
{
    wfi_transport *transport = wfi_container_of(timer, wfi_transport, starved_timer);
    for (int rank = 0; rank < transport->world_size; rank++) {
        wfi_peer *peer = transport->peers[rank];
        for (int kind = 0; peer && kind < WFI_LANE_KINDS; kind++)
            try_again(peer->channels[kind]);
    }
}
