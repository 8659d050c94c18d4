/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch_ends.c - batches whose callers cancel, run out of time, die, leave or join, and whose callee closes
 * or stops: while calls wait, while their rows are pulled, while the handler runs. Whoever is still there gets the
 * right answer.
 */
#include "rpc/batch_stats.h"
#include "rpc/must.h"
#include "rpc/stage.h"
#include "rpc/world.h"
#include "prng.h"
#include "tensors.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { COLUMNS = 50000, STORM = 24 };

static struct shared {
    world *w;
    _Atomic(weft_batch *) held;
    atomic_int finished, flag;
} shared;

static const weft_rpc_options patient = {.timeout_ms = 60000};

/* ---- Functions ------------------------------------------------------------------------------------------------ */

/* The sum of each row, all of whose elements are the number that stands beside it; and how many there were. */
static weft_status run_sum(weft_batch *batch, void *user)
{
    weft_tape *t = weft_batch_tape(batch);
    size_t n = weft_batch_count(batch);
    weft_tensor *x = weft_batch_tensor(batch, 1);
    int64_t columns = weft_tensor_size(x, 1);
    for (size_t i = 0; i < n; i++) {
        const float *row = (const float *)weft_tensor_data(x) + (int64_t)i * columns;
        float number = (float)weft_call_i64(weft_batch_call(batch, i), 0);
        for (int64_t k = 0; k < columns; k++)
            MUST(row[k] == number);
    }
    weft_batch_give(batch, 0, weft_sum_dim(t, x, 1, false));
    weft_batch_give(batch, 1, weft_tape_take(t, tensor_full(WEFT_SHAPE((int64_t)n), WEFT_DTYPE_INT64, (double)n)));
    if (user) { /* it takes a while; its rows stay what they are */
        world_sleep_ms(shared.w, 1);
        MUST(((const float *)weft_tensor_data(x))[columns - 1] == (float)weft_call_i64(weft_batch_call(batch, 0), 0));
    }
    return WEFT_OK;
}

static weft_status run_hold(weft_batch *batch, void *user)
{
    atomic_store(&shared.held, weft_batch_defer(batch));
    return WEFT_DEFERRED;
}

static void *finish_elsewhere(void *arg)
{
    weft_batch *batch = arg;
    for (size_t i = 0; i < weft_batch_count(batch); i++)
        weft_call_give(weft_batch_call(batch, i),
                       WEFT_VALUES(weft_of_i64(weft_call_i64(weft_batch_call(batch, i), 0))));
    weft_batch_finish(batch, WEFT_OK);
    return NULL;
}

/* Perhaps finished before this one has returned. */
static weft_status run_elsewhere(weft_batch *batch, void *user)
{
    pthread_t thread;
    weft_batch_defer(batch);
    if (shared.w->fabric == WORLD_SIM) {
        finish_elsewhere(batch);
    } else {
        MUST(pthread_create(&thread, NULL, finish_elsewhere, batch) == 0);
        pthread_detach(thread);
    }
    return WEFT_DEFERRED;
}

#define SUMS .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_F64, WEFT_TYPE_I64}, .run_batch = run_sum

static const weft_function functions[] = {
    {.name = "four", SUMS, .batch = {.size = 4, .wait_us = WEFT_FOREVER}},
    {.name = "storm", SUMS, .user = &shared, .batch = {.size = 4, .wait_us = 300}},
    {.name = "two at once", SUMS, .user = &shared, .batch = {.size = 4, .wait_us = 100, .in_flight = 2}},
    {.name = "hold",
     .takes = {WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run_batch = run_hold,
     .batch = {.size = 2, .wait_us = WEFT_FOREVER}},
    {.name = "elsewhere",
     .takes = {WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run_batch = run_elsewhere,
     .batch = {.size = 4}},
    {.name = "expected", /* the last: for jobs of four workers */
     SUMS,
     .batch = {.size = 100, .wait_us = WEFT_FOREVER, .callers = (const int[]){1, 2, 3}, .caller_count = 3}},
};
#define FOR_ALL_JOBS .functions = functions, .function_count = sizeof(functions) / sizeof(*functions) - 1

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

typedef struct sum_call {
    weft_tensor *x;
    weft_future *future;
    int64_t number, columns;
} sum_call;

static sum_call start(weft_agent *agent, int to, const char *function, int64_t number, int64_t columns,
                      int64_t timeout_ms)
{
    sum_call c = {.number = number, .columns = columns};
    weft_rpc_options options = {.timeout_ms = timeout_ms};
    c.x = tensor_full(WEFT_SHAPE(columns), WEFT_DTYPE_FLOAT32, (double)number);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(to), function, WEFT_VALUES(weft_of_i64(number), weft_of_tensor(c.x)),
                           &options, &c.future));
    return c;
}

