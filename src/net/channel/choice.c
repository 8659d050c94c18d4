/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choice.c - chooses the fabric of a channel's next connection.
 *
 * The worker that connects chooses, for each channel separately. It takes the first fabric in its order of preference
 * that is not avoided and of which the peer has an address. The other worker accepts any fabric.
 *
 * A channel avoids a fabric after two failures on it without data in between. If the peer did not answer on the fabric
 * for death_timeout_ms, one failure is enough (wfi_channel_silent). The fabric is avoided for AVOID_FIRST_NS at first,
 * then for twice as long each time, up to AVOID_LAST_NS. A fabric that failed to register memory is avoided by all bulk
 * channels for AVOID_LAST_NS.
 *
 * If all fabrics are avoided, the one whose last failure is the oldest is chosen. The one whose avoidance ends first
 * would be wrong: if it fails each time, a fabric that works again would not be tried. So operations succeed as long as
 * one fabric works.
 *
 * If this worker lacks descriptors or memory for a connection, operations that have not begun fail. They fail only
 * after the last LACKS_BEFORE attempts on each fabric of the peer failed for that, because another fabric may need
 * less.
 *
 * Bulk channels do not use a fabric that has no reads here (wfi_fabric_limits.no_reads). A fabric that has reads may
 * connect to a peer and be unable to read its memory (WFI_EVENT_CONNECTED with `why`). Then the bulk channel to that
 * peer never uses the fabric again (wfi_avoided.unreadable). The control channel does.
 */
#include "net/channel/channel.h"

#include <stdio.h>

#define AVOID_FIRST_NS UINT64_C(1000000000)
#define AVOID_LAST_NS UINT64_C(60000000000)
#define AVOID_DOUBLINGS 6
#define LACKS_BEFORE 4

/* Until when the channel avoids the fabric; 0: it does not. */
static uint64_t avoided_until(const wfi_channel *channel, const wfi_net_fabric *fabric)
{
    uint64_t until = channel->avoided[wfi_net_fabric_index(fabric)].until_ns;
    return channel->kind == WFI_BULK && fabric->refused_until_ns > until ? fabric->refused_until_ns : until;
}

/* Time of the last failure of the fabric, including failures to register memory; 0: none. */
static uint64_t failed_at(const wfi_channel *channel, const wfi_net_fabric *fabric)
{
    uint64_t failed = channel->avoided[wfi_net_fabric_index(fabric)].failed_ns,
             refused = fabric->refused_until_ns > AVOID_LAST_NS ? fabric->refused_until_ns - AVOID_LAST_NS : 0;
    return channel->kind == WFI_BULK && refused > failed ? refused : failed;
}

wfi_net_fabric *wfi_channel_choose(const wfi_channel *channel)
{
    const wfi_peer *peer = channel->peer;
    wfi_transport *transport = peer->transport;
    uint64_t now = transport->fabric_count > 1 ? wfi_progress_now(transport->progress) : 0, oldest = 0;
    wfi_net_fabric *chosen = NULL;
    for (size_t i = 0; i < transport->fabric_count; i++) {
        wfi_net_fabric *fabric = &transport->fabrics[i];
        if (!wfi_channel_may_use(channel, i))
            continue;
        if (avoided_until(channel, fabric) <= now)
            return fabric;
        uint64_t failed = failed_at(channel, fabric);
        if (!chosen || failed < oldest) {
            chosen = fabric;
            oldest = failed;
        }
    }
    return chosen;
}

bool wfi_peer_has_bulk(const wfi_peer *peer)
{
    return wfi_channel_choose(peer->channels[WFI_BULK]) != NULL;
}

bool wfi_peer_has_fabric(const wfi_peer *peer)
{
    return wfi_channel_choose(peer->channels[WFI_CONTROL]) != NULL;
}

wfi_net_fabric *wfi_channel_exposes_on(const wfi_channel *channel)
{
    wfi_net_fabric *used = channel->conn ? channel->conn->fabric : NULL;
    uint64_t until = used ? used->refused_until_ns : 0;
    bool refuses = until && until > wfi_progress_now(used->transport->progress);
    return used && !refuses ? used : wfi_channel_choose(channel);
}

