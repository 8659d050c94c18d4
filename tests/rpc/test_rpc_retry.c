/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_retry.c - calls that are tried again: what passes and what does not, the pauses, the time limit,
 * cancelling in an attempt and in a pause, the agent's end meanwhile; for rpc_remote, multicast and ourselves as
 * well.
 */
#include "rpc/inside.h"
#include "rpc/world.h"
#include "tensors.h"

#include <weft/sim.h>

#define SIZE 3

static world *the_world;
static atomic_int runs[SIZE], slots, holding, good_from;
static weft_call *held[64];

/* Ends, by the callee's own machinery, with the code in argument 0 until it has been run `good_from` times here. */
static weft_status run_flaky(weft_call *call, void *user)
{
    int rank = weft_agent_rank(weft_call_agent(call));
    if (atomic_fetch_add(&runs[rank], 1) + 1 < atomic_load(&good_from))
        inside_fail_call(call, (weft_status)weft_call_i64(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 1))));
    return WEFT_OK;
}

/* The same by the handler itself: a WEFT_ERR_REMOTE. */
static weft_status run_ask(weft_call *call, void *user)
{
    int rank = weft_agent_rank(weft_call_agent(call));
    if (atomic_fetch_add(&runs[rank], 1) + 1 < atomic_load(&good_from))
        return (weft_status)weft_call_i64(call, 0);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 1))));
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    atomic_fetch_add(&runs[weft_agent_rank(weft_call_agent(call))], 1);
    held[atomic_fetch_add(&slots, 1)] = weft_call_defer(call);
    atomic_fetch_add(&holding, 1); /* it can be seen */
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "flaky", .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_flaky},
    {.name = "ask", .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_ask},
    {.name = "hold", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_hold},
};

static void reset(int good)
{
    for (int i = 0; i < SIZE; i++)
        atomic_store(&runs[i], 0);
    atomic_store(&good_from, good);
}

static uint64_t retried(weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    return stats.calls_retried;
}

static const weft_retry five = {.attempts = 5, .pause_ms = 4, .pause_most_ms = 10};

/* ---- What passes ------------------------------------------------------------------------------------------------- */

static void until_it_works(weft_agent *agent, int to, const char *function, weft_status code)
{
    weft_tensor *x = tensor_arange(70000, WEFT_DTYPE_INT32), *land = tensor_zeros(WEFT_SHAPE(70000), WEFT_DTYPE_INT32);
    weft_rpc_options options = {.retry = five, .land = {&land, 1}};
    weft_values *out;
    uint64_t before = retried(agent);
    reset(4);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), function, WEFT_VALUES(weft_of_i64(code), weft_of_tensor(x)),
                          &options, &out));
    MUST(atomic_load(&runs[to]) == 4 && retried(agent) == before + 3);
    MUST(memcmp(weft_tensor_data(land), weft_tensor_data(x), 280000) == 0);
    weft_values_unref(out);
    weft_tensor_unref(x);
    weft_tensor_unref(land);
}

static void what_passes(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    until_it_works(agent, 1, "flaky", WEFT_ERR_BUSY);
    until_it_works(agent, 0, "flaky", WEFT_ERR_BUSY);
    until_it_works(agent, 1, "flaky", WEFT_ERR_UNKNOWN);
    until_it_works(agent, 2, "flaky", WEFT_ERR_UNREACHABLE);
    until_it_works(agent, 2, "flaky", WEFT_ERR_AGAIN);
    for (int to = 0; to < 2; to++) { /* the handlers asked for it */
        until_it_works(agent, to, "ask", WEFT_ERR_BUSY);
        until_it_works(agent, to, "ask", WEFT_ERR_AGAIN);
    }
}

static weft_status one(weft_agent *agent, const char *function, weft_status code, int64_t timeout_ms, weft_retry retry)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT32);
    weft_rpc_options options = {.retry = retry, .timeout_ms = timeout_ms};
    weft_args args = code ? WEFT_VALUES(weft_of_i64(code), weft_of_tensor(x)) : WEFT_NO_VALUES;
    weft_status status = weft_rpc_sync(agent, weft_to_rank(1), function, args, &options, NULL);
    weft_tensor_unref(x);
    return status;
}

/* What a handler asked for is told when the attempts are used up; a result that has its name is made once. */
static void asked_for_too_often(weft_agent *agent)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT32);
    weft_args args = WEFT_VALUES(weft_of_i64(WEFT_ERR_BUSY), weft_of_tensor(x));
    weft_error *error = NULL;
    weft_rpc_options options = {.retry = five, .error = &error};
    weft_values *out;
    weft_rref *rref;
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "ask", args, &options, NULL), WEFT_ERR_REMOTE);
    MUST(weft_error_handler_code(error) == WEFT_ERR_BUSY && atomic_load(&runs[1]) == 5);
    weft_error_unref(error);
    reset(100);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "ask", args, &options, &rref));
    MUST_BE(weft_rref_to_here(rref, 20000, &out, NULL), WEFT_ERR_REMOTE);
    MUST(atomic_load(&runs[1]) == 1);
    weft_rref_unref(rref);
    weft_tensor_unref(x);
}

