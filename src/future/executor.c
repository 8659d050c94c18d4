/* SPDX-License-Identifier: Apache-2.0 */
/* executor.c - the queues, the counts of workers, and waking workers; see executor_impl.h. */
#include "base/alloc.h"
#include "future/executor_impl.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMPENSATION_DEFAULT 256
#define PROCESS_WORKERS_MAX 8

/* The worker of this thread; that of a fiber is in the fiber's slot. */
static _Thread_local wfi_worker *thread_worker;

void wfi_executor_set_thread_worker(wfi_worker *worker)
{
    thread_worker = worker;
}

wfi_worker *wfi_executor_current_worker(void)
{
    const wfi_fiber *fiber = wfi_fiber_current();
    return fiber ? fiber->slot : thread_worker;
}

static _Thread_local wfi_executor *run_by_hand; /* set while this thread is in wfi_executor_run_some */

wfi_executor *wfi_executor_current(void)
{
    wfi_worker *worker = wfi_executor_current_worker();
    return worker ? worker->executor : run_by_hand;
}

static void init(wfi_executor *executor, const wfi_executor_options *options)
{
    executor->options = *options;
    if (executor->options.compensation == 0)
        executor->options.compensation = COMPENSATION_DEFAULT;
    executor->worker_limit = options->workers;
    executor->total_limit = options->workers + executor->options.compensation;
    atomic_init(&executor->refs, 1);
    if (options->thread_name)
        strncpy(executor->thread_name, options->thread_name, sizeof(executor->thread_name) - 1);
    executor->options.thread_name = executor->thread_name;
    wfi_mutex_init(&executor->lock);
    for (int i = 0; i < WFI_URGENCIES; i++)
        wfi_list_init(&executor->queues[i]);
    wfi_list_init(&executor->all);
    wfi_list_init(&executor->followers);
    wfi_list_init(&executor->visits);
}

weft_status wfi_executor_create(const wfi_executor_options *options, wfi_executor **out)
{
    wfi_executor *executor;
    if (options->workers < 1 || options->workers > INT16_MAX || options->compensation < 0 ||
        options->compensation > INT16_MAX || (options->manual && options->fibers))
        return WEFT_ERR_INVALID;
    executor = wfi_calloc(1, sizeof(*executor));
    if (!executor)
        return WEFT_ERR_MEMORY;
    init(executor, options);
    *out = executor;
    return WEFT_OK;
}

static wfi_executor process_executor; /* static, so that making it cannot fail */
static pthread_once_t process_once = PTHREAD_ONCE_INIT;

static void make_process_executor(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    wfi_executor_options options = {.thread_name = "weft-process"};
    options.workers = processors < 2 ? 2 : processors > PROCESS_WORKERS_MAX ? PROCESS_WORKERS_MAX : (int)processors;
    init(&process_executor, &options);
}

/* The child of a fork has none of its threads, and one of these may have held its lock. */
static void make_in_child(void)
{
    memset(&process_executor, 0, sizeof(process_executor));
    make_process_executor();
}

static void init_process_executor(void)
{
    make_process_executor();
    (void)pthread_atfork(NULL, NULL, make_in_child);
}

wfi_executor *wfi_executor_process(void)
{
    pthread_once(&process_once, init_process_executor);
    return &process_executor;
}

wfi_executor *wfi_executor_ref(wfi_executor *executor)
{
    if (executor != &process_executor)
        atomic_fetch_add_explicit(&executor->refs, 1, memory_order_relaxed);
    return executor;
}

void wfi_executor_unref(wfi_executor *executor)
{
    if (!executor || executor == &process_executor ||
        atomic_fetch_sub_explicit(&executor->refs, 1, memory_order_acq_rel) != 1)
        return;
    assert(!atomic_load(&executor->queued) && executor->total == 0);
    wfi_mutex_fini(&executor->lock);
    free(executor);
}

bool wfi_executor_has_ended(const wfi_executor *executor)
{
    return atomic_load_explicit(&executor->ending, memory_order_acquire);
}

