/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.c - connects channels, and connects them again after a connection broke.
 *
 * Attempts are numbered per channel (`generation`). The rules below give the same result on both sides, even if the two
 * see the events in different orders:
 *   - If two attempts cross, the one with the higher generation stays; if these are equal, that of the lower rank.
 *   - A request that is not newer than the open connection is late, and is refused.
 *   - A request that is newer than the open connection replaces it: the peer has lost that connection.
 *
 * CROSSING ATTEMPTS. If crossing attempts are on different fabrics, the one that these rules select may be on a
 * fabric that delivers nothing. So the worker that made it also answers the other attempt (`crossing`). The first of
 * the two that is up stays, and the other is closed. If both fabrics work, the other worker applies the rules, and
 * closes the attempt that they do not select.
 *
 * ONE WAY. A firewall may let only one of two workers dial the other. If an attempt at a bulk connection fails, or
 * takes long (failure_detector.c), this worker sends the control message DIAL. The peer then tries to connect for
 * WANTED_NS, even if it needs no bulk connection itself. If the peer's attempt succeeds, this worker sends DIAL at the
 * beginning of each later attempt. For a control connection the store passes the request on, because it receives the
 * suspicions of each worker (DIAL in job/protocol/protocol.h). If neither side can connect, failure_detector.c fails
 * the operations that wait.
 */
#include "net/channel/channel.h"

#define LIMIT_DOUBLINGS 3
#define ATTEMPTS_WITHIN_BOUND 8 /* attempts that fit into a death timeout: two on each of WFI_FABRICS_MAX fabrics */
#define BACKOFF_FIRST_NS UINT64_C(2000000)
#define BACKOFF_LAST_NS UINT64_C(500000000)
#define WANTED_NS UINT64_C(2000000000) /* a peer that still needs the channel asks again within this time */
#define ATTEMPTS_MAX 8                 /* attempts of this worker in progress at a time */
#define ATTEMPTS_AGAIN 4               /* the limit for starting an attempt of a channel that has failed before */
#define PROTOCOL_ERRORS_MAX 3          /* connections closed for malformed data before the peer is suspected */

static bool channel_needed(const wfi_channel *channel)
{
    const wfi_peer *peer = channel->peer;
    if (peer->status || peer->transport->closing)
        return false;
    return channel->ops->needed(channel) || channel->wanted_ns > wfi_progress_now(peer->transport->progress);
}

/*
 * The time limit of an attempt. With one fabric it doubles after each failure. With several it doubles when each fabric
 * had WFI_FAILURES_BEFORE failures. Without the doubling, many workers that connect at once on few cores would
 * repeatedly close connections that are about to be answered. With several fabrics, the first limits are short, so that
 * another fabric is tried before the operations that wait are given up (failure_detector.c).
 */
static uint64_t attempt_limit(const wfi_channel *channel)
{
    const wfi_transport *transport = channel->peer->transport;
    unsigned count = (unsigned)transport->fabric_count;
    unsigned rounds = channel->failures / (count < 2 ? 1 : count * WFI_FAILURES_BEFORE);
    uint64_t limit = WFI_CONNECT_LIMIT_NS << (rounds < LIMIT_DOUBLINGS ? rounds : LIMIT_DOUBLINGS);
    if (count < 2 || transport->death_timeout_ms < 0)
        return limit;
    uint64_t share = (wfi_transport_bound_ns(transport) / ATTEMPTS_WITHIN_BOUND) << (rounds < 16 ? rounds : 16);
    return share < limit ? share : limit;
}

static weft_status limit_attempt(wfi_channel *channel)
{
    wfi_progress *progress = channel->peer->transport->progress;
    return wfi_timer_set(progress, &channel->timer, wfi_now(progress->clock) + attempt_limit(channel));
}

static void channel_retry(wfi_channel *channel)
{
    wfi_transport *transport = channel->peer->transport;
    if (channel->conn) { /* the crossing one, of the peer, works */
        if (!channel->conn->up && !channel->timer.heap_index)
            (void)limit_attempt(channel);
        return;
    }
    if (!channel_needed(channel))
        return;
    uint64_t delay = 0;
    if (channel->failures) {
        unsigned doublings = channel->failures > 10 ? 10 : channel->failures - 1;
        delay = BACKOFF_FIRST_NS << doublings;
        delay = delay > BACKOFF_LAST_NS ? BACKOFF_LAST_NS : delay;
    }
    (void)wfi_timer_set(transport->progress, &channel->timer, wfi_now(transport->progress->clock) + delay);
}

