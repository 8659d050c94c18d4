/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_retry_truth.c - what a call that was tried again says of all its attempts: that it did not run only where
 * none of them may have, whatever the last one ended with; and what that one ended with can still be read.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <weft/sim.h>

enum { SERVER = 0, CALLER = 1, LEAVER = 2, SIZE = 3, FLOATS = 100000 };

static world *the_world;
static _Atomic(weft_call *) kept, let_go; /* deferred, with and without its arguments */
static atomic_int runs, finished;

/* Keeps its arguments, which fill the server's memory budget. */
static weft_status run_keep(weft_call *call, void *user)
{
    atomic_fetch_add(&runs, 1);
    atomic_store(&kept, weft_call_defer_keeping(call));
    return WEFT_DEFERRED;
}

static weft_status run_let_go(weft_call *call, void *user)
{
    atomic_fetch_add(&runs, 1);
    atomic_store(&let_go, weft_call_defer(call));
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "keep", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_REST}, .run = run_keep},
    {.name = "let go", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_REST}, .run = run_let_go},
};

static void adjust(weft_agent_options *options, void *arg)
{
    options->memory_budget_bytes = options->rank == SERVER ? FLOATS * 4 * 3 / 2 : 0; /* room for one at a time */
}

static weft_call *take_when_there(_Atomic(weft_call *) *from)
{
    weft_call *call;
    while (!(call = atomic_exchange(from, NULL)))
        world_sleep_ms(the_world, 1);
    return call;
}

static const weft_retry three = {.attempts = 3, .pause_ms = 2}, patient = {.attempts = 1000, .pause_ms = 2};

static weft_future *begin(weft_agent *agent, int to, const char *function, weft_retry retry)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(FLOATS), WEFT_DTYPE_FLOAT32);
    weft_rpc_options how = {.timeout_ms = WEFT_FOREVER, .retry = retry};
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(to), function, WEFT_VALUES(weft_of_tensor(x)), &how, &future));
    weft_tensor_unref(x);
    return future;
}

static void must_end(weft_future *future, weft_status code, weft_ran ran, const char *word)
{
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), code);
    const weft_error *error = weft_future_error(future);
    MUST(weft_error_ran(error) == ran);
    MUST(strstr(weft_error_message(error), word));
    weft_future_unref(future);
}

/* The first attempt is late, and its handler keeps what fills the budget: the others are refused before they run. */
static void late_then_busy(weft_agent *agent)
{
    atomic_store(&runs, 0);
    must_end(begin(agent, SERVER, "keep", (weft_retry){.attempts = 3, .pause_ms = 2, .attempt_ms = 200}),
             WEFT_ERR_UNKNOWN, WEFT_RAN_MAYBE, "BUSY");
    MUST(atomic_load(&runs) == 1);
    weft_call_finish(take_when_there(&kept), WEFT_OK);
}

/* The same in a multicast, whose other target is never refused. */
static void late_then_busy_of_many(weft_agent *agent)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(FLOATS), WEFT_DTYPE_FLOAT32);
    weft_rpc_options how = {.timeout_ms = WEFT_FOREVER, .retry = {.attempts = 2, .pause_ms = 2, .attempt_ms = 200}};
    weft_target to[1] = {weft_to_rank(SERVER)};
    weft_future *all;
    MUST_OK(weft_rpc_multicast(agent, to, 1, "keep", WEFT_VALUES(weft_of_tensor(x)), &how, &all));
    MUST_OK(weft_future_wait(all, WEFT_FOREVER));
    weft_future *only = weft_future_ref(((weft_future **)weft_future_payload(all))[0]);
    must_end(only, WEFT_ERR_UNKNOWN, WEFT_RAN_MAYBE, "BUSY");
    weft_call_finish(take_when_there(&kept), WEFT_OK);
    weft_future_unref(all);
    weft_tensor_unref(x);
}

