/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch_late.c - calls and batches that something keeps: a row whose caller stands still while it is
 * pulled, and workers who all wait. Others are served. On the simulation, where times are exact.
 */
#include "rpc/batch_stats.h"
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensors.h"

#include <weft/sim.h>

#include <stdatomic.h>
#include <string.h>

enum { ROW = 1 << 20, ALL_WORKERS = 300 /* and more */ };

static struct shared {
    world *w;
    atomic_int batches, finished, flag, standing;
    atomic_uint_fast64_t began_ns; /* when the last handler did */
} shared;

static const weft_rpc_options patient = {.timeout_ms = 120000};

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static weft_status run_slowly(weft_batch *batch, void *user)
{
    MUST(weft_batch_count(batch) <= 8);
    atomic_fetch_add(&shared.batches, 1);
    world_sleep_ms(shared.w, 5);
    return WEFT_OK;
}

/* Gives the sum of each row, and how many rows there were. */
static weft_status run_sum(weft_batch *batch, void *user)
{
    weft_tape *t = weft_batch_tape(batch);
    size_t n = weft_batch_count(batch);
    atomic_store(&shared.began_ns, weft_agent_now_ns(weft_batch_agent(batch)));
    weft_tensor *sizes = weft_tape_take(t, tensor_full(WEFT_SHAPE((int64_t)n), WEFT_DTYPE_INT64, (double)n));
    weft_batch_give(batch, 0, weft_sum_dim(t, weft_batch_tensor(batch, 0), 1, false));
    weft_batch_give(batch, 1, sizes);
    return WEFT_OK;
}

static weft_status run_doze(weft_batch *batch, void *user)
{
    atomic_store(&shared.began_ns, weft_agent_now_ns(weft_batch_agent(batch)));
    world_sleep_ms(shared.w, 5);
    return WEFT_OK;
}

/* Waits until somebody else is through; all workers do. */
static weft_status run_wait(weft_call *call, void *user)
{
    weft_future *never = weft_future_create(weft_call_agent(call));
    weft_status status = weft_future_wait(never, 10000);
    MUST_BE(status, WEFT_ERR_TIMEOUT);
    MUST_OK(weft_future_complete(never, NULL, NULL));
    weft_future_unref(never);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "tensors", .takes = {WEFT_TYPE_TENSOR}, .run_batch = run_slowly, .batch = {.size = 8, .wait_us = 1000}},
    {.name = "doze", .takes = {WEFT_TYPE_TENSOR}, .run_batch = run_doze, .batch = {.size = 2, .wait_us = WEFT_FOREVER}},
    {.name = "doze eight", .takes = {WEFT_TYPE_TENSOR}, .run_batch = run_doze, .batch = {.size = 8, .wait_us = 30000}},
    {.name = "sum two",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_F64, WEFT_TYPE_I64},
     .run_batch = run_sum,
     .batch = {.size = 2, .wait_us = 30000}},
    {.name = "sum many",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_F64, WEFT_TYPE_I64},
     .run_batch = run_sum,
     .batch = {.size = 8, .wait_us = 30000}},
    {.name = "sum both",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_F64, WEFT_TYPE_I64},
     .run_batch = run_sum,
     .batch = {.size = 2, .wait_us = WEFT_FOREVER}},
    {.name = "wait", .run = run_wait},
};

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

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

static void await_finished(int count)
{
    while (atomic_load(&shared.finished) < count)
        world_sleep_ms(shared.w, 1);
}

static void await_none_held(weft_agent *agent)
{
    for (int i = 0; i < 20000 && world_stats(agent).bytes_held; i++)
        world_sleep_ms(shared.w, 1);
    MUST(world_stats(agent).bytes_held == 0);
}

static void run(void (*program)(weft_agent *, void *), int size, uint64_t seeds,
                void (*adjust)(weft_agent_options *, void *))
{
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        world w = {.fabric = WORLD_SIM,
                   .size = size,
                   .seed = seed,
                   WORLD_FUNCTIONS(functions),
                   .program = program,
                   .adjust = adjust};
        memset(&shared, 0, sizeof(shared));
        shared.w = &w;
        world_run(&w);
    }
}