void wfi_channel_failed(wfi_channel *channel, weft_status lack, const char *why)
{
    bool ours = lack == WEFT_ERR_SYSTEM || lack == WEFT_ERR_MEMORY;
    if (channel->tried) {
        wfi_channel_count_failure(channel, channel->tried, why);
        wfi_channel_count_lack(channel, channel->tried, ours);
    }
    channel->failures++;
    channel->why = why;
    channel->ask = true;
    if ((channel->failures & (channel->failures - 1)) == 0) /* the 1st, 2nd, 4th, ...: there may be very many */
        wfi_log_net(channel->peer->transport, WEFT_LOG_DEBUG, "no %s lane to peer %d, %u times in a row: %s",
                    channel->kind == WFI_BULK ? "bulk" : "control", channel->peer->rank, channel->failures, why);
    /* This worker repeatedly failed to request a connection: operations that have not begun fail. Messages that were
     * sent may have arrived, so they continue to wait. */
    if (ours && wfi_channel_lacks(channel))
        channel->ops->starved(channel, lack);
    /* Only if the channel is needed: otherwise two workers that cannot dial would ask each other to dial forever. */
    if (!ours && channel->failures >= 2 && channel->ops->needed(channel))
        channel->peer->transport->suspect(channel->peer, why);
    channel_retry(channel);
}

/* ---- Turns ----------------------------------------------------------------------------------------------------- */

/*
 * At most ATTEMPTS_MAX attempts are in progress. A channel that failed before starts one only while there are fewer
 * than ATTEMPTS_AGAIN. So peers that do not answer do not delay connections to others, and hundreds of workers can
 * connect to each other at once without overload.
 */
static void give_turns(wfi_transport *transport, wfi_list *turns, unsigned limit)
{
    while (transport->attempts < limit && !wfi_list_empty(turns)) {
        wfi_channel *channel = wfi_container_of(turns->next, wfi_channel, turn);
        wfi_list_remove(&channel->turn);
        wfi_channel_want(channel);
    }
}

void wfi_channel_turns_due(wfi_timer *timer)
{
    wfi_transport *transport = wfi_container_of(timer, wfi_transport, turn_timer);
    give_turns(transport, &transport->turns, ATTEMPTS_MAX);
    give_turns(transport, &transport->turns_again, ATTEMPTS_AGAIN);
}

/* ---- Attempts ---------------------------------------------------------------------------------------------------- */

weft_status wfi_channel_attach(wfi_conn *conn, weft_status status, const void *data, size_t size)
{
    wfi_channel *channel = conn->channel;
    if (!status)
        status = channel->ops->attach(conn); /* posts receives */
    if (!status)
        status = conn->fabric->ops->connect(conn->lane, data, size);
    if (!status && channel->conn == conn)
        status = limit_attempt(channel);
    if (status)
        wfi_conn_close(conn);
    return status;
}

void wfi_channel_want(wfi_channel *channel)
{
    wfi_peer *peer = channel->peer;
    wfi_transport *transport = peer->transport;
    if (channel->conn || channel->timer.heap_index || !channel_needed(channel))
        return;
    if (channel->ask && channel->ops->needed(channel))
        wfi_channel_ask(channel);
    if (transport->attempts >= (channel->failures ? ATTEMPTS_AGAIN : ATTEMPTS_MAX)) {
        if (wfi_list_empty(&channel->turn))
            wfi_list_push_back(channel->failures ? &transport->turns_again : &transport->turns, &channel->turn);
        return;
    }
    wfi_net_fabric *fabric = wfi_channel_choose(channel);
    channel->tried = fabric;
    if (!fabric) {
        wfi_channel_failed(channel, WEFT_ERR_UNREACHABLE, WFI_NO_FABRIC);
        (void)wfi_timer_set(transport->progress, &peer->silence, wfi_now(transport->progress->clock)); /* gives it up */
        return;
    }
    wfi_conn *conn = wfi_conn_create(channel, fabric, true, ++channel->generation);
    if (!conn) {
        wfi_channel_failed(channel, WEFT_ERR_MEMORY, "out of memory");
        return;
    }
    conn->attempt = true;
    transport->attempts++;
    channel->conn = conn;
    if (fabric->limits->open_blocks) {
        wfi_list_push_back(&fabric->dials, &conn->dial);
        atomic_store(&fabric->dials_due, true);
        wfi_events_wake(transport->progress);
        return;
    }
    const wfi_peer_address *to = &peer->addresses[wfi_net_fabric_index(fabric)];
    weft_status status =
        fabric->ops->lane_open(fabric->fabric, to->bytes, to->size, (void *)(uintptr_t)conn->id, &conn->lane);
    wfi_channel_dialled(conn, status);
}

