/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h - the agent's lock, the tasks that run when it is released, timers, and the threads that poll for events.
 *
 * PARTS. A wfi_progress has the agent's lock; tasks that run without it (wfi_progress_defer); timers; the time of the
 * current round; and a driver, with which a thread that waits for a future makes progress itself. It polls sources
 * (wfi_source): the open fabrics and, if there are no threads, the link to the store. It depends on neither.
 *
 * POLLING. One thread at a time polls, the holder of the token (token.c): the poller, the leader (an idle thread of the
 * executor, in its idle hook), or a thread that waits for a future. Another thread, the event thread, waits for the
 * connection events of all sources (events.c). Without threads the caller of wfi_progress_run, or a waiting
 * thread, polls. In the simulation one fiber does.
 *
 * LOCK. `lock` guards every field here whose comment does not say otherwise, and all data that the layers above share
 * between threads. Functions marked [locked] are called with it held. Fields marked (atomic) are read or written
 * without it; their comments say why. Fields marked (constant) are written only while opening, those marked [token]
 * only by the holder of the token. Code that holds the lock never blocks, runs no user code, and waits for no memory of
 * a peer.
 *
 * ENDS. The owner of a message or transfer that has ended (wfi_done) is not called in the middle of the work. The
 * wfi_done is put into a list, and the owners are called at the end, just before the lock is released.
 *
 * LIFETIME. wfi_progress_init is called first; sources are added before wfi_progress_start_threads.
 * wfi_progress_stop_threads ends the threads when all outstanding operations of the sources were reported, or after
 * two seconds. Locking, timers, defer and driver work until wfi_progress_fini.
 */
#ifndef WFI_PROGRESS_H
#define WFI_PROGRESS_H

#include "base/clock.h"
#include "base/list.h"
#include "base/mutex.h"
#include "base/parker.h"
#include "future/executor.h"
#include "future/future.h"
#include "topo/topo.h"

typedef struct wfi_progress wfi_progress;
typedef struct wfi_source wfi_source;

/* ---- Sources --------------------------------------------------------------------------------------------------- */

typedef enum wfi_expects {
    WFI_EXPECTS_NOTHING,  /* it has no connection */
    WFI_EXPECTS_MESSAGES, /* peers may send */
    WFI_EXPECTS_RESULTS,  /* operations of this worker are in flight, or those of peers proceed only while it polls */
} wfi_expects;

typedef struct wfi_source_ops { /* none is NULL */
    /* Reads completions, and keeps them for `take`. Returns their number. Token held, lock not. */
    size_t (*poll)(wfi_source *source);
    /* Handles the completions that `poll` read, and repeats posts that failed because a queue was full. [locked] */
    void (*take)(wfi_source *source);
    /* Reads and handles connection events, and returns their number; never waits. Only one thread at a time
     * is in `events`, events_arm or events_fd. Lock not held. */
    size_t (*events)(wfi_source *source);
    /* Before a sleep: false if there may be events already. Lowers *due_ns to the time when `events` must be called
     * even if the descriptor is not readable. */
    bool (*events_arm)(wfi_source *source, uint64_t *due_ns);
    /* After events_arm: a descriptor that is readable while there may be events; -1: none, and only *due_ns ends the
     * sleep. */
    int (*events_fd)(wfi_source *source);
    /* A descriptor that is readable when there are completions; -1: the source never has one. Any thread. */
    int (*wait_fd)(wfi_source *source);
    /* Before a sleep: false if there may be completions already. Otherwise the next one makes the descriptor of wait_fd
     * readable, or calls wfi_progress_ready. Token held. */
    bool (*may_sleep)(wfi_source *source);
    /* Which completions the next polls may find. Token held, lock not. */
    wfi_expects (*expects)(wfi_source *source);
    /* The number of objects with unreported operations: must be 0 before it can be closed. [locked] */
    size_t (*outstanding)(wfi_source *source);
} wfi_source_ops;

struct wfi_source {
    const wfi_source_ops *ops;
    uint64_t polled_ns; /* [token] its last poll */
    uint64_t found_ns;  /* [token] its last poll that found something */
    bool is_due;        /* [token] a sleep began since its last poll */
    uint32_t nap_ns; /* [token] the last nap that a sleeper took because this source has no descriptor; 0: none yet */
};

#define WFI_SOURCES 5 /* four fabrics, and the link to the store */

