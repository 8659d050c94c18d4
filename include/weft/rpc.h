/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/rpc.h - remote calls: functions registered by name, calls to them, and what a handler sees.
 *
 * A call is checked against the function's declared signature before the handler runs, so the accessors of a call cannot
 * fail; a wrong index is the programmer's error and caught in debug builds (release: NULL, 0, "").
 */
#ifndef WEFT_RPC_H
#define WEFT_RPC_H

#include <weft/agent.h>
#include <weft/batch.h>
#include <weft/future.h>
#include <weft/value.h>

WEFT_BEGIN_C

#define WEFT_MAX_SIGNATURE 16 /* types in `takes` or `gives`, the closing WEFT_NONE included */

/*
 * A handler. It gives results with weft_call_give and returns WEFT_OK; or returns a failure, perhaps after
 * weft_call_fail with a message, which reaches the caller as WEFT_ERR_REMOTE; or takes the call with weft_call_defer,
 * returns WEFT_DEFERRED, and somebody calls weft_call_finish exactly once, from any thread.
 */
typedef weft_status (*weft_handler_fn)(weft_call *call, void *user);

/*
 * Where arriving tensors are to land: called before the payload is pulled, on a thread of weft's, with no lock held; must
 * not block. Tensor `index` of the call (counted through all lists) has this dtype and shape. Returns a contiguous tensor
 * of the same dtype and shape, with a reference for weft to drop, or NULL for a recycled slab. The handler sees the place as
 * its argument. Of a call to oneself it is asked when the handler's turn has come, on its thread, and the tensors are copied to
 * the places; for NULL the handler sees the caller's own, or a packed copy if that is not contiguous. If the call fails on its
 * way the content of its places is undefined, so one place serves one call at a time.
 *
 * With WEFT_LAND_ADD the tensors come to slabs first, and land is asked when the handler's turn has come, on its thread, also for
 * calls to oneself. Then they are added to the places, all of the call or none: nothing is added of a call that was
 * cancelled, ran out of time, does not fit (WEFT_ERR_SHAPE) or lost its connection, and nothing twice. Then the handler
 * runs and sees the places as its arguments. Any number of calls may add to the same places at once: the additions of
 * one function are made one call at a time. So places belong to one function; whoever reads them while calls of it may
 * come sees additions half made, but for the handler of the last call that is to come. Any dtype but bool, in host memory.
 */
typedef weft_tensor *(*weft_land_fn)(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user);

typedef enum weft_function_flags {
    WEFT_INLINE = 1, /* runs on the thread that reads the network: only for handlers that never block */
    WEFT_URGENT = 2, /* waiting for a worker, it goes ahead of others */
    WEFT_LAZY = 4,   /* it lets others go ahead; but one call in 16 that start is the oldest of all, so none starves */
    WEFT_LAND_ADD =
        8, /* arriving tensors are added to the places that `land` gives; see weft_land_fn. Not with WEFT_INLINE */
} weft_function_flags;

struct weft_function {
    const char *name;                    /* unique; 1..127 bytes */
    weft_type takes[WEFT_MAX_SIGNATURE]; /* ends with WEFT_NONE; WEFT_REST last: any further values */
    weft_type gives[WEFT_MAX_SIGNATURE];
    weft_handler_fn run;
    weft_land_fn land; /* optional */
    unsigned flags;
    void *user;               /* handed to run, run_batch and land */
    weft_batch_fn run_batch;  /* instead of run: it receives many calls at once (weft/batch.h) */
    weft_batch_options batch; /* of run_batch */
};

/* Registers one more function; the struct and its name are copied. WEFT_ERR_EXISTS, WEFT_ERR_INVALID. Any thread. */
WEFT_API WEFT_NODISCARD weft_status weft_agent_register(weft_agent *agent, const weft_function *function);

/* ---- Calling -------------------------------------------------------------------------------------------------- */

