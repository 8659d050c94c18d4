/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door.c - who is accepted on the listening socket, seen from outside libfabric.
 *
 * libfabric's tcp reads from the sockets that it has accepted, one after the other, blocking, on the thread that reads
 * events: fifty callers who each keep back half of a request hold up everybody fifty times. An accepted socket that does not
 * block holds up nobody. libfabric accepts in one round and reads from that socket in a later one at the earliest; so
 * around each round we ask before it which descriptor is the next, as the lowest free one is, and after it make that (and
 * those behind it) non-blocking if it has become a caller's. Where another thread took the number meanwhile, we look through all.
 * What slips through that has the receive timeout (sockets/descriptors.c).
 */
#include "objects.h"

#include "base/clock.h"
#include "base/text/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#define SAY_NS UINT64_C(60000000000) /* between two lines that there are no descriptors: attempts are many a second */

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

/* The next descriptor; -1: there is none. */
int wfofi_door_before(wfofi_fabric *fabric)
{
    if (fabric->listen_fd < 0)
        return -1;
    int next = fcntl(fabric->listen_fd, F_DUPFD_CLOEXEC, 0);
    struct pollfd door = {.fd = fabric->listen_fd, .events = POLLIN};
    bool exhausted = next < 0 && (errno == EMFILE || errno == ENFILE) && poll(&door, 1, 0) == 1;
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

void wfofi_door_after(wfofi_fabric *fabric, int next)
{
    if (next < 0 || fcntl(next, F_GETFD) < 0)
        return;
    int fd = next;
    while (wfofi_is_caller(fd, &fabric->local))
        (void)unblock(fd++, NULL, NULL);
    if (fd == next)
        wfofi_each_caller(&fabric->local, unblock, NULL);
}
