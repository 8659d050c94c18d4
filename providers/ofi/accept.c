/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accept.c - makes accepted sockets non-blocking, from outside libfabric.
 *
 * libfabric's tcp reads requests from the sockets that it has accepted, one after another, blocking, on the thread
 * that reads events. Fifty peers that each send only half a request would block all others fifty times. A
 * non-blocking accepted socket blocks nobody. libfabric accepts a connection in one round and reads from it in a
 * later one. So before each round this file finds the next descriptor (the lowest free one); after the round it makes
 * that descriptor, and those after it, non-blocking if it is an accepted socket. If another thread took the number
 * meanwhile, all descriptors are checked. The receive timeout (sockets/descriptors.c) bounds the sockets that are
 * still missed.
 */
#include "objects.h"

#include "base/clock.h"
#include "base/text/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

/* between two log lines about missing descriptors: there are many attempts in a second */
#define SAY_NS UINT64_C(60000000000)

static void say_exhausted(wfofi_fabric *fabric)
{
    uint64_t now = wfi_now(&wfi_clock_real), said = atomic_load(&fabric->exhausted_said_ns);
    struct rlimit limit = {0};
    bool is_news = said == 0 || now - said >= SAY_NS;
    if (!is_news || !atomic_compare_exchange_strong(&fabric->exhausted_said_ns, &said, now))
        return;
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    wfofi_log(fabric, WEFT_LOG_ERROR,
              "out of file descriptors (the limit is %llu): this worker can neither open nor accept a connection",
              (unsigned long long)limit.rlim_cur);
}

void wfofi_say_failed(wfofi_fabric *fabric, const char *doing, int ret)
{
    if (ret == -EMFILE || ret == -ENFILE)
        say_exhausted(fabric);
    else
        wfofi_log(fabric, WEFT_LOG_WARN, "%s: %s", doing, fi_strerror(-ret));
}

/* Returns the next descriptor; -1: there is none. */
int wfofi_accept_before(wfofi_fabric *fabric)
{
    if (fabric->listen_fd < 0)
        return -1;
    int next = fcntl(fabric->listen_fd, F_DUPFD_CLOEXEC, 0);
    struct pollfd listener = {.fd = fabric->listen_fd, .events = POLLIN};
    bool exhausted = next < 0 && (errno == EMFILE || errno == ENFILE) && poll(&listener, 1, 0) == 1;
    if (exhausted)
        say_exhausted(fabric);
    fabric->exhausted = exhausted;
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

void wfofi_accept_after(wfofi_fabric *fabric, int next)
{
    if (next < 0 || fcntl(next, F_GETFD) < 0)
        return;
    int fd = next;
    while (wfofi_is_caller(fd, &fabric->local))
        (void)unblock(fd++, NULL, NULL);
    if (fd == next)
        wfofi_each_caller(&fabric->local, unblock, NULL);
}
