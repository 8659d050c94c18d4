/* SPDX-License-Identifier: Apache-2.0 */
/* peer.c - the table of peers, who holds one that is out of it, what of a peer is acknowledged, and its end. */
#include "base/alloc.h"
#include "base/guarded.h"
#include "net/net_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PEER_TIMERS 4 /* two lines', acknowledgement, silence */

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
    wfi_assert_held(&peer->net->lock);
    peer->holds++;
    return peer;
}

/* Its end took along all that was under way with it (wfi_peer_fail), and nothing has begun since: it has a status. */
void wfi_peer_unref(wfi_peer *peer)
{
    if (!peer)
        return;
    wfi_net *net = peer->net;
    wfi_assert_held(&net->lock);
    if (--peer->holds)
        return;
    assert(peer->status && !wfi_peer_has_to_send(peer) && wfi_list_empty(&peer->works) &&
           wfi_list_empty(&peer->exposed));
    wfi_list_remove(&peer->link);
    wfi_timers_release(net, PEER_TIMERS);
    peer_free(peer);
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
    wfi_assert_held(&net->lock);
    wfi_peer *peer = wfi_calloc(1, sizeof(*peer));
    if (!peer || wfi_timers_reserve(net, PEER_TIMERS)) {
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

wfi_peer *wfi_net_peer(wfi_net *net, int rank)
{
    wfi_assert_held(&net->lock);
    return rank < 0 || rank >= net->world_size || rank == net->rank ? NULL : net->peers[rank];
}

weft_status wfi_net_former_status(const wfi_net *net, int rank, uint32_t incarnation)
{
    wfi_assert_held(&net->lock);
    const wfi_peer *peer = net->peers[rank];
    for (size_t i = 0; peer && i < WFI_LEFT_MAX; i++)
        if (peer->left[i] == incarnation)
            return WEFT_ERR_PEER_LEFT;
    return WEFT_ERR_PEER_DEAD;
}

bool wfi_net_is_flushed(const wfi_net *net)
{
    for (const wfi_list *link = net->known.next; link != &net->known; link = link->next) {
        const wfi_peer *peer = wfi_container_of(link, const wfi_peer, link);
        bool is_empty = wfi_list_empty(&peer->urgent) && wfi_list_empty(&peer->queued) && wfi_list_empty(&peer->sent) &&
                        wfi_list_empty(&peer->works);
        if (!peer->status && !peer->unreachable && !is_empty)
            return false;
    }
    return true;
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

/* ---- Acknowledgement ------------------------------------------------------------------------------------------- */

static void finish_message(wfi_peer *peer, wfi_message *message, weft_status status)
{
    wfi_list_remove(&message->link);
    peer->kept_bytes -= wfi_message_weight(message);
    message->net.state = status;
    wfi_list_push_back(&peer->net->done_messages, &message->link);
}

void wfi_peer_acknowledge(wfi_peer *peer, uint64_t position)
{
    peer->acknowledged = position;
    while (!wfi_list_empty(&peer->sent)) {
        wfi_message *message = wfi_container_of(peer->sent.next, wfi_message, link);
        if (message->net.sequence > position)
            break;
        if (peer->resend == &message->link)
            peer->resend = message->link.next;
        finish_message(peer, message, WEFT_OK);
    }
}

/* ---- Trouble and end ------------------------------------------------------------------------------------------- */

/* Twice within the bound is enough: the store does not end a suspicion before that. */
void wfi_peer_suspect(wfi_peer *peer, const char *why)
{
    wfi_net *net = peer->net;
    uint64_t now = wfi_net_now(net), pause = net->death_timeout_ms < 0 ? 0 : (uint64_t)net->death_timeout_ms * 500000;
    if (peer->suspected_ns && now - peer->suspected_ns < pause)
        return;
    peer->suspected_ns = now;
    if (!peer->status && net->open && !net->closing)
        wfi_rendezvous_suspect(net->rendezvous, peer->rank, peer->member.incarnation, why);
}

void wfi_peer_nonsense(wfi_conn *conn, const char *what)
{
    wfi_peer *peer = conn->line->peer;
    wfi_net_refused(peer->net, "peer %d: %s; its lane is closed", peer->rank, what);
    if (++peer->nonsense >= WFI_NONSENSE_MAX)
        wfi_peer_suspect(peer, what);
    wfi_line_broken(conn);
}

static void fail_all(wfi_peer *peer, wfi_list *messages, weft_status why)
{
    while (!wfi_list_empty(messages))
        finish_message(peer, wfi_container_of(messages->next, wfi_message, link), why);
}

void wfi_peer_fail_queued(wfi_peer *peer, weft_status why)
{
    for (wfi_list *link = peer->queued.next, *next; link != &peer->queued; link = next) {
        wfi_message *message = wfi_container_of(link, wfi_message, link);
        next = link->next;
        if (!message->lasts)
            finish_message(peer, message, why);
    }
}

void wfi_peer_fail(wfi_peer *peer, weft_status why)
{
    wfi_net *net = peer->net;
    wfi_assert_held(&net->lock);
    if (!peer->status)
        peer->status = why;
    for (int kind = 0; kind < WFI_LANE_KINDS; kind++) {
        wfi_line *line = &peer->lines[kind];
        if (line->conn)
            wfi_conn_close(line->conn);
        wfi_net_timer_clear(net, &line->timer);
        wfi_list_remove(&line->turn);
    }
    wfi_net_timer_clear(net, &peer->ack);
    wfi_net_timer_clear(net, &peer->silence);
    wfi_list_remove(&peer->lean_link);
    peer->owes_ack = false;
    fail_all(peer, &peer->sent, why);
    fail_all(peer, &peer->urgent, why);
    fail_all(peer, &peer->queued, why);
    peer->resend = &peer->sent;
    wfi_works_fail(peer, why);
    wfi_exposed_end_all(peer);
}

size_t wfi_peer_kept_bytes(const wfi_peer *peer)
{
    return peer->kept_bytes;
}

void wfi_peer_keep(wfi_peer *peer, int64_t bytes)
{
    wfi_assert_held(&peer->net->lock);
    peer->kept_bytes += (size_t)bytes;
}

uint32_t wfi_peer_incarnation(const wfi_peer *peer)
{
    return peer->member.incarnation;
}

/* ---- Leaning --------------------------------------------------------------------------------------------------- */

#define LEAN_LOOKS 8 /* within the bound */

static void look_at_leaners_soon(wfi_net *net)
{
    uint64_t look_ns = (uint64_t)net->death_timeout_ms * 1000000 / LEAN_LOOKS;
    if (!net->lean_timer.heap_index)
        (void)wfi_net_timer_set(net, &net->lean_timer, wfi_now(net->clock) + look_ns);
}

/* False: it could not be told for want of memory. */
static bool tell_need(wfi_peer *peer)
{
    bool needed = peer->leaning > 0;
    if (needed != peer->needed &&
        !wfi_rendezvous_need(peer->net->rendezvous, peer->rank, peer->member.incarnation, needed))
        return false;
    peer->needed = needed;
    return true;
}

void wfi_lean_due(wfi_timer *timer)
{
    wfi_net *net = wfi_container_of(timer, wfi_net, lean_timer);
    while (!wfi_list_empty(&net->leaners)) {
        wfi_peer *peer = wfi_container_of(net->leaners.next, wfi_peer, lean_link);
        if (!tell_need(peer)) {
            look_at_leaners_soon(net);
            return;
        }
        wfi_list_remove(&peer->lean_link);
    }
}

/*
 * Calls come and go faster than the store should hear of them: a peer whose sum has left what the store believes is put on
 * a list, and looked at when the timer fires, once for the whole list. Nothing changes, nothing fires.
 */
void wfi_peer_lean(wfi_peer *peer, int change)
{
    wfi_net *net = peer->net;
    wfi_assert_held(&net->lock);
    peer->leaning += change;
    if ((peer->leaning > 0) == peer->needed || peer->status || net->closing || net->death_timeout_ms < 0)
        return;
    if (wfi_list_empty(&peer->lean_link))
        wfi_list_push_back(&net->leaners, &peer->lean_link);
    look_at_leaners_soon(net);
}

const char *wfi_net_interface(const wfi_net *net)
{
    return net->ops->iface(net->fabric);
}
