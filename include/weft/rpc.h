/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/rpc.h - remote calls: functions registered by name, calls to them, and what a handler sees.
 *
 * A worker registers functions; any worker of the job, itself included, calls them by name. A call takes and
 * gives values (weft/value.h), and runs at most once. weft checks it against the function's signature before
 * the handler runs.
 *
 *     static weft_status scale(weft_call *call, void *user)
 *     {
 *         (void)user;
 *         weft_tape *t = weft_call_tape(call); // owns what this call computes
 *         weft_tensor *y = weft_scale(t, weft_call_tensor(call, 0), weft_call_f64(call, 1));
 *         weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
 *         return WEFT_OK; // a failure that the tape or the call keeps goes to the caller
 *     }
 *     static const weft_function scale_function = {
 *         .name = "scale", .takes = {WEFT_TENSOR, WEFT_F64}, .gives = {WEFT_TENSOR}, .run = scale};
 *
 *     weft_status print_scaled(weft_agent *agent, weft_tensor *x) // on another worker
 *     {
 *         weft_values *results;
 *         weft_tensor *y;
 *         weft_args arguments = WEFT_VALUES(weft_of_tensor(x), weft_of_f64(2.5)); // in C++: auto arguments
 *         weft_status st = weft_rpc_sync(agent, weft_to_rank(0), "scale", arguments, NULL, &results);
 *         if (!st && !weft_values_get_tensor(results, 0, &y))
 *             weft_tensor_print(y, stdout);
 *         if (!st)
 *             weft_values_unref(results);
 *         return st;
 *     }
 *
 * (weft_call_tape and what computes on tapes are in libweft; libweft_rpc alone has everything else of this header.)
 *
 * docs/calls.md has the rules for retries, items, deferred calls and calls to oneself; docs/budget.md says what
 * calls cost in memory; docs/failures.md says how calls end when workers die.
 */
#ifndef WEFT_RPC_H
#define WEFT_RPC_H

#include <weft/agent.h>
#include <weft/batch.h>
#include <weft/future.h>
#include <weft/value.h>

WEFT_BEGIN_C

#define WEFT_MAX_SIGNATURE 16 /* types in `takes` or `gives`, with the WEFT_NONE that ends them */

/*
 * A handler. It ends in one of three ways:
 *   - It gives results with weft_call_give and returns WEFT_OK.
 *   - It returns a failure. The caller gets WEFT_ERR_REMOTE, with this status inside and the message of
 *     weft_call_fail, if any.
 *   - It keeps the call with weft_call_defer and returns WEFT_DEFERRED. Somebody must then call
 *     weft_call_finish exactly once, on any thread.
 * Handlers run on the agent's executor, several at once (but see WEFT_INLINE), with no lock of weft held.
 */
typedef weft_status (*weft_handler_fn)(weft_call *call, void *user);

/*
 * Says where an arriving tensor goes. Tensor number `index` of the call, counted through all its lists, has
 * this dtype and shape. Return a contiguous tensor of the same dtype and shape, with a reference that weft
 * drops; or NULL for memory of weft's. The handler then sees that tensor, the place, as its argument. weft
 * calls it before it pulls the payload, on one of its threads, with no lock held; it must not block. If the
 * call fails before its handler runs, the content of the place is undefined. So a place serves one call at a
 * time. In a call to this worker itself it runs just before the handler, on the same thread, and the tensor is
 * copied to the place. If it returns NULL there, the handler sees the caller's own tensor, or a copy if that is
 * not contiguous.
 *
 * With WEFT_LAND_ADD arriving tensors are added to their places instead; every dtype but bool, in host memory.
 * docs/calls.md has the rules; in short:
 *   - `land` runs just before the handler, on the same thread, and the handler sees the places after the addition.
 *   - All tensors of a call are added, or none, and never twice. None are if the call was cancelled, ran out of
 *     time, lost its connection, or does not fit its places (WEFT_ERR_SHAPE).
 *   - Several calls may add to the same places; weft makes the additions of one function one call at a time. So
 *     a place belongs to one function. Only the handler of the last call that will come may read it: others may
 *     see half of an addition.
 */
typedef weft_tensor *(*weft_land_fn)(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user);

