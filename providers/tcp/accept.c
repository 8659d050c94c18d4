/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accept.c - makes accepted sockets non-blocking, from outside libfabric.
 *
 * libfabric's tcp reads requests from the sockets that it has accepted, one after another, blocking, on the thread
 * that reads events. Fifty peers that each send only half a request would block all others fifty times. A
 * non-blocking accepted socket blocks nobody. libfabric accepts a connection in one round and reads from it in a
 * later one. So before each round this file finds the next descriptor (the lowest free one); after the round it makes
 * that descriptor, and those after it, non-blocking if it is an accepted socket. If another thread took the number
 * meanwhile, all descriptors are checked. The receive timeout (descriptors.c) bounds the sockets that are
 * still missed.
 */
#include "tcp/tcp.h"

#include "base/text/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

void wfi_tcp_listening(wfofi_fabric *fabric)
{
    wfi_tcp *tcp = wfi_tcp_of(fabric);
    tcp->listen_fd = wfi_tcp_bound_listener(&fabric->local);
    if (tcp->listen_fd < 0)
        wfofi_log(fabric, WEFT_LOG_WARN,
                  "no receive timeout on the listening socket: a silent caller can hold up connections");
}

/* Returns the next descriptor; -1: there is none. */
int wfi_tcp_accept_begin(wfofi_fabric *fabric)
{
    if (wfi_tcp_of(fabric)->listen_fd < 0)
        return -1;
    int next = fcntl(wfi_tcp_of(fabric)->listen_fd, F_DUPFD_CLOEXEC, 0);
    struct pollfd listener = {.fd = wfi_tcp_of(fabric)->listen_fd, .events = POLLIN};
    bool exhausted = next < 0 && (errno == EMFILE || errno == ENFILE) && poll(&listener, 1, 0) == 1;
    if (exhausted)
        wfofi_say_exhausted(fabric);
    wfi_tcp_of(fabric)->exhausted = exhausted;
    if (next >= 0)
        close(next);
    return next;
}

static bool unblock(int fd, const wfofi_sockaddr *peer, void *arg)
{
    (void)peer;
    (void)arg;
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && !(flags & O_NONBLOCK))
        (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    return false;
}

void wfi_tcp_accept_end(wfofi_fabric *fabric, int next)
{
    if (next < 0 || fcntl(next, F_GETFD) < 0)
        return;
    int fd = next;
    while (wfi_tcp_is_caller(fd, &fabric->local))
        (void)unblock(fd++, NULL, NULL);
    if (fd == next)
        wfi_tcp_each_caller(&fabric->local, unblock, NULL);
}
