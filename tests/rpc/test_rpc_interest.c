/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_interest.c - who has done with each other depends on each other no more: after calls of every kind,
 * either side may stand still for as long as it likes, and nobody is declared dead.
 *
 * Rank 0 has the store, and stops the others.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <weft/batch.h>
#include <weft/rref.h>

enum { STORE, CALLER, CALLEE, SIZE };

#define BOUND_MS 500
#define LARGE 100000

typedef weft_status (*traffic_fn)(weft_agent *agent);

static struct scene {
    world w;
    traffic_fn traffic;
    weft_status ends; /* what becomes of the traffic */
    int deaths, traffic_is_over, over;
    weft_call *kept;
} scene;

static void pause_ms(uint64_t ms)
{
    weft_sim_sleep(scene.w.sim, ms * 1000000);
}

/* ---- Functions, the same on all ------------------------------------------------------------------------------- */

static weft_status run_defer(weft_call *call, void *user)
{
    MUST(!scene.kept);
    scene.kept = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static weft_status run_finish(weft_call *call, void *user)
{
    weft_call_finish(scene.kept, WEFT_OK);
    scene.kept = NULL;
    return WEFT_OK;
}

static weft_status run_refuse(weft_call *call, void *user)
{
    return WEFT_ERR_BUSY;
}

static weft_status run_stream(weft_call *call, void *user)
{
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < 4 && !status; i++)
        status = weft_call_send_item(call, WEFT_VALUES(weft_of_i64(i)));
    return status;
}

static weft_status run_rows(weft_batch *batch, void *user)
{
    weft_batch_give(batch, 0, weft_batch_tensor(batch, 0));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "defer", .run = run_defer},
    {.name = "finish", .run = run_finish},
    {.name = "refuse", .run = run_refuse},
    {.name = "stream", .run = run_stream},
    {.name = "rows",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run_batch = run_rows,
     .batch = {.size = 4, .wait_us = 1000}},
};

/* ---- Kinds of traffic ----------------------------------------------------------------------------------------- */

static weft_status call(weft_agent *agent, const char *function, weft_args args, const weft_rpc_options *options)
{
    return weft_rpc_sync(agent, weft_to_rank(CALLEE), function, args, options, NULL);
}

static weft_status echo_so(weft_agent *agent, const char *function, int64_t count, bool land)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32), *place = tensor_clone(x);
    weft_rpc_options options = {.land = {&place, land}};
    weft_status status = call(agent, function, WEFT_VALUES(weft_of_tensor(x)), &options);
    weft_tensor_unref(place);
    weft_tensor_unref(x);
    return status;
}

static weft_status small(weft_agent *agent)
{
    return echo_so(agent, "echo", 1, false);
}

static weft_status fetched(weft_agent *agent)
{
    return echo_so(agent, "echo", LARGE, false);
}

static weft_status landed(weft_agent *agent)
{
    return echo_so(agent, "echo", LARGE, true);
}

static weft_status batched(weft_agent *agent)
{
    return echo_so(agent, "rows", LARGE, false);
}

static weft_status refused(weft_agent *agent)
{
    return call(agent, "refuse", WEFT_NO_VALUES, NULL);
}

static weft_status unknown(weft_agent *agent)
{
    return call(agent, "nosuch", WEFT_NO_VALUES, NULL);
}

static weft_status retried(weft_agent *agent)
{
    return call(agent, "refuse", WEFT_NO_VALUES, &(weft_rpc_options){.retry = {.attempts = 3}});
}

static weft_status deferred(weft_agent *agent)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(CALLEE), "defer", WEFT_NO_VALUES, NULL, &future));
    pause_ms(BOUND_MS); /* so that the store has been told of it */
    MUST_OK(call(agent, "finish", WEFT_NO_VALUES, NULL));
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    weft_future_unref(future);
    return status;
}

/* The handler never learns, and finishes late. */
static weft_status late(weft_agent *agent)
{
    weft_status status = call(agent, "defer", WEFT_NO_VALUES, &(weft_rpc_options){.timeout_ms = BOUND_MS});
    MUST_OK(call(agent, "finish", WEFT_NO_VALUES, NULL));
    return status;
}