/* One source's events, for the thread that reads them (events.c). */
typedef struct wfi_watch {
    bool due;        /* the source's `events` is to be called now */
    uint64_t due_ns; /* when `events` is to be called even if nothing happens */
} wfi_watch;

/* ---- Parts ----------------------------------------------------------------------------------------------------- */

/* Embedded in a message or transfer: calls its owner when it has ended. */
typedef struct wfi_done {
    wfi_list link;
    void (*run)(struct wfi_done *done); /* [locked] */
} wfi_done;
/* Ended messages are handled before ended transfers. */
typedef enum wfi_done_kind { WFI_DONE_MESSAGE, WFI_DONE_TRANSFER, WFI_DONE_KINDS } wfi_done_kind;

typedef enum wfi_defer_kind {
    /* Short work of weft, on the thread that unlocks: freeing (which may run destructors of the user's), refusals,
     * weft's own functions (WFI_AT_ONCE), the next attempt of a retry. */
    WFI_DEFER_RELEASE,
    WFI_DEFER_INLINE, /* an inline handler: on the poller, the leader, or in wfi_progress_run; or on the executor */
    WFI_DEFER_WORKER, /* user code: on the executor; a leader runs the first task itself */
    WFI_DEFER_KINDS,
} wfi_defer_kind;

typedef struct wfi_timer {
    uint64_t deadline_ns;
    void (*fire)(struct wfi_timer *timer); /* [locked] */
    size_t heap_index;                     /* for timer.c; 0: not set */
    bool reserved;                         /* wfi_timers_reserve has reserved memory for it */
} wfi_timer;

/* Checks memory that other processes write, in each round of progress: hook.c. */
typedef struct wfi_progress_hook {
    wfi_list link; /* in progress->hooks; hooks_lock */
    bool due;      /* hooks_lock */
    /* Whether the awaited change has come. hooks_lock; called in each round, so it takes nanoseconds. */
    bool (*is_due)(struct wfi_progress_hook *hook);
    /* The change has come, and the hook was removed. [locked] */
    void (*run)(struct wfi_progress_hook *hook);
} wfi_progress_hook;

typedef enum wfi_role { WFI_OTHER, WFI_POLLER, WFI_LEADER, WFI_WAITER, WFI_MANUAL, WFI_ROLES } wfi_role;
/* Each sleeper that may hold the token has a state of its own, so that it can see whether the token was taken from
 * it. */
enum { WFI_TOKEN_FREE, WFI_TOKEN_AWAKE, WFI_TOKEN_POLLER_ASLEEP, WFI_TOKEN_LEADER_ASLEEP, WFI_TOKEN_WAITER_ASLEEP };
enum { WFI_SLEEPER_POLLER, WFI_SLEEPER_LEADER, WFI_SLEEPER_WAITER, WFI_SLEEPERS };

typedef struct wfi_spin {
    _Atomic uint64_t limit_ns; /* how long to spin after the last event */
    _Atomic uint64_t slept_ns; /* when the last spin ended without an event; 0: it ended with one */
    _Atomic uint32_t misses;
} wfi_spin;

#define WFI_YIELDS 3 /* measured with eight callers on two cores: as good as eight, and better than one */

/* One spin. In rounds its times are those of the rounds (token.round_ns): reading the clock costs as much as a poll. */
typedef struct wfi_spinning {
    uint64_t since_ns; /* of the first poll without an event; 0: there was none */
    uint64_t check_ns; /* when to check next whether others need the core */
    uint64_t round_ns; /* of the last round, if nothing but the next one follows it; otherwise 0 */
    int yields;        /* remaining yields of the core; WFI_YIELDS: it still spins */
} wfi_spinning;

