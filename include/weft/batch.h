/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/batch.h - handlers that receive many calls at once.
 *
 * A function registered with `run_batch` instead of `run` is called like any other. Its handler receives a
 * batch: calls of many callers together. Argument tensors of the calls are the rows of one tensor, pulled there
 * without a copy, and rows of the results go back to the callers. No thread waits while a batch fills.
 *
 *     static weft_status classify(weft_batch *batch, void *user)
 *     {
 *         weft_tape *t = weft_batch_tape(batch);
 *         weft_tensor *images = weft_batch_tensor(batch, 0); // [n, 784]: row i is the argument of call i
 *         weft_batch_give(batch, 0, weft_argmax(t, weft_module_forward(t, user, images), 1)); // [n]
 *         return WEFT_OK;
 *     }
 *     weft_status offer(weft_agent *agent, weft_module *model)
 *     {
 *         weft_function f = {.name = "classify", .takes = {WEFT_TENSOR}, .gives = {WEFT_I64}, .run_batch = classify,
 *                            .user = model, .batch = {.size = 32, .wait_us = 200}};
 *         return weft_agent_register(agent, &f);
 *     }
 *
 * SIGNATURE. `takes` may have any types but WEFT_TENSORS, WEFT_LIST, WEFT_ANY and WEFT_REST. Only calls whose
 * tensors have the same dtypes and shapes come together. The batch adds a dimension, so a tensor of a call may
 * have 7; a call with more fails with WEFT_ERR_SHAPE. Batched functions have no `land` and no WEFT_LAND_ADD.
 *
 * A BATCH BEGINS, that is, the handler gets it, when it has `size` calls, `wait_us` after its first call, or when
 * all expected `callers` are in it; but only while fewer than `in_flight` others run. If `queue` calls wait, or
 * too many of one caller, further ones fail with WEFT_ERR_BUSY. Calls that are cancelled, run out of time or lose
 * their caller while they wait are left out.
 *
 * docs/batches.md has the rules: which calls come together, when a batch begins, what is copied, what counts
 * against the memory budget.
 */
#ifndef WEFT_BATCH_H
#define WEFT_BATCH_H

#include <weft/agent.h>
#include <weft/value.h>

WEFT_BEGIN_C

typedef struct weft_batch weft_batch;

/*
 * A handler of batches. It ends in one of three ways:
 *   - It gives results with weft_batch_give, or for single calls with weft_call_give, and returns WEFT_OK.
 *   - It returns a failure. All its calls end with WEFT_ERR_REMOTE, with this status inside and the message of
 *     weft_batch_fail.
 *   - It keeps the batch with weft_batch_defer and returns WEFT_DEFERRED. Somebody must then call
 *     weft_batch_finish exactly once, on any thread.
 * It runs where a handler of one call would (weft/rpc.h).
 */
typedef weft_status (*weft_batch_fn)(weft_batch *batch, void *user);

#define WEFT_MAX_BATCH 65536

typedef struct weft_batch_options {
    int size; /* how many calls a batch has at most, 1..WEFT_MAX_BATCH; 0: 64 */
    /* How many microseconds a batch waits for more calls after its first call is ready. 0: it begins as soon as
     * it can, and calls that come meanwhile form the next one. WEFT_FOREVER: until `size` or `callers` begin it. */
    int64_t wait_us;
    /* Choose the wait by measurement: a batch of n calls waits for another one only while n times the gap between
     * two calls is shorter than the handler's time. wait_us is then the longest wait; 0: 10,000. */
    bool adaptive;
    /* Ranks of the job (0 to world_size - 1), each once: the batch begins when all of them are in it. A rank whose
     * worker is not there is not waited for. Copied at registration. */
    const int *callers;
    size_t caller_count; /* 0: nobody is expected */
    int in_flight;       /* how many batches may run, or be deferred, at once; 0: 1 */
    /* How many calls of one caller a batch has at most, 1..size; 0: size. The caller's further calls go to
     * later batches. At most queue * max_per_caller / size calls of one caller may wait, and at least one. */
    int max_per_caller;
    int queue; /* how many calls may wait; 0: 4 * size, at least 1,024. With WEFT_FOREVER not below size */
} weft_batch_options;