typedef enum weft_function_flags {
    WEFT_INLINE = 1,   /* the handler runs on the thread that reads the network: it must never block */
    WEFT_URGENT = 2,   /* its calls start before others that wait for a thread */
    WEFT_LAZY = 4,     /* its calls start after others; but every 16th start takes the call that has waited longest */
    WEFT_LAND_ADD = 8, /* arriving tensors are added to the places of `land` (weft_land_fn). Not with WEFT_INLINE */
} weft_function_flags;

/* A function that workers can call. */
struct weft_function {
    const char *name; /* unique on this worker; 1..127 bytes */
    /* The types of the arguments, then WEFT_NONE to the end. WEFT_REST before that allows any further ones. */
    weft_type takes[WEFT_MAX_SIGNATURE];
    weft_type gives[WEFT_MAX_SIGNATURE]; /* the types of the results, likewise */
    weft_handler_fn run;
    weft_land_fn land;        /* optional */
    unsigned flags;           /* of weft_function_flags */
    void *user;               /* handed to run, run_batch and land */
    weft_batch_fn run_batch;  /* instead of run: a handler that receives many calls at once (weft/batch.h) */
    weft_batch_options batch; /* for run_batch */
};

/* Registers one more function. The struct and the name are copied. WEFT_ERR_EXISTS (the name), WEFT_ERR_INVALID,
 * WEFT_ERR_MEMORY. Any thread. */
WEFT_API WEFT_NODISCARD weft_status weft_agent_register(weft_agent *agent, const weft_function *function);

/* ---- Calling ----------------------------------------------------------------------------------- */

#define WEFT_NAME_NULL INT32_MIN /* the rank in what weft_to_name makes of NULL: calls to it are WEFT_ERR_INVALID */

/* The worker that a call goes to. weft_to_rank, weft_to_name and weft_to_worker make one. */
typedef struct weft_target {
    int rank;             /* if name is NULL */
    const char *name;     /* borrowed until the function that makes the call returns */
    uint32_t incarnation; /* with rank; 0: whoever holds the rank */
} weft_target;
static inline weft_target weft_to_rank(int rank)
{
    weft_target t = {rank, NULL, 0};
    return t;
}
static inline weft_target weft_to_name(const char *name)
{
    weft_target t = {name ? -1 : WEFT_NAME_NULL, name, 0};
    return t;
}
/* A call to exactly this worker. Once it is gone the call fails with WEFT_ERR_PEER_DEAD or WEFT_ERR_PEER_LEFT,
 * even if another worker has taken the rank. WEFT_ERR_UNREACHABLE if the calling worker has not heard of it
 * yet. */
static inline weft_target weft_to_worker(weft_worker worker)
{
    weft_target t = {worker.rank, NULL, worker.incarnation};
    return t;
}

/*
 * Tries a call again when it fails. Only for functions that may run more than once: an attempt that failed may
 * have run. Zeroed: one attempt. A negative field: WEFT_ERR_INVALID.
 *
 * After a pause there is another attempt if the last one
 *   - took longer than attempt_ms,
 *   - ended with WEFT_ERR_BUSY, WEFT_ERR_AGAIN, WEFT_ERR_UNREACHABLE or WEFT_ERR_UNKNOWN,
 *   - ran a handler that failed with WEFT_ERR_BUSY or WEFT_ERR_AGAIN,
 *   - or found no living worker of the name that the target has. A name is looked up for each attempt.
 * The time limit of the call bounds all attempts and pauses. docs/calls.md has the rest: names, pauses, and how
 * such a call fails.
 */
typedef struct weft_retry {
    int attempts;          /* how many at most, with the first */
    int64_t pause_ms;      /* before the second attempt; default 50. Each later pause is 1.5 times as long */
    int64_t pause_most_ms; /* the longest pause; default 5,000 */
    int64_t attempt_ms;    /* the time limit of one attempt; 0: that of the call */
} weft_retry;

/* Receives an item of the results that the handler sent ahead with weft_call_send_item. `item` is borrowed. Runs
 * on the executor, one item at a time, in order; the last one has returned before the call's future completes. */
typedef void (*weft_item_fn)(const weft_values *item, void *arg);

