/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choose.c - selects a libfabric info.
 *
 * If the user names an interface, it is the info of the interface's address. Otherwise it is the info of the device
 * that is nearest to this process, or, with a provider that does not choose devices, of the address on the route to the
 * store.
 */
#include "objects.h"

#include "base/alloc.h"
#include "topo/nics.h"
#include "topo/quota.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

static struct fi_info *hints_of(const wfofi_provider *provider)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2; /* wfofi_op begins with room for it */
    hints->ep_attr->type = FI_EP_MSG;
    hints->ep_attr->protocol = provider->protocol;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->fabric_attr->prov_name = strdup(provider->name);
    if (hints->fabric_attr->prov_name)
        return hints;
    fi_freeinfo(hints);
    return NULL;
}

static weft_status fail(const wfofi_fabric *fabric, int ret, const char *where, weft_error **error)
{
    const wfofi_provider *provider = fabric->provider;
    char advice[512];
    if (provider->explain)
        provider->explain(fabric->own_iface ? &fabric->local : NULL, advice, sizeof(advice));
    else
        snprintf(advice, sizeof(advice), "%s", provider->advice);
    return wfofi_fail(error, ret, "libfabric %u.%u offers no endpoints of '%s'%s%s; %s", FI_MAJOR(fi_version()),
                      FI_MINOR(fi_version()), provider->name, where[0] ? " on " : "", where, advice);
}

static weft_status info_of_address(wfofi_fabric *fabric, const struct fi_info *hints, weft_error **error)
{
    char node[INET6_ADDRSTRLEN + 20];
    if (getnameinfo((struct sockaddr *)&fabric->local.storage, fabric->local.size, node, sizeof(node), NULL, 0,
                    NI_NUMERICHOST) != 0)
        return wfofi_fail(error, -FI_EINVAL, "address of this machine");
    int ret = fi_getinfo(WFOFI_API, node, "0", FI_SOURCE | FI_NUMERICHOST, hints, &fabric->info);
    return ret == 0 ? WEFT_OK : fail(fabric, ret, node, error);
}

/* ---- The nearest device ------------------------------------------------------------------------------------------ */

/* Higher is better. 0: not an address to listen on. A link-local address is the last choice. */
static int preference(const struct fi_info *info)
{
    const struct sockaddr *address = info->src_addr;
    if (!address)
        return 0;
    if (address->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)info->src_addr)->sin_addr.s_addr) >> 24) == 127 ? 0 : 3;
    if (address->sa_family != AF_INET6)
        return 0;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)info->src_addr)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) ? 0 : IN6_IS_ADDR_LINKLOCAL(six) ? 1 : 2;
}

/* The info with the best address of the first device in `order`. NULL: no device has an address. */
static const struct fi_info *best_of(const struct fi_info *const *infos, const wfi_nic_choice *order, size_t count)
{
    const struct fi_info *best = NULL;
    for (size_t i = 0; i < count; i++) {
        const struct fi_info *info = infos[order[i].index];
        if (best && strcmp(best->domain_attr->name, info->domain_attr->name) != 0)
            break;
        if (preference(info) > (best ? preference(best) : 0))
            best = info;
    }
    return best;
}

static const struct fi_info *nearest(const struct fi_info *all)
{
    size_t count = 0, used = 0;
    for (const struct fi_info *info = all; info; info = info->next)
        count++;
    const struct fi_info **infos = wfi_calloc(count, sizeof(*infos)), *best = NULL;
    const char **names = wfi_calloc(count, sizeof(*names));
    wfi_nic_choice *order = wfi_calloc(count, sizeof(*order));
    for (const struct fi_info *info = all; infos && names && info; info = info->next) {
        if (!preference(info))
            continue;
        infos[used] = info;
        names[used++] = info->domain_attr->name;
    }
    if (infos && names && order) {
        const wfi_topology *topology = wfi_topology_here();
        wfi_cores *cores = wfi_cores_allowed(topology);
        const wfi_place place = {.cores = cores, .rank = wfi_quota_local_rank()};
        wfi_nics_order(topology, &place, names, used, order);
        wfi_cores_destroy(cores);
        best = best_of(infos, order, used);
    }
    free(order);
    free(names);
    free(infos);
    return best;
}

static weft_status info_of_device(wfofi_fabric *fabric, const struct fi_info *hints, weft_error **error)
{
    struct fi_info *all = NULL;
    int ret = fi_getinfo(WFOFI_API, NULL, NULL, 0, hints, &all);
    const struct fi_info *best = ret == 0 ? nearest(all) : NULL;
    if (best && best->src_addrlen <= sizeof(fabric->local.storage)) {
        fabric->info = fi_dupinfo(best);
        memcpy(&fabric->local.storage, best->src_addr, best->src_addrlen);
        fabric->local.size = (socklen_t)best->src_addrlen;
        wfofi_address_set_port(&fabric->local, 0);
    }
    if (ret == 0)
        fi_freeinfo(all);
    if (ret != 0 || !best)
        return fail(fabric, ret ? ret : -FI_ENODATA, "", error);
    return fabric->info ? WEFT_OK : wfofi_fail(error, -FI_ENOMEM, "fi_dupinfo");
}

/* ---- Sizes of queues --------------------------------------------------------------------------------------------- */

void wfofi_set_sizes(const wfofi_fabric *fabric, struct fi_info *info)
{
    if (!fabric->provider->reserves_queues)
        return;
    info->tx_attr->size = fabric->lane_sends;
    info->rx_attr->size = fabric->lane_receives;
}

static size_t at_most(int wanted, size_t usual, size_t offered)
{
    size_t size = wanted > 0 ? (size_t)wanted : usual;
    return offered && size > offered ? offered : size;
}

weft_status wfofi_choose(wfofi_fabric *fabric, const wfi_fabric_options *options, weft_error **error)
{
    bool by_address = fabric->own_iface || !fabric->provider->chooses_device;
    weft_status status = by_address ? wfofi_choose_address(options, &fabric->local, error) : WEFT_OK;
    if (status != WEFT_OK)
        return status;
    struct fi_info *hints = hints_of(fabric->provider);
    if (!hints)
        return wfofi_fail(error, -FI_ENOMEM, "fi_allocinfo");
    status = by_address ? info_of_address(fabric, hints, error) : info_of_device(fabric, hints, error);
    fi_freeinfo(hints);
    if (status != WEFT_OK)
        return status;
    fabric->lane_sends = at_most(options->lane_sends, WFOFI_LANE_SENDS, fabric->info->tx_attr->size);
    fabric->lane_receives = at_most(options->lane_receives, WFOFI_LANE_RECEIVES, fabric->info->rx_attr->size);
    wfofi_set_sizes(fabric, fabric->info);
    return WEFT_OK;
}
