/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_elastic.c - jobs whose workers come and go: joining late, leaving early, seats and names taken again,
 * everybody told; on the simulation and on tcp, where each actor is a thread.
 */
#include "rpc/inside.h"
#include "rpc/stage.h"

/* ---- Joining and leaving -------------------------------------------------------------------------------------- */

static void check_tables(weft_agent *agent, int count)
{
    weft_worker workers[STAGE_SEATS];
    size_t living = weft_agent_workers(agent, workers, STAGE_SEATS);
    MUST(living == (size_t)count && weft_agent_workers(agent, NULL, 0) == living);
    for (size_t i = 0; i < living; i++) {
        MUST(weft_agent_alive(agent, workers[i].rank) && workers[i].incarnation > 0);
        MUST(weft_agent_find(agent, weft_agent_name(agent, workers[i].rank)) == workers[i].rank);
        MUST(weft_agent_worker(agent, workers[i].rank).incarnation == workers[i].incarnation);
        MUST(i == 0 || workers[i].rank > workers[i - 1].rank);
    }
}

/* Actor 0 is alone at first; 1 and 2 join, whichever ranks are free; 1 leaves, and 3 takes its seat and name. */
static void come_and_go(stage *s, int actor)
{
    if (actor == 0) {
        weft_agent *agent = stage_open(s, 0, 0, NULL);
        MUST(weft_agent_rank(agent) == 0 && weft_agent_world_size(agent) == STAGE_SEATS);
        check_tables(agent, 1);
        MUST(!weft_agent_alive(agent, 1) && !weft_agent_name(agent, 1) && weft_agent_worker(agent, 1).incarnation == 0);
        MUST_OK(stage_add_at(agent, weft_to_rank(0)));
        MUST_BE(stage_add_at(agent, weft_to_name("guest")), WEFT_ERR_NOT_FOUND);
        MUST_BE(weft_agent_watch(agent, 1), WEFT_ERR_NOT_FOUND);
        atomic_store(&s->flags[0], 1); /* 1 may come */
        stage_await_news(s, 0, WEFT_MEMBER_JOINED, 1, 1);
        const char *name = weft_agent_name(agent, 1);
        weft_worker first = weft_agent_worker(agent, 1);
        MUST(strcmp(name, "guest") == 0 && weft_agent_find(agent, "guest") == 1);
        MUST_OK(stage_add_at(agent, weft_to_name("guest")));
        atomic_store(&s->flags[0], 2); /* 2 may come */
        stage_await_news(s, 0, WEFT_MEMBER_JOINED, 2, 1);
        check_tables(agent, 3);
        MUST_OK(stage_add_at(agent, weft_to_rank(2)));
        MUST_OK(weft_agent_watch(agent, 1));
        atomic_store(&s->flags[0], 3); /* 1 may leave */
        stage_await_news(s, 0, WEFT_MEMBER_LEFT, 1, 1);
        check_tables(agent, 2);
        MUST(weft_agent_find(agent, "guest") == -1);
        MUST_BE(stage_add_at(agent, weft_to_rank(1)), WEFT_ERR_PEER_LEFT);
        MUST_BE(weft_agent_watch(agent, 1), WEFT_ERR_PEER_LEFT);
        atomic_store(&s->flags[0], 4); /* 3 may come */
        stage_await_news(s, 0, WEFT_MEMBER_JOINED, 1, 2);
        weft_worker second = weft_agent_worker(agent, 1);
        MUST(second.incarnation > first.incarnation && strcmp(weft_agent_name(agent, 1), "guest") == 0);
        MUST(strcmp(name, "guest") == 0); /* the old pointer is as good as ever */
        MUST_OK(stage_add_at(agent, weft_to_worker(second)));
        MUST_BE(stage_add_at(agent, weft_to_worker(first)), WEFT_ERR_PEER_LEFT);
        MUST_BE(weft_agent_unwatch(agent, 1), WEFT_ERR_STATE); /* that watch was for another */
        MUST_OK(weft_agent_watch(agent, 1));
        MUST_OK(weft_agent_unwatch(agent, 1));
        check_tables(agent, 3);
        atomic_store(&s->flags[0], 5);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER)); /* waits for all: it keeps the store */
        MUST(atomic_load(&s->flags[1]) == 2);
        static const weft_member_event order[] = {WEFT_MEMBER_JOINED, WEFT_MEMBER_JOINED, WEFT_MEMBER_LEAVING,
                                                  WEFT_MEMBER_LEFT, WEFT_MEMBER_JOINED};
        for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++)
            MUST(s->heard[0].items[i].event == order[i]);
        return;
    }
    stage_await_flag(s, 0, actor == 3 ? 4 : actor);
    weft_agent *agent = stage_open(s, actor,
                                   actor == 2   ? WEFT_ANY_RANK
                                   : actor == 1 ? WEFT_ANY_RANK
                                                : 1,
                                   actor == 2 ? NULL : "guest");
    MUST(weft_agent_rank(agent) == (actor == 2 ? 2 : 1));
    MUST(strcmp(weft_agent_name(agent, weft_agent_rank(agent)), actor == 2 ? "worker2" : "guest") == 0);
    MUST_OK(stage_add_at(agent, weft_to_rank(0)));
    stage_await_flag(s, 0, actor == 1 ? 3 : 5);
    if (actor != 1) {
        weft_status status;
        while ((status = stage_add_at(agent, weft_to_rank(actor == 2 ? 1 : 2))) == WEFT_ERR_PEER_LEFT)
            stage_sleep_ms(s, 1); /* the news of the next one in that seat is on its way */
        MUST_OK(status);
        atomic_fetch_add(&s->flags[2], 1);
        stage_await_flag(s, 2, 2);
        atomic_fetch_add(&s->flags[1], 1);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER)); /* does not wait for the others */
}

