/* SPDX-License-Identifier: Apache-2.0 */
/*
 * membership.c - what the store says: who joined, deaths and departures of peers, our own eviction, the closing protocol. And
 * what a peer is made of, and its end.
 *
 * Each word names an incarnation, and is about that one or about nobody. What comes before the table is here waits in a
 * list, and is taken in the same order afterwards.
 */
#include "base/alloc.h"
#include "net/net_internal.h"

#include <stdlib.h>
#include <string.h>

/* One thing that the store said about a worker. */
typedef struct news {
    wfi_list link;
    wfi_member member; /* of those who went only rank and incarnation count */
    weft_status why;   /* WEFT_OK: it joined */
} news;

/* ---- Peers ----------------------------------------------------------------------------------------------------- */

static void line_init(wfi_peer *peer, wfi_lane_kind kind)
{
    wfi_line *line = &peer->lines[kind];
    line->peer = peer;
    line->kind = kind;
    wfi_list_init(&line->turn);
    line->timer.fire = wfi_line_timer;
    line->timer.reserved = true;
}

static void peer_init(wfi_net *net, wfi_peer *peer, const wfi_member *member)
{
    peer->net = net;
    peer->holds = 1;
    peer->member = *member;
    peer->rank = member->rank;
    wfi_list_init(&peer->lean_link);
    line_init(peer, WFI_CONTROL);
    line_init(peer, WFI_BULK);
    wfi_list_init(&peer->urgent);
    wfi_list_init(&peer->queued);
    wfi_list_init(&peer->sent);
    peer->resend = &peer->sent;
    wfi_list_init(&peer->works);
    wfi_list_init(&peer->exposed);
    peer->ack.fire = wfi_peer_ack_due;
    peer->silence.fire = wfi_peer_silence;
    wfi_notes_init(peer);
    peer->ack.reserved = peer->silence.reserved = true;
}

/* All that is remembered of those who held the rank before. */
static void take_over(wfi_peer *peer, const wfi_peer *former)
{
    bool left = former->status == WEFT_ERR_PEER_LEFT;
    memcpy(peer->left + left, former->left, sizeof(peer->left) - left * sizeof(*peer->left));
    if (left)
        peer->left[0] = former->member.incarnation;
}

weft_status wfi_peer_create(wfi_net *net, const wfi_member *member, wfi_peer **out)
{
    wfi_assert_held(&net->progress.lock);
    wfi_peer *peer = wfi_calloc(1, sizeof(*peer));
    if (!peer || wfi_timers_reserve(&net->progress, WFI_PEER_TIMERS)) {
        free(peer);
        return WEFT_ERR_MEMORY;
    }
    peer_init(net, peer, member);
    wfi_list_push_back(&net->known, &peer->link);
    wfi_peer *former = net->peers[peer->rank];
    if (former)
        take_over(peer, former);
    net->peers[peer->rank] = peer;
    wfi_peer_unref(former);
    *out = peer;
    return WEFT_OK;
}

void wfi_peer_fail(wfi_peer *peer, weft_status why)
{
    wfi_net *net = peer->net;
    wfi_assert_held(&net->progress.lock);
    if (!peer->status)
        peer->status = why;
    for (int kind = 0; kind < WFI_LANE_KINDS; kind++) {
        wfi_line *line = &peer->lines[kind];
        if (line->conn)
            wfi_conn_close(line->conn);
        wfi_timer_clear(&net->progress, &line->timer);
        wfi_list_remove(&line->turn);
    }
    wfi_timer_clear(&net->progress, &peer->ack);
    wfi_timer_clear(&net->progress, &peer->silence);
    wfi_list_remove(&peer->lean_link);
    peer->owes_ack = false;
    wfi_peer_fail_messages(peer, why);
    wfi_works_fail(peer, why);
    wfi_exposed_end_all(peer);
}

/* Fails what is outstanding with the peer, calls its owners, and only then tells the layer above. */
static void peer_gone(wfi_peer *peer, weft_status why, const char *text)
{
    wfi_net *net = peer->net;
    if (peer->status)
        return;
    wfi_peer_fail(peer, why);
    wfi_progress_settle(&net->progress);
    net->upcalls.peer_gone(net->arg, peer, why, text);
}

static void self_gone(wfi_net *net, weft_status why, const char *text)
{
    if (net->gone)
        return;
    net->gone = why;
    for (int rank = 0; rank < net->world_size; rank++) {
        if (net->peers[rank])
            peer_gone(net->peers[rank], why, text);
    }
    net->upcalls.self_gone(net->arg, why, text);
}

