/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch_queue.c - calls that wait for their batch: how many may, whose turn it is, and what they hold of
 * the memory budget.
 *
 * Most of it plays on the simulation, where times are exact; handlers that take time sleep in virtual time.
 */
#include "rpc/batch_stats.h"
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensors.h"

#include <weft/sim.h>

#include <stdatomic.h>
#include <string.h>

enum { RANKS = 5, ROW = 1 << 20, HELD = 16, BATCHES_MAX = 4096 };

static struct shared {
    world *w;
    _Atomic(weft_batch *) held[HELD];
    atomic_int held_count, batches, finished;
    int size[BATCHES_MAX], by_rank[BATCHES_MAX][RANKS];
    int lag_max; /* in batches, from a modest caller's call to its handler */
    size_t budget;
} shared;

static const weft_rpc_options patient = {.timeout_ms = 120000};

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static weft_status run_hold(weft_batch *batch, void *user)
{
    int place = atomic_fetch_add(&shared.held_count, 1);
    MUST(place < HELD);
    atomic_store(&shared.held[place], weft_batch_defer(batch));
    return WEFT_DEFERRED;
}

/* Writes down who is in it; calls say how many batches there were when they were made. */
static weft_status run_count(weft_batch *batch, void *user)
{
    int number = atomic_fetch_add(&shared.batches, 1);
    MUST(number < BATCHES_MAX);
    for (size_t i = 0; i < weft_batch_count(batch); i++) {
        weft_call *call = weft_batch_call(batch, i);
        int64_t then = weft_call_i64(call, 0);
        shared.by_rank[number][weft_call_from(call)]++;
        shared.size[number]++;
        if (then >= 0 && number - then > shared.lag_max)
            shared.lag_max = (int)(number - then);
    }
    world_sleep_ms(shared.w, 1);
    return WEFT_OK;
}

/* Gives the sum of each row, and how many rows there were. */
static weft_status run_sum(weft_batch *batch, void *user)
{
    weft_tape *t = weft_batch_tape(batch);
    size_t n = weft_batch_count(batch);
    weft_tensor *sizes = weft_tape_take(t, tensor_full(WEFT_SHAPE((int64_t)n), WEFT_DTYPE_INT64, (double)n));
    weft_batch_give(batch, 0, weft_sum_dim(t, weft_batch_tensor(batch, 0), 1, false));
    weft_batch_give(batch, 1, sizes);
    return WEFT_OK;
}

static weft_status run_nothing(weft_batch *batch, void *user)
{
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "of four",
     .run_batch = run_nothing,
     .batch = {.size = 4, .wait_us = WEFT_FOREVER, .one_per_caller = true, .queue = 4}},
    {.name = "hold",
     .takes = {WEFT_TYPE_TENSOR},
     .run_batch = run_hold,
     .batch = {.size = 2, .wait_us = WEFT_FOREVER, .queue = 8}},
    {.name = "hold one each",
     .run_batch = run_hold,
     .batch = {.size = 2, .wait_us = WEFT_FOREVER, .in_flight = 2, .one_per_caller = true, .queue = 4}},
    {.name = "hold three", .run_batch = run_hold, .batch = {.size = 2, .wait_us = WEFT_FOREVER, .in_flight = 3}},
    {.name = "count",
     .takes = {WEFT_TYPE_I64},
     .run_batch = run_count,
     .batch = {.size = 8, .queue = 10000, .one_per_caller = true}},
    {.name = "sum",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_F64, WEFT_TYPE_I64},
     .run_batch = run_sum,
     .batch = {.size = 8, .wait_us = 20000}},
};

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

static void await_waiting(weft_agent *agent, const char *function, uint64_t count)
{
    while (stats_of(agent, function).waiting != count)
        world_sleep_ms(shared.w, 1);
}

static weft_future *start(weft_agent *agent, int to, const char *function, weft_tensor *x)
{
    weft_future *future;
    weft_args args = x ? WEFT_VALUES(weft_of_tensor(x)) : WEFT_NO_VALUES;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(to), function, args, &patient, &future));
    return future;
}

static void end(weft_future *future, weft_status wanted)
{
    MUST_BE(weft_future_wait(future, 120000), wanted);
    weft_future_unref(future);
}

static void finish_held(int place)
{
    weft_batch *batch = atomic_exchange(&shared.held[place], NULL);
    MUST(batch);
    weft_batch_finish(batch, WEFT_OK);
}

static void await_held(int count)
{
    while (atomic_load(&shared.held_count) < count || !atomic_load(&shared.held[count - 1]))
        world_sleep_ms(shared.w, 1);
}