STAGE_TEST(come_and_go, 4, 10, 3)

/* ---- Leaving while busy --------------------------------------------------------------------------------------- */

/*
 * Actor 1 leaves with a call of its own outstanding, with one that it serves, and under calls that do not cease: the
 * first two are finished, the others end when it says that it leaves.
 */
static void leave_busy(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    weft_future *future;
    if (actor == 1) {
        stage_await_flag(s, 0, 1);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "hold", WEFT_NO_VALUES, NULL, &future));
        atomic_store(&s->flags[1], 1);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        MUST_OK(weft_future_wait(future, 0)); /* complete, and well */
        weft_future_unref(future);
        atomic_store(&s->flags[3], 1);
        return;
    }
    if (actor == 0)
        stage_await_workers(s, agent, 3);
    else
        while (!weft_agent_alive(agent, 1))
            stage_sleep_ms(s, 1);
    if (actor == 2) { /* keeps it busy */
        weft_status status = WEFT_OK;
        atomic_store(&s->flags[2], 1); /* has seen it: it may leave */
        while (!status) {
            status = stage_add_at(agent, weft_to_rank(1));
            if (s->sim)
                weft_sim_sleep(s->sim, 100000);
        }
        MUST_BE(status, WEFT_ERR_PEER_LEFT);
    } else {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, NULL, &future));
        while (atomic_load(&s->held_count) < 1)
            stage_sleep_ms(s, 1);
        stage_await_flag(s, 2, 1);
        atomic_store(&s->flags[0], 1);
        stage_await_flag(s, 1, 1);
        while (atomic_load(&s->held_count) < 2)
            stage_sleep_ms(s, 1);
        stage_sleep_ms(s, 100);
        MUST(!atomic_load(&s->flags[3]) && !weft_agent_alive(agent, 1));
        stage_await_news(s, 0, WEFT_MEMBER_LEAVING, 1, 1);
        stage_await_news(s, 0, WEFT_MEMBER_LEFT, 1, 0);
        weft_call_finish(s->held[0], WEFT_OK);
        MUST_OK(weft_future_wait(future, 5000));
        weft_future_unref(future);
        weft_call_finish(s->held[1], WEFT_OK);
        stage_await_news(s, 0, WEFT_MEMBER_LEFT, 1, 1);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(leave_busy, 3, 3, 2)

/* The member that gathers leaves without having come, its group still open. */
static void leave_group(stage *s, int actor)
{
    static const int ranks[] = {1, 0, 2};
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    weft_group *group;
    stage_await_workers(s, agent, 3);
    MUST_OK(weft_group_open(agent, "all", ranks, 3, 0, &group, NULL));
    MUST_OK(weft_group_barrier(group, 10000));
    if (actor == 1) {
        stage_sleep_ms(s, 50);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        weft_group_close(group);
        return;
    }
    MUST_BE(weft_group_barrier(group, WEFT_FOREVER), WEFT_ERR_PEER_LEFT);
    while (weft_agent_alive(agent, 1))
        stage_sleep_ms(s, 1);
    MUST_BE(weft_group_barrier(group, WEFT_FOREVER), WEFT_ERR_PEER_LEFT);
    weft_group_close(group);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL)); /* those alive */
    MUST(weft_group_size(group) == 2);
    MUST_OK(weft_group_barrier(group, 10000));
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(leave_group, 3, 5, 2)

/* ---- Rank 0 --------------------------------------------------------------------------------------------------- */

