/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.c - the threads of an agent, as fibers: its executor's workers and its poller. A worker starts for queued
 * tasks, and ends when it finds none. The poller polls the agent's sources and runs its timers.
 */
#include "base/text/log.h"
#include "future/executor_impl.h"
#include "progress/progress.h"
#include "sim/fiber.h"
#include "sim/sim.h"

/* ---- Workers ----------------------------------------------------------------------------------------------------- */

static void fiber_work(void *arg)
{
    wfi_executor *executor = arg;
    wfi_worker worker = {.executor = executor};
    wfi_fiber_current()->slot = &worker;
    wfi_mutex_lock(&executor->lock);
    executor->active--; /* start_worker had counted it */
    if (wfi_executor_may_take(executor))
        wfi_executor_run_tasks(executor, wfi_executor_take(executor));
    executor->total--;
    if (executor->total == 0 && executor->closer)
        wfi_unpark(executor->closer);
    wfi_mutex_unlock(&executor->lock);
    wfi_executor_unref(executor);
}

bool wfi_sim_worker_start(wfi_executor *executor)
{
    wfi_assert_held(&executor->lock);
    if (wfi_fiber_spawn(executor->options.fibers, executor->options.group, fiber_work, executor) != WEFT_OK) {
        wfi_log(WEFT_LOG_ERROR, "out of memory for a worker fiber; %d run", executor->total);
        return false;
    }
    wfi_executor_ref(executor); /* the fiber's */
    return true;
}

void wfi_sim_workers_join(wfi_executor *executor)
{
    wfi_parker parker;
    bool moved = true;
    wfi_parker_init(&parker);
    wfi_mutex_lock(&executor->lock);
    atomic_store(&executor->ending, true);
    executor->closer = &parker;
    wfi_executor_wake_worker(executor);
    while (executor->total > 0 && moved) {
        wfi_mutex_unlock(&executor->lock);
        if (parker.fiber)
            wfi_park(&parker, WFI_NEVER);
        else /* not in a fiber: runs the fibers here; those that cannot continue now never will, and keep references */
            moved = wfi_fibers_run(executor->options.fibers) > 0;
        wfi_mutex_lock(&executor->lock);
    }
    executor->closer = NULL;
    wfi_mutex_unlock(&executor->lock);
}

/* ---- The poller -------------------------------------------------------------------------------------------------- */

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

void wfi_sim_poller_stop(wfi_progress *progress)
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

weft_status wfi_sim_poller_start(wfi_progress *progress)
{
    weft_status status = wfi_fiber_spawn(progress->fibers, progress->group, poll_in_fiber, progress);
    progress->fiber_made = !status;
    return status;
}