/* Whom a call is for. A name is borrowed until the call function returns. */
typedef struct weft_target {
    int rank; /* used if name is NULL */
    const char *name;
    uint32_t incarnation; /* with rank; 0: whoever holds it */
} weft_target;
static inline weft_target weft_to_rank(int rank)
{
    weft_target t = {rank, NULL, 0};
    return t;
}
static inline weft_target weft_to_name(const char *name)
{
    weft_target t = {-1, name, 0};
    return t;
}
/* WEFT_ERR_PEER_DEAD or WEFT_ERR_PEER_LEFT once that incarnation is gone, whoever holds the rank then; WEFT_ERR_UNREACHABLE
 * where this worker has not heard of it yet. */
static inline weft_target weft_to_worker(weft_worker worker)
{
    weft_target t = {worker.rank, NULL, worker.incarnation};
    return t;
}

/*
 * Trying again, for functions that may run more than once. Attempts that end with WEFT_ERR_BUSY, WEFT_ERR_AGAIN,
 * WEFT_ERR_UNREACHABLE or WEFT_ERR_UNKNOWN, or that took longer than attempt_ms, are made again after a pause; so are those that
 * a handler asks for, by failing with WEFT_ERR_BUSY or WEFT_ERR_AGAIN: after the last attempt that is WEFT_ERR_REMOTE, with that
 * as its weft_error_remote_code. For a target by name, which is looked up each time, so are those that end with
 * WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT, or WEFT_ERR_NOT_FOUND of the worker: somebody may take the name. In an elastic job that
 * is any name, a misspelt one too; in a static job only one whose worker is gone, any other is WEFT_ERR_NOT_FOUND at once.
 * Pauses grow by a factor of 1.5 and vary by a quarter. The call's own time limit bounds it all: where no further attempt could
 * begin before it, the last failure is the call's. Zeroed: one attempt. A negative field: WEFT_ERR_INVALID.
 * That none of the attempts ran is said only where that is sure. Else a last failure that says so of its own attempt becomes
 * WEFT_ERR_UNKNOWN, with that failure in its message (WEFT_ERR_BUSY, WEFT_ERR_AGAIN, WEFT_ERR_NOT_FOUND ...), or keeps its code
 * with a weft_error_remote_code of WEFT_ERR_UNKNOWN (WEFT_ERR_TIMEOUT, WEFT_ERR_CANCELLED, the ends of peers and agents).
 * With wait_for_room an attempt that finds none waits and is not counted, until the time limit (WEFT_ERR_TIMEOUT); only the first
 * one blocks the caller. Parts come from every attempt. weft_rpc_remote, whose result has one name from the beginning, is tried
 * again only where it did not run for sure: where it did not start, and after WEFT_ERR_BUSY of the callee's own, not its handler's.
 */
typedef struct weft_retry {
    int attempts;          /* at most, the first included */
    int64_t pause_ms;      /* before the second; default 50 */
    int64_t pause_most_ms; /* default 5,000 */
    int64_t attempt_ms;    /* of one attempt; 0: the call's */
} weft_retry;

/* A part of the results, sent ahead by weft_call_send_part; `part` is borrowed. On the executor, one at a time, in order,
 * the last one before the call's future completes. */
typedef void (*weft_part_fn)(const weft_values *part, void *arg);

typedef struct weft_rpc_options {
    int64_t timeout_ms; /* 0: the agent's default; WEFT_FOREVER; below it: WEFT_ERR_INVALID */
    weft_tensors land;  /* the result's tensors, in order, land in these: contiguous, right dtype and shape. After a
                           failure their content is undefined */
    bool wait_for_room; /* over the peer's queue_limit_bytes (weft/agent.h): wait instead of WEFT_ERR_AGAIN */
    weft_error **error; /* rpc_sync, and failures to start: receives the detail; you release it. NULL: the log has
                           what is a mistake of the program (INVALID, TYPE, SHAPE, DEADLOCK) */
    /* The call being served that this one is made for: what is left of its time bounds this one, its cancellation cancels
     * this one, traces join, errors carry the chain. Borrowed until the call function returns. Of the same agent, else
     * WEFT_ERR_INVALID. If it has run out or was cancelled the start fails with WEFT_ERR_TIMEOUT or WEFT_ERR_CANCELLED; once it
     * has been answered, this one goes on alone. */
    const weft_call *within;
    weft_retry retry;
    weft_part_fn on_part; /* the callee's parts; NULL: they are not sent */
    void *part_arg;
} weft_rpc_options;

