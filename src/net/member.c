/* SPDX-License-Identifier: Apache-2.0 */
/* member.c - what the store says: deaths and departures of peers, our own eviction, the closing protocol. */
#include "net/net_internal.h"

/* Fails what is outstanding with the peer, calls its owners, and only then tells the layer above. */
static void peer_gone(wfi_peer *peer, weft_status why, const char *text)
{
    wfi_net *net = peer->net;
    if (peer->status)
        return;
    wfi_peer_fail(peer, why);
    wfi_net_settle(net);
    net->upcalls.peer_gone(net->arg, peer, why, text);
}

static void tell_peer(wfi_net *net, int rank, uint32_t incarnation, weft_status why, const char *text)
{
    if (rank < 0 || rank >= net->world_size || rank == net->rank)
        return;
    wfi_net_lock(net);
    if (!net->open)
        net->peers[rank].verdict = why;
    else if (!net->closing && wfi_net_member(net, rank)->incarnation == incarnation)
        peer_gone(&net->peers[rank], why, text);
    wfi_net_unlock(net);
}

static void self_gone(wfi_net *net, weft_status why, const char *text)
{
    if (net->gone)
        return;
    net->gone = why;
    for (int rank = 0; rank < net->world_size; rank++) {
        if (rank != net->rank)
            peer_gone(&net->peers[rank], why, text);
    }
    net->upcalls.self_gone(net->arg, why, text);
}

static void tell_self(wfi_net *net, weft_status why, const char *text)
{
    wfi_net_lock(net);
    if (!net->open)
        net->verdict = why;
    else if (!net->closing)
        self_gone(net, why, text);
    wfi_net_unlock(net);
}

static void on_died(void *arg, int rank, uint32_t incarnation, const char *why)
{
    tell_peer(arg, rank, incarnation, WEFT_ERR_PEER_DEAD, why);
}

static void on_left(void *arg, int rank, uint32_t incarnation)
{
    tell_peer(arg, rank, incarnation, WEFT_ERR_PEER_LEFT, "it closed its agent");
}

static void on_evicted(void *arg, const char *why)
{
    tell_self(arg, WEFT_ERR_EVICTED, why);
}

static void on_store_lost(void *arg, const char *why)
{
    tell_self(arg, WEFT_ERR_STORE_LOST, why);
}

/* Nobody probes or terminates before all are closing, so this cannot come while we open. */
static void on_probe(void *arg, uint64_t round)
{
    wfi_net *net = arg;
    wfi_net_lock(net);
    if (net->open && !net->closing)
        net->upcalls.probe(net->arg, round);
    wfi_net_unlock(net);
}

static void on_terminated(void *arg)
{
    wfi_net *net = arg;
    wfi_net_lock(net);
    if (net->open && !net->closing)
        net->upcalls.terminated(net->arg);
    wfi_net_unlock(net);
}

const wfi_rendezvous_events *wfi_member_events(void)
{
    static const wfi_rendezvous_events events = {.died = on_died,
                                                 .left = on_left,
                                                 .evicted = on_evicted,
                                                 .store_lost = on_store_lost,
                                                 .probe = on_probe,
                                                 .terminated = on_terminated};
    return &events;
}

void wfi_member_catch_up(wfi_net *net)
{
    for (int rank = 0; rank < net->world_size; rank++) {
        if (net->peers[rank].verdict)
            peer_gone(&net->peers[rank], net->peers[rank].verdict, "it went while this worker was joining");
    }
    if (net->verdict)
        self_gone(net, net->verdict, "it happened while this worker was joining");
}