typedef struct weft_rpc_options {
    int64_t timeout_ms; /* 0: the agent's default; WEFT_FOREVER: none; below that: WEFT_ERR_INVALID */
    /* The tensors of the result land in these, in order. Each must be contiguous and have the dtype and shape
     * of the result. After a failure their content is undefined. */
    weft_tensors land;
    bool wait_for_room; /* wait while the queue to the peer is full (queue_limit_bytes). Else: WEFT_ERR_AGAIN */
    /* Receives the detail if weft_rpc_sync fails, or if a call cannot start; you release it. NULL: the log has
     * the detail, where it is a mistake of the program (WEFT_ERR_INVALID, WEFT_ERR_TYPE, WEFT_ERR_SHAPE,
     * WEFT_ERR_DEADLOCK). */
    weft_error **error;
    /* The call that a handler is serving, and for which it makes this call; NULL for none. What is left of that
     * call's time bounds this call; cancelling that call cancels this one; traces join the two, and errors
     * carry the chain of workers. If that call has run out of time or was cancelled, starting fails with
     * WEFT_ERR_TIMEOUT or WEFT_ERR_CANCELLED. When that call is answered, this one goes on alone. Borrowed
     * until the function that makes the call returns. It must be of the same agent (else WEFT_ERR_INVALID). */
    const weft_call *parent;
    weft_retry retry;
    weft_item_fn on_item; /* receives items of the results; NULL: the handler cannot send any */
    void *item_arg;       /* handed to on_item */
    /* In libweft, not in libweft_rpc: a tape of a distributed context (weft/context.h), which the call takes part in
     * then. Tensors among arguments and results that were recorded under it, or that are leaves which want a
     * gradient, are linked: the backward pass crosses to the other worker there. Not together with `land` in a call
     * to oneself (WEFT_ERR_UNSUPPORTED). Used until the function that makes the call returns. One thread at a time
     * uses a tape: give each thread that calls a tape of its own. The order of the calls on a tape decides the last
     * bits of gradients (weft_context_tape). NULL: none. */
    weft_tape *tape;
} weft_rpc_options;

/*
 * CALLS TO ONESELF. A worker may call itself. The handler then sees the caller's own tensors, not copies, and
 * this follows:
 *   - The future of such a call completes only when the handler cannot look at its arguments any more, even if
 *     the call has run out of time or was cancelled: the handler has returned, or, if the call keeps its arguments
 *     (weft_call_defer_keeping, batches), it was finished. The handler can see at once that nobody wants the
 *     answer (weft_call_cancelled). If it has not begun, it never does.
 *   - So a handler must not wait for the end of its own call, and a caller must not wait for a handler that
 *     waits for the caller.
 *   - A tensor that the handler keeps a reference to shares the caller's storage, and changes when the caller
 *     writes. So clone what you keep, if the caller may be this worker.
 * docs/calls.md has the details.
 */