static void await_finished(int count)
{
    while (atomic_load(&shared.finished) < count)
        world_sleep_ms(shared.w, 1);
}

static void run(void (*program)(weft_agent *, void *), int size, uint64_t seeds, bool tcp,
                void (*adjust)(weft_agent_options *, void *))
{
    for (uint64_t seed = tcp ? 0 : 1; seed <= seeds; seed++) {
        world w = {.fabric = seed ? WORLD_SIM : WORLD_TCP,
                   .size = size,
                   .seed = seed,
                   WORLD_FUNCTIONS(functions),
                   .program = program,
                   .adjust = adjust};
        size_t budget = shared.budget;
        memset(&shared, 0, sizeof(shared));
        shared.w = &w;
        shared.budget = budget;
        world_run(&w);
    }
}

/* ---- A full queue --------------------------------------------------------------------------------------------- */

/* Lets all go that are held, one after the other, until so many programs are through. */
static void finish_until(int count)
{
    for (int place = 0; atomic_load(&shared.finished) < count;) {
        if (place < HELD && atomic_load(&shared.held[place]))
            finish_held(place++);
        else
            world_sleep_ms(shared.w, 1);
    }
}

static void see_it_full(weft_agent *agent)
{
    weft_stats all;
    await_waiting(agent, "hold", 4);
    MUST(stats_of(agent, "hold").running == 1);
    await_finished(1);
    do { /* what waits is still being pulled, perhaps */
        world_sleep_ms(shared.w, 1);
        weft_agent_stats(agent, &all);
    } while (all.bytes_received < 4 * ROW);
    MUST(stats_of(agent, "hold").refused == 2 && all.calls_refused == 2 && all.bytes_received < 5 * ROW);
    atomic_fetch_add(&shared.finished, 1);
    await_waiting(agent, "hold", 6);
    finish_until(4);
    MUST(stats_of(agent, "hold").calls == 10);
}

/* Six calls, of which two do not wait any more, and two that are refused; later two that are tried until there is
 * room. */
static void fill_it(weft_agent *agent, weft_tensor *small)
{
    weft_rpc_options again = {.timeout_ms = 120000, .retry = {.attempts = 10000, .pause_ms = 1, .pause_most_ms = 5}};
    weft_tensor *large = tensor_zeros(WEFT_SHAPE(ROW / 4), WEFT_DTYPE_FLOAT32);
    weft_future *futures[8];
    for (int i = 0; i < 6; i++) {
        futures[i] = start(agent, 0, "hold", i < 2 ? small : large);
        if (i == 1)
            await_held(1);
    }
    for (int i = 0; i < 2; i++) {
        weft_future *refused = start(agent, 0, "hold", large);
        MUST_BE(weft_future_wait(refused, 60000), WEFT_ERR_BUSY);
        MUST(strstr(weft_error_message(weft_future_error(refused)),
                    "4 calls of \"hold\" wait for their batch, 4 of them from rank "));
        MUST_OK(weft_error_handler_code(weft_future_error(refused))); /* it surely did not run */
        weft_future_unref(refused);
    }
    atomic_fetch_add(&shared.finished, 1);
    await_finished(3);
    for (int i = 6; i < 8; i++)
        MUST_OK(
            weft_rpc_async(agent, weft_to_rank(0), "hold", WEFT_VALUES(weft_of_tensor(small)), &again, &futures[i]));
    for (int i = 0; i < 8; i++)
        end(futures[i], WEFT_OK);
    weft_tensor_unref(large);
    atomic_fetch_add(&shared.finished, 1);
}

/* Rank 1 has its half of the queue; what comes then of it is refused before it is pulled, and a call of rank 2 is
 * not. */
static void full_queue(weft_agent *agent, void *arg)
{
    weft_tensor *small = tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32);
    if (weft_agent_rank(agent) == 0) {
        see_it_full(agent);
    } else if (weft_agent_rank(agent) == 1) {
        fill_it(agent, small);
    } else {
        await_finished(2);
        weft_future *futures[] = {start(agent, 0, "hold", small), start(agent, 0, "hold", small)};
        atomic_fetch_add(&shared.finished, 1);
        end(futures[0], WEFT_OK);
        end(futures[1], WEFT_OK);
    }
    weft_tensor_unref(small);
}