void wfi_channel_dialled(wfi_conn *conn, weft_status status)
{
    wfi_channel *channel = conn->channel;
    wfi_net_fabric *fabric = conn->fabric;
    uint8_t data[WFI_CONNECT_DATA_MAX];
    size_t size = wfi_conn_hello(conn, data);
    status = wfi_channel_attach(conn, status, data, size);
    if (!status)
        return;
    const char *why = fabric->ops->connect_error(fabric->fabric);
    wfi_channel_failed(channel, status, why ? why : weft_status_text(status));
}

void wfi_channel_ask(wfi_channel *channel)
{
    channel->ask = true;
    channel->ops->ask(channel);
}

/* If a connection is up here, the peer has lost it. Exception: it came up while the peer's message was in flight. */
void wfi_channel_wanted(wfi_channel *channel)
{
    wfi_transport *transport = channel->peer->transport;
    wfi_conn *up = wfi_channel_up(channel);
    uint64_t now = wfi_progress_now(transport->progress);
    if (up && now - channel->used_ns < WFI_CONNECT_LIMIT_NS)
        return;
    channel->wanted_ns = now + WANTED_NS;
    if (up)
        wfi_channel_broken(up);
    wfi_channel_want(channel);
}

void wfi_attempt_failed(wfi_conn *conn, const char *why)
{
    wfi_channel *channel = conn->channel;
    const wfi_net_fabric *fabric = conn->fabric;
    bool is_crossing = channel->crossing == conn;
    wfi_conn_close(conn);
    if (is_crossing)
        return;
    channel->tried = fabric;
    wfi_channel_failed(channel, WEFT_ERR_UNREACHABLE, why);
}

void wfi_channel_broken(wfi_conn *conn)
{
    wfi_channel *channel = conn->channel;
    if (conn->closed)
        return;
    if (!conn->up) {
        wfi_attempt_failed(conn, "the connection was refused");
        return;
    }
    wfi_log_net(channel->peer->transport, WEFT_LOG_DEBUG, "%s lane to peer %d broke",
                channel->kind == WFI_BULK ? "bulk" : "control", channel->peer->rank);
    channel->lost = true;
    channel->failures = conn->useful ? 0 : channel->failures + 1;
    wfi_channel_count_failure(channel, conn->fabric, "its connection broke");
    wfi_conn_close(conn);
    channel_retry(channel);
}

void wfi_channel_end(wfi_channel *channel)
{
    if (!channel->conn)
        return;
    channel->ended++;
    channel->excused = true;
    wfi_channel_close(channel);
}

void wfi_channel_prefer(wfi_conn *crossing)
{
    wfi_channel *channel = crossing->channel;
    assert(channel->crossing == crossing);
    wfi_conn_close(channel->conn);
    (void)limit_attempt(channel);
}

void wfi_channel_close(wfi_channel *channel)
{
    while (channel->conn)
        wfi_conn_close(channel->conn);
}

bool wfi_channel_turn(wfi_conn *conn, size_t bytes, weft_status why)
{
    wfi_channel *channel = conn->channel;
    if (bytes)
        wfi_net_fabric_refused(conn->fabric, bytes, why);
    else
        wfi_channel_avoid(channel, conn->fabric, "the peer registers no more memory");
    if (wfi_channel_choose(channel) == conn->fabric)
        return false;
    conn->refused = true;
    if (!bytes) { /* with the backoff of failures: perhaps the peer cannot register it on any fabric */
        wfi_channel_broken(conn);
        return true;
    }
    wfi_channel_end(channel);
    wfi_channel_want(channel);
    return true;
}

