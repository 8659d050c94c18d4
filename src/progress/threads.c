/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.c - the threads that poll when no thread of the user's does: the poller; the leader, an idle thread of the
 * executor; and the event thread, which waits for the rarer events of the sources (events.c). token.c describes how
 * they pass the token.
 */
#include "progress/progress.h"

#include "base/thread.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#define WATCH_NS 200000
#define WATCH_DOUBLINGS 3 /* while other threads use the token: watchers of many processes could occupy a core */

/* ---- Watching -------------------------------------------------------------------------------------------------- */

static uint64_t watch_interval_ns(unsigned pauses)
{
    return (uint64_t)WATCH_NS << (pauses < WATCH_DOUBLINGS ? pauses : WATCH_DOUBLINGS);
}

/* The poller waits for one watch interval, after `pauses` earlier ones. True: it has the token now. */
static bool poller_rest(wfi_progress *progress, unsigned pauses)
{
    uint32_t uses = atomic_load(&progress->token.uses), departures = atomic_load(&progress->token.departures);
    bool called = wfi_sleeper_sleep(progress, WFI_SLEEPER_POLLER, NULL, 0, watch_interval_ns(pauses));
    bool leader = atomic_load(&progress->token.leader_in);
    if (leader && departures == atomic_load(&progress->token.departures)) {
        /* The leader has not left: until it leaves there is nothing to do. */
        atomic_store(&progress->token.poller_blocked, true);
        if (atomic_load(&progress->token.leader_in) && !atomic_load(&progress->stop))
            (void)wfi_sleeper_sleep(progress, WFI_SLEEPER_POLLER, NULL, 0, WFI_NEVER);
        atomic_store(&progress->token.poller_blocked, false);
    } else if (!leader && (called || uses == atomic_load(&progress->token.uses)))
        return wfi_token_take(progress, WFI_POLLER);
    return false;
}

static void *poller_main(void *arg)
{
    wfi_progress *progress = arg;
    (void)wfi_topo_bind_thread(progress->cores, 2);        /* the poller, and a leader or a waiter */
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* otherwise pauses of 200 us would take 250 */
    bool ours = wfi_token_take(progress, WFI_POLLER);
    unsigned pauses = 0;
    while (!atomic_load(&progress->stop)) {
        if (ours)
            (void)wfi_token_hold(progress, WFI_POLLER);
        pauses = ours ? 0 : pauses + 1;
        ours = poller_rest(progress, pauses);
    }
    if (ours)
        (void)wfi_token_release(progress, WFI_POLLER);
    return NULL;
}

/* The leader: holds the token until it has read a call whose handler it will run (returned), or is woken for work in
 * the executor's queue (NULL). While other threads use the token, it waits for a watch interval in which none
 * does. */
wfi_task *wfi_idle_lead(void *arg)
{
    wfi_progress *progress = arg;
    wfi_task *task = NULL;
    bool may_take = true;
    unsigned pauses = 0;
    atomic_store(&progress->token.leader_in, true);
    while (!task && !atomic_load(&progress->token.leader_woken)) {
        bool stopping = atomic_load(&progress->stop);
        if (may_take && !stopping && wfi_token_ask(progress, WFI_LEADER))
            task = wfi_token_hold(progress, WFI_LEADER);
        if (task || atomic_load(&progress->token.leader_woken))
            break;
        uint32_t uses = atomic_load(&progress->token.uses);
        bool woken =
            wfi_sleeper_sleep(progress, WFI_SLEEPER_LEADER, NULL, 0, stopping ? WFI_NEVER : watch_interval_ns(pauses));
        may_take = woken || uses == atomic_load(&progress->token.uses);
        pauses = may_take ? 0 : pauses + 1;
    }
    atomic_store(&progress->token.leader_woken, false);
    atomic_fetch_add(&progress->token.departures, 1);
    atomic_store(&progress->token.leader_in, false);
    if (atomic_load(&progress->token.poller_blocked))
        wfi_sleeper_wake(progress, WFI_SLEEPER_POLLER);
    return task;
}

void wfi_idle_wake(void *arg)
{
    wfi_progress *progress = arg;
    atomic_store(&progress->token.leader_woken, true);
    wfi_sleeper_wake(progress, WFI_SLEEPER_LEADER);
}

static void *events_main(void *arg)
{
    wfi_progress *progress = arg;
    (void)wfi_topo_bind_thread(progress->cores, 2); /* as the poller */
    for (size_t i = 0; i < progress->source_count; i++)
        progress->watches[i].due = true;
    while (!atomic_load(&progress->stop)) {
        wfi_events_serve(progress); /* it has read events_fd before `calls` is checked, so none is lost */
        wfi_progress_pass_call(progress);
    }
    return NULL;
}

/* ---- Starting and stopping ------------------------------------------------------------------------------------- */

static weft_status create_thread(pthread_t *thread, void *(*run)(void *), wfi_progress *progress, const char *name)
{
    int rc = wfi_thread_start(thread, run, progress, name);
    if (rc)
        progress->thread_errnum = rc;
    return rc ? WEFT_ERR_SYSTEM : WEFT_OK;
}

weft_status wfi_progress_start_threads(wfi_progress *progress)
{
    if (progress->fibers)
        return wfi_simulation->poller_start(progress);
    if (progress->no_threads)
        return WEFT_OK;
    weft_status status = create_thread(&progress->events, events_main, progress, "weft-cm");
    if (status)
        return status;
    progress->events_started = true;
    status = create_thread(&progress->poller, poller_main, progress, "weft-poll");
    if (status)
        return status;
    progress->poller_started = true;
    return WEFT_OK;
}

/* Polls until the operations of closed lanes were reported: only then can they be freed. */
static size_t drain(wfi_progress *progress)
{
    uint64_t until = wfi_now(progress->clock) + WFI_DRAIN_NS;
    size_t left = 1;
    while (left && wfi_now(progress->clock) < until) {
        if (wfi_token_take(progress, WFI_WAITER)) {
            (void)wfi_progress_round(progress, WFI_WAITER, NULL);
            (void)wfi_token_release(progress, WFI_WAITER);
        }
        wfi_mutex_lock(&progress->lock);
        left = wfi_progress_outstanding(progress);
        wfi_progress_unlock(progress);
    }
    return left;
}

size_t wfi_progress_stop_threads(wfi_progress *progress)
{
    uint64_t one = 1;
    atomic_store(&progress->stop, true);
    if (progress->fibers) {
        wfi_simulation->poller_stop(progress);
        return 0;
    }
    wfi_progress_wake(progress);
    ssize_t written = write(progress->events_fd, &one, sizeof(one));
    (void)written;
    if (progress->poller_started)
        pthread_join(progress->poller, NULL);
    if (progress->events_started)
        pthread_join(progress->events, NULL);
    progress->poller_started = progress->events_started = false;
    return drain(progress);
}
