/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/function.h - functions that other workers can call: their signature, handler and options.
 *
 * weft_agent_options.functions lists them (weft/agent.h), and weft_agent_register adds one (weft/rpc.h, which has an
 * example). weft/batch.h describes handlers that receive several calls at once.
 */
#ifndef WEFT_FUNCTION_H
#define WEFT_FUNCTION_H

#include <weft/value.h>

WEFT_BEGIN_C

#define WEFT_MAX_SIGNATURE 16 /* size of `takes` and `gives`, including the WEFT_TYPE_NONE at the end */

/*
 * A handler. It ends in one of three ways:
 *   Results: it calls weft_call_give and returns WEFT_OK.
 *   Failure: it returns a negative status. The caller gets WEFT_ERR_REMOTE with this status inside and the message of
 *   weft_call_fail, if any.
 *   Later: it calls weft_call_defer and returns WEFT_DEFERRED. The program then calls weft_call_finish exactly once, on
 *   any thread. After that, if this worker itself made the call, the caller may free the arguments, even if the
 *   handler has not returned yet.
 * Handlers run on the agent's executor, several at once, with no lock of weft held. For WEFT_FUNCTION_INLINE see below.
 */
typedef weft_status (*weft_handler_fn)(weft_call *call, void *user);

/*
 * Returns the place where an arriving tensor is stored: a contiguous tensor of the same dtype and shape, with a
 * reference that weft drops; or NULL: weft then allocates the memory. `index` is the position of the tensor among all
 * tensors of the call, those in lists included. The handler receives the place as its argument. A place serves one call
 * at a time. If the call fails before its handler runs, the contents of its places are undefined. The function runs on
 * a thread of weft, before the payload is pulled, with no lock held, and must not block. For calls to this worker
 * itself see docs/calls.md.
 *
 * A place may be on a GPU. The device maps of the caller (docs/cuda.md) must lead to a device that this worker has,
 * even if the place is elsewhere.
 *
 * With WEFT_FUNCTION_LAND_ADD the tensors are added to their places: float32, float64, int64, int32 or uint8. `land`
 * then runs just before the handler, on the handler's thread. All tensors of a call are added or none.
 * Several calls may add to the same places, but only calls of one function. A handler may read a place only if no
 * further call can add to it.
 */
typedef weft_tensor *(*weft_land_fn)(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user);

/* Flags of a function, for weft_function.flags. */
typedef enum weft_function_flags {
    WEFT_FUNCTION_INLINE = 1, /* the handler runs on the thread that reads the network: it must never block */
    WEFT_FUNCTION_URGENT = 2, /* its calls start before other calls that wait for a thread */
    WEFT_FUNCTION_LAZY =
        4, /* its calls start after other calls; but every 16th call to start is the one that has waited longest */
    WEFT_FUNCTION_LAND_ADD =
        8, /* arriving tensors are added to the places of `land` (weft_land_fn); not with WEFT_FUNCTION_INLINE */
    WEFT_FUNCTION_ORDERED = 16, /* the calls of one caller run one after another, in their order; see below */
} weft_function_flags;

/*
 * WEFT_FUNCTION_ORDERED. The calls of one caller to this function start in the order in which the caller started
 * them, large tensors included, even if connections break. The next handler starts when the handler before it has
 * returned. So two calls of one caller to this function never run at once. Calls of different callers may run at
 * once, and so may calls of one caller to other functions.
 *   A handler that defers its call (weft_call_defer) lets the next one start when it returns, not when the call is
 *   finished. A handler must not wait for a later call of the same caller.
 *   A call that ends before its handler starts (cancelled, out of time, rejected) is skipped; the others keep their
 *   order. A call also waits while the arguments of an earlier call are still arriving.
 *   With retries each attempt counts as a call, so a further attempt may run after later calls. Calls that two threads
 *   of the caller start at once have no order.
 *   A caller is one incarnation of a worker; this worker itself counts as a caller too. The flag cannot be combined
 *   with run_batch (WEFT_ERR_INVALID).
 */

/*
 * A handler of batches. It ends in one of three ways:
 *   Results: it calls weft_batch_give, or weft_call_give for single calls, and returns WEFT_OK.
 *   Failure: it returns a negative status. All calls end with WEFT_ERR_REMOTE, with this status inside and the message
 *   of weft_batch_fail.
 *   Later: it calls weft_batch_defer and returns WEFT_DEFERRED. The program then calls weft_batch_finish exactly once,
 *   on any thread.
 * It runs on the same threads as a handler of single calls (weft/rpc.h).
 */
typedef weft_status (*weft_batch_fn)(weft_batch *batch, void *user);

#define WEFT_MAX_BATCH 65536

/* Options of a batched function, for weft_function.batch. */
typedef struct weft_batch_options {
    int size; /* the largest number of calls in a batch, 1..WEFT_MAX_BATCH; 0: 64 */
    /* How many microseconds a batch waits for more calls after its first call is ready. 0: it begins as soon as
     * `in_flight` allows, and calls that arrive later form the next one. WEFT_FOREVER: it begins only when it has
     * `size` calls or all `callers`, and all their tensors have arrived. */
    int64_t wait_us;
    /* Expected callers: different ranks (0 to world_size - 1). The batch begins when it has a call of each. A rank
     * without a living worker is ignored. While this worker serves or closes, ranks that serve or close are ignored,
     * even if their handlers make the calls. Copied at registration. */
    const int *callers;
    size_t caller_count; /* number of `callers`; 0: no expected callers */
    int in_flight;       /* how many batches may run, or be deferred, at once; 0: 1 */
    bool one_per_caller; /* a batch has at most one call of each caller; its further calls go to later batches */
    /* How many calls may wait; 0: 4 * size, at least 1,024. A further call of a caller is refused if at least as
     * many of its calls wait as places are free, so one caller alone can fill half of the queue. With one_per_caller
     * a caller has at most queue / size waiting calls; otherwise, with `callers`, at most queue / caller_count. With
     * wait_us WEFT_FOREVER `queue` must be at least 2 * size, or with one_per_caller `size`. */
    int queue;
    uint64_t reserved[4]; /* 0: room for later fields */
} weft_batch_options;

/* A function that workers can call. */
typedef struct weft_function {
    const char *name; /* unique on this worker; 1..127 bytes */
    /* The types of the arguments; the array ends with WEFT_TYPE_NONE. WEFT_TYPE_REST as the last type allows any
     * further arguments. */
    weft_type takes[WEFT_MAX_SIGNATURE];
    weft_type gives[WEFT_MAX_SIGNATURE]; /* the types of the results, in the same form */
    weft_handler_fn run;
    weft_land_fn land;        /* optional */
    unsigned flags;           /* bits of weft_function_flags */
    void *user;               /* passed to run, run_batch and land */
    weft_batch_fn run_batch;  /* a handler that receives many calls at once (weft/batch.h); then `run` is NULL */
    weft_batch_options batch; /* for run_batch */
} weft_function;

WEFT_END_C
#endif