void wfi_channel_unreadable(wfi_conn *conn, const char *why)
{
    wfi_channel *channel = conn->channel;
    wfi_channel_exclude(channel, conn->fabric, why);
    conn->refused = true; /* operations that wait have not failed */
    wfi_conn_close(conn);
    wfi_channel_want(channel);
}

static void channel_timer(wfi_timer *timer)
{
    wfi_channel *channel = wfi_container_of(timer, wfi_channel, timer);
    wfi_conn *conn = channel->conn;
    wfi_progress *progress = channel->peer->transport->progress;
    uint64_t now = progress->now_ns, until = channel->used_ns + WFI_IDLE_NS;
    if (!conn)
        wfi_channel_want(channel);
    else if (!conn->up)
        wfi_attempt_failed(conn, "the connection was not answered");
    else if (until > now || !channel->ops->idle(channel))
        (void)wfi_timer_set(progress, &channel->timer, until > now ? until : now + WFI_IDLE_NS);
    else /* idle; either side may detect it first */
        wfi_channel_end(channel);
}

void wfi_channel_is_up(wfi_channel *channel)
{
    wfi_peer *peer = channel->peer;
    wfi_transport *transport = peer->transport;
    uint64_t now = wfi_now(transport->progress->clock);
    if (channel->crossing)
        wfi_conn_close(channel->crossing);
    channel->conn->up = true;
    channel->tried = channel->conn->fabric;
    channel->ask = channel->ask && !channel->conn->ours; /* kept if the peer dialled: this worker probably cannot */
    channel->why = NULL;
    channel->wanted_ns = 0;
    wfi_conn_attempt_ended(channel->conn);
    wfi_channel_count_lack(channel, channel->conn->fabric, false);
    wfi_timer_clear(transport->progress, &channel->timer);
    if (channel->excused)
        channel->failures = 0;
    else if (channel->lost)
        transport->stats.connections_lost++;
    channel->lost = channel->excused = false;
    channel->used_ns = now;
    peer->received_ns = now;
    if (peer->unreachable)
        wfi_log_net(transport, WEFT_LOG_INFO, "worker %d can be reached again", peer->rank);
    peer->unreachable = false;
    channel->ops->up(channel);
}

void wfi_channel_protocol_error(wfi_conn *conn, const char *reason)
{
    wfi_peer *peer = conn->channel->peer;
    wfi_transport_refused(peer->transport, "peer %d: %s; its lane is closed", peer->rank, reason);
    if (++peer->protocol_errors >= PROTOCOL_ERRORS_MAX)
        peer->transport->suspect(peer, reason);
    wfi_channel_broken(conn);
}

void wfi_channel_moved(wfi_conn *conn)
{
    uint64_t now = conn->transport->progress->now_ns;
    if (!conn->useful)
        wfi_channel_clear_failures(conn->channel, conn->fabric);
    conn->useful = true;
    conn->channel->failures = 0;
    conn->channel->used_ns = now;
    conn->peer->received_ns = now;
}

void wfi_channel_address_text(const wfi_channel *channel, char *out, size_t room)
{
    const wfi_net_fabric *fabric = channel->tried ? channel->tried : &channel->peer->transport->fabrics[0];
    const wfi_peer_address *to = &channel->peer->addresses[wfi_net_fabric_index(fabric)];
    fabric->ops->address_text(to->bytes, to->size, out, room);
}

/* ---- Setting up and ending ------------------------------------------------------------------------------------- */

void wfi_channel_init(wfi_channel *channel, wfi_peer *peer, wfi_lane_kind kind, const wfi_channel_ops *ops)
{
    *channel =
        (wfi_channel){.peer = peer, .kind = kind, .ops = ops, .timer = {.fire = channel_timer, .reserved = true}};
    wfi_list_init(&channel->turn);
    peer->channels[kind] = channel;
}

void wfi_channel_fini(wfi_channel *channel)
{
    wfi_channel_close(channel);
    wfi_timer_clear(channel->peer->transport->progress, &channel->timer);
    wfi_list_remove(&channel->turn);
}
