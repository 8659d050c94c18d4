/* SPDX-License-Identifier: Apache-2.0 */
/* round.c - one round: polls each source, then, with the lock, handles the completions and runs the due timers. */
#include "progress/progress.h"

void wfi_progress_round_begin(wfi_progress *progress, uint64_t now_ns)
{
    wfi_mutex_lock(&progress->lock);
    progress->now_ns = now_ns;
    progress->in_round = true;
}

size_t wfi_progress_round(wfi_progress *progress, wfi_role role, wfi_task **mine)
{
    size_t count = 0;
    for (size_t i = 0; i < progress->source_count; i++)
        count += progress->sources[i]->ops->poll(progress->sources[i]);
    uint64_t now = wfi_now(progress->clock);
    if (!count && atomic_load_explicit(&progress->next_deadline_ns, memory_order_relaxed) > now)
        return 0;
    wfi_progress_round_begin(progress, now);
    /* This thread is awake, so setting a timer need not wake it. A sleeper from which it took the token sleeps until
     * look_ns at most. */
    if (role == WFI_MANUAL)
        progress->sleep_until_ns = 0;
    for (size_t i = 0; i < progress->source_count; i++)
        progress->sources[i]->ops->take(progress->sources[i]);
    size_t fired = wfi_timers_fire(progress);
    wfi_task *task = wfi_progress_unlock_as(progress, role);
    if (mine)
        *mine = task;
    return count + fired;
}
