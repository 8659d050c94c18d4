/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_faults_no_memory_arrival.c - calls arrive while the callee has no memory at all, more of them than it can
 * even refuse: what it could not take in it takes when there is memory. Every call ends, and with what is true of
 * it.
 */
#include "rpc/inside.h"
#include "rpc/must.h"
#include "rpc/world.h"
#include "faults/no_memory.h"

#include <stdatomic.h>

#include "unit.h"

enum { CALLER, VICTIM, SIZE };
enum { CALLS = 1000 };

static struct scene {
    world w;
    atomic_int ran[CALLS + 1];
    atomic_int held, go;
    weft_agent *victim;
} scene;

/* Runs where messages are read: no other comes in meanwhile. */
static weft_status run_hold(weft_call *call, void *user)
{
    scene.victim = weft_call_agent(call);
    atomic_store(&scene.held, 1);
    while (!atomic_load(&scene.go))
        world_sleep_ms(&scene.w, 1);
    return WEFT_OK;
}

static weft_status run_note(weft_call *call, void *user)
{
    atomic_fetch_add(&scene.ran[weft_call_i64(call, 0)], 1);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "hold", .run = run_hold, .flags = WEFT_FUNCTION_INLINE},
    {.name = "note", .takes = {WEFT_TYPE_I64}, .run = run_note},
};

static weft_future *start(weft_agent *agent, const char *function, weft_args args)
{
    weft_future *future;
    const weft_rpc_options options = {.timeout_ms = 20000};
    MUST_OK(weft_rpc_async(agent, weft_to_rank(VICTIM), function, args, &options, &future));
    return future;
}

/* All wait, come many to a frame, and find no memory for so long. How many connections that had been up were lost
 * until now. */
static uint64_t call_during_an_outage(weft_agent *agent, int ms)
{
    static weft_future *futures[CALLS];
    weft_stats stats;
    atomic_store(&scene.held, 0);
    atomic_store(&scene.go, 0);
    weft_future *holding = start(agent, "hold", WEFT_NO_VALUES);
    while (!atomic_load(&scene.held))
        world_sleep_ms(&scene.w, 1);
    for (int i = 0; i < CALLS; i++) {
        atomic_store(&scene.ran[i], 0);
        futures[i] = start(agent, "note", WEFT_VALUES(weft_of_i64(i)));
    }
    no_memory_refuse(VICTIM, 1, true);
    size_t notifications = inside_promise_notifications(scene.victim);
    atomic_store(&scene.go, 1);
    world_sleep_ms(&scene.w, ms);
    inside_keep_notifications(scene.victim, notifications);
    (void)no_memory_end();
    for (int i = 0; i < CALLS; i++) {
        weft_status status = weft_future_wait(futures[i], WEFT_FOREVER);
        MUST(status == WEFT_OK || status == WEFT_ERR_MEMORY);
        MUST(atomic_load(&scene.ran[i]) == (status == WEFT_OK));
        weft_future_unref(futures[i]);
    }
    weft_status held = weft_future_wait(holding, WEFT_FOREVER); /* it ended without memory for its answer */
    MUST(held == WEFT_OK || held == WEFT_ERR_MEMORY);
    weft_future_unref(holding);
    weft_agent_stats(agent, &stats);
    return stats.connections_lost;
}

/* Until one was long enough: where not even a refusal can be kept, the connection is given up, so that what is on it
 * comes again. */
static void program(weft_agent *agent, void *arg)
{
    int ms = 4;
    if (weft_agent_rank(agent) != CALLER)
        return;
    for (int i = 0; i < 20; i++) /* both have frames to use again: with these the callee refuses what it can */
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(VICTIM), "note", WEFT_VALUES(weft_of_i64(CALLS)), NULL, NULL));
    while (!call_during_an_outage(agent, ms))
        MUST((ms *= 2) < 10000);
}

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 30000;
    no_memory_is_worker(options->rank);
}

static void no_call_is_lost_that_arrives_without_memory(void **state)
{
    scene.w =
        (world){.fabric = WORLD_TCP, .size = SIZE, WORLD_FUNCTIONS(functions), .program = program, .adjust = adjust};
    world_run(&scene.w);
}

UNIT_MAIN(no_call_is_lost_that_arrives_without_memory)
