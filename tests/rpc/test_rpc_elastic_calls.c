/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_elastic_calls.c - calls in jobs whose workers come and go: to names that nobody has yet, and those that
 * keep nobody. */
#include "rpc/stage.h"
#include "said.h"

/* ---- A call that nobody waits for ----------------------------------------------------------------------------- */

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

/* Actor 1 serves a call that is deferred and never finished. Its caller gives up, and then it keeps actor 1 no
 * longer. */
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
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    atomic_store(&s->flags[1], 1);
}

STAGE_TEST(unwanted_keeps_nobody, 2, 5, 2)

/* ---- A worker that leaves ------------------------------------------------------------------------------------- */

static uint64_t started(const weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    return stats.calls_started;
}

/* Rank 1 is leaving, as far as this worker knows: it is not listed, and calls fail here, without being sent. */
static void must_be_leaving(weft_agent *agent, size_t others)
{
    weft_error *error = NULL;
    weft_worker workers[STAGE_SEATS], leaver = weft_agent_worker(agent, 1);
    size_t count = weft_agent_workers(agent, workers, STAGE_SEATS);
    uint64_t before = started(agent);
    MUST(!weft_agent_alive(agent, 1) && weft_agent_find(agent, "leaver") == -1 && count == others);
    for (size_t i = 0; i < count; i++)
        MUST(workers[i].rank != 1);
    MUST(leaver.incarnation > 0 && strcmp(weft_agent_name(agent, 1), "leaver") == 0);
    for (int i = 0; i < 100; i++)
        MUST_BE(stage_add_at(agent, weft_to_rank(1)), WEFT_ERR_PEER_LEFT);
    MUST_BE(stage_add_at(agent, weft_to_worker(leaver)), WEFT_ERR_PEER_LEFT);
    MUST_BE(stage_add_at(agent, weft_to_name("leaver")), WEFT_ERR_PEER_LEFT);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(4)),
                          &(weft_rpc_options){.error = &error}, NULL),
            WEFT_ERR_PEER_LEFT);
    MUST(strstr(weft_error_message(error), "rank 1 (leaver) is leaving the job"));
    MUST(weft_error_ran(error) == WEFT_RAN_NO); /* it did not run */
    weft_error_unref(error);
    weft_rref *rref;
    MUST_BE(weft_rpc_remote(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(4)), NULL, &rref),
            WEFT_ERR_PEER_LEFT);
    MUST(started(agent) == before);
}

/* Actor 1 leaves with a call that it serves and one of its own, which keep it there. All know at once that it
 * leaves, and one that joins hears of it. Only its own call may call it back. */
static void leaver_is_known(stage *s, int actor)
{
    if (actor == 2)
        stage_await_flag(s, 0, 2);
    weft_agent *agent = stage_open(s, actor, actor, actor == 1 ? "leaver" : NULL);
    weft_future *future, *own;
    if (actor == 1) {
        stage_await_flag(s, 0, 1);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "hold", WEFT_NO_VALUES, NULL, &own));
        while (atomic_load(&s->held_count) < 2)
            stage_sleep_ms(s, 1);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        MUST_OK(weft_future_wait(own, 0));
        weft_future_unref(own);
        return;
    }
    if (actor == 2) { /* which came later */
        stage_await_news(s, 2, WEFT_MEMBER_LEAVING, 1, 1);
        must_be_leaving(agent, 2);
        atomic_store(&s->flags[1], 1);
        stage_await_news(s, 2, WEFT_MEMBER_LEFT, 1, 1);
        MUST(s->heard[2].items[0].event == WEFT_MEMBER_LEAVING);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    stage_await_workers(s, agent, 2);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, NULL, &future));
    await_held(s);
    atomic_store(&s->flags[0], 1);
    stage_await_news(s, 0, WEFT_MEMBER_LEAVING, 1, 1);
    weft_status status = weft_rpc_sync(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(4)),
                                       &(weft_rpc_options){.parent = s->held[1]}, NULL);
    MUST(status == WEFT_OK || (!s->sim && status == WEFT_ERR_PEER_LEFT)); /* half a second may pass there before this */
    must_be_leaving(agent, 1);
    MUST(!weft_future_done(future));
    atomic_store(&s->flags[0], 2);
    stage_await_flag(s, 1, 1);
    weft_call_finish(s->held[0], WEFT_OK); /* what it had taken it answers */
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
    stage_await_news(s, 0, WEFT_MEMBER_LEFT, 1, 0);
    weft_call_finish(s->held[1], WEFT_OK);
    stage_await_news(s, 0, WEFT_MEMBER_LEFT, 1, 1);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(leaver_is_known, 3, 10, 3)