static void tell_self(wfi_net *net, weft_status why, const char *text)
{
    wfi_progress_lock(&net->progress);
    if (!net->open)
        net->verdict = why;
    else if (!net->closing)
        self_gone(net, why, text);
    wfi_progress_unlock(&net->progress);
}

/* ---- About others ---------------------------------------------------------------------------------------------- */

/* Without memory for a peer we cannot be a member any more: we could never be told of its end. */
static void peer_joined(wfi_net *net, const wfi_member *member)
{
    wfi_peer *peer = net->peers[member->rank];
    if (net->gone || (peer && peer->member.incarnation >= member->incarnation))
        return;
    if (peer)
        peer_gone(peer, WEFT_ERR_PEER_DEAD, "its rank was taken again");
    if (wfi_peer_create(net, member, &peer))
        self_gone(net, WEFT_ERR_MEMORY, "out of memory for a worker that joined");
    else
        net->upcalls.peer_joined(net->arg, peer);
}

static void take_news(wfi_net *net, const wfi_member *member, weft_status why, const char *text)
{
    wfi_peer *peer = net->peers[member->rank];
    if (!why)
        peer_joined(net, member);
    else if (peer && peer->member.incarnation == member->incarnation)
        peer_gone(peer, why, text);
}

static void keep_news(wfi_net *net, const wfi_member *member, weft_status why)
{
    news *kept = malloc(sizeof(*kept));
    if (!kept) {
        net->verdict = WEFT_ERR_MEMORY;
        return;
    }
    *kept = (news){.member = *member, .why = why};
    wfi_list_push_back(&net->early, &kept->link);
}

static void tell(wfi_net *net, const wfi_member *member, weft_status why, const char *text)
{
    if (member->rank < 0 || member->rank >= net->world_size)
        return;
    wfi_progress_lock(&net->progress);
    if (!net->open)
        keep_news(net, member, why);
    else if (!net->closing && member->rank != net->rank)
        take_news(net, member, why, text);
    wfi_progress_unlock(&net->progress);
}

static void on_joined(void *arg, const wfi_member *member)
{
    tell(arg, member, WEFT_OK, NULL);
}

static void on_died(void *arg, int rank, uint32_t incarnation, const char *why)
{
    wfi_member who = {.rank = rank, .incarnation = incarnation};
    tell(arg, &who, WEFT_ERR_PEER_DEAD, why);
}

static void on_left(void *arg, int rank, uint32_t incarnation)
{
    wfi_member who = {.rank = rank, .incarnation = incarnation};
    tell(arg, &who, WEFT_ERR_PEER_LEFT, "it closed its agent");
}

/*
 * It sent for us by way of the store. Whoever waited for the lock here would send no heartbeats meanwhile; what is not done now will
 * be asked for again.
 */
static void on_dial(void *arg, int rank, uint32_t incarnation)
{
    wfi_net *net = arg;
    if (!wfi_mutex_trylock(&net->progress.lock))
        return;
    wfi_peer *peer = net->open ? wfi_net_peer(net, rank) : NULL;
    if (peer && !peer->status && peer->member.incarnation == incarnation)
        wfi_line_wanted(&peer->lines[WFI_CONTROL]);
    wfi_progress_unlock(&net->progress);
}

/* ---- About us, and the end ------------------------------------------------------------------------------------- */

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
    wfi_progress_lock(&net->progress);
    if (net->open && !net->closing)
        net->upcalls.probe(net->arg, round);
    wfi_progress_unlock(&net->progress);
}

static void on_terminated(void *arg)
{
    wfi_net *net = arg;
    wfi_progress_lock(&net->progress);
    if (net->open && !net->closing)
        net->upcalls.terminated(net->arg);
    wfi_progress_unlock(&net->progress);
}

const wfi_rendezvous_events *wfi_member_events(void)
{
    static const wfi_rendezvous_events events = {.joined = on_joined,
                                                 .died = on_died,
                                                 .left = on_left,
                                                 .dial = on_dial,
                                                 .evicted = on_evicted,
                                                 .store_lost = on_store_lost,
                                                 .probe = on_probe,
                                                 .terminated = on_terminated};
    return &events;
}

void wfi_member_catch_up(wfi_net *net)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&net->early))) {
        news *kept = wfi_container_of(node, news, link);
        if (kept->member.rank != net->rank)
            take_news(net, &kept->member, kept->why, "it went while this worker was joining");
        free(kept);
    }
    if (net->verdict)
        self_gone(net, net->verdict, "it happened while this worker was joining");
}

void wfi_member_forget(wfi_net *net)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&net->early)))
        free(wfi_container_of(node, news, link));
}
