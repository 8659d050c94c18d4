/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_serve.c - weft_agent_serve: when it returns, in static and elastic jobs, what batches do meanwhile, and
 * threads that end one agent at the same time. World tests run on the simulation and on tcp.
 */
#include "rpc/batch_stats.h"
#include "rpc/must.h"
#include "rpc/stage.h"
#include "rpc/world.h"

#include <pthread.h>
#include <unistd.h>

enum { PAIRS = 60 };

static world *scene;
static atomic_int hops, flag;

static void begin(world *w)
{
    scene = w;
    atomic_store(&hops, 0);
    atomic_store(&flag, 0);
}

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static weft_status run_count(weft_batch *batch, void *user)
{
    size_t n = weft_batch_count(batch);
    for (size_t i = 0; i < n; i++)
        weft_call_give(weft_batch_call(batch, i), WEFT_VALUES(weft_of_i64((int64_t)n)));
    return WEFT_OK;
}

/* Passes on to the next rank, without waiting for it, so many times. */
static weft_status run_hop(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    int64_t left = weft_call_i64(call, 0);
    weft_future *future = NULL;
    atomic_fetch_add(&hops, 1);
    if (!left)
        return WEFT_OK;
    int next = (weft_agent_rank(agent) + 1) % weft_agent_world_size(agent);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(next), "hop", WEFT_VALUES(weft_of_i64(left - 1)), NULL, &future));
    weft_future_unref(future);
    return WEFT_OK;
}

static weft_status run_kill_others(weft_call *call, void *user)
{
    for (int rank = 0; rank < weft_agent_world_size(weft_call_agent(call)); rank++)
        if (rank != weft_agent_rank(weft_call_agent(call)))
            weft_sim_kill(scene->sim, rank);
    return WEFT_OK;
}

static weft_status run_serves(weft_call *call, void *user)
{
    MUST_BE(weft_agent_serve(weft_call_agent(call), WEFT_FOREVER), WEFT_ERR_DEADLOCK);
    return WEFT_OK;
}

#define COUNTS .gives = {WEFT_TYPE_I64}, .run_batch = run_count

static const weft_function functions[] = {
    {.name = "pair",
     COUNTS,
     .batch = {.size = 2,
               .wait_us = WEFT_FOREVER,
               .callers = (const int[]){1, 2},
               .caller_count = 2,
               .one_per_caller = true}},
    {.name = "four", COUNTS, .batch = {.size = 4, .wait_us = WEFT_FOREVER}},
    {.name = "one each", COUNTS, .batch = {.size = 4, .wait_us = WEFT_FOREVER, .one_per_caller = true}},
    {.name = "hop", .takes = {WEFT_TYPE_I64}, .run = run_hop},
    {.name = "serves", .run = run_serves},
    {.name = "kill others", .run = run_kill_others},
};
/* For smaller jobs: without "pair". */
#define SMALL .functions = functions + 1, .function_count = sizeof(functions) / sizeof(*functions) - 1, .begin = begin
#define SCENE WORLD_FUNCTIONS(functions), .begin = begin

static int64_t count_of(weft_agent *agent, const char *function)
{
    weft_values *got = NULL;
    int64_t n = 0;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), function, WEFT_NO_VALUES, NULL, &got));
    MUST_OK(weft_values_get_i64(got, 0, &n));
    weft_values_unref(got);
    return n;
}

/* ---- Static jobs ---------------------------------------------------------------------------------------------- */

/* Two callers, named: each batch has a call of both, also when the server serves by weft_agent_close afterwards. */
static void pairs(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
        weft_batch_stats stats = stats_of(agent, "pair");
        MUST(stats.batches == PAIRS && stats.size_max == 2 && stats.mean_size == 2);
        return;
    }
    for (int i = 0; i < PAIRS; i++)
        MUST(count_of(agent, "pair") == 2);
}

WORLD_TEST(pairs, 20, 2, SCENE, .size = 3)

/* The same, served by weft_agent_close alone. */
static void pairs_while_closing(weft_agent *agent, void *arg)
{
    for (int i = 0; i < PAIRS && weft_agent_rank(agent); i++)
        MUST(count_of(agent, "pair") == 2);
}

WORLD_TEST(pairs_while_closing, 20, 2, SCENE, .size = 3)

/* Rank 2 makes fewer calls and closes: rank 1 is no longer kept waiting for it. */
static void one_ends_early(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank == 0)
        MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
    for (int i = 0; i < (rank ? 4 - rank : 0); i++)
        MUST(count_of(agent, "pair") == (i < 2 ? 2 : 1));
}

