/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch_turns.c - calls of several shapes: whose batch goes first, callers who wait for each other with
 * several, and as many shapes as calls. In virtual time.
 */
#include "rpc/batch_stats.h"
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensors.h"

#include <weft/sim.h>

#include <stdatomic.h>
#include <string.h>

enum { US = 1000, MS = 1000000, FORMS = 500, MODEST = 20 };

static struct shared {
    world *w;
    uint64_t handler_ns;
    atomic_int finished;
    atomic_bool runs, over; /* the narrow batch */
    uint64_t most_running;
} shared;

static const weft_rpc_options patient = {.timeout_ms = 120000};

static weft_status run_slow(weft_batch *batch, void *user)
{
    (void)batch;
    weft_sim_sleep(shared.w->sim, shared.handler_ns);
    return WEFT_OK;
}

/* The number of calls; of one column not before it is told to. */
static weft_status run_count(weft_batch *batch, void *user)
{
    int64_t n = (int64_t)weft_batch_count(batch);
    weft_tensor *sizes =
        weft_tape_take(weft_batch_tape(batch), tensor_full(WEFT_SHAPE(n), WEFT_DTYPE_INT64, (double)n));
    bool narrow = weft_tensor_size(weft_batch_tensor(batch, 0), 1) == 1;
    if (narrow)
        atomic_store(&shared.runs, true);
    while (narrow && !atomic_load(&shared.over))
        weft_sim_sleep(shared.w->sim, US);
    weft_batch_give(batch, 0, sizes);
    return WEFT_OK;
}

static const int one_and_two[] = {1, 2};

static const weft_function functions[] = {
    {.name = "both",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64},
     .run_batch = run_count,
     .batch = {.size = 8, .wait_us = WEFT_FOREVER, .callers = one_and_two, .caller_count = 2}},
    {.name = "shapes", .takes = {WEFT_TYPE_TENSOR}, .run_batch = run_slow, .batch = {.size = 8}},
    {.name = "shapes in pairs",
     .takes = {WEFT_TYPE_TENSOR},
     .run_batch = run_slow,
     .batch = {.size = 2, .wait_us = 60000000, .queue = 4 * FORMS}},
    {.name = "rare", .takes = {WEFT_TYPE_TENSOR}, .run_batch = run_slow, .batch = {.size = 8, .wait_us = 1000}},
    {.name = "rare beside two",
     .takes = {WEFT_TYPE_TENSOR},
     .run_batch = run_slow,
     .batch = {.size = 8, .wait_us = 1000, .in_flight = 2}},
    {.name = "shapes in time",
     .takes = {WEFT_TYPE_TENSOR},
     .run_batch = run_slow,
     .batch = {.size = 3, .wait_us = 50000, .queue = 4 * FORMS}},
};

static void await_finished(int count)
{
    while (atomic_load(&shared.finished) < count)
        world_sleep_ms(shared.w, 1);
}

static void run(void (*program)(weft_agent *, void *), void *arg, int size, uint64_t seed, uint64_t handler_ns)
{
    world w = {
        .fabric = WORLD_SIM, .size = size, .seed = seed, WORLD_FUNCTIONS(functions), .program = program, .arg = arg};
    memset(&shared, 0, sizeof(shared));
    shared.handler_ns = handler_ns;
    shared.w = &w;
    world_run(&w);
}

/* ---- Many shapes ---------------------------------------------------------------------------------------------- */

static weft_future *start_at(weft_agent *agent, const char *function, int64_t columns)
{
    weft_future *future;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(columns), WEFT_DTYPE_FLOAT32);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_tensor(x)), &patient, &future));
    weft_tensor_unref(x);
    return future;
}

static weft_future *start(weft_agent *agent, int64_t columns)
{
    return start_at(agent, "shapes", columns);
}

static void end(weft_future *future)
{
    MUST_OK(weft_future_wait(future, 120000));
    weft_future_unref(future);
}

/* Rank 1 has calls of two shapes waiting; of the first there are always calls of others as well. The second is
 * served once those that were there before it have been. */
static void never_last(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        await_finished(1);
        return;
    }
    if (rank == 1) {
        weft_future *others[64];
        for (int i = 0; i < 64; i++)
            others[i] = start(agent, 1);
        uint64_t began = weft_agent_now_ns(agent);
        end(start(agent, 2));
        MUST(weft_agent_now_ns(agent) - began < 12 * shared.handler_ns); /* 74 calls, eight a batch */
        atomic_store(&shared.finished, 1);
        for (int i = 0; i < 64; i++)
            end(others[i]);
        return;
    }
    while (!atomic_load(&shared.finished))
        end(start(agent, 1));
}

static void test_no_shape_is_always_last(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(5); seed++)
        run(never_last, NULL, 12, seed, MS);
}

