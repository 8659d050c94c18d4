/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_fork.c - a child of fork() cannot use its parent's agents, says so, and harms them by nothing that it does with them.
 */
#include "rpc/world.h"

#include <sys/wait.h>
#include <unistd.h>

#define FORKS 5

static atomic_bool over;

static weft_status run_add(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

static weft_status run_wait(weft_call *call, void *user)
{
    while (!atomic_load(&over))
        usleep(1000);
    weft_call_give(call, WEFT_NO_VALUES);
    return WEFT_OK;
}

static const weft_function functions[] = {{.name = "add", .takes = {WEFT_I64}, .gives = {WEFT_I64}, .run = run_add},
                                          {.name = "wait", .run = run_wait}};

static weft_status add(weft_agent *agent, int to)
{
    return weft_rpc_sync(agent, weft_to_rank(to), "add", WEFT_VALUES(weft_of_i64(1)), NULL, NULL);
}

typedef struct owned {
    weft_agent *agent;
    weft_future *pending; /* of a call that is being served */
    weft_rref *mine, *theirs;
    weft_group *group;
} owned;

/* Everything that a careless child might do; the number of the first that went otherwise. */
static int be_careless(owned *o)
{
    weft_future *future = NULL;
    weft_rref *made = NULL;
    weft_stats stats;
    if (add(o->agent, 1) != WEFT_ERR_STATE || add(o->agent, 0) != WEFT_ERR_STATE)
        return 1;
    if (weft_rpc_async(o->agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(1)), NULL, &future) != WEFT_ERR_STATE)
        return 2;
    if (weft_rpc_remote(o->agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(1)), NULL, &made) != WEFT_ERR_STATE)
        return 3;
    if (weft_future_wait(o->pending, WEFT_FOREVER) != WEFT_ERR_DEADLOCK || weft_future_done(o->pending))
        return 4;
    (void)!weft_future_cancel(o->pending);
    weft_future_unref(o->pending);
    if (weft_rref_to_here(o->theirs, WEFT_FOREVER, NULL) == WEFT_OK)
        return 5;
    weft_rref_unref(o->theirs);
    weft_rref_unref(o->mine);
    if (weft_group_barrier(o->group, WEFT_FOREVER) == WEFT_OK)
        return 6;
    weft_group_destroy(o->group);
    if (weft_watch(o->agent, 1) == WEFT_OK || weft_agent_progress(o->agent, 10) != 0)
        return 7;
    weft_agent_stats(o->agent, &stats);
    if (weft_agent_status(o->agent) != WEFT_ERR_STATE || weft_agent_rank(o->agent) != 0)
        return 8;
    if (weft_agent_close(o->agent) != WEFT_ERR_STATE)
        return 9;
    weft_agent_stop(o->agent);
    return 0;
}

static void fork_carelessly(owned *o)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        alarm(30);
        _exit(be_careless(o));
    }
    MUST(waitpid(child, &status, 0) == child);
    if (status)
        fprintf(stderr, "the child ended with %#x\n", (unsigned)status);
    MUST(status == 0);
}

static void parent(weft_agent *agent)
{
    static const int ranks[] = {0, 1};
    weft_values *values = NULL;
    owned o = {.agent = agent};
    MUST_OK(weft_rref_create(agent, weft_of_i64(5), &o.mine));
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(6)), NULL, &o.theirs));
    MUST_OK(weft_group_create(agent, "both", ranks, 2, &o.group));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "wait", WEFT_NO_VALUES, NULL, &o.pending));
    for (int i = 0; i < FORKS; i++) {
        fork_carelessly(&o);
        MUST_OK(add(agent, 1));
        MUST_OK(add(agent, 0));
    }
    MUST(!weft_future_done(o.pending)); /* the child's cancel was its own */
    MUST(weft_agent_alive(agent, 1));
    atomic_store(&over, true);
    MUST_OK(weft_future_wait(o.pending, WEFT_FOREVER));
    MUST_OK(weft_rref_to_here(o.theirs, WEFT_FOREVER, &values));
    weft_values_unref(values);
    MUST_OK(weft_group_barrier(o.group, WEFT_FOREVER));
    weft_future_unref(o.pending);
    weft_rref_unref(o.theirs);
    weft_rref_unref(o.mine);
    weft_group_destroy(o.group);
}

/* It calls all the while, so that some forks find the agents' locks taken. */
static void other(weft_agent *agent)
{
    static const int ranks[] = {0, 1};
    weft_group *group;
    MUST_OK(weft_group_create(agent, "both", ranks, 2, &group));
    while (!atomic_load(&over))
        MUST_OK(add(agent, 0));
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    weft_group_destroy(group);
}

static void program(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0)
        parent(agent);
    else
        other(agent);
}

static void drop_line(weft_log_level level, const char *line, void *arg) {}

static void a_child_is_refused_and_harms_nobody(void **state)
{
    world w = {.fabric = WORLD_TCP, .size = 2, WORLD_FUNCTIONS(functions), .program = program};
    weft_log_set_sink(drop_line, NULL);
    world_run(&w); /* every agent closes with WEFT_OK */
    weft_log_set_sink(NULL, NULL);
}

/* Without threads whoever waits reads the network: in the child nobody does. */
static void without_threads_it_is_the_same(void **state)
{
    weft_agent *agent;
    int status;
    weft_agent_options options = {.functions = functions,
                                  .function_count = 2,
                                  .has_rank = true,
                                  .world_size = 1,
                                  .master_port = world_free_port(),
                                  .no_threads = true};
    assert_int_equal(weft_agent_open(&options, &agent), WEFT_OK);
    weft_log_set_sink(drop_line, NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(30);
        bool refused = add(agent, 0) == WEFT_ERR_STATE && weft_agent_progress(agent, 10) == 0 &&
                       weft_agent_close(agent) == WEFT_ERR_STATE;
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    weft_log_set_sink(NULL, NULL);
    assert_int_equal(status, 0);
    assert_int_equal(add(agent, 0), WEFT_OK);
    assert_int_equal(weft_agent_close(agent), WEFT_OK);
}

UNIT_MAIN(a_child_is_refused_and_harms_nobody, without_threads_it_is_the_same)
