/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch_waits.c - how long batches wait: for ever; one batch a round for sixty-four callers on one worker;
 * many threads at once; agents without threads; and what cannot be registered.
 */
#include "rpc/batch_stats.h"
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensors.h"

#include <weft/log.h>
#include <weft/sim.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { MANY = 64, ROUNDS = 40, THREADS = 4, CALLS = 60, US = 1000 };

static struct shared {
    world *w;
    uint64_t handler_ns;
    atomic_int finished, batches, busy, busy_most;
    atomic_bool over;
} shared;

static const weft_rpc_options patient = {.timeout_ms = 120000};

/* ---- Functions ------------------------------------------------------------------------------------------------ */

/* The number of calls, after a while. */
static weft_status run_slow(weft_batch *batch, void *user)
{
    int64_t n = (int64_t)weft_batch_count(batch);
    weft_tensor *sizes =
        weft_tape_take(weft_batch_tape(batch), tensor_full(WEFT_SHAPE(n), WEFT_DTYPE_INT64, (double)n));
    int busy = atomic_fetch_add(&shared.busy, 1) + 1;
    if (busy > atomic_load(&shared.busy_most))
        atomic_store(&shared.busy_most, busy);
    atomic_fetch_add(&shared.batches, 1);
    if (shared.handler_ns && shared.w->sim)
        weft_sim_sleep(shared.w->sim, shared.handler_ns);
    weft_batch_give(batch, 0, sizes);
    atomic_fetch_sub(&shared.busy, 1);
    return WEFT_OK;
}

/* Twice the row. */
static weft_status run_double(weft_batch *batch, void *user)
{
    weft_tensor *x = weft_batch_tensor(batch, 0);
    weft_batch_give(batch, 0, weft_add(weft_batch_tape(batch), x, x));
    return WEFT_OK;
}

static const int everybody[MANY] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16,
                                    17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
                                    33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48,
                                    49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64};

#define SLOW .gives = {WEFT_TYPE_I64}, .run_batch = run_slow
#define DOUBLE .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run_batch = run_double

static const weft_function functions[] = {
    {.name = "for long", SLOW, .batch = {.size = 64, .wait_us = INT64_MAX}},
    {.name = "everybody",
     SLOW,
     .batch = {.size = 1000, .wait_us = WEFT_FOREVER, .callers = everybody, .caller_count = MANY}},
    {.name = "double all", DOUBLE, .batch = {.wait_us = WEFT_FOREVER, .callers = everybody, .caller_count = MANY}},
    {.name = "double", DOUBLE, .batch = {.size = 7, .wait_us = 500, .in_flight = 2}},
    {.name = "double later", DOUBLE, .batch = {.size = 5, .wait_us = 200, .queue = 3}},
};

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

static int64_t call(weft_agent *agent, const char *function)
{
    weft_values *got;
    int64_t n;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), function, WEFT_NO_VALUES, &patient, &got));
    MUST_OK(weft_values_get_i64(got, 0, &n));
    weft_values_unref(got);
    return n;
}

static void await_finished(int count)
{
    while (atomic_load(&shared.finished) < count)
        world_sleep_ms(shared.w, 1);
}

static void finished(void)
{
    atomic_fetch_add(&shared.finished, 1);
}

static void run_on(world_fabric fabric, uint64_t seed, world w, uint64_t handler_us)
{
    w.fabric = fabric;
    w.seed = seed;
    weft_function mine[sizeof(functions) / sizeof(*functions)];
    memcpy(mine, functions, sizeof(functions));
    for (size_t i = 0; i < sizeof(mine) / sizeof(*mine); i++)
        if (mine[i].batch.caller_count)
            mine[i].batch.caller_count = (size_t)w.size - 1; /* those of the job */
    w.functions = mine;
    w.function_count = sizeof(mine) / sizeof(*mine);
    memset(&shared, 0, sizeof(shared));
    shared.handler_ns = handler_us * US;
    shared.w = &w;
    world_run(&w);
}

/* ---- For ever ---------------------------------------------------------------------------------------------------- */

/* A wait that outlasts every clock is for ever, not none. */
static void outlasts(weft_agent *agent, void *arg)
{
    weft_future *future;
    if (weft_agent_rank(agent) == 0) {
        while (!stats_of(agent, "for long").waiting)
            world_sleep_ms(shared.w, 1);
        world_sleep_ms(shared.w, 50);
        MUST(stats_of(agent, "for long").batches == 0);
        atomic_store(&shared.over, true);
        await_finished(1);
        return;
    }
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "for long", WEFT_NO_VALUES, &patient, &future));
    while (!atomic_load(&shared.over))
        world_sleep_ms(shared.w, 1);
    MUST_OK(weft_future_cancel(future));
    MUST_BE(weft_future_wait(future, 60000), WEFT_ERR_CANCELLED);
    weft_future_unref(future);
    finished();
}

