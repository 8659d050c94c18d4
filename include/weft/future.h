/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/future.h - a result that may come later.
 *
 * A future is completed exactly once, with a payload or with an error. You may wait for it, or register a
 * continuation: a function that runs once the future is complete.
 *
 *     static void print_first(weft_future *reply, void *arg)
 *     {
 *         (void)arg;
 *         if (weft_future_error(reply))
 *             weft_error_print(weft_future_error(reply), stderr);
 *         else
 *             weft_tensor_print(weft_future_tensor(reply, 0), stdout); // borrowed from the future
 *     }
 *     weft_status print_later(weft_future *reply)
 *     {
 *         return weft_future_add_done_callback(reply, print_first, NULL, NULL);
 *     }
 *
 * THREADS. Every function here may be called from any thread. Continuations run on the executor of the agent
 * that made the future (without an agent: on the executor of the process), with no lock of weft held. They
 * never run inside the function that registered them, nor inside the one that completed the future. A thread
 * that waits reads the network meanwhile.
 *
 * MISTAKES. A NULL future, function or list is WEFT_ERR_INVALID; functions that return a future return NULL.
 * The functions that look at a future (done, payload, error, values, tensor) do not accept NULL.
 */
#ifndef WEFT_FUTURE_H
#define WEFT_FUTURE_H

#include <weft/status.h>

WEFT_BEGIN_C

/*
 * Makes a future that you complete, and gives you one reference. Its continuations run on the agent's executor;
 * with `agent` NULL they run on the executor of the process, which starts when it is first used and lives until
 * the process ends. NULL if memory is out.
 */
WEFT_API weft_future *weft_future_create(weft_agent *agent);
WEFT_API weft_future *weft_future_ref(weft_future *future);
WEFT_API void weft_future_unref(weft_future *future);

/*
 * Completes a future with `payload`. The future owns the payload from now on: `drop(payload)` runs when the
 * future is freed, or at once if this fails.
 *
 * Only a future of weft_future_create or weft_future_then may be completed by you. All others (of calls,
 * multicasts, groups, references and collections) weft completes, and here they give WEFT_ERR_STATE;
 * weft_future_cancel can end them early. WEFT_ERR_COMPLETED if the future was complete already.
 */
WEFT_API WEFT_NODISCARD weft_status weft_future_complete(weft_future *future, void *payload, weft_drop_fn drop);
/* Completes a future with `error`, to which it takes a reference of its own. Same errors as above. */
WEFT_API WEFT_NODISCARD weft_status weft_future_fail(weft_future *future, const weft_error *error);

WEFT_API bool weft_future_done(const weft_future *future);

/*
 * Waits until the future is complete. timeout_ms: 0 or more milliseconds, or WEFT_FOREVER. Returns WEFT_OK, or
 * the code of the future's error. Other codes:
 *   - WEFT_ERR_TIMEOUT: it is not complete after timeout_ms, and may complete later. The call itself may also
 *     have ended with WEFT_ERR_TIMEOUT: then weft_future_done is true.
 *   - WEFT_ERR_DEADLOCK, at once: the future is not complete, and this thread cannot wait for it, because it is
 *     the thread that reads the network for the future's agent. That is so in handlers with WEFT_INLINE, in
 *     `land` and in destructors: nothing arrives before they return. (Such code may also happen to run on
 *     another thread, where it can wait; do not rely on that.)
 *
 * A future without an agent (weft_future_create(NULL)) is waited for on any thread. An inline handler that does
 * so holds up the network.
 */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait(weft_future *future, int64_t timeout_ms);

/* The payload, and the error, that the future completed with; else NULL. Borrowed from the future. They never
 * block. */
WEFT_API void *weft_future_payload(const weft_future *future);
WEFT_API const weft_error *weft_future_error(const weft_future *future);

/* The results of the call whose future this is (weft/value.h). NULL if the future is incomplete, failed, or is
 * no future of a call. Borrowed from the future. */
