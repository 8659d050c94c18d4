/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_death.c - the end of a peer: it is dead, it has left, or this worker itself is out of the job.
 *
 * The store announces it (membership.c); failure_detector.c reports to the store what it finds. wfi_peer_gone fails
 * what is outstanding with the peer, calls the owners, and only then tells the layers above, through the upcall
 * peer_gone. In rpc that is src/rpc/agent/dispatch.c: wfi_on_peer_gone, which tells each component of the agent.
 */
#include "net/net.h"

#include <stdlib.h>
#include <string.h>

void wfi_peer_fail(wfi_peer *peer, weft_status why)
{
    wfi_whole_peer *whole = wfi_container_of(peer, wfi_whole_peer, peer);
    wfi_assert_held(&peer->transport->progress->lock);
    if (!peer->status)
        peer->status = why;
    for (int kind = 0; kind < WFI_LANE_KINDS; kind++)
        wfi_channel_fini(peer->channels[kind]);
    wfi_detector_fail(whole);
    wfi_control_fail(&whole->control, why);
    wfi_bulk_fail(&whole->bulk, why);
}

const char *wfi_peer_gone_text(const wfi_peer *peer)
{
    return peer->gone_text;
}

void wfi_peer_gone(wfi_peer *peer, weft_status why, const char *text)
{
    wfi_transport *transport = peer->transport;
    if (peer->status)
        return;
    const char *how = why == WEFT_ERR_PEER_DEAD ? "is dead" : why == WEFT_ERR_PEER_LEFT ? "has left the job" : NULL;
    if (!how)
        peer->gone_text = strdup(text); /* this worker has left the job; the peer has not */
    else if (asprintf(&peer->gone_text, "rank %d (%s) %s: %s", peer->rank, wfi_peer_name(peer), how, text) < 0)
        peer->gone_text = NULL;
    wfi_peer_fail(peer, why);
    wfi_progress_call_owners(transport->progress);
    WFI_FOR_CLIENTS (client, transport, peer_gone)
        client->upcalls->peer_gone(client->arg, peer, why, text);
}

void wfi_self_gone(wfi_net *net, weft_status why, const char *text)
{
    if (net->gone)
        return;
    net->gone = why;
    for (int rank = 0; rank < net->transport.world_size; rank++) {
        if (net->transport.peers[rank])
            wfi_peer_gone(net->transport.peers[rank], why, text);
    }
    WFI_FOR_CLIENTS (client, &net->transport, self_gone)
        client->upcalls->self_gone(client->arg, why, text);
}
