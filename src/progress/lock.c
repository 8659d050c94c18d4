/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.c - the agent's lock, and the work that is done when it is released.
 *
 * First, with the lock still held, the owners of ended messages and transfers are called (wfi_done). Then, without it,
 * the deferred tasks run: releases on this thread, inline handlers here or on the executor, all others on the executor
 * (wfi_defer_kind).
 */
#include "progress/progress.h"

void wfi_progress_lock(wfi_progress *progress)
{
    wfi_mutex_lock(&progress->lock);
}

void wfi_progress_defer(wfi_progress *progress, wfi_task *task, wfi_defer_kind kind)
{
    wfi_assert_held(&progress->lock);
    wfi_list_push_back(&progress->deferred[kind], &task->link);
}

void wfi_progress_end(wfi_progress *progress, wfi_done *done, wfi_done_kind kind)
{
    wfi_assert_held(&progress->lock);
    wfi_list_push_back(&progress->done[kind], &done->link);
}

void wfi_progress_call_owners(wfi_progress *progress)
{
    wfi_assert_held(&progress->lock);
    for (int kind = 0; kind < WFI_DONE_KINDS;) {
        if (wfi_list_empty(&progress->done[kind])) {
            kind++;
            continue;
        }
        wfi_done *done = wfi_container_of(wfi_list_pop_front(&progress->done[kind]), wfi_done, link);
        done->run(done);
        kind = 0; /* it may have ended a message */
    }
}

/* Marks this thread (or fiber) as inside an inline handler. It has the token, so no other thread can poll for the event
 * that it might wait for: a wait is refused with WEFT_ERR_DEADLOCK instead of hanging. */
static void begin_inline(wfi_progress *progress)
{
    atomic_store_explicit(&progress->inline_thread, pthread_self(), memory_order_relaxed);
    atomic_store_explicit(&progress->inline_fiber, wfi_fiber_current(), memory_order_relaxed);
    atomic_store_explicit(&progress->inline_busy, true, memory_order_release);
}

static void end_inline(wfi_progress *progress)
{
    atomic_store_explicit(&progress->inline_busy, false, memory_order_release);
}

bool wfi_progress_is_inline(wfi_progress *progress)
{
    return atomic_load(&progress->inline_busy) &&
           pthread_equal(atomic_load(&progress->inline_thread), pthread_self()) &&
           atomic_load(&progress->inline_fiber) == wfi_fiber_current();
}

static wfi_task *next_task(wfi_list *list)
{
    return wfi_container_of(wfi_list_pop_front(list), wfi_task, link);
}

/* Destructors of the user's may run here, so a thread that has the token is marked as in an inline handler. */
static void run_releases(wfi_progress *progress, wfi_list *releases, bool holds_token)
{
    if (wfi_list_empty(releases))
        return;
    if (holds_token)
        begin_inline(progress);
    while (!wfi_list_empty(releases)) {
        wfi_task *task = next_task(releases);
        task->run(task);
    }
    if (holds_token)
        end_inline(progress);
    atomic_fetch_sub_explicit(&progress->releasing, 1, memory_order_release);
}

bool wfi_progress_is_released(const wfi_progress *progress)
{
    wfi_assert_held(&progress->lock);
    return wfi_list_empty(&progress->deferred[WFI_DEFER_RELEASE]) &&
           atomic_load_explicit(&progress->releasing, memory_order_acquire) == 0;
}

/* Whether nothing has ended and nothing is deferred. */
static bool has_nothing(const wfi_progress *progress)
{
    for (int kind = 0; kind < WFI_DONE_KINDS; kind++)
        if (!wfi_list_empty(&progress->done[kind]))
            return false;
    for (int kind = 0; kind < WFI_DEFER_KINDS; kind++)
        if (!wfi_list_empty(&progress->deferred[kind]))
            return false;
    return true;
}

wfi_task *wfi_progress_unlock_as(wfi_progress *progress, wfi_role role)
{
    wfi_list lists[WFI_DEFER_KINDS];
    wfi_task *mine = NULL;
    /* in a child of fork(2) nothing is called or run: all work belongs to the parent */
    if (has_nothing(progress) || progress->forked) {
        progress->has_now = false;
        wfi_mutex_unlock(&progress->lock);
        return NULL;
    }
    wfi_progress_call_owners(progress);
    progress->has_now = false;
    for (int kind = 0; kind < WFI_DEFER_KINDS; kind++) {
        wfi_list_init(&lists[kind]);
        wfi_list_splice(&lists[kind], &progress->deferred[kind]);
    }
    if (!wfi_list_empty(&lists[WFI_DEFER_RELEASE]))
        atomic_fetch_add_explicit(&progress->releasing, 1, memory_order_relaxed);
    wfi_mutex_unlock(&progress->lock);
    run_releases(progress, &lists[WFI_DEFER_RELEASE], role != WFI_OTHER);
    bool may_inline = role == WFI_POLLER || role == WFI_LEADER || role == WFI_MANUAL;
    while (!wfi_list_empty(&lists[WFI_DEFER_INLINE])) {
        wfi_task *task = next_task(&lists[WFI_DEFER_INLINE]);
        if (!may_inline) {
            wfi_executor_submit(progress->executor, task);
            continue;
        }
        begin_inline(progress);
        task->run(task);
        end_inline(progress);
    }
    if (role == WFI_LEADER && !wfi_list_empty(&lists[WFI_DEFER_WORKER])) {
        mine = next_task(&lists[WFI_DEFER_WORKER]);
        if (!wfi_list_empty(&lists[WFI_DEFER_WORKER]))
            wfi_executor_submit_led(progress->executor, &lists[WFI_DEFER_WORKER]);
    }
    while (!wfi_list_empty(&lists[WFI_DEFER_WORKER]))
        wfi_executor_submit(progress->executor, next_task(&lists[WFI_DEFER_WORKER]));
    return mine;
}

void wfi_progress_unlock(wfi_progress *progress)
{
    (void)wfi_progress_unlock_as(progress, WFI_OTHER);
}
