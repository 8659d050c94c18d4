/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch_memory.c - what batches keep in memory: rows behind references, places made ahead, rows copied
 * because another's call came late.
 */
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensor/tensor.h"
#include "tensors.h"

#include <weft/sim.h>

#include <stdatomic.h>
#include <string.h>

enum { CALLS = 6, MIB = 1 << 20 };

static struct shared {
    world *w;
    atomic_int finished, step;
} shared;

static const weft_rpc_options patient = {.timeout_ms = 120000};

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static weft_status run_echo(weft_batch *batch, void *user)
{
    weft_batch_give(batch, 0, weft_batch_tensor(batch, 0));
    return WEFT_OK;
}

/* Every second call by itself, of the first argument's row as the handler sees it, and of the call's own. */
static weft_status run_echo_each(weft_batch *batch, void *user)
{
    for (size_t i = 0; i < weft_batch_count(batch); i++) {
        weft_call *call = weft_batch_call(batch, i);
        weft_tensor *row = weft_select(weft_batch_tape(batch), weft_batch_tensor(batch, 0), 0, (int64_t)i);
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(i % 2 ? row : weft_call_tensor(call, 0))));
    }
    return WEFT_OK;
}

/* How many bytes the tensor behind a reference keeps. */
static weft_status run_look(weft_call *call, void *user)
{
    weft_values *values;
    weft_tensor *x;
    MUST_OK(weft_rref_to_here(weft_call_rref(call, 0), 60000, &values, NULL));
    MUST_OK(weft_values_get_tensor(values, 0, &x));
    weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)wfi_storage_size(x->storage))));
    weft_values_unref(values);
    return WEFT_OK;
}

static weft_status run_sink(weft_call *call, void *user)
{
    (void)call;
    return WEFT_OK;
}

#define ROWS .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}

static const weft_function functions[] = {
    {.name = "echo", ROWS, .run_batch = run_echo, .batch = {.size = CALLS, .wait_us = WEFT_FOREVER}},
    {.name = "echo each", ROWS, .run_batch = run_echo_each, .batch = {.size = CALLS, .wait_us = WEFT_FOREVER}},
    {.name = "echo alone", ROWS, .run_batch = run_echo, .batch = {.size = 64}},
    {.name = "long", ROWS, .run_batch = run_echo, .batch = {.size = 64, .wait_us = 2000000}},
    {.name = "sink", .takes = {WEFT_TYPE_TENSOR}, .run = run_sink},
    {.name = "look", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_I64}, .run = run_look},
};

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

static void await_finished(int count)
{
    while (atomic_load(&shared.finished) < count)
        world_sleep_ms(shared.w, 1);
}

static void run(void (*program)(weft_agent *, void *), int size, world_fabric fabric, uint64_t seed,
                void (*adjust)(weft_agent_options *, void *))
{
    world w = {
        .fabric = fabric, .size = size, .seed = seed, WORLD_FUNCTIONS(functions), .program = program, .adjust = adjust};
    memset(&shared, 0, sizeof(shared));
    shared.w = &w;
    world_run(&w);
}

/* ---- Behind references ---------------------------------------------------------------------------------------- */

static void must_keep(weft_rref *rref, size_t bytes, double value)
{
    weft_values *values;
    weft_tensor *x;
    int64_t kept;
    MUST_OK(weft_rref_rpc_sync(rref, "look", WEFT_NO_VALUES, &patient, &values));
    MUST_OK(weft_values_get_i64(values, 0, &kept));
    weft_values_unref(values);
    MUST((size_t)kept == bytes);
    MUST_OK(weft_rref_to_here(rref, 60000, &values, NULL));
    MUST_OK(weft_values_get_tensor(values, 0, &x));
    MUST(weft_tensor_nbytes(x) == bytes && weft_tensor_get_f64(x, weft_tensor_numel(x) - 1) == value);
    weft_values_unref(values);
}

