/* SPDX-License-Identifier: Apache-2.0 */
/* peer.c - the table of peers, holds on former peers, and the timer that checks for silence. */
#include "base/alloc.h"
#include "base/guarded.h"
#include "net/channel/channel.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void peer_free(wfi_peer *peer)
{
    wfi_guarded_free(peer->pair_key);
    free(peer->gone_text);
    free(peer);
}

void wfi_peers_destroy(wfi_transport *transport)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&transport->known)))
        peer_free(wfi_container_of(node, wfi_peer, link));
    free(transport->peers);
    transport->peers = NULL;
}

wfi_peer *wfi_peer_ref(wfi_peer *peer)
{
    wfi_assert_held(&peer->transport->progress->lock);
    peer->holds++;
    return peer;
}

/* At the last unref the peer has a status: wfi_peer_fail has ended all its operations, and none has begun since. */
void wfi_peer_unref(wfi_peer *peer)
{
    if (!peer)
        return;
    wfi_transport *transport = peer->transport;
    wfi_assert_held(&transport->progress->lock);
    if (--peer->holds)
        return;
    for (int kind = 0; kind < WFI_LANE_KINDS; kind++)
        assert(!peer->channels[kind]->ops->needed(peer->channels[kind]));
    assert(peer->status);
    wfi_list_remove(&peer->link);
    wfi_timers_release(transport->progress, WFI_PEER_TIMERS);
    peer_free(peer);
}

wfi_peer *wfi_peer_at(const wfi_transport *transport, int rank)
{
    wfi_assert_held(&transport->progress->lock);
    return rank < 0 || rank >= transport->world_size || rank == transport->rank ? NULL : transport->peers[rank];
}

weft_status wfi_peer_former_status(const wfi_transport *transport, int rank, uint32_t incarnation)
{
    wfi_assert_held(&transport->progress->lock);
    const wfi_peer *peer = transport->peers[rank];
    for (size_t i = 0; peer && i < WFI_LEFT_MAX; i++)
        if (peer->left[i] == incarnation)
            return WEFT_ERR_PEER_LEFT;
    return WEFT_ERR_PEER_DEAD;
}

void wfi_peer_check_within(wfi_peer *peer, uint64_t after)
{
    wfi_progress *progress = peer->transport->progress;
    uint64_t due_ns = wfi_progress_now(progress) + after;
    if (!peer->silence.heap_index || due_ns < peer->silence.deadline_ns)
        (void)wfi_timer_set(progress, &peer->silence, due_ns); /* reserved */
}

void wfi_peer_watch(wfi_peer *peer)
{
    wfi_transport *transport = peer->transport;
    if (peer->silence.heap_index || peer->status || transport->closing || transport->death_timeout_ms < 0)
        return;
    peer->needed_ns = wfi_progress_now(transport->progress);
    wfi_peer_check_within(peer, wfi_transport_bound_ns(transport) / 2);
}