/*
 * Starts a call, and gives you its future; with `out` NULL the call goes on and nobody hears how it ends.
 *
 * MEMORY. Strings and bytes are copied, and references to tensors are taken, before it returns. The contents of
 * tensors must not change until the future is complete. Once it is complete, well or not, no peer touches the
 * arguments or the landing tensors any more, and no handler of this worker does, except those that it keeps
 * references to. Strings and bytes to another worker may be 64 MiB together (WEFT_MAX_CALL_BYTES); tensors may
 * have any size.
 *
 * ERRORS that it returns: WEFT_ERR_NOT_FOUND (no such worker), WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE,
 * WEFT_ERR_AGAIN (the queue to the peer is full), WEFT_ERR_TIMEOUT (with wait_for_room: there was no room
 * within the time limit), WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT, WEFT_ERR_CLOSED, WEFT_ERR_EVICTED,
 * WEFT_ERR_STORE_LOST, WEFT_ERR_MEMORY.
 *
 * ERRORS of the future: those of the list above that can still happen, and
 *   - WEFT_ERR_REMOTE: the handler failed; weft_error_remote_code has its status.
 *   - WEFT_ERR_NOT_FOUND: the worker has no such function. WEFT_ERR_TYPE: the arguments do not fit its signature.
 *   - WEFT_ERR_TIMEOUT; WEFT_ERR_CANCELLED (weft_future_cancel).
 *   - WEFT_ERR_BUSY: the callee has no memory or no threads for more calls. It did not run.
 *   - WEFT_ERR_UNKNOWN: the handler ran, and the callee had no room to keep its answer. With retries: an attempt
 *     may have run (docs/calls.md).
 *   - WEFT_ERR_UNREACHABLE: the link to the worker is cut, or cannot carry large payloads (docs/failures.md).
 *
 * DID IT RUN? A call runs at most once. With WEFT_ERR_TIMEOUT, WEFT_ERR_CANCELLED, and the ends of peers and
 * agents, weft_error_remote_code says what is known: WEFT_ERR_UNKNOWN if the handler may have run, WEFT_OK if
 * it surely did not.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_async(weft_agent *agent, weft_target to, const char *function,
                                                   weft_args_in arguments, const weft_rpc_options *options,
                                                   weft_future **out);

/*
 * Makes a call and waits for its end. `out`, if not NULL, receives the results, with a reference for you.
 * Errors are those of weft_rpc_async and of its future. WEFT_ERR_DEADLOCK if this thread cannot wait
 * (weft_future_wait); nothing was started then.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_sync(weft_agent *agent, weft_target to, const char *function,
                                                  weft_args_in arguments, const weft_rpc_options *options,
                                                  weft_values **out);

/*
 * Makes the same call to `count` workers. The arguments are packed once. The future is like that of
 * weft_future_collect_all: it completes when all calls have, and its payload is an array of `count` futures,
 * one for each target, in order. A call that could not start has a failed future there. Cancelling the future
 * cancels all calls. `out` may be NULL. The options `land` and on_item are WEFT_ERR_INVALID here.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_multicast(weft_agent *agent, const weft_target *to, size_t count,
                                                       const char *function, weft_args_in arguments,
                                                       const weft_rpc_options *options, weft_future **out);

/*
 * Makes a call whose first result stays on the worker that ran it. `out` receives a handle to that result at
 * once, before the call has run (weft/rref.h). If the call fails later (no such function, a failure of the
 * handler, a time limit), whoever reads the handle (weft_rref_to_here) gets that error. The option `land` is
 * WEFT_ERR_INVALID here. Items go to on_item as in any call; they are not part of the value.
 *
 * If a call of any kind has an argument that is such a handle, and this worker already knows that the call
 * which was to make its value has failed, then the call with the handle does not run, and fails with the same
 * error: its code, what weft_error_remote_code says of a handler, and its message, behind the name of the
 * function that was to make the value. Only WEFT_ERR_BUSY and WEFT_ERR_AGAIN become WEFT_ERR_NOT_FOUND, because
 * to try this call again would not help. If this worker does not know yet, the handler runs, and whoever reads
 * the handle there gets the error.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_remote(weft_agent *agent, weft_target to, const char *function,
                                                    weft_args_in arguments, const weft_rpc_options *options,
                                                    weft_rref **out);

/* ---- Inside a handler -------------------------------------------------------------------------- */

/* These read the arguments; `index` counts from 0. They cannot fail, since the signature was checked before. (A
 * wrong index is a mistake of the program: debug builds stop there, others return NULL, 0 or "".) What they
 * return is borrowed from the call, until the handler returns; with weft_call_defer_keeping, until the call is
 * finished. */
WEFT_API size_t weft_call_count(const weft_call *call);
WEFT_API weft_type weft_call_type(const weft_call *call, size_t index);
WEFT_API bool weft_call_bool(const weft_call *call, size_t index);
WEFT_API int64_t weft_call_i64(const weft_call *call, size_t index);
WEFT_API double weft_call_f64(const weft_call *call, size_t index);
WEFT_API const char *weft_call_string(const weft_call *call, size_t index);
WEFT_API const void *weft_call_bytes(const weft_call *call, size_t index, size_t *size);
WEFT_API weft_tensor *weft_call_tensor(const weft_call *call, size_t index);
WEFT_API weft_tensors weft_call_tensors(const weft_call *call, size_t index);
WEFT_API weft_rref *weft_call_rref(const weft_call *call, size_t index);
WEFT_API weft_args weft_call_list(const weft_call *call, size_t index);

