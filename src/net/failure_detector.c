/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failure_detector.c - detects peers that cannot be reached: silence, pings, and failing what waits for them.
 *
 * A peer is needed while messages or transfers for it are unfinished, or a call waits for its answer. Then a timer
 * fires twice in a bound (death_timeout_ms):
 *
 *   condition                                      for          action
 *   sent messages are not acknowledged             half a bound sends a suspicion to the store
 *                                                  a bound      breaks the connection, so that a new one is opened
 *   nothing is in flight, and nothing was heard    a bound      sends a ping, which the peer's net acknowledges
 *   messages wait, and no connection opens         a bound      sends a suspicion; the store also tells the peer to
 *                                                               dial this worker
 *
 * UNREACHABLE. Only the store declares deaths. If the network is cut between two workers that both reach the store, it
 * declares none. So after WFI_REACH_BOUNDS bounds of silence everything that waits for the peer fails; operations
 * started later may wait as long again. Messages stay queued in their order, because it is unknown whether those sent
 * have arrived, and attempts to connect continue. So neither side needs to know that the other gave up. If
 * death_timeout_ms is switched off, no peer is given up. Time in which this process did not run is not counted.
 *
 * NO COMMON FABRIC. A peer whose addresses are all of fabrics that this worker has not opened is given up at once: its
 * addresses never change.
 *
 * NO FABRIC FOR BULK. If reads work on no fabric of a peer (choice.c), transfers end at once with WEFT_ERR_UNREACHABLE.
 *
 * NO BULK CONNECTION. A peer may answer on the control channel while neither side can connect the bulk channel
 * (channel.c). Large payloads would then wait forever. After a quarter of the bound the peer is asked to dial this
 * worker. Transfers that have waited for a whole bound, in which the peer answered pings, end with
 * WEFT_ERR_UNREACHABLE. If a fabric was not tried in that time, they wait for up to WFI_REACH_BOUNDS bounds. Messages
 * are still sent; the next transfer tries to connect again.
 *
 * STALLED BULK CONNECTION. With several fabrics, a fabric may be cut that only the bulk connection uses. If no chunk is
 * done for a bound, and the peer answers a ping on the control channel in that time, the bulk connection is broken. So
 * the transfers continue on another fabric.
 */
#include "net/net.h"

#include <ctype.h>
#include <stdio.h>

#define SLOW_MOST 6 /* doublings of a bound */

static uint64_t later_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static wfi_whole_peer *whole_of(const wfi_peer *peer)
{
    return wfi_container_of(peer, wfi_whole_peer, peer);
}

static uint64_t time_since(const wfi_peer *peer, uint64_t since)
{
    uint64_t now = peer->transport->progress->now_ns;
    return now > since ? now - since : 0;
}

/* Which settings decide whether a connection to the address opens; "" if it is no IP address. */
static const char *hint_of(const char *address)
{
    bool is_ip = *address == '[' || isdigit((unsigned char)*address);
    return is_ip ? "; if a firewall drops or rejects it, open the port (WEFT_PORTS sets the ports, WEFT_IFACE the "
                   "network)"
                 : "";
}

/* Prints "; the last attempt to connect to 10.0.0.2:4711: Connection refused" and what to do; "" if no attempt failed
 * since the last connection. */
static void put_connect_error(const wfi_channel *channel, char *out, size_t room)
{
    char address[128];
    const char *why = channel->why ? channel->why : channel->conn && !channel->conn->up ? "no answer yet" : NULL;
    *out = '\0';
    if (!why)
        return;
    wfi_channel_address_text(channel, address, sizeof(address));
    snprintf(out, room, "; the last attempt to connect to %s: %s%s", address, why, hint_of(address));
}

void wfi_peer_control_problem(const wfi_peer *peer, char *out, size_t room)
{
    put_connect_error(peer->channels[WFI_CONTROL], out, room);
}

/* Attempts to connect continue: channel_needed checks only whether there is something to send. */
static void give_up_peer(wfi_peer *peer, const char *text)
{
    wfi_transport *transport = peer->transport;
    wfi_conn *bulk = wfi_channel_up(peer->channels[WFI_BULK]);
    if (!peer->unreachable) /* once, until it is heard again */
        wfi_log_net(transport, WEFT_LOG_WARN, "worker %d cannot be reached: %s", peer->rank, text);
    peer->unreachable = true;
    peer->needed_ns = transport->progress->now_ns;
    if (bulk)
        wfi_channel_broken(bulk); /* otherwise its chunks would stay in flight forever */
    wfi_transfers_fail(wfi_peer_bulk(peer), WEFT_ERR_UNREACHABLE);
    WFI_FOR_CLIENTS (client, transport, peer_unreachable)
        client->upcalls->peer_unreachable(client->arg, peer, text);
}

