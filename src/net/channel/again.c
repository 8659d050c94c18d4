/* SPDX-License-Identifier: Apache-2.0 */
/* again.c - repeats posts that failed because a queue was full or memory was out. */
#include "net/channel/channel.h"

void wfi_transport_post_again(wfi_transport *transport)
{
    for (int rank = 0; rank < transport->world_size; rank++) {
        wfi_peer *peer = transport->peers[rank];
        for (int kind = 0; peer && kind < WFI_LANE_KINDS; kind++)
            peer->channels[kind]->ops->retry(peer->channels[kind]);
    }
}

#define STARVED_TRIES 200
#define STARVED_NS UINT64_C(5000000)

void wfi_transport_starve(wfi_transport *transport)
{
    transport->starving = true;
    if (!transport->starved_timer.heap_index && !transport->closing)
        (void)wfi_timer_set(transport->progress, &transport->starved_timer,
                            wfi_now(transport->progress->clock) + STARVED_NS);
}

/* Repeats posts that failed because memory was out. If they fail for a second, operations that have not begun fail. */
void wfi_transport_starved_due(wfi_timer *timer)
{
    wfi_transport *transport = wfi_container_of(timer, wfi_transport, starved_timer);
    transport->starving = false;
    wfi_transport_post_again(transport);
    transport->starved = transport->starving ? transport->starved + 1 : 0;
    if (transport->starved < STARVED_TRIES)
        return;
    transport->starved = 0;
    for (int rank = 0; rank < transport->world_size; rank++) {
        wfi_peer *peer = transport->peers[rank];
        for (int kind = 0; peer && kind < WFI_LANE_KINDS; kind++)
            peer->channels[kind]->ops->starved(peer->channels[kind], WEFT_ERR_MEMORY);
    }
}