/* Rank 0 stops: for all others the job is over, and says so. */
static void rank_0_stops(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 0) {
        stage_await_workers(s, agent, 3);
        weft_agent_stop(agent);
        for (int i = 0; i < atomic_load(&s->held_count); i++)
            weft_call_finish(s->held[i], WEFT_OK);
        return;
    }
    weft_future *future;
    weft_status status = weft_rpc_async(agent, weft_to_rank(0), "hold", WEFT_NO_VALUES,
                                        &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &future);
    if (!status) {
        status = weft_future_wait(future, WEFT_FOREVER);
        weft_future_unref(future);
    }
    MUST(status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_STORE_LOST);
    stage_await_news(s, actor, WEFT_MEMBER_STORE_LOST, 0, 1);
    MUST_BE(weft_agent_status(agent), WEFT_ERR_STORE_LOST);
    MUST(!weft_agent_alive(agent, actor) && !weft_agent_alive(agent, 0));
    MUST_BE(stage_add_at(agent, weft_to_rank(0)), WEFT_ERR_STORE_LOST);
    MUST_BE(weft_agent_close(agent, WEFT_FOREVER), WEFT_ERR_STORE_LOST);
}

STAGE_TEST(rank_0_stops, 3, 5, 1)

/* ---- Mistakes ------------------------------------------------------------------------------------------------- */

static void must_not_open(stage *s, int actor, int rank, const char *name, bool elastic, weft_status wanted,
                          const char *text)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_agent_options options = stage_options(s, actor, rank, name);
    options.elastic = elastic;
    MUST_BE(weft_agent_open(&options, &agent, &error), wanted);
    if (!strstr(weft_error_message(error), text)) {
        fprintf(stderr, "\"%s\" does not speak of \"%s\"\n", weft_error_message(error), text);
        abort();
    }
    weft_error_unref(error);
}

static void refused(stage *s, int actor)
{
    if (actor == 2) {
        stage_await_flag(s, 0, 1);
        must_not_open(s, 2, 1, "another", true, WEFT_ERR_EXISTS, "rank 1 is taken");
        must_not_open(s, 2, 2, "worker1", true, WEFT_ERR_EXISTS, "worker1");
        must_not_open(s, 2, 2, NULL, false, WEFT_ERR_INVALID, "elastic");
        must_not_open(s, 2, WEFT_ANY_RANK, NULL, false, WEFT_ERR_INVALID, "WEFT_ANY_RANK");
        must_not_open(s, 2, -2, NULL, true, WEFT_ERR_INVALID, "rank -2");
        atomic_store(&s->flags[1], 1);
        return;
    }
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 1)
        atomic_store(&s->flags[0], 1);
    stage_await_flag(s, 1, 1);
    if (actor == 1)
        MUST_OK(stage_add_at(agent, weft_to_rank(0))); /* nobody minds */
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(refused, 3, 1, 1)

/* ---- Evicted, and back again ---------------------------------------------------------------------------------- */

/* Paused for longer than the bound: declared dead, told so, and in again as a new incarnation. On the simulation. */
static void back_again(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 0) {
        stage_await_workers(s, agent, 3);
        weft_worker first = weft_agent_worker(agent, 1);
        MUST_OK(weft_agent_watch(agent, 1));
        MUST_OK(stage_add_at(agent, weft_to_rank(1)));
        weft_sim_pause(s->sim, 1);
        stage_await_news(s, 0, WEFT_MEMBER_DEAD, 1, 1);
        MUST_BE(stage_add_at(agent, weft_to_rank(1)), WEFT_ERR_PEER_DEAD);
        stage_sleep_ms(s, 500);
        weft_sim_resume(s->sim, 1);
        stage_await_workers(s, agent, 3);
        weft_worker second = weft_agent_worker(agent, 1);
        MUST(second.incarnation > first.incarnation);
        MUST_OK(stage_add_at(agent, weft_to_rank(1)));
        MUST_OK(stage_add_at(agent, weft_to_worker(second)));
        MUST_BE(stage_add_at(agent, weft_to_worker(first)), WEFT_ERR_PEER_DEAD);
        atomic_store(&s->flags[0], 1);
    } else if (actor == 1) {
        stage_await_news(s, 1, WEFT_MEMBER_SELF_EVICTED, 1, 1);
        MUST_BE(weft_agent_status(agent), WEFT_ERR_EVICTED);
        MUST_BE(stage_add_at(agent, weft_to_rank(0)), WEFT_ERR_EVICTED);
        MUST_BE(weft_agent_close(agent, WEFT_FOREVER), WEFT_ERR_EVICTED);
        agent = stage_open(s, 1, 1, NULL);
        MUST_OK(stage_add_at(agent, weft_to_rank(0)));
        MUST_OK(stage_add_at(agent, weft_to_rank(2)));
        stage_await_flag(s, 0, 1);
    } else {
        stage_await_flag(s, 0, 1);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(back_again, 3, 10, 0)

/* ---- Calls of two lives --------------------------------------------------------------------------------------- */

/*
 * Actor 1 stops with a call outstanding, comes again in its seat, and makes the same call: the two have ids of their
 * incarnations (docs/wire.md), by which logs and traces tell them apart, and the answer of the first is none of the
 * second's.
 */
static weft_future *call_hold(weft_agent *agent)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "hold", WEFT_NO_VALUES, NULL, &future));
    return future;
}

