/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_no_threads.c - an agent without threads that has many calls to serve: heartbeats, time limits and urgent
 * calls have their turn between handlers.
 */
#include "rpc/world.h"

enum { SLOW = 75, SLOW_MS = 20, DEATH_MS = 1000, LIMIT_MS = 100 };

static struct shared {
    world *w;
    atomic_int served, served_before_urgent, over;
} shared;

static weft_status run_slow(weft_call *call, void *user)
{
    world_sleep_ms(shared.w, SLOW_MS);
    atomic_fetch_add(&shared.served, 1);
    return WEFT_OK;
}

static weft_status run_urgent(weft_call *call, void *user)
{
    atomic_store(&shared.served_before_urgent, atomic_load(&shared.served));
    return WEFT_OK;
}

static weft_status run_stuck(weft_call *call, void *user)
{
    while (!atomic_load(&shared.over))
        world_sleep_ms(shared.w, 1);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "slow", .run = run_slow},
    {.name = "urgent", .run = run_urgent, .flags = WEFT_FUNCTION_URGENT},
    {.name = "stuck", .run = run_stuck},
};

/* Rank 1. Its own call runs out of time while it serves the others, and not after all of them. */
static void serve(weft_agent *agent)
{
    while (!atomic_load(&shared.served))
        weft_agent_progress(agent, 10);
    const weft_rpc_options how = {.timeout_ms = LIMIT_MS};
    MUST(weft_rpc_sync(agent, weft_to_rank(2), "stuck", WEFT_NO_VALUES, &how, NULL) == WEFT_ERR_TIMEOUT);
    MUST(atomic_load(&shared.served) < SLOW / 2);
    while (!atomic_load(&shared.over))
        weft_agent_progress(agent, 10);
    MUST_OK(weft_agent_status(agent));
}

static void ask(weft_agent *agent)
{
    weft_future *futures[SLOW];
    for (int i = 0; i < SLOW; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "slow", WEFT_NO_VALUES, NULL, &futures[i]));
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "urgent", WEFT_NO_VALUES, NULL, NULL));
    for (int i = 0; i < SLOW; i++) {
        MUST_OK(weft_future_wait(futures[i], 20000));
        weft_future_unref(futures[i]);
    }
    atomic_store(&shared.over, 1);
}

static void serve_and_ask(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 1)
        serve(agent);
    else if (weft_agent_rank(agent) == 2)
        ask(agent);
}

static void without_threads(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = DEATH_MS;
    options->no_threads = options->rank == 1;
}

static void test_a_backlog(void **state)
{
    world w = {.fabric = WORLD_TCP,
               .size = 3,
               WORLD_FUNCTIONS(functions),
               .program = serve_and_ask,
               .adjust = without_threads};
    shared = (struct shared){.w = &w};
    world_run(&w);
    assert_int_equal(atomic_load(&shared.served), SLOW);
    assert_true(atomic_load(&shared.served_before_urgent) < SLOW / 2);
}

/* Whoever polls for several agents reaches each of them, however short its limit is. */
static weft_status run_kept(weft_call *call, void *user)
{
    *(weft_call **)user = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static weft_status run_nothing(weft_call *call, void *user)
{
    return WEFT_OK;
}

static void test_polling_two_agents(void **state)
{
    weft_call *kept = NULL;
    const weft_function both[] = {{.name = "kept", .run = run_kept, .user = &kept},
                                  {.name = "nothing", .run = run_nothing}};
    weft_agent *agents[2];
    for (int i = 0; i < 2; i++) {
        weft_agent_options options = {.functions = both,
                                      .function_count = 2,
                                      .has_rank = true,
                                      .world_size = 1,
                                      .fabric = "tcp",
                                      .no_threads = true};
        assert_int_equal(weft_agent_open(&options, &agents[i], NULL), WEFT_OK);
    }
    for (int64_t wait_ms = 0; wait_ms < 2; wait_ms++) {
        weft_future *futures[2];
        size_t index = 0;
        weft_status status = WEFT_ERR_TIMEOUT;
        MUST_OK(weft_rpc_async(agents[0], weft_to_rank(0), "kept", WEFT_NO_VALUES, NULL, &futures[0]));
        MUST_OK(weft_rpc_async(agents[1], weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, &futures[1]));
        for (int i = 0; i < 10000 && status == WEFT_ERR_TIMEOUT; i++)
            status = weft_future_wait_any(futures, 2, wait_ms, &index);
        assert_int_equal(status, WEFT_OK);
        assert_int_equal(index, 1);
        while (!kept)
            weft_agent_progress(agents[0], 1);
        weft_call_finish(kept, WEFT_OK);
        kept = NULL;
        assert_int_equal(weft_future_wait_all(futures, 2, WEFT_FOREVER), WEFT_OK);
        weft_future_unref(futures[0]);
        weft_future_unref(futures[1]);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(weft_agent_close(agents[i], WEFT_FOREVER), WEFT_OK);
}

UNIT_MAIN(test_a_backlog, test_polling_two_agents)
