/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.c - libfabric's tcp provider: connected endpoints over sockets, everywhere. */
#include "tcp/tcp.h"

static const wfofi_hooks hooks = {
    .state_bytes = sizeof(wfi_tcp),
    .created = wfi_tcp_created,
    .listening = wfi_tcp_listening,
    .accept_begin = wfi_tcp_accept_begin,
    .accept_end = wfi_tcp_accept_end,
    .events_after = wfi_tcp_events_after,
    .events_arm = wfi_tcp_events_arm,
    .events_watch = wfi_tcp_events_watch,
    .lane_drain = wfi_tcp_lane_drain,
    .polled = wfi_tcp_polled,
    .closing = wfi_tcp_closing,
};

static const wfofi_provider tcp_provider = {
    .hooks = &hooks,
    .ops = &wfi_fabric_tcp,
    .name = "tcp",
    .advice = "it is part of every libfabric (Debian: libfabric1); FI_PROVIDER in the environment must not exclude it",
    .keys_per_transfer = true,
    .signal_wakes = true,
    .injects = true,
    .progress_at_target = true,
};

static weft_status tcp_open(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)
{
    return wfofi_open(&tcp_provider, options, out, error);
}

const wfi_fabric_ops wfi_fabric_tcp = {
    .name = "tcp",
    .number = 1,
    .open = tcp_open,
    WFOFI_FUNCTIONS,
};