typedef struct wfi_token { /* all atomic unless marked otherwise; see token.c */
    _Atomic int state;
    _Atomic uint32_t uses;            /* how often threads other than the poller took or released it */
    _Atomic int wanted;               /* number of waiting threads that ask for it */
    atomic_bool leader_wants;         /* a thread of the executor asks the poller for it */
    atomic_bool leader_in;            /* a thread of the executor is in the idle hook */
    atomic_bool leader_woken;         /* the leader should check its queue */
    _Atomic uint32_t departures;      /* how often a thread left the idle hook */
    atomic_bool asleep[WFI_SLEEPERS]; /* it is in poll(2): with the token, after losing it, or as a watcher */
    atomic_bool called[WFI_SLEEPERS]; /* it should wake */
    atomic_bool
        slept_with_token[WFI_SLEEPERS]; /* it fell asleep with the token: a waiting thread that took it gives it back */
    atomic_bool poller_blocked;         /* the poller sleeps until the leader leaves the hook */
    _Atomic int parked;                 /* waiting threads that found the token taken, or gave it up */
    int sleeper_fds[WFI_SLEEPERS];      /* (constant) an eventfd each, which wakes the sleeper */
    atomic_bool sleeper_taken;          /* a waiting thread uses WFI_SLEEPER_WAITER, of which there is one */
    int unpark_fd;                      /* (constant) an eventfd that ends its sleep when it is unparked */
    wfi_spin spin[WFI_ROLES];
    uint64_t usual_round;      /* [token] duration of an empty round, in 1/4096 ns */
    uint64_t round_ns;         /* [token] when the last round had polled the sources */
    uint64_t spin_max_ns;      /* (constant) 0 on one core */
    long cores;                /* (constant) of the machine */
    int load_fd;               /* (constant) /proc/loadavg, for the number of runnable threads; -1: it is not read */
    uint64_t events_ns;        /* [token] without threads: when to read connection events again */
    _Atomic uint64_t yield_ns; /* no core is yielded before this time (spin.c) */
    bool came;                 /* [token] without threads: the last wait found events */
    bool napped;               /* [token] the last sleep was to end early, because a source has no descriptor */
} wfi_token;

struct wfi_progress {
    wfi_mutex lock;
    const wfi_clock *clock; /* (constant) */
    wfi_executor *executor; /* (constant) */
    const wfi_cores *cores; /* (constant) for its own threads; NULL: any cores */
    wfi_fibers *fibers;     /* (constant) of the simulation; otherwise NULL */
    int group;              /* (constant) number of this worker in the simulation */
    bool no_threads;        /* (constant) */
    bool forked;            /* (constant) this process is a child of fork(2): everything belongs to the parent */
    wfi_driver driver;
    wfi_source *sources[WFI_SOURCES]; /* (constant) from start to stop */
    size_t source_count;

    bool has_now;                       /* since the lock was taken, now_ns was set */
    uint64_t now_ns;                    /* the time of all that is done under the lock, until it is released */
    wfi_list done[WFI_DONE_KINDS];      /* wfi_done.link */
    wfi_list deferred[WFI_DEFER_KINDS]; /* wfi_task.link */
    atomic_int releasing;               /* threads that run tasks of WFI_DEFER_RELEASE, without the lock */

    wfi_timer **heap; /* from index 1 */
    size_t heap_count, heap_capacity;
    size_t heap_reserved;              /* number of timers for which memory is reserved */
    size_t heap_others;                /* number of set timers without reserved memory */
    _Atomic uint64_t next_deadline_ns; /* (atomic) of the heap's top: a spinning holder reads it without the lock */
    uint64_t sleep_until_ns;           /* when the sleeping holder will wake by itself */

    wfi_mutex hooks_lock;
    wfi_list hooks;            /* wfi_progress_hook.link; hooks_lock */
    _Atomic size_t hook_count; /* (atomic) their number: each round reads it without a lock */

    wfi_token token;
    wfi_watch watches[WFI_SOURCES]; /* of the thread that reads events: that of sources[i] is watches[i] */
    int events_fd;                  /* wakes the event thread */
    atomic_bool calls; /* (atomic) wfi_progress_call_program was called, and wfi_progress_pass_call is due */
    atomic_bool stop;  /* (atomic) threads end */
    pthread_t poller, events;
    bool poller_started, events_started;
    int thread_errnum; /* errno value of the thread that could not be started; 0: none */
    /* In the simulation the poller is a fiber. */
    wfi_parker fiber_parker;
    bool fiber_made, fiber_runs, fiber_ended;
    wfi_parker *closer; /* of the thread that waits for the fiber's end */
    _Atomic(pthread_t)
        inline_thread; /* (atomic) if inline_busy: the thread that runs an inline handler or destructors */
    _Atomic(wfi_fiber *) inline_fiber;
    atomic_bool inline_busy;
};

/* ---- Opening and closing: progress.c, threads.c ----------------------------------------------------------------- */

typedef struct wfi_progress_options {
    const wfi_clock *clock;
    wfi_executor *executor;
    const wfi_cores *cores;
    wfi_fibers *fibers; /* of the simulation; otherwise NULL */
    int group;
    bool no_threads;
} wfi_progress_options;

