/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detector.c - whether a peer that somebody needs can be reached: silence, signs of life, and giving up for now.
 *
 * A peer is needed while messages or transfers for it are not through, or somebody waits for its answer. Then a timer looks
 * twice within the bound of detection. Messages that nobody acknowledges for half the bound: the store is asked to look; for all
 * of it: the lane is opened anew. Nothing on its way, and nothing heard for the bound: a ping, which its net acknowledges, so
 * that a cut is noticed by who only waits. No lane to send on for the bound: the store is asked to look, and asks the peer to dial
 * us (channel.c).
 *
 * UNREACHABLE. Death is the store's to declare. But a link may be cut between two workers who both reach the store: no
 * verdict comes. So after WFI_REACH_BOUNDS bounds without a sign what waits for the peer fails, and whoever comes later has
 * as long again. Nothing is forgotten: messages stay in their order (whether those that left have arrived is not known),
 * and the lane is tried on and on, which needs no agreement of the two. Where the bound is switched off nobody is given up.
 * Time in which we ourselves did not run counts for nobody.
 *
 * NO BULK LANE. A peer that answers on the control lane may still be one to whom no bulk lane can be had, from either side
 * (channel.c): large payloads would wait for ever. After a quarter of the bound the peer is asked to dial us; transfers that have
 * waited for all of it, while the peer answered pings, end with WEFT_ERR_UNREACHABLE. Messages go on, and the attempts with the
 * next transfer.
 */
#include "net/net_internal.h"

#include <stdio.h>

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t elapsed(const wfi_peer *peer, uint64_t since)
{
    uint64_t now = peer->net->progress.now_ns;
    return now > since ? now - since : 0;
}

static bool is_needed(const wfi_peer *peer)
{
    return peer->awaited > 0 || wfi_peer_has_to_send(peer) || !wfi_list_empty(&peer->works);
}

void wfi_peer_await(wfi_peer *peer, int change)
{
    wfi_assert_held(&peer->net->progress.lock);
    peer->awaited += change;
    if (peer->awaited > 0)
        wfi_reach_watch(peer);
}

bool wfi_peer_is_unreachable(const wfi_peer *peer)
{
    return peer->unreachable;
}

/* The lanes themselves are tried on: line_needed goes by what is to be sent. */
static void give_up(wfi_peer *peer, uint64_t silent)
{
    wfi_net *net = peer->net;
    wfi_conn *bulk = wfi_line_up(&peer->lines[WFI_BULK]);
    char text[128];
    snprintf(text, sizeof(text), "no sign of it for %llu ms, though the store has not declared it dead",
             (unsigned long long)(silent / 1000000));
    if (!peer->unreachable) /* once, until it is heard again */
        wfi_log_net(net, WEFT_LOG_WARN, "worker %d cannot be reached: %s", peer->rank, text);
    peer->unreachable = true;
    peer->needed_ns = net->progress.now_ns;
    if (bulk)
        wfi_line_broken(bulk); /* or its chunks would be under way for ever */
    wfi_works_fail(peer, WEFT_ERR_UNREACHABLE);
    if (net->upcalls.peer_unreachable)
        net->upcalls.peer_unreachable(net->arg, peer, text);
}

/* By then, if not sooner. */
static void look_again(wfi_peer *peer, uint64_t after)
{
    uint64_t due_ns = wfi_progress_now(&peer->net->progress) + after;
    if (!peer->silence.heap_index || due_ns < peer->silence.deadline_ns)
        (void)wfi_timer_set(&peer->net->progress, &peer->silence, due_ns); /* reserved */
}

/* ---- Signs of life --------------------------------------------------------------------------------------------- */

/* Twice within the bound is enough: the store does not end a suspicion before that. */
void wfi_peer_suspect(wfi_peer *peer, const char *why)
{
    wfi_net *net = peer->net;
    uint64_t now = wfi_progress_now(&net->progress),
             pause = net->death_timeout_ms < 0 ? 0 : (uint64_t)net->death_timeout_ms * 500000;
    if (peer->suspected_ns && now - peer->suspected_ns < pause)
        return;
    peer->suspected_ns = now;
    if (!peer->status && net->open && !net->closing)
        wfi_rendezvous_suspect(net->rendezvous, peer->rank, peer->member.incarnation, why);
}

void wfi_note_ping(wfi_peer *peer)
{
    if (peer->ping.out)
        return;
    peer->pinged_ns = wfi_progress_now(&peer->net->progress);
    wfi_note_send(&peer->ping, WFI_NOTE_PING, 0);
}

/* It took long to answer: it stood still, or the link was cut, so that no lane could open. That counts for nobody. */
void wfi_reach_pinged(wfi_peer *peer)
{
    wfi_net *net = peer->net;
    if (net->death_timeout_ms >= 0 && elapsed(peer, peer->pinged_ns) >= wfi_reach_bound_ns(net) / 4)
        peer->stuck_ns = wfi_progress_now(&net->progress);
}

/* ---- No bulk lane ------------------------------------------------------------------------------------------------ */

static bool is_stuck(const wfi_peer *peer)
{
    return !wfi_list_empty(&peer->works) && !wfi_line_up(&peer->lines[WFI_BULK]);
}

