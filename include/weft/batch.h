/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/batch.h - handlers that receive many calls at once.
 *
 * A function registered with `run_batch` instead of `run` is called like any other; its handler sees calls of many callers
 * together. The tensors of each call are pulled straight into a row of the batch's tensors, and rows of what the handler gives go
 * back to the callers as views. No thread waits while a batch fills.
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
 * SIGNATURE. `takes` may have any types but WEFT_TENSORS, WEFT_LIST, WEFT_ANY and WEFT_REST. Calls whose tensors have the same
 * dtypes and shapes come together: those of another shape form batches of their own. A row has 7 dimensions at most (else
 * WEFT_ERR_SHAPE). `land` and WEFT_LAND_ADD are not for these functions.
 *
 * WHEN IT CLOSES. With `size` calls; or `wait_us` after its first call was whole; or when each of `callers` that is still in the job
 * has a call in it, or, where their shapes differ, in one of several open batches; and at once while this agent closes. A batch that
 * cannot run yet, because `in_flight` others do, goes on filling until it can. Of several that can, the one whose first call has waited
 * longest goes first. Calls that are still being pulled are waited for, but not longer than 10 ms after `wait_us`: what is not whole by
 * then is late.
 *
 * WHO IS IN IT. Each call goes to the oldest open batch of its shape that has room for it: with fewer than `size` calls, and fewer than
 * `max_per_caller` of its caller. Set max_per_caller where callers have several calls under way: else one of them can fill whole
 * batches, and the queue, before another's call. Beyond `queue` waiting calls further ones are refused with WEFT_ERR_BUSY before
 * anything is pulled (weft_retry tries again). Calls that are cancelled, run out of time or lose their caller while they wait are left
 * out. A late call goes with another batch, which then waits for nobody else.
 *
 * WHAT IS COPIED. Rows are made before the calls that will fill them come: for twice as many as in the largest batch lately, but not
 * more than a quarter of what is left of memory_budget_bytes; and for `size` where that is 64 MiB, or a sixteenth of what is left, at
 * most. Calls that fit in them are pulled there. A call to oneself is copied, and a late call, once. If somebody left, or more calls
 * came than there are rows for, calls are copied into the gaps, or all to a tensor of their own; all are, too, where a late call's row
 * lies among the first n. Which row a call gets is not promised.
 *
 * WHAT COUNTS. Rows made ahead, and tensors that the n calls are copied to, count against memory_budget_bytes until the batch is over;
 * where late calls lie in its rows, all of these do until the last of those calls is whole. Rows ahead stay within the budget. Copies
 * are not refused, since the calls are here already: so weft_stats.bytes_held may be over the budget by about the arguments of the
 * batches that run or are deferred, in_flight * size calls of each function, beside what results go over it by (weft/agent.h).
 */
#ifndef WEFT_BATCH_H
#define WEFT_BATCH_H

#include <weft/agent.h>
#include <weft/value.h>

WEFT_BEGIN_C

typedef struct weft_batch weft_batch;

/*
 * A batched handler: gives results (weft_batch_give, or weft_call_give for single calls) and returns WEFT_OK; or returns a failure,
 * perhaps after weft_batch_fail, which all its calls then end with (WEFT_ERR_REMOTE); or takes the batch with weft_batch_defer,
 * returns WEFT_DEFERRED, and somebody calls weft_batch_finish exactly once. Runs where a handler of one call would.
 */
typedef weft_status (*weft_batch_fn)(weft_batch *batch, void *user);

#define WEFT_MAX_BATCH 65536

typedef struct weft_batch_options {
    int size; /* calls in a batch at most, 1..WEFT_MAX_BATCH; 0: 64 */
    int64_t
        wait_us; /* microseconds from the first whole call to closing; 0: runs as soon as it can, and what comes meanwhile
                        forms the next; WEFT_FOREVER: closes by size or callers alone */
    /* The wait is found from the gaps between calls and the handler's time: another call is waited for only while that costs those
     * that are in less than the handler's time. wait_us, then, is the most it may be, counted from when fewer than in_flight batches
     * ran if that was after the first whole call; a batch of another shape that begins first does not set it anew. 0: 10,000. */
    bool adaptive;
    const int *callers;  /* ranks, each once: the batch closes when all of them are in; borrowed until registered */
    size_t caller_count; /* 0: nobody is expected */
    int in_flight;       /* batches that run, or are deferred, at once; 0: 1 */
    /* Calls of one caller in a batch at most, 1..size; 0: size. Further calls of it go to the next batches. One caller may then have no
     * more than the same part of `queue` waiting, queue * max_per_caller / size and at least one; beyond that: WEFT_ERR_BUSY. */
    int max_per_caller;
    int queue; /* calls that may wait for a batch to run; 0: 4 * size, at least 1,024; with WEFT_FOREVER not below size */
} weft_batch_options;

