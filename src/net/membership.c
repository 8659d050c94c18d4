/* SPDX-License-Identifier: Apache-2.0 */
/*
 * membership.c - handles the store's events, and creates peers. peer_death.c ends them.
 *
 * Events: workers that joined, are leaving, left or died, this worker's own eviction, the end of the job, the closing
 * protocol. An event names a worker by rank and incarnation. If the rank has another incarnation here, the event is
 * ignored. Events that arrive while net opens, before the table of peers is complete, wait in wfi_net.early.
 */
#include "base/alloc.h"
#include "net/net.h"

#include <stdlib.h>
#include <string.h>

/* An event of a worker. */
typedef struct news {
    wfi_list link;
    wfi_member member; /* only rank and incarnation are set, unless the worker joined */
    weft_status why;   /* WEFT_OK: it joined; WEFT_DEFERRED: it is leaving; otherwise why it is gone */
} news;

/* ---- Peers ----------------------------------------------------------------------------------------------------- */

weft_status wfi_peer_create(wfi_net *net, const wfi_member *member)
{
    wfi_transport *transport = &net->transport;
    wfi_assert_held(&net->progress.lock);
    wfi_whole_peer *whole = wfi_calloc(1, sizeof(*whole));
    if (!whole || wfi_timers_reserve(&net->progress, WFI_PEER_TIMERS)) {
        free(whole);
        return WEFT_ERR_MEMORY;
    }
    wfi_peer *peer = &whole->peer, *former = transport->peers[member->rank];
    peer->transport = transport;
    peer->holds = 1;
    peer->member = *member;
    peer->rank = member->rank;
    for (size_t i = 0; i < transport->fabric_count; i++)
        peer->addresses[i] = wfi_addresses_on(&peer->member, &transport->fabrics[i]);
    wfi_control_init(&whole->control, peer);
    wfi_bulk_init(&whole->bulk, peer);
    wfi_detector_init(whole);
    wfi_list_push_back(&transport->known, &peer->link);
    if (former) { /* copies the list of former incarnations that left */
        bool left = former->status == WEFT_ERR_PEER_LEFT;
        memcpy(peer->left + left, former->left, sizeof(peer->left) - left * sizeof(*peer->left));
        if (left)
            peer->left[0] = former->member.incarnation;
    }
    transport->peers[peer->rank] = peer;
    wfi_peer_unref(former);
    return WEFT_OK;
}

static void end_self(wfi_net *net, weft_status why, const char *text)
{
    wfi_progress_lock(&net->progress);
    if (!net->open)
        net->verdict = why;
    else if (!net->transport.closing)
        wfi_self_gone(net, why, text);
    wfi_progress_unlock(&net->progress);
}

/* ---- Events of other workers ----------------------------------------------------------------------------------- */

/* If there is no memory for the peer, this worker leaves the job: it could not handle the peer's end. */
static void peer_joined(wfi_net *net, const wfi_member *member)
{
    wfi_peer *peer = net->transport.peers[member->rank];
    if (net->gone || (peer && peer->member.incarnation >= member->incarnation))
        return;
    if (peer)
        wfi_peer_gone(peer, WEFT_ERR_PEER_DEAD, "its rank was taken again");
    if (wfi_peer_create(net, member))
        wfi_self_gone(net, WEFT_ERR_MEMORY, "out of memory for a worker that joined");
    else
        WFI_FOR_CLIENTS (client, &net->transport, peer_joined)
            client->upcalls->peer_joined(client->arg, net->transport.peers[member->rank]);
}

/* Reports it once. The store may announce it twice to a worker that joins meanwhile. */
static void peer_leaving(wfi_net *net, wfi_peer *peer)
{
    if (peer->status || peer->leaving)
        return;
    peer->leaving = true;
    WFI_FOR_CLIENTS (client, &net->transport, peer_leaving)
        client->upcalls->peer_leaving(client->arg, peer);
}

static void take_news(wfi_net *net, const wfi_member *member, weft_status why, const char *text)
{
    wfi_peer *peer = net->transport.peers[member->rank];
    if (!why)
        peer_joined(net, member);
    else if (why == WEFT_DEFERRED && peer && peer->member.incarnation == member->incarnation)
        peer_leaving(net, peer);
    else if (why != WEFT_DEFERRED && peer && peer->member.incarnation == member->incarnation)
        wfi_peer_gone(peer, why, text);
}

static void on_member_event(wfi_net *net, const wfi_member *member, weft_status why, const char *text)
{
    if (member->rank < 0 || member->rank >= net->transport.world_size)
        return;
    wfi_progress_lock(&net->progress);
    news *kept = net->open ? NULL : malloc(sizeof(*kept));
    if (kept) {
        *kept = (news){.member = *member, .why = why};
        wfi_list_push_back(&net->early, &kept->link);
    } else if (!net->open) {
        net->verdict = WEFT_ERR_MEMORY;
    } else if (!net->transport.closing && member->rank != net->transport.rank) {
        take_news(net, member, why, text);
    }
    wfi_progress_unlock(&net->progress);
}

static void on_member_joined(void *arg, const wfi_member *member)
{
    on_member_event(arg, member, WEFT_OK, NULL);
}

static void on_died(void *arg, int rank, uint32_t incarnation, const char *why)
{
    wfi_member who = {.rank = rank, .incarnation = incarnation};
    on_member_event(arg, &who, WEFT_ERR_PEER_DEAD, why);
}

static void on_leaving(void *arg, int rank, uint32_t incarnation)
{
    wfi_member who = {.rank = rank, .incarnation = incarnation};
    on_member_event(arg, &who, WEFT_DEFERRED, NULL);
}

