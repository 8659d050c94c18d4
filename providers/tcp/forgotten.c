/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forgotten.c - closes accepted sockets that libfabric has lost.
 *
 * libfabric 2.1's tcp stops watching an accepted socket before it reads the request from it. If that read returns
 * EAGAIN, libfabric forgets the socket, and its descriptor stays open forever. That happens with half a request, and
 * with a connection that ended while errno held an old EAGAIN. A peer that connects often enough would use up all
 * descriptors of the process.
 *
 * A socket is certainly lost if all three are true:
 *   - It has ended, by this worker (silent.c) or by the peer.
 *   - The event queue's descriptor is not readable. An ended socket stays readable, so libfabric does not watch it.
 *   - It belongs neither to a lane nor to a request that waits for its answer.
 */
#include "tcp/tcp.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#define BATCH 64

typedef struct lost {
    const wfofi_fabric *fabric;
    int fds[BATCH];
    size_t count;
} lost;

static bool has_peer(const wfi_list *lanes, const wfofi_sockaddr *peer)
{
    for (const wfi_list *at = lanes->next; at != lanes; at = at->next) {
        const wfi_lane *lane = wfi_container_of(at, wfi_lane, link);
        if (lane->peer.size && wfofi_address_equal(&lane->peer, peer))
            return true;
    }
    return false;
}

bool wfi_tcp_is_known(const wfofi_fabric *fabric, const wfofi_sockaddr *peer)
{
    wfi_assert_held((wfi_mutex *)(uintptr_t)&fabric->events_lock);
    if (has_peer(&fabric->lanes, peer) || has_peer(&wfi_tcp_of(fabric)->parked, peer))
        return true;
    for (const wfi_list *at = fabric->requests.next; at != &fabric->requests; at = at->next) {
        const struct fi_info *info = wfi_container_of(at, wfi_connect_request, link)->info;
        wfofi_sockaddr asking = {.size = (socklen_t)info->dest_addrlen};
        if (info->dest_addrlen > sizeof asking.storage)
            continue;
        memcpy(&asking.storage, info->dest_addr, info->dest_addrlen);
        if (wfofi_address_equal(&asking, peer))
            return true;
    }
    return false;
}

/*
 * getpeername fails on the socket of a dead lane, so that socket cannot be distinguished from a lost one. events_lock
 * held.
 */
static bool every_lane_is_alive(const wfofi_fabric *fabric)
{
    wfi_assert_held((wfi_mutex *)(uintptr_t)&fabric->events_lock);
    for (const wfi_list *at = fabric->lanes.next; at != &fabric->lanes; at = at->next) {
        const wfi_lane *lane = wfi_container_of(at, wfi_lane, link);
        struct sockaddr_storage peer;
        size_t size = sizeof peer;
        if (lane->peer.size && fi_getpeer(lane->ep, &peer, &size) != 0)
            return false;
    }
    return true;
}

static bool note_lost(int fd, const wfofi_sockaddr *peer, void *arg)
{
    lost *found = arg;
    if (!peer || !wfi_tcp_is_known(found->fabric, peer))
        found->fds[found->count++] = fd;
    return found->count == BATCH;
}

static bool queue_is_quiet(wfofi_fabric *fabric)
{
    struct fid *queue = &fabric->eq->fid;
    struct pollfd readable = {.fd = fabric->eq_fd, .events = POLLIN};
    int next = wfi_tcp_accept_begin(fabric);
    int ret = fi_trywait(fabric->fabric, &queue, 1); /* also makes eq_fd unreadable if all events were read */
    wfi_tcp_accept_end(fabric, next);
    return ret == FI_SUCCESS && poll(&readable, 1, 0) == 0;
}

/*
 * Returns true if the sockets were closed. The order of the checks matters. A socket that has ended stays so. If every
 * lane is alive now, it was alive during the search, so no socket found belongs to a lane. If the event queue is quiet
 * after that, libfabric does not watch these sockets.
 */
static bool close_noted(wfofi_fabric *fabric, const lost *found, bool all_were_read)
{
    wfi_assert_held((wfi_mutex *)(uintptr_t)&fabric->events_lock);
    if (!wfi_list_empty(&fabric->requests) || !wfi_list_empty(&wfi_tcp_of(fabric)->parked) ||
        !every_lane_is_alive(fabric))
        return false;
    if (!all_were_read && !queue_is_quiet(fabric))
        return false;
    for (size_t i = 0; i < found->count; i++)
        close(found->fds[i]);
    return true;
}

bool wfi_tcp_lost_close(wfofi_fabric *fabric, bool all_were_read)
{
    lost found;
    bool done;
    wfi_mutex_lock(&fabric->events_lock);
    do {
        found = (lost){.fabric = fabric};
        wfi_tcp_each_ended(&fabric->local, wfi_tcp_of(fabric)->listen_fd, note_lost, &found);
        done = !found.count || close_noted(fabric, &found, all_were_read);
    } while (done && found.count == BATCH);
    wfi_mutex_unlock(&fabric->events_lock);
    return done;
}