/* ---- Those who are late --------------------------------------------------------------------------------------- */

/* Rank 2 stands still while its row is pulled. Rank 1's batch, which is full, waits for it until its time is over. */
static void late(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        while (!stats_of(agent, "sum two").waiting)
            weft_sim_sleep(shared.w->sim, 1000);
        weft_sim_pause(shared.w->sim, 2);
        atomic_store(&shared.batches, 1);
        await_finished(1);
        world_sleep_ms(shared.w, 100);
        weft_sim_resume(shared.w->sim, 2);
        await_finished(2);
        weft_batch_stats stats = stats_of(agent, "sum two");
        MUST(stats.late_calls == 1 && stats.batches == 2 && stats.by_size == 1 && stats.by_time == 1);
        MUST(stats.copied_bytes == 2 * ROW && stats.waiting == 0); /* the late one, and the one behind it */
        await_none_held(agent);
        return;
    }
    weft_tensor *x = tensor_full(WEFT_SHAPE(ROW / 4), WEFT_DTYPE_FLOAT32, rank);
    while (rank == 1 && !atomic_load(&shared.batches))
        weft_sim_sleep(shared.w->sim, 1000);
    uint64_t began = weft_agent_now_ns(agent);
    weft_future *future = start(agent, 0, "sum two", x);
    MUST_OK(weft_future_wait(future, 60000));
    double sum;
    int64_t together;
    MUST_OK(weft_values_get_f64(weft_future_values(future), 0, &sum));
    MUST_OK(weft_values_get_i64(weft_future_values(future), 1, &together));
    MUST(sum == rank * (ROW / 4.0) && together == 1);
    uint64_t took = atomic_load(&shared.began_ns) - began;
    MUST(rank == 2 || (took >= 30000000u && took < 31000000u));
    weft_future_unref(future);
    weft_tensor_unref(x);
    atomic_fetch_add(&shared.finished, 1);
}

/* Rank 2's row lies between two of rank 1's and two more of them: all four are copied elsewhere, and then rank 2's. */
static void late_between(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent), calls = rank == 1 ? 4 : 1;
    weft_future *futures[4];
    if (rank == 0) {
        for (uint64_t waiting = 2; waiting <= 3; waiting++) {
            while (stats_of(agent, "sum many").waiting < waiting)
                weft_sim_sleep(shared.w->sim, 1000);
            if (waiting == 3)
                weft_sim_pause(shared.w->sim, 2);
            atomic_store(&shared.batches, (int)waiting);
        }
        await_finished(1);
        weft_sim_resume(shared.w->sim, 2);
        await_finished(2);
        weft_batch_stats stats = stats_of(agent, "sum many");
        MUST(stats.late_calls == 1 && stats.batches == 2 && stats.by_time == 2);
        MUST(stats.copied_bytes == (uint64_t)5 * ROW);
        await_none_held(agent);
        return;
    }
    for (int i = 0; i < calls; i++) {
        weft_tensor *x = tensor_full(WEFT_SHAPE(ROW / 4), WEFT_DTYPE_FLOAT32, 10 * rank + i);
        while (atomic_load(&shared.batches) < (rank == 2 ? 2 : i < 2 ? 0 : 3))
            weft_sim_sleep(shared.w->sim, 1000);
        futures[i] = start(agent, 0, "sum many", x);
        weft_tensor_unref(x);
    }
    for (int i = 0; i < calls; i++) {
        double sum;
        int64_t together;
        MUST_OK(weft_future_wait(futures[i], 60000));
        MUST_OK(weft_values_get_f64(weft_future_values(futures[i]), 0, &sum));
        MUST_OK(weft_values_get_i64(weft_future_values(futures[i]), 1, &together));
        MUST(sum == (10 * rank + i) * (ROW / 4.0) && together == calls);
        weft_future_unref(futures[i]);
    }
    atomic_fetch_add(&shared.finished, 1);
}