/* Rank 1 has four full batches of one shape under way or waiting all the time. */
static void keep_busy(weft_agent *agent, const char *function)
{
    weft_future *futures[32];
    for (int i = 0; i < 32; i++)
        futures[i] = start_at(agent, function, 10);
    for (int i = 0; !atomic_load(&shared.finished); i = (i + 1) % 32) {
        end(futures[i]);
        futures[i] = start_at(agent, function, 10);
    }
    for (int i = 0; i < 32; i++)
        end(futures[i]);
}

/* Rank 2 makes one call at a time, of another shape, which no other call will ever join. It waits for the handler
 * that runs, for the full batches that were there before it, and no more. */
static void rare_shape(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    const char *function = arg;
    if (rank == 0) {
        while (!atomic_load(&shared.finished)) {
            weft_batch_stats stats = stats_of(agent, function);
            shared.most_running = stats.running > shared.most_running ? stats.running : shared.most_running;
            weft_sim_sleep(shared.w->sim, 100 * US);
        }
        MUST(shared.most_running == (strcmp(function, "rare") == 0 ? 1 : 2));
        return;
    }
    if (rank == 1) {
        keep_busy(agent, function);
        return;
    }
    world_sleep_ms(shared.w, 20);
    for (int i = 0; i < MODEST; i++) {
        uint64_t began = weft_agent_now_ns(agent);
        weft_future *future = start_at(agent, function, 3);
        MUST_OK(weft_future_wait(future, 1000));
        weft_future_unref(future);
        MUST(weft_agent_now_ns(agent) - began < 5 * shared.handler_ns);
        weft_sim_sleep(shared.w->sim, 5700 * US);
    }
    atomic_store(&shared.finished, 1);
}

static void test_rare_shapes_do_not_starve(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(5); seed++) {
        run(rare_shape, "rare", 3, seed, 2 * MS);
        run(rare_shape, "rare beside two", 3, seed, 2 * MS);
    }
}

static void must_be_of(weft_future *future, int64_t together)
{
    int64_t n;
    MUST_OK(weft_future_wait(future, 60000));
    MUST_OK(weft_values_get_i64(weft_future_values(future), 0, &n));
    MUST(n == together);
    weft_future_unref(future);
}

/*
 * Both callers wait, in batches of different shapes, so both go; one runs, and the other is not begun when who waits
 * in the first calls for the second's shape as well. He is not taken into that: the next call of who is in it would
 * wait for him in vain.
 */
static void comes_when_all_go(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        while (!atomic_load(&shared.runs) || stats_of(agent, "both").waiting < 2)
            weft_sim_sleep(shared.w->sim, US);
        MUST(stats_of(agent, "both").batches == 1);
        atomic_store(&shared.over, true);
        await_finished(2);
        weft_batch_stats stats = stats_of(agent, "both");
        MUST(stats.calls == 4 && stats.batches == 3 && stats.by_callers == 3);
        return;
    }
    if (rank == 1) {
        weft_future *narrow = start_at(agent, "both", 1);
        while (!atomic_load(&shared.runs))
            weft_sim_sleep(shared.w->sim, US);
        weft_future *wide = start_at(agent, "both", 2);
        must_be_of(narrow, 1);
        must_be_of(wide, 2);
    } else {
        world_sleep_ms(shared.w, 1); /* so that the narrow one is the first */
        must_be_of(start_at(agent, "both", 2), 1);
        must_be_of(start_at(agent, "both", 2), 2);
    }
    atomic_fetch_add(&shared.finished, 1);
}

static void test_who_comes_when_all_go(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(10); seed++)
        run(comes_when_all_go, NULL, 3, seed, 0);
}

/* As many shapes as calls: each waits for the other's call of its shape, which come in another order, or for its
 * time. */
static void each_of_its_own(weft_agent *agent, void *arg)
{
    static weft_future *futures[2][FORMS];
    int rank = weft_agent_rank(agent);
    const char *function = arg;
    if (rank == 0) {
        await_finished(2);
        weft_batch_stats stats = stats_of(agent, function);
        MUST(stats.calls == 2 * FORMS && stats.batches == FORMS && stats.size_max == 2 && stats.waiting == 0);
        MUST(strcmp(function, "shapes in pairs") == 0 ? stats.by_size == FORMS : stats.by_time == FORMS);
        return;
    }
    for (int i = 0; i < FORMS; i++)
        futures[rank - 1][i] = start_at(agent, function, 1 + (rank == 1 ? i : i * 7 % FORMS));
    for (int i = 0; i < FORMS; i++)
        end(futures[rank - 1][i]);
    atomic_fetch_add(&shared.finished, 1);
}

static void test_as_many_shapes_as_calls(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(3); seed++) {
        run(each_of_its_own, "shapes in pairs", 3, seed, US);
        run(each_of_its_own, "shapes in time", 3, seed, US);
    }
}

UNIT_MAIN(test_no_shape_is_always_last, test_rare_shapes_do_not_starve, test_who_comes_when_all_go,
          test_as_many_shapes_as_calls)
