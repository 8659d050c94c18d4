/* SPDX-License-Identifier: Apache-2.0 */
/* executor_threads.c - the workers of the thread form; the protocol is in executor_impl.h. */
#include "base/alloc.h"
#include "base/text/log.h"
#include "base/thread.h"
#include "future/executor_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SURPLUS_IDLE_NS (1000ull * 1000 * 1000)
#define WATCH_NS 50000
#define WATCH_IDLE 8  /* looks without a task until a watcher sleeps */
#define WATCH_BURST 4 /* tasks that all workers took since this one was woken: fewer are not worth a watch */
#define BRIEF_NS 3000 /* a brief task */

/* Whether the executor is ending and no more tasks can be submitted; then it stays true. [lock] */
static bool is_shut(wfi_executor *executor)
{
    if (atomic_load(&executor->ending) && !atomic_load(&executor->queued) && executor->active == 0 &&
        executor->blocked == 0)
        executor->is_shut = true;
    return executor->is_shut;
}

/* Wakes all idle workers, so that they end with the executor. [lock] */
static void release_idle(wfi_executor *executor)
{
    wfi_list *link;
    wfi_assert_held(&executor->lock);
    while ((link = wfi_list_pop_front(&executor->followers))) {
        executor->active++; /* like wake_worker */
        wfi_unpark(wfi_container_of(link, wfi_parker, link));
    }
    wfi_executor_wake_leader(executor);
}

/* Polls the network in the hook, and runs the task that the hook returns. [lock], released in hook and task */
static void lead(wfi_executor *executor)
{
    wfi_task *task;
    executor->leader = true;
    wfi_mutex_unlock(&executor->lock);
    task = executor->hook(executor->hook_arg);
    wfi_mutex_lock(&executor->lock);
    executor->leader = false;
    executor->active -= executor->leader_woken;
    executor->leader_woken = false;
    if (!task)
        return;
    bool first = !atomic_load(&executor->queued), may_run = executor->active < executor->worker_limit;
    if (!first || !may_run) /* other workers became active, and one will take it; or a more urgent task is queued */
        wfi_executor_put_back(executor, task);
    if (may_run)
        wfi_executor_run_tasks(executor, first ? task : wfi_executor_take(executor));
}

/* Not while the executor ends: then destroy joins all workers. */
static bool is_surplus(const wfi_executor *executor)
{
    return executor->total > executor->worker_limit && !atomic_load(&executor->ending);
}

/* Whether a watcher that has looked goes on. `taken`: the tasks that were taken before. If all workers that may run are
 * active, it is of no use: the next one that ends takes a task, and one that blocks wakes a follower. [lock] */
static bool watches_on(const wfi_executor *executor, uint64_t taken, unsigned *idle)
{
    if (executor->active >= executor->worker_limit)
        return false;
    bool is_idle = executor->taken == taken && !atomic_load(&executor->queued);
    *idle = is_idle ? *idle + 1 : 0;
    return *idle < WATCH_IDLE;
}

/*
 * Sleeps as a follower until woken; returns with the worker counted as not active. If no other follower watches, it
 * watches first, and may return by itself to take a task (WATCHING). False: it was not woken for SURPLUS_IDLE_NS, and
 * there are more workers than may run, which an earlier burst of waits has made. [lock], released while it sleeps
 */
static bool follow(wfi_executor *executor, wfi_worker *worker)
{
    bool watches = !executor->watched && executor->worker_limit > 1 && !atomic_load(&executor->ending) &&
                   executor->taken - worker->taken >= WATCH_BURST;
    bool was_woken = true;
    unsigned idle = 0;
    uint64_t now = wfi_now(&wfi_clock_real);
    executor->watched |= watches;
    wfi_list_push_front(&executor->followers, &worker->parker.link);
    while (!wfi_list_empty(&worker->parker.link)) {
        uint64_t taken = executor->taken, checked_ns = now, until = WFI_NEVER;
        if (watches || is_surplus(executor))
            until = now + (watches ? WATCH_NS : SURPLUS_IDLE_NS);
        wfi_mutex_unlock(&executor->lock);
        bool unparked = wfi_park(&worker->parker, until);
        wfi_mutex_lock(&executor->lock);
        if (unparked || wfi_list_empty(&worker->parker.link))
            continue;
        now = wfi_now(&wfi_clock_real);
        bool are_brief = (executor->taken - taken) * BRIEF_NS >= now - checked_ns;
        if (watches && wfi_executor_may_take(executor) && !are_brief) { /* goes and takes a task by itself */
            was_woken = false;
            wfi_list_remove(&worker->parker.link);
        } else if (watches && !watches_on(executor, taken, &idle)) { /* from now on sleeps until it is woken */
            executor->watched = watches = false;
        } else if (!watches && is_surplus(executor)) {
            wfi_list_remove(&worker->parker.link);
            return false;
        }
    }
    if (watches)
        executor->watched = false;
    worker->taken = executor->taken;
    executor->active -= was_woken; /* wake_worker had counted it */
    return true;
}

