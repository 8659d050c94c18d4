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
};

static weft_status verbs_open(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)
{
    return wfofi_open(&verbs_provider, options, out, error);
}

const wfi_fabric_ops wfi_fabric_verbs = {
    .name = "verbs",
    .number = 2,
    .open = verbs_open,
    .close = wfofi_close,
    .limits = wfofi_limits,
    .address = wfofi_address,
    .address_text = wfofi_peer_text,
    .iface = wfofi_iface,
    .lane_open = wfofi_lane_open,
    .lane_take = wfofi_lane_take,
    .connect = wfofi_connect,
    .connect_error = wfofi_connect_error,
    .reject = wfofi_reject,
    .lane_close = wfofi_lane_close,
    .post_recv = wfofi_post_recv,
    .send = wfofi_send,
    .inject = wfofi_inject,
    .read = wfofi_read,
    .write = wfofi_write,
    .region_open = wfofi_region_open,
    .region_close = wfofi_region_close,
    .poll = wfofi_poll,
    .poll_events = wfofi_poll_events,
    .events_arm = wfofi_events_arm,
    .events_fd = wfofi_events_fd,
    .wait_fd = wfofi_wait_fd,
    .may_sleep = wfofi_may_sleep,
};
