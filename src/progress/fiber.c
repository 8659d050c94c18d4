/* SPDX-License-Identifier: Apache-2.0 */
/* fiber.c - in the simulation: the fiber of an agent that polls its sources and runs its timers. */
#include "progress/progress.h"

static void poll_in_fiber(void *arg)
{
    wfi_progress *progress = arg;
    uint64_t drained_by = WFI_NEVER;
    wfi_parker_init(&progress->fiber_parker);
    progress->fiber_runs = true;
    for (;;) {
        if (wfi_events_read(progress) + wfi_progress_round(progress, WFI_POLLER, NULL))
            continue;
        bool stop = atomic_load(&progress->stop);
        if (stop && drained_by == WFI_NEVER)
            drained_by = wfi_now(progress->clock) + WFI_DRAIN_NS;
        if (stop && (!wfi_progress_outstanding(progress) || wfi_now(progress->clock) >= drained_by))
            break;
        (void)wfi_park(&progress->fiber_parker, wfi_timers_sleep_until(progress, drained_by));
        progress->sleep_until_ns = 0;
    }
    progress->fiber_runs = false;
    progress->fiber_ended = true;
    if (progress->closer)
        wfi_unpark(progress->closer);
}

void wfi_fiber_stop(wfi_progress *progress)
{
    wfi_parker parker;
    if (!wfi_fiber_current()) { /* the worker was killed, or the simulation has ended: no fiber polls */
        while (wfi_progress_outstanding(progress) && wfi_progress_round(progress, WFI_WAITER, NULL))
            continue;
        return;
    }
    wfi_parker_init(&parker);
    progress->closer = &parker;
    wfi_progress_wake(progress);
    while (progress->fiber_made && !progress->fiber_ended)
        (void)wfi_park(&parker, WFI_NEVER);
    progress->closer = NULL;
}

weft_status wfi_fiber_start(wfi_progress *progress)
{
    weft_status status = wfi_fiber_spawn(progress->fibers, progress->group, poll_in_fiber, progress);
    progress->fiber_made = !status;
    return status;
}
