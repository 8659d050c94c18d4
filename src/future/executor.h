/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor.h - where handlers and continuations run.
 *
 * There are three forms with one interface:
 *   1. threads: workers are started on demand, up to `workers`; while one blocks in a wait, another takes its place, up
 *      to a limit;
 *   2. fibers: each task runs on a fiber of the simulation;
 *   3. manual: tasks run when the owner calls wfi_executor_run_some.
 * Tasks of the same urgency start in the order in which they were submitted. Urgent tasks start before others and lazy
 * ones after them; but one start in WFI_OLDEST_EVERY is that of the oldest task of all, so that none waits for ever.
 *
 * An idle worker calls the idle hook, which may read the network in that worker's stead. The hook returns when it has
 * made a task for this worker, or when wfi_executor_set_idle's `nudge` tells it to.
 *
 * LOCKING. Any thread may submit. A task runs without any lock of the executor's. The inside is described in
 * executor_impl.h.
 * LIFETIME. Futures hold a reference to their executor. wfi_executor_destroy runs what is queued and ends the workers.
 */
#ifndef WFI_EXECUTOR_H
#define WFI_EXECUTOR_H

#include "base/clock.h"
#include "base/fiber.h"
#include "base/list.h"
#include "base/parker.h"

#include <weft/status.h>

typedef struct wfi_executor wfi_executor;

typedef enum wfi_urgency { WFI_NORMAL, WFI_URGENT, WFI_LAZY, WFI_URGENCIES } wfi_urgency;
#define WFI_OLDEST_EVERY 16

/* One piece of work, embedded in its object. The executor forgets it before it calls run. */
typedef struct wfi_task {
    wfi_list link;
    void (*run)(struct wfi_task *task);
    wfi_urgency urgency; /* zeroed: normal */
    uint64_t order;      /* the executor's own: by submission */
} wfi_task;

typedef struct wfi_executor_options {
    int workers;                       /* threads that may run user code at once; >= 1 */
    int compensation;                  /* further ones while others block; default 256 */
    wfi_fibers *fibers;                /* not NULL: the fiber form */
    int group;                         /* fibers' group */
    bool manual;                       /* the manual form */
    const char *thread_name;           /* up to 15 bytes */
    void (*thread_started)(void *arg); /* on each new worker: binding, say */
    void *started_arg;
} wfi_executor_options;

/* WEFT_ERR_INVALID, WEFT_ERR_MEMORY. */
weft_status wfi_executor_create(const wfi_executor_options *options, wfi_executor **out);
/*
 * Runs what is queued, ends the workers, drops the creator's reference. Not from a task of its own. What is submitted
 * later (a continuation of a future that outlived its agent) goes to the process's executor; in the fiber form, to a
 * fiber as before, as long as the scheduler is there.
 */
void wfi_executor_destroy(wfi_executor *executor);
wfi_executor *wfi_executor_ref(wfi_executor *executor); /* futures hold their executor */
void wfi_executor_unref(wfi_executor *executor);
bool wfi_executor_has_ended(
    const wfi_executor *executor); /* destroy was called: its agent's driver is not to be used */
/*
 * In a child of fork(), before anything else there: its threads, of which one may have held its lock, did not come along.
 * What was queued is forgotten, for the parent runs it; what is submitted later never runs; no worker is started.
 */
void wfi_executor_forked(wfi_executor *executor);
/*
 * Whoever is inside an agent's driver visits the agent's executor meanwhile: destroy calls the visitors out (by their
 * parkers) and waits until they have left, so that the network may be freed after it. enter is false once destroy was
 * called. The simulation's fibers need not visit: they touch nothing of the network after they slept.
 */
typedef struct wfi_visit {
    wfi_list link;
    wfi_parker *parker;
} wfi_visit;
bool wfi_executor_enter(wfi_executor *executor, wfi_visit *visit, wfi_parker *parker);
void wfi_executor_leave(wfi_executor *executor, wfi_visit *visit);
void wfi_executor_call_visitors(wfi_executor *executor); /* unparks all: they look again at what they wait for */

/* The process's own (threads), for futures without an agent. Started at first use, never ended. */
wfi_executor *wfi_executor_process(void);

void wfi_executor_submit(wfi_executor *executor, wfi_task *task); /* any thread; never fails, never runs it inline */

/*
 * The hook: drive the network; return a task to run on this worker at once, or NULL. Set before any submit. One worker at
 * a time is inside it. nudge() makes that worker return soon: it is called with the executor's lock held and perhaps any
 * lock of the submitter's, so it takes no lock and does not wait; it may come just before the hook begins or just after
 * it has returned, and the hook must not sleep over one that came before (keep it as a flag, or ask
 * wfi_executor_has_work after announcing that one sleeps). A needless return is harmless.
 */
typedef wfi_task *(*wfi_idle_hook)(void *arg);
void wfi_executor_set_idle(wfi_executor *executor, wfi_idle_hook hook, void *arg, void (*nudge)(void *arg));
/* Whether a worker inside the hook should return to look at the queue, or to end. No lock; any thread. */
bool wfi_executor_has_work(const wfi_executor *executor);
/*
 * Whether tasks are queued while every worker waits in one, so that none will be taken before a wait ends. *taken: how many tasks
 * were taken, ever: unchanged after a while, with the same answer, nothing moves.
 */
bool wfi_executor_is_stuck(wfi_executor *executor, uint64_t *taken);
/* Takes a queued task that would run this function out of the queue; NULL if there is none. */
wfi_task *wfi_executor_withdraw(wfi_executor *executor, void (*run)(wfi_task *task));
bool wfi_executor_idle(wfi_executor *executor); /* nothing queued, running, or blocked in a wait */

/* Manual form: runs what is queued now, and begins none after until_ns. */
size_t wfi_executor_run_some(wfi_executor *executor, const wfi_clock *clock, uint64_t until_ns);

/* Around a wait of the calling flow of control: if it is one of an executor's workers, another may take its place.
 * They nest. */
void wfi_executor_block_begin(void);
void wfi_executor_block_end(void);
/* The executor whose worker the calling thread is, or whose tasks it runs by hand; NULL. */
wfi_executor *wfi_executor_current(void);

#endif