WEFT_API weft_agent *weft_call_agent(const weft_call *call);
WEFT_API int weft_call_from(const weft_call *call); /* the caller's rank */
/* How many milliseconds are left until the caller gives up, 0 or more; WEFT_FOREVER if it never does. */
WEFT_API int64_t weft_call_time_left(const weft_call *call);
/* Whether nobody wants the answer any more: the call was cancelled, it ran out of time, or its caller is gone.
 * A long handler may ask this now and then, and stop. */
WEFT_API bool weft_call_cancelled(const weft_call *call);
/*
 * A future, with a reference for you, that fails as soon as nobody wants the answer any more: with
 * WEFT_ERR_CANCELLED, WEFT_ERR_TIMEOUT, or the code for the caller's end (WEFT_ERR_PEER_DEAD ...). Else it
 * completes when the call is answered. NULL if memory is out.
 */
WEFT_API weft_future *weft_call_cancellation(weft_call *call);
/* In libweft, not in libweft_rpc. The tape of this call: it owns temporaries until the call ends, and does not record. Every call has a seed of
 * its own, and so has every attempt of a retried call: the seed follows from the ranks of both workers, the
 * caller's incarnation, and the number of the call. weft_tape_set_seed sets another. */
WEFT_API weft_tape *weft_call_tape(weft_call *call);

/* Sets the results; references are taken, and the limits of arguments apply. If it is called twice, the last
 * one counts. A wrong type, a NULL tensor or list, or too much data makes the call fail. */
WEFT_API void weft_call_give(weft_call *call, weft_args_in results);
/*
 * Sends an item of the results ahead, to the caller's on_item. References are taken; items have no signature.
 * Allowed until the call ends, for the handler and for whoever holds the deferred call. Under a distributed context, what was recorded is
 * linked, and the thread that uses the call's tape sends it.
 *   - WEFT_ERR_STATE: the caller accepts no items; or the call's distributed context is over.
 *   - WEFT_ERR_AGAIN: 16 items of this call are on their way: on_item has not returned from them. Try again
 *     later, or leave the item out. To wait for room, wait a millisecond for weft_call_cancellation: while the
 *     handler waits there, another one can run.
 *   - WEFT_ERR_CANCELLED: nobody wants the answer any more.
 *   - WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_call_send_item(weft_call *call, weft_args_in item);
/*
 * Only in calls of weft_rpc_remote: the result is an object of your own type, which stays on this worker
 * (weft/rref.h). `type->drop(object)` runs when the last handle is released. In any other call, or if memory is
 * out, it runs at once, and the call fails (WEFT_ERR_TYPE, WEFT_ERR_MEMORY).
 */
WEFT_API void weft_call_give_object(weft_call *call, const weft_object_type *type, void *object);
/* Makes the call fail with a status and a message, of which 1,023 bytes are kept. If the call has failed
 * already, the first failure stays. */
WEFT_API void weft_call_fail(weft_call *call, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);
/*
 * Makes the call fail with the error of something that it needed, for example of another call. The caller gets
 * WEFT_ERR_REMOTE with the status of `error` inside, its message, the worker where it failed first, and the
 * chain of workers, to which this one is added (weft_error_hop). If the call has failed already, the first
 * failure stays. NULL does nothing. A handler that simply returns the status of a call that it made with the
 * option `parent` has the same effect; so has one that returns what it met with in a handle among its arguments, whose value
 * could not be made.
 */
WEFT_API void weft_call_fail_with(weft_call *call, const weft_error *error);
/* The code of the first failure of this call, or of its tape; WEFT_OK if there is none. */
WEFT_API weft_status weft_call_status(const weft_call *call);

/*
 * Keeps the call beyond the handler, which must return WEFT_DEFERRED: weft_call_finish answers it later. The
 * arguments are freed when the handler returns; after weft_call_defer_keeping, when the call is finished.
 * Returns the call.
 */
WEFT_API weft_call *weft_call_defer(weft_call *call);
WEFT_API weft_call *weft_call_defer_keeping(weft_call *call);
/* Answers a deferred call, with the results that were given, or with `status` if that is a failure. Exactly
 * once for each deferred call; do not touch the call afterwards. Any thread. */
WEFT_API void weft_call_finish(weft_call *call, weft_status status);

WEFT_END_C
#endif
