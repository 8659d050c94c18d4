/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook.c - checks, in each round of progress, memory that other processes write, and calls the owner when the
 * awaited change has come.
 *
 * Before a thread sleeps, it arms its sources, and then checks the memory once more. So a change before the sleep is
 * seen, and a change during the sleep wakes the thread. A process that has changed the memory calls
 * wfi_fabric_ops.wake, which wakes the other process if its source is armed.
 *
 * `hooks_lock` guards the list, so a round needs no agent lock to check it. Lock order: the agent's lock, then
 * hooks_lock.
 */
#include "progress/progress.h"

void wfi_progress_hook_add(wfi_progress *progress, wfi_progress_hook *hook)
{
    wfi_assert_held(&progress->lock);
    wfi_mutex_lock(&progress->hooks_lock);
    hook->due = false;
    wfi_list_push_back(&progress->hooks, &hook->link);
    atomic_fetch_add(&progress->hook_count, 1);
    wfi_mutex_unlock(&progress->hooks_lock);
}

void wfi_progress_hook_remove(wfi_progress *progress, wfi_progress_hook *hook)
{
    wfi_assert_held(&progress->lock);
    if (wfi_list_empty(&hook->link))
        return;
    wfi_mutex_lock(&progress->hooks_lock);
    wfi_list_remove(&hook->link);
    atomic_fetch_sub(&progress->hook_count, 1);
    wfi_mutex_unlock(&progress->hooks_lock);
}

size_t wfi_progress_hooks_poll(wfi_progress *progress)
{
    size_t count = 0;
    if (!atomic_load(&progress->hook_count))
        return 0;
    wfi_mutex_lock(&progress->hooks_lock);
    WFI_FOR_LIST (wfi_progress_hook, hook, &progress->hooks, link) {
        hook->due = hook->due || hook->is_due(hook);
        count += hook->due;
    }
    wfi_mutex_unlock(&progress->hooks_lock);
    return count;
}

/* Removes the first due hook from the list and returns it, or returns NULL. */
static wfi_progress_hook *take_due(wfi_progress *progress)
{
    wfi_progress_hook *taken = NULL;
    wfi_mutex_lock(&progress->hooks_lock);
    WFI_FOR_LIST (wfi_progress_hook, hook, &progress->hooks, link) {
        if (hook->due) {
            taken = hook;
            break;
        }
    }
    if (taken) {
        wfi_list_remove(&taken->link);
        atomic_fetch_sub(&progress->hook_count, 1);
    }
    wfi_mutex_unlock(&progress->hooks_lock);
    return taken;
}

void wfi_progress_hooks_take(wfi_progress *progress)
{
    wfi_assert_held(&progress->lock);
    if (!atomic_load(&progress->hook_count))
        return;
    for (wfi_progress_hook *hook; (hook = take_due(progress));)
        hook->run(hook);
}