void wfi_progress_init(wfi_progress *progress, const wfi_progress_options *options);
weft_status wfi_progress_open(wfi_progress *progress); /* WEFT_ERR_SYSTEM. Not in the simulation */
void wfi_progress_fini(wfi_progress *progress);
/* In a child of fork(2): from then on waits are refused, and pending tasks are not run. */
void wfi_progress_forked(wfi_progress *progress);
void wfi_progress_add(wfi_progress *progress, wfi_source *source);
void wfi_progress_remove(wfi_progress *progress, const wfi_source *source); /* it must be the last one added */
weft_status wfi_progress_start_threads(wfi_progress *progress);
size_t wfi_progress_stop_threads(wfi_progress *progress); /* returns wfi_progress_outstanding at the end */
size_t wfi_progress_outstanding(wfi_progress *progress);  /* of all sources; [locked] */
#define WFI_DRAIN_NS UINT64_C(2000000000)                 /* the longest wait for outstanding operations */

/* ---- The lock: lock.c ------------------------------------------------------------------------------------------ */

void wfi_progress_lock(wfi_progress *progress);
void wfi_progress_unlock(wfi_progress *progress); /* and does the deferred work */
wfi_task *wfi_progress_unlock_as(wfi_progress *progress,
                                 wfi_role role);       /* a leader gets the first task, and runs it itself */
void wfi_progress_call_owners(wfi_progress *progress); /* calls the owners of what has ended; [locked] */
void wfi_progress_end(wfi_progress *progress, wfi_done *done, wfi_done_kind kind);    /* [locked] */
void wfi_progress_defer(wfi_progress *progress, wfi_task *task, wfi_defer_kind kind); /* [locked] */
/* Whether all deferred releases have been done, by any thread. [locked] */
bool wfi_progress_is_released(const wfi_progress *progress);
/* Whether the caller is inside an inline handler or a destructor on the polling thread, where a wait would never end.
 * Any thread. */
bool wfi_progress_is_inline(wfi_progress *progress);
/* The time of this round or, outside of rounds, of the first question since the lock was taken. The clock is read once
 * for both, because reading it costs as much as a poll. [locked] */
uint64_t wfi_progress_now(wfi_progress *progress);

/* ---- Timers: timer.c; all [locked] ------------------------------------------------------------------------------- */

weft_status wfi_timer_set(wfi_progress *progress, wfi_timer *timer, uint64_t deadline_ns); /* sets or moves */
void wfi_timer_clear(wfi_progress *progress, wfi_timer *timer);                            /* no-op if not set */
/* Reserves memory for `count` more timers that are marked `reserved`: setting these never fails. Releases it again. */
weft_status wfi_timers_reserve(wfi_progress *progress, size_t count);
void wfi_timers_release(wfi_progress *progress, size_t count);
size_t wfi_timers_fire(wfi_progress *progress);
/* For a thread that is about to sleep: the time of the earliest timer, or until_ns if that is earlier. Setting an
 * earlier timer afterwards wakes the thread. Not [locked]. */
uint64_t wfi_timers_sleep_until(wfi_progress *progress, uint64_t until_ns);

/* ---- Progress hooks: hook.c
 * ------------------------------------------------------------------------------------ */

/* add: each round checks the hook, until it is due or removed. remove: no-op if it is not in the list. Both
 * [locked]. Initialize hook->link as an empty list. */
void wfi_progress_hook_add(wfi_progress *progress, wfi_progress_hook *hook);
void wfi_progress_hook_remove(wfi_progress *progress, wfi_progress_hook *hook);
/* For rounds. poll: the number of hooks that are due; token held, lock not. take: runs those; [locked]. */
size_t wfi_progress_hooks_poll(wfi_progress *progress);
void wfi_progress_hooks_take(wfi_progress *progress);

/* ---- Rounds: round.c, drive.c ------------------------------------------------------------------------------------ */

size_t wfi_progress_round(wfi_progress *progress, wfi_role role, wfi_task **mine); /* token held, lock not */
void wfi_progress_round_begin(wfi_progress *progress, uint64_t now_ns);            /* locks; unlocking ends it */
/* For no_threads: makes rounds until one finds something; waits up to timeout_ms. Not [locked]. */
size_t wfi_progress_run(wfi_progress *progress, int64_t timeout_ms);
/* `of_program`: it does not wait while the driver is `woken`. */
size_t wfi_progress_run_for(wfi_progress *progress, int64_t timeout_ms, bool of_program);
/* Without threads: handlers run for at most this time before a round of progress (heartbeats, deadlines). */
#define WFI_HANDLERS_NS UINT64_C(2000000)
/* Makes waits of the program return (wfi_driver.woken). Async-signal-safe, except in the simulation. */
void wfi_progress_call_program(wfi_progress *progress);
/* After wfi_progress_call_program, on an ordinary thread: wakes the threads that are waiting. */
void wfi_progress_pass_call(wfi_progress *progress);
bool wfi_drive(wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns);
/*
 * Around a sleep of a thread that waits for other processes and not for the sources: while it sleeps, another thread
 * polls them. Not without threads. wfi_aside_may_begin: whether this thread may.
 */