static void lead_two_lives(stage *s)
{
    weft_agent *agent = stage_open(s, 1, 1, NULL);
    weft_future *future = call_hold(agent);
    stage_await_flag(s, 0, 1);
    weft_agent_stop(agent);
    MUST_BE(weft_future_wait(future, 0), WEFT_ERR_CLOSED);
    weft_future_unref(future);
    stage_await_flag(s, 0, 2);
    agent = stage_open(s, 1, 1, NULL);
    future = call_hold(agent);
    stage_await_flag(s, 0, 3); /* the first has been answered */
    MUST_OK(stage_add_at(agent, weft_to_rank(0)));
    MUST(!weft_future_done(future));
    atomic_store(&s->flags[1], 1);
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

static void await_call_of_this_life(stage *s, weft_agent *agent, int count)
{
    while (atomic_load(&s->held_count) < count)
        stage_sleep_ms(s, 1);
    MUST(inside_call_id(s->held[count - 1]) >> 40 == weft_agent_worker(agent, 1).incarnation);
}

static void two_lives(stage *s, int actor)
{
    if (actor == 1) {
        lead_two_lives(s);
        return;
    }
    weft_agent *agent = stage_open(s, 0, 0, NULL);
    await_call_of_this_life(s, agent, 1);
    atomic_store(&s->flags[0], 1);
    while (weft_agent_alive(agent, 1))
        stage_sleep_ms(s, 1);
    atomic_store(&s->flags[0], 2);
    await_call_of_this_life(s, agent, 2);
    weft_call_finish(s->held[0], WEFT_OK);
    atomic_store(&s->flags[0], 3);
    stage_await_flag(s, 1, 1);
    weft_call_finish(s->held[1], WEFT_OK);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(two_lives, 2, 5, 2)

/* ---- Again and again ------------------------------------------------------------------------------------------ */

/* Workers open, call everybody, leave, and open again, all at once; some stop instead. Nobody is told twice, or out
 * of order. */
static void churn(stage *s, int actor)
{
    if (actor == 0) {
        weft_agent *agent = stage_open(s, 0, 0, NULL);
        atomic_store(&s->flags[0], 1);
        stage_await_flag(s, 1, s->actors - 1);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        weft_member_event state[STAGE_SEATS] = {0};
        for (int i = 0; i < atomic_load(&s->heard[0].count); i++) {
            int rank = s->heard[0].items[i].rank;
            MUST(rank > 0 && rank < STAGE_SEATS);
            weft_member_event event = s->heard[0].items[i].event, before = state[rank];
            if (event == WEFT_MEMBER_JOINED)
                MUST(!before || before == WEFT_MEMBER_LEFT);
            else if (event == WEFT_MEMBER_LEAVING)
                MUST(before == WEFT_MEMBER_JOINED);
            else
                MUST(event == WEFT_MEMBER_LEFT && (before == WEFT_MEMBER_JOINED || before == WEFT_MEMBER_LEAVING));
            state[rank] = event;
        }
        return;
    }
    stage_await_flag(s, 0, 1);
    for (int i = 0; i < 12; i++) {
        weft_agent *agent = stage_open(s, actor, WEFT_ANY_RANK, NULL);
        MUST_OK(stage_add_at(agent, weft_to_rank(0)));
        for (int rank = 1; rank < STAGE_SEATS; rank++) {
            weft_status status = stage_add_at(agent, weft_to_rank(rank));
            MUST(status == WEFT_OK || status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_NOT_FOUND);
        }
        if ((i + actor) % 3 == 0)
            weft_agent_stop(agent);
        else
            MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    }
    atomic_fetch_add(&s->flags[1], 1);
}

STAGE_TEST(churn, 4, 20, 2)

UNIT_MAIN(test_come_and_go, test_leave_busy, test_leave_group, test_rank_0_stops, test_refused, test_back_again,
          test_two_lives, test_churn)
