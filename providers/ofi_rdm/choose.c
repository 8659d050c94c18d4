/* SPDX-License-Identifier: Apache-2.0 */
/* choose.c - calls fi_getinfo with the capabilities that this folder needs, and selects one of the results. */
#include "ofi_rdm/rdm.h"

#include "base/error.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE 512 /* entries of the endpoint's queues: shm has memory for each in /dev/shm */

static struct fi_info *hints_of(const wfrdm_kind *kind)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2; /* wfrdm_buffer begins with room for it */
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN; /* rdm->lock is held in each call, except fi_trywait */
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->fabric_attr->prov_name = strdup(kind->provider);
    if (hints->fabric_attr->prov_name)
        return hints;
    fi_freeinfo(hints);
    return NULL;
}

static weft_status fail(const wfrdm *rdm, int ret, const char *where, weft_error **error)
{
    const char *asked = getenv("FI_PROVIDER");
    const wfrdm_kind *kind = rdm->kind;
    if (asked)
        return wfofi_fail(error, ret,
                          "libfabric %u.%u offers no provider '%s'%s%s; FI_PROVIDER is \"%s\": unset it, or %s",
                          FI_MAJOR(fi_version()), FI_MINOR(fi_version()), kind->provider, where[0] ? " on " : "", where,
                          asked, kind->advice);
    return wfofi_fail(error, ret, "libfabric %u.%u offers no provider '%s' that weft can use%s%s; %s",
                      FI_MAJOR(fi_version()), FI_MINOR(fi_version()), kind->provider, where[0] ? " on " : "", where,
                      kind->advice);
}

weft_status wfrdm_choose(wfrdm *rdm, const wfi_fabric_options *options, weft_error **error)
{
    char node[INET6_ADDRSTRLEN + 20] = "";
    wfofi_sockaddr local;
    const wfrdm_kind *kind = rdm->kind;
    if (kind->is_ip) {
        weft_status status = wfofi_choose_address(options, &local, error);
        if (status != WEFT_OK)
            return status;
        if (getnameinfo((struct sockaddr *)&local.storage, local.size, node, sizeof(node), NULL, 0, NI_NUMERICHOST) !=
            0)
            return wfofi_fail(error, -FI_EINVAL, "address of this machine");
        wfofi_address_iface(&local, rdm->iface);
    }
    struct fi_info *hints = hints_of(kind);
    if (!hints)
        return wfofi_fail(error, -FI_ENOMEM, "fi_allocinfo");
    int ret = fi_getinfo(WFRDM_API, node[0] ? node : NULL, node[0] ? "0" : NULL,
                         node[0] ? FI_SOURCE | FI_NUMERICHOST : 0, hints, &rdm->info);
    fi_freeinfo(hints);
    if (ret != 0)
        return fail(rdm, ret, node, error);
    if (rdm->info->ep_attr->max_msg_size < kind->frame_bytes)
        return wfi_error_fail(error, WEFT_ERR_FABRIC, "provider '%s' carries messages of %zu bytes only",
                              kind->provider, rdm->info->ep_attr->max_msg_size);
    if (rdm->info->tx_attr->size > QUEUE)
        rdm->info->tx_attr->size = QUEUE;
    if (rdm->info->rx_attr->size > QUEUE)
        rdm->info->rx_attr->size = QUEUE;
    return WEFT_OK;
}