/*
 * CALLS TO ONESELF. The handler sees the caller's own tensors, not copies. So the future of such a call, also of one that is late or
 * was cancelled, completes only when the handler cannot look at its arguments any more: it has returned, or, of a batch and of a call
 * deferred with weft_call_defer_keeping, it was finished (or the agent closes, which waits for nobody who keeps arguments: do not read
 * them any more then). The handler is told at once (weft_call_cancellation), and one that has not begun never does. Each
 * attempt of a call with weft_retry ends in the same way. So a handler must not wait for the end of its own call, nor a caller for a handler that waits for the caller.
 * What a handler keeps a reference to shares the caller's storage afterwards: it is counted, changes when the caller writes, and a tape
 * that needs it as it was says WEFT_ERR_STATE (weft/tape.h). Memory of weft_tensor_wrap without a drop function is not counted. So clone
 * what you keep, where a caller may be yourself.
 */

/*
 * Starts a call. Strings and bytes are copied, 64 MiB of them at most to another worker (weft/value.h: WEFT_MAX_CALL_BYTES);
 * tensors may have any size. References to the arguments are taken before it returns; tensor contents must stay as they are until the
 * future completes. Once it has completed, well or not, no peer can touch the arguments or landing tensors any more,
 * nor can a handler of our own, but for what it kept (above).
 * Errors of starting: WEFT_ERR_NOT_FOUND (worker), WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE, WEFT_ERR_AGAIN,
 * WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT, WEFT_ERR_CLOSED, WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST, WEFT_ERR_MEMORY,
 * WEFT_ERR_TIMEOUT (no room within the call's time limit, with wait_for_room).
 * Errors of the future: those that can come later, and WEFT_ERR_NOT_FOUND (function), WEFT_ERR_TYPE (signature),
 * WEFT_ERR_REMOTE (the handler's own), WEFT_ERR_TIMEOUT, WEFT_ERR_CANCELLED (weft_future_cancel), WEFT_ERR_BUSY (over the
 * callee's memory budget, or its worker cannot take more: it did not run), WEFT_ERR_UNKNOWN (the callee gave its answer up),
 * WEFT_ERR_UNREACHABLE (the link to it is cut, but not the store's: nothing was heard for three to four death_timeout_ms; or no lane
 * for large payloads can be opened, from either side, within death_timeout_ms).
 * `out` may be NULL: the call goes on, and nobody hears how it ends.
 * A call runs at most once. With WEFT_ERR_TIMEOUT, WEFT_ERR_CANCELLED, WEFT_ERR_PEER_DEAD and the like weft_error_remote_code says what is
 * known of the handler: WEFT_ERR_UNKNOWN if it may have run, WEFT_OK if it surely did not.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_async(weft_agent *agent, weft_target to, const char *function,
                                                   weft_args arguments, const weft_rpc_options *options,
                                                   weft_future **out);

/*
 * The same, waiting. `out` may be NULL; else it receives the results, with a reference. When it returns the call is over. Where the
 * calling thread cannot wait (weft_future_wait), WEFT_ERR_DEADLOCK, and nothing was started.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_sync(weft_agent *agent, weft_target to, const char *function,
                                                  weft_args arguments, const weft_rpc_options *options,
                                                  weft_values **out);

/*
 * The same call to many workers; the arguments are packed once. The future has the form of weft_future_collect_all's: it
 * completes when all have, its payload is an array of `count` futures, one a target. A target that cannot be started is a
 * failed future there. Landing places and parts are not for this: WEFT_ERR_INVALID. Cancelling it cancels them all. `out` may be NULL.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_multicast(weft_agent *agent, const weft_target *to, size_t count,
                                                       const char *function, weft_args arguments,
                                                       const weft_rpc_options *options, weft_future **out);

/*
 * Runs the function there and leaves its first result there: `out` is a reference to it, at once (weft/rref.h). What goes
 * wrong after the start (no such function, a failure of its own, a time-out) is told by weft_rref_to_here. Landing places are
 * not for this: WEFT_ERR_INVALID. Parts come to on_part as in any other call, and are no part of the result. A call that takes a
 * reference along of which its holder knows that the value was not made fails as the making did; where that found no room
 * (WEFT_ERR_BUSY, WEFT_ERR_AGAIN) with WEFT_ERR_NOT_FOUND.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_remote(weft_agent *agent, weft_target to, const char *function,
                                                    weft_args arguments, const weft_rpc_options *options,
                                                    weft_rref **out);

/* ---- Inside a handler ----------------------------------------------------------------------------------------- */

