/* SPDX-License-Identifier: Apache-2.0 */
/* listen.c - the listening endpoint, or a socket that stands for it, on a free port or within a range. */
#include "objects.h"

#include "base/text/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Listens on this port; returns 0 or libfabric's error. */
typedef int listen_fn(void *arg, int port);

/*
 * Tries once. Two sockets that allow the reuse of their address can both be bound to a port, but only one can listen:
 * so either call may find the port taken.
 */
static int listen_with_endpoint(void *arg, int port)
{
    wfofi_fabric *fabric = arg;
    wfofi_address_set_port(&fabric->local, port);
    memcpy(fabric->info->src_addr, &fabric->local.storage, fabric->local.size);
    int ret = fi_passive_ep(fabric->fabric, fabric->info, &fabric->pep, NULL);
    if (ret != 0)
        return ret;
    ret = fi_pep_bind(fabric->pep, &fabric->eq->fid, 0);
    if (ret == 0)
        ret = fi_listen(fabric->pep);
    size_t size = sizeof fabric->local.storage;
    if (ret == 0)
        ret = fi_getname(&fabric->pep->fid, &fabric->local.storage, &size);
    if (ret == 0)
        return 0;
    fi_close(&fabric->pep->fid);
    fabric->pep = NULL;
    return ret;
}

typedef struct held {
    wfofi_sockaddr *at;
    int fd;
} held;

static int listen_with_socket(void *arg, int port)
{
    held *h = arg;
    const int yes = 1;
    socklen_t size = sizeof h->at->storage;
    wfofi_address_set_port(h->at, port);
    h->fd = socket(h->at->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->fd >= 0 && setsockopt(h->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(h->fd, (struct sockaddr *)&h->at->storage, h->at->size) == 0 && listen(h->fd, SOMAXCONN) == 0 &&
        getsockname(h->fd, (struct sockaddr *)&h->at->storage, &size) == 0)
        return 0;
    int ret = -errno;
    if (h->fd >= 0)
        close(h->fd);
    return ret;
}

static bool is_taken(int ret)
{
    return ret == -FI_EADDRINUSE || ret == -FI_EADDRNOTAVAIL || ret == -EACCES;
}

weft_status wfofi_no_port(const wfi_fabric_options *options, const char *last, int ret, weft_error **error)
{
    int count = options->port_high - options->port_low + 1;
    return wfi_error_fail(error, WEFT_ERR_EXISTS,
                          "WEFT_PORTS, from %d to %d: %d port%s, and none can be had (the last: %s: %s): widen the "
                          "range; a host with N ranks needs N ports for each fabric, and one more if MASTER_PORT is "
                          "among them. A program that a former worker started can still hold its ports: end that "
                          "program",
                          options->port_low, options->port_high, count, count > 1 ? "s" : "", last, fi_strerror(-ret));
}

/* Listens on the first port of the options that is free; `at` gets the address. */
static weft_status listen_within(const wfi_fabric_options *options, listen_fn *listens, void *arg,
                                 const wfofi_sockaddr *at, weft_error **error)
{
    int low = options->port_low, high = options->port_high;
    if (low < 0 || high > 65535 || low > high || (low == 0 && high != 0))
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "ports %d to %d: the range must lie within 1 to 65535, low before high", low, high);
    int ret = -FI_EADDRINUSE, spared = options->port_spared;
    for (int port = low; port <= high && is_taken(ret); port++)
        if (port == 0 || port != spared)
            ret = listens(arg, port);
    if (is_taken(ret) && spared > 0 && spared >= low && spared <= high)
        ret = listens(arg, spared);
    char text[WFOFI_ADDRESS_TEXT];
    wfofi_address_text(at, text);
    if (low > 0 && is_taken(ret))
        return wfofi_no_port(options, text, ret, error);
    return ret == 0 ? WEFT_OK : wfofi_fail(error, ret, "cannot listen on %s", text);
}

weft_status wfofi_hold_port(const wfi_fabric_options *options, wfofi_sockaddr *at, int *fd, weft_error **error)
{
    held h = {.at = at, .fd = -1};
    weft_status status = listen_within(options, listen_with_socket, &h, at, error);
    *fd = status ? -1 : h.fd;
    return status;
}

/* Ends the listening also where a thread polls the socket, or a child of fork has it. */
void wfofi_release_port(int *fd)
{
    if (*fd < 0)
        return;
    (void)shutdown(*fd, SHUT_RDWR);
    close(*fd);
    *fd = -1;
}

weft_status wfofi_listen(wfofi_fabric *fabric, const wfi_fabric_options *options, weft_error **error)
{
    if (!fabric->info->src_addr || fabric->info->src_addrlen != fabric->local.size)
        return wfofi_fail(error, -FI_EINVAL, "provider '%s' does not use socket addresses", fabric->provider->name);
    if (options->held_fd)
        wfofi_release_port(options->held_fd);
    weft_status status = listen_within(options, listen_with_endpoint, fabric, &fabric->local, error);
    if (!status && fabric->hooks->listening)
        fabric->hooks->listening(fabric);
    return status;
}
