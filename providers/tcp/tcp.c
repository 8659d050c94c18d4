/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.c - libfabric's tcp provider: connected endpoints over sockets, everywhere. */
#include "tcp/tcp.h"

static const wfofi_provider tcp_provider = {
    .hooks = &wfi_tcp_workarounds,
    .ops = &wfi_fabric_tcp,
    .name = "tcp",
    .advice = "it is part of every libfabric (Debian: libfabric1); FI_PROVIDER in the environment must not exclude it",
    .keys_per_transfer = true,
    .signal_wakes = true,
    .injects = true,
    .long_pays = true,
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
