/* SPDX-License-Identifier: Apache-2.0 */
/* executor_fibers.c - the workers of the fiber form: a fiber starts for queued tasks and ends when it finds none. */
#include "base/text/log.h"
#include "future/executor_impl.h"

static void fiber_work(void *arg)
{
    wfi_executor *executor = arg;
    wfi_worker worker = {.executor = executor};
    *wfi_fiber_slot(wfi_fiber_current()) = &worker;
    wfi_mutex_lock(&executor->lock);
    executor->active--; /* start_worker had counted it */
    if (wfi_executor_may_take(executor))
        wfi_executor_run_tasks(executor, wfi_executor_take(executor));
    executor->total--;
    if (executor->total == 0 && executor->closer != NULL)
        wfi_unpark(executor->closer);
    wfi_mutex_unlock(&executor->lock);
    wfi_executor_unref(executor);
}

bool wfi_executor_start_fiber(wfi_executor *executor)
{
    wfi_assert_held(&executor->lock);
    if (wfi_fiber_spawn(executor->options.fibers, executor->options.group, fiber_work, executor) != WEFT_OK) {
        wfi_log(WEFT_LOG_ERROR, "out of memory for a worker fiber; %d run", executor->total);
        return false;
    }
    wfi_executor_ref(executor); /* the fiber's */
    return true;
}

void wfi_executor_join_fibers(wfi_executor *executor)
{
    wfi_parker parker;
    bool moved = true;
    wfi_parker_init(&parker);
    wfi_mutex_lock(&executor->lock);
    atomic_store(&executor->ending, true);
    executor->closer = &parker;
    wfi_executor_call_worker(executor);
    while (executor->total > 0 && moved) {
        wfi_mutex_unlock(&executor->lock);
        if (parker.fiber != NULL)
            wfi_park(&parker, WFI_NEVER);
        else /* not in a fiber: runs the fibers here; those that cannot continue now never will, and keep references */
            moved = wfi_fibers_run(executor->options.fibers) > 0;
        wfi_mutex_lock(&executor->lock);
    }
    executor->closer = NULL;
    wfi_mutex_unlock(&executor->lock);
}