static void test_outlasts(void **state)
{
    run_on(WORLD_SIM, 1, (world){.size = 2, .program = outlasts}, 0);
    run_on(WORLD_TCP, 0, (world){.size = 2, .program = outlasts}, 0);
}

/* ---- Many callers, one worker --------------------------------------------------------------------------------- */

/* One evaluation a round for all of them, though there is one worker only and all wait for it. */
static void rounds(weft_agent *agent, void *arg)
{
    int callers = weft_agent_world_size(agent) - 1;
    if (weft_agent_rank(agent) == 0) {
        await_finished(callers);
        while (stats_of(agent, "everybody").running) /* the last answer is out before its batch is over */
            world_sleep_ms(shared.w, 1);
        weft_batch_stats stats = stats_of(agent, "everybody");
        MUST(stats.batches == ROUNDS && stats.by_callers == ROUNDS && stats.mean_size == callers);
        MUST(stats.size_max == (uint64_t)callers);
        MUST(atomic_load(&shared.busy_most) == 1 && atomic_load(&shared.batches) == ROUNDS);
        return;
    }
    for (int i = 0; i < ROUNDS; i++)
        MUST(call(agent, "everybody") == callers);
    finished();
}

static void test_rounds(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(2); seed++)
        run_on(WORLD_SIM, seed, (world){.size = MANY + 1, .program = rounds, .adjust = world_one_worker}, 100);
    run_on(WORLD_TCP, 0, (world){.size = 13, .program = rounds, .adjust = world_one_worker}, 0);
}

/* Callers that wait for each other, and bring different shapes in two rounds of three: no batch has calls of them
 * all then. */
static void shapes(weft_agent *agent, void *arg)
{
    int callers = weft_agent_world_size(agent) - 1, rank = weft_agent_rank(agent);
    uint64_t differing = 0;
    for (int i = 0; i < ROUNDS; i++)
        differing += i % 3 > 0;
    if (rank == 0) {
        await_finished(callers);
        weft_batch_stats stats = stats_of(agent, "double all");
        MUST(stats.calls == (uint64_t)callers * ROUNDS && stats.by_callers == stats.batches);
        MUST(stats.batches == ROUNDS - differing + 2 * differing);
        return;
    }
    for (int i = 0; i < ROUNDS; i++) {
        weft_tensor *x = tensor_full(WEFT_SHAPE(i % 3 && rank % 2 ? 5 : 4), WEFT_DTYPE_INT32, i), *twice;
        weft_values *got;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "double all", WEFT_VALUES(weft_of_tensor(x)), &patient, &got));
        MUST_OK(weft_values_get_tensor(got, 0, &twice));
        MUST(weft_tensor_size(twice, 0) == weft_tensor_size(x, 0));
        MUST(((const int32_t *)weft_tensor_data(twice))[3] == 2 * i);
        weft_values_unref(got);
        weft_tensor_unref(x);
    }
    finished();
}

static void test_shapes(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(20); seed++)
        run_on(WORLD_SIM, seed, (world){.size = 2 + (int)seed % 5 + 1, .program = shapes}, 0);
    run_on(WORLD_TCP, 0, (world){.size = 5, .program = shapes}, 0);
}

/* ---- Many threads --------------------------------------------------------------------------------------------- */

typedef struct thread_of {
    weft_agent *agent;
    int number;
} thread_of;

static void *keep_calling(void *arg)
{
    const thread_of *me = arg;
    weft_rpc_options again = {.timeout_ms = 120000, .retry = {.attempts = 10000, .pause_ms = 1, .pause_most_ms = 3}};
    for (int i = 0; i < CALLS; i++) {
        int64_t columns = i % 10 == 9 ? 20000 : 3 + i % 2;
        weft_tensor *x = tensor_full(WEFT_SHAPE(columns), WEFT_DTYPE_FLOAT32, me->number * 1000 + i), *got;
        weft_values *values;
        const char *function = (me->number + i) % 3 ? "double" : "double later"; /* whose queue is short */
        MUST_OK(weft_rpc_sync(me->agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_tensor(x)), &again, &values));
        MUST_OK(weft_values_get_tensor(values, 0, &got));
        MUST(weft_tensor_numel(got) == columns);
        MUST(weft_tensor_get_f64(got, columns - 1) == 2.0 * (me->number * 1000 + i));
        weft_values_unref(values);
        weft_tensor_unref(x);
    }
    return NULL;
}