bool wfi_executor_has_waiting(const wfi_executor *executor)
{
    return atomic_load_explicit(&executor->blocked, memory_order_relaxed) > 0;
}

bool wfi_executor_has_work(const wfi_executor *executor)
{
    return atomic_load(&executor->queued) > 0 || atomic_load(&executor->ending);
}

bool wfi_executor_idle(wfi_executor *executor)
{
    wfi_mutex_lock(&executor->lock);
    bool idle = !atomic_load(&executor->queued) && executor->active == 0 && executor->blocked == 0;
    wfi_mutex_unlock(&executor->lock);
    return idle;
}

bool wfi_executor_is_stuck(wfi_executor *executor, uint64_t *taken)
{
    wfi_mutex_lock(&executor->lock);
    *taken = executor->taken;
    bool stuck = atomic_load(&executor->queued) && executor->active == 0 && executor->blocked > 0;
    wfi_mutex_unlock(&executor->lock);
    return stuck;
}

static wfi_task *find_queued(wfi_executor *executor, void (*run)(wfi_task *task))
{
    for (int i = 0; i < WFI_URGENCIES; i++) {
        wfi_list *queue = &executor->queues[i];
        for (wfi_list *link = queue->next; link != queue; link = link->next)
            if (wfi_container_of(link, wfi_task, link)->run == run)
                return wfi_container_of(link, wfi_task, link);
    }
    return NULL;
}

wfi_task *wfi_executor_withdraw(wfi_executor *executor, void (*run)(wfi_task *task))
{
    wfi_mutex_lock(&executor->lock);
    wfi_task *task = find_queued(executor, run);
    if (task) {
        wfi_list_remove(&task->link);
        atomic_fetch_sub(&executor->queued, 1);
    }
    wfi_mutex_unlock(&executor->lock);
    return task;
}

void wfi_executor_set_idle(wfi_executor *executor, wfi_idle_hook hook, void *arg, void (*wake_leader)(void *arg))
{
    wfi_mutex_lock(&executor->lock);
    assert(executor->total == 0 && "set before any submit");
    executor->hook = hook;
    executor->hook_arg = arg;
    executor->wake_leader = wake_leader;
    wfi_mutex_unlock(&executor->lock);
}

bool wfi_executor_may_take(const wfi_executor *executor)
{
    wfi_assert_held(&executor->lock);
    return executor->active < executor->worker_limit && atomic_load(&executor->queued) > 0;
}

static wfi_task *head_of(wfi_executor *executor, wfi_urgency urgency)
{
    wfi_list *queue = &executor->queues[urgency];
    return wfi_list_empty(queue) ? NULL : wfi_container_of(queue->next, wfi_task, link);
}

wfi_task *wfi_executor_take(wfi_executor *executor)
{
    static const wfi_urgency by_rank[] = {WFI_ENDING, WFI_URGENT, WFI_NORMAL, WFI_LAZY};
    wfi_task *next = NULL;
    wfi_assert_held(&executor->lock);
    if (!atomic_load_explicit(&executor->queued, memory_order_relaxed))
        return NULL;
    bool oldest = ++executor->taken % WFI_OLDEST_EVERY == 0;
    for (int i = 0; i < WFI_URGENCIES && (oldest || !next); i++) {
        wfi_task *head = head_of(executor, by_rank[i]);
        if (head && (!next || head->order < next->order))
            next = head;
    }
    if (!next) /* impossible: `queued` is not 0 */
        return NULL;
    wfi_list_remove(&next->link);
    atomic_fetch_sub(&executor->queued, 1);
    return next;
}

void wfi_executor_put_back(wfi_executor *executor, wfi_task *task)
{
    wfi_assert_held(&executor->lock);
    task->order = 0;
    wfi_list_push_front(&executor->queues[task->urgency], &task->link);
    atomic_fetch_add(&executor->queued, 1);
}