/* Rank 2 stands still when its answer is due. What it called with is let go of all the same: its row kept the whole
 * batch. */
static void answer_not_taken(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        while (!atomic_load(&shared.began_ns)) /* the handler sleeps then */
            weft_sim_sleep(shared.w->sim, 1000);
        weft_sim_pause(shared.w->sim, 2);
        await_finished(1);
        while (stats_of(agent, "doze").running)
            weft_sim_sleep(shared.w->sim, 1000);
        MUST(world_stats(agent).bytes_held > 0 && world_stats(agent).bytes_held < ROW);
        weft_sim_resume(shared.w->sim, 2);
        await_finished(2);
        await_none_held(agent);
        return;
    }
    weft_tensor *x = tensor_full(WEFT_SHAPE(ROW / 4), WEFT_DTYPE_FLOAT32, rank);
    end(start(agent, 0, "doze", x), WEFT_OK);
    weft_tensor_unref(x);
    atomic_fetch_add(&shared.finished, 1);
}

/* Rank 2's row keeps the rows of a batch that began without it: these count while it is pulled, and no longer. */
static void late_keeps_all(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        while (!stats_of(agent, "doze eight").waiting)
            weft_sim_sleep(shared.w->sim, 1000);
        weft_sim_pause(shared.w->sim, 2);
        atomic_store(&shared.flag, 1);
        await_finished(1);
        while (stats_of(agent, "doze eight").running)
            weft_sim_sleep(shared.w->sim, 1000);
        MUST(world_stats(agent).bytes_held >= (uint64_t)8 * ROW && world_stats(agent).bytes_held < (uint64_t)10 * ROW);
        atomic_store(&shared.began_ns, 0);
        weft_sim_resume(shared.w->sim, 2);
        while (!atomic_load(&shared.began_ns))
            weft_sim_sleep(shared.w->sim, 1000);
        MUST(world_stats(agent).bytes_held >= ROW &&
             world_stats(agent).bytes_held < (uint64_t)9 * ROW); /* those of its next batch */
        await_finished(2);
        await_none_held(agent);
        return;
    }
    while (rank == 1 && !atomic_load(&shared.flag))
        weft_sim_sleep(shared.w->sim, 1000);
    weft_tensor *x = tensor_full(WEFT_SHAPE(ROW / 4), WEFT_DTYPE_FLOAT32, rank);
    end(start(agent, 0, "doze eight", x), WEFT_OK);
    weft_tensor_unref(x);
    atomic_fetch_add(&shared.finished, 1);
}

/* The same where a batch has no time of its own: it does not begin without those who are in it. */
static void late_but_waited_for(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        while (!stats_of(agent, "sum both").waiting)
            weft_sim_sleep(shared.w->sim, 1000);
        weft_sim_pause(shared.w->sim, 2);
        atomic_store(&shared.batches, 1);
        world_sleep_ms(shared.w, 300);
        weft_sim_resume(shared.w->sim, 2);
        await_finished(2);
        weft_batch_stats stats = stats_of(agent, "sum both");
        MUST(stats.late_calls == 0 && stats.batches == 1 && stats.by_size == 1 && stats.copied_bytes == 0);
        return;
    }
    weft_tensor *x = tensor_full(WEFT_SHAPE(ROW / 4), WEFT_DTYPE_FLOAT32, rank);
    while (rank == 1 && !atomic_load(&shared.batches))
        weft_sim_sleep(shared.w->sim, 1000);
    weft_future *future = start(agent, 0, "sum both", x);
    int64_t together;
    MUST_OK(weft_future_wait(future, 60000));
    MUST_OK(weft_values_get_i64(weft_future_values(future), 1, &together));
    MUST(together == 2);
    weft_future_unref(future);
    weft_tensor_unref(x);
    atomic_fetch_add(&shared.finished, 1);
}

/* Rank 2 has one row of a full batch and stands still; who waits in that batch and behind it does not wait for rank
 * 2. */