WORLD_TEST(one_ends_early, 20, 2, SCENE, .size = 3)

/* Without `callers`: a batch begins when no worker can add to it, and not before. */
static void nobody_can_add(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
        weft_batch_stats stats = stats_of(agent, "one each");
        MUST(stats.batches == 1 && stats.size_max == 2 && stats.by_size + stats.by_time + stats.by_callers == 0);
        return;
    }
    if (weft_agent_rank(agent) == 3)
        return; /* it closes */
    MUST(count_of(agent, "one each") == 2);
    weft_future *futures[4];
    for (int i = 0; weft_agent_rank(agent) == 1 && i < 4; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "four", WEFT_NO_VALUES, NULL, &futures[i]));
    for (int i = 0; weft_agent_rank(agent) == 1 && i < 4; i++) {
        int64_t n = 0;
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        MUST_OK(weft_values_get_i64(weft_future_values(futures[i]), 0, &n));
        MUST(n == 4);
        weft_future_unref(futures[i]);
    }
}

WORLD_TEST(nobody_can_add, 20, 1, SCENE, .size = 4)

/* Two servers both return when the callers have closed, and calls that their handlers make have ended. */
static void two_servers(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) < 2) {
        MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
        MUST(atomic_load(&hops) == 2 * 21);
        MUST_OK(weft_agent_serve(agent, WEFT_FOREVER)); /* nothing has changed: it returns again */
        return;
    }
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "hop", WEFT_VALUES(weft_of_i64(20)), NULL, NULL));
}

WORLD_TEST(two_servers, 20, 1, SCENE, .size = 4)

/* Servers whose time is over make calls, and serve again: so do others, which may end the wait of all. */
static void again_and_again(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    for (int i = 0; i < 4; i++) {
        weft_status status = weft_agent_serve(agent, rank == 0 ? 0 : rank == 1 ? 3 : 1);
        MUST(!status || status == WEFT_ERR_TIMEOUT);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank((rank + 1) % 3), "hop", WEFT_VALUES(weft_of_i64(3)), NULL, NULL));
    }
    MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
}

WORLD_TEST(again_and_again, 40, 2, SCENE, .size = 3)

/* The others leave without closing, one by one: the server is free when the last one has gone. */
static void others_stop(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank) {
        while (atomic_load(&flag) < rank)
            world_sleep_ms(scene, 1);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "hop", WEFT_VALUES(weft_of_i64(0)), NULL, NULL));
        return;
    }
    MUST_BE(weft_agent_serve(agent, 5), WEFT_ERR_TIMEOUT);
    atomic_store(&flag, 1);
    while (weft_agent_alive(agent, 1))
        world_sleep_ms(scene, 1);
    MUST_BE(weft_agent_serve(agent, 5), WEFT_ERR_TIMEOUT); /* rank 2 is there */
    atomic_store(&flag, 2);
    MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
    MUST(!weft_agent_alive(agent, 2) && atomic_load(&hops) == 2);
}

WORLD_TEST(others_stop, 10, 2, SMALL, .size = 3, .stop = true)

/* A call that the server serves is the last thing that the others do. */
static void others_are_killed(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
        MUST(!weft_agent_alive(agent, 1) && !weft_agent_alive(agent, 2));
        return;
    }
    if (weft_agent_rank(agent) == 1)
        (void)!weft_rpc_sync(agent, weft_to_rank(0), "kill others", WEFT_NO_VALUES, NULL, NULL);
    for (;;)
        world_sleep_ms(scene, 1000);
}

WORLD_TEST(others_are_killed, 10, 0, SMALL, .size = 3)

static void alone(weft_agent *agent, void *arg)
{
    MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
    MUST_OK(weft_agent_serve(agent, 60000));
}

WORLD_TEST(alone, 1, 1, SMALL, .size = 1)

static void without_threads(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent))
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "hop", WEFT_VALUES(weft_of_i64(2)), NULL, NULL));
    MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
    MUST(atomic_load(&hops) == 3);
}

WORLD_TEST(without_threads, 0, 1, SMALL, .size = 2, .adjust = world_no_threads)