bool wfi_channel_has_tried(const wfi_channel *channel, uint64_t since_ns)
{
    const wfi_peer *peer = channel->peer;
    for (size_t i = 0; i < peer->transport->fabric_count && peer->transport->fabric_count > 1; i++) {
        const wfi_net_fabric *fabric = &peer->transport->fabrics[i];
        bool is_tried = channel->conn && channel->conn->fabric == fabric;
        if (wfi_channel_may_use(channel, i) && !is_tried && failed_at(channel, fabric) < since_ns)
            return false;
    }
    return true;
}

static void log_avoided(const wfi_channel *channel, const wfi_net_fabric *fabric, uint64_t time_ns)
{
    wfi_log_net(channel->peer->transport, WEFT_LOG_INFO, "%s is avoided for the %s lane to worker %d, for %.0f s: %s",
                fabric->ops->name, channel->kind == WFI_BULK ? "bulk" : "control", channel->peer->rank,
                (double)time_ns / 1e9, channel->avoided[wfi_net_fabric_index(fabric)].why);
}

void wfi_channel_count_failure(wfi_channel *channel, const wfi_net_fabric *fabric, const char *why)
{
    wfi_transport *transport = channel->peer->transport;
    wfi_avoided *avoided = &channel->avoided[wfi_net_fabric_index(fabric)];
    avoided->failed_ns = wfi_progress_now(transport->progress);
    if (transport->fabric_count < 2 || ++avoided->failures < WFI_FAILURES_BEFORE)
        return;
    avoided->failures = 0;
    uint64_t time = AVOID_FIRST_NS << avoided->times;
    time = time < AVOID_LAST_NS ? time : AVOID_LAST_NS;
    avoided->until_ns = avoided->failed_ns + time;
    avoided->times += avoided->times < AVOID_DOUBLINGS;
    avoided->why = why;
    log_avoided(channel, fabric, time);
}

void wfi_channel_silent(const wfi_conn *conn)
{
    wfi_avoided *avoided = &conn->channel->avoided[wfi_net_fabric_index(conn->fabric)];
    if (avoided->failures < WFI_FAILURES_BEFORE - 1) /* after one more, the fabric is avoided */
        avoided->failures = WFI_FAILURES_BEFORE - 1;
}

void wfi_channel_avoid(wfi_channel *channel, const wfi_net_fabric *fabric, const char *why)
{
    wfi_avoided *avoided = &channel->avoided[wfi_net_fabric_index(fabric)];
    avoided->failed_ns = wfi_progress_now(channel->peer->transport->progress);
    avoided->until_ns = avoided->failed_ns + AVOID_LAST_NS;
    avoided->why = why;
    log_avoided(channel, fabric, AVOID_LAST_NS);
}

void wfi_channel_exclude(wfi_channel *channel, wfi_net_fabric *fabric, const char *why)
{
    wfi_avoided *avoided = &channel->avoided[wfi_net_fabric_index(fabric)];
    if (!avoided->unreadable)
        wfi_log_net(channel->peer->transport, fabric->has_logged_unreadable ? WEFT_LOG_DEBUG : WEFT_LOG_INFO,
                    "%s is not used for payloads from and to worker %d: %s", fabric->ops->name, channel->peer->rank,
                    why);
    fabric->has_logged_unreadable = true;
    avoided->unreadable = why;
}

void wfi_channel_clear_failures(wfi_channel *channel, const wfi_net_fabric *fabric)
{
    channel->avoided[wfi_net_fabric_index(fabric)] = (wfi_avoided){0};
}

void wfi_channel_count_lack(wfi_channel *channel, const wfi_net_fabric *fabric, bool is_lack)
{
    wfi_avoided *avoided = &channel->avoided[wfi_net_fabric_index(fabric)];
    if (!is_lack)
        avoided->lacks = 0;
    else if (avoided->lacks < LACKS_BEFORE)
        avoided->lacks++;
}

bool wfi_channel_lacks(const wfi_channel *channel)
{
    const wfi_peer *peer = channel->peer;
    for (size_t i = 0; i < peer->transport->fabric_count; i++) {
        if (wfi_channel_may_use(channel, i) && channel->avoided[i].lacks < LACKS_BEFORE)
            return false;
    }
    return true;
}

