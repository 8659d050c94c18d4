/* SPDX-License-Identifier: Apache-2.0 */
/*
 * round.c - one round: polls the sources, then, with the lock, handles the completions and runs the due timers.
 *
 * An unused source costs each round a poll of a microsecond or less. So a source that had nothing for QUIET_ROUNDS
 * rounds, and expects no results, rests: one round in REST_ROUNDS polls it. A source that expects nothing, because it
 * has no connections, rests after one such round. After a sleep every source is polled, because any of them may have
 * ended the sleep. A source never rests alone; in the simulation, whose fiber parks after a round that found nothing;
 * or where the program makes the rounds, perhaps rarely.
 */
#include "progress/progress.h"

#define QUIET_ROUNDS 64
#define REST_ROUNDS 16

void wfi_progress_round_begin(wfi_progress *progress, uint64_t now_ns)
{
    wfi_mutex_lock(&progress->lock);
    progress->now_ns = now_ns;
    progress->in_round = true;
}

static bool rests(const wfi_progress *progress, wfi_source *source, wfi_role role)
{
    if (progress->fibers || role == WFI_MANUAL || source->quiet == 1 || source->quiet % REST_ROUNDS == 0)
        return false;
    wfi_expects expects = source->ops->expects(source);
    return expects == WFI_EXPECTS_NOTHING || (source->quiet > QUIET_ROUNDS && expects == WFI_EXPECTS_MESSAGES);
}

static inline size_t poll_source(wfi_source *source)
{
    size_t found = source->ops->poll(source);
    if (found)
        source->quiet = source->nap_ns = 0;
    return found;
}

static size_t poll_several(wfi_progress *progress, wfi_role role)
{
    size_t count = 0;
    for (size_t i = 0; i < progress->source_count; i++) {
        wfi_source *source = progress->sources[i];
        source->quiet++;
        if (!rests(progress, source, role))
            count += poll_source(source);
    }
    return count;
}

size_t wfi_progress_round(wfi_progress *progress, wfi_role role, wfi_task **mine)
{
    size_t count = progress->source_count == 1 ? poll_source(progress->sources[0]) : poll_several(progress, role);
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