static void start_worker(wfi_executor *executor)
{
    bool started =
        executor->options.fibers ? wfi_simulation->worker_start(executor) : wfi_executor_start_thread(executor);
    if (!started) /* the task stays queued; the next submit, end of a task, or block tries again */
        return;
    executor->total++;
    executor->active++;
    atomic_store(&executor->has_worker, true);
}

int wfi_executor_need_worker(wfi_executor *executor)
{
    int errnum = 0;
    if (executor->options.manual || executor->options.fibers || atomic_load(&executor->has_worker))
        return 0;
    wfi_mutex_lock(&executor->lock);
    if (!executor->total && !executor->forked && !atomic_load(&executor->ending)) {
        start_worker(executor);
        errnum = executor->total ? 0 : executor->errnum;
    }
    wfi_mutex_unlock(&executor->lock);
    return errnum;
}

bool wfi_executor_wake_leader(wfi_executor *executor)
{
    wfi_assert_held(&executor->lock);
    if (!executor->leader || executor->leader_woken)
        return false;
    executor->leader_woken = true;
    executor->active++; /* like a follower that was woken */
    executor->wake_leader(executor->hook_arg);
    return true;
}

void wfi_executor_wake_worker(wfi_executor *executor)
{
    wfi_assert_held(&executor->lock);
    if (executor->options.manual || executor->forked || !wfi_executor_may_take(executor))
        return;
    if (executor->watched && executor->active > 0)
        return;
    if (!wfi_list_empty(&executor->followers)) {
        wfi_list *link = wfi_list_pop_front(&executor->followers);
        executor->active++; /* at once, so that the next submit does not rely on this worker */
        wfi_unpark(wfi_container_of(link, wfi_parker, link));
    } else if (wfi_executor_wake_leader(executor)) {
        return;
    } else if (executor->total < executor->total_limit) {
        start_worker(executor);
    }
}

static void queue(wfi_executor *executor, wfi_task *task)
{
    wfi_assert_held(&executor->lock);
    task->order = ++executor->submitted;
    wfi_list_push_back(&executor->queues[task->urgency], &task->link);
    atomic_fetch_add(&executor->queued, 1);
}

void wfi_executor_submit(wfi_executor *executor, wfi_task *task)
{
    if (executor->forked)
        return;
    wfi_mutex_lock(&executor->lock);
    if (executor->ended) {
        wfi_mutex_unlock(&executor->lock);
        wfi_executor_submit(wfi_executor_process(), task);
        return;
    }
    queue(executor, task);
    wfi_executor_wake_worker(executor);
    wfi_mutex_unlock(&executor->lock);
}

void wfi_executor_submit_led(wfi_executor *executor, wfi_list *tasks)
{
    if (executor->forked)
        return;
    wfi_mutex_lock(&executor->lock);
    assert(executor->leader);
    while (!wfi_list_empty(tasks))
        queue(executor, wfi_container_of(wfi_list_pop_front(tasks), wfi_task, link));
    wfi_mutex_unlock(&executor->lock);
}

void wfi_executor_run_tasks(wfi_executor *executor, wfi_task *task)
{
    wfi_assert_held(&executor->lock);
    executor->active++;
    while (task) {
        wfi_executor_wake_worker(executor); /* for other queued tasks */
        wfi_mutex_unlock(&executor->lock);
        task->run(task);
        wfi_mutex_lock(&executor->lock);
        task = executor->active <= executor->worker_limit ? wfi_executor_take(executor) : NULL;
    }
    executor->active--;
}

static wfi_task *take_locking(wfi_executor *executor)
{
    wfi_task *task;
    wfi_mutex_lock(&executor->lock);
    task = wfi_executor_take(executor);
    wfi_mutex_unlock(&executor->lock);
    return task;
}

