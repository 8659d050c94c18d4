/* SPDX-License-Identifier: Apache-2.0 */
/* socket.c - see socket.h. */
#include "base/socket.h"

#include "base/descriptors.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LISTEN_BACKLOG 1024
#define ONE_OF_SEVERAL_MS 3000 /* time limit to connect to one of several addresses of a name */

int wfi_poll_timeout(uint64_t now_ns, uint64_t deadline_ns)
{
    if (deadline_ns <= now_ns)
        return 0;
    uint64_t left_ms = (deadline_ns - now_ns - 1) / 1000000 + 1;
    return left_ms > 60000 ? 60000 : (int)left_ms;
}

void wfi_tune_socket(int fd)
{
    static const struct {
        int level, option, value;
    } settings[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1}, /* detects a vanished host even if death_timeout_ms is switched off */
        {IPPROTO_TCP, TCP_KEEPIDLE, 30},
        {IPPROTO_TCP, TCP_KEEPINTVL, 10},
        {IPPROTO_TCP, TCP_KEEPCNT, 6},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 90000},
        /* Heartbeats are a thin stream: without this option TCP recovers from a cut of 1.5 s only after 3 s, later than
         * the default bound. */
        {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1},
    };
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]);
         i++) /* a socket works without an option that it refuses */
        (void)setsockopt(fd, settings[i].level, settings[i].option, &settings[i].value, sizeof(settings[i].value));
}

static int listen_on(const struct addrinfo *where, int *out)
{
    int one = 1;
    int fd = socket(where->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    /* Connections of the last job may be in TIME_WAIT. A port on which a process listens is still refused. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, where->ai_addr, where->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0) {
        *out = fd;
        return 0;
    }
    int errnum = errno;
    close(fd);
    return errnum;
}

static weft_status listen_failed(const char *host, int port, int errnum, weft_error **error)
{
    if (errnum == EADDRINUSE)
        return wfi_error_fail(error, WEFT_ERR_EXISTS,
                              "MASTER_PORT %d on %s is in use; choose another, or end the process that has it (ss "
                              "-ltnp): it may be a forked child of a former rank 0",
                              port, host);
    if (errnum == EADDRNOTAVAIL)
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "MASTER_ADDR \"%s\" is no address of this machine, where rank 0 runs", host);
    if (errnum == EMFILE)
        return wfi_descriptors_fail("listen for the store", error);
    return wfi_error_fail(error, WEFT_ERR_SYSTEM, "cannot listen on %s port %d: %s", host, port,
                          strerrordesc_np(errnum));
}

weft_status wfi_listen_at(const char *host, int port, int *fd, weft_error **error)
{
    struct addrinfo *found;
    int errnum = wfi_resolve(host, port, AI_PASSIVE, WFI_NEVER, &found);
    if (errnum && wfi_descriptors_lack(1)) /* to read /etc/hosts */
        return wfi_descriptors_fail("resolve MASTER_ADDR", error);
    if (errnum)
        return wfi_error_fail(
            error, WEFT_ERR_INVALID,
            "MASTER_ADDR \"%s\" does not resolve: set it (weft-run: --master-addr) to an address of rank 0's machine",
            host);
    errnum = EADDRNOTAVAIL;
    for (const struct addrinfo *where = found; where && errnum; where = where->ai_next)
        errnum = listen_on(where, fd);
    freeaddrinfo(found);
    return errnum ? listen_failed(host, port, errnum, error) : WEFT_OK;
}

weft_status wfi_listens_at(int listen_fd, wfi_endpoint *out)
{
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt(listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens)
        return WEFT_ERR_INVALID;
    int flags = fcntl(listen_fd, F_GETFL);
    if (flags < 0 || fcntl(listen_fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return WEFT_ERR_INVALID;
    out->size = sizeof(out->address);
    return getsockname(listen_fd, (struct sockaddr *)&out->address, &out->size) == 0 ? WEFT_OK : WEFT_ERR_INVALID;
}

int wfi_listening_port(int listen_fd)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    if (getsockname(listen_fd, (struct sockaddr *)&address, &size) != 0)
        return 0;
    if (address.ss_family == AF_INET)
        return ntohs(((struct sockaddr_in *)&address)->sin_port);
    return address.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&address)->sin6_port) : 0;
}

