/* SPDX-License-Identifier: Apache-2.0 */
/*
 * future.h - weft's internal functions of futures. Programs use weft/future.h.
 *
 *     weft_future *future = wfi_future_create(executor, driver);
 *     wfi_future_own(future);                                      the program cannot complete it
 *     wfi_future_complete(future, payload, drop);                  waiters wake, continuations go to the executor
 *     weft_future_unref(future);
 *
 * weft_future_create, weft_future_values and weft_future_tensor need agents and tensors: src/rpc/agent/future.c defines
 * them.
 *
 * LOCK. Each future has a lock for its state, its callbacks and its waiters. Code that holds it calls only wfi_unpark
 * and wfi_executor_submit, and the canceller's `hold`. So a future may be completed with any other lock held.
 * LIFETIME. A future exists while it is referenced. A callback that waits for completion holds no reference, so that a
 * future that is never completed can be freed.
 */
#ifndef WFI_FUTURE_H
#define WFI_FUTURE_H

#include "base/parker.h"
#include "future/executor.h"

#include <weft/future.h>

/*
 * Makes progress on a thread that waits. drive() is called without a lock, with a parker that the future's completion
 * unparks. It makes progress, or sleeps on the parker, until it is unparked or the deadline passes. It may return
 * early: the caller checks. It returns false if a wait on this thread would never end (WEFT_ERR_DEADLOCK). With
 * deadline_ns 0 it only says that.
 */
typedef struct wfi_driver {
    bool (*drive)(struct wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns);
    bool is_simulated; /* its futures are completed by the thread of a simulation */
    atomic_bool woken; /* waits of the program return (weft_agent_wake) */
} wfi_driver;

/* False: a program of a simulation would wait for other threads, or a thread for a simulation that nobody runs then. */
static inline bool wfi_driver_suits(const wfi_driver *driver)
{
    return driver->is_simulated == (wfi_fiber_current() != NULL);
}

/* A future whose continuations run on `executor` and whose waiters use `driver` (NULL: they only sleep). */
weft_future *wfi_future_create(wfi_executor *executor, wfi_driver *driver);
/* Called before other code has the future: only the library may complete it; weft_future_complete and weft_future_fail
 * are refused. */
void wfi_future_own(weft_future *future);
/* The thread that creates the future has spun before, and will wait for it: the wait begins with a sleep. */
void wfi_future_has_spun(weft_future *future);

/* Like weft_future_wait and weft_future_wait_until, but not ended by weft_agent_wake: for weft's own waits. */
weft_status wfi_future_wait(weft_future *future, int64_t timeout_ms);
weft_status wfi_future_wait_until(weft_future *future, uint64_t deadline_ns);
weft_status wfi_future_wait_any(weft_future *const *futures, size_t count, int64_t timeout_ms, size_t *index);

/* Like weft_future_complete and weft_future_fail, but also for futures that the library owns. Weft always uses
 * these. */
weft_status wfi_future_complete(weft_future *future, void *payload, weft_drop_fn drop);
weft_status wfi_future_fail(weft_future *future, const weft_error *error);
/* weft_future_then, whose child the library owns: `fn` completes it by the two above. */
weft_future *wfi_future_then(weft_future *future, weft_then_fn fn, void *arg, weft_drop_fn drop);
/* weft_future_add_done_callback, for a callback that ends something: it is WFI_ENDING. */
weft_status wfi_future_add_ending_callback(weft_future *future, weft_done_fn fn, void *arg, weft_drop_fn drop);

/*
 * Weft's own continuation. The thread that completes the future calls it once, after it has released the future's lock
 * (others may be held). It does not go through the executor, because a full executor must not delay when_all. It may
 * complete other futures. It must not run user code, so it must not drop a reference that may be the last. An observer
 * holds no reference to an incomplete future: otherwise an abandoned future could never be freed. `completed` is given
 * a reference. Exactly one of `completed` and `dropped` is called.
 */
typedef struct wfi_observer {
    wfi_list link;
    weft_future *future; /* set before `completed`: a reference that belongs to the observer */
    void (*completed)(struct wfi_observer *observer);
    void (*dropped)(
        struct wfi_observer *observer); /* the future was freed before it was complete. NULL if the observer's owner
                                         * always holds a reference */
} wfi_observer;
/* Calls `observer` when the future completes, or at once if it is complete. */
void wfi_future_observe(weft_future *future, wfi_observer *observer);
/* Removes it. False: the future is complete, and the observer has been or will be called. */
bool wfi_future_unobserve(weft_future *future, wfi_observer *observer);

/*
 * The work of weft_future_cancel if failing the future is not enough. `owner` must exist until the future is complete.
 * `hold` is called at most once, with the future's lock held, while the future is not complete. It keeps the owner
 * until `cancel`, which follows without a lock and ends the hold. Meanwhile the future may have been completed.
 */
typedef struct wfi_canceller {
    void (*hold)(void *owner);
    void (*cancel)(void *owner, uint64_t id);
} wfi_canceller;
/* Called before other code has the future. `canceller` is a constant. */
void wfi_future_set_canceller(weft_future *future, const wfi_canceller *canceller, void *owner, uint64_t id);

/* Drops a reference unless it is the last one; then returns false. For code that must not run the payload's drop. */
bool wfi_future_unref_unless_last(weft_future *future);

/* For typed payloads: the drop function of a payload identifies its type. */
weft_drop_fn wfi_future_payload_kind(const weft_future *future);

#endif