/* Asks, and changes who is expected, all the while. */
static void *keep_asking(void *arg)
{
    weft_agent *agent = ((thread_of *)arg)->agent;
    while (!atomic_load(&shared.over)) {
        weft_batch_stats stats = stats_of(agent, "double");
        MUST(stats.size_max <= 7 && stats.running <= 2);
        MUST_OK(weft_agent_expect_callers(agent, "double", everybody, 2));
        MUST_OK(weft_agent_expect_callers(agent, "double", NULL, 0));
    }
    return NULL;
}

static void threads(weft_agent *agent, void *arg)
{
    pthread_t callers[THREADS], asker;
    thread_of all[THREADS];
    int rank = weft_agent_rank(agent);
    for (int i = 0; i < THREADS; i++) {
        all[i] = (thread_of){agent, rank * THREADS + i};
        MUST(!pthread_create(&callers[i], NULL, keep_calling, &all[i]));
    }
    if (rank == 0)
        MUST(!pthread_create(&asker, NULL, keep_asking, &all[0]));
    for (int i = 0; i < THREADS; i++)
        MUST(!pthread_join(callers[i], NULL));
    finished();
    await_finished(3);
    atomic_store(&shared.over, true);
    if (rank)
        return;
    MUST(!pthread_join(asker, NULL));
    MUST(stats_of(agent, "double").calls + stats_of(agent, "double later").calls == 3 * THREADS * CALLS);
    MUST(stats_of(agent, "double").waiting == 0 && stats_of(agent, "double later").left_out == 0);
}

static void test_threads(void **state)
{
    run_on(WORLD_TCP, 0, (world){.size = 3, .program = threads}, 0);
}

/* ---- Without threads ------------------------------------------------------------------------------------------ */

static void no_threads(weft_agent_options *options, void *arg)
{
    options->no_threads = options->rank == 0;
}

static void by_hand(weft_agent *agent, void *arg)
{
    thread_of me = {agent, 1};
    while (weft_agent_rank(agent) == 0 && !atomic_load(&shared.over))
        weft_agent_progress(agent, 1);
    if (weft_agent_rank(agent) == 0)
        return;
    keep_calling(&me);
    atomic_store(&shared.over, true);
}

static void test_by_hand(void **state)
{
    run_on(WORLD_TCP, 0, (world){.size = 2, .program = by_hand, .adjust = no_threads}, 0);
}

/* ---- Registering ---------------------------------------------------------------------------------------------- */

static weft_status run_plain(weft_call *c, void *user)
{
    (void)c;
    return WEFT_OK;
}

static weft_tensor *land_nowhere(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    (void)from_rank;
    (void)index;
    (void)dtype;
    (void)shape;
    return NULL;
}

static char said[512];

static void listen(weft_log_level level, const char *line, void *arg)
{
    (void)level;
    snprintf(said, sizeof(said), "%s", line);
}

