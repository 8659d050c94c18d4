/* SPDX-License-Identifier: Apache-2.0 */
/*
 * descriptors.c - finds sockets that a libfabric provider does not expose, among the descriptors of this process.
 *
 * Two measured properties of libfabric 1.17's tcp require it.
 *
 * It reads blocking from the sockets that it accepts. A peer that sends a header, but not the data that the header
 * announces, would stop all connection events. accept.c prevents that in most cases. On Linux an accepted socket
 * inherits SO_RCVTIMEO from the listening one, so a receive timeout there limits the remaining cases.
 *
 * An endpoint with a read in progress must not be closed. If its socket is shut down, the read ends (drain.c).
 */
#include "tcp/tcp.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>

#define NUMBERS_MAX (1 << 20) /* the most descriptors that are checked */
#define RECEIVE_US 1          /* the kernel rounds up to its tick */

typedef bool visit_fn(int fd, void *arg); /* true: stop */

/* Listing descriptors needs a free one, and none may be left: then all numbers are tried. */
static void try_all_numbers(visit_fn *visit, void *arg)
{
    struct rlimit limit = {0};
    int most =
        getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < NUMBERS_MAX ? (int)limit.rlim_cur : NUMBERS_MAX;
    for (int fd = 0; fd < most; fd++)
        if (fcntl(fd, F_GETFD) != -1 && visit(fd, arg))
            return;
}

static void each_descriptor(visit_fn *visit, void *arg)
{
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) {
        try_all_numbers(visit, arg);
        return;
    }
    bool enough = false;
    for (struct dirent *entry; !enough && (entry = readdir(dir));) {
        char *end;
        long fd = strtol(entry->d_name, &end, 10);
        if (end != entry->d_name && !*end && fd != dirfd(dir))
            enough = visit((int)fd, arg);
    }
    closedir(dir);
}

static bool is_inet(const wfofi_sockaddr *address)
{
    return address->storage.ss_family == AF_INET || address->storage.ss_family == AF_INET6;
}

static bool local_is(int fd, const wfofi_sockaddr *address)
{
    wfofi_sockaddr local = {.size = sizeof local.storage};
    return getsockname(fd, (struct sockaddr *)&local.storage, &local.size) == 0 && is_inet(&local) &&
           wfofi_address_equal(&local, address);
}

static bool peer_of(int fd, wfofi_sockaddr *out)
{
    *out = (wfofi_sockaddr){.size = sizeof out->storage};
    return getpeername(fd, (struct sockaddr *)&out->storage, &out->size) == 0 && is_inet(out);
}

/* ---- The listening socket -------------------------------------------------------------------------------------- */

typedef struct listener_search {
    const wfofi_sockaddr *local;
    int found; /* -1 */
} listener_search;

static bool bound_listener(int fd, void *arg)
{
    listener_search *search = arg;
    int listening = 0;
    socklen_t size = sizeof listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || !listening || !local_is(fd, search->local))
        return false;
    const struct timeval limit = {.tv_usec = RECEIVE_US};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0)
        search->found = fd;
    return true;
}

int wfi_tcp_bound_listener(const wfofi_sockaddr *local)
{
    listener_search search = {.local = local, .found = -1};
    each_descriptor(bound_listener, &search);
    return search.found;
}

/* ---- A connected socket ----------------------------------------------------------------------------------------- */

typedef struct connected_search {
    const wfofi_sockaddr *local, *peer;
    int found; /* -1 */
} connected_search;

static bool shutdown_connected(int fd, void *arg)
{
    connected_search *search = arg;
    wfofi_sockaddr peer;
    if (!local_is(fd, search->local) || !peer_of(fd, &peer) || !wfofi_address_equal(&peer, search->peer))
        return false;
    shutdown(fd, SHUT_RDWR);
    search->found = fd;
    return true;
}

int wfi_tcp_shutdown_socket(const wfofi_sockaddr *local, const wfofi_sockaddr *peer)
{
    connected_search search = {.local = local, .peer = peer, .found = -1};
    each_descriptor(shutdown_connected, &search);
    return search.found;
}

/* ---- Callers --------------------------------------------------------------------------------------------------- */

bool wfi_tcp_is_caller(int fd, const wfofi_sockaddr *local)
{
    wfofi_sockaddr peer;
    return local_is(fd, local) && peer_of(fd, &peer);
}

/* The kernel's state of a connection that this end began to close, or that is dead. */
bool wfi_tcp_is_ended(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return false;
    switch (info.tcpi_state) {
    case TCP_FIN_WAIT1:
    case TCP_FIN_WAIT2:
    case TCP_CLOSING:
    case TCP_TIME_WAIT:
    case TCP_LAST_ACK:
    case TCP_CLOSE:
        return true;
    default:
        return false;
    }
}

typedef struct caller_search {
    const wfofi_sockaddr *local;
    int listen_fd;
    wfi_tcp_caller_fn *visit;
    void *arg;
} caller_search;

static bool visit_caller(int fd, void *arg)
{
    const caller_search *search = arg;
    wfofi_sockaddr peer;
    return local_is(fd, search->local) && peer_of(fd, &peer) && search->visit(fd, &peer, search->arg);
}

void wfi_tcp_each_caller(const wfofi_sockaddr *local, wfi_tcp_caller_fn *visit, void *arg)
{
    caller_search search = {.local = local, .visit = visit, .arg = arg};
    each_descriptor(visit_caller, &search);
}

/* A listening socket that was shut down has the state of a dead connection, but is none. */
static bool visit_ended(int fd, void *arg)
{
    const caller_search *search = arg;
    wfofi_sockaddr peer;
    if (fd == search->listen_fd || !local_is(fd, search->local) || !wfi_tcp_is_ended(fd))
        return false;
    return search->visit(fd, peer_of(fd, &peer) ? &peer : NULL, search->arg);
}

void wfi_tcp_each_ended(const wfofi_sockaddr *local, int listen_fd, wfi_tcp_caller_fn *visit, void *arg)
{
    caller_search search = {.local = local, .listen_fd = listen_fd, .visit = visit, .arg = arg};
    each_descriptor(visit_ended, &search);
}
