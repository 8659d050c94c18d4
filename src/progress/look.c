/* SPDX-License-Identifier: Apache-2.0 */
/*
 * look.c - checks, in each round of progress, memory that other processes write, and calls the owner when the awaited
 * change has come.
 *
 * Before a thread sleeps, it arms its sources, and then checks the memory once more. So a change before the sleep is
 * seen, and a change during the sleep wakes the thread. A process that has changed the memory calls
 * wfi_fabric_ops.wake, which wakes the other process if its source is armed.
 *
 * `looks_lock` guards the list, so a round needs no agent lock to check it. Lock order: the agent's lock, then
 * looks_lock.
 */
#include "progress/progress.h"

void wfi_progress_look(wfi_progress *progress, wfi_look *look)
{
    wfi_assert_held(&progress->lock);
    wfi_mutex_lock(&progress->looks_lock);
    look->due = false;
    wfi_list_push_back(&progress->looks, &look->link);
    atomic_fetch_add(&progress->look_count, 1);
    wfi_mutex_unlock(&progress->looks_lock);
}

void wfi_progress_unlook(wfi_progress *progress, wfi_look *look)
{
    wfi_assert_held(&progress->lock);
    if (wfi_list_empty(&look->link))
        return;
    wfi_mutex_lock(&progress->looks_lock);
    wfi_list_remove(&look->link);
    atomic_fetch_sub(&progress->look_count, 1);
    wfi_mutex_unlock(&progress->looks_lock);
}

size_t wfi_looks_poll(wfi_progress *progress)
{
    size_t count = 0;
    if (!atomic_load(&progress->look_count))
        return 0;
    wfi_mutex_lock(&progress->looks_lock);
    WFI_FOR_LIST (wfi_look, look, &progress->looks, link) {
        look->due = look->due || look->is_due(look);
        count += look->due;
    }
    wfi_mutex_unlock(&progress->looks_lock);
    return count;
}

/* Removes the first due look from the list and returns it, or returns NULL. */
static wfi_look *take_due(wfi_progress *progress)
{
    wfi_look *taken = NULL;
    wfi_mutex_lock(&progress->looks_lock);
    WFI_FOR_LIST (wfi_look, look, &progress->looks, link) {
        if (look->due) {
            taken = look;
            break;
        }
    }
    if (taken) {
        wfi_list_remove(&taken->link);
        atomic_fetch_sub(&progress->look_count, 1);
    }
    wfi_mutex_unlock(&progress->looks_lock);
    return taken;
}

void wfi_looks_take(wfi_progress *progress)
{
    wfi_assert_held(&progress->lock);
    if (!atomic_load(&progress->look_count))
        return;
    for (wfi_look *look; (look = take_due(progress));)
        look->run(look);
}