static void give_up_silent(wfi_peer *peer, uint64_t silent)
{
    char text[512];
    size_t length =
        (size_t)snprintf(text, sizeof(text), "no sign of it for %llu ms, though the store has not declared it dead",
                         (unsigned long long)(silent / 1000000));
    put_connect_error(peer->channels[WFI_CONTROL], text + length, sizeof(text) - length);
    give_up_peer(peer, text);
}

/* ---- Suspicions and pings -------------------------------------------------------------------------------------- */

/* Sends a suspicion to the store, at most twice in a bound: the store keeps a suspicion for at least half a bound. */
void wfi_peer_suspect(wfi_peer *peer, const char *why)
{
    wfi_net *net = wfi_net_of(peer);
    wfi_whole_peer *whole = whole_of(peer);
    int64_t bound_ms = net->transport.death_timeout_ms;
    uint64_t now = wfi_progress_now(&net->progress), pause = bound_ms < 0 ? 0 : wfi_ns_of_ms(bound_ms) / 2;
    if (whole->suspected_ns && now - whole->suspected_ns < pause)
        return;
    whole->suspected_ns = now;
    if (!peer->status && net->open && !net->transport.closing)
        wfi_rendezvous_suspect(net->rendezvous, peer->rank, peer->member.incarnation, why);
}

void wfi_peer_ping(wfi_peer *peer)
{
    wfi_whole_peer *whole = whole_of(peer);
    if (whole->ping.out)
        return;
    whole->pinged_ns = wfi_progress_now(peer->transport->progress);
    wfi_control_message_send(&whole->ping, WFI_CONTROL_PING, 0);
}

/* A late answer means that the peer was stopped or the network was cut. No connection could open in that time, so the
 * time is not counted. */
static void ping_arrived(wfi_control_message *own)
{
    wfi_whole_peer *whole = wfi_container_of(own, wfi_whole_peer, ping);
    const wfi_transport *transport = whole->peer.transport;
    if (transport->death_timeout_ms >= 0 &&
        time_since(&whole->peer, whole->pinged_ns) >= wfi_transport_bound_ns(transport) / 4)
        whole->bulk.stuck_ns = wfi_progress_now(transport->progress);
}

static void take_ping(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    (void)arg, (void)from, (void)type, (void)bytes, (void)size; /* the acknowledgement of the message is the answer */
}

const wfi_upcalls wfi_detector_upcalls = {.message = take_ping};

/* ---- No bulk connection ------------------------------------------------------------------------------------------ */

void wfi_peer_bulk_problem(const wfi_peer *peer, char *out, size_t room)
{
    char address[128];
    const wfi_channel *channel = peer->channels[WFI_BULK];
    const char *why = channel->why;
    if (peer->status) {
        snprintf(out, room, "%s", peer->gone_text ? peer->gone_text : "");
        return;
    }
    if (!wfi_channel_choose(channel)) {
        char reason[256];
        (void)wfi_channel_fabric(channel, reason, sizeof(reason));
        if (wfi_peer_has_fabric(peer))
            snprintf(out, room, "no bulk lane to worker %d; add tcp to WEFT_FABRIC: %s", peer->rank, reason);
        else
            snprintf(out, room, "no bulk lane to worker %d: %s", peer->rank, WFI_NO_FABRIC);
        return;
    }
    wfi_channel_address_text(channel, address, sizeof(address));
    if (peer->unreachable)
        snprintf(out, room, "no sign of worker %d at %s", peer->rank, address);
    else
        snprintf(out, room, "no bulk lane to worker %d at %s, from either side: %s%s", peer->rank, address,
                 why ? why : "it broke", why ? hint_of(address) : "");
}

void wfi_transfer_problem(const wfi_transfer *transfer, const wfi_peer *peer, weft_status status, char *out,
                          size_t room)
{
    const int me = peer->transport->rank;
    *out = '\0';
    if (transfer && transfer->is_spoilt)
        snprintf(out, room, "its memory on rank %d cannot be %s: " WFI_INACCESSIBLE,
                 transfer->is_bad_here ? me : peer->rank,
                 (transfer->kind == WFI_PULL) != transfer->is_bad_here ? "read" : "written");
    else if (status == WEFT_ERR_UNREACHABLE || status == peer->status)
        wfi_peer_bulk_problem(peer, out, room);
    else if (status == WEFT_ERR_SYSTEM)
        snprintf(out, room, "worker %d has no descriptors left for a connection (ulimit -n there)", me);
}

