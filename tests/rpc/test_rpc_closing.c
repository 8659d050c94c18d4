/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_closing.c - the ends of agents: calls that are made while everybody closes, and one that stops alone. Idle ones that
 * wait for the others are of tests/conformance (item 24); that nothing remains of agents is of test_rpc_agents.c.
 */
#include "rpc/world.h"

static world *scene;
static atomic_int hops, done[8];
static weft_call *held;
static atomic_int held_count, left_told;

static weft_status run_add(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

/* Passes on to the next rank, without waiting for it, so many times. */
static weft_status run_hop(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    int64_t left = weft_call_i64(call, 0);
    weft_future *future = NULL;
    atomic_fetch_add(&hops, 1);
    if (left == 0)
        return WEFT_OK;
    int next = (weft_agent_rank(agent) + 1) % weft_agent_world_size(agent);
    weft_status st =
        weft_rpc_async(agent, weft_to_rank(next), "hop", WEFT_VALUES(weft_of_i64(left - 1)), NULL, &future);
    MUST_OK(st); /* the job does not end under a handler */
    weft_future_unref(future);
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    held = weft_call_defer(call);
    atomic_fetch_add(&held_count, 1);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "add", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
    {.name = "hop", .takes = {WEFT_TYPE_I64}, .run = run_hop},
    {.name = "hold", .run = run_hold},
};

static void begin(world *w)
{
    scene = w;
    atomic_store(&hops, 0);
    atomic_store(&left_told, 0);
    atomic_store(&held_count, 0);
    memset(done, 0, sizeof done);
}

#define SCENE WORLD_FUNCTIONS(functions), .begin = begin

static weft_status add_at(weft_agent *agent, int rank)
{
    return weft_rpc_sync(agent, weft_to_rank(rank), "add", WEFT_VALUES(weft_of_i64(1)), NULL, NULL);
}

/* ---- Calls while everybody closes ------------------------------------------------------------------------------------ */

/* From its continuation, a call starts another, after the main program has begun to close. */
static void call_on(weft_future *future, void *arg)
{
    weft_agent *agent = arg;
    weft_future *next = NULL;
    MUST(weft_future_error(future) == NULL);
    int to = (weft_agent_rank(agent) + 1) % weft_agent_world_size(agent);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(to), "hop", WEFT_VALUES(weft_of_i64(3)), NULL, &next));
    weft_future_unref(next);
}

static void leave_calls(weft_agent *agent, void *arg)
{
    int size = weft_agent_world_size(agent);
    weft_future *future;
    for (int rank = 0; rank < size; rank++) { /* to ourselves as well; nobody waits */
        MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), "hop", WEFT_VALUES(weft_of_i64(19)), NULL, &future));
        weft_future_unref(future);
    }
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "add", WEFT_VALUES(weft_of_i64(0)), NULL, &future));
    MUST_OK(weft_future_add_done_callback(future, call_on, agent, NULL));
    weft_future_unref(future);
}

static void each_ran_once(world *w)
{
    assert_int_equal(atomic_load(&hops), 4 * 4 * 20 + 4 * 4);
}

WORLD_TEST(leave_calls, 50, 10, SCENE, .size = 4, .end = each_ran_once)

/* ---- One stops alone -------------------------------------------------------------------------------------------------- */

static void count_left(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    if (event == WEFT_MEMBER_LEFT && rank == 1)
        atomic_fetch_add(&left_told, 1);
}

static void count_those_who_leave(weft_agent_options *options, void *arg)
{
    options->on_membership = count_left;
}

static void one_stops(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_future *future;
    if (me == 1) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(2), "add", WEFT_VALUES(weft_of_i64(1)), NULL, &future));
        while (atomic_load(&held_count) < 1 || !atomic_load(&done[0]))
            world_sleep_ms(scene, 1);
        weft_future_unref(future);
        return; /* to world.c, which stops it */
    }
    if (me == 0) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES,
                               &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &future));
        while (!atomic_load(&held_count))
            world_sleep_ms(scene, 1);
        atomic_store(&done[0], 1);
        MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_PEER_LEFT);
        weft_future_unref(future);
    }
    while (weft_agent_alive(agent, 1))
        world_sleep_ms(scene, 1);
    MUST_BE(add_at(agent, 1), WEFT_ERR_PEER_LEFT);
    MUST(weft_agent_find(agent, "worker1") == -1 && strcmp(weft_agent_name(agent, 1), "worker1") == 0);
    MUST_OK(add_at(agent, 2 - me)); /* the others go on */
    atomic_fetch_add(&done[1], 1);
    while (atomic_load(&done[1]) < 2)
        world_sleep_ms(scene, 1);
    while (atomic_load(&left_told) < 2)
        world_sleep_ms(scene, 1);
}

static void two_were_told(world *w)
{
    assert_int_equal(atomic_load(&left_told), 2);
    weft_call_finish(held, WEFT_OK); /* long after: it does no harm */
}

WORLD_TEST(one_stops, 7, 1, SCENE, .size = 3, .adjust = count_those_who_leave, .stop = true, .end = two_were_told)

UNIT_MAIN(test_leave_calls, test_one_stops)