/*
 * Replaces the expected callers of a function: `count` different ranks of the job, or none (NULL, 0). For jobs
 * whose workers come and go, and for callers that pause. A rank whose worker is not there is not waited for.
 * WEFT_ERR_NOT_FOUND (no batched function of this name is registered), WEFT_ERR_INVALID, WEFT_ERR_MEMORY. Any
 * thread.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_expect_callers(weft_agent *agent, const char *function, const int *ranks,
                                                              size_t count);

/* ---- Inside a handler -------------------------------------------------------------------------- */

/* What the functions below return is borrowed from the batch: until the handler returns, or, if the batch is
 * deferred, until it is finished. One thread at a time may use a batch. */

WEFT_API size_t weft_batch_count(const weft_batch *batch); /* how many calls, 1 or more */
/* Argument `index` of all n calls: [n, ...], contiguous; row i belongs to call i. The handler may change it.
 * NULL if that argument is no tensor. */
WEFT_API weft_tensor *weft_batch_tensor(const weft_batch *batch, size_t index);
/*
 * Call number `row`: for its other arguments, its caller, and its time limit. weft_call_give sets all results
 * of this call, weft_call_fail makes this call fail alone. It cannot be deferred or finished by itself. NULL if
 * `row` is out of range.
 */
WEFT_API weft_call *weft_batch_call(const weft_batch *batch, size_t row);
WEFT_API weft_agent *weft_batch_agent(const weft_batch *batch);
/*
 * In libweft, not in libweft_rpc. The tape of this batch: it owns temporaries until the batch is over, and does not record. No two batches have
 * the same seed: it follows from this worker's rank and incarnation, the name of the function, and how many
 * batches of it began before. So a replay in the simulation draws the same numbers. weft_tape_set_seed sets
 * another seed.
 */
WEFT_API weft_tape *weft_batch_tape(weft_batch *batch);

/*
 * Sets result `index` of all calls to the rows of a tensor [n, ...], to which a reference is taken; row i goes
 * to call i. What a call gets depends on the type in `gives`:
 *   - WEFT_TENSOR, WEFT_ANY: row i as a tensor, without a copy. (With weft_rpc_remote it is a copy.)
 *   - WEFT_I64, WEFT_F64, WEFT_BOOL: element i. `rows` has n elements of an integer, a floating, or any dtype.
 * Calls that weft_call_give has answered keep those results. Any other call fails if one of its results is
 * missing. The batch fails if `rows` is NULL, has another number of rows, or a dtype that does not fit.
 */
WEFT_API void weft_batch_give(weft_batch *batch, size_t index, weft_tensor *rows);
/* Makes all calls fail, with a status and a message, except those that have failed alone. If the batch has
 * failed already, the first failure stays. */
WEFT_API void weft_batch_fail(weft_batch *batch, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

/* Keeps the batch beyond the handler, which must return WEFT_DEFERRED: weft_batch_finish answers its calls
 * later, with what was given, or with `status` if that is a failure; exactly once, on any thread. Returns the
 * batch. */
WEFT_API weft_batch *weft_batch_defer(weft_batch *batch);
WEFT_API void weft_batch_finish(weft_batch *batch, weft_status status);

/* ---- Statistics -------------------------------------------------------------------------------- */

typedef struct weft_batch_stats {
    uint64_t batches;                      /* batches whose handler began */
    uint64_t calls;                        /* calls in them */
    uint64_t by_size, by_time, by_callers; /* why they began; the others: the agent was closing */
    uint64_t left_out; /* calls that were cancelled, ran out of time or lost their caller before their handler began */
    uint64_t refused;  /* calls refused because too many waited */
    uint64_t late_calls;       /* calls that were not ready when their batch began, and went into a later one */
    uint64_t copied_bytes;     /* what was copied of large tensors (docs/batches.md) */
    uint64_t waiting, running; /* now: calls that wait, batches that run */
    double mean_size;
    uint64_t size_p50, size_p99, size_max;
    /* How long calls waited from being ready until their handler began. */
    uint64_t wait_p50_ns, wait_p99_ns, wait_max_ns;
    uint64_t chosen_wait_ns; /* adaptive: recent average of the time from a batch's first call to its beginning */
} weft_batch_stats;

/* Reads the statistics of a batched function; weft_metrics_write writes the same numbers. WEFT_ERR_NOT_FOUND
 * (no such function), WEFT_ERR_INVALID; then *out is zeroed. Any thread. */
WEFT_API WEFT_NODISCARD weft_status weft_batch_stats_read(const weft_agent *agent, const char *function,
                                                          weft_batch_stats *out);

WEFT_END_C
#endif
