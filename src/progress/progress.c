/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c - the time, and who drives. */
#include "net/net_internal.h"

const wfi_clock *wfi_net_clock(const wfi_net *net)
{
    return net->clock;
}

uint64_t wfi_net_now(const wfi_net *net)
{
    return net->in_round ? net->now_ns : wfi_now(net->clock);
}

wfi_driver *wfi_net_driver(wfi_net *net)
{
    return &net->driver;
}
