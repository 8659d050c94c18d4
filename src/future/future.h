/* SPDX-License-Identifier: Apache-2.0 */
/*
 * future.h - futures, as the rest of weft makes and completes them. Programs see weft/future.h.
 *
 *     weft_future *future = wfi_future_create(executor, driver);
 *     wfi_future_own(future);                                      the program cannot complete it
 *     wfi_future_complete(future, payload, drop);                  waiters wake, continuations go to the executor
 *     weft_future_unref(future);
 *
 * weft_future_create, weft_future_values and weft_future_tensor need agents and tensors: src/rpc/agent/future.c defines
 * them.
 *
 * LOCKING. Each future has a small lock over its state, its callbacks and its waiters. Under it nothing is called but
 * wfi_unpark and wfi_executor_submit. So a future may be completed with any other lock held.
 * LIFETIME. Whoever holds a reference keeps it. A callback that waits for completion holds none, so that a future that
 * nobody completes can go.
 */
#ifndef WFI_FUTURE_H
#define WFI_FUTURE_H

#include "base/parker.h"
#include "future/executor.h"

#include <weft/future.h>

/*
 * How a thread that waits makes itself useful. drive() is called, no lock held, with a parker that the future's
 * completion unparks; it progresses or sleeps on the parker until unparked or the deadline, and returns. Spurious
 * returns are fine: the caller looks again. It returns false if waiting on this thread could never end
 * (WEFT_ERR_DEADLOCK).
 */
typedef struct wfi_driver {
    bool (*drive)(struct wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns);
    const wfi_clock *clock;
    atomic_bool woken; /* waits of the program return (weft_agent_wake) */
} wfi_driver;

/* A future whose continuations run on `executor` and whose waiters use `driver` (NULL: they just sleep). */
weft_future *wfi_future_create(wfi_executor *executor, wfi_driver *driver);
/* Before anybody else has it: the library alone completes it, weft_future_complete and weft_future_fail are refused. */
void wfi_future_own(weft_future *future);

/* As weft_future_wait and weft_future_wait_until, and not ended by weft_agent_wake: for weft's own waits. */
weft_status wfi_future_wait(weft_future *future, int64_t timeout_ms);
weft_status wfi_future_wait_until(weft_future *future, uint64_t deadline_ns);
weft_status wfi_future_wait_any(weft_future *const *futures, size_t count, int64_t timeout_ms, size_t *index);

/* What weft_future_complete and weft_future_fail do, for futures that the library owns, too: inside weft always these. */
weft_status wfi_future_complete(weft_future *future, void *payload, weft_drop_fn drop);
weft_status wfi_future_fail(weft_future *future, const weft_error *error);
/* weft_future_then, whose child the library owns: `fn` completes it by the two above. */
weft_future *wfi_future_then(weft_future *future, weft_then_fn fn, void *arg, weft_drop_fn drop);

/*
 * Weft's own continuation, called once by the thread that completes the future, after the future's lock was let go (others
 * may be held), without a hop over the executor: a full executor must not hold up collect_all. It may complete other futures;
 * it must not run user code, so not drop what may be a last reference. An observer holds no reference to a future that is not
 * complete, or an abandoned future could never go; `completed` is given one. Exactly one of the two is called.
 */
typedef struct wfi_observer {
    wfi_list link;
    weft_future *future; /* set before `completed`: a reference, which is the observer's now */
    void (*completed)(struct wfi_observer *observer);
    void (*dropped)(
        struct wfi_observer *observer); /* by whoever dropped the future incomplete: nobody can complete it any
                                                     * more. NULL: the observer's owner holds a reference all the while */
} wfi_observer;
/* Calls `observer` when the future completes, or now. */
void wfi_future_observe(weft_future *future, wfi_observer *observer);
/* Takes it back; false: the future is complete, and it has been or will be called. */
bool wfi_future_unobserve(weft_future *future, wfi_observer *observer);

/*
 * What weft_future_cancel does where failing the future would not be enough. `owner` must live until the future is complete.
 * hold is called with the future's lock held, while it is not complete, at most once: it makes the owner live until cancel,
 * which follows with no lock held and lets go of it. Meanwhile the future may have been completed.
 */
typedef struct wfi_canceller {
    void (*hold)(void *owner);
    void (*cancel)(void *owner, uint64_t id);
} wfi_canceller;
/* Before anybody else has the future. `canceller` is a constant. */
void wfi_future_set_canceller(weft_future *future, const wfi_canceller *canceller, void *owner, uint64_t id);

/* Drops a reference unless it is the last one; false: it is. For places that must not run what a payload's end runs. */
bool wfi_future_unref_unless_last(weft_future *future);

/* For typed payloads: the drop that a payload was completed with identifies its type. */
weft_drop_fn wfi_future_payload_kind(const weft_future *future);

#endif