bool wfi_aside_may_begin(const wfi_progress *progress);
void wfi_aside_begin(wfi_progress *progress);
void wfi_aside_end(wfi_progress *progress);
wfi_task *wfi_idle_lead(void *arg); /* the executor's idle hook */
void wfi_idle_wake(void *arg);

/* ---- The token: token.c ------------------------------------------------------------------------------------------ */

bool wfi_token_take(wfi_progress *progress, wfi_role role);
bool wfi_token_ask(wfi_progress *progress,
                   wfi_role role); /* takes it from a sleeper, or asks a spinning holder for a short time */
bool wfi_token_release(wfi_progress *progress,
                       wfi_role role); /* true: returned to the sleeper that it was taken from */
/* Makes progress until it should give the token up, and gives it up. Returns a task for a leader to run, or NULL. */
wfi_task *wfi_token_hold(wfi_progress *progress, wfi_role role);
/* Sleeps with the token; false if another thread took it meanwhile. fd_extra: one more descriptor to wake for, or
 * -1. */
bool wfi_token_sleep(wfi_progress *progress, int sleeper, int fd_extra, uint64_t until_ns);

/* ---- Connection events: events.c --------------------------------------------------------------------------------- */

/* For the event thread: reads the events of the sources that may have some, and arms all sources. Then waits for the
 * next event, or for wfi_events_wake. */
void wfi_events_serve(wfi_progress *progress);
/* Reads the events of all sources; returns their number. */
size_t wfi_events_read(wfi_progress *progress);
/* Arms all sources: wfi_events_read must be called again at the returned time, until_ns or earlier. */
uint64_t wfi_events_arm(wfi_progress *progress, uint64_t until_ns);
/* Wakes the thread that reads events, for a source whose descriptor is not readable (its events_arm returns false). Any
 * thread. */
void wfi_events_wake(wfi_progress *progress);

/* ---- Sleep: sleeper.c, spin.c ------------------------------------------------------------------------------------ */

#define WFI_SLEEPER_FDS (2 * WFI_SOURCES + 1)
/* Sleeps until one of `count` descriptors (-1: none) is readable, the time is over, or wfi_sleeper_wake is called. True
 * if it was called. */
bool wfi_sleeper_sleep(wfi_progress *progress, int sleeper, const int *fds, size_t count, uint64_t timeout_ns);
void wfi_sleeper_wake(wfi_progress *progress, int sleeper);
void wfi_watcher_wake(wfi_progress *progress);  /* wakes the watcher (token.c), so that a thread polls */
void wfi_progress_wake(wfi_progress *progress); /* wakes the poller, the leader and a waiting thread that sleeps */
/* For wfi_fabric_options.ready, the same: there are completions, and no descriptor is readable for them. With threads
 * it does not wake the event thread. */
void wfi_progress_ready(void *progress);

/* Between two reads of memory that another thread or process writes. */
static inline void wfi_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

void wfi_spin_init(wfi_progress *progress);
void wfi_spin_begin(wfi_spinning *spinning);
/* After a poll, at now_ns, that found nothing. False: the caller should sleep. Otherwise it spins on. */
bool wfi_spin_goes_on(wfi_progress *progress, wfi_role role, wfi_spinning *spinning, uint64_t now_ns);
/* The poll found work: the spin begins anew. */
void wfi_spin_restart(wfi_progress *progress, wfi_role role, wfi_spinning *spinning, uint64_t now_ns);
/* Work was found, perhaps after a sleep: adapts how long the role spins before its next sleep. */
void wfi_spin_found_work(wfi_progress *progress, wfi_role role, uint64_t now_ns);
/* Yields the core, unless a recent yield took long. */
bool wfi_spin_yield(wfi_progress *progress);
/* Whether the last round, with `count` events, found work. [token] */
bool wfi_spin_was_busy(wfi_progress *progress, wfi_spinning *spinning, size_t count);

#endif
