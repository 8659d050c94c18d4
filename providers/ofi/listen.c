/* SPDX-License-Identifier: Apache-2.0 */
/* listen.c - the listening endpoint, on a free port or within a range. */
#include "objects.h"

#include "base/text/log.h"

#include <stdlib.h>
#include <string.h>

/*
 * Tries once. Two sockets that allow the reuse of their address can both be bound to a port, but only one can listen:
 * so either call may find the port taken.
 */
static int listen_on(wfofi_fabric *fabric, int port)
{
    wfofi_address_set_port(&fabric->local, port);
    memcpy(fabric->info->src_addr, &fabric->local.storage, fabric->local.size);
    int ret = fi_passive_ep(fabric->fabric, fabric->info, &fabric->pep, NULL);
    if (ret != 0)
        return ret;
    ret = fi_pep_bind(fabric->pep, &fabric->eq->fid, 0);
    if (ret == 0)
        ret = fi_listen(fabric->pep);
    size_t size = sizeof(fabric->local.storage);
    if (ret == 0)
        ret = fi_getname(&fabric->pep->fid, &fabric->local.storage, &size);
    if (ret == 0)
        return 0;
    fi_close(&fabric->pep->fid);
    fabric->pep = NULL;
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

weft_status wfofi_listen(wfofi_fabric *fabric, const wfi_fabric_options *options, weft_error **error)
{
    int low = options->port_low, high = options->port_high;
    if (low < 0 || high > 65535 || low > high || (low == 0 && high != 0))
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "ports %d to %d: the range must lie within 1 to 65535, low before high", low, high);
    if (!fabric->info->src_addr || fabric->info->src_addrlen != fabric->local.size)
        return wfofi_fail(error, -FI_EINVAL, "provider '%s' does not use socket addresses", fabric->provider->name);
    int ret = -FI_EADDRINUSE, spared = options->port_spared;
    for (int port = low; port <= high && is_taken(ret); port++)
        if (port == 0 || port != spared)
            ret = listen_on(fabric, port);
    if (is_taken(ret) && spared > 0 && spared >= low && spared <= high)
        ret = listen_on(fabric, spared);
    char text[WFOFI_ADDRESS_TEXT];
    wfofi_address_text(&fabric->local, text);
    if (low > 0 && is_taken(ret))
        return wfofi_no_port(options, text, ret, error);
    if (ret != 0)
        return wfofi_fail(error, ret, "cannot listen on %s", text);
    if (fabric->hooks->listening)
        fabric->hooks->listening(fabric);
    return WEFT_OK;
}
