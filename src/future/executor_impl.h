/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_impl.h - the executor's inside, for executor.c, executor_threads.c and executor_fibers.c.
 *
 * LOCKING. `lock` guards everything but the atomics and what is set once before the first submit. It is a leaf: under it
 * only workers are unparked, threads or fibers created, and nudge called. No task, hook or thread_started runs under it.
 * `queued` and `ending` mirror guarded state for wfi_executor_has_work, which takes no lock; they are written under it.
 *
 * WORKERS. Each worker is in one of four states:
 *   active    runs a task, or is on its way to the queue;
 *   blocked   is inside a wait of its task (wfi_executor_block_begin);
 *   leading   is inside the idle hook; at most one, `leader`;
 *   following parked, in `followers`, the last that became idle first, because its cache is warm.
 * One that was called (a follower unparked, the leader nudged, a new one) counts as active at once, so that no two callers
 * count on the same free place.
 * A worker takes a task only while fewer than `worker_limit` others are active. When a wait ends there may be more active
 * ones for a moment, because nobody who returns from a wait is stopped: those who finish next become followers instead of
 * taking a task. New workers are made up to worker_limit + compensation in all, and only while fewer than worker_limit are
 * active. So a queued task stands still only while worker_limit tasks really run, or all compensation is used up.
 *
 * QUEUES. One for each urgency. A leader that comes back with a task while others are queued puts it at the head of its queue
 * and takes the one that is next, so that urgency counts on that road too.
 *
 * WAKING. `call_worker` gets one more worker going for a queued task: a follower if there is one; else the leader, by
 * nudge, once per stay in the hook; else a new one. It is called by whoever makes work that nobody may be coming for: a
 * submit; a worker that starts a task while others are queued; a worker that blocks; a worker that takes its task from
 * the hook while others are queued. A leader that takes a task from the hook calls nobody when nothing is queued: waking
 * a follower only to lead would cost more than most tasks, and the network's poller steps in. A worker that finds nothing
 * queued leads if nobody does.
 *
 * FIBERS. The fiber form counts the same way, but its workers do not idle: a fiber that finds nothing to take ends, so that
 * a simulated program leaves nothing running. It has no leader; in the simulation the network has a fiber of its own.
 *
 * LIFE. Followers beyond worker_limit retire after a second; the next one that retires, or destroy, joins them. A worker's
 * struct lives until it is joined, and one that retires has left `followers` before, so a parker in there is always valid;
 * unparking happens under the lock, so no submit touches a worker after destroy could begin to free it. While ending, workers
 * leave only when the queue is empty and none is active or blocked: what a running task still submits is run too.
 */
#ifndef WFI_EXECUTOR_IMPL_H
#define WFI_EXECUTOR_IMPL_H

#include "base/mutex.h"
#include "future/executor.h"

typedef struct wfi_worker {
    wfi_list all;
    wfi_executor *executor;
    wfi_parker parker; /* its link is in followers */
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
    void (*nudge)(void *arg);

    wfi_mutex lock;
    wfi_list queues[WFI_URGENCIES];
    uint64_t submitted, taken; /* so many tasks, ever */
    _Atomic size_t queued;     /* in all queues */
    atomic_bool ending;
    bool over;    /* ending, and the last task has run: the workers leave */
    bool ended;   /* they have left */
    bool forked;  /* (constant) this is a child of fork(): what is submitted is dropped, nobody is called, none leads */
    wfi_list all; /* threads */
    int total;    /* workers that exist */
    int active, blocked;
    wfi_list followers;
    wfi_list visits; /* threads inside the agent's driver */
    bool leader, nudged;
    wfi_worker *retired; /* a thread that ended, or is about to; not joined yet */
    wfi_parker *closer;  /* fiber form: who waits in destroy for the workers to go */
};

bool wfi_executor_may_take(const wfi_executor *executor); /* a task, now; [lock] */
wfi_task *wfi_executor_take(wfi_executor *executor);      /* the queued one that is next, or NULL; [lock] */
/* Ahead of its like: it was to run already. [lock] */
void wfi_executor_put_back(wfi_executor *executor, wfi_task *task);
void wfi_executor_call_worker(wfi_executor *executor);  /* see WAKING; [lock] */
bool wfi_executor_nudge_leader(wfi_executor *executor); /* false if there is none to nudge; [lock] */
/* Runs `task` and what is queued behind it while this worker may. Not active before and after. [lock] but in tasks */
void wfi_executor_run_tasks(wfi_executor *executor, wfi_task *task);
bool wfi_executor_start_thread(wfi_executor *executor); /* counted as active; [lock] */
bool wfi_executor_start_fiber(wfi_executor *executor);  /* likewise */
void wfi_executor_join_threads(wfi_executor *executor); /* not [lock] */
void wfi_executor_join_fibers(wfi_executor *executor);  /* not [lock] */
wfi_worker *wfi_executor_current_worker(void);          /* of this thread or fiber; NULL */
void wfi_executor_set_thread_worker(wfi_worker *worker);

#endif
