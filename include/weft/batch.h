/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/batch.h - handlers that receive several calls at once.
 *
 * A function registered with `run_batch` instead of `run` is called like any other. Its handler receives a batch:
 * several calls, possibly of different callers. Argument tensors of the calls are the rows of one tensor, into which
 * they are pulled without a copy. Rows of the results go back to the callers. No thread waits while a batch fills.
 *
 *     static weft_status classify(weft_batch *batch, void *user)
 *     {
 *         weft_tape *t = weft_batch_tape(batch); // weft/tape.h
 *         weft_tensor *images = weft_batch_tensor(batch, 0); // [n, 784]: row i is the argument of call i
 *         weft_batch_give(batch, 0, weft_argmax(t, weft_module_forward(t, user, images), 1)); // [n]
 *         return WEFT_OK;
 *     }
 *     weft_status offer(weft_agent *agent, weft_module *model)
 *     {
 *         weft_function f = {.name = "classify", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_I64},
 *                            .run_batch = classify, .user = model, .batch = {.size = 32, .wait_us = 200}};
 *         return weft_agent_register(agent, &f);
 *     }
 *
 * SIGNATURE. `takes` may contain all types except WEFT_TYPE_TENSORS, WEFT_TYPE_LIST, WEFT_TYPE_ANY and WEFT_TYPE_REST.
 * Calls of one batch have tensors of the same dtypes and shapes. The batch adds a dimension, so a tensor of a call has
 * at most 7; a call with more fails with WEFT_ERR_SHAPE. A batched function cannot have `land` or
 * WEFT_FUNCTION_LAND_ADD.
 *
 * BEGIN. If fewer than `in_flight` batches run, a batch begins at the first of these moments: it has `size` calls;
 * `wait_us` has passed since its first call; it has a call of each expected caller (`callers`). While this worker
 * serves or closes (weft_agent_serve, weft_agent_close), other workers that serve or close are not expected callers.
 * Without `callers`, a batch then begins as soon as no other worker can add a call to it. If too many
 * calls wait (`queue`), further calls fail with WEFT_ERR_BUSY. A waiting call that is cancelled, reaches its
 * deadline or loses its caller is removed.
 *
 * docs/batches.md: which calls form a batch, when a batch begins, what is copied, what counts against the memory
 * budget.
 */
#ifndef WEFT_BATCH_H
#define WEFT_BATCH_H

#include <weft/agent.h>
#include <weft/value.h>

WEFT_BEGIN_C

/*
 * Replaces the expected callers of a function: `count` different ranks of the job, or none (NULL, 0). Use it in jobs
 * whose workers join and leave, and if callers pause. A rank without a living worker is ignored. WEFT_ERR_NOT_FOUND (no
 * batched function of this name is registered), WEFT_ERR_INVALID, WEFT_ERR_MEMORY. Any thread.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_expect_callers(weft_agent *agent, const char *function, const int *ranks,
                                                              size_t count);

/* ---- Inside a handler -------------------------------------------------------------------------- */

/* RESULTS of these functions are borrowed until the handler returns, or, if the batch is deferred, until it is
 * finished. One thread at a time may use a batch. */

WEFT_API size_t weft_batch_count(const weft_batch *batch); /* the number of calls, at least 1 */
/* Argument `index` of all n calls: [n, ...], contiguous; row i belongs to call i. The handler may change it. NULL if
 * that argument is not a tensor. Calls whose tensors are on different devices are in different batches. For rows on a
 * GPU open a tape of their device: weft_batch_tape is on the CPU. */
WEFT_API weft_tensor *weft_batch_tensor(const weft_batch *batch, size_t index);
/*
 * Returns call `row` of the batch, to read its other arguments, its caller and its time limit. weft_call_give sets all
 * results of this call; weft_call_fail makes only this call fail. A single call of a batch cannot be deferred or
 * finished. NULL if `row` is out of range.
 */
WEFT_API weft_call *weft_batch_call(const weft_batch *batch, size_t row);
WEFT_API weft_agent *weft_batch_agent(const weft_batch *batch); /* the agent that serves the batch */

/*
 * Sets result `index` of all calls to the rows of a tensor [n, ...], which is referenced; row i goes to call i. The
 * type in `gives` determines what a call gets:
 *   WEFT_TYPE_TENSOR, WEFT_TYPE_ANY: row i as a tensor, without a copy (with weft_rpc_remote a copy).
 *   WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_BOOL: element i. `rows` has n elements, of an integer, a floating, or any
 *   dtype respectively.
 * Calls already answered by weft_call_give keep those results. Any other call fails if one of its results is missing.
 * The batch fails if `rows` is NULL, or if its number of rows or its dtype does not match.
 */
WEFT_API void weft_batch_give(weft_batch *batch, size_t index, weft_tensor *rows);
/* Makes all calls fail with a status and a message, except calls that have already failed alone. Later failures of the
 * batch are ignored. */
WEFT_API void weft_batch_fail(weft_batch *batch, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

/* Keeps the batch open after the handler returns, and returns the batch. The handler must return WEFT_DEFERRED. Call
 * weft_batch_finish exactly once, on any thread: it answers the calls with the results that were given, or with
 * `status` if that is a failure. */
WEFT_API weft_batch *weft_batch_defer(weft_batch *batch);
WEFT_API void weft_batch_finish(weft_batch *batch, weft_status status);

/* ---- Statistics -------------------------------------------------------------------------------- */

typedef struct weft_batch_stats {
    uint64_t batches;                      /* batches whose handler began */
    uint64_t calls;                        /* calls in them */
    uint64_t by_size, by_time, by_callers; /* began for this reason; the rest: no other worker could add a call */
    uint64_t left_out;         /* calls cancelled, out of time or without a caller before their batch began */
    uint64_t refused;          /* calls rejected because too many waited */
    uint64_t late_calls;       /* calls whose tensors had not arrived when their batch began: copied to a later one */
    uint64_t copied_bytes;     /* bytes of large tensors that were copied (docs/batches.md) */
    uint64_t waiting, running; /* current: waiting calls, running batches */
    double mean_size;
    uint64_t size_max;
} weft_batch_stats;

/* Reads the statistics of a batched function. weft_metrics_write also writes histograms of sizes and waits. On failure
 * *out is zeroed. WEFT_ERR_NOT_FOUND (no such function), WEFT_ERR_INVALID. Any thread. */
WEFT_API WEFT_NODISCARD weft_status weft_batch_stats_read_sized(const weft_agent *agent, const char *function,
                                                                weft_batch_stats *out, size_t size);
static inline WEFT_NODISCARD weft_status weft_batch_stats_read(const weft_agent *agent, const char *function,
                                                               weft_batch_stats *out)
{
    return weft_batch_stats_read_sized(agent, function, out, sizeof(*out));
}

WEFT_END_C
#endif
