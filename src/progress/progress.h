/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h - the agent's lock, the tasks that run when it is released, timers, and the threads that poll for events.
 *
 * WHAT IT OFFERS. A wfi_progress has the agent's lock; tasks that run without it (wfi_progress_defer); timers; the time
 * of the present round; and a driver, by which a thread that waits for a future makes progress itself. It polls sources
 * (wfi_source): the open fabric, and, if there are no threads, the link to the store. It knows nothing of either.
 *
 * WHO POLLS. One thread at a time, the one that has the token (token.c): the poller, the leader (a thread of the
 * executor that has nothing else to do, in its idle hook), or a thread that waits for a future. A further thread, the
 * event thread, waits for connections. Without threads: whoever calls wfi_progress_run, or waits. In the simulation:
 * one fiber.
 *
 * LOCKING. `lock` guards every field here that does not say otherwise, and all that the layers above share between
 * threads. [locked]: called with it held. Fields marked (atomic) are read or written without it, for the reasons given
 * where they stand; (constant): written only while opening; [token]: by whoever has the token. With the lock held
 * nothing blocks, nothing runs user code, nothing waits for memory of a peer.
 *
 * ENDS. The owner of a message or transfer that has ended (wfi_done) is not told in the middle of the work: the
 * wfi_done goes into a list, and the owners are called at the end, just before the lock is released.
 *
 * LIFE. wfi_progress_init comes first; sources are added before wfi_threads_start. wfi_threads_stop ends the threads,
 * when what the sources have outstanding was reported, or after two seconds. Locking, timers, defer and driver work
 * until wfi_progress_fini.
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

typedef struct wfi_source_ops { /* no slot is NULL */
    /* Reads completions, and keeps them for `take`. Returns how many. Token held, lock not. */
    size_t (*poll)(wfi_source *source);
    /* Hands out what `poll` read, and tries again what found no room. [locked] */
    void (*take)(wfi_source *source);
    /* Reads rarer events (connections), hands them out, and returns how many. Waits for one, up to timeout_ms, or until
     * wake_fd can be read (-1: none). Makes *due_ns earlier if it has to be called again before that. Lock not held. */
    size_t (*events)(wfi_source *source, int timeout_ms, int wake_fd, uint64_t *due_ns);
    /* A descriptor that can be read when something came; -1: there is none. Token held. */
    int (*wait_fd)(wfi_source *source);
    /* False: something may have come of which that descriptor does not tell. Token held. */
    bool (*may_sleep)(wfi_source *source);
    /* How many operations must still be reported before it can be closed. [locked] */
    size_t (*outstanding)(wfi_source *source);
} wfi_source_ops;

struct wfi_source {
    const wfi_source_ops *ops;
};

#define WFI_SOURCES 2

/* ---- Its parts ------------------------------------------------------------------------------------------------- */

/* Something that has ended: embedded in it. */
typedef struct wfi_done {
    wfi_list link;
    void (*run)(struct wfi_done *done); /* [locked] */
} wfi_done;
/* In this order: no transfer while there is a message. */
typedef enum wfi_done_kind { WFI_DONE_MESSAGE, WFI_DONE_TRANSFER, WFI_DONE_KINDS } wfi_done_kind;

typedef enum wfi_defer_kind {
    /* Short work of weft's own, on the thread that unlocks: freeing (which may run destructors of the user's),
     * refusals, functions of weft's own (WFI_AT_ONCE), the next attempt of a retry. */
    WFI_DEFER_RELEASE,
    WFI_DEFER_INLINE, /* an inline handler: on the poller, the leader, or wfi_progress_run; else on the executor */
    WFI_DEFER_WORKER, /* user code: on the executor; a leader runs the first one itself */
    WFI_DEFER_KINDS,
} wfi_defer_kind;

typedef struct wfi_timer {
    uint64_t deadline_ns;
    void (*fire)(struct wfi_timer *timer); /* [locked] */
    size_t heap_index;                     /* timer.c's; 0: not set */
    bool reserved;                         /* there is room for it at all times (wfi_timers_reserve) */
} wfi_timer;

