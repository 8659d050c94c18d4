/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drain.c - closing a lane: no endpoint is closed while a read is in progress on it.
 *
 * If an endpoint is closed while it receives the answer to a read, the tcp provider of libfabric 1.13 to 1.17 frees
 * that read's record twice. Operations after that share records (docs/libfabric.md). A read that ends normally leaves
 * the record intact. So the socket is shut down: after that the kernel adds nothing to the socket's buffer. Then
 * libfabric is called until it has read the buffer to its end. The number of calls is limited, not the time, because a
 * process can be stopped at any point.
 *
 * PARKED LANES. A lane whose reads have not ended after DRAIN_TURNS calls is parked: the rest of its socket's buffer is
 * discarded, so that nothing is written to local memory after lane_close has returned. The endpoint stays open, and the
 * lane's operations stay in flight, until poll finds that the reads have ended. If the fabric is closed before that,
 * the endpoint stays open until the process ends. No case is known in which a lane is parked.
 */
#include "tcp/tcp.h"

#include "base/text/log.h"

#include <poll.h>

#define DRAIN_TURNS 4096 /* calls; the fullest buffers are empty after a hundred */
#define WAIT_MS 1

static unsigned reads_of(wfi_lane *lane)
{
    wfi_mutex_lock(&lane->lock);
    unsigned reads = lane->reads;
    wfi_mutex_unlock(&lane->lock);
    return reads;
}

/* Calls libfabric until the reads have ended. In each call it reads once from every socket that has data. */
static bool give_turns(wfi_lane *lane)
{
    wfofi_fabric *fabric = lane->fabric;
    for (int i = 0; i < DRAIN_TURNS && reads_of(lane) > 0; i++) {
        wfi_mutex_lock(&fabric->cq_lock);
        wfofi_cq_progress(fabric);
        wfi_mutex_unlock(&fabric->cq_lock);
    }
    return reads_of(lane) == 0;
}

static void throw_away(int fd)
{
    uint8_t scratch[16384];
    while (recv(fd, scratch, sizeof scratch, MSG_DONTWAIT | MSG_TRUNC) > 0)
        ;
}

static void park(wfi_lane *lane)
{
    wfofi_fabric *fabric = lane->fabric;
    wfofi_log(
        fabric, WEFT_LOG_ERROR,
        "a closed connection still has %u reads under way: libfabric does not see the end of its socket, which is "
        "kept until it does",
        reads_of(lane));
    wfi_mutex_lock(&fabric->events_lock);
    wfi_list_remove(&lane->link);
    wfi_list_push_back(&wfi_tcp_of(fabric)->parked, &lane->link);
    atomic_fetch_add(&wfi_tcp_of(fabric)->parked_count, 1);
    wfi_mutex_unlock(&fabric->events_lock);
    wfofi_wake(fabric); /* the polling thread reports the completions that these calls found */
}

/* Returns the lane's descriptor; -1: not found, or already dead. */
static int shutdown_socket(const wfi_lane *lane)
{
    wfofi_sockaddr local, peer;
    size_t local_size = sizeof local.storage, peer_size = sizeof peer.storage;
    if (fi_getname(&lane->ep->fid, &local.storage, &local_size) != 0 ||
        fi_getpeer(lane->ep, &peer.storage, &peer_size) != 0)
        return -1;
    return wfi_tcp_shutdown_socket(&local, &peer);
}

/*
 * For a socket that was not found, or is already dead. The peer's answers still arrive over a socket that was not
 * found, so this function can only wait for them.
 */
static void wait_for_reads(wfi_lane *lane)
{
    wfofi_log(lane->fabric, WEFT_LOG_ERROR, "the socket of a connection was not found: waiting for its %u reads",
              reads_of(lane));
    while (!give_turns(lane)) {
        wfofi_wake(lane->fabric); /* these calls find completions of other lanes too */
        (void)poll(NULL, 0, WAIT_MS);
    }
}

/*
 * Returns false if the reads have not ended; then the lane is parked. Posts an empty receive: without a posted receive,
 * an incoming message would keep libfabric from reading the answers behind it. A message that takes the empty receive
 * ends the connection.
 */
bool wfi_tcp_lane_drain(wfi_lane *lane)
{
    if (reads_of(lane) == 0)
        return true;
    int fd = shutdown_socket(lane);
    (void)fi_recv(lane->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, NULL);
    if (give_turns(lane))
        return true;
    if (fd < 0) {
        wait_for_reads(lane);
        return true;
    }
    throw_away(fd);
    park(lane);
    return false;
}

/* ---- Parked lanes ------------------------------------------------------------------------------------------------ */

static wfi_lane *take_ended(wfofi_fabric *fabric)
{
    wfi_lane *ended = NULL;
    wfi_mutex_lock(&fabric->events_lock);
    for (wfi_list *at = wfi_tcp_of(fabric)->parked.next; at != &wfi_tcp_of(fabric)->parked && !ended; at = at->next) {
        wfi_lane *lane = wfi_container_of(at, wfi_lane, link);
        ended = reads_of(lane) == 0 ? lane : NULL;
    }
    if (ended) {
        wfi_list_remove(&ended->link);
        /* listed until its socket is closed: otherwise forgotten.c would take the socket for a lost one */
        wfi_list_push_back(&fabric->lanes, &ended->link);
        atomic_fetch_sub(&wfi_tcp_of(fabric)->parked_count, 1);
    }
    wfi_mutex_unlock(&fabric->events_lock);
    return ended;
}

void wfi_tcp_polled(wfofi_fabric *fabric)
{
    wfi_lane *lane;
    if (atomic_load_explicit(&wfi_tcp_of(fabric)->parked_count, memory_order_relaxed) == 0)
        return;
    while ((lane = take_ended(fabric))) {
        wfofi_log(fabric, WEFT_LOG_INFO, "the reads of a closed connection have ended");
        wfofi_lane_end(lane);
    }
}

static bool end_parked(wfofi_fabric *fabric)
{
    for (int i = 0; i < DRAIN_TURNS && atomic_load(&wfi_tcp_of(fabric)->parked_count) > 0; i++) {
        wfi_mutex_lock(&fabric->cq_lock);
        wfofi_cq_progress(fabric);
        wfi_mutex_unlock(&fabric->cq_lock);
        wfi_tcp_polled(fabric);
    }
    return atomic_load(&wfi_tcp_of(fabric)->parked_count) == 0;
}

void wfi_tcp_created(wfofi_fabric *fabric)
{
    wfi_tcp_of(fabric)->listen_fd = -1;
    wfi_list_init(&wfi_tcp_of(fabric)->parked);
}

/*
 * libfabric 1.17 leaks sockets that it has accepted and not announced, with their records. So this function stops
 * accepting, and shuts these sockets down. Then it calls libfabric once for each of them: one call may end several, but
 * not all.
 */
bool wfi_tcp_closing(wfofi_fabric *fabric)
{
    const wfi_tcp *tcp = wfi_tcp_of(fabric);
    if (tcp->listen_fd >= 0)
        (void)shutdown(tcp->listen_fd, SHUT_RDWR);
    wfofi_requests_drop(fabric);
    for (size_t rounds = wfi_tcp_silent_hang_up(fabric) + 1; rounds; rounds--)
        wfofi_requests_drop(fabric);
    (void)wfi_tcp_lost_close(fabric, true);
    if (end_parked(fabric))
        return true;
    wfofi_log(fabric, WEFT_LOG_ERROR, "%zu closed connections still have reads under way: fabric 'tcp' stays in memory",
              atomic_load(&tcp->parked_count));
    return false;
}