/* Rank 1 has half of the queue: its third call is refused where rank 2's are not. */
static void quota(weft_agent *agent, void *arg)
{
    const char *function = "hold one each";
    weft_future *futures[2];
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        await_held(2);
        weft_batch_stats stats = stats_of(agent, function);
        MUST(stats.batches == 2 && stats.calls == 4 && stats.by_size == 2 && stats.refused == 1);
        finish_held(0);
        finish_held(1);
        await_finished(3);
        return;
    }
    while (rank == 2 && !atomic_load(&shared.finished))
        world_sleep_ms(shared.w, 1);
    for (int i = 0; i < 2; i++)
        futures[i] = start(agent, 0, function, NULL);
    if (rank == 1) {
        end(start(agent, 0, function, NULL), WEFT_ERR_BUSY);
        atomic_fetch_add(&shared.finished, 1);
    }
    for (int i = 0; i < 2; i++)
        end(futures[i], WEFT_OK);
    atomic_fetch_add(&shared.finished, 1);
}

/* The first three would fill the queue, one after the other: there is a place for the last one, or no batch would
 * begin. */
static void shares(weft_agent *agent, void *arg)
{
    const char *function = "of four";
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        await_finished(8);
        MUST(stats_of(agent, function).calls == 4 && stats_of(agent, function).refused == 3);
        return;
    }
    while (atomic_load(&shared.finished) < rank - 1)
        world_sleep_ms(shared.w, 1);
    weft_future *first = start(agent, 0, function, NULL);
    if (rank < 4)
        end(start(agent, 0, function, NULL), WEFT_ERR_BUSY);
    atomic_fetch_add(&shared.finished, 1);
    end(first, WEFT_OK);
    atomic_fetch_add(&shared.finished, 1);
}

static void in_flight(weft_agent *agent, void *arg)
{
    weft_future *futures[8];
    if (weft_agent_rank(agent) == 0) {
        await_held(3);
        await_waiting(agent, "hold three", 2);
        weft_batch_stats stats = stats_of(agent, "hold three");
        MUST(stats.running == 3 && stats.batches == 3 && stats.by_size == 3 && stats.size_max == 2);
        finish_held(1);
        await_held(4);
        stats = stats_of(agent, "hold three");
        MUST(stats.running == 3 && stats.batches == 4 && stats.waiting == 0);
        finish_held(0);
        finish_held(3);
        finish_held(2);
        await_finished(1);
        do { /* the last answer is out before its batch is over */
            world_sleep_ms(shared.w, 1);
            stats = stats_of(agent, "hold three");
        } while (stats.running);
        MUST(stats.calls == 8 && stats.mean_size == 2);
        return;
    }
    for (int i = 0; i < 8; i++)
        futures[i] = start(agent, 0, "hold three", NULL);
    for (int i = 0; i < 8; i++)
        end(futures[i], WEFT_OK);
    atomic_fetch_add(&shared.finished, 1);
}

/* ---- Fairness ------------------------------------------------------------------------------------------------- */

enum { FLOOD = 600, ROUNDS = 60 };

static void flood(weft_agent *agent)
{
    static weft_future *futures[RANKS][FLOOD];
    int rank = weft_agent_rank(agent);
    for (int i = 0; i < FLOOD; i++)
        MUST_OK(
            weft_rpc_async(agent, weft_to_rank(0), "count", WEFT_VALUES(weft_of_i64(-1)), &patient, &futures[rank][i]));
    for (int i = 0; i < FLOOD; i++)
        end(futures[rank][i], WEFT_OK);
}

static void one_floods(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        await_finished(4);
        return;
    }
    if (weft_agent_rank(agent) == 1) {
        flood(agent);
    } else {
        world_sleep_ms(shared.w, 5); /* it is well before them */
        for (int i = 0; i < ROUNDS; i++) {
            weft_args args = WEFT_VALUES(weft_of_i64(atomic_load(&shared.batches)));
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "count", args, &patient, NULL));
        }
    }
    atomic_fetch_add(&shared.finished, 1);
}

static void all_flood(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        await_finished(4);
        return;
    }
    world_sleep_ms(shared.w, weft_agent_rank(agent)); /* one after the other */
    flood(agent);
    atomic_fetch_add(&shared.finished, 1);
}

static void test_one_floods(void **state)
{
    for (int tcp = 0; tcp < 2; tcp++) {
        int last = 0;
        run(one_floods, RANKS, tcp ? 0 : 1, tcp, NULL);
        for (int i = 0; i < atomic_load(&shared.batches); i++) {
            assert_true(shared.by_rank[i][1] <= 1);
            for (int rank = 2; rank < RANKS; rank++)
                last = shared.by_rank[i][rank] ? i : last;
        }
        /* Called in the batch before, it may just have missed the one that was about to begin. Threads may be slow
         * to call. */
        assert_true(tcp || (shared.lag_max <= 2 && last < 3 * ROUNDS));
    }
}

