/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/future.h - futures: results that come later.
 *
 * A future completes exactly once, with a payload or with an error. A program may wait for it, or register a
 * continuation: a function that runs when the future is complete.
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
 * THREADS. Any thread may call any function of this header. Continuations run on the executor of the agent that made
 * the future, or, without an agent, on the executor of the process, with no lock of weft held. They never run inside
 * the function that registered them or that completed the future. A thread that waits for a future reads the network
 * meanwhile.
 *
 * MISTAKES. A NULL future, function or list is WEFT_ERR_INVALID; functions that return a future return NULL. The
 * functions that read a future return false or NULL for a NULL future.
 */
#ifndef WEFT_FUTURE_H
#define WEFT_FUTURE_H

#include <weft/status.h>

WEFT_BEGIN_C

/*
 * Makes a future that you complete, and gives you one reference. `agent` NULL: continuations run on the executor of the
 * process, which starts at its first use and ends with the process. NULL if memory is out.
 */
WEFT_API weft_future *weft_future_create(weft_agent *agent);
WEFT_API weft_future *weft_future_ref(weft_future *future);
WEFT_API void weft_future_unref(weft_future *future);

/*
 * Completes a future with `payload`, which the future then owns: `drop(payload)` runs when the future is freed, or at
 * once if the function fails. Only futures of weft_future_create and weft_future_then may be completed. For other
 * futures (of calls, multicasts, groups, references, collections) it returns WEFT_ERR_STATE; weft_future_cancel can end
 * them. WEFT_ERR_COMPLETED if the future is already complete.
 */
WEFT_API WEFT_NODISCARD weft_status weft_future_complete(weft_future *future, void *payload, weft_drop_fn drop);
/* Completes a future with `error`, which it references. Errors as weft_future_complete. */
WEFT_API WEFT_NODISCARD weft_status weft_future_fail(weft_future *future, const weft_error *error);

/* Whether the future is complete, with a payload or an error. */
WEFT_API bool weft_future_done(const weft_future *future);

/*
 * Waits until the future is complete, at most wait_ms (0 or more; or WEFT_FOREVER). Returns WEFT_OK, the code of the
 * future's error, or
 *   WEFT_ERR_TIMEOUT: the future is not complete after wait_ms, and may complete later. (A call that timed out has the
 *   same code; weft_future_done is then true.)
 *   WEFT_ERR_CANCELLED: the future is not complete, and weft_agent_wake was called (weft/agent.h).
 *   WEFT_ERR_DEADLOCK, at once: the future is not complete, and this thread reads the network for the future's agent,
 *   so that nothing could arrive. This happens in handlers with WEFT_FUNCTION_INLINE, in `land` and in destructors.
 *   Such a function may also run on a thread that can wait; do not rely on that. A program of a simulation
 *   (weft/sim.h) cannot wait for an agent outside of the simulation. Other threads cannot wait for an agent inside.
 *
 * Any thread may wait for a future without an agent (weft_future_create(NULL)), but an inline handler that does so
 * blocks the network.
 */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait(weft_future *future, int64_t wait_ms);

/* The payload or the error of a complete future; otherwise NULL. Borrowed from the future. These functions never
 * block. */
WEFT_API void *weft_future_payload(const weft_future *future);
WEFT_API const weft_error *weft_future_error(const weft_future *future);

/* The results of a call (weft/value.h), borrowed from its future. NULL if the future is incomplete, has failed, or is
 * not the future of a call. */
WEFT_API const weft_values *weft_future_values(const weft_future *future);
/* Result `index` if it is a tensor, borrowed from the future; otherwise NULL. */
WEFT_API weft_tensor *weft_future_tensor(const weft_future *future, size_t index);

/* Registers a continuation: when the future is complete, `fn(future, arg)` runs, then `drop(arg)`. On failure
 * (WEFT_ERR_INVALID, WEFT_ERR_MEMORY) `fn` never runs, and `drop(arg)` has run. */
typedef void (*weft_done_fn)(weft_future *future, void *arg);
WEFT_API WEFT_NODISCARD weft_status weft_future_add_done_callback(weft_future *future, weft_done_fn fn, void *arg,
                                                                  weft_drop_fn drop);

/*
 * Makes a new future, the child, which a continuation completes: when `future` is complete, `fn(future, child, arg)`
 * runs, then `drop(arg)`. `fn` completes the child, at once or later. To complete it later, `fn` keeps a reference to
 * the child. If `fn` returns a failure, the child fails with it. If the child is cancelled before `fn` begins, `fn`
 * never runs, and `drop` runs at once. NULL if memory is out; `drop` has run then.
 */
typedef weft_status (*weft_then_fn)(weft_future *parent, weft_future *child, void *arg);
WEFT_API weft_future *weft_future_then(weft_future *future, weft_then_fn fn, void *arg, weft_drop_fn drop);

/*
 * Makes a future that completes when all `count` listed futures are complete, and succeeds even if these have
 * failed. Its payload is an array of `count` pointers to the listed futures (weft_future *), which the new future
 * then references. With `count` 0 it is complete at once. NULL if memory is out. Until the new future is
 * complete it holds no references: if you free a listed future earlier, the new one fails with WEFT_ERR_CANCELLED.
 */
WEFT_API weft_future *weft_future_when_all(weft_future *const *futures, size_t count);

/* Makes a future that completes when the first of `count` listed futures completes, and succeeds even if that one
 * has failed. Its payload is an array of one pointer to that listed future, which the new future references. If all
 * listed futures are freed while they are incomplete, the new future fails with WEFT_ERR_CANCELLED. With `count` 0
 * it never completes. NULL if memory is out. */
WEFT_API weft_future *weft_future_when_any(weft_future *const *futures, size_t count);

/* Waits until one of the futures is complete; *index receives its position, whether it succeeded or failed.
 * WEFT_ERR_TIMEOUT, WEFT_ERR_DEADLOCK (as weft_future_wait), WEFT_ERR_INVALID (`count` is 0, or a pointer is NULL),
 * WEFT_ERR_MEMORY. */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait_any(weft_future *const *futures, size_t count, int64_t wait_ms,
                                                         size_t *index);

/* Like weft_future_wait, until the clock of weft_agent_now_ns reaches deadline_ns; for a future without an agent the
 * clock is CLOCK_MONOTONIC. */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait_until(weft_future *future, uint64_t deadline_ns);

/*
 * Requests the early end of a future. The future may still complete in another way. The effect depends on what made it:
 *   A call: the callee is notified. The future fails with WEFT_ERR_CANCELLED as soon as neither a peer nor a handler of
 *   this worker uses the call's tensors.
 *   Futures of weft_future_create and weft_future_then: the future fails with WEFT_ERR_CANCELLED at once, and
 *   weft_future_complete then returns WEFT_ERR_COMPLETED. The parent of weft_future_then is not cancelled.
 *   Futures of weft_future_when_all, weft_future_when_any, weft_rpc_multicast: the listed futures are cancelled;
 *   this future completes when they have ended.
 * WEFT_ERR_COMPLETED if the future is already complete.
 */
WEFT_API WEFT_NODISCARD weft_status weft_future_cancel(weft_future *future);

/* Waits until all futures are complete. When one of them fails, the function returns its code without waiting for the
 * others. WEFT_ERR_TIMEOUT and WEFT_ERR_DEADLOCK as weft_future_wait. */
WEFT_API WEFT_NODISCARD weft_status weft_future_wait_all(weft_future *const *futures, size_t count, int64_t wait_ms);

WEFT_END_C
#endif
