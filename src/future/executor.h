/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor.h - runs handlers and continuations.
 *
 * There are three forms with one interface:
 *   1. threads: workers are started on demand, up to `workers`; while one blocks in a wait, another one replaces it, up
 *      to a limit;
 *   2. fibers: each task runs on a fiber of the simulation;
 *   3. manual: tasks run when the owner calls wfi_executor_run_some.
 * Tasks of the same urgency start in the order in which they were submitted. Urgent tasks start before others and lazy
 * ones after them. Tasks that end something, and so release memory (WFI_ENDING), start before urgent ones. But every
 * WFI_OLDEST_EVERYth task that starts is the oldest of all, so that none waits forever.
 *
 * An idle worker calls the idle hook, in which it polls the network. The hook returns when it has a task for this
 * worker, or when `wake_leader` of wfi_executor_set_idle was called.
 *
 * LOCK. Any thread may submit. A task runs without any lock of the executor. executor_impl.h describes the internals.
 * LIFETIME. Futures hold a reference to their executor. wfi_executor_destroy runs the queued tasks and ends the
 * workers.
 */
#ifndef WFI_EXECUTOR_H
#define WFI_EXECUTOR_H

#include "base/clock.h"
#include "base/simulation.h"
#include "base/list.h"
#include "base/parker.h"

#include <weft/status.h>

typedef struct wfi_executor wfi_executor;

typedef enum wfi_urgency { WFI_NORMAL, WFI_URGENT, WFI_LAZY, WFI_ENDING, WFI_URGENCIES } wfi_urgency;
#define WFI_OLDEST_EVERY 16

/* One piece of work, embedded in its object. The executor does not use it after it has called `run`. */
typedef struct wfi_task {
    wfi_list link;
    void (*run)(struct wfi_task *task);
    wfi_urgency urgency; /* zeroed: normal */
    uint64_t order;      /* for the executor: the number of its submission */
} wfi_task;

typedef struct wfi_executor_options {
    int workers;                       /* threads that may run user code at once; >= 1 */
    int compensation;                  /* most further threads while others block; default 256 */
    wfi_fibers *fibers;                /* not NULL: the fiber form */
    int group;                         /* fibers' group */
    bool manual;                       /* the manual form */
    const char *thread_name;           /* up to 15 bytes */
    void (*thread_started)(void *arg); /* called on each new worker, for example to bind it */
    void *started_arg;
} wfi_executor_options;

/* WEFT_ERR_INVALID, WEFT_ERR_MEMORY. */
weft_status wfi_executor_create(const wfi_executor_options *options, wfi_executor **out);
/*
 * Runs the queued tasks, ends the workers, drops the creator's reference. Must not be called by a task of the executor.
 * Tasks that are submitted later (continuations of a future that outlived its agent) run on the process's executor; in
 * the fiber form, on a fiber as before, while the scheduler exists.
 */
void wfi_executor_destroy(wfi_executor *executor);
wfi_executor *wfi_executor_ref(wfi_executor *executor); /* futures hold their executor */
void wfi_executor_unref(wfi_executor *executor);
bool wfi_executor_has_waiting(const wfi_executor *executor); /* whether a task waits now; takes no lock */
bool wfi_executor_has_ended(const wfi_executor *executor); /* destroy was called: the agent's driver must not be used */
/*
 * Called first in a child of fork(2), which has no threads of the executor; one of them may have held the lock. Queued
 * tasks are dropped, because the parent runs them. Tasks that are submitted later never run; no worker is started.
 */
void wfi_executor_forked(wfi_executor *executor);
/*
 * A thread inside an agent's driver registers as a visitor of the agent's executor. wfi_executor_destroy unparks the
 * visitors and waits until they have left, so that the network may be freed afterwards. wfi_executor_enter returns
 * false after destroy was called. Fibers of the simulation are not registered: they do not use the network after a
 * sleep.
 */
typedef struct wfi_visit {
    wfi_list link;
    wfi_parker *parker;
} wfi_visit;
bool wfi_executor_enter(wfi_executor *executor, wfi_visit *visit, wfi_parker *parker);
void wfi_executor_leave(wfi_executor *executor, wfi_visit *visit);
void wfi_executor_wake_visitors(wfi_executor *executor); /* unparks all: they check again whether their wait is over */

/* The process's executor (of the thread form), for futures without an agent. Started at the first use, never ended. */
wfi_executor *wfi_executor_process(void);

void wfi_executor_submit(wfi_executor *executor, wfi_task *task); /* any thread; never fails, never runs it inline */
/* Queues tasks for the leader, which has to leave the hook now with another task. Only in the hook. */
void wfi_executor_submit_led(wfi_executor *executor, wfi_list *tasks);

/*
 * The hook polls the network, and returns a task that this worker runs at once, or NULL. It is set before any submit.
 * One worker at a time, the leader, is inside it. wake_leader() makes it return soon. That is called with the
 * executor's lock held, and perhaps any lock of the submitting thread, so it must take no lock and not wait. It may be
 * called just before the hook begins or just after it has returned. The hook must not miss a call that came before its
 * sleep (keep a flag, or call wfi_executor_has_work after announcing the sleep). An unnecessary return is harmless.
 */
typedef wfi_task *(*wfi_idle_hook)(void *arg);
void wfi_executor_set_idle(wfi_executor *executor, wfi_idle_hook hook, void *arg, void (*wake_leader)(void *arg));
/* Whether a worker inside the hook should return, because tasks are queued or the executor ends. No lock; any
 * thread. */
bool wfi_executor_has_work(const wfi_executor *executor);
/*
 * Whether tasks are queued while every worker waits in a task, so that none will be taken before a wait ends. *taken is
 * the total number of taken tasks. If it is unchanged at a later call with the same result, the executor is stuck.
 */
bool wfi_executor_is_stuck(wfi_executor *executor, uint64_t *taken);
/* Starts a worker if there is none. Returns 0, or the errno value with which no thread can be started: then a submitted
 * task would wait. Any thread, with any lock held. */
int wfi_executor_need_worker(wfi_executor *executor);
/* Removes a queued task with this `run` from the queue, and returns it; NULL if there is none. */
wfi_task *wfi_executor_withdraw(wfi_executor *executor, void (*run)(wfi_task *task));
bool wfi_executor_idle(wfi_executor *executor); /* nothing queued, running, or blocked in a wait */

/* Manual form: runs the tasks that are queued now, and begins none after until_ns. */
size_t wfi_executor_run_some(wfi_executor *executor, const wfi_clock *clock, uint64_t until_ns);

/* Called before and after a wait: if the caller is a worker of an executor, another worker may replace it meanwhile.
 * The calls may be nested. */
void wfi_executor_block_begin(void);
void wfi_executor_block_end(void);
/* The executor of which the caller is a worker, or whose wfi_executor_run_some it is in; otherwise NULL. */
wfi_executor *wfi_executor_current(void);

#endif