/* A handler asks for another attempt, which finds the budget full. */
static void asked_then_busy(weft_agent *agent)
{
    atomic_store(&runs, 0);
    weft_future *asks = begin(agent, SERVER, "let go", three);
    weft_call *first = take_when_there(&let_go);
    weft_future *fills = begin(agent, SERVER, "keep", patient); /* refused until the arguments of the other are gone */
    weft_call *filler = take_when_there(&kept);
    weft_call_finish(first, WEFT_ERR_BUSY);
    must_end(asks, WEFT_ERR_UNKNOWN, WEFT_RAN_MAYBE, "BUSY");
    MUST(atomic_load(&runs) == 2);
    weft_call_finish(filler, WEFT_OK);
    MUST_OK(weft_future_wait(fills, WEFT_FOREVER));
    weft_future_unref(fills);
}

/* None of the attempts ran: that is said, of a call and of a result that stays. */
static void busy_all_along(weft_agent *agent)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(FLOATS), WEFT_DTYPE_FLOAT32);
    weft_rpc_options how = {.retry = three};
    weft_values *out;
    weft_rref *rref;
    weft_future *fills = begin(agent, SERVER, "keep", patient); /* what was there before may still be going */
    weft_call *filler = take_when_there(&kept);
    atomic_store(&runs, 0);
    must_end(begin(agent, SERVER, "let go", three), WEFT_ERR_BUSY, WEFT_RAN_NO, "budget");
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(SERVER), "let go", WEFT_VALUES(weft_of_tensor(x)), &how, &rref));
    MUST_BE(weft_rref_to_here(rref, WEFT_FOREVER, &out, NULL), WEFT_ERR_BUSY);
    weft_rref_unref(rref);
    weft_tensor_unref(x);
    MUST(atomic_load(&runs) == 0);
    weft_call_finish(filler, WEFT_OK);
    MUST_OK(weft_future_wait(fills, WEFT_FOREVER));
    weft_future_unref(fills);
}

/* Late, and then the worker is gone before the next attempt: the code stays, as it leaves open what ran; that it may
 * have is told. */
static void late_then_dead(weft_agent *agent)
{
    atomic_store(&runs, 0);
    MUST_OK(weft_agent_watch(agent, LEAVER));
    weft_future *future =
        begin(agent, LEAVER, "keep",
              (weft_retry){.attempts = 2, .pause_ms = 10000, .pause_most_ms = 10000, .attempt_ms = 50});
    (void)take_when_there(&kept);
    world_sleep_ms(the_world, 200); /* it pauses now */
    weft_sim_kill(the_world->sim, LEAVER);
    must_end(future, WEFT_ERR_PEER_DEAD, WEFT_RAN_MAYBE, "");
}

/* Late, and cancelled while it pauses. */
static void late_then_cancelled(weft_agent *agent)
{
    weft_future *future =
        begin(agent, LEAVER, "keep",
              (weft_retry){.attempts = 2, .pause_ms = 10000, .pause_most_ms = 10000, .attempt_ms = 50});
    weft_call *call = take_when_there(&kept);
    world_sleep_ms(the_world, 200);
    MUST_OK(weft_future_cancel(future));
    must_end(future, WEFT_ERR_CANCELLED, WEFT_RAN_MAYBE, "cancelled");
    weft_call_finish(call, WEFT_OK);
}

static void what_all_attempts_did(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == CALLER) {
        late_then_busy(agent);
        late_then_busy_of_many(agent);
        asked_then_busy(agent);
        busy_all_along(agent);
        late_then_cancelled(agent);
        late_then_dead(agent);
    }
    atomic_fetch_add(&finished, 1);
    while (atomic_load(&finished) < SIZE - 1) /* one was killed */
        world_sleep_ms(the_world, 1);
}

static void begin_world(world *w)
{
    the_world = w;
    atomic_store(&finished, 0);
}

WORLD_TEST(what_all_attempts_did, 20, 0, .size = SIZE, WORLD_FUNCTIONS(functions), .adjust = adjust,
           .begin = begin_world)

UNIT_MAIN(test_what_all_attempts_did)
