/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/future.h - a result that may come later.
 *
 * A future is completed exactly once, with a payload or with an error. Whoever waits helps to drive progress.
 * Continuations run with no weft lock held, on the executor of the agent that made the future (or the process's own),
 * never inside the call that registered them and never inside the call that completed the future.
 * Every function here may be called from any thread. A NULL future, function or list is WEFT_ERR_INVALID, or NULL where a future
 * is returned; to look at (done, payload, error, values, tensor) a future must be one.
 */
#ifndef WEFT_FUTURE_H
#define WEFT_FUTURE_H

#include <weft/status.h>

WEFT_BEGIN_C

/*
 * A future for you to complete, with one reference. Its continuations run on the agent's executor;
 * `agent` NULL: on the process's own, which starts at first use. NULL if memory is out.
 */
WEFT_API weft_future *weft_future_create(weft_agent *agent);
WEFT_API weft_future *weft_future_ref(weft_future *future);
WEFT_API void weft_future_unref(weft_future *future);

/*
 * Completes it. `payload` moves in and `drop(payload)` runs when the future goes, or at once if this fails.
 * WEFT_ERR_COMPLETED if it was complete. WEFT_ERR_STATE if it is not and weft is to complete it, as every future but those of
 * weft_future_create and weft_future_then: of calls, multicasts, groups, references, collections. weft_future_cancel ends these,
 * once no peer touches their tensors any more.
 */
WEFT_API WEFT_NODISCARD weft_status weft_future_complete(weft_future *future, void *payload, weft_drop_fn drop);
/* Fails it; takes a reference of its own to `error`. WEFT_ERR_COMPLETED, WEFT_ERR_STATE as above. */
WEFT_API WEFT_NODISCARD weft_status weft_future_fail(weft_future *future, const weft_error *error);

WEFT_API bool weft_future_done(const weft_future *future);

/*
 * Waits until complete. Returns WEFT_OK or the error's code; WEFT_ERR_TIMEOUT after timeout_ms (the future lives on:
 * weft_future_done tells the two time-outs apart). timeout_ms: >= 0 milliseconds, or WEFT_FOREVER.
 * WEFT_ERR_DEADLOCK at once, unless it is complete, on the thread that reads the network for the future's agent: in an inline
 * handler, a `land` or a destructor, where nothing would come in before it returns. An inline handler that happens to run on a worker of the
 * executor may wait there as any other handler: one that a thread of yours called on its own worker, or one that came in while such
 * a thread waited and read the network meanwhile. A future without an agent (weft_future_create(NULL)) is just waited for: in an
 * inline handler that holds up the network.
 */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait(weft_future *future, int64_t timeout_ms);

/* Borrowed, valid while you hold the future: NULL unless it completed that way. They never block. */
WEFT_API void *weft_future_payload(const weft_future *future);
WEFT_API const weft_error *weft_future_error(const weft_future *future);

/* What the future holds as RPC results (weft/value.h); NULL if incomplete, failed, or not of that kind. Borrowed. */
WEFT_API const weft_values *weft_future_values(const weft_future *future);
/* Result `index` as a tensor, borrowed; NULL if there is none. */
WEFT_API weft_tensor *weft_future_tensor(const weft_future *future, size_t index);

/* Runs `fn(future, arg)` once complete, then `drop(arg)`. On failure of this call (WEFT_ERR_INVALID, WEFT_ERR_MEMORY), drop runs
 * before it returns. */
typedef void (*weft_done_fn)(weft_future *future, void *arg);
WEFT_API WEFT_NODISCARD weft_status weft_future_add_done_callback(weft_future *future, weft_done_fn fn, void *arg,
                                                                  weft_drop_fn drop);

/*
 * A future that `fn` completes: fn receives the finished parent and the child, and must complete the child now or later
 * (it may keep a reference). If it returns a failure, the child fails with it. Then `drop(arg)` runs. NULL if memory is out (drop
 * has run). If the child is cancelled before fn begins, fn will not run, the parent forgets it, and drop runs at once.
 */
typedef weft_status (*weft_then_fn)(weft_future *parent, weft_future *child, void *arg);
WEFT_API weft_future *weft_future_then(weft_future *future, weft_then_fn fn, void *arg, weft_drop_fn drop);

/*
 * A future that completes, always successfully, when all `count` have; its payload is the array of `count` weft_future
 * pointers, each referenced by it. It fails with WEFT_ERR_CANCELLED if one of them was dropped incomplete: it does not keep
 * them alive, only whoever is to complete them does. count 0: complete at once. NULL if memory is out.
 */
WEFT_API weft_future *weft_future_collect_all(weft_future *const *futures, size_t count);

/* A future that completes, always successfully, when the first of `count` has; the payload is an array of that one future, referenced.
 * WEFT_ERR_CANCELLED if all of them were dropped incomplete. count 0 is never complete. NULL if memory is out. */
WEFT_API weft_future *weft_future_any(weft_future *const *futures, size_t count);

/* Waits for the first of them: *index is one that is complete, well or not (its own error tells). WEFT_ERR_TIMEOUT,
 * WEFT_ERR_DEADLOCK, WEFT_ERR_INVALID (count 0, something NULL), WEFT_ERR_MEMORY. */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait_any(weft_future *const *futures, size_t count, int64_t timeout_ms,
                                                         size_t *index);

/* As weft_future_wait, until a moment on the clock of weft_agent_now_ns (CLOCK_MONOTONIC for futures without an agent). */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait_until(weft_future *future, uint64_t deadline_ns);

/*
 * Nobody wants it any more. A call's future: the callee is told, and it fails with WEFT_ERR_CANCELLED as soon as no peer can
 * touch the call's tensors, nor a handler of our own (weft/rpc.h, calls to oneself). A future of your own or one made by then: it fails at once; weft_future_complete then returns
 * WEFT_ERR_COMPLETED. Of collect_all, any, multicast: those it was made of are cancelled, and it completes when they have.
 * Parents of a then are left alone. WEFT_ERR_COMPLETED if it was complete.
 */
WEFT_API WEFT_NODISCARD weft_status weft_future_cancel(weft_future *future);

/* Waits for all; returns early with the first failure to arrive, or WEFT_ERR_TIMEOUT. */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait_all(weft_future *const *futures, size_t count, int64_t timeout_ms);

WEFT_END_C
#endif