/* `remote` calls leave their results behind; the others of the batch get theirs sent. */
static void leave_rows(weft_agent *agent, const char *function, int64_t columns, int calls, int remote)
{
    weft_rref *rrefs[CALLS];
    weft_future *futures[CALLS];
    for (int i = 0; i < calls; i++) {
        weft_tensor *x = tensor_full(WEFT_SHAPE(columns), WEFT_DTYPE_FLOAT32, i + 1);
        weft_args args = WEFT_VALUES(weft_of_tensor(x));
        if (i < remote)
            MUST_OK(weft_rpc_remote(agent, weft_to_rank(0), function, args, &patient, &rrefs[i]));
        else
            MUST_OK(weft_rpc_async(agent, weft_to_rank(0), function, args, &patient, &futures[i]));
        weft_tensor_unref(x);
    }
    for (int i = 0; i < calls; i++) {
        if (i < remote) {
            must_keep(rrefs[i], (size_t)columns * sizeof(float), i + 1);
            weft_rref_unref(rrefs[i]);
            continue;
        }
        MUST_OK(weft_future_wait(futures[i], 60000));
        MUST(weft_tensor_get_f64(weft_future_tensor(futures[i], 0), columns - 1) == i + 1);
        weft_future_unref(futures[i]);
    }
}

static void references(weft_agent *agent, void *arg)
{
    await_finished(weft_agent_rank(agent)); /* one after the other: a batch is of one caller */
    leave_rows(agent, "echo", 16, CALLS, CALLS);
    leave_rows(agent, "echo", MIB / 4, CALLS, CALLS / 2);
    leave_rows(agent, "echo each", MIB / 4, CALLS, CALLS);
    leave_rows(agent, "echo alone", MIB / 4, 1, 1); /* whose batch had places for others */
    atomic_fetch_add(&shared.finished, 1);
    await_finished(2);
}

static void test_references_keep_one_row(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(5); seed++)
        run(references, 2, WORLD_SIM, seed, NULL);
    run(references, 2, WORLD_TCP, 0, NULL);
}

/* ---- Ahead ---------------------------------------------------------------------------------------------------- */

enum { BUDGET = 64 * MIB, MANY = 12 };

static void give_budget(weft_agent_options *options, void *arg)
{
    options->memory_budget_bytes = options->rank == 0 ? BUDGET : 0;
}

static void await_step(int step)
{
    while (atomic_load(&shared.step) < step)
        world_sleep_ms(shared.w, 1);
}

/* One call waits for its batch; while it does, another worker's large one is not refused for places that nobody has
 * asked for. */
static void wait_alone(weft_agent *agent, int step, uint64_t held_most)
{
    int rank = weft_agent_rank(agent);
    weft_batch_stats stats = {0};
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(rank == 1 ? MIB / 4 : 10 * MIB), WEFT_DTYPE_FLOAT32);
    weft_args args = WEFT_VALUES(weft_of_tensor(x));
    if (rank == 0) {
        for (; !stats.waiting || world_stats(agent).bytes_held < MIB; world_sleep_ms(shared.w, 1))
            MUST_OK(weft_batch_stats_read(agent, "long", &stats));
        MUST(world_stats(agent).bytes_held <= held_most);
        atomic_store(&shared.step, step + 1);
    } else if (rank == 1) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "long", args, &patient, NULL));
        MUST(atomic_load(&shared.step) == step + 2);
    } else {
        await_step(step + 1);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "sink", args, &patient, NULL));
        atomic_store(&shared.step, step + 2);
    }
    await_step(step + 2);
    weft_tensor_unref(x);
}

static void ahead(weft_agent *agent, void *arg)
{
    weft_future *futures[MANY];
    int rank = weft_agent_rank(agent);
    wait_alone(agent, 0, 6 * MIB); /* nothing is known of batches yet */
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(MIB / 4), WEFT_DTYPE_FLOAT32);
    for (int i = 0; rank == 1 && i < MANY; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "long", WEFT_VALUES(weft_of_tensor(x)), &patient, &futures[i]));
    for (int i = 0; rank == 1 && i < MANY; i++) {
        MUST_OK(weft_future_wait(futures[i], 60000));
        weft_future_unref(futures[i]);
    }
    weft_tensor_unref(x);
    if (rank == 1)
        atomic_fetch_add(&shared.finished, 1);
    await_finished(1);
    while (rank == 0 && world_stats(agent).bytes_held)
        world_sleep_ms(shared.w, 1);
    if (rank == 0)
        atomic_fetch_add(&shared.finished, 1);
    await_finished(2);
    wait_alone(agent, 2, 18 * MIB);
}

static void test_places_ahead_are_few(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(3); seed++)
        run(ahead, 3, WORLD_SIM, seed, give_budget);
}

UNIT_MAIN(test_references_keep_one_row, test_places_ahead_are_few)