/* What it ended with; how many were in its batch if that is WEFT_OK. */
static weft_status end(sum_call *c, int64_t *together)
{
    weft_status status = weft_future_wait(c->future, 120000);
    double sum;
    if (!status) {
        MUST_OK(weft_values_get_f64(weft_future_values(c->future), 0, &sum));
        MUST_OK(weft_values_get_i64(weft_future_values(c->future), 1, together));
        MUST(sum == (double)(c->number * c->columns));
    }
    weft_future_unref(c->future);
    weft_tensor_unref(c->x);
    return status;
}

static void must_end(sum_call *c, weft_status wanted, int64_t size)
{
    int64_t together = 0;
    MUST_BE(end(c, &together), wanted);
    MUST(wanted || together == size);
}

static void await_waiting(weft_agent *agent, const char *function, uint64_t count)
{
    while (stats_of(agent, function).waiting != count)
        world_sleep_ms(shared.w, 1);
}

static void await_flag(int wanted)
{
    while (atomic_load(&shared.flag) < wanted)
        world_sleep_ms(shared.w, 1);
}

static void await_finished(int wanted)
{
    while (atomic_load(&shared.finished) < wanted)
        world_sleep_ms(shared.w, 1);
}

static void await_nothing_held(weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    for (int i = 0; i < 20000 && stats.bytes_held; i++) {
        world_sleep_ms(shared.w, 1);
        weft_agent_stats(agent, &stats);
    }
    MUST(stats.bytes_held == 0);
}

static void begin(world *w)
{
    memset(&shared, 0, sizeof(shared));
    shared.w = w;
}

#define SCENE FOR_ALL_JOBS, .begin = begin
#define OF_FOUR WORLD_FUNCTIONS(functions), .begin = begin

/* ---- While they wait ------------------------------------------------------------------------------------------ */

/* One of three is cancelled and one runs out of time; those who come later take their places. */
static void given_up(weft_agent *agent, void *arg)
{
    sum_call calls[6];
    int64_t columns = shared.w->sim ? COLUMNS : 64; /* on a slow machine some row would be late, and wait for ever */
    int64_t soon_ms = shared.w->sim ? 50 : 3000;    /* but not before all three have come */
    if (weft_agent_rank(agent) == 1) {
        for (int i = 0; i < 3; i++)
            calls[i] = start(agent, 0, "four", i + 1, columns, i == 1 ? soon_ms : 60000);
        await_flag(1);
        MUST_OK(weft_future_cancel(calls[0].future));
        must_end(&calls[0], WEFT_ERR_CANCELLED, 0);
        must_end(&calls[1], WEFT_ERR_TIMEOUT, 0);
        await_flag(2);
        for (int i = 3; i < 6; i++)
            calls[i] = start(agent, 0, "four", i + 1, columns, 60000);
        for (int i = 2; i < 6; i++)
            must_end(&calls[i], WEFT_OK, 4);
        atomic_fetch_add(&shared.finished, 1);
    }
    if (weft_agent_rank(agent) == 0) {
        await_waiting(agent, "four", 3);
        atomic_store(&shared.flag, 1);
        await_waiting(agent, "four", 1);
        MUST(stats_of(agent, "four").left_out == 2);
        atomic_store(&shared.flag, 2);
        await_finished(1);
        weft_batch_stats stats = stats_of(agent, "four");
        MUST(stats.by_size == 1 && stats.calls == 4 && stats.left_out == 2);
        MUST(stats.copied_bytes == 0); /* those who came took the places of those who left */
    }
    if (weft_agent_rank(agent) == 0)
        await_nothing_held(agent);
    await_finished(1);
}

WORLD_TEST(given_up, 10, 1, SCENE, .size = 2)

/* Calls of several workers with rows that are pulled, cancelled or out of time at any moment: whatever succeeds is
 * right. */
