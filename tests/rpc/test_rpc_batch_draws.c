/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_batch_draws.c - random operators on the tapes of batches and calls: each draws numbers of its own, a
 * replay the same. */
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensors.h"

#include <string.h>

enum { DRAWS = 128, ROUNDS = 5, CALLERS = 2, KINDS = 3 };

static struct shared {
    int64_t drawn[CALLERS][ROUNDS][KINDS][DRAWS];
} shared;

static const weft_rpc_options patient = {.timeout_ms = 60000};

static weft_tensor *draw(weft_tape *t, int64_t rows)
{
    weft_tensor *even = weft_tape_take(t, tensor_full(WEFT_SHAPE(rows, DRAWS, 2), WEFT_DTYPE_FLOAT32, 0.5));
    return weft_categorical(t, even);
}

static weft_status run_batch(weft_batch *batch, void *user)
{
    weft_batch_give(batch, 0, draw(weft_batch_tape(batch), (int64_t)weft_batch_count(batch)));
    return WEFT_OK;
}

static weft_status run_seeded(weft_batch *batch, void *user)
{
    weft_tape *t = weft_batch_tape(batch);
    draw(t, 1); /* is of no consequence for what comes after */
    weft_tape_set_seed(t, 7);
    weft_batch_give(batch, 0, draw(t, (int64_t)weft_batch_count(batch)));
    return WEFT_OK;
}

static weft_status run_call(weft_call *call, void *user)
{
    weft_tensor *drawn = draw(weft_call_tape(call), 1);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_select(weft_call_tape(call), drawn, 0, 0))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "batch", .gives = {WEFT_TYPE_TENSOR}, .run_batch = run_batch, .batch = {.size = 1}},
    {.name = "another", .gives = {WEFT_TYPE_TENSOR}, .run_batch = run_batch, .batch = {.size = 1}},
    {.name = "call", .gives = {WEFT_TYPE_TENSOR}, .run = run_call},
    {.name = "seeded", .gives = {WEFT_TYPE_TENSOR}, .run_batch = run_seeded, .batch = {.size = 1}},
};

static void get(weft_agent *agent, const char *function, int64_t *to)
{
    weft_values *values;
    weft_tensor *drawn;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), function, WEFT_NO_VALUES, &patient, &values));
    MUST_OK(weft_values_get_tensor(values, 0, &drawn));
    MUST(weft_tensor_numel(drawn) == DRAWS);
    for (int64_t i = 0; i < DRAWS; i++)
        to[i] = weft_tensor_get_i64(drawn, i);
    weft_values_unref(values);
}

/* Ranks 0 and 1 call: 0 itself. */
static void program(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    int64_t seeded[2][DRAWS];
    for (int round = 0; round < ROUNDS; round++)
        for (int kind = 0; kind < KINDS; kind++)
            get(agent, functions[kind].name, shared.drawn[rank][round][kind]);
    for (int i = 0; i < 2; i++)
        get(agent, "seeded", seeded[i]);
    MUST(memcmp(seeded[0], seeded[1], sizeof(seeded[0])) == 0);
    MUST(memcmp(seeded[0], shared.drawn[rank][0][0], sizeof(seeded[0])) != 0);
}

static void run(uint64_t seed)
{
    world w = {.fabric = WORLD_SIM, .size = CALLERS, .seed = seed, WORLD_FUNCTIONS(functions), .program = program};
    memset(&shared, 0, sizeof(shared));
    world_run(&w);
}

static void test_each_draws_its_own(void **state)
{
    enum { ALL = CALLERS * ROUNDS * KINDS };
    run(1);
    const int64_t(*drawn)[DRAWS] = shared.drawn[0][0];
    for (int i = 0; i < ALL; i++)
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(drawn[i], drawn[k], sizeof(*drawn));
}

static void test_replays_draw_the_same(void **state)
{
    static struct shared before;
    run(2);
    before = shared;
    run(2);
    assert_memory_equal(&before, &shared, sizeof(shared));
}

UNIT_MAIN(test_each_draws_its_own, test_replays_draw_the_same)
