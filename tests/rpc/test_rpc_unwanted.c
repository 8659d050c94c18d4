/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_unwanted.c - handlers learn that nobody waits for them: by cancel, time-out, the caller's death and
 * departure, and the agent's end; what has not begun does not begin. What was started within is of
 * test_rpc_within.c.
 */
#include "rpc/rref_counts.h"

enum { CALLEE = 1, CALLER = 2 };

static struct shared {
    world *w;
    atomic_int begun, ended, inner_begun, heard;
    atomic_int told, asked; /* what the cancellation's future said; what weft_call_cancelled said when it was told */
    atomic_bool open, over;
    _Atomic(weft_call *) held;
    _Atomic(weft_future *) future; /* of the held one's cancellation */
} shared;

static weft_status run_watch(weft_call *call, void *user)
{
    MUST(!weft_call_cancelled(call));
    weft_future *unwanted = weft_call_cancellation(call);
    MUST(unwanted);
    atomic_fetch_add(&shared.begun, 1);
    weft_status status = weft_future_wait(unwanted, 20000);
    MUST(weft_future_done(unwanted));
    atomic_store(&shared.asked, weft_call_cancelled(call));
    atomic_store(&shared.told, status);
    weft_future *again = weft_call_cancellation(call); /* the same, to whoever asks later */
    MUST(weft_error_code(weft_future_error(again)) == status);
    weft_future_unref(again);
    weft_future_unref(unwanted);
    atomic_fetch_add(&shared.ended, 1);
    return WEFT_OK;
}

/* Looks at nothing but the flag. */
static weft_status run_poll(weft_call *call, void *user)
{
    atomic_fetch_add(&shared.begun, 1);
    while (!weft_call_cancelled(call))
        world_sleep_ms(shared.w, 1);
    atomic_fetch_add(&shared.ended, 1);
    return WEFT_OK;
}

static weft_status run_block(weft_call *call, void *user)
{
    atomic_fetch_add(&shared.begun, 1);
    while (!atomic_load(&shared.open))
        world_sleep_ms(shared.w, 1);
    return WEFT_OK;
}

static weft_status run_count(weft_call *call, void *user)
{
    atomic_fetch_add(&shared.inner_begun, 1);
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    (void)weft_call_defer(call);
    atomic_store(&shared.future, weft_call_cancellation(call));
    atomic_store(&shared.held, call);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "watch", .run = run_watch}, {.name = "poll", .run = run_poll}, {.name = "block", .run = run_block},
    {.name = "count", .run = run_count}, {.name = "hold", .run = run_hold},
};

static void await_at_least(atomic_int *value, int wanted)
{
    for (int i = 0; i < 20000 && atomic_load(value) < wanted; i++)
        world_sleep_ms(shared.w, 1);
    MUST(atomic_load(value) >= wanted);
}

static weft_future *start(weft_agent *agent, int rank, const char *function, weft_args args, int64_t timeout_ms)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), function, args, &(weft_rpc_options){.timeout_ms = timeout_ms},
                           &future));
    return future;
}

static void expect(weft_future *future, weft_status wanted)
{
    weft_status status = weft_future_wait(future, 20000);
    MUST_BE(status, wanted);
    weft_future_unref(future);
}

static uint64_t cancelled_at(weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    return stats.calls_cancelled;
}

/* ---- Told ----------------------------------------------------------------------------------------------------- */

static void cancel_and_timeout(weft_agent *agent, void *arg)
{
    for (int k = 0; weft_agent_rank(agent) == 0 && k < 8; k++) {
        int rank = k % 2;
        bool cancel = k / 2 % 2, poll = k / 4;
        int begun = atomic_load(&shared.begun), ended = atomic_load(&shared.ended);
        weft_future *future = start(agent, rank, poll ? "poll" : "watch", WEFT_NO_VALUES, cancel ? WEFT_FOREVER : 300);
        await_at_least(&shared.begun, begun + 1);
        if (cancel)
            MUST_OK(weft_future_cancel(future));
        weft_status status = weft_future_wait(future, 20000);
        /* Who looks at the clock, or is told by the callee's, may answer before the caller's timer fires. */
        if (!cancel && (poll || rank != 0))
            MUST(status == WEFT_OK || status == WEFT_ERR_TIMEOUT);
        else
            MUST_BE(status, cancel ? WEFT_ERR_CANCELLED : WEFT_ERR_TIMEOUT);
        weft_future_unref(future);
        await_at_least(&shared.ended, ended + 1);
        if (!poll)
            MUST_BE((weft_status)atomic_load(&shared.told), cancel ? WEFT_ERR_CANCELLED : WEFT_ERR_TIMEOUT);
        MUST(poll || atomic_load(&shared.asked));
    }
    await_at_least(&shared.ended, 8);
    for (int i = 0; i < 1000 && cancelled_at(agent) < 3; i++)
        world_sleep_ms(shared.w, 1);
    uint64_t count = cancelled_at(agent); /* who looked at the clock may have answered before the news came */
    MUST(count == 3 || count == 4);
}