static void storm(weft_agent *agent, void *arg)
{
    const char *function = arg;
    sum_call calls[STORM];
    int rank = weft_agent_rank(agent), good = 0;
    uint64_t state = shared.w->seed * 7919u + (uint64_t)rank;
    for (int i = 0; i < STORM; i++) {
        uint64_t chance = prng_next(&state);
        int64_t columns = chance >> 16 & 1 ? COLUMNS : 64, timeout_ms = (chance >> 17 & 7) == 0 ? 1 : 60000;
        calls[i] = start(agent, 0, function, rank * 1000 + i, columns, timeout_ms);
        if ((chance >> 20 & 3) == 0) {
            if (shared.w->sim)
                weft_sim_sleep(shared.w->sim, (chance >> 22 & 127) * 1000u);
            weft_status status = weft_future_cancel(calls[i - (i > 0 && (chance >> 29 & 1))].future);
            MUST(status == WEFT_OK || status == WEFT_ERR_COMPLETED);
        }
    }
    for (int i = 0; i < STORM; i++) {
        int64_t together;
        weft_status status = end(&calls[i], &together);
        MUST(status == WEFT_OK || status == WEFT_ERR_CANCELLED || status == WEFT_ERR_TIMEOUT);
        good += !status;
    }
    MUST(good);
    atomic_fetch_add(&shared.finished, 1);
    await_finished(3);
    if (rank == 0) {
        while (stats_of(agent, function).running || stats_of(agent, function).waiting)
            world_sleep_ms(shared.w, 1);
        await_nothing_held(agent);
    }
}

static void test_storm(void **state)
{
    world_play(&(world){SCENE, .size = 3, .program = storm, .arg = "storm"}, 60, 1);
    world_play(&(world){SCENE, .size = 3, .program = storm, .arg = "two at once"}, 60, 1);
}

/* ---- Dead callers --------------------------------------------------------------------------------------------- */

/* Rank 3 dies at some moment: while it waits, is pulled, is served. The others' calls are answered. */
static void death(weft_agent *agent, void *arg)
{
    sum_call c[2];
    int rank = weft_agent_rank(agent);
    if (rank == 3) {
        for (int i = 0;; i++) {
            c[0] = start(agent, 0, "storm", i, COLUMNS, 60000);
            c[1] = start(agent, 0, "expected", i, COLUMNS, 60000);
            int64_t together;
            (void)end(&c[0], &together);
            (void)end(&c[1], &together);
        }
    }
    if (rank == 0) {
        weft_sim_sleep(shared.w->sim, 100000 + shared.w->seed * 37000);
        weft_sim_kill(shared.w->sim, 3);
        await_finished(2);
        await_nothing_held(agent);
        return;
    }
    uint64_t until = weft_agent_now_ns(agent) + 4000000000u; /* the death is known by then */
    while (weft_agent_now_ns(agent) < until) {
        int64_t together;
        c[0] = start(agent, 0, "storm", rank, COLUMNS, 60000);
        c[1] = start(agent, 0, "expected", rank, 64, 60000);
        MUST_OK(end(&c[0], &together));
        MUST_OK(end(&c[1], &together));
        MUST(together >= 2);
        weft_sim_sleep(shared.w->sim, 3000000);
    }
    atomic_fetch_add(&shared.finished, 1);
}

WORLD_TEST(death, 12, 0, OF_FOUR, .size = 4)

/* ---- Expected callers ----------------------------------------------------------------------------------------- */

/* Rank 3 never calls. First it is expected, then not; in the end nobody is, and the wait ends when all serve or
 * close. */