static weft_status cancelled(weft_agent *agent)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(CALLEE), "defer", WEFT_NO_VALUES, NULL, &future));
    pause_ms(BOUND_MS);
    MUST_OK(weft_future_cancel(future));
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    weft_future_unref(future);
    MUST_OK(call(agent, "finish", WEFT_NO_VALUES, NULL));
    return status;
}

static void take_part(const weft_values *part, void *arg) {}

static weft_status streamed(weft_agent *agent)
{
    return call(agent, "stream", WEFT_NO_VALUES, &(weft_rpc_options){.on_item = take_part});
}

static weft_status to_many(weft_agent *agent)
{
    weft_target to[] = {weft_to_rank(CALLEE), weft_to_rank(STORE), weft_to_rank(CALLER)};
    weft_future *future;
    MUST_OK(weft_rpc_multicast(agent, to, 3, "nosuch", WEFT_NO_VALUES, NULL, &future));
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    weft_future_unref(future);
    return status;
}

static weft_status referred(weft_agent *agent)
{
    weft_rref *rref;
    weft_values *values;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(LARGE), WEFT_DTYPE_FLOAT32);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(CALLEE), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &rref));
    weft_status status = weft_rref_to_here(rref, WEFT_FOREVER, &values, NULL);
    weft_values_unref(values);
    pause_ms(BOUND_MS);
    weft_rref_unref(rref);
    weft_tensor_unref(x);
    return status;
}

static weft_status watched(weft_agent *agent)
{
    MUST_OK(weft_agent_watch(agent, CALLEE));
    pause_ms(BOUND_MS);
    return weft_agent_unwatch(agent, CALLEE);
}

static const struct kind {
    const char *name;
    traffic_fn run;
    weft_status ends;
} kinds[] = {
    {"a small call", small, WEFT_OK},
    {"results that are fetched", fetched, WEFT_OK},
    {"results that land", landed, WEFT_OK},
    {"a batched call", batched, WEFT_OK},
    {"a refused call", refused, WEFT_ERR_REMOTE},
    {"an unknown function", unknown, WEFT_ERR_NOT_FOUND},
    {"a retried call", retried, WEFT_ERR_REMOTE},
    {"a deferred call", deferred, WEFT_OK},
    {"a late call", late, WEFT_ERR_TIMEOUT},
    {"a cancelled call", cancelled, WEFT_ERR_CANCELLED},
    {"results in parts", streamed, WEFT_OK},
    {"a call to many", to_many, WEFT_OK},
    {"a reference", referred, WEFT_OK},
    {"a watch", watched, WEFT_OK},
};

/* ---- The scene ------------------------------------------------------------------------------------------------ */

static void count_deaths(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    scene.deaths += event == WEFT_MEMBER_DEAD || event == WEFT_MEMBER_SELF_EVICTED || event == WEFT_MEMBER_STORE_LOST;
}

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = BOUND_MS;
    options->on_membership = count_deaths;
}

static void stop_and_go_on(int rank)
{
    weft_sim_pause(scene.w.sim, rank);
    pause_ms(6 * BOUND_MS);
    weft_sim_resume(scene.w.sim, rank);
}

static void program(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == CALLER) {
        MUST_BE(scene.traffic(agent), scene.ends);
        scene.traffic_is_over = 1;
    }
    if (weft_agent_rank(agent) == STORE) {
        while (!scene.traffic_is_over)
            pause_ms(1);
        pause_ms(BOUND_MS); /* the store hears of it within an eighth of that */
        stop_and_go_on(CALLEE);
        stop_and_go_on(CALLER);
        pause_ms(2 * BOUND_MS);
        scene.over = 1;
    }
    while (!scene.over)
        pause_ms(1);
}

static void whoever_has_done_with_the_other_may_stand_still(void **state)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        scene = (struct scene){.traffic = kinds[i].run, .ends = kinds[i].ends};
        scene.w = (world){.fabric = WORLD_SIM,
                          .size = SIZE,
                          .seed = i + 1,
                          WORLD_FUNCTIONS(functions),
                          .program = program,
                          .adjust = adjust,
                          .close_may_fail = true};
        world_run(&scene.w);
        if (scene.deaths)
            fail_msg("%s: somebody still depended on the other", kinds[i].name);
    }
}

UNIT_MAIN(whoever_has_done_with_the_other_may_stand_still)
