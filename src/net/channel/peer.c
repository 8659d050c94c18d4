/* SPDX-License-Identifier: Apache-2.0 */
/* peer.c - the table of peers, who holds one that is out of it, and when one is looked at for silence. */
#include "base/alloc.h"
#include "base/guarded.h"
#include "net/net_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

weft_status wfi_peers_create(wfi_net *net)
{
    net->peers = wfi_calloc((size_t)net->world_size, sizeof(*net->peers));
    return net->peers ? WEFT_OK : WEFT_ERR_MEMORY;
}

static void peer_free(wfi_peer *peer)
{
    wfi_guarded_free(peer->pair_key);
    free(peer);
}

void wfi_peers_destroy(wfi_net *net)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&net->known)))
        peer_free(wfi_container_of(node, wfi_peer, link));
    free(net->peers);
    net->peers = NULL;
}

wfi_peer *wfi_peer_ref(wfi_peer *peer)
{
    wfi_assert_held(&peer->net->progress.lock);
    peer->holds++;
    return peer;
}

/* Its end took along all that was under way with it (wfi_peer_fail), and nothing has begun since: it has a status. */
void wfi_peer_unref(wfi_peer *peer)
{
    if (!peer)
        return;
    wfi_net *net = peer->net;
    wfi_assert_held(&net->progress.lock);
    if (--peer->holds)
        return;
    assert(peer->status && !wfi_peer_has_to_send(peer) && wfi_list_empty(&peer->works) &&
           wfi_list_empty(&peer->exposed));
    wfi_list_remove(&peer->link);
    wfi_timers_release(&net->progress, WFI_PEER_TIMERS);
    peer_free(peer);
}

wfi_peer *wfi_net_peer(wfi_net *net, int rank)
{
    wfi_assert_held(&net->progress.lock);
    return rank < 0 || rank >= net->world_size || rank == net->rank ? NULL : net->peers[rank];
}

weft_status wfi_net_former_status(const wfi_net *net, int rank, uint32_t incarnation)
{
    wfi_assert_held(&net->progress.lock);
    const wfi_peer *peer = net->peers[rank];
    for (size_t i = 0; peer && i < WFI_LEFT_MAX; i++)
        if (peer->left[i] == incarnation)
            return WEFT_ERR_PEER_LEFT;
    return WEFT_ERR_PEER_DEAD;
}

int wfi_peer_rank(const wfi_peer *peer)
{
    return peer->rank;
}

const char *wfi_peer_name(const wfi_peer *peer)
{
    return peer->member.name;
}

weft_status wfi_peer_status(const wfi_peer *peer)
{
    return peer->status;
}

uint32_t wfi_peer_incarnation(const wfi_peer *peer)
{
    return peer->member.incarnation;
}

uint64_t wfi_reach_bound_ns(const wfi_net *net)
{
    return (uint64_t)net->death_timeout_ms * 1000000;
}

void wfi_reach_watch(wfi_peer *peer)
{
    wfi_net *net = peer->net;
    if (peer->silence.heap_index || peer->status || net->closing || net->death_timeout_ms < 0)
        return;
    peer->needed_ns = wfi_progress_now(&net->progress);
    (void)wfi_timer_set(&net->progress, &peer->silence, peer->needed_ns + wfi_reach_bound_ns(net) / 2); /* reserved */
}

void wfi_reach_regained(wfi_peer *peer)
{
    if (peer->unreachable)
        wfi_log_net(peer->net, WEFT_LOG_INFO, "worker %d can be reached again", peer->rank);
    peer->unreachable = false;
}