static void give_up_bulk(wfi_peer *peer)
{
    char text[384];
    wfi_channel *channel = peer->channels[WFI_BULK];
    /* The next transfer tries again: this attempt's packets may have been lost in a cut that has ended since. */
    if (channel->conn) {
        wfi_channel_close(channel);
        channel->why = "the connection was not answered";
    }
    channel->failures = 0;
    wfi_peer_bulk_problem(peer, text, sizeof(text));
    wfi_log_net(peer->transport, WEFT_LOG_WARN, "%s; transfers that wait for one fail", text);
    wfi_transfers_fail(wfi_peer_bulk(peer), WEFT_ERR_UNREACHABLE);
}

/* Called while transfers wait and the bulk channel has no connection. */
static void check_bulk(wfi_peer *peer)
{
    wfi_channel *channel = peer->channels[WFI_BULK];
    uint64_t bound = wfi_transport_bound_ns(peer->transport), stuck = time_since(peer, whole_of(peer)->bulk.stuck_ns);
    bool has_tried = channel->conn || channel->why, is_heard = !whole_of(peer)->ping.out;
    bool has_tried_all = wfi_channel_has_tried(channel, whole_of(peer)->bulk.stuck_ns);
    if (!wfi_channel_choose(channel)) { /* reads work on none */
        give_up_bulk(peer);
        return;
    }
    if (has_tried && is_heard && stuck >= bound * (has_tried_all ? 1 : WFI_REACH_BOUNDS)) {
        give_up_bulk(peer);
        return;
    }
    wfi_peer_ping(peer);
    if (stuck >= bound / 4)
        wfi_channel_ask(channel);
    wfi_peer_check_within(peer, stuck < bound && bound - stuck < bound / 4 ? bound - stuck : bound / 4);
}

/* Called while transfers have a bulk connection. `late`: time in which this process did not run. */
static void check_stall(wfi_peer *peer, uint64_t late)
{
    const wfi_whole_peer *whole = whole_of(peer);
    wfi_conn *conn = wfi_channel_up(peer->channels[WFI_BULK]);
    wfi_window *window = wfi_conn_window(conn);
    uint64_t bound = wfi_transport_bound_ns(peer->transport);
    if (!window->chunk_count)
        return;
    window->moved_ns += late;
    uint64_t stalled = time_since(peer, window->moved_ns);
    bool has_answered = !whole->ping.out && whole->pinged_ns > window->moved_ns;
    if (stalled >= bound && has_answered && peer->transport->fabric_count > 1) {
        wfi_channel_silent(conn);
        wfi_channel_broken(conn);
    } else if (stalled >= bound / 2 && has_answered) {
        wfi_transfers_doubt(conn);
    } else if (stalled >= bound / 2) {
        wfi_peer_ping(peer);
    }
}

/* ---- Silence ----------------------------------------------------------------------------------------------------- */

/* Called while sent messages are not acknowledged. */
static void check_silence(wfi_peer *peer)
{
    wfi_control *control = wfi_peer_control(peer);
    uint64_t silent = time_since(peer, later_of(peer->received_ns, control->waiting_ns)),
             bound = wfi_transport_bound_ns(peer->transport), half = bound / 2;
    bool may_be_slow = control->large_bytes || control->announced == WFI_LARGE; /* message/long.c: A SLOW LINK */
    if (may_be_slow)
        bound <<= control->slow < SLOW_MOST ? control->slow : SLOW_MOST;
    if (silent < half) {
        wfi_peer_check_within(peer, half - silent);
        return;
    }
    wfi_peer_suspect(peer, "it does not answer");
    wfi_conn *conn = wfi_channel_up(peer->channels[WFI_CONTROL]), *bulk = wfi_channel_up(peer->channels[WFI_BULK]);
    if (silent < bound || !conn)
        return;
    control->waiting_ns = peer->transport->progress->now_ns;
    control->slow += may_be_slow;
    wfi_channel_silent(conn);
    wfi_channel_broken(conn);
    if (bulk && wfi_conn_window(bulk)->chunk_count) { /* it uses the same path, where the kernel may retry much later */
        wfi_channel_silent(bulk);
        wfi_channel_broken(bulk);
    }
}