size_t wfi_executor_run_some(wfi_executor *executor, const wfi_clock *clock, uint64_t until_ns)
{
    /* Takes tasks one by one: a task that waits calls this function again, and must find the later ones. */
    size_t limit = atomic_load(&executor->queued), done = 0;
    wfi_task *task;
    wfi_executor *outer = run_by_hand;
    assert(executor->options.manual);
    run_by_hand = executor;
    while (done < limit && (task = take_locking(executor))) {
        task->run(task);
        done++;
        if (wfi_now(clock) >= until_ns)
            break;
    }
    run_by_hand = outer;
    return done;
}

void wfi_executor_block_begin(void)
{
    wfi_worker *worker = wfi_executor_current_worker();
    wfi_executor *executor;
    if (!worker || worker->block_depth++ > 0)
        return;
    executor = worker->executor;
    wfi_mutex_lock(&executor->lock);
    executor->active--;
    executor->blocked++;
    wfi_executor_wake_worker(executor);
    wfi_mutex_unlock(&executor->lock);
}

void wfi_executor_block_end(void)
{
    wfi_worker *worker = wfi_executor_current_worker();
    wfi_executor *executor;
    if (!worker || --worker->block_depth > 0)
        return;
    executor = worker->executor;
    wfi_mutex_lock(&executor->lock);
    executor->blocked--;
    executor->active++;
    wfi_mutex_unlock(&executor->lock);
}

void wfi_executor_forked(wfi_executor *executor)
{
    wfi_mutex_init(&executor->lock);
    for (int i = 0; i < WFI_URGENCIES; i++) /* the parent runs these */
        wfi_list_init(&executor->queues[i]);
    atomic_store(&executor->queued, 0);
    wfi_list_init(&executor->followers);
    wfi_list_init(&executor->visits);
    executor->hook = NULL; /* a handler that forked and returned must not lead */
    executor->forked = true;
}

bool wfi_executor_enter(wfi_executor *executor, wfi_visit *visit, wfi_parker *parker)
{
    visit->parker = parker;
    wfi_list_init(&visit->link);
    wfi_mutex_lock(&executor->lock);
    bool open = !atomic_load(&executor->ending);
    if (open)
        wfi_list_push_back(&executor->visits, &visit->link);
    wfi_mutex_unlock(&executor->lock);
    return open;
}

void wfi_executor_leave(wfi_executor *executor, wfi_visit *visit)
{
    wfi_mutex_lock(&executor->lock);
    wfi_list_remove(&visit->link);
    wfi_mutex_unlock(&executor->lock);
}

void wfi_executor_wake_visitors(wfi_executor *executor)
{
    wfi_mutex_lock(&executor->lock);
    for (wfi_list *link = executor->visits.next; link != &executor->visits; link = link->next)
        wfi_unpark(wfi_container_of(link, wfi_visit, link)->parker);
    wfi_mutex_unlock(&executor->lock);
}

/* A visitor leaves as soon as it is unparked, so yielding is enough. */
static void send_visitors_out(wfi_executor *executor)
{
    wfi_mutex_lock(&executor->lock);
    while (!wfi_list_empty(&executor->visits)) {
        for (wfi_list *link = executor->visits.next; link != &executor->visits; link = link->next)
            wfi_unpark(wfi_container_of(link, wfi_visit, link)->parker);
        wfi_mutex_unlock(&executor->lock);
        sched_yield();
        wfi_mutex_lock(&executor->lock);
    }
    wfi_mutex_unlock(&executor->lock);
}

void wfi_executor_destroy(wfi_executor *executor)
{
    wfi_task *task;
    if (!executor)
        return;
    assert(executor != &process_executor);
    assert(wfi_executor_current() != executor && "not from a task of its own");
    if (executor->options.fibers)
        wfi_simulation->workers_join(executor);
    else
        wfi_executor_join_threads(executor);
    while ((task = take_locking(executor))) /* in the manual form, or if no worker could be made */
        task->run(task);
    if (!executor->options.fibers)
        send_visitors_out(executor);
    wfi_mutex_lock(&executor->lock);
    executor->ended = !executor->options.fibers;
    wfi_mutex_unlock(&executor->lock);
    wfi_executor_unref(executor);
}