static void answered(weft_agent *agent, void *arg)
{
    for (int rank = 0; weft_agent_rank(agent) == 0 && rank < 2; rank++) {
        weft_future *future = start(agent, rank, "hold", WEFT_NO_VALUES, 10000);
        while (!atomic_load(&shared.held))
            world_sleep_ms(shared.w, 1);
        weft_future *unwanted = atomic_load(&shared.future);
        MUST(!weft_future_done(unwanted));
        weft_call_finish(atomic_exchange(&shared.held, NULL), WEFT_OK);
        MUST_OK(weft_future_wait(unwanted, 10000)); /* completes: nobody cancelled it */
        expect(future, WEFT_OK);
        weft_future_unref(unwanted);
    }
}

/* Rank 0 has the store; it kills the caller, or the caller leaves. */
static void caller_goes(weft_agent *agent, void *arg)
{
    bool dies = *(bool *)arg;
    if (weft_agent_rank(agent) == CALLER) {
        weft_future *future = start(agent, CALLEE, "watch", WEFT_NO_VALUES, WEFT_FOREVER);
        await_at_least(&shared.begun, 1);
        if (dies)
            weft_sim_kill(shared.w->sim, CALLER);
        weft_future_unref(future);
        return; /* and stops its agent */
    }
    await_at_least(&shared.ended, 1);
    MUST_BE((weft_status)atomic_load(&shared.told), dies ? WEFT_ERR_PEER_DEAD : WEFT_ERR_PEER_LEFT);
    if (weft_agent_rank(agent) == CALLEE) {
        MUST(dump_number(agent, "serving_count") == 0);
        MUST(cancelled_at(agent) == 1);
    }
}

static void agent_ends(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        weft_future *remote = start(agent, CALLEE, "hold", WEFT_NO_VALUES, WEFT_FOREVER);
        while (!atomic_load(&shared.held))
            world_sleep_ms(shared.w, 1);
        atomic_store(&shared.over, true);
        weft_status status = weft_future_wait(remote, 20000);
        MUST(status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_PEER_DEAD);
        weft_future_unref(remote);
    }
    while (!atomic_load(&shared.over))
        world_sleep_ms(shared.w, 1);
}

/* ---- Not begun ------------------------------------------------------------------------------------------------ */

/* The only worker is busy; calls that end meanwhile never run. */
static void not_begun(weft_agent *agent, void *arg)
{
    enum { CALLS = 6 };
    weft_future *futures[CALLS];
    if (weft_agent_rank(agent) == 0) {
        weft_future *blocker = start(agent, CALLEE, "block", WEFT_NO_VALUES, WEFT_FOREVER);
        await_at_least(&shared.begun, 1);
        for (int i = 0; i < CALLS; i++)
            futures[i] = start(agent, CALLEE, "count", WEFT_NO_VALUES, i % 3 == 1 ? 1500 : WEFT_FOREVER);
        /* They have arrived when what was sent behind them is answered: those that have not left would be taken
         * back. */
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(CALLEE), "no such", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_NOT_FOUND);
        for (int i = 0; i < CALLS; i++) {
            if (i % 3 == 0)
                MUST_OK(weft_future_cancel(futures[i]));
            if (i % 3 < 2)
                expect(futures[i], i % 3 ? WEFT_ERR_TIMEOUT : WEFT_ERR_CANCELLED);
        }
        await_at_least(&shared.heard, 2 * CALLS / 3);
        atomic_store(&shared.open, true);
        expect(blocker, WEFT_OK);
        for (int i = 2; i < CALLS; i += 3)
            expect(futures[i], WEFT_OK);
        MUST(atomic_load(&shared.inner_begun) == CALLS / 3); /* those that somebody waited for */
        atomic_store(&shared.over, true);
    }
    while (!atomic_load(&shared.over)) {
        if (weft_agent_rank(agent) == CALLEE)
            atomic_store(&shared.heard, (int)cancelled_at(agent));
        world_sleep_ms(shared.w, 1);
    }
    if (weft_agent_rank(agent) == CALLEE)
        MUST(cancelled_at(agent) == 2 * CALLS / 3);
}

/* ---- Together ------------------------------------------------------------------------------------------------- */

static void begin(world *w)
{
    shared = (struct shared){.w = w};
}

static void nobody_finished_it(world *w)
{
    weft_future *unwanted = atomic_load(&shared.future);
    MUST(weft_future_done(unwanted) && weft_future_error(unwanted));
    weft_future_unref(unwanted);
    weft_call *held = atomic_exchange(&shared.held, NULL);
    MUST(weft_call_cancelled(held));
    unwanted = weft_call_cancellation(held); /* the agent is gone: a new one would not be told any more */
    MUST(weft_future_done(unwanted) && weft_future_error(unwanted));
    weft_future_unref(unwanted);
    weft_call_finish(held, WEFT_OK);
}

#define SCENE WORLD_FUNCTIONS(functions), .begin = begin
WORLD_TEST(cancel_and_timeout, 20, 1, SCENE, .size = 2)
WORLD_TEST(answered, 20, 1, SCENE, .size = 2)
WORLD_TEST(not_begun, 20, 1, SCENE, .size = 2, .adjust = world_one_worker)
WORLD_TEST(agent_ends, 20, 1, SCENE, .size = 2, .stop = true, .end = nobody_finished_it)

static void test_caller_goes(void **state)
{
    for (int dies = 0; dies < 2; dies++)
        world_play(&(world){SCENE, .size = 3, .program = caller_goes, .arg = &(bool){dies}, .stop = true}, 20, !dies);
}

UNIT_MAIN(test_cancel_and_timeout, test_answered, test_caller_goes, test_not_begun, test_agent_ends)
