/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_fork.c - a child of fork() cannot use its parent's agents, says so, and harms them by nothing that it
 * does with them.
 */
#include "children.h"
#include "rpc/world.h"

#include <dirent.h>
#include <pthread.h>
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

static const weft_function functions[] = {
    {.name = "add", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
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

static weft_status complete_child(weft_future *parent, weft_future *next, void *arg)
{
    (void)parent, (void)arg;
    return weft_future_complete(next, NULL, NULL);
}

/* The child's own futures, without an agent, work: continuations get threads of the child. */
static bool futures_work(void)
{
    weft_future *first = weft_future_create(NULL);
    weft_future *second = first ? weft_future_then(first, complete_child, NULL, NULL) : NULL;
    bool work = second && weft_future_complete(first, NULL, NULL) == WEFT_OK &&
                weft_future_wait(second, WEFT_FOREVER) == WEFT_OK;
    weft_future_unref(first);
    weft_future_unref(second);
    return work;
}

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
    if (weft_rref_to_here(o->theirs, WEFT_FOREVER, NULL, NULL) == WEFT_OK)
        return 5;
    weft_rref_unref(o->theirs);
    weft_rref_unref(o->mine);
    if (weft_group_barrier(o->group, WEFT_FOREVER) == WEFT_OK)
        return 6;
    weft_group_close(o->group);
    if (weft_agent_watch(o->agent, 1) == WEFT_OK || weft_agent_progress(o->agent, 10) != 0)
        return 7;
    weft_agent_stats(o->agent, &stats);
    if (weft_agent_status(o->agent) != WEFT_ERR_STATE || weft_agent_rank(o->agent) != 0)
        return 8;
    if (weft_agent_close(o->agent, WEFT_FOREVER) != WEFT_ERR_STATE)
        return 9;
    weft_agent_stop(o->agent);
    return futures_work() ? 0 : 10;
}

static void fork_carelessly(owned *o)
{
    child one = child_fork("careless");
    if (!one.pid)
        _exit(be_careless(o));
    child_must_end_well(&one, 1);
}

static void parent(weft_agent *agent)
{
    static const int ranks[] = {0, 1};
    weft_values *values = NULL;
    owned o = {.agent = agent};
    MUST_OK(weft_rref_create(agent, weft_of_i64(5), &o.mine, NULL));
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(6)), NULL, &o.theirs));
    MUST_OK(weft_group_open(agent, "both", ranks, 2, 0, &o.group, NULL));
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
    MUST_OK(weft_rref_to_here(o.theirs, WEFT_FOREVER, &values, NULL));
    weft_values_unref(values);
    MUST_OK(weft_group_barrier(o.group, WEFT_FOREVER));
    weft_future_unref(o.pending);
    weft_rref_unref(o.theirs);
    weft_rref_unref(o.mine);
    weft_group_close(o.group);
}

/* It calls all the while, so that some forks find the agents' locks taken. */
static void other(weft_agent *agent)
{
    static const int ranks[] = {0, 1};
    weft_group *group;
    MUST_OK(weft_group_open(agent, "both", ranks, 2, 0, &group, NULL));
    while (!atomic_load(&over))
        MUST_OK(add(agent, 0));
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    weft_group_close(group);
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
    weft_logging_set_sink(drop_line, NULL);
    world_run(&w); /* every agent closes with WEFT_OK */
    weft_logging_set_sink(NULL, NULL);
}

/* ---- With work pending ------------------------------------------------------------------------------------------- */

#define CALLERS 8
#define CROWD_FORKS 60
#define ROOM_BYTES 8192
#define QUEUED 12

static void little_room(weft_agent_options *options, void *arg)
{
    options->queue_limit_bytes = ROOM_BYTES;
}

static weft_status run_take(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_NO_VALUES);
    return WEFT_OK;
}

static weft_status push(weft_agent *agent)
{
    static const char pad[3000];
    weft_rpc_options options = {.wait_for_room = true};
    return weft_rpc_sync(agent, weft_to_rank(1), "take", WEFT_VALUES(weft_of_bytes(pad, sizeof(pad))), &options, NULL);
}

static void *push_on(void *agent)
{
    while (!atomic_load(&over))
        MUST_OK(push(agent));
    return NULL;
}

/* What takes the agent's lock, and would do on letting it go what the parent's threads have pending. */
static int ask_for_everything(weft_agent *agent)
{
    static const weft_function more = {.name = "more", .run = run_take};
    weft_rpc_options again = {.wait_for_room = true, .retry = {.attempts = 3}};
    weft_target all[] = {weft_to_rank(0), weft_to_rank(1)};
    weft_rref *made;
    weft_group *group;
    if (push(agent) != WEFT_ERR_STATE ||
        weft_rpc_async(agent, weft_to_rank(1), "take", WEFT_NO_VALUES, &again, NULL) != WEFT_ERR_STATE ||
        weft_rpc_multicast(agent, all, 2, "take", WEFT_NO_VALUES, NULL, NULL) != WEFT_ERR_STATE ||
        weft_rpc_remote(agent, weft_to_name("worker1"), "take", WEFT_NO_VALUES, NULL, &made) != WEFT_ERR_STATE)
        return 1;
    if (weft_rref_create(agent, weft_of_i64(1), &made, NULL) != WEFT_ERR_STATE ||
        weft_group_open(agent, "late", NULL, 0, 0, &group, NULL) != WEFT_ERR_STATE)
        return 2;
    if (weft_agent_watch(agent, 1) != WEFT_ERR_STATE || weft_agent_unwatch(agent, 1) != WEFT_ERR_STATE ||
        weft_agent_set_call_timeout(agent, 5) != WEFT_ERR_STATE || weft_agent_register(agent, &more) != WEFT_ERR_STATE)
        return 3;
    if (weft_debug_dump(agent, stderr) != WEFT_ERR_STATE || weft_metrics_write(agent, stderr) != WEFT_ERR_STATE)
        return 4;
    if (weft_agent_find(agent, "worker1") != -1 || weft_agent_name(agent, 1) || weft_agent_alive(agent, 0))
        return 5;
    return weft_agent_status(agent) == WEFT_ERR_STATE && weft_agent_close(agent, WEFT_FOREVER) == WEFT_ERR_STATE ? 0
                                                                                                                 : 6;
}