bool wfi_endpoint_is_loopback(const wfi_endpoint *where)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&where->address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&where->address;
    if (where->address.ss_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return where->address.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

bool wfi_hostname_is_loopback(const char *host, uint64_t deadline_ns)
{
    if (wfi_hostname_says_loopback(host))
        return true;
    struct addrinfo *found = NULL;
    bool is_loopback = !wfi_resolve(host, 0, 0, deadline_ns, &found);
    for (const struct addrinfo *at = found; at && is_loopback; at = at->ai_next) {
        wfi_endpoint where = {.size = at->ai_addrlen};
        memcpy(&where.address, at->ai_addr, at->ai_addrlen);
        is_loopback = wfi_endpoint_is_loopback(&where);
    }
    if (found)
        freeaddrinfo(found);
    return is_loopback;
}

/* Waits for the outcome of a connect in progress. */
static int finish_connecting(int fd, uint64_t deadline_ns)
{
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    int ready;
    do
        ready = poll(&wait, 1, wfi_poll_timeout(wfi_now(&wfi_clock_real), deadline_ns));
    while ((ready < 0 && errno == EINTR) || (ready == 0 && wfi_now(&wfi_clock_real) < deadline_ns));
    if (ready < 0)
        return errno;
    if (ready == 0)
        return ETIMEDOUT;
    int errnum = 0;
    socklen_t size = sizeof(errnum);
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &errnum, &size) == 0 ? errnum : errno;
}

bool wfi_endpoint_towards(const char *host, uint64_t deadline_ns, wfi_endpoint *out)
{
    struct addrinfo *found = NULL;
    int errnum = wfi_resolve(host, 9, 0, deadline_ns, &found);
    int fd = errnum ? -1 : socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* connecting it sends nothing */
    *out = (wfi_endpoint){.size = sizeof(out->address)};
    bool ok = fd >= 0 && !connect(fd, found->ai_addr, found->ai_addrlen) &&
              !getsockname(fd, (struct sockaddr *)&out->address, &out->size);
    if (fd >= 0)
        close(fd);
    if (found)
        freeaddrinfo(found);
    return ok;
}

bool wfi_address_towards(const char *host, uint64_t deadline_ns, char *out, size_t room)
{
    wfi_endpoint local;
    return wfi_endpoint_towards(host, deadline_ns, &local) &&
           !getnameinfo((struct sockaddr *)&local.address, local.size, out, (socklen_t)room, NULL, 0, NI_NUMERICHOST);
}

/* A connect to a free port of the ephemeral range may connect to itself (simultaneous open): then nothing listens
 * there. */
bool wfi_socket_is_connected_to_itself(int fd)
{
    wfi_endpoint here = {.size = sizeof(here.address)}, there = {.size = sizeof(there.address)};
    return getsockname(fd, (struct sockaddr *)&here.address, &here.size) == 0 &&
           getpeername(fd, (struct sockaddr *)&there.address, &there.size) == 0 && here.size == there.size &&
           memcmp(&here.address, &there.address, here.size) == 0;
}

static int connect_address(const struct sockaddr *address, socklen_t size, uint64_t deadline_ns, int *out)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    int errnum = connect(fd, address, size) == 0 ? 0 : errno;
    if (errnum == EINPROGRESS || errnum == EINTR)
        errnum = finish_connecting(fd, deadline_ns);
    if (!errnum && wfi_socket_is_connected_to_itself(fd))
        errnum = ECONNREFUSED;
    if (errnum) {
        close(fd);
        return errnum;
    }
    wfi_tune_socket(fd);
    *out = fd;
    return 0;
}

int wfi_connect_endpoint(const wfi_endpoint *endpoint, uint64_t deadline_ns, int *fd)
{
    return connect_address((const struct sockaddr *)&endpoint->address, endpoint->size, deadline_ns, fd);
}

/* Returns the deadline for one address of several: an address that does not answer leaves time for the next one. */
static uint64_t share_of(uint64_t deadline_ns, bool is_last)
{
    uint64_t limit_ns = wfi_deadline(&wfi_clock_real, ONE_OF_SEVERAL_MS);
    return is_last || deadline_ns < limit_ns ? deadline_ns : limit_ns;
}

int wfi_connect_to(const char *host, int port, uint64_t deadline_ns, int *fd)
{
    struct addrinfo *found = NULL;
    int errnum = wfi_resolve(host, port, 0, deadline_ns, &found);
    if (errnum && wfi_descriptors_lack(1)) /* to read /etc/hosts */
        return EMFILE;
    for (const struct addrinfo *where = found; where; where = errnum ? where->ai_next : NULL)
        errnum = connect_address(where->ai_addr, where->ai_addrlen, share_of(deadline_ns, !where->ai_next), fd);
    if (found)
        freeaddrinfo(found);
    return errnum;
}