static void join(wfi_worker *worker)
{
    if (!worker)
        return;
    pthread_join(worker->thread, NULL);
    free(worker);
}

/* Ends a worker before the executor ends. Each retiring worker joins the one before, so at most one is left for destroy
 * to join. [lock], which it releases */
static void retire(wfi_executor *executor, wfi_worker *worker)
{
    wfi_worker *before = executor->retired;
    wfi_assert_held(&executor->lock);
    wfi_list_remove(&worker->all);
    executor->total--;
    executor->retired = worker;
    wfi_mutex_unlock(&executor->lock);
    join(before);
}

static void work(wfi_executor *executor, wfi_worker *worker)
{
    wfi_mutex_lock(&executor->lock);
    executor->active--; /* start_worker had counted it */
    while (!is_shut(executor)) {
        if (wfi_executor_may_take(executor)) {
            wfi_executor_run_tasks(executor, wfi_executor_take(executor));
        } else if (executor->hook && !executor->leader && executor->active < executor->worker_limit &&
                   !atomic_load(&executor->ending)) {
            lead(executor);
        } else if (!follow(executor, worker)) {
            retire(executor, worker);
            return;
        }
    }
    release_idle(executor);
    wfi_mutex_unlock(&executor->lock);
}

static void *thread_main(void *arg)
{
    wfi_worker *worker = arg;
    wfi_executor *executor = worker->executor;
    if (executor->thread_name[0] != '\0')
        pthread_setname_np(pthread_self(), executor->thread_name);
    wfi_executor_set_thread_worker(worker);
    wfi_parker_init(&worker->parker);
    if (executor->options.thread_started)
        executor->options.thread_started(executor->options.started_arg);
    work(executor, worker);
    return NULL;
}

bool wfi_executor_start_thread(wfi_executor *executor)
{
    wfi_worker *worker = wfi_calloc(1, sizeof(*worker));
    char why[WFI_THREAD_STRERROR];
    int rc;
    wfi_assert_held(&executor->lock);
    if (!worker) {
        if (executor->errnum != ENOMEM)
            wfi_log(WEFT_LOG_ERROR, "out of memory for a worker thread; %d run", executor->total);
        executor->errnum = ENOMEM;
        return false;
    }
    worker->executor = executor;
    rc = wfi_thread_start(&worker->thread, thread_main, worker, NULL);
    if (rc != 0) {
        if (executor->errnum != rc)
            wfi_log(WEFT_LOG_ERROR, "no new worker thread: %s; %d run", wfi_thread_strerror(rc, why), executor->total);
        executor->errnum = rc;
        free(worker);
        return false;
    }
    executor->errnum = 0;
    wfi_list_push_back(&executor->all, &worker->all);
    return true;
}

void wfi_executor_join_threads(wfi_executor *executor)
{
    wfi_list *link;
    wfi_mutex_lock(&executor->lock);
    atomic_store(&executor->ending, true);
    wfi_executor_wake_worker(executor);
    release_idle(executor);
    /* A running task may make another worker, so the list is read again after each join. */
    while ((link = wfi_list_pop_front(&executor->all))) {
        wfi_mutex_unlock(&executor->lock);
        join(wfi_container_of(link, wfi_worker, all));
        wfi_mutex_lock(&executor->lock);
        executor->total--;
    }
    wfi_worker *last = executor->retired;
    executor->retired = NULL;
    wfi_mutex_unlock(&executor->lock);
    join(last);
}