static void push_in_a_crowd(weft_agent *agent, void *arg)
{
    pthread_t callers[CALLERS];
    if (weft_agent_rank(agent) != 0)
        return;
    for (int i = 0; i < CALLERS; i++)
        MUST(pthread_create(&callers[i], NULL, push_on, agent) == 0);
    for (int i = 0; i < CROWD_FORKS; i++) {
        child one = child_fork("asks for everything");
        if (!one.pid)
            _exit(ask_for_everything(agent));
        child_must_end_well(&one, 1);
    }
    atomic_store(&over, true);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(callers[i], NULL);
}

static void children_end_whatever_was_pending(void **state)
{
    static const weft_function takes[] = {{.name = "take", .takes = {WEFT_TYPE_BYTES}, .run = run_take}};
    world w = {
        .fabric = WORLD_TCP, .size = 2, WORLD_FUNCTIONS(takes), .program = push_in_a_crowd, .adjust = little_room};
    atomic_store(&over, false);
    weft_logging_set_sink(drop_line, NULL);
    world_run(&w);
    weft_logging_set_sink(NULL, NULL);
}

static atomic_int handlers_run;

static int threads_here(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks && (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    if (tasks)
        closedir(tasks);
    return count;
}

/* In a handler's child: waiting makes no worker there, which would run what is queued a second time. */
static int wait_in_child(weft_agent *agent)
{
    int before = atomic_load(&handlers_run);
    weft_future *never = weft_future_create(NULL), *of_agent = weft_future_create(agent);
    if (!never || !of_agent)
        return 1;
    if (weft_future_wait(never, 100) != WEFT_ERR_TIMEOUT || weft_future_wait(of_agent, 100) != WEFT_ERR_DEADLOCK)
        return 2;
    if (add(agent, 0) != WEFT_ERR_STATE)
        return 3;
    if (atomic_load(&handlers_run) != before)
        return 4;
    return threads_here() == 1 ? 0 : 5;
}

/* The first of them forks, when others have come and wait behind it for the only worker. */
static weft_status run_forking(weft_call *call, void *user)
{
    if (atomic_fetch_add(&handlers_run, 1) == 0) {
        usleep(300000);
        child one = child_fork("of a handler");
        if (!one.pid)
            _exit(wait_in_child(weft_call_agent(call)));
        child_must_end_well(&one, 1);
    }
    weft_call_give(call, WEFT_NO_VALUES);
    return WEFT_OK;
}

static void queue_handlers(weft_agent *agent, void *arg)
{
    weft_future *calls[QUEUED];
    if (weft_agent_rank(agent) != 1)
        return;
    for (int i = 0; i < QUEUED; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "forking", WEFT_NO_VALUES, NULL, &calls[i]));
    MUST_OK(weft_future_wait_all(calls, QUEUED, WEFT_FOREVER));
    for (int i = 0; i < QUEUED; i++)
        weft_future_unref(calls[i]);
    MUST(atomic_load(&handlers_run) == QUEUED);
}

static void a_handlers_child_waits_and_runs_nothing(void **state)
{
    static const weft_function forking[] = {{.name = "forking", .run = run_forking}};
    world w = {.fabric = WORLD_TCP,
               .size = 2,
               WORLD_FUNCTIONS(forking),
               .program = queue_handlers,
               .adjust = world_one_worker};
    weft_logging_set_sink(drop_line, NULL);
    world_run(&w);
    weft_logging_set_sink(NULL, NULL);
}

/* Without threads whoever waits reads the network: in the child nobody does. */
static void without_threads_it_is_the_same(void **state)
{
    weft_agent *agent;
    weft_agent_options options = {.functions = functions,
                                  .function_count = 2,
                                  .has_rank = true,
                                  .world_size = 1,
                                  .master_port = world_free_port(),
                                  .no_threads = true};
    assert_int_equal(weft_agent_open(&options, &agent, NULL), WEFT_OK);
    weft_logging_set_sink(drop_line, NULL);
    child one = child_fork("without threads");
    if (!one.pid) {
        bool refused = add(agent, 0) == WEFT_ERR_STATE && weft_agent_progress(agent, 10) == 0 &&
                       weft_agent_close(agent, WEFT_FOREVER) == WEFT_ERR_STATE;
        _exit(refused ? 0 : 1);
    }
    child_must_end_well(&one, 1);
    weft_logging_set_sink(NULL, NULL);
    assert_int_equal(add(agent, 0), WEFT_OK);
    assert_int_equal(weft_agent_close(agent, WEFT_FOREVER), WEFT_OK);
}

UNIT_MAIN(a_child_is_refused_and_harms_nobody, children_end_whatever_was_pending,
          a_handlers_child_waits_and_runs_nothing, without_threads_it_is_the_same)
