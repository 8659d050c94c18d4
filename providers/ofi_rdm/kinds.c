/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinds.c - the providers, and their tables of functions. shm and rxm are tested. efa, cxi, psm3 and opx were
 * never run (docs/fabrics.md).
 */
#include "ofi_rdm/rdm.h"

#define NETWORK_FRAME 8192 /* of devices: within one packet, or a few */

static const char *no_connect_error(const wfi_fabric *base)
{
    (void)base; /* an attempt that fails is announced by an event */
    return NULL;
}

static const wfi_fabric_limits *limits_of(const wfi_fabric *base)
{
    return &wfrdm_of(base)->limits;
}

static const char *iface_of(const wfi_fabric *base)
{
    return wfrdm_of(base)->iface;
}

#define FUNCTIONS                                                                                                      \
    .close = wfrdm_close, .limits = limits_of, .address = wfrdm_address, .reaches = wfrdm_reaches,                     \
    .address_text = wfrdm_address_text, .iface = iface_of, .lane_open = wfrdm_lane_open, .lane_take = wfrdm_lane_take, \
    .connect = wfrdm_connect, .connect_error = no_connect_error, .reject = wfrdm_reject,                               \
    .lane_close = wfrdm_lane_close, .post_recv = wfrdm_post_recv, .send = wfrdm_send, .inject = wfrdm_inject,          \
    .read = wfrdm_read, .region_open = wfrdm_region_open, .region_close = wfrdm_region_close, .poll = wfrdm_poll,      \
    .poll_events = wfrdm_poll_events, .events_arm = wfrdm_events_arm, .events_fd = wfrdm_events_fd,                    \
    .wait_fd = wfrdm_wait_fd, .may_sleep = wfrdm_may_sleep

#define KIND(name_, number_, ...)                                                                                      \
    static const wfrdm_kind name_##_kind = {.ops = &wfi_fabric_##name_, __VA_ARGS__};                                  \
    static weft_status name_##_open(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)           \
    {                                                                                                                  \
        return wfrdm_open(&name_##_kind, options, out, error);                                                         \
    }                                                                                                                  \
    const wfi_fabric_ops wfi_fabric_##name_ = {.name = #name_, .number = (number_), .open = name_##_open, FUNCTIONS}

KIND(shm, 4, .provider = "shm",
     .advice = "/dev/shm must have some free space for each worker (a container: --shm-size), or use another fabric",
     .frame_bytes = 4096, /* what it copies at once, without reading the memory of the other process */
     .is_local = true, .reads_before = FI_VERSION(1, 18),
     .no_reads = "libfabric before 1.18: a worker that is killed while it moves much data over shm stops the others");
KIND(rxm, 5, .provider = "tcp;ofi_rxm", .advice = "it is part of every libfabric (Debian: libfabric1)",
     .frame_bytes = WFRDM_FRAME_MAX, .is_ip = true, .waits = true);
KIND(efa, 7, .provider = "efa", .advice = "it needs an EFA device (AWS), and its driver", .frame_bytes = NETWORK_FRAME);
KIND(cxi, 8, .provider = "cxi", .advice = "it needs a Slingshot device, and a libfabric built for it (not Debian's)",
     .frame_bytes = NETWORK_FRAME);
KIND(psm3, 9, .provider = "psm3",
     .advice =
         "it needs an Ethernet or Omni-Path device, a libfabric built for it (not Debian's), and one FI_PSM3_UUID in "
         "all workers",
     .frame_bytes = NETWORK_FRAME);
KIND(opx, 10, .provider = "opx",
     .advice =
         "it needs an Omni-Path device, a libfabric built for it (not Debian's), and one FI_OPX_UUID in all workers",
     .frame_bytes = NETWORK_FRAME);