typedef enum wfi_role { WFI_OTHER, WFI_POLLER, WFI_LEADER, WFI_WAITER, WFI_MANUAL, WFI_ROLES } wfi_role;
/* Each sleeper that may hold the token has a state of its own, so that it can see whether it was robbed. */
enum { WFI_TOKEN_FREE, WFI_TOKEN_AWAKE, WFI_TOKEN_POLLER_ASLEEP, WFI_TOKEN_LEADER_ASLEEP, WFI_TOKEN_WAITER_ASLEEP };
enum { WFI_SLEEPER_POLLER, WFI_SLEEPER_LEADER, WFI_SLEEPER_WAITER, WFI_SLEEPERS };

typedef struct wfi_spin {
    _Atomic uint64_t limit_ns; /* spin so long after the last event */
    _Atomic uint64_t slept_ns; /* when the last spin ended in vain; 0: it did not */
    _Atomic uint32_t misses;
} wfi_spin;

#define WFI_YIELDS 3 /* with eight callers on two cores, three did as well as eight, and better than one */

/* One spin. */
typedef struct wfi_spinning {
    uint64_t since_ns, look_ns; /* the last event; when to look next whether others need the core */
    int yields;                 /* left, of the core to others; WFI_YIELDS: it spins yet */
} wfi_spinning;

typedef struct wfi_token { /* all atomic; see token.c */
    _Atomic int state;
    _Atomic uint32_t uses;            /* how often others than the poller took or released it */
    _Atomic int wanted;               /* waiting threads that ask for it */
    atomic_bool leader_wants;         /* a thread of the executor asks the poller for it */
    atomic_bool leader_in;            /* a thread of the executor is in the idle hook */
    atomic_bool nudged;               /* the leader should look at its queue */
    _Atomic uint32_t departures;      /* how often a thread left the idle hook */
    atomic_bool asleep[WFI_SLEEPERS]; /* it is in poll(2): with the token, robbed of it, or as a watcher */
    atomic_bool called[WFI_SLEEPERS]; /* it should wake */
    atomic_bool robbed[WFI_SLEEPERS]; /* it fell asleep with the token: a waiting thread that took it gives it back */
    atomic_bool poller_blocked;       /* the poller sleeps until the leader leaves the hook */
    _Atomic int parked;               /* waiting threads that found the token taken, or gave it up */
    int sleeper_fds[WFI_SLEEPERS];    /* (constant) an eventfd each, to end that */
    atomic_bool sleeper_taken;        /* a waiting thread has the waiters' sleeper: there is one */
    int unpark_fd;                    /* (constant) an eventfd that ends its sleep when it is unparked */
    wfi_spin spin[WFI_ROLES];
    uint64_t usual_round; /* [token] what an empty round takes, in 1/4096 ns */
    uint64_t spin_max_ns; /* (constant) 0 on one core */
    long cores;           /* (constant) of the machine */
    int load_fd;          /* (constant) tells how many threads would run now; -1: it is not read */
    uint64_t look_ns;     /* [token] without threads: when to look for rarer events again */
    uint64_t yield_ns;    /* [token] no core is yielded before (spin.c) */
    bool came;            /* [token] without threads: something came since the last wait that was in vain */
} wfi_token;

struct wfi_progress {
    wfi_mutex lock;
    const wfi_clock *clock; /* (constant) */
    wfi_executor *executor; /* (constant) */
    const wfi_cores *cores; /* (constant) of its own threads; NULL: anywhere */
    wfi_fibers *fibers;     /* (constant) in the simulation; NULL */
    int group;              /* (constant) our number there */
    bool no_threads;        /* (constant) */
    bool forked;            /* (constant) this is a child of fork(): all of it is the parent's */
    wfi_driver driver;
    wfi_source *sources[WFI_SOURCES]; /* (constant) from start to stop */
    size_t source_count;

    bool in_round;                      /* now_ns is of this moment */
    uint64_t now_ns;                    /* the time of the present round */
    wfi_list done[WFI_DONE_KINDS];      /* wfi_done.link */
    wfi_list deferred[WFI_DEFER_KINDS]; /* wfi_task.link */
    atomic_int releasing;               /* threads that do what was deferred as WFI_DEFER_RELEASE, without the lock */