/*
 * From now on these are the callers expected: `count` distinct ranks, or none (NULL, 0). For jobs whose workers come and go, and
 * callers that pause. A rank that is not in the job, or leaves it, is not waited for. WEFT_ERR_NOT_FOUND: no batched function of this
 * name is registered; WEFT_ERR_INVALID, WEFT_ERR_MEMORY. Any thread.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_expect_callers(weft_agent *agent, const char *function, const int *ranks,
                                                              size_t count);

/* ---- Inside a handler ---------------------------------------------------------------------------------------------
 * All borrowed from the batch: valid until the handler returns, or, if it is deferred, until it is finished. One thread at a time. */

WEFT_API size_t weft_batch_count(const weft_batch *batch); /* calls, >= 1 */
/* Argument `index` of all calls: [n, ...], contiguous, row i of call i; yours to change. NULL if that argument is no tensor. */
WEFT_API weft_tensor *weft_batch_tensor(const weft_batch *batch, size_t index);
/*
 * Call `row`, for its other arguments, its caller, the time it has left; weft_call_give gives all results of this one,
 * weft_call_fail fails it alone. Not to be deferred or finished. NULL out of range.
 */
WEFT_API weft_call *weft_batch_call(const weft_batch *batch, size_t row);
WEFT_API weft_agent *weft_batch_agent(const weft_batch *batch);
/*
 * A tape for what the batch computes: it owns temporaries, and records nothing. Its seed is of this batch: it follows from the rank,
 * which life of it this is, the function's name and how many batches of it began before, so that no two batches draw the same, and a
 * replay on the simulation draws what the run did. weft_tape_set_seed gives it one that follows from a step of yours.
 */
WEFT_API weft_tape *weft_batch_tape(weft_batch *batch);

/*
 * Sets result `index` (of `gives`) of all calls: [n, ...], a reference is taken; row i goes to call i. For WEFT_TENSOR and WEFT_ANY as
 * a view, or, where it stays here behind a reference (weft_rpc_remote), as a copy, since a view would keep the others' rows as well; for
 * WEFT_I64, WEFT_F64 and WEFT_BOOL as a scalar: n elements of an integer, floating, or any dtype. Calls that weft_call_give has
 * answered keep what it gave; the others fail if an earlier result is missing. NULL, another count of rows or such a dtype fail the
 * batch.
 */
WEFT_API void weft_batch_give(weft_batch *batch, size_t index, weft_tensor *rows);
/* Keeps a failure with a message for all calls that have not failed alone; the first one counts. */
WEFT_API void weft_batch_fail(weft_batch *batch, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

/* Takes the batch: the handler must return WEFT_DEFERRED. Returns the batch, to be finished once, from any thread. */
WEFT_API weft_batch *weft_batch_defer(weft_batch *batch);
WEFT_API void weft_batch_finish(weft_batch *batch, weft_status status);

/* ---- Statistics --------------------------------------------------------------------------------------------------- */

typedef struct weft_batch_stats {
    uint64_t batches;                      /* handlers that began */
    uint64_t calls;                        /* in them */
    uint64_t by_size, by_time, by_callers; /* why they closed; the rest: the agent was closing */
    uint64_t left_out;     /* cancelled, out of time, or their caller gone, while they waited or were pulled */
    uint64_t refused;      /* for want of room in the queue */
    uint64_t latecomers;   /* calls that were not whole when their batch ran, and were copied to another */
    uint64_t copied_bytes; /* of rows over the inline limit: latecomers, beside gaps, to oneself, behind references */
    uint64_t waiting, running; /* now: calls in the queue, batches */
    double mean_size;
    uint64_t size_p50, size_p99, size_max;
    uint64_t wait_p50_ns, wait_p99_ns, wait_max_ns; /* of calls: from being whole to their handler's beginning */
    uint64_t chosen_wait_ns;                        /* adaptive: from the first call to closing, lately */
} weft_batch_stats;

/* WEFT_ERR_NOT_FOUND, WEFT_ERR_INVALID; then *out is zeroed. Any thread. The same stands in weft_metrics_write. */
WEFT_API WEFT_NODISCARD weft_status weft_batch_stats_read(const weft_agent *agent, const char *function,
                                                          weft_batch_stats *out);

WEFT_END_C
#endif