static void test_all_flood(void **state)
{
    run(all_flood, RANKS, 1, false, NULL);
    int alike = 0, together = 0;
    for (int i = 20; i < atomic_load(&shared.batches) - 20; i++) {
        const int *by = shared.by_rank[i];
        assert_true(shared.size[i] <= 4);
        if (!by[1] || !by[2] || !by[3] || !by[4])
            continue;
        together++;
        alike += by[1] == 1 && by[2] == 1 && by[3] == 1 && by[4] == 1;
    }
    assert_true(together > 200 && alike >= together - 4);
}

/* ---- The memory budget ---------------------------------------------------------------------------------------- */

static void give_budget(weft_agent_options *options, void *arg)
{
    options->memory_budget_bytes = options->rank == 0 ? shared.budget : 0;
}

static void await_none_held(weft_agent *agent)
{
    for (int i = 0; i < 20000 && world_stats(agent).bytes_held; i++)
        world_sleep_ms(shared.w, 1);
    MUST(world_stats(agent).bytes_held == 0);
}

/* Six rows fit; the rest is refused, all who got in come together, and nothing is left of them. */
static void budget(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        await_waiting(agent, "sum", 5);
        MUST(world_stats(agent).bytes_held >= (uint64_t)5 * ROW &&
             world_stats(agent).bytes_held <= shared.budget + shared.budget / 8);
        await_finished(1);
        await_none_held(agent);
        return;
    }
    weft_tensor *x = tensor_full(WEFT_SHAPE(ROW / 4), WEFT_DTYPE_FLOAT32, 1);
    weft_future *futures[8];
    int good = 0;
    for (int i = 0; i < 8; i++)
        futures[i] = start(agent, 0, "sum", x);
    for (int i = 0; i < 8; i++) {
        weft_status status = weft_future_wait(futures[i], 60000);
        int64_t together;
        if (!status) {
            MUST_OK(weft_values_get_i64(weft_future_values(futures[i]), 1, &together));
            MUST(together == 5);
        }
        MUST(status == WEFT_OK || status == WEFT_ERR_BUSY);
        good += !status;
        weft_future_unref(futures[i]);
    }
    MUST(good == 5);
    weft_tensor_unref(x);
    atomic_fetch_add(&shared.finished, 1);
}

/* One call holds the places of all, whoever comes; those who leave give theirs back to the batch, not to others. */
static void spare_places(weft_agent *agent, void *arg)
{
    const uint64_t slab = 8 * ROW;
    if (weft_agent_rank(agent) == 0) {
        for (uint64_t waiting = 1; waiting <= 3; waiting++) {
            await_waiting(agent, "sum", waiting);
            while (atomic_load(&shared.finished) < (int)waiting - 1)
                world_sleep_ms(shared.w, 1);
            MUST(world_stats(agent).bytes_held >= slab && world_stats(agent).bytes_held < slab + ROW);
            atomic_fetch_add(&shared.batches, 1);
        }
        await_waiting(agent, "sum", 1); /* two were cancelled */
        MUST(world_stats(agent).bytes_held >= slab && world_stats(agent).bytes_held < slab + ROW);
        await_finished(4);
        await_none_held(agent);
        return;
    }
    weft_tensor *x = tensor_full(WEFT_SHAPE(ROW / 4), WEFT_DTYPE_FLOAT32, 1);
    weft_future *futures[3];
    for (int i = 0; i < 3; i++) {
        futures[i] = start(agent, 0, "sum", x);
        while (atomic_load(&shared.batches) <= i)
            world_sleep_ms(shared.w, 1);
        if (i < 2)
            atomic_fetch_add(&shared.finished, 1);
    }
    MUST_OK(weft_future_cancel(futures[0]));
    MUST_OK(weft_future_cancel(futures[1]));
    end(futures[0], WEFT_ERR_CANCELLED);
    end(futures[1], WEFT_ERR_CANCELLED);
    end(futures[2], WEFT_OK);
    atomic_store(&shared.finished, 4);
    weft_tensor_unref(x);
}

static void test_full_queue(void **state)
{
    run(full_queue, 3, 10, true, NULL);
    run(quota, 3, 10, true, NULL);
    run(shares, 5, 10, true, NULL);
}

static void test_in_flight(void **state)
{
    run(in_flight, 2, 10, true, NULL);
}

static void test_budget(void **state)
{
    shared.budget = (size_t)11 * ROW / 2;
    run(budget, 2, 5, false, give_budget);
    shared.budget = 0;
    run(spare_places, 2, 5, false, NULL);
}

UNIT_MAIN(test_full_queue, test_in_flight, test_one_floods, test_all_flood, test_budget)