static void expectations(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        await_waiting(agent, "expected", 2);
        world_sleep_ms(shared.w, 20);
        MUST(stats_of(agent, "expected").batches == 0);
        MUST_BE(weft_agent_expect_callers(agent, "expected", (const int[]){1, -1}, 2), WEFT_ERR_INVALID);
        MUST_BE(weft_agent_expect_callers(agent, "expected", (const int[]){1, 1}, 2), WEFT_ERR_INVALID);
        MUST_BE(weft_agent_expect_callers(agent, "expected", NULL, 2), WEFT_ERR_INVALID);
        MUST_BE(weft_agent_expect_callers(NULL, "expected", NULL, 0), WEFT_ERR_INVALID);
        MUST_BE(weft_agent_expect_callers(agent, NULL, NULL, 0), WEFT_ERR_INVALID);
        MUST_BE(weft_agent_expect_callers(agent, "nobody", NULL, 0), WEFT_ERR_NOT_FOUND);
        MUST_BE(weft_agent_expect_callers(agent, "expected", (const int[]){2, 1, 4}, 3), WEFT_ERR_INVALID);
        MUST_OK(weft_agent_expect_callers(agent, "expected", (const int[]){2, 1}, 2));
        await_finished(2);
        MUST(stats_of(agent, "expected").by_callers == 1);
        MUST_OK(weft_agent_expect_callers(agent, "expected", NULL, 0));
        atomic_store(&shared.flag, 1);
        await_waiting(agent, "expected", 2);
        world_sleep_ms(shared.w, 20);
        MUST(stats_of(agent, "expected").batches == 1);
    } else if (rank < 3) {
        sum_call c = start(agent, 0, "expected", rank, 8, 60000);
        must_end(&c, WEFT_OK, 2);
        atomic_fetch_add(&shared.finished, 1);
        await_flag(1);
        c = start(agent, 0, "expected", rank, 8, 60000);
        MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
        must_end(&c, WEFT_OK, 2);
    }
}

WORLD_TEST(expectations, 10, 1, OF_FOUR, .size = 4)

/* An elastic job: whoever of the expected has not joined, or has left, is not waited for; whoever is there is. */
static weft_status run_count(weft_batch *batch, void *user)
{
    size_t n = weft_batch_count(batch);
    for (size_t i = 0; i < n; i++)
        weft_call_give(weft_batch_call(batch, i), WEFT_VALUES(weft_of_i64((int64_t)n)));
    return WEFT_OK;
}

static const weft_function counting = {
    .name = "count",
    .gives = {WEFT_TYPE_I64},
    .run_batch = run_count,
    .batch = {.size = 100, .wait_us = WEFT_FOREVER, .callers = (const int[]){1, 2}, .caller_count = 2}};

static int64_t count_at_0(weft_agent *agent)
{
    weft_values *got;
    int64_t n;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "count", WEFT_NO_VALUES, &patient, &got));
    MUST_OK(weft_values_get_i64(got, 0, &n));
    weft_values_unref(got);
    return n;
}