/* This worker asked for it when net was open: no such event is early. */
static void on_ending(void *arg, int rank, uint32_t incarnation, bool on)
{
    wfi_net *net = arg;
    wfi_progress_lock(&net->progress);
    wfi_peer *peer = net->transport.closing ? NULL : wfi_net_peer(net, rank);
    if (peer && peer->member.incarnation == incarnation && peer->ending != on) {
        peer->ending = on;
        WFI_FOR_CLIENTS (client, &net->transport, peer_ending)
            client->upcalls->peer_ending(client->arg, peer);
    }
    wfi_progress_unlock(&net->progress);
}

static void on_left(void *arg, int rank, uint32_t incarnation)
{
    wfi_member who = {.rank = rank, .incarnation = incarnation};
    on_member_event(arg, &who, WEFT_ERR_PEER_LEFT, "it closed its agent");
}

/* If a connection is up, this worker may have been slow to answer. A ping tests it, and failure_detector.c breaks the
 * connection if the ping is not acknowledged. */
static void dial(wfi_peer *peer)
{
    if (wfi_channel_up(peer->channels[WFI_CONTROL]))
        wfi_peer_ping(peer);
    else
        wfi_channel_wanted(peer->channels[WFI_CONTROL]);
}

/*
 * The peer asks this worker, through the store, to dial it. The caller also sends the heartbeats, so it must not wait
 * for the lock. If the lock is held, the request is dropped, and the peer will repeat it.
 */
static void on_dial(void *arg, int rank, uint32_t incarnation)
{
    wfi_net *net = arg;
    if (!wfi_mutex_trylock(&net->progress.lock))
        return;
    wfi_peer *peer = net->open ? wfi_net_peer(net, rank) : NULL;
    if (peer && !peer->status && peer->member.incarnation == incarnation)
        dial(peer);
    wfi_progress_unlock(&net->progress);
}

/* ---- Events of this worker and of the job ---------------------------------------------------------------------- */

static void on_evicted(void *arg, const char *why)
{
    end_self(arg, WEFT_ERR_EVICTED, why);
}

static void on_store_lost(void *arg, const char *why)
{
    end_self(arg, WEFT_ERR_STORE_LOST, why);
}

static void on_job_ended(void *arg, const char *why)
{
    end_self(arg, WEFT_ERR_JOB_ENDED, *why ? why : "rank 0 ended the job");
}

void wfi_member_sync(wfi_net *net)
{
    if (net->sync_answered == net->sync_sent && net->sync_sent < net->sync_wanted && !net->transport.closing)
        wfi_rendezvous_sync(net->rendezvous, ++net->sync_sent);
}

/* Net was open when it sent the sync, so no events wait in net->early. */
static void on_synced(void *arg, uint64_t number)
{
    wfi_net *net = arg;
    wfi_progress_lock(&net->progress);
    if (net->open && !net->transport.closing && number == net->sync_sent) {
        net->sync_answered = number;
        wfi_member_sync(net);
        WFI_FOR_CLIENTS (client, &net->transport, synced)
            client->upcalls->synced(client->arg);
    }
    wfi_progress_unlock(&net->progress);
}

/* The store probes only when all workers are closing, so this cannot happen while opening. */
static void on_probe(void *arg, uint64_t wave)
{
    wfi_net *net = arg;
    wfi_progress_lock(&net->progress);
    if (net->open && !net->transport.closing)
        WFI_FOR_CLIENTS (client, &net->transport, probe)
            client->upcalls->probe(client->arg, wave);
    wfi_progress_unlock(&net->progress);
}

static void on_served(void *arg, uint64_t number)
{
    wfi_net *net = arg;
    wfi_progress_lock(&net->progress);
    if (net->open && !net->transport.closing)
        WFI_FOR_CLIENTS (client, &net->transport, served)
            client->upcalls->served(client->arg, number);
    wfi_progress_unlock(&net->progress);
}

static void on_terminated(void *arg)
{
    wfi_net *net = arg;
    wfi_progress_lock(&net->progress);
    if (net->open && !net->transport.closing)
        WFI_FOR_CLIENTS (client, &net->transport, terminated)
            client->upcalls->terminated(client->arg);
    wfi_progress_unlock(&net->progress);
}

static void on_awaited(void *arg, const char *whom)
{
    wfi_net *net = arg;
    wfi_progress_lock(&net->progress);
    if (net->open && !net->transport.closing)
        WFI_FOR_CLIENTS (client, &net->transport, awaited)
            client->upcalls->awaited(client->arg, whom);
    wfi_progress_unlock(&net->progress);
}

const wfi_rendezvous_events wfi_member_events = {.joined = on_member_joined,
                                                 .died = on_died,
                                                 .leaving = on_leaving,
                                                 .left = on_left,
                                                 .dial = on_dial,
                                                 .evicted = on_evicted,
                                                 .store_lost = on_store_lost,
                                                 .ending = on_ending,
                                                 .served = on_served,
                                                 .probe = on_probe,
                                                 .synced = on_synced,
                                                 .terminated = on_terminated,
                                                 .job_ended = on_job_ended,
                                                 .awaited = on_awaited};

void wfi_member_catch_up(wfi_net *net)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&net->early))) {
        news *kept = wfi_container_of(node, news, link);
        if (kept->member.rank != net->transport.rank)
            take_news(net, &kept->member, kept->why, "it ended while this worker was joining");
        free(kept);
    }
    if (net->verdict)
        wfi_self_gone(net, net->verdict, "it happened while this worker was joining");
}

void wfi_member_forget(wfi_net *net)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&net->early)))
        free(wfi_container_of(node, news, link));
}