void wfi_reach_stuck(wfi_peer *peer)
{
    wfi_reach_watch(peer);
    if (peer->silence.heap_index && is_stuck(peer))
        look_again(peer, wfi_reach_bound_ns(peer->net) / 4);
}

void wfi_peer_bulk_trouble(const wfi_peer *peer, char *out, size_t room)
{
    char address[128];
    const wfi_net *net = peer->net;
    const char *why = peer->lines[WFI_BULK].why;
    net->ops->address_text(peer->member.address, peer->member.address_size, address, sizeof(address));
    if (peer->unreachable)
        snprintf(out, room, "no sign of worker %d at %s", peer->rank, address);
    else
        snprintf(out, room, "no bulk lane to worker %d at %s, from either side: %s", peer->rank, address,
                 why ? why : "it broke");
}

static void give_up_bulk(wfi_peer *peer)
{
    char text[256];
    wfi_line *line = &peer->lines[WFI_BULK];
    /* Whoever comes next begins anew: this attempt may have been lost in what is healed by then. */
    if (line->conn) {
        wfi_conn_close(line->conn);
        line->why = "the connection was not answered";
    }
    line->failures = 0;
    wfi_peer_bulk_trouble(peer, text, sizeof(text));
    wfi_log_net(peer->net, WEFT_LOG_WARN, "%s; what waits for one fails", text);
    wfi_works_fail(peer, WEFT_ERR_UNREACHABLE);
}

/* Transfers wait and there is no lane. */
static void look_at_bulk(wfi_peer *peer)
{
    wfi_line *line = &peer->lines[WFI_BULK];
    uint64_t bound = wfi_reach_bound_ns(peer->net), stuck = elapsed(peer, peer->stuck_ns);
    bool has_tried = line->conn || line->why, is_heard = !peer->ping.out;
    if (stuck >= bound && has_tried && is_heard) {
        give_up_bulk(peer);
        return;
    }
    wfi_note_ping(peer);
    if (stuck >= bound / 4)
        wfi_line_ask(line);
    look_again(peer, stuck < bound && bound - stuck < bound / 4 ? bound - stuck : bound / 4);
}

/* ---- Silence ----------------------------------------------------------------------------------------------------- */

/* Messages that left are not acknowledged. */
static void look_at_silence(wfi_peer *peer)
{
    wfi_net *net = peer->net;
    uint64_t silent = elapsed(peer, later(peer->heard_ns, peer->waiting_ns)), half = wfi_reach_bound_ns(net) / 2;
    if (silent < half) {
        look_again(peer, half - silent);
        return;
    }
    wfi_peer_suspect(peer, "it does not answer");
    wfi_conn *conn = wfi_line_up(&peer->lines[WFI_CONTROL]), *bulk = wfi_line_up(&peer->lines[WFI_BULK]);
    if (silent < wfi_reach_bound_ns(net) || !conn)
        return;
    peer->waiting_ns = net->progress.now_ns;
    wfi_line_broken(conn);
    if (bulk && bulk->chunk_count) /* the same road: the kernel may wait for much longer until it tries again */
        wfi_line_broken(bulk);
}

void wfi_peer_silence(wfi_timer *timer)
{
    wfi_peer *peer = wfi_container_of(timer, wfi_peer, silence);
    wfi_net *net = peer->net;
    if (!is_needed(peer))
        return;
    uint64_t late = net->progress.now_ns - timer->deadline_ns, half = wfi_reach_bound_ns(net) / 2;
    if (late > half) /* we were stopped, or got no processor: we did not listen */
        peer->needed_ns = peer->waiting_ns = net->progress.now_ns;
    peer->stuck_ns += late;
    look_again(peer, half); /* first: what follows may need it anew */
    if (is_stuck(peer))
        look_at_bulk(peer);
    uint64_t unheard = elapsed(peer, later(peer->heard_ns, peer->needed_ns));
    if (unheard >= WFI_REACH_BOUNDS * wfi_reach_bound_ns(net))
        give_up(peer, unheard);
    else if (!wfi_list_empty(&peer->sent))
        look_at_silence(peer);
    else if (unheard >= wfi_reach_bound_ns(net) && !wfi_peer_has_to_send(peer))
        wfi_note_ping(peer);
    else if (unheard >= wfi_reach_bound_ns(net) && !wfi_line_up(&peer->lines[WFI_CONTROL]))
        wfi_peer_suspect(peer, "no connection to it opens");
}

/* ---- Leaning --------------------------------------------------------------------------------------------------- */

#define LEAN_LOOKS 8 /* within the bound */

static void look_at_leaners_soon(wfi_net *net)
{
    uint64_t look_ns = (uint64_t)net->death_timeout_ms * 1000000 / LEAN_LOOKS;
    if (!net->lean_timer.heap_index)
        (void)wfi_timer_set(&net->progress, &net->lean_timer, wfi_now(net->progress.clock) + look_ns);
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
    wfi_assert_held(&net->progress.lock);
    peer->leaning += change;
    if ((peer->leaning > 0) == peer->needed || peer->status || net->closing || net->death_timeout_ms < 0)
        return;
    if (wfi_list_empty(&peer->lean_link))
        wfi_list_push_back(&net->leaners, &peer->lean_link);
    look_at_leaners_soon(net);
}