static void registering(weft_agent *agent, void *arg)
{
    const struct bad {
        weft_function function;
        const char *why;
    } all[] = {
        {{.run_batch = run_slow, .run = run_plain}, "run and run_batch are both set"},
        {{.run_batch = run_slow, .land = land_nowhere}, "land is set"},
        {{.run_batch = run_slow, .land = land_nowhere, .flags = WEFT_FUNCTION_LAND_ADD}, "land is set"},
        {{.run_batch = run_slow, .flags = WEFT_FUNCTION_LAND_ADD}, "WEFT_FUNCTION_LAND_ADD without"},
        {{.run_batch = run_slow, .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSORS}}, "takes[1] is tensors"},
        {{.run_batch = run_slow, .takes = {WEFT_TYPE_LIST}}, "takes[0] is list"},
        {{.run_batch = run_slow, .takes = {WEFT_TYPE_ANY}}, "takes[0] is any"},
        {{.run_batch = run_slow, .takes = {WEFT_TYPE_I64, WEFT_TYPE_REST}}, "takes[1] is "},
        {{.run_batch = run_slow, .batch = {.size = -1}}, "batch.size is -1: 1 to 65536"},
        {{.run_batch = run_slow, .batch = {.size = WEFT_MAX_BATCH + 1}}, "batch.size is 65537: 1 to 65536"},
        {{.run_batch = run_slow, .batch = {.wait_us = -2}}, "batch.wait_us is -2"},
        {{.run_batch = run_slow, .batch = {.in_flight = -1}}, "batch.in_flight is -1"},
        {{.run_batch = run_slow, .batch = {.queue = -1}}, "batch.queue is -1"},
        {{.run_batch = run_slow, .batch = {.wait_us = WEFT_FOREVER, .queue = 127}},
         "batch.queue is 127, below 128: with wait_us WEFT_FOREVER no batch of 64 calls might be full"},
        {{.run_batch = run_slow, .batch = {.wait_us = WEFT_FOREVER, .one_per_caller = true, .queue = 63}},
         "batch.queue is 63, below 64"},
        {{.run_batch = run_slow, .batch = {.caller_count = 1}}, "1 callers at NULL"},
        {{.run_batch = run_slow, .batch = {.callers = (const int[]){1}, .caller_count = SIZE_MAX}},
         "18446744073709551615 callers: the world size is 7"},
        {{.run_batch = run_slow, .batch = {.callers = (const int[]){7}, .caller_count = 1}},
         "caller 0 has rank 7: 0 to 6, as the world size is 7"},
        {{.run_batch = run_slow, .batch = {.callers = (const int[]){1, -1}, .caller_count = 2}},
         "caller 1 has rank -1"},
        {{.run_batch = run_slow, .batch = {.callers = (const int[]){1, 2, 1}, .caller_count = 3}},
         "callers 0 and 2 have the same rank, 1"},
        {{.run = run_plain, .batch = {.size = 1}}, "batch.size is set without run_batch"},
        {{.run = run_plain, .batch = {.one_per_caller = true}}, "batch.one_per_caller is set without run_batch"},
        {{.takes = {WEFT_TYPE_I64}}, "run is NULL"},
        {{.run = run_plain, .takes = {WEFT_TYPE_I64, WEFT_TYPE_NONE, WEFT_TYPE_I64}},
         "takes goes on after WEFT_TYPE_NONE"},
        {{.run = run_plain, .gives = {WEFT_TYPE_NONE, WEFT_TYPE_I64}}, "gives goes on after WEFT_TYPE_NONE"},
    };
    int ranks[] = {5, 6};
    weft_batch_stats stats = {.calls = 1};
    if (weft_agent_rank(agent) != 0)
        return;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        weft_function bad = all[i].function;
        bad.name = "bad";
        said[0] = 0;
        MUST_BE(weft_agent_register(agent, &bad), WEFT_ERR_INVALID);
        if (!strstr(said, all[i].why))
            fprintf(stderr, "case %zu said: %s\n", i, said);
        MUST(strstr(said, all[i].why) && strstr(said, "\"bad\""));
    }
    weft_function good = {
        .name = "good", .run_batch = run_slow, .takes = {WEFT_TYPE_NULL, WEFT_TYPE_BYTES}, .gives = {WEFT_TYPE_STRING}};
    good.batch = (weft_batch_options){.size = WEFT_MAX_BATCH, .callers = ranks, .caller_count = 2};
    MUST_OK(weft_agent_register(agent, &good));
    ranks[0] = ranks[1] = -7; /* they were borrowed until registered */
    MUST_BE(weft_agent_register(agent, &good), WEFT_ERR_INVALID);
    MUST_OK(weft_batch_stats_read(agent, "good", &stats));
    MUST(stats.calls == 0 && stats.mean_size == 0 && stats.size_max == 0);
    MUST_BE(weft_batch_stats_read(agent, "bad", &stats), WEFT_ERR_NOT_FOUND);
    stats.calls = 1;
    MUST_BE(weft_batch_stats_read(agent, NULL, &stats), WEFT_ERR_INVALID);
    MUST(stats.calls == 0);
    MUST_BE(weft_batch_stats_read(NULL, "good", &stats), WEFT_ERR_INVALID);
    MUST_BE(weft_batch_stats_read(agent, "good", NULL), WEFT_ERR_INVALID);
}

static void test_registering(void **state)
{
    weft_logging_set_sink(listen, NULL);
    run_on(WORLD_SIM, 1, (world){.size = 7, .program = registering}, 0);
    weft_logging_set_sink(NULL, NULL);
}

UNIT_MAIN(test_outlasts, test_rounds, test_shapes, test_threads, test_by_hand, test_registering)