/* Checks the peer. The head of this file has the cases. */
static void silence_due(wfi_timer *timer)
{
    wfi_peer *peer = wfi_container_of(timer, wfi_peer, silence);
    wfi_whole_peer *whole = whole_of(peer);
    bool is_needed = whole->awaited > 0 || wfi_peer_has_to_send(peer) || !wfi_list_empty(&whole->bulk.transfers);
    if (!is_needed)
        return;
    if (!wfi_peer_has_fabric(peer)) {
        give_up_peer(peer, WFI_NO_FABRIC);
        return;
    }
    uint64_t now = peer->transport->progress->now_ns, late = now - timer->deadline_ns;
    uint64_t bound = wfi_transport_bound_ns(peer->transport);
    if (late > bound / 2) /* this process was stopped or had no CPU time */
        peer->needed_ns = whole->control.waiting_ns = now;
    whole->bulk.stuck_ns += late;
    wfi_peer_check_within(peer, bound / 2); /* first: the code below may set it to an earlier time */
    if (wfi_bulk_is_stuck(&whole->bulk))
        check_bulk(peer);
    else if (wfi_channel_up(peer->channels[WFI_BULK]))
        check_stall(peer, late);
    uint64_t silence = time_since(peer, later_of(peer->received_ns, peer->needed_ns));
    if (silence >= WFI_REACH_BOUNDS * bound)
        give_up_silent(peer, silence);
    else if (!wfi_list_empty(&whole->control.sent))
        check_silence(peer);
    else if (silence >= bound && !wfi_peer_has_to_send(peer))
        wfi_peer_ping(peer);
    else if (silence >= bound && !wfi_channel_up(peer->channels[WFI_CONTROL]))
        wfi_peer_suspect(peer, "no connection to it opens");
}

/* ---- Interest -------------------------------------------------------------------------------------------------- */

#define INTEREST_CHECKS 8 /* in a bound */

static void announce_interest_soon(wfi_net *net)
{
    uint64_t interval_ns = wfi_transport_bound_ns(&net->transport) / INTEREST_CHECKS;
    if (!net->interest_timer.heap_index)
        (void)wfi_timer_set(&net->progress, &net->interest_timer, wfi_now(net->progress.clock) + interval_ns);
}

void wfi_interest_due(wfi_timer *timer)
{
    wfi_net *net = wfi_container_of(timer, wfi_net, interest_timer);
    while (!wfi_list_empty(&net->interest_changed)) {
        wfi_whole_peer *whole = wfi_container_of(net->interest_changed.next, wfi_whole_peer, interest_link);
        const wfi_peer *peer = &whole->peer;
        bool interested = whole->interest > 0;
        if (interested != whole->interest_announced &&
            !wfi_rendezvous_interest(net->rendezvous, peer->rank, peer->member.incarnation, interested)) {
            announce_interest_soon(net); /* there was no memory for it */
            return;
        }
        whole->interest_announced = interested;
        wfi_list_remove(&whole->interest_link);
    }
}

/*
 * Calls begin and end too often for a message to the store each time. So a peer whose `interest` no longer agrees
 * with `interest_announced` is put into a list, and one timer sends the changes of the whole list. If nothing has
 * changed, no timer is set.
 */
void wfi_peer_interest(wfi_peer *peer, int change)
{
    wfi_net *net = wfi_net_of(peer);
    wfi_whole_peer *whole = whole_of(peer);
    wfi_assert_held(&net->progress.lock);
    whole->interest += change;
    if ((whole->interest > 0) == whole->interest_announced || peer->status || net->transport.closing ||
        net->transport.death_timeout_ms < 0)
        return;
    if (wfi_list_empty(&whole->interest_link))
        wfi_list_push_back(&net->interest_changed, &whole->interest_link);
    announce_interest_soon(net);
}

void wfi_peer_depend(wfi_peer *peer, int change, size_t bytes)
{
    wfi_whole_peer *whole = whole_of(peer);
    wfi_peer_interest(peer, change);
    whole->awaited += change;
    if (whole->awaited > 0)
        wfi_peer_watch(peer);
    if (change > 0)
        whole->control.kept_bytes += bytes;
    else
        wfi_control_release(&whole->control, bytes);
}

/* ---- Setting up and ending ------------------------------------------------------------------------------------- */

void wfi_detector_init(wfi_whole_peer *whole)
{
    whole->peer.silence = (wfi_timer){.fire = silence_due, .reserved = true};
    wfi_list_init(&whole->interest_link);
    wfi_control_message_init(&whole->ping, &whole->peer, ping_arrived);
}

void wfi_detector_fail(wfi_whole_peer *whole)
{
    wfi_timer_clear(whole->peer.transport->progress, &whole->peer.silence);
    wfi_list_remove(&whole->interest_link);
}
