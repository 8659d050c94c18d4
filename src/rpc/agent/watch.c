/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c - asking to hear of a worker's death without depending on it otherwise. Watches count, for one incarnation each. */
#include "rpc/agent/agent.h"

/* The rank's present holder and our count for it, which starts anew with each incarnation. [agent lock] */
static weft_status find(weft_agent *agent, int rank, wfi_peer **peer, wfi_rpc_peer **seat)
{
    weft_status st = wfi_agent_usable(agent);
    if (st)
        return st;
    *peer = wfi_net_peer(agent->net, rank);
    if (!*peer)
        return WEFT_ERR_NOT_FOUND;
    *seat = &agent->peers[rank];
    if ((*seat)->watched != wfi_peer_incarnation(*peer)) {
        (*seat)->watched = wfi_peer_incarnation(*peer);
        (*seat)->watches = 0; /* the former holder is dead: nobody counts for it any more */
    }
    return wfi_peer_status(*peer);
}

static weft_status change(weft_agent *agent, int rank, int by)
{
    wfi_peer *peer;
    wfi_rpc_peer *seat;
    if (!agent)
        return WEFT_ERR_INVALID;
    wfi_net_lock(agent->net);
    weft_status st = find(agent, rank, &peer, &seat);
    if (!st && by < 0 && !seat->watches)
        st = WEFT_ERR_STATE;
    if (!st) {
        seat->watches += (size_t)by;
        wfi_peer_lean(peer, by);
    }
    wfi_net_unlock(agent->net);
    return st;
}

weft_status weft_watch(weft_agent *agent, int rank)
{
    return change(agent, rank, 1);
}

weft_status weft_unwatch(weft_agent *agent, int rank)
{
    return change(agent, rank, -1);
}
