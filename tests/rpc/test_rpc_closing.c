/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_closing.c - the ends of agents: calls that are made while everybody closes, and one that stops alone.
 * Idle ones that wait for the others are of tests/conformance (item 24); that nothing remains of agents is of
 * test_rpc_agents.c.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <pthread.h>

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
    weft_status status =
        weft_rpc_async(agent, weft_to_rank(next), "hop", WEFT_VALUES(weft_of_i64(left - 1)), NULL, &future);
    MUST_OK(status); /* the job does not end under a handler */
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
    memset(done, 0, sizeof(done));
}

#define SCENE WORLD_FUNCTIONS(functions), .begin = begin

static weft_status add_at(weft_agent *agent, int rank)
{
    return weft_rpc_sync(agent, weft_to_rank(rank), "add", WEFT_VALUES(weft_of_i64(1)), NULL, NULL);
}

/* ---- Calls while everybody closes ----------------------------------------------------------------------------- */

/* From its continuation, a call starts another, after the main program has begun to close. */
static void call_on(weft_future *future, void *arg)
{
    weft_agent *agent = arg;
    weft_future *next = NULL;
    MUST(!weft_future_error(future));
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

/* ---- One stops alone ------------------------------------------------------------------------------------------ */

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

/* ---- A limit, and what the log says --------------------------------------------------------------------------- */

static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;
static char lines[64][512]; /* about closing */
static weft_log_level levels[64];
static int line_count;

static void keep_line(weft_log_level level, const char *line, void *arg)
{
    (void)arg;
    if (!strstr(line, "weft_agent_close has waited") && !strstr(line, "weft_agent_close gave up after"))
        return;
    pthread_mutex_lock(&lines_lock);
    MUST(line_count < 64);
    levels[line_count] = level;
    snprintf(lines[line_count++], sizeof(lines[0]), "%s", line);
    pthread_mutex_unlock(&lines_lock);
}

static int lines_with(const char *this, const char *that)
{
    int count = 0;
    pthread_mutex_lock(&lines_lock);
    for (int i = 0; i < line_count; i++)
        count += strstr(lines[i], this) && strstr(lines[i], that);
    pthread_mutex_unlock(&lines_lock);
    return count;
}

static weft_log_level level_before;

static void begin_with_log(world *w)
{
    begin(w);
    line_count = 0;
    level_before = weft_logging_get_level();
    weft_logging_set_level(WEFT_LOG_INFO);
    weft_logging_set_sink(keep_line, NULL);
}

static void end_log(world *w)
{
    (void)w;
    weft_logging_set_sink(NULL, NULL);
    weft_logging_set_level(level_before);
}

static void wait_for(atomic_int *what)
{
    while (!atomic_load(what))
        world_sleep_ms(scene, 1);
}

/* Rank 1 closes, for 300 ms. Rank 2 does not, and has a call of rank 1's, which it answers when rank 1 has left. */
static void close_gives_up(weft_agent *agent, void *arg)
{
    weft_future *future;
    (void)arg;
    if (weft_agent_rank(agent) == 1) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(2), "hold", WEFT_NO_VALUES, NULL, &future));
        wait_for(&held_count);
        weft_future_unref(future);
        atomic_store(&done[0], 1);
    } else if (weft_agent_rank(agent) == 2) {
        wait_for(&done[0]);
        weft_status status = add_at(agent, 1); /* which is closing, and serves, if it has not left */
        MUST(status == WEFT_OK || (status == WEFT_ERR_PEER_LEFT && !scene->sim));
        while (weft_agent_alive(agent, 1))
            world_sleep_ms(scene, 1);
        weft_call_finish(held, WEFT_OK);
    }
}

static void close_for_300_ms(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 1) {
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    MUST_BE(weft_agent_close(agent, 300), WEFT_ERR_TIMEOUT);
    MUST(lines_with("rank 1", "calls of this worker: 1, the oldest \"hold\" to rank 2 (worker2)") == 1);
    MUST(lines_with("rank 1", "it waits for workers that have not closed (1): rank 2 (worker2)") == 1);
    MUST(!scene->sim || lines_with("rank 1", "gave up after 0.3 s") == 2);
}

WORLD_TEST(close_gives_up, 10, 2, WORLD_FUNCTIONS(functions), .size = 3, .begin = begin_with_log, .end = end_log,
           .close = close_for_300_ms)

/* The same without threads, on one's own thread. */
static void one_waits_by_hand(weft_agent *agent, void *arg)
{
    (void)arg;
    while (weft_agent_rank(agent) == 0 && weft_agent_alive(agent, 1))
        weft_agent_progress(agent, 1);
}

static void close_by_hand(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    MUST_BE(weft_agent_close(agent, 100), WEFT_ERR_TIMEOUT);
    MUST(lines_with("gave up after", "it waits for workers that have not closed (1): rank 0 (worker0)") == 1);
}