static void what_does_not_pass(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    reset(100);
    MUST_BE(one(agent, "flaky", WEFT_ERR_BUSY, 0, five), WEFT_ERR_BUSY); /* used up */
    MUST(atomic_load(&runs[1]) == 5);
    reset(100);
    MUST_BE(one(agent, "ask", WEFT_ERR_SHAPE, 0, five), WEFT_ERR_REMOTE);
    MUST(atomic_load(&runs[1]) == 1);
    MUST_BE(one(agent, "flaky", WEFT_ERR_SHAPE, 0, five), WEFT_ERR_SHAPE);
    MUST(atomic_load(&runs[1]) == 2);
    reset(100);
    asked_for_too_often(agent);
    MUST_BE(one(agent, "no such function", 0, 0, five), WEFT_ERR_NOT_FOUND);
    MUST_BE(one(agent, "flaky", WEFT_ERR_BUSY, 0, (weft_retry){.attempts = -1}), WEFT_ERR_INVALID);
    weft_rpc_options options = {.retry = five};
    weft_future *future = NULL;
    MUST_BE(weft_rpc_async(agent, weft_to_name("nobody"), "flaky", WEFT_NO_VALUES, &options, &future),
            WEFT_ERR_NOT_FOUND);
    MUST(!future);
    /* An attempt that takes too long passes, where one asked for it. */
    reset(0);
    MUST_BE(one(agent, "hold", 0, 0, (weft_retry){.attempts = 3, .pause_ms = 1, .attempt_ms = 15}), WEFT_ERR_TIMEOUT);
    MUST(atomic_load(&runs[1]) == 3);
    for (int i = 0; i < atomic_load(&holding); i++)
        weft_call_finish(held[i], WEFT_OK);
    atomic_store(&holding, 0);
    atomic_store(&slots, 0);
}

/* Pauses of 100, 150 and 225 ms, each a quarter more or less; the time limit of the call; the longest pause. */
static void pauses(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_retry retry = {.attempts = 4, .pause_ms = 100};
    uint64_t begun = weft_agent_now_ns(agent);
    reset(100);
    MUST_BE(one(agent, "flaky", WEFT_ERR_BUSY, 0, retry), WEFT_ERR_BUSY);
    double ms = (double)(weft_agent_now_ns(agent) - begun) * 1e-6;
    MUST(ms >= 475 * 0.75 && (the_world->fabric == WORLD_TCP || ms <= 475 * 1.25 + 10));
    reset(100);
    begun = weft_agent_now_ns(agent);
    weft_status status = one(agent, "flaky", WEFT_ERR_BUSY, 200, (weft_retry){.attempts = 100, .pause_ms = 20});
    MUST(status == WEFT_ERR_BUSY || status == WEFT_ERR_TIMEOUT); /* in a pause, or in an attempt */
    ms = (double)(weft_agent_now_ns(agent) - begun) * 1e-6;
    MUST(atomic_load(&runs[1]) > (the_world->fabric == WORLD_SIM ? 2 : 0) && atomic_load(&runs[1]) < 12 &&
         (the_world->fabric == WORLD_TCP || ms <= 200));
    /* No pause is longer than pause_most_ms, not even the first: three of them. */
    reset(100);
    begun = weft_agent_now_ns(agent);
    MUST_BE(one(agent, "flaky", WEFT_ERR_BUSY, 0, (weft_retry){.attempts = 4, .pause_ms = 9000, .pause_most_ms = 100}),
            WEFT_ERR_BUSY);
    ms = (double)(weft_agent_now_ns(agent) - begun) * 1e-6;
    MUST(ms >= 3 * 60 && (the_world->fabric == WORLD_TCP || ms <= 3 * 100 + 10));
}

/* ---- Ending it ------------------------------------------------------------------------------------------------ */