static void comers_and_goers(stage *s, int actor)
{
    weft_future *future;
    if (actor == 2)
        stage_await_flag(s, 0, 1);
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 0) {
        MUST_OK(weft_agent_register(agent, &counting));
        atomic_store(&s->flags[3], 1);
        stage_await_flag(s, 2, 1);
    } else if (actor == 1) {
        stage_await_flag(s, 3, 1);
        MUST(count_at_0(agent) == 1);
        atomic_store(&s->flags[0], 1);
        stage_await_flag(s, 1, 1);
        /* Rank 2 has joined: it is waited for until it leaves without having called. */
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "count", WEFT_NO_VALUES, &patient, &future));
        stage_sleep_ms(s, 30);
        MUST(!weft_future_done(future));
        atomic_store(&s->flags[4], 1);
        MUST_OK(weft_future_wait(future, 60000));
        weft_future_unref(future);
        atomic_store(&s->flags[2], 1);
    } else {
        MUST_OK(stage_add_at(agent, weft_to_rank(0))); /* so rank 0 knows it */
        atomic_store(&s->flags[1], 1);
        stage_await_flag(s, 4, 1);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

static void test_comers_and_goers(void **state)
{
    stage_play(comers_and_goers, 3, 10, 2);
}

/* ---- The callee ends ------------------------------------------------------------------------------------------ */

/* It closes with calls waiting and to come: all are answered, in batches of whoever is there. */
static void closes(weft_agent *agent, void *arg)
{
    sum_call calls[3];
    if (weft_agent_rank(agent) == 0)
        return;
    for (int i = 0; i < 3; i++)
        calls[i] = start(agent, 0, "four", i, i ? COLUMNS : 8, 60000);
    MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
    for (int i = 0; i < 3; i++) {
        int64_t together;
        MUST_OK(end(&calls[i], &together));
    }
}

WORLD_TEST(closes, 30, 1, SCENE, .size = 3)

static sum_call own[2];

/* It stops: those who wait are told so, and so are its own calls. Each worker's are of a form of their own, so no
 * batch fills. */
static void stops(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    sum_call calls[2];
    for (int i = 0; i < 2; i++)
        calls[i] = start(agent, 0, "four", i, (i ? COLUMNS : 8) + rank, 60000);
    if (rank == 0) {
        await_waiting(agent, "four", 6);
        memcpy(own, calls, sizeof(own));
        return;
    }
    for (int i = 0; i < 2; i++) {
        int64_t together;
        MUST_BE(end(&calls[i], &together), WEFT_ERR_PEER_LEFT);
    }
}

static void test_stops(void **state)
{
    for (uint64_t seed = 0; seed <= world_seeds(20); seed++) {
        world w = {.fabric = seed ? WORLD_SIM : WORLD_TCP,
                   .seed = seed,
                   .size = 3,
                   .program = stops,
                   .stop = true,
                   FOR_ALL_JOBS};
        memset(&shared, 0, sizeof(shared));
        shared.w = &w;
        world_run(&w);
        for (int i = 0; i < 2; i++)
            must_end(&own[i], WEFT_ERR_CLOSED, 0);
    }
}

/* ---- Deferred ------------------------------------------------------------------------------------------------- */

static void elsewhere(weft_agent *agent, void *arg)
{
    for (int64_t i = 0; i < 40; i++) {
        weft_values *got;
        int64_t n;
        weft_target to = weft_to_rank((int)(i % weft_agent_world_size(agent)));
        MUST_OK(weft_rpc_sync(agent, to, "elsewhere", WEFT_VALUES(weft_of_i64(i)), &patient, &got));
        MUST_OK(weft_values_get_i64(got, 0, &n));
        MUST(n == i);
        weft_values_unref(got);
    }
}

WORLD_TEST(elsewhere, 10, 1, SCENE, .size = 3)

/* Nobody waits for it any more, so the agents close; then it is finished, well or not. Calls of our own end when we
 * close. */
static weft_future *unfinished[2];

static void never_finished(weft_agent *agent, void *arg)
{
    weft_future **futures = unfinished;
    const int to = *(int *)arg;
    while (weft_agent_rank(agent) == 0 && !atomic_load(&shared.held)) /* it fills: nobody closes */
        world_sleep_ms(shared.w, 1);
    if (weft_agent_rank(agent) == 0)
        return;
    for (int i = 0; i < 2; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(to), "hold", WEFT_VALUES(weft_of_i64(i)), &patient, &futures[i]));
    while (!atomic_load(&shared.held))
        world_sleep_ms(shared.w, 1);
    for (int i = 0; i < 2; i++) {
        MUST_OK(weft_future_cancel(futures[i]));
        MUST_BE(weft_future_wait(futures[i], to ? 20 : 60000), to ? WEFT_ERR_TIMEOUT : WEFT_ERR_CANCELLED);
    }
}

static void test_never_finished(void **state)
{
    for (int how = 0; how < 12; how++) {
        int to = how & 1;
        world w = {
            .fabric = how & 2 ? WORLD_TCP : WORLD_SIM, .seed = 1, .size = 2, .program = never_finished, .arg = &to};
        w.functions = functions;
        w.function_count = sizeof(functions) / sizeof(*functions) - 1;
        memset(&shared, 0, sizeof(shared));
        shared.w = &w;
        world_run(&w);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(weft_error_code(weft_future_error(unfinished[i])), WEFT_ERR_CANCELLED);
            weft_future_unref(unfinished[i]);
        }
        weft_batch *batch = atomic_load(&shared.held); /* of an agent that has closed */
        assert_int_equal(weft_batch_count(batch), 2);
        assert_true(weft_call_cancelled(weft_batch_call(batch, 1)) &&
                    weft_call_time_left(weft_batch_call(batch, 0)) == 0);
        assert_int_equal(weft_call_i64(weft_batch_call(batch, 1), 0), 1);
        weft_tape *t = weft_batch_tape(batch);
        weft_batch_give(batch, 0, weft_tape_take(t, tensor_arange(how < 4 ? 2 : 3, WEFT_DTYPE_INT64)));
        if (how >= 8)
            weft_batch_fail(batch, WEFT_ERR_IO, "too late");
        weft_batch_finish(batch, how < 4 ? WEFT_OK : WEFT_ERR_IO);
    }
    weft_batch_finish(NULL, WEFT_OK);
}

UNIT_MAIN(test_given_up, test_storm, test_death, test_expectations, test_closes, test_stops, test_comers_and_goers,
          test_elsewhere, test_never_finished)
