/* SPDX-License-Identifier: Apache-2.0 */
/*
 * round.c - one round: polls the sources, then, with the lock, handles the completions and runs the due timers.
 *
 * Polling a source costs up to a microsecond, up to ten times as much as the rest of a round. So a source is not polled
 * in every round while none of this worker's operations are in flight on it (WFI_EXPECTS_MESSAGES,
 * WFI_EXPECTS_NOTHING). It rests. WFI_EXPECTS_MESSAGES: the pause between two polls is 1/16 (REST_SHARE) of the time
 * since a poll last found something, at most 50 us (REST_NS). So resting delays a message by at most 1/16 of the
 * silence before it. WFI_EXPECTS_NOTHING, a source without connections: the pause is 50 us. After a sleep every source
 * is polled, because any of them may have ended the sleep. A source does not rest if it is the only one. No source
 * rests in the simulation, whose fiber parks after a round without results. No source rests if the program itself makes
 * the rounds, because it may make them rarely.
 */
#include "progress/progress.h"

#define REST_NS 50000
#define REST_SHARE 16

void wfi_progress_round_begin(wfi_progress *progress, uint64_t now_ns)
{
    wfi_mutex_lock(&progress->lock);
    progress->now_ns = now_ns;
    progress->has_now = true;
}

/* Whether the source is skipped in this round. Uses the time of the last round, because reading the clock costs as much
 * as polling shared memory. */
static bool rests(const wfi_progress *progress, wfi_source *source, wfi_role role)
{
    uint64_t now = progress->token.round_ns, pause = now - source->polled_ns;
    if (progress->fibers || role == WFI_MANUAL || source->is_due || pause >= REST_NS)
        return false;
    wfi_expects expects = source->ops->expects(source);
    return expects == WFI_EXPECTS_NOTHING ||
           (expects == WFI_EXPECTS_MESSAGES && pause < (now - source->found_ns) / REST_SHARE);
}

static size_t poll_source(wfi_progress *progress, wfi_source *source)
{
    size_t found = source->ops->poll(source);
    source->polled_ns = progress->token.round_ns;
    source->is_due = false;
    if (found) {
        source->found_ns = source->polled_ns;
        source->nap_ns = 0;
    }
    return found;
}

static size_t poll_sources(wfi_progress *progress, wfi_role role)
{
    size_t count = 0;
    for (size_t i = 0; i < progress->source_count; i++) {
        wfi_source *source = progress->sources[i];
        if (progress->source_count == 1 || !rests(progress, source, role))
            count += poll_source(progress, source);
    }
    return count;
}

size_t wfi_progress_round(wfi_progress *progress, wfi_role role, wfi_task **mine)
{
    size_t count = poll_sources(progress, role) + wfi_progress_hooks_poll(progress);
    uint64_t now = progress->token.round_ns = wfi_now(progress->clock);
    if (!count && atomic_load_explicit(&progress->next_deadline_ns, memory_order_relaxed) > now)
        return 0;
    wfi_progress_round_begin(progress, now);
    /* This thread is awake, so an earlier timer does not have to wake it. A sleeper that lost the token to this thread
     * sleeps until events_ns at most. */
    if (role == WFI_MANUAL)
        progress->sleep_until_ns = 0;
    for (size_t i = 0; i < progress->source_count; i++)
        progress->sources[i]->ops->take(progress->sources[i]);
    wfi_progress_hooks_take(progress);
    size_t fired = wfi_timers_fire(progress);
    wfi_task *task = wfi_progress_unlock_as(progress, role);
    if (mine)
        *mine = task;
    return count + fired;
}