    wfi_timer **heap; /* from 1 */
    size_t heap_count, heap_capacity;
    size_t heap_reserved;              /* timers for which there is room at all times */
    size_t heap_others;                /* timers without reserved room that are set now */
    _Atomic uint64_t next_deadline_ns; /* (atomic) of the heap's top: lets a spinning holder look without the lock */
    uint64_t sleep_until_ns;           /* when the sleeping holder will wake by itself */

    wfi_token token;
    int events_fd;     /* ends the event thread's sleep */
    atomic_bool calls; /* (atomic) wfi_progress_call_program was called, and wfi_progress_pass_call is due */
    atomic_bool stop;  /* (atomic) threads end */
    pthread_t poller, events;
    bool poller_started, events_started;
    /* In the simulation the poller is a fiber. */
    wfi_parker fiber_parker;
    bool fiber_made, fiber_runs, fiber_ended;
    wfi_parker *closer;               /* who waits for its end */
    _Atomic(pthread_t) inline_thread; /* (atomic) runs an inline handler or destructors now, if inline_busy */
    _Atomic(wfi_fiber *) inline_fiber;
    atomic_bool inline_busy;
};

/* ---- Life: progress.c, threads.c, fiber.c ------------------------------------------------------------------------ */

typedef struct wfi_progress_options {
    const wfi_clock *clock;
    wfi_executor *executor;
    const wfi_cores *cores;
    wfi_fibers *fibers; /* of the simulation; NULL */
    int group;
    bool no_threads;
} wfi_progress_options;

void wfi_progress_init(wfi_progress *progress, const wfi_progress_options *options);
weft_status wfi_progress_open(wfi_progress *progress); /* WEFT_ERR_SYSTEM. Not in the simulation */
void wfi_progress_fini(wfi_progress *progress);
/* In a child of fork(2): from now on waits are refused, and nothing that was pending is done. */
void wfi_progress_forked(wfi_progress *progress);
void wfi_progress_add(wfi_progress *progress, wfi_source *source);
void wfi_progress_remove(wfi_progress *progress, const wfi_source *source); /* the last one added */
weft_status wfi_threads_start(wfi_progress *progress);
size_t wfi_threads_stop(wfi_progress *progress); /* how much was never reported */
weft_status wfi_fiber_start(wfi_progress *progress);
void wfi_fiber_stop(wfi_progress *progress);
size_t wfi_progress_outstanding(wfi_progress *progress); /* of all sources; [locked] */
#define WFI_DRAIN_NS UINT64_C(2000000000)                /* the longest wait for that */

/* ---- The lock: lock.c ------------------------------------------------------------------------------------------ */

void wfi_progress_lock(wfi_progress *progress);
void wfi_progress_unlock(wfi_progress *progress); /* and does what was deferred */
wfi_task *wfi_progress_unlock_as(wfi_progress *progress,
                                 wfi_role role);  /* a leader gets the first task to run itself */
void wfi_progress_settle(wfi_progress *progress); /* makes the calls that are due; [locked] */
void wfi_progress_end(wfi_progress *progress, wfi_done *done, wfi_done_kind kind);    /* [locked] */
void wfi_progress_defer(wfi_progress *progress, wfi_task *task, wfi_defer_kind kind); /* [locked] */
/* Whether every release that was deferred has been done, by whatever thread. [locked] */
bool wfi_progress_is_released(const wfi_progress *progress);
/* Whether the caller is inside an inline handler or a destructor, on the thread that reads the network, where waiting
 * could never end. Any thread. */
bool wfi_progress_is_inline(wfi_progress *progress);
/* The time of the present round, without reading the clock, while one runs; else what the clock says. [locked] */
uint64_t wfi_progress_now(const wfi_progress *progress);

/* ---- Timers: timer.c; all [locked] ------------------------------------------------------------------------------- */

weft_status wfi_timer_set(wfi_progress *progress, wfi_timer *timer, uint64_t deadline_ns); /* sets or moves */
void wfi_timer_clear(wfi_progress *progress, wfi_timer *timer);                            /* no-op if not set */
/* Room for so many more that are `reserved`: setting these never fails; and less again. */
weft_status wfi_timers_reserve(wfi_progress *progress, size_t count);
void wfi_timers_release(wfi_progress *progress, size_t count);
size_t wfi_timers_fire(wfi_progress *progress);
/* For a thread that is about to sleep: until when it may, which is the earliest timer, or until_ns if that is earlier.
 * Whoever sets an earlier timer wakes it. Not [locked]. */