void wfi_net_fabric_refused(wfi_net_fabric *fabric, size_t bytes, weft_status why)
{
    wfi_transport *transport = fabric->transport;
    uint64_t now = wfi_progress_now(transport->progress);
    if (fabric->refused_until_ns <= now)
        wfi_log_net(transport, WEFT_LOG_WARN,
                    "%s: %zu bytes of memory could not be registered: %s; for 60 s payloads take another fabric, if "
                    "there is one%s",
                    fabric->ops->name, bytes, weft_status_text(why),
                    why == WEFT_ERR_MEMORY ? " (if the limit of locked memory is too small, raise it: ulimit -l)" : "");
    fabric->refused_until_ns = now + AVOID_LAST_NS;
}

/* ---- Texts about the choice -------------------------------------------------------------------------------------- */

typedef struct words {
    char *out;
    size_t room, used;
} words;

static void put(words *to, const char *name, const char *why)
{
    if (to->used < to->room)
        to->used +=
            (size_t)snprintf(to->out + to->used, to->room - to->used, "%s%s: %s", to->used ? "; " : "", name, why);
}

const char *wfi_channel_fabric(const wfi_channel *channel, char *reason, size_t room)
{
    const wfi_peer *peer = channel->peer;
    const wfi_transport *transport = peer->transport;
    const wfi_net_fabric *used = channel->conn ? channel->conn->fabric : wfi_channel_choose(channel);
    words to = {.out = reason, .room = room};
    uint64_t now = wfi_progress_now(transport->progress);
    char text[256];
    if (room)
        reason[0] = '\0';
    for (size_t i = 0; i < transport->unopened_count; i++)
        put(&to, transport->unopened[i].name, transport->unopened[i].why);
    for (size_t i = 0; i < transport->fabric_count && &transport->fabrics[i] != used; i++) {
        const wfi_net_fabric *fabric = &transport->fabrics[i];
        const wfi_avoided *avoided = &channel->avoided[i];
        const char *unreadable = fabric->limits->no_reads ? fabric->limits->no_reads : avoided->unreadable;
        if (peer->addresses[i].is_elsewhere)
            snprintf(text, sizeof(text),
                     "worker %d is on another machine, in another namespace, or (shm) of another user", peer->rank);
        else if (!peer->addresses[i].bytes)
            snprintf(text, sizeof(text), "no address of worker %d", peer->rank);
        else if (unreadable && channel->kind == WFI_BULK)
            snprintf(text, sizeof(text), "%s", unreadable);
        else if (avoided->until_ns > now)
            snprintf(text, sizeof(text), "avoided, %s", avoided->why);
        else if (avoided_until(channel, fabric) > now)
            snprintf(text, sizeof(text), "avoided, it registers no more memory (ulimit -l)");
        else
            snprintf(text, sizeof(text), "the connection in use is older, or worker %d chose it", peer->rank);
        put(&to, fabric->ops->name, text);
    }
    return used ? used->ops->name : "none";
}

void wfi_peer_fabric_text(const wfi_peer *peer, wfi_lane_kind kind, char *out, size_t room)
{
    char reason[512];
    wfi_assert_held(&peer->transport->progress->lock);
    const char *name = wfi_channel_fabric(peer->channels[kind], reason, sizeof(reason));
    snprintf(out, room, reason[0] ? "%s (%s)" : "%s", name, reason);
}

const char *wfi_peer_fabric_name(const wfi_peer *peer, wfi_lane_kind kind)
{
    wfi_assert_held(&peer->transport->progress->lock);
    const wfi_conn *conn = wfi_channel_up(peer->channels[kind]);
    return conn ? conn->fabric->ops->name : NULL;
}

size_t wfi_net_fabric_lanes(const wfi_net_fabric *fabric, wfi_lane_kind kind)
{
    size_t count = 0;
    const wfi_transport *transport = fabric->transport;
    wfi_assert_held(&transport->progress->lock);
    for (int rank = 0; rank < transport->world_size; rank++) {
        const wfi_conn *conn = transport->peers[rank] ? wfi_channel_up(transport->peers[rank]->channels[kind]) : NULL;
        count += conn && conn->fabric == fabric;
    }
    return count;
}
