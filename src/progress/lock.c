/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.c - the agent's lock, and what is done when it is let go: callbacks that are due (lock still held), then the
 * releases, inline handlers and tasks that were deferred (lock no longer held).
 */
#include "net/net_internal.h"

void wfi_net_lock(wfi_net *net)
{
    wfi_mutex_lock(&net->lock);
}

wfi_mutex *wfi_net_mutex(wfi_net *net)
{
    return &net->lock;
}

void wfi_net_defer(wfi_net *net, wfi_task *task, wfi_defer_kind kind)
{
    wfi_assert_held(&net->lock);
    wfi_list_push_back(&net->deferred[kind], &task->link);
}

static void settle_message(wfi_net *net)
{
    wfi_message *message = wfi_container_of(wfi_list_pop_front(&net->done_messages), wfi_message, link);
    message->done(message, (weft_status)message->net.state);
}

static void settle_work(wfi_net *net)
{
    wfi_work *work = wfi_container_of(wfi_list_pop_front(&net->finished), wfi_work, link);
    wfi_transfer *owner = work->owner;
    weft_status status = work->status;
    wfi_work_destroy(work);
    owner->net = NULL;
    owner->done(owner, status);
}

void wfi_net_settle(wfi_net *net)
{
    wfi_assert_held(&net->lock);
    for (;;) {
        if (!wfi_list_empty(&net->done_messages))
            settle_message(net);
        else if (!wfi_list_empty(&net->finished))
            settle_work(net);
        else
            return;
    }
}

/* Marks the flow of control, so that a wait inside is refused instead of hanging: what it waits for could be read by nobody
 * else. Only the token's holder gets here. */
static void begin_inline(wfi_net *net)
{
    atomic_store_explicit(&net->inline_thread, pthread_self(), memory_order_relaxed);
    atomic_store_explicit(&net->inline_fiber, wfi_fiber_current(), memory_order_relaxed);
    atomic_store_explicit(&net->inline_busy, true, memory_order_release);
}

static void end_inline(wfi_net *net)
{
    atomic_store_explicit(&net->inline_busy, false, memory_order_release);
}

static void run_inline(wfi_net *net, wfi_task *task)
{
    begin_inline(net);
    task->run(task);
    end_inline(net);
}

bool wfi_net_is_inline(wfi_net *net)
{
    return atomic_load(&net->inline_busy) && pthread_equal(atomic_load(&net->inline_thread), pthread_self()) &&
           atomic_load(&net->inline_fiber) == wfi_fiber_current();
}

static wfi_task *next_task(wfi_list *list)
{
    return wfi_container_of(wfi_list_pop_front(list), wfi_task, link);
}

/* Users' destructors run here. */
static void run_releases(wfi_net *net, wfi_list *releases, bool holds_token)
{
    if (wfi_list_empty(releases))
        return;
    if (holds_token)
        begin_inline(net);
    while (!wfi_list_empty(releases)) {
        wfi_task *task = next_task(releases);
        task->run(task);
    }
    if (holds_token)
        end_inline(net);
    atomic_fetch_sub_explicit(&net->releasing, 1, memory_order_release);
}

bool wfi_net_is_released(const wfi_net *net)
{
    wfi_assert_held(&net->lock);
    return wfi_list_empty(&net->deferred[WFI_DEFER_RELEASE]) &&
           atomic_load_explicit(&net->releasing, memory_order_acquire) == 0;
}

wfi_task *wfi_net_unlock_as(wfi_net *net, wfi_role role)
{
    wfi_list lists[3];
    wfi_task *mine = NULL;
    wfi_net_settle(net);
    net->in_round = false;
    for (int kind = 0; kind < 3; kind++) {
        wfi_list_init(&lists[kind]);
        wfi_list_splice(&lists[kind], &net->deferred[kind]);
    }
    if (!wfi_list_empty(&lists[WFI_DEFER_RELEASE]))
        atomic_fetch_add_explicit(&net->releasing, 1, memory_order_relaxed);
    wfi_mutex_unlock(&net->lock);
    run_releases(net, &lists[WFI_DEFER_RELEASE], role != WFI_OTHER);
    bool may_inline = role == WFI_POLLER || role == WFI_LEADER || role == WFI_MANUAL;
    while (!wfi_list_empty(&lists[WFI_DEFER_INLINE])) {
        wfi_task *task = next_task(&lists[WFI_DEFER_INLINE]);
        if (may_inline)
            run_inline(net, task);
        else
            wfi_executor_submit(net->executor, task);
    }
    if (role == WFI_LEADER && !wfi_list_empty(&lists[WFI_DEFER_WORKER]))
        mine = next_task(&lists[WFI_DEFER_WORKER]);
    while (!wfi_list_empty(&lists[WFI_DEFER_WORKER]))
        wfi_executor_submit(net->executor, next_task(&lists[WFI_DEFER_WORKER]));
    return mine;
}

void wfi_net_unlock(wfi_net *net)
{
    (void)wfi_net_unlock_as(net, WFI_OTHER);
}
