/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_closing.c - the ends of agents: uneven load, calls that are made while everybody closes, one that stops alone, a rank
 * or port that is taken, and 200 agents of one process of which nothing remains.
 */
#include "rpc/world.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

static world *scene;
static atomic_int hops, done[8];
static weft_call *held;
static atomic_int held_count;

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
    {.name = "add", .takes = {WEFT_I64}, .gives = {WEFT_I64}, .run = run_add},
    {.name = "hop", .takes = {WEFT_I64}, .run = run_hop},
    {.name = "hold", .run = run_hold},
};

static void run_on(world w, world_fabric fabric, uint64_t seed)
{
    w.fabric = fabric;
    w.seed = seed;
    w.functions = functions;
    w.function_count = sizeof functions / sizeof *functions;
    scene = &w;
    world_run(&w);
}

static weft_status add_at(weft_agent *agent, int rank)
{
    return weft_rpc_sync(agent, weft_to_rank(rank), "add", WEFT_VALUES(weft_of_i64(1)), NULL, NULL);
}

/* ---- Uneven load: rank 2 closes at once, and is needed until the others are through --------------------------------- */

static void uneven(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 2)
        return;
    for (int i = 0; i < 100; i++) {
        world_sleep_ms(scene, 3);
        MUST_OK(add_at(agent, 2));
    }
}

static void test_uneven_load(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(5); seed++)
        run_on((world){.size = 3, .program = uneven}, WORLD_SIM, seed);
    run_on((world){.size = 3, .program = uneven}, WORLD_TCP, 0);
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

static void test_calls_while_closing(void **state)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        bool tcp = seed % 6 == 5;
        atomic_store(&hops, 0);
        run_on((world){.size = 4, .program = leave_calls}, tcp ? WORLD_TCP : WORLD_SIM, seed);
        assert_int_equal(atomic_load(&hops), 4 * 4 * 20 + 4 * 4); /* each ran, once */
    }
}

/* ---- One stops alone -------------------------------------------------------------------------------------------------- */

static atomic_int left_told;

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

static void test_one_stops(void **state)
{
    for (uint64_t seed = 0; seed < 8; seed++) {
        atomic_store(&left_told, 0);
        atomic_store(&held_count, 0);
        memset(done, 0, sizeof done);
        run_on((world){.size = 3, .program = one_stops, .adjust = count_those_who_leave, .stop = true},
               seed == 7 ? WORLD_TCP : WORLD_SIM, seed);
        assert_int_equal(atomic_load(&left_told), 2);
        weft_call_finish(held, WEFT_OK); /* long after: it does no harm */
    }
}

/* ---- Taken ------------------------------------------------------------------------------------------------------------ */

static void open_again(weft_agent *agent, void *arg)
{
    weft_agent *second = NULL;
    weft_error *error = NULL;
    weft_agent_options options = {.has_rank = true,
                                  .rank = weft_agent_rank(agent),
                                  .world_size = 2,
                                  .master_addr = "127.0.0.1",
                                  .master_port = scene->port,
                                  .rendezvous_timeout_ms = 2000,
                                  .error = &error};
    if (weft_agent_rank(agent) == 1 && scene->port) { /* a rank that lives */
        MUST_BE(weft_agent_open(&options, &second), WEFT_ERR_EXISTS);
        MUST(strstr(weft_error_message(error), "rank 1 is taken") && !second);
        weft_error_unref(error);
    } else if (scene->port) { /* a port that is served on */
        MUST_BE(weft_agent_open(&options, &second), WEFT_ERR_EXISTS);
        MUST(weft_error_message(error)[0] && !second);
        weft_error_unref(error);
    }
    MUST_OK(add_at(agent, 1 - weft_agent_rank(agent))); /* no harm was done */
}

static void test_taken(void **state)
{
    run_on((world){.size = 2, .program = open_again}, WORLD_TCP, 0);
}

/* ---- Nothing remains --------------------------------------------------------------------------------------------------- */

static int entries_of(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    MUST(folder != NULL);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static int shared_memory_of_weft(void)
{
    int count = 0;
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        count += strstr(entry->d_name, "weft") != NULL;
    if (folder)
        closedir(folder);
    return count;
}

static void call_round(weft_agent *agent, void *arg)
{
    MUST_OK(add_at(agent, (weft_agent_rank(agent) + 1) % weft_agent_world_size(agent)));
}

static void test_two_hundred(void **state)
{
    int threads = 0, descriptors = 0, shared = shared_memory_of_weft();
    size_t memory = 0;
    for (int i = 0; i < 25; i++) { /* 8 at a time */
        run_on((world){.size = 8, .program = call_round}, WORLD_TCP, 0);
        if (i == 4) { /* by now every pool has its size */
            threads = entries_of("/proc/self/task");
            descriptors = entries_of("/proc/self/fd");
            memory = mallinfo2().uordblks;
        }
    }
    for (int i = 0; i < 1000 && entries_of("/proc/self/task") > threads; i++)
        usleep(1000); /* joined threads may still be seen for a moment */
    assert_true(entries_of("/proc/self/task") <= threads);
    assert_true(entries_of("/proc/self/fd") <= descriptors);
    assert_true(mallinfo2().uordblks < memory + 64 * 1024);
    assert_true(shared_memory_of_weft() <= shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uneven_load), cmocka_unit_test(test_calls_while_closing),
        cmocka_unit_test(test_one_stops),   cmocka_unit_test(test_taken),
        cmocka_unit_test(test_two_hundred),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
