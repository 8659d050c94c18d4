/* SPDX-License-Identifier: Apache-2.0 */
/* fiber.c - in the simulation: the one fiber that sees to the net. */
#include "net/net_internal.h"

#define DRAIN_NS UINT64_C(2000000000)

void wfi_fiber_ready(void *arg)
{
    wfi_net *net = arg;
    if (net->fiber_runs)
        wfi_unpark(&net->fiber_parker);
}

static void fiber_park(wfi_net *net, uint64_t drained_by)
{
    wfi_mutex_lock(&net->lock);
    uint64_t next = atomic_load_explicit(&net->next_deadline_ns, memory_order_relaxed);
    net->sleep_until_ns = next < drained_by ? next : drained_by;
    uint64_t until = net->sleep_until_ns;
    wfi_mutex_unlock(&net->lock);
    (void)wfi_park(&net->fiber_parker, until);
    net->sleep_until_ns = 0;
}

static void fiber_main(void *arg)
{
    wfi_net *net = arg;
    uint64_t drained_by = WFI_NEVER;
    wfi_parker_init(&net->fiber_parker);
    net->fiber_runs = true;
    for (;;) {
        if (wfi_round_events(net, 0, -1) + wfi_round(net, WFI_POLLER, NULL))
            continue;
        bool stop = atomic_load(&net->stop);
        if (stop && drained_by == WFI_NEVER)
            drained_by = wfi_now(net->clock) + DRAIN_NS;
        if (stop && (!net->zombies || wfi_now(net->clock) >= drained_by))
            break;
        fiber_park(net, drained_by);
    }
    net->fiber_runs = false;
    net->fiber_ended = true;
    if (net->closer)
        wfi_unpark(net->closer);
}

void wfi_fiber_stop(wfi_net *net)
{
    wfi_parker parker;
    if (!wfi_fiber_current()) { /* a worker that was killed, or a world that has run: nobody else would read these */
        while (net->zombies && wfi_round(net, WFI_WAITER, NULL))
            continue;
        return;
    }
    wfi_parker_init(&parker);
    net->closer = &parker;
    wfi_fiber_ready(net);
    while (net->fiber_made && !net->fiber_ended)
        (void)wfi_park(&parker, WFI_NEVER);
    net->closer = NULL;
}

weft_status wfi_fiber_start(wfi_net *net)
{
    weft_status status = wfi_fiber_spawn(net->fibers, net->group, fiber_main, net);
    net->fiber_made = !status;
    return status;
}
