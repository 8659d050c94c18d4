/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_impl.h - the internals of the executor, for executor.c, executor_threads.c and sim/threads.c.
 *
 * LOCK. `lock` guards everything except the atomics and the fields that are set once before the first submit. It is a
 * leaf: code that holds it only unparks workers, creates threads or fibers, and calls wake_leader. No task, hook or
 * thread_started runs under it. `queued` and `ending` are atomic for wfi_executor_has_work, which takes no lock; they
 * are written under it.
 *
 * WORKERS. Each worker is in one of four states:
 *   active    runs a task, or is about to take one;
 *   blocked   is inside a wait of its task (wfi_executor_block_begin);
 *   leading   is inside the idle hook; at most one, `leader`;
 *   following parked, in `followers`. The worker that became idle last is first, because its cache is warm.
 * A worker that was woken (a follower unparked, the leader woken, a new one) counts as active at once, so that two
 * threads do not rely on the same worker.
 * A worker takes a task only while fewer than `worker_limit` others are active. When waits end, more may be active for
 * a short time, because a worker that returns from a wait is not stopped; workers that finish then become followers
 * instead of taking a task. New workers are made up to worker_limit + compensation in total, and only while fewer than
 * worker_limit are active. So a queued task waits only while worker_limit tasks really run, while a follower watches,
 * or if total_limit workers exist.
 *
 * QUEUES. One for each urgency. If a leader returns with a task while others are queued, it puts the task at the head
 * of its queue and takes the next one, so that the order by urgency is kept.
 *
 * WAKING. `wake_worker` wakes one more worker for a queued task: a follower if there is one; otherwise the leader,
 * by wake_leader, once per stay in the hook; otherwise it makes a new one. It is used when a queued task may have no
 * worker: by a submit; by a worker that starts a task while others are queued; by a worker that blocks; by a worker
 * that takes its task from the hook while others are queued. A leader that takes a task from the hook wakes nobody
 * if nothing is queued: waking a follower only to lead would cost more than most tasks, and the network's poller
 * polls instead. It also wakes nobody for the other tasks of the same poll (wfi_executor_submit_led) until it has
 * begun the first. A worker that finds nothing queued leads if there is no leader.
 *
 * WATCHING. Waking a worker costs more than running a very short task. So at most one follower watches: instead of
 * sleeping until it is woken, it wakes every WATCH_NS and checks the queue. A worker begins to watch if at least
 * WATCH_BURST tasks were taken since it was woken. It takes a task if some are queued, and those taken since it
 * checked before took more than BRIEF_NS each on average. It ends watching after WATCH_IDLE checks without a task,
 * or if as many workers are active as may be. While it watches, wake_worker does nothing if a worker is active. So a
 * task that is queued behind a long one waits for two checks at most before a further worker takes it: 100 to 250
 * us, with the usual timer slack of 50 us.
 *
 * FIBERS. The fiber form counts in the same way, but its workers do not idle: a fiber that finds no task ends, so that
 * a simulated program leaves nothing running. It has no leader; in the simulation the network has its own fiber.
 *
 * LIFETIME. Followers beyond worker_limit retire after a second; the next one that retires, or destroy, joins them. A
 * worker's struct exists until the worker is joined. A worker that retires leaves `followers` before. So the parkers in
 * that list are valid. Unparking happens under the lock, because destroy may free the worker afterwards. While the
 * executor ends, workers leave only when the queue is empty and none is active or blocked. So tasks that a running task
 * submits are run too.
 */
#ifndef WFI_EXECUTOR_IMPL_H
#define WFI_EXECUTOR_IMPL_H

#include "base/mutex.h"
#include "future/executor.h"

typedef struct wfi_worker {
    wfi_list all;
    wfi_executor *executor;
    wfi_parker parker; /* its link is in followers */
    uint64_t taken;    /* the executor's number of taken tasks when this worker was woken last */
    int block_depth;
    pthread_t thread;
} wfi_worker;

struct wfi_executor {
    wfi_executor_options options;
    int worker_limit, total_limit;
    _Atomic uint32_t refs;
    char thread_name[16];

    wfi_idle_hook hook;
    void *hook_arg;
    void (*wake_leader)(void *arg);

    wfi_mutex lock;
    wfi_list queues[WFI_URGENCIES];
    uint64_t submitted, taken; /* total numbers of tasks */
    _Atomic size_t queued;     /* tasks in all queues */
    atomic_bool ending;
    bool is_shut; /* ending, and the last task has run: the workers leave */
    bool ended;   /* the workers have left */
    bool forked;  /* (constant) in a child of fork(2): submitted tasks are dropped, no worker is woken or leads */
    wfi_list all; /* threads */
    int total;    /* workers that exist */
    int active;
    atomic_int blocked; /* written under the lock */
    wfi_list followers;
    wfi_list visits; /* threads inside the agent's driver */
    bool leader, leader_woken;
    bool watched;           /* a follower watches */
    atomic_bool has_worker; /* there is a thread; then there always is one until the end */
    int errnum;             /* errno value if the last thread could not be started; logged when it changes */
    wfi_worker *retired;    /* a thread that has ended, or is about to end, and is not joined yet */
    wfi_parker *closer;     /* fiber form: of the thread in destroy that waits until the workers have left */
};

bool wfi_executor_may_take(const wfi_executor *executor); /* whether a worker may take a task now; [lock] */
wfi_task *wfi_executor_take(wfi_executor *executor);      /* takes the next queued task, or NULL; [lock] */
/* Puts it at the head of its queue. [lock] */
void wfi_executor_put_back(wfi_executor *executor, wfi_task *task);
void wfi_executor_wake_worker(wfi_executor *executor); /* see WAKING; [lock] */
bool wfi_executor_wake_leader(wfi_executor *executor); /* false if no leader can be leader_woken; [lock] */
/* Runs `task` and further queued tasks while this worker may take them. Before and after, the worker is not active.
 * [lock], released while a task runs */
void wfi_executor_run_tasks(wfi_executor *executor, wfi_task *task);
bool wfi_executor_start_thread(wfi_executor *executor); /* counted as active; [lock] */
void wfi_executor_join_threads(wfi_executor *executor); /* not [lock] */
wfi_worker *wfi_executor_current_worker(void);          /* of this thread or fiber; NULL */
void wfi_executor_set_thread_worker(wfi_worker *worker);

#endif