WEFT_API const weft_values *weft_future_values(const weft_future *future);
/* Result `index` if it is a tensor, borrowed from the future; else NULL. */
WEFT_API weft_tensor *weft_future_tensor(const weft_future *future, size_t index);

/* Registers a continuation: `fn(future, arg)` runs when the future is complete, then `drop(arg)`. WEFT_ERR_INVALID,
 * WEFT_ERR_MEMORY: then `fn` never runs, and `drop(arg)` has run. */
typedef void (*weft_done_fn)(weft_future *future, void *arg);
WEFT_API WEFT_NODISCARD weft_status weft_future_add_done_callback(weft_future *future, weft_done_fn fn, void *arg,
                                                                  weft_drop_fn drop);

/*
 * Makes a new future, the child, which a continuation of yours completes: when `future` is complete,
 * `fn(future, child, arg)` runs, then `drop(arg)`. fn must complete the child, then or later (it may keep a
 * reference to it); if fn returns a failure, the child fails with that. NULL if memory is out; drop has run
 * then. If the child is cancelled before fn began, fn never runs, and drop runs at once.
 */
typedef weft_status (*weft_then_fn)(weft_future *parent, weft_future *child, void *arg);
WEFT_API weft_future *weft_future_then(weft_future *future, weft_then_fn fn, void *arg, weft_drop_fn drop);

/*
 * Makes a future that completes when all `count` futures have, and succeeds even where these fail. Its payload
 * is an array of `count` pointers to them (weft_future *), to which it holds references. With `count` 0 it is
 * complete at once. NULL if memory is out. While it is incomplete it does not keep the futures alive: whoever is to
 * complete them does. It fails with WEFT_ERR_CANCELLED if the last reference to one of them goes while that one
 * is incomplete.
 */
WEFT_API weft_future *weft_future_collect_all(weft_future *const *futures, size_t count);

/* Makes a future that completes when the first of `count` futures has, and succeeds even where that one fails.
 * Its payload is an array of one pointer to that future, to which it holds a reference. It fails with
 * WEFT_ERR_CANCELLED if the last references to all of them go while they are incomplete. With `count` 0 it
 * never completes. NULL if memory is out. */
WEFT_API weft_future *weft_future_any(weft_future *const *futures, size_t count);

/* Waits until one of the futures is complete, and puts its place into *index; ask that future whether it failed.
 * WEFT_ERR_TIMEOUT, WEFT_ERR_DEADLOCK (as weft_future_wait), WEFT_ERR_INVALID (`count` is 0, or a pointer is NULL),
 * WEFT_ERR_MEMORY. */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait_any(weft_future *const *futures, size_t count, int64_t timeout_ms,
                                                         size_t *index);

/* As weft_future_wait, until the clock of weft_agent_now_ns shows deadline_ns. A future without an agent takes
 * CLOCK_MONOTONIC. */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait_until(weft_future *future, uint64_t deadline_ns);

/*
 * Asks to end the future early; it may still complete otherwise. What happens depends on what made it:
 *   - A call: the callee is told to stop, and the future fails with WEFT_ERR_CANCELLED. That happens as soon as
 *     nobody can touch the call's tensors any more, neither a peer nor a handler of this worker (weft/rpc.h,
 *     "calls to oneself").
 *   - weft_future_create and weft_future_then: the future fails with WEFT_ERR_CANCELLED at once, and
 *     weft_future_complete returns WEFT_ERR_COMPLETED afterwards. The future that was given to weft_future_then
 *     is not cancelled.
 *   - weft_future_collect_all, weft_future_any, weft_rpc_multicast: the futures that it consists of are
 *     cancelled, and it completes when they have.
 * WEFT_ERR_COMPLETED if it is complete already.
 */
WEFT_API WEFT_NODISCARD weft_status weft_future_cancel(weft_future *future);

/* Waits until all futures are complete. As soon as one of them fails, it returns that one's code without
 * waiting for the others. WEFT_ERR_TIMEOUT and WEFT_ERR_DEADLOCK as weft_future_wait. */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait_all(weft_future *const *futures, size_t count, int64_t timeout_ms);

WEFT_END_C
#endif
