/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drain.c - closing a lane: no endpoint is closed while a read is under way on it.
 *
 * libfabric 1.13 to 1.17's tcp, closing an endpoint that is in the middle of receiving the answer to a read, puts that
 * read's record back into its pool twice; operations after that share records (docs/libfabric.md).
 * A read that ends on its own leaves the record right. So the socket is shut down, after which the kernel adds nothing to
 * what the socket's buffer holds, and libfabric is given turns until it has read that to the end. How long that takes is
 * not measured: a process can be stopped at any point of it.
 *
 * PARKED LANES. A lane whose reads have not ended after DRAIN_TURNS is parked: what its socket still holds is thrown away, so
 * that nothing of it lands once lane_close has returned; the endpoint stays open, and the lane's operations unreported,
 * until poll finds that the reads have ended. A fabric that is closed before that leaves the endpoint open for good. Nothing
 * that we know of leads there.
 */
#include "objects.h"

#include "base/text/log.h"

#include <poll.h>

#define DRAIN_TURNS 4096 /* the fullest buffers are empty after a hundred */
#define WAIT_MS 1

static unsigned reads_of(wfi_lane *lane)
{
    wfi_mutex_lock(&lane->lock);
    unsigned reads = lane->reads;
    wfi_mutex_unlock(&lane->lock);
    return reads;
}

/* In each turn libfabric reads once from every socket that has something. */
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
    wfi_list_push_back(&fabric->parked, &lane->link);
    atomic_fetch_add(&fabric->parked_count, 1);
    wfi_mutex_unlock(&fabric->events_lock);
    (void)fi_cq_signal(fabric->cq); /* what our turns found is reported by whoever polls */
}

/* Its descriptor; -1: not found, or dead already. */
static int shutdown_socket(const wfi_lane *lane)
{
    wfofi_sockaddr local, peer;
    size_t local_size = sizeof local.storage, peer_size = sizeof peer.storage;
    if (fi_getname(&lane->ep->fid, &local.storage, &local_size) != 0 ||
        fi_getpeer(lane->ep, &peer.storage, &peer_size) != 0)
        return -1;
    return wfofi_shutdown_socket(&local, &peer);
}

/* The socket was not found, or is dead already. In the first case the peer's answers land: all that is left is to wait for them. */
static void wait_for_reads(wfi_lane *lane)
{
    wfofi_log(lane->fabric, WEFT_LOG_ERROR, "the socket of a connection was not found: waiting for its %u reads",
              reads_of(lane));
    while (!give_turns(lane)) {
        (void)fi_cq_signal(lane->fabric->cq); /* our turns serve the other lanes as well */
        (void)poll(NULL, 0, WAIT_MS);
    }
}

/*
 * False: the reads have not ended, and the lane is parked. The receive has no room: a message without one would stand before everything that came behind it, and one that does not
 * fit ends the connection.
 */
static bool drain(wfi_lane *lane)
{
    if (!lane->fabric->provider->sockets || reads_of(lane) == 0)
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

void wfofi_lane_close(wfi_lane *lane)
{
    if (!lane)
        return;
    wfi_mutex_lock(&lane->lock);
    lane->state = WFOFI_CLOSING;
    wfi_mutex_unlock(&lane->lock);
    if (drain(lane))
        wfofi_lane_end(lane);
}

/* ---- Parked lanes ------------------------------------------------------------------------------------------------ */

static wfi_lane *take_ended(wfofi_fabric *fabric)
{
    wfi_lane *ended = NULL;
    wfi_mutex_lock(&fabric->events_lock);
    for (wfi_list *at = fabric->parked.next; at != &fabric->parked && !ended; at = at->next) {
        wfi_lane *lane = wfi_container_of(at, wfi_lane, link);
        ended = reads_of(lane) == 0 ? lane : NULL;
    }
    if (ended) {
        wfi_list_remove(&ended->link);
        wfi_list_push_back(&fabric->lanes, &ended->link); /* until its socket is closed, as forgotten.c must know */
        atomic_fetch_sub(&fabric->parked_count, 1);
    }
    wfi_mutex_unlock(&fabric->events_lock);
    return ended;
}

void wfofi_parked_look(wfofi_fabric *fabric)
{
    wfi_lane *lane;
    if (atomic_load_explicit(&fabric->parked_count, memory_order_relaxed) == 0)
        return;
    while ((lane = take_ended(fabric))) {
        wfofi_log(fabric, WEFT_LOG_INFO, "the reads of a closed connection have ended");
        wfofi_lane_end(lane);
    }
}

bool wfofi_parked_end(wfofi_fabric *fabric)
{
    for (int i = 0; i < DRAIN_TURNS && atomic_load(&fabric->parked_count) > 0; i++) {
        wfi_mutex_lock(&fabric->cq_lock);
        wfofi_cq_progress(fabric);
        wfi_mutex_unlock(&fabric->cq_lock);
        wfofi_parked_look(fabric);
    }
    return atomic_load(&fabric->parked_count) == 0;
}