/* What is on its way to a leaver is served for half a second, then refused there, unrun: a call back comes so late. */
static void leaver_refuses(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    weft_future *future;
    if (actor == 1) {
        stage_await_workers(s, agent, 2);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "hold", WEFT_NO_VALUES, NULL, &future));
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        weft_future_unref(future);
        return;
    }
    weft_error *error = NULL;
    await_held(s);
    weft_rpc_options back = {.parent = s->held[0], .error = &error};
    weft_status status = WEFT_OK;
    for (int i = 0; i < 20000 && !status; i++) {
        status = weft_rpc_sync(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(4)), &back, NULL);
        stage_sleep_ms(s, 1);
    }
    MUST_BE(status, WEFT_ERR_PEER_LEFT);
    MUST(strstr(weft_error_message(error), "is leaving the job") && weft_error_ran(error) == WEFT_RAN_NO);
    weft_error_unref(error);
    weft_call_finish(s->held[0], WEFT_OK);
    stage_await_news(s, 0, WEFT_MEMBER_LEFT, 1, 1);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(leaver_refuses, 2, 5, 2)

/* Actor 1 dies while it leaves; actor 2 takes its rank, and is no leaver. On the simulation. */
static void leaver_dies(stage *s, int actor)
{
    if (actor == 2)
        stage_await_flag(s, 0, 2);
    weft_agent *agent = stage_open(s, actor == 2 ? 2 : actor, actor == 2 ? 1 : actor, NULL);
    weft_future *future;
    if (actor == 1) {
        stage_await_flag(s, 0, 1);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER)); /* does not return */
        MUST(false);
    }
    if (actor == 2) {
        MUST_OK(stage_add_at(agent, weft_to_rank(0)));
        stage_await_flag(s, 0, 3);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    stage_await_workers(s, agent, 2);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, NULL, &future));
    await_held(s);
    atomic_store(&s->flags[0], 1);
    stage_await_news(s, 0, WEFT_MEMBER_LEAVING, 1, 1);
    weft_worker first = weft_agent_worker(agent, 1);
    weft_sim_kill(s->sim, 1);
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_PEER_DEAD);
    weft_future_unref(future);
    stage_await_news(s, 0, WEFT_MEMBER_DEAD, 1, 1);
    MUST_BE(stage_add_at(agent, weft_to_rank(1)), WEFT_ERR_PEER_DEAD);
    atomic_store(&s->flags[0], 2);
    stage_await_workers(s, agent, 2);
    MUST(weft_agent_alive(agent, 1) && weft_agent_worker(agent, 1).incarnation > first.incarnation);
    MUST_OK(stage_add_at(agent, weft_to_rank(1)));
    stage_await_news(s, 0, WEFT_MEMBER_LEAVING, 1, 1);
    atomic_store(&s->flags[0], 3);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(leaver_dies, 3, 10, 0)