uint64_t wfi_timers_sleep_until(wfi_progress *progress, uint64_t until_ns);

/* ---- Rounds: round.c, drive.c ------------------------------------------------------------------------------------ */

size_t wfi_progress_round(wfi_progress *progress, wfi_role role, wfi_task **mine); /* token held, lock not */
void wfi_progress_round_begin(wfi_progress *progress, uint64_t now_ns);            /* locks; unlocking ends it */
/* For no_threads: rounds until something came; waits up to timeout_ms. Not [locked]. */
size_t wfi_progress_run(wfi_progress *progress, int64_t timeout_ms);
/* `of_program`: it does not wait while the driver is `woken`. */
size_t wfi_progress_run_for(wfi_progress *progress, int64_t timeout_ms, bool of_program);
/* Without threads: after so long, handlers that are queued wait for a round of progress (heartbeats, time limits). */
#define WFI_HANDLERS_NS UINT64_C(2000000)
/* Waits of the program return from now on (wfi_driver.woken). Async-signal-safe, except in the simulation. */
void wfi_progress_call_program(wfi_progress *progress);
/* On an ordinary thread, after that: calls the threads out that wait already. */
void wfi_progress_pass_call(wfi_progress *progress);
bool wfi_drive(wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns);
wfi_task *wfi_idle_lead(void *arg); /* the executor's idle hook */
void wfi_idle_nudge(void *arg);

/* ---- The token: token.c ------------------------------------------------------------------------------------------ */

bool wfi_token_take(wfi_progress *progress, wfi_role role);
bool wfi_token_ask(wfi_progress *progress,
                   wfi_role role); /* takes it from a sleeper, or asks a spinning holder for a moment */
bool wfi_token_release(wfi_progress *progress, wfi_role role); /* true: given back to the sleeper that was robbed */
/* Makes progress until it should give the token up, and gives it up. Returns a task for a leader to run, or NULL. */
wfi_task *wfi_token_hold(wfi_progress *progress, wfi_role role);
/* Sleeps with the token; false if somebody took it meanwhile. fd_extra: -1, or one more descriptor to wake for. */
bool wfi_token_sleep(wfi_progress *progress, int sleeper, int fd_extra, uint64_t until_ns);

/* ---- Sleep: sleeper.c, spin.c ------------------------------------------------------------------------------------ */

#define WFI_SLEEPER_FDS (WFI_SOURCES + 1)
/* Sleeps until one of `count` descriptors (-1: none) can be read, the time is over, or somebody wakes it. True: it was
 * woken. */
bool wfi_sleeper_sleep(wfi_progress *progress, int sleeper, const int *fds, size_t count, uint64_t timeout_ns);
void wfi_sleeper_wake(wfi_progress *progress, int sleeper);
void wfi_watcher_wake(wfi_progress *progress);  /* wakes the watcher (token.c), so that somebody polls */
void wfi_progress_wake(wfi_progress *progress); /* wakes the poller, the leader and a waiting thread that sleeps */
void wfi_fiber_ready(void *progress);           /* in the simulation: something came */

void wfi_spin_init(wfi_progress *progress);
void wfi_spin_begin(wfi_spinning *spinning, uint64_t now_ns);
/* False: to sleep. Otherwise *now_ns is later if others had the core meanwhile. */
bool wfi_spin_goes_on(wfi_progress *progress, wfi_role role, wfi_spinning *spinning, uint64_t *now_ns);
/* Something: it begins anew. */
void wfi_spin_came(wfi_progress *progress, wfi_role role, wfi_spinning *spinning, uint64_t now_ns);
void wfi_spin_caught(wfi_progress *progress, wfi_role role, uint64_t now_ns);
/* Lets others run on this core, unless that took long of late. [token] */
bool wfi_spin_yield(wfi_progress *progress);
/* Did a round with `count` events find something to do? [token] */
bool wfi_spin_was_busy(wfi_progress *progress, size_t count, uint64_t round_ns);

#endif
