/* SPDX-License-Identifier: Apache-2.0 */
/*
 * look.c - memory that other processes write, and that each round looks at.
 *
 * No change is lost during a sleep: the thread that is about to sleep arms its sources first, then looks. A process
 * that has changed the memory wakes this one through a source (wfi_fabric_ops.wake) if that is armed.
 *
 * `looks_lock` guards the list, so that a round can look without the agent's lock. It is taken after that lock.
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

/* One that is due, and no longer in the list; NULL: none. */
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