/* All borrowed from the call: valid until the handler returns, or, in a deferred call, until it is finished. */
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
/* Milliseconds until the caller gives up, >= 0; WEFT_FOREVER if it never does. */
WEFT_API int64_t weft_call_time_left(const weft_call *call);
/* Whether nobody wants the answer any more: cancelled, out of time, or the caller is gone. A long handler may look at it and stop. */
WEFT_API bool weft_call_cancelled(const weft_call *call);
/*
 * The same as a future, with a reference for you: it fails with WEFT_ERR_CANCELLED, WEFT_ERR_TIMEOUT or the caller's end
 * (WEFT_ERR_PEER_DEAD ...), or completes when the call is answered. NULL if memory is out.
 */
WEFT_API weft_future *weft_call_cancellation(weft_call *call);
/* A tape for what this call computes: it owns temporaries, records nothing unless the caller's context does. Its seed is of this
 * call: it follows from both ranks, which life of the caller it is and the number of the call, each attempt of a retried one having
 * its own; weft_tape_set_seed gives it another. */
WEFT_API weft_tape *weft_call_tape(weft_call *call);

/* Sets the results (references taken; limits as of arguments). The last one counts. A wrong type, a NULL tensor or list, or too much
 * fails the call. */
WEFT_API void weft_call_give(weft_call *call, weft_args results);
/*
 * Sends a part of the results ahead, to the caller's on_part (references taken; no signature is declared for parts). From the
 * handler, or whoever holds the deferred call, until it is finished. WEFT_ERR_STATE: the caller takes none; WEFT_ERR_AGAIN:
 * 16 are under way that on_part has not seen, try later or leave it out; WEFT_ERR_CANCELLED: nobody wants it; WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE,
 * WEFT_ERR_MEMORY.
 * To wait for room, wait on weft_call_cancellation's future for a millisecond: while it waits so, another worker takes its place.
 */
WEFT_API WEFT_NODISCARD weft_status weft_call_send_part(weft_call *call, weft_args part);
/*
 * For calls made with weft_rpc_remote: an object of your own type stays here as the result; `type->drop(object)` runs when the
 * last reference goes, or at once where this fails (as for any other kind of call). See weft/rref.h.
 */
WEFT_API void weft_call_give_object(weft_call *call, const weft_object_type *type, void *object);
/* Keeps a failure with a message for the caller, up to 1,023 bytes, the rest is cut; the first one counts. */
WEFT_API void weft_call_fail(weft_call *call, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);
/*
 * Passes on the failure of something that this call needed, another call say: the caller sees WEFT_ERR_REMOTE with its status
 * inside, its message, the worker where it arose, and this worker in the chain (weft_error_hop; up to 16). The first failure kept counts.
 * A handler that just returns the status of a call that it made with `within` does the same. NULL is a no-op.
 */
WEFT_API void weft_call_fail_with(weft_call *call, const weft_error *error);
/* The failure kept so far, by weft_call_fail or the call's tape; WEFT_OK if none. */
WEFT_API weft_status weft_call_status(const weft_call *call);

/*
 * Takes the call: the handler must return WEFT_DEFERRED. The arguments go when it returns, but with weft_call_defer_keeping.
 * Returns the call, to be finished once.
 */
WEFT_API weft_call *weft_call_defer(weft_call *call);
WEFT_API weft_call *weft_call_defer_keeping(weft_call *call);
/* Answers a deferred call with what was given, or with `status` if that is a failure. The call is gone. Any thread. */
WEFT_API void weft_call_finish(weft_call *call, weft_status status);

WEFT_END_C
#endif