static void cancelled(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    for (int to = 0; to < 2; to++) {
        weft_rpc_options options = {.retry = {.attempts = 3, .pause_ms = 60000}, .timeout_ms = WEFT_FOREVER};
        weft_tensor *x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT32);
        weft_future *attempt, *pause;
        reset(100);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES, &options, &attempt));
        MUST_OK(weft_rpc_async(agent, weft_to_rank(to), "flaky",
                               WEFT_VALUES(weft_of_i64(WEFT_ERR_BUSY), weft_of_tensor(x)), &options, &pause));
        while (atomic_load(&runs[to]) < 2 || atomic_load(&holding) < 1)
            MUST_BE(weft_future_wait(attempt, 1), WEFT_ERR_TIMEOUT);
        MUST_BE(weft_future_wait(pause, 20), WEFT_ERR_TIMEOUT);
        MUST_OK(weft_future_cancel(attempt));
        MUST_OK(weft_future_cancel(pause));
        MUST_BE(weft_future_wait(attempt, 10000), WEFT_ERR_CANCELLED);
        MUST_BE(weft_future_wait(pause, 10000), WEFT_ERR_CANCELLED);
        MUST(weft_error_ran(weft_future_error(attempt)) == WEFT_RAN_MAYBE);
        /* Its handler has run, and refused. */
        MUST(weft_error_ran(weft_future_error(pause)) == WEFT_RAN_MAYBE);
        weft_call_finish(held[0], WEFT_OK);
        atomic_store(&holding, 0);
        atomic_store(&slots, 0);
        weft_future_unref(attempt);
        weft_future_unref(pause);
        weft_tensor_unref(x);
    }
}

/* Everybody stops with retries in pauses and attempts: their futures fail, and nothing stays behind. */
static weft_future *left[SIZE][2];
static void stopped_meanwhile(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    weft_rpc_options options = {.retry = {.attempts = 100, .pause_ms = 3}, .timeout_ms = WEFT_FOREVER};
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT32);
    for (int i = 0; i < 2; i++) {
        weft_future_unref(left[rank][i]); /* of the round before */
        weft_status status =
            weft_rpc_async(agent, weft_to_rank((rank + i) % SIZE), "flaky",
                           WEFT_VALUES(weft_of_i64(WEFT_ERR_BUSY), weft_of_tensor(x)), &options, &left[rank][i]);
        if (status) /* that one has stopped already */
            left[rank][i] = NULL;
    }
    world_sleep_ms(the_world, 20);
    weft_tensor_unref(x);
}

/* ---- Names ---------------------------------------------------------------------------------------------------- */

static const weft_retry patient = {.attempts = 1000, .pause_ms = 20, .pause_most_ms = 20};

static weft_status by_name(weft_agent *agent, const char *name, weft_retry retry, weft_future **out)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT32);
    weft_rpc_options options = {.retry = retry, .timeout_ms = WEFT_FOREVER};
    weft_status status = weft_rpc_async(agent, weft_to_name(name), "flaky",
                                        WEFT_VALUES(weft_of_i64(WEFT_ERR_SHAPE), weft_of_tensor(x)), &options, out);
    weft_tensor_unref(x);
    return status;
}