static void stuck_row(weft_agent *agent, void *arg)
{
    weft_future *futures[21];
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        while (atomic_load(&shared.batches) < 3)
            weft_sim_sleep(shared.w->sim, 1000);
        atomic_store(&shared.flag, 1);
        while (stats_of(agent, "tensors").waiting < 13) /* seven in its batch, five in the next, and it */
            weft_sim_sleep(shared.w->sim, 1000);
        weft_sim_pause(shared.w->sim, 2);
        await_finished(1);
        weft_sim_resume(shared.w->sim, 2);
        await_finished(2);
        return;
    }
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(ROW / 4), WEFT_DTYPE_FLOAT32);
    if (rank == 2) {
        end(start(agent, 0, "tensors", x), WEFT_OK); /* so it counts among the callers */
        atomic_store(&shared.standing, 1);
        while (!atomic_load(&shared.flag))
            weft_sim_sleep(shared.w->sim, 1000);
        end(start(agent, 0, "tensors", x), WEFT_OK);
    } else {
        while (!atomic_load(&shared.standing))
            weft_sim_sleep(shared.w->sim, 1000);
        uint64_t began = weft_agent_now_ns(agent);
        for (int i = 0; i < 21; i++) {
            futures[i] = start(agent, 0, "tensors", x);
            while (i == 0 && atomic_load(&shared.batches) < 2) /* while it runs the others come */
                weft_sim_sleep(shared.w->sim, 1000);
        }
        for (int i = 0; i < 21; i++)
            end(futures[i], WEFT_OK);
        MUST(weft_agent_now_ns(agent) - began < 100000000u);
    }
    weft_tensor_unref(x);
    atomic_fetch_add(&shared.finished, 1);
}

/* ---- Batches that nobody takes -------------------------------------------------------------------------------- */

/* All workers wait when a batch comes, and another fills behind it: both are refused, and later ones are served. */
static void stalled(weft_agent *agent, void *arg)
{
    weft_future *waits[2 * ALL_WORKERS], *futures[4];
    if (weft_agent_rank(agent) == 0) {
        await_finished(1);
        while (stats_of(agent, "sum two").running) /* the last answer is out before its batch is over */
            world_sleep_ms(shared.w, 1);
        weft_batch_stats stats = stats_of(agent, "sum two");
        MUST(stats.waiting == 0 && stats.batches == 1 && stats.calls == 2);
        return;
    }
    weft_tensor *x = tensor_full(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 1);
    for (int i = 0; i < 2 * ALL_WORKERS; i++)
        waits[i] = start(agent, 0, "wait", NULL);
    world_sleep_ms(shared.w, 500);
    for (int i = 0; i < 4; i++)
        futures[i] = start(agent, 0, "sum two", x);
    for (int i = 0; i < 4; i++)
        end(futures[i], WEFT_ERR_BUSY);
    for (int i = 0; i < 2 * ALL_WORKERS; i++) {
        weft_status status = weft_future_wait(waits[i], 60000);
        MUST(status == WEFT_OK || status == WEFT_ERR_BUSY);
        weft_future_unref(waits[i]);
    }
    for (int i = 0; i < 2; i++)
        futures[i] = start(agent, 0, "sum two", x);
    for (int i = 0; i < 2; i++)
        end(futures[i], WEFT_OK);
    weft_tensor_unref(x);
    atomic_fetch_add(&shared.finished, 1);
}

static void test_late(void **state)
{
    run(late, 3, 10, NULL);
    run(late_between, 3, 10, NULL);
    run(late_but_waited_for, 3, 10, NULL);
}

static void test_what_rows_keep(void **state)
{
    run(answer_not_taken, 3, 10, NULL);
    run(late_keeps_all, 3, 10, NULL);
}

static void test_stuck_row(void **state)
{
    run(stuck_row, 3, 5, NULL);
}

static void test_stalled(void **state)
{
    run(stalled, 2, 3, world_one_worker);
}

UNIT_MAIN(test_late, test_what_rows_keep, test_stuck_row, test_stalled)
