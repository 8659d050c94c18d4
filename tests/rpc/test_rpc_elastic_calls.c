/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_elastic_calls.c - calls in jobs whose workers come and go: to names that nobody has yet, and those that keep nobody. */
#include "rpc/stage.h"

/* ---- A call that nobody waits for --------------------------------------------------------------------------------- */

static void await_held(stage *s)
{
    while (atomic_load(&s->held_count) < 1)
        stage_sleep_ms(s, 1);
}

static bool is_over(stage *s, weft_future *future)
{
    for (int i = 0; i < 20000 && !weft_future_done(future); i++)
        stage_sleep_ms(s, 1);
    return weft_future_done(future);
}

/* Actor 1 serves a call that is deferred and never finished. Its caller gives up, and then it keeps actor 1 no longer. */
static void unwanted_keeps_nobody(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 0) {
        weft_future *future;
        stage_await_workers(s, agent, 2);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, NULL, &future));
        await_held(s);
        MUST_OK(weft_future_cancel(future));
        MUST(is_over(s, future));
        MUST_BE(weft_error_code(weft_future_error(future)), WEFT_ERR_CANCELLED);
        weft_future_unref(future);
        atomic_store(&s->flags[0], 1);
        for (int i = 0; i < 20000 && weft_agent_alive(agent, 1); i++)
            stage_sleep_ms(s, 1);
        MUST(!weft_agent_alive(agent, 1)); /* it left, though the call lies there still */
        stage_await_news(s, 0, WEFT_MEMBER_LEFT, 1, 1);
        stage_await_flag(s, 1, 1);
        weft_call_finish(s->held[0], WEFT_OK); /* of an agent that is gone */
    } else {
        stage_await_flag(s, 0, 1);
    }
    MUST_OK(weft_agent_close(agent));
    atomic_store(&s->flags[1], 1);
}

STAGE_TEST(unwanted_keeps_nobody, 2, 5, 2)

/* ---- A worker that leaves ------------------------------------------------------------------------------------------ */

/* Actor 1 leaves with a call that it serves, which keeps it there. New ones are served at first; then it refuses them, unrun. */
static void leaver_refuses(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 1) {
        stage_await_flag(s, 0, 1);
        MUST_OK(weft_agent_close(agent));
        return;
    }
    weft_error *error = NULL;
    weft_future *future;
    stage_await_workers(s, agent, 2);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, NULL, &future));
    await_held(s);
    atomic_store(&s->flags[0], 1);
    for (int i = 0; i < 20000 && stage_add_at(agent, weft_to_rank(1)) == WEFT_OK; i++)
        stage_sleep_ms(s, 1);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(4)),
                          &(weft_rpc_options){.error = &error}, NULL),
            WEFT_ERR_PEER_LEFT);
    MUST(strstr(weft_error_message(error), "is leaving the job"));
    weft_error_unref(error);
    MUST(weft_agent_alive(agent, 1) && !weft_future_done(future));
    weft_call_finish(s->held[0], WEFT_OK); /* and what it had taken it answers */
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
    stage_await_news(s, 0, WEFT_MEMBER_LEFT, 1, 1);
    MUST_OK(weft_agent_close(agent));
}

STAGE_TEST(leaver_refuses, 2, 5, 2)

/* ---- A name that somebody will have ------------------------------------------------------------------------------- */

static const weft_rpc_options patient = {.timeout_ms = 60000,
                                         .retry = {.attempts = 1000000, .pause_ms = 2, .pause_most_ms = 10}};

static void must_be_5(weft_future *future)
{
    int64_t sum;
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    MUST_OK(weft_values_get_i64(weft_future_values(future), 0, &sum));
    MUST(sum == 5);
    weft_future_unref(future);
}

static weft_future *call_guest(weft_agent *agent, const weft_rpc_options *options)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_name("guest"), "add", WEFT_VALUES(weft_of_i64(4)), options, &future));
    return future;
}

static uint64_t retried(weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    return stats.calls_retried;
}

/* Actor 0 calls a name before anybody has it, and again when who had it has left: with retries such calls wait for it. */
static void name_comes_later(stage *s, int actor)
{
    if (actor > 0) { /* 1 and 2 are "guest", one after the other */
        stage_await_flag(s, 0, actor);
        weft_agent *agent = stage_open(s, actor, WEFT_ANY_RANK, "guest");
        stage_await_flag(s, 1, actor);
        MUST_OK(weft_agent_close(agent));
        atomic_store(&s->flags[2], actor);
        return;
    }
    weft_agent *agent = stage_open(s, 0, 0, NULL);
    MUST_BE(stage_add_at(agent, weft_to_name("guest")), WEFT_ERR_NOT_FOUND); /* without retries: at once */
    for (int guest = 1; guest <= 2; guest++) {
        uint64_t before = retried(agent);
        weft_future *future = call_guest(agent, &patient);
        while (retried(agent) < before + 2)
            stage_sleep_ms(s, 1);
        MUST(!weft_future_done(future));
        atomic_store(&s->flags[0], guest);
        must_be_5(future);
        atomic_store(&s->flags[1], guest);
        stage_await_flag(s, 2, guest);
        while (weft_agent_find(agent, "guest") >= 0)
            stage_sleep_ms(s, 1);
    }
    weft_rpc_options thrice = patient;
    thrice.retry.attempts = 3;
    uint64_t before = retried(agent);
    weft_future *future = call_guest(agent, &thrice); /* nobody comes any more */
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_NOT_FOUND);
    MUST(retried(agent) == before + 2);
    weft_future_unref(future);
    MUST_OK(weft_agent_close(agent));
}

STAGE_TEST(name_comes_later, 3, 5, 2)

UNIT_MAIN(test_unwanted_keeps_nobody, test_leaver_refuses, test_name_comes_later)