WORLD_TEST(one_waits_by_hand, 0, 2, WORLD_FUNCTIONS(functions), .size = 2, .begin = begin_with_log, .end = end_log,
           .adjust = world_no_threads, .close = close_by_hand)

/* 130 s of virtual time. */
static void long_close(weft_agent *agent, void *arg)
{
    weft_future *future;
    if (weft_agent_rank(agent) == 1) {
        while (!atomic_load(&held_count))
            world_sleep_ms(scene, 1);
        for (int i = 0; i < 130; i++)
            world_sleep_ms(scene, 1000);
        weft_call_finish(held, WEFT_OK);
        return;
    }
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES,
                           &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &future));
    weft_future_unref(future);
    while (!atomic_load(&held_count))
        world_sleep_ms(scene, 1);
}

static void was_named_thrice(world *w)
{
    end_log(w);
    assert_int_equal(line_count, 6); /* after 5, 65 and 125 s: what is here, and who has not closed */
    for (int i = 0; i < 6; i++)      /* a server may wait so for a minute */
        assert_int_equal(levels[i], strstr(lines[i], " 5.0 s") ? WEFT_LOG_INFO : WEFT_LOG_WARN);
    static const char *const times[] = {"has waited 5.0 s", "has waited 65.0 s", "has waited 125.0 s"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(lines_with(times[i], "calls of this worker: 1, the oldest \"hold\" to rank 1"), 1);
        assert_int_equal(lines_with(times[i], "it waits for workers that have not closed (1): rank 1 (worker1)"), 1);
    }
}

WORLD_TEST(long_close, 3, 0, WORLD_FUNCTIONS(functions), .size = 2, .begin = begin_with_log, .end = was_named_thrice)

static weft_group *kept; /* of rank 1, until its agent has ended */

/* Rank 1 leaves after a millisecond. */
static void one_gives_up(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    MUST_BE(weft_agent_close(agent, 1), WEFT_ERR_TIMEOUT);
    weft_group_close(kept);
    kept = NULL;
}

/* A served call that is not finished, and a group operation that a member does not join, are named too. */
static void names_the_rest(weft_agent *agent, void *arg)
{
    weft_group *group;
    weft_future *future;
    (void)arg;
    MUST_OK(weft_group_open(agent, "both", NULL, 0, 0, &group, NULL));
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, NULL, &future));
        MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_PEER_LEFT);
        MUST(lines_with("gave up after", "calls of other workers: 1, the oldest \"hold\" of rank 0 (deferred)") == 1);
        MUST(lines_with("gave up after", "operations of groups: 1, one of them: barrier of group \"both\"") == 1);
        weft_call_finish(held, WEFT_OK);
        weft_group_close(group);
    } else {
        wait_for(&held_count);
        MUST_OK(weft_group_barrier_async(group, WEFT_FOREVER, &future));
        kept = group;
    }
    weft_future_unref(future);
}

WORLD_TEST(names_the_rest, 5, 1, WORLD_FUNCTIONS(functions), .size = 2, .begin = begin_with_log, .end = end_log,
           .close = one_gives_up)

static weft_status run_pair(weft_batch *batch, void *user)
{
    return WEFT_OK;
}

static const weft_function pairs[] = {{.name = "pair",
                                       .takes = {WEFT_TYPE_TENSOR},
                                       .run_batch = run_pair,
                                       .batch = {.size = 2, .wait_us = WEFT_FOREVER}}};

/* A call whose batch lacks another call is named. */
static void names_a_batch(weft_agent *agent, void *arg)
{
    weft_future *future;
    weft_batch_stats stats = {0};
    (void)arg;
    if (weft_agent_rank(agent) == 1) {
        while (weft_batch_stats_read(agent, "pair", &stats) || !stats.waiting)
            world_sleep_ms(scene, 1);
        return;
    }
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "pair", WEFT_VALUES(weft_of_tensor(x)), NULL, &future));
    weft_tensor_unref(x);
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_PEER_LEFT);
    weft_future_unref(future);
    MUST(lines_with("gave up after", "the oldest \"pair\" of rank 0 (waiting for its batch to fill)") == 1);
}

WORLD_TEST(names_a_batch, 5, 1, WORLD_FUNCTIONS(pairs), .size = 2, .begin = begin_with_log, .end = end_log,
           .close = one_gives_up)

static void no_agent(void **state)
{
    (void)state;
    assert_int_equal(weft_agent_close(NULL, 5), WEFT_OK);
}

UNIT_MAIN(test_leave_calls, test_one_stops, test_close_gives_up, test_one_waits_by_hand, test_long_close,
          test_names_the_rest, test_names_a_batch, no_agent)
