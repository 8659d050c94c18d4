/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_overload.c - all threads for handlers wait: the calls in the queue are refused (agent/overload.c), also if
 * the callers of those that wait have given up.
 */
#include "rpc/world.h"

#define WAITERS 300 /* more than one thread and the 256 that may replace waiting ones */

static weft_future *gate; /* of rank 1, which nobody completes */
static world *scene;

static weft_status run_wait(weft_call *call, void *user)
{
    (void)call, (void)user;
    MUST_BE(weft_future_wait(gate, 12000), WEFT_ERR_TIMEOUT);
    return WEFT_OK;
}

static const weft_function functions[] = {{.name = "wait", .run = run_wait},
                                          {.name = "nothing", .run = world_run_nothing}};

static void begin(world *w)
{
    scene = w;
}

static void refused_after_a_second(weft_agent *agent, int64_t limit_ms)
{
    weft_future *waiters[WAITERS];
    for (int i = 0; i < WAITERS; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "wait", WEFT_NO_VALUES,
                               &(weft_rpc_options){.timeout_ms = limit_ms}, &waiters[i]));
    world_sleep_ms(scene, 3500);
    uint64_t before = weft_agent_now_ns(agent);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES,
                          &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, NULL),
            WEFT_ERR_BUSY);
    MUST(weft_agent_now_ns(agent) - before < 3000000000u);
    for (int i = 0; i < WAITERS; i++) {
        (void)!weft_future_wait(waiters[i], WEFT_FOREVER);
        weft_future_unref(waiters[i]);
    }
    world_sleep_ms(scene, 12000); /* the handlers return */
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, NULL, NULL));
}

static void play(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        while (!gate)
            world_sleep_ms(scene, 1);
        refused_after_a_second(agent, *(const int64_t *)arg);
        return;
    }
    gate = weft_future_create(agent);
    MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
    weft_future_unref(gate);
    gate = NULL;
}

static void run(int64_t limit_ms)
{
    world_play(&(world){.program = play,
                        .arg = &limit_ms,
                        .size = 2,
                        .begin = begin,
                        .adjust = world_one_worker,
                        WORLD_FUNCTIONS(functions)},
               3, 0);
}

static void callers_wait(void **state)
{
    (void)state;
    run(WEFT_FOREVER);
}

static void callers_have_given_up(void **state)
{
    (void)state;
    run(2000);
}

UNIT_MAIN(callers_wait, callers_have_given_up)