static void misuse(weft_agent *agent, void *arg)
{
    MUST_BE(weft_agent_serve(NULL, 0), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_serve(agent, -2), WEFT_ERR_INVALID);
    if (weft_agent_rank(agent) == 1) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "serves", WEFT_NO_VALUES, NULL, NULL));
        while (!atomic_load(&flag))
            world_sleep_ms(scene, 1);
        return;
    }
    weft_agent_wake(agent);
    MUST_BE(weft_agent_serve(agent, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    MUST(weft_agent_clear_wake(agent));
    atomic_store(&flag, 1);
}

WORLD_TEST(misuse, 2, 1, SMALL, .size = 2)

/* ---- Elastic jobs --------------------------------------------------------------------------------------------- */

static const weft_function counting = {
    .name = "count",
    COUNTS,
    .batch = {
        .size = 2, .wait_us = WEFT_FOREVER, .callers = (const int[]){1, 2}, .caller_count = 2, .one_per_caller = true}};

/* The server is alone at first, and serves until it ends the job. */
static void elastic(stage *s, int actor)
{
    if (actor)
        stage_await_flag(s, 0, 1);
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 0) {
        MUST_OK(weft_agent_register(agent, &counting));
        MUST_BE(weft_agent_serve(agent, 5), WEFT_ERR_TIMEOUT);
        atomic_store(&s->flags[0], 1);
        while (atomic_load(&s->flags[1]) < 2) /* both callers have their answers */
            MUST_BE(weft_agent_serve(agent, 5), WEFT_ERR_TIMEOUT);
        MUST(stats_of(agent, "count").mean_size == 2);
        MUST_OK(weft_agent_end_job(agent, "all done"));
        MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
    } else {
        stage_await_workers(s, agent, 3);
        for (int i = 0; i < PAIRS; i++)
            MUST(count_of(agent, "count") == 2);
        atomic_fetch_add(&s->flags[1], 1);
        MUST_OK(weft_agent_serve(agent, WEFT_FOREVER)); /* until the job ends */
        MUST_BE(weft_agent_status(agent), WEFT_ERR_JOB_ENDED);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(elastic, 3, 10, 2)

static weft_status run_wake(weft_call *call, void *user)
{
    weft_agent_wake(weft_call_agent(call));
    return WEFT_OK;
}

/* Each of two servers ends when it is woken, while the other one serves. */
static void elastic_wake(stage *s, int actor)
{
    static const weft_function wake = {.name = "wake", .run = run_wake};
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    MUST_OK(weft_agent_register(agent, &wake));
    atomic_fetch_add(&s->flags[0], 1);
    stage_await_flag(s, 0, 2);
    stage_await_workers(s, agent, 2);
    if (actor == 0) {
        stage_sleep_ms(s, 20); /* so that it serves by then, mostly */
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "wake", WEFT_NO_VALUES, NULL, NULL));
        atomic_store(&s->flags[1], 1);
    }
    MUST_BE(weft_agent_serve(agent, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    MUST(weft_agent_clear_wake(agent));
    if (actor == 1) {
        stage_await_flag(s, 1, 1); /* a wake also cancels the call of actor 0 */
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "wake", WEFT_NO_VALUES, NULL, NULL));
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(elastic_wake, 2, 10, 2)

/* ---- Threads that end one agent ------------------------------------------------------------------------------- */

static weft_agent *open_pair(int rank, int port)
{
    weft_agent *agent = NULL;
    MUST_OK(weft_agent_open(&(weft_agent_options){.has_rank = true,
                                                  .rank = rank,
                                                  .world_size = 2,
                                                  .master_port = port,
                                                  .secret = "0123456789abcdef",
                                                  .secret_size = 16},
                            &agent, NULL));
    return agent;
}

static void *open_second(void *arg)
{
    return open_pair(1, *(int *)arg);
}

/* A job of two workers in this process, and a thread that ends or uses the first one. */
typedef struct pair {
    weft_agent *first, *second;
    pthread_t thread;
    weft_status result;
} pair;

static void *close_it(void *arg)
{
    pair *p = arg;
    p->result = weft_agent_close(p->first, WEFT_FOREVER);
    return NULL;
}

static void *serve_it(void *arg)
{
    pair *p = arg;
    p->result = weft_agent_serve(p->first, WEFT_FOREVER);
    return NULL;
}

static atomic_bool may_end;

static weft_status run_hold(weft_call *call, void *user)
{
    while (!atomic_load(&may_end))
        usleep(1000);
    return WEFT_OK;
}

static const weft_function hold = {.name = "hold", .run = run_hold};

/* Makes calls while others close the agent, and the last one ends with the agent. */
static void *call_it(void *arg)
{
    pair *p = arg;
    weft_future *future;
    for (int i = 0; i < 200; i++) {
        MUST_OK(weft_rpc_async(p->first, weft_to_rank(1), "none", WEFT_NO_VALUES, NULL, &future));
        weft_future_unref(future);
    }
    p->result = weft_rpc_sync(p->first, weft_to_rank(1), "hold", WEFT_NO_VALUES, NULL, NULL);
    return NULL;
}

static void until_state(weft_agent *agent, const char *state)
{
    for (bool found = false; !found;) {
        char *text = NULL;
        size_t size = 0;
        FILE *to = open_memstream(&text, &size);
        MUST(to);
        MUST_OK(weft_debug_dump(agent, to));
        fclose(to);
        found = strstr(text, state) != NULL;
        free(text);
    }
}

/* `begins`: what the thread does; NULL: nothing yet. It is at it when the dump of the first agent has `state`. */
static void begin_pair(pair *p, void *(*begins)(void *arg), const char *state)
{
    int port = world_free_port();
    pthread_t others;
    void *second = NULL;
    MUST(!pthread_create(&others, NULL, open_second, &port));
    *p = (pair){.first = open_pair(0, port)};
    MUST(!pthread_join(others, &second));
    p->second = second;
    if (begins) {
        MUST(!pthread_create(&p->thread, NULL, begins, p));
        until_state(p->first, state);
    }
}

/* One thread waits in weft_agent_close for the other worker. Another close is refused. A stop, of a watchdog, ends the
 * wait. */
static void test_watchdog(void **state)
{
    pair p;
    begin_pair(&p, close_it, ": \"closing\"");
    MUST_BE(weft_agent_close(p.first, WEFT_FOREVER), WEFT_ERR_STATE);
    MUST_BE(weft_agent_close(p.first, 0), WEFT_ERR_STATE);
    MUST_BE(weft_agent_serve(p.first, 0), WEFT_ERR_STATE);
    weft_agent_stop(p.first);
    MUST(!pthread_join(p.thread, NULL));
    MUST_BE(p.result, WEFT_ERR_CLOSED);
    weft_agent_stop(p.second);
}

/* A thread that serves is told when another one stops the agent. Serving without a wait sends nothing to the store. */
static void test_stopped_server(void **state)
{
    pair p;
    weft_stats before, after;
    begin_pair(&p, serve_it, ": \"serving\"");
    MUST_BE(weft_agent_serve(p.first, 0), WEFT_ERR_STATE);
    weft_agent_stats(p.first, &before);
    for (int i = 0; i < 1000; i++)
        MUST_BE(weft_agent_serve(p.second, 0), WEFT_ERR_TIMEOUT);
    weft_agent_stats(p.first, &after);
    assert_in_range(after.rendezvous_messages - before.rendezvous_messages, 0, 100);
    weft_agent_stop(p.first);
    MUST(!pthread_join(p.thread, NULL));
    MUST_BE(p.result, WEFT_ERR_CLOSED);
    weft_agent_stop(p.second);
}

/* The same if it closes the agent, after the other worker has left. */
static void test_closed_server(void **state)
{
    pair p;
    begin_pair(&p, serve_it, ": \"serving\"");
    weft_agent_stop(p.second);
    MUST_OK(weft_agent_close(p.first, WEFT_FOREVER));
    MUST(!pthread_join(p.thread, NULL));
    MUST(p.result == WEFT_ERR_CLOSED || !p.result); /* nobody is left to serve: it may have returned before */
}

/* Two threads close an agent while a third one calls. One of the two waits for that call; the other one is refused. */
static void test_closed_while_calling(void **state)
{
    pair p, closes;
    begin_pair(&p, NULL, NULL);
    closes = p;
    MUST_OK(weft_agent_register(p.second, &hold));
    MUST(!pthread_create(&p.thread, NULL, call_it, &p));
    MUST(!pthread_create(&closes.thread, NULL, close_it, &closes));
    until_state(p.first, ": \"closing\"");
    MUST_BE(weft_agent_close(p.first, WEFT_FOREVER), WEFT_ERR_STATE);
    until_state(p.first, "\"hold\"");
    weft_agent_stop(p.first);
    MUST(!pthread_join(p.thread, NULL));
    MUST(!pthread_join(closes.thread, NULL));
    MUST_BE(p.result, WEFT_ERR_CLOSED);
    MUST_BE(closes.result, WEFT_ERR_CLOSED);
    atomic_store(&may_end, true);
    weft_agent_stop(p.second);
}

UNIT_MAIN(test_pairs, test_pairs_while_closing, test_one_ends_early, test_nobody_can_add, test_two_servers,
          test_again_and_again, test_others_stop, test_others_are_killed, test_alone, test_without_threads, test_misuse,
          test_elastic, test_elastic_wake, test_watchdog, test_stopped_server, test_closed_server,
          test_closed_while_calling)