/* While the leaver's connection to a worker is cut, the store still tells that worker; and the leaver is served. */
static void leaver_behind_a_cut(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    stage_await_workers(s, agent, 3);
    atomic_fetch_add(&s->flags[0], 1);
    stage_await_flag(s, 0, 3);
    if (actor == 1) {
        weft_sim_cut(s->sim, 1, 2);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    stage_await_news(s, actor, WEFT_MEMBER_LEFT, 1, 1);
    stage_await_news(s, actor, WEFT_MEMBER_LEAVING, 1, 1);
    MUST_BE(stage_add_at(agent, weft_to_rank(1)), WEFT_ERR_PEER_LEFT);
    if (actor == 0)
        weft_sim_heal(s->sim, 1, 2);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(leaver_behind_a_cut, 3, 10, 0)

/* ---- A name that somebody will have --------------------------------------------------------------------------- */

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

/* Actor 0 calls a name before anybody has it, and again when who had it has left: with retries such calls wait for
 * it. */
static void name_comes_later(stage *s, int actor)
{
    if (actor > 0) { /* 1 and 2 are "guest", one after the other */
        stage_await_flag(s, 0, actor);
        weft_agent *agent = stage_open(s, actor, WEFT_ANY_RANK, "guest");
        stage_await_flag(s, 1, actor);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
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
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(name_comes_later, 3, 5, 2)

/* Each kind of call fails at once, with this status and this text. */
static void must_fail(weft_agent *agent, weft_target to, weft_status wanted, const char *text)
{
    weft_error *error = NULL;
    weft_rref *rref;
    weft_rpc_options how = {.error = &error};
    MUST_BE(weft_rpc_sync(agent, to, "add", WEFT_VALUES(weft_of_i64(1)), &how, NULL), wanted);
    MUST(strstr(weft_error_message(error), text));
    weft_error_unref(error);
    error = NULL;
    MUST_BE(weft_rpc_remote(agent, to, "add", WEFT_VALUES(weft_of_i64(1)), &how, &rref), wanted);
    MUST(strstr(weft_error_message(error), text));
    weft_error_unref(error);
}

/* The log is read where nobody else writes to it. */
static void must_be_unheard(stage *s, weft_agent *agent, int rank)
{
    const int pair[] = {rank, 2};
    char text[600], wanted[100];
    weft_group *group;
    weft_error *error = NULL;
    snprintf(wanted, sizeof(wanted), "rank %d: worker2 has not heard of a worker with that rank", rank);
    MUST(!weft_agent_name(agent, rank) && weft_agent_worker(agent, rank).incarnation == 0);
    if (s->sim) {
        REFUSES(weft_agent_fabric(agent, rank, WEFT_LANE_BULK, text, sizeof(text)), WEFT_ERR_NOT_FOUND, wanted);
        REFUSES(weft_agent_watch(agent, rank), WEFT_ERR_NOT_FOUND, wanted);
    }
    MUST_OK(weft_agent_set_call_timeout(agent, 100));
    MUST_BE(weft_group_open(agent, "pair", pair, 2, 0, &group, &error), WEFT_ERR_NOT_FOUND);
    snprintf(wanted, sizeof(wanted), "is %d: worker2 has not heard of a worker with that rank", rank);
    MUST(strstr(weft_error_message(error), wanted));
    weft_error_unref(error);
}

/* A worker that joins later calls one that was gone before: it is dead. A rank of which nothing is known is named. */
static void newcomer(stage *s, int actor)
{
    static weft_worker gone;
    if (actor == 1)
        stage_await_flag(s, 0, 1);
    if (actor == 2)
        stage_await_flag(s, 1, 1);
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 0) {
        atomic_store(&s->flags[0], 1);
        stage_await_workers(s, agent, 2);
        gone = weft_agent_worker(agent, 1);
        atomic_store(&s->flags[2], 1);
        stage_await_news(s, 0, WEFT_MEMBER_LEFT, 1, 1); /* not alive means only that it is leaving */
        atomic_store(&s->flags[1], 1);
        stage_await_flag(s, 3, 1);
    } else if (actor == 1) {
        stage_await_flag(s, 2, 1);
    } else {
        must_fail(agent, weft_to_worker(gone), WEFT_ERR_PEER_DEAD, "of rank 1 was gone before this worker joined");
        must_fail(agent, weft_to_rank(1), WEFT_ERR_NOT_FOUND,
                  "rank 1: worker2 has not heard of a worker with that rank");
        must_fail(agent, weft_to_rank(3), WEFT_ERR_NOT_FOUND,
                  "rank 3: worker2 has not heard of a worker with that rank");
        must_be_unheard(s, agent, 1);
        must_be_unheard(s, agent, 3);
        atomic_store(&s->flags[3], 1);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(newcomer, 3, 5, 2)

static weft_status run_read(weft_call *call, void *user)
{
    weft_values *got;
    int64_t sum;
    MUST_OK(weft_rref_to_here(weft_call_rref(call, 0), 60000, &got, NULL));
    MUST_OK(weft_values_get_i64(got, 0, &sum));
    MUST(sum == 5);
    weft_values_unref(got);
    return WEFT_OK;
}

/* A call with retries waits for a worker that has not joined. Meanwhile actor 1 gives the reference to actor 0, which
 * waits for that worker at most death_timeout_ms: on the simulation it joins in time. */
static void owner_comes_later(stage *s, int actor)
{
    static const weft_function read = {.name = "read", .takes = {WEFT_TYPE_RREF}, .run = run_read};
    if (actor == 2)
        stage_await_flag(s, 0, 1);
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 0)
        MUST_OK(weft_agent_register(agent, &read));
    if (actor == 0)
        atomic_store(&s->flags[1], 1);
    if (actor == 1) {
        weft_worker owner = {2, weft_agent_worker(agent, 1).incarnation + 1};
        weft_rref *made;
        weft_future *created, *reads = NULL;
        stage_await_flag(s, 1, 1);
        stage_await_workers(s, agent, 2);
        MUST_OK(weft_rpc_remote(agent, weft_to_worker(owner), "add", WEFT_VALUES(weft_of_i64(4)), &patient, &made));
        if (s->sim)
            MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "read", WEFT_VALUES(weft_of_rref(made)), NULL, &reads));
        while (retried(agent) < 2)
            stage_sleep_ms(s, 1);
        atomic_store(&s->flags[0], 1);
        created = weft_rref_created(made);
        MUST_OK(weft_future_wait(created, WEFT_FOREVER));
        MUST(weft_agent_worker(agent, 2).incarnation == owner.incarnation);
        if (reads)
            MUST_OK(weft_future_wait(reads, WEFT_FOREVER));
        weft_future_unref(reads);
        weft_future_unref(created);
        weft_rref_unref(made);
        atomic_store(&s->flags[2], 1);
    }
    stage_await_flag(s, 2, 1);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(owner_comes_later, 3, 5, 2)

UNIT_MAIN(test_newcomer, test_owner_comes_later, test_unwanted_keeps_nobody, test_leaver_is_known, test_leaver_refuses,
          test_leaver_dies, test_leaver_behind_a_cut, test_name_comes_later)