static void second_life(weft_sim *sim, int rank, void *arg)
{
    weft_agent *agent;
    world *w = arg;
    weft_agent_options options = {.functions = w->functions,
                                  .function_count = w->function_count,
                                  .has_rank = true,
                                  .rank = rank,
                                  .world_size = w->size,
                                  .fabric = "sim",
                                  .sim = sim};
    MUST_OK(weft_agent_open(&options, &agent, NULL));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

/* In a static job: the seat of one that died may be taken again, so its name is waited for; one that nobody had is a
 * mistake. */
static void names_of_the_gone(weft_agent *agent, void *arg)
{
    weft_future *future = NULL;
    if (weft_agent_rank(agent) != 0)
        return;
    reset(0);
    MUST_OK(weft_agent_watch(agent, 2));
    weft_sim_kill(the_world->sim, 2);
    while (weft_agent_find(agent, "worker2") >= 0)
        world_sleep_ms(the_world, 10);
    uint64_t begun = weft_agent_now_ns(agent), before = retried(agent);
    MUST_BE(by_name(agent, "worker3", patient, &future), WEFT_ERR_NOT_FOUND);
    MUST(!future && weft_agent_now_ns(agent) == begun && retried(agent) == before);
    MUST_OK(by_name(agent, "worker2", patient, &future));
    MUST_BE(weft_future_wait(future, 100), WEFT_ERR_TIMEOUT);
    MUST(!weft_future_done(future) && retried(agent) > before);
    MUST_OK(weft_sim_spawn(the_world->sim, 2, second_life, the_world));
    MUST_OK(weft_future_wait(future, 60000));
    MUST(atomic_load(&runs[2]) == 1);
    weft_future_unref(future);
}

/* In an elastic one anybody may come: every name is waited for. */
static void names_to_come(weft_agent *agent, void *arg)
{
    weft_future *future = NULL;
    if (weft_agent_rank(agent) != 0)
        return;
    uint64_t before = retried(agent);
    MUST_OK(by_name(agent, "nobody", five, &future));
    MUST_BE(weft_future_wait(future, 60000), WEFT_ERR_NOT_FOUND);
    MUST(retried(agent) == before + 4);
    weft_future_unref(future);
}

/* ---- Others --------------------------------------------------------------------------------------------------- */

static void multicast(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *base = tensor_full(WEFT_SHAPE(100, 300), WEFT_DTYPE_FLOAT32, 3), *x = tensor_transpose(base, 0, 1);
    weft_target to[SIZE] = {weft_to_rank(0), weft_to_rank(1), weft_to_rank(2)};
    weft_rpc_options options = {.retry = five};
    weft_stats before, after;
    weft_future *all;
    reset(3);
    weft_agent_stats(agent, &before);
    MUST_OK(weft_rpc_multicast(agent, to, SIZE, "flaky", WEFT_VALUES(weft_of_i64(WEFT_ERR_BUSY), weft_of_tensor(x)),
                               &options, &all));
    MUST_OK(weft_future_wait(all, WEFT_FOREVER));
    weft_agent_stats(agent, &after);
    for (int i = 0; i < SIZE; i++)
        MUST(!weft_future_error(((weft_future **)weft_future_payload(all))[i]) && atomic_load(&runs[i]) == 3);
    MUST(after.bytes_packed - before.bytes_packed == 100 * 300 * 4); /* for three targets and nine attempts */
    weft_future_unref(all);
    weft_tensor_unref(x);
    weft_tensor_unref(base);
}

/* One name for the result from the beginning: what was refused before it ran is tried again under it, what ran is
 * not. */
static void remote(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *x = tensor_full(WEFT_SHAPE(5), WEFT_DTYPE_INT32, 7);
    weft_rpc_options options = {.retry = five};
    for (int to = 0; to < 2; to++) {
        weft_args args = WEFT_VALUES(weft_of_i64(WEFT_ERR_BUSY), weft_of_tensor(x));
        weft_values *out = NULL;
        weft_rref *rref;
        reset(0);
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(to), "flaky", args, &options, &rref));
        MUST_OK(weft_rref_to_here(rref, 20000, &out, NULL));
        weft_values_unref(out);
        weft_rref_unref(rref);
        reset(3);
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(to), "flaky", args, &options, &rref));
        MUST_OK(weft_rref_to_here(rref, 20000, &out,
                                  NULL)); /* asked for before it was there: it waits for the last attempt */
        MUST(atomic_load(&runs[to]) == 3 && weft_values_count(out) == 1);
        weft_values_unref(out);
        weft_rref_unref(rref);
        reset(100);
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(to), "flaky", args, &options, &rref));
        MUST_BE(weft_rref_to_here(rref, 20000, &out, NULL), WEFT_ERR_BUSY); /* used up */
        MUST(atomic_load(&runs[to]) == 5);
        weft_rref_unref(rref);
        reset(3);
        args = WEFT_VALUES(weft_of_i64(WEFT_ERR_UNKNOWN), weft_of_tensor(x));
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(to), "flaky", args, &options, &rref));
        MUST(weft_rref_to_here(rref, 20000, &out, NULL) != WEFT_OK);
        MUST(atomic_load(&runs[to]) == 1);
        weft_rref_unref(rref);
    }
    weft_tensor_unref(x);
}

static void make_elastic(weft_agent_options *options, void *arg)
{
    options->elastic = true;
}

static void begin(world *w)
{
    reset(100);
    the_world = w;
}

#define SCENE .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin

static void test_stopped_meanwhile(void **s)
{
    world_play(&(world){SCENE, .program = stopped_meanwhile, .stop = true}, 20, 1);
    for (int rank = 0; rank < SIZE; rank++)
        for (int i = 0; i < 2; i++) { /* of the last round */
            assert_true(!left[rank][i] || weft_future_done(left[rank][i]));
            assert_true(!left[rank][i] || weft_future_error(left[rank][i]));
            weft_future_unref(left[rank][i]);
        }
}

WORLD_TEST(names_of_the_gone, 10, 0, SCENE)
WORLD_TEST(names_to_come, 10, 0, SCENE, .adjust = make_elastic)
WORLD_TEST(what_passes, 20, 1, SCENE)
WORLD_TEST(what_does_not_pass, 20, 1, SCENE)
WORLD_TEST(pauses, 20, 1, SCENE)
WORLD_TEST(cancelled, 20, 1, SCENE)
WORLD_TEST(multicast, 20, 1, SCENE)
WORLD_TEST(remote, 20, 1, SCENE)

UNIT_MAIN(test_what_passes, test_what_does_not_pass, test_pauses, test_cancelled, test_stopped_meanwhile,
          test_multicast, test_remote, test_names_of_the_gone, test_names_to_come)
