/* SPDX-License-Identifier: Apache-2.0 */
/* verbs.c - libfabric's verbs provider: connected endpoints over InfiniBand and RoCE. */
#include "ofi/ofi.h"
#include "verbs/devices.h"

#include <rdma/fabric.h>

static const wfofi_provider verbs_provider = {
    .ops = &wfi_fabric_verbs,
    .name = "verbs",
    .explain = wfi_verbs_explain,
    .protocol = FI_PROTO_RDMA_CM_IB_RC,
    .chooses_device = true,
    .open_blocks = true,
    .reserves_queues = true,
    .events_outlive = true,
};

static weft_status verbs_open(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)
{
    return wfofi_open(&verbs_provider, options, out, error);
}

const wfi_fabric_ops wfi_fabric_verbs = {
    .name = "verbs",
    .number = 2,
    .open = verbs_open,
    WFOFI_FUNCTIONS,
};
