/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_agents.c - agents without threads, opened again and again, many in one process; stopping under those who
 * wait. */
#include "rpc/world.h"
#include "said.h"
#include "tensors.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

static struct shared {
    atomic_bool done;
    atomic_int closed;
    weft_call *held[8];
    atomic_int held_count;
    pthread_t waiting[4];
    weft_future *own;
} shared;

static weft_status run_add(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    shared.held[atomic_fetch_add(&shared.held_count, 1)] = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static weft_status run_close(weft_call *call, void *user)
{
    atomic_store(&shared.closed, weft_agent_close(weft_call_agent(call), WEFT_FOREVER));
    weft_agent_stop(weft_call_agent(call)); /* refused as well: it says so in the log, and all goes on */
    return WEFT_OK;
}

/* Looks workers up for longer than stopping takes. */
static weft_status run_look_up(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    for (int i = 0; i < 20; i++) {
        MUST(strcmp(weft_agent_name(agent, 1), "worker1") == 0 &&
             weft_agent_find(agent, "worker0") <= 0); /* -1: it left */
        usleep(200);
    }
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "look up", .run = run_look_up},
    {.name = "add", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
    {.name = "inline",
     .takes = {WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run = run_add,
     .flags = WEFT_FUNCTION_INLINE},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "hold", .run = run_hold},
    {.name = "close", .run = run_close},
};

static void add_once(weft_agent *agent, int to, const char *function)
{
    weft_values *got;
    int64_t n;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), function, WEFT_VALUES(weft_of_i64(4)), NULL, &got));
    MUST(!weft_values_get_i64(got, 0, &n) && n == 5);
    weft_values_unref(got);
}

static void begin(world *w)
{
    (void)w;
    memset(&shared, 0, sizeof(shared));
}

#define SCENE .size = 2, WORLD_FUNCTIONS(functions), .begin = begin

static void finish_held(void)
{
    for (int i = 0; i < atomic_load(&shared.held_count); i++)
        weft_call_finish(shared.held[i], WEFT_OK);
}

/* ---- Without threads ------------------------------------------------------------------------------------------- */

static void driven_by_hand(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        while (!atomic_load(&shared.done))
            weft_agent_progress(agent, 2);
        return;
    }
    weft_tensor *x = tensor_arange(1000000, WEFT_DTYPE_INT32),
                *land = tensor_zeros(WEFT_SHAPE(1000000), WEFT_DTYPE_INT32);
    for (int i = 0; i < 20; i++) {
        weft_rpc_options options = {.land = {&land, 1}};
        add_once(agent, 0, i % 2 ? "add" : "inline");
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, NULL));
    }
    MUST(memcmp(weft_tensor_data(x), weft_tensor_data(land), 4000000) == 0);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "close", WEFT_NO_VALUES, NULL, NULL));
    MUST_BE((weft_status)atomic_load(&shared.closed), WEFT_ERR_DEADLOCK);
    weft_rref *rref;
    weft_values *got;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(0), "add", WEFT_VALUES(weft_of_i64(1)), NULL, &rref));
    MUST_OK(weft_rref_to_here(rref, 0, &got, NULL));
    weft_values_unref(got);
    weft_rref_unref(rref);
    weft_tensor_unref(x);
    weft_tensor_unref(land);
    atomic_store(&shared.done, true);
}

WORLD_TEST(driven_by_hand, 0, 1, SCENE, .adjust = world_no_threads)

/* Without threads, whoever waits runs what has come, also a call to oneself; a handler that closes its agent is
 * told. */
static weft_status run_close_here(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    MUST_BE(weft_agent_close(agent, WEFT_FOREVER), WEFT_ERR_DEADLOCK);
    return weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL);
}

static void test_alone_without_threads(void **state)
{
    static const weft_function own[] = {{.name = "close", .run = run_close_here},
                                        {.name = "nothing", .run = world_run_nothing}};
    weft_agent *agent;
    weft_agent_options options = {.has_rank = true,
                                  .world_size = 1,
                                  .master_port = world_free_port(),
                                  .no_threads = true,
                                  .functions = own,
                                  .function_count = 2};
    MUST_OK(weft_agent_open(&options, &agent, NULL));
    MUST_OK(
        weft_rpc_sync(agent, weft_to_rank(0), "close", WEFT_NO_VALUES, &(weft_rpc_options){.timeout_ms = 20000}, NULL));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

/* ---- Again and again ------------------------------------------------------------------------------------------- */

static int entries_of(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    MUST(folder);
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

static void call_everybody(weft_agent *agent, void *arg)
{
    for (int rank = 0; rank < weft_agent_world_size(agent); rank++)
        add_once(agent, rank, "add");
}

static void call_myself(weft_agent *agent, void *arg)
{
    add_once(agent, weft_agent_rank(agent), "add");
}

/* Memory in use. Futures and errors take the places of ended objects in their rings (base/handle.h); the ring of calls
 * is full after the first rounds. */
static size_t memory_in_use(void)
{
    for (int i = 0; i < 1024; i++) {
        weft_future_unref(weft_future_create(NULL));
        weft_error_unref(weft_error_create(WEFT_ERR_IO, "turn %d", i));
    }
    return mallinfo2().uordblks;
}

/* Two hundred agents, of which nothing remains. */
static void test_open_and_close(void **s)
{
    int threads = 0, descriptors = 0, shared_memory = shared_memory_of_weft();
    size_t memory = 0;
    for (int i = 0; i < 100; i++) {
        bool stop = i % 5 == 4; /* without waiting for the other */
        world_play(&(world){SCENE, .program = stop ? call_myself : call_everybody, .stop = stop}, i % 2, !(i % 2));
        if (i != 20)
            continue;
        threads = entries_of("/proc/self/task");
        descriptors = entries_of("/proc/self/fd");
        memory = memory_in_use();
    }
    for (int i = 0; i < 1000 && entries_of("/proc/self/task") > threads; i++)
        usleep(1000); /* joined threads may still be seen for a moment */
    assert_true(entries_of("/proc/self/task") <= threads);
    assert_true(entries_of("/proc/self/fd") <= descriptors);
    assert_true(memory_in_use() < memory + 64 * 1024);
    assert_true(shared_memory_of_weft() <= shared_memory);
}

WORLD_TEST(call_everybody, 1, 1, .size = 8, WORLD_FUNCTIONS(functions), .begin = begin)

static weft_future *hold(weft_agent *agent, int to, int64_t timeout_ms)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES,
                           &(weft_rpc_options){.timeout_ms = timeout_ms}, &future));
    return future;
}

/* ---- Stopping under those who wait ------------------------------------------------------------------------------ */

static void *wait_for_ever(void *arg)
{
    weft_future *future = arg;
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    MUST(status == WEFT_ERR_CLOSED || status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_STORE_LOST);
    weft_future_unref(future);
    return NULL;
}

static void leave_waiting(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        for (int i = 0; i < 4; i++)
            MUST(!pthread_create(&shared.waiting[i], NULL, wait_for_ever, hold(agent, i % 2, WEFT_FOREVER)));
        while (atomic_load(&shared.held_count) < 4)
            usleep(100);
        usleep(2000);
        atomic_store(&shared.done, true);
    }
    while (!atomic_load(&shared.done))
        usleep(100);
}

static void test_stop_under_waiters(void **s)
{
    for (int i = 0; i < 20; i++) {
        world_play(&(world){SCENE, .program = leave_waiting, .stop = true}, 0, 1);
        for (int k = 0; k < 4; k++)
            pthread_join(shared.waiting[k], NULL);
        finish_held();
    }
}

/* A future of the user's own outlives the agent that it was made with: who waits for it is called out of the
 * network. */
static void *wait_for_value(void *arg)
{
    MUST(weft_future_wait(arg, WEFT_FOREVER) == WEFT_OK);
    return NULL;
}

static void leave_own_future(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent))
        return;
    shared.own = weft_future_create(agent);
    MUST(shared.own && !pthread_create(&shared.waiting[0], NULL, wait_for_value, shared.own));
    usleep(1000);
}

static void test_own_future_outlives_agent(void **s)
{
    for (int i = 0; i < 20; i++) {
        world_play(&(world){SCENE, .program = leave_own_future, .stop = true}, 0, 1);
        assert_int_equal(weft_future_complete(shared.own, NULL, NULL), WEFT_OK);
        pthread_join(shared.waiting[0], NULL);
        weft_future_unref(shared.own);
    }
}

/* Handlers that still run while their agent stops see its workers until they have ended. */
static void leave_looking_up(weft_agent *agent, void *arg)
{
    for (int i = 0; i < 4; i++) {
        weft_future *future = NULL;
        weft_status status =
            weft_rpc_async(agent, weft_to_rank(1 - weft_agent_rank(agent)), "look up", WEFT_NO_VALUES, NULL, &future);
        MUST(status == WEFT_OK || status == WEFT_ERR_PEER_LEFT ||
             status == WEFT_ERR_STORE_LOST); /* the other may be faster */
        weft_future_unref(future);
    }
    usleep(1500);
}

WORLD_TEST(leave_looking_up, 0, 20, SCENE, .stop = true)

/* ---- Not opened ------------------------------------------------------------------------------------------------- */

static weft_status run_none(weft_batch *batch, void *user)
{
    MUST(false); /* it is never registered */
    return WEFT_OK;
}

static void must_not_open(weft_agent_options options, weft_status wanted, const char *text)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    options.rendezvous_timeout_ms = 100;
    MUST_BE(weft_agent_open(&options, &agent, &error), wanted);
    if (!strstr(weft_error_message(error), text))
        fail_msg("\"%s\" does not speak of \"%s\"", weft_error_message(error), text);
    weft_error_unref(error);
    assert_null(agent);
}

static void test_bad_options(void **s)
{
    static const weft_function no_name = {.run = run_add},
                               twice[] = {{.name = "f", .run = run_add}, {.name = "f", .run = run_add}},
                               ours = {.name = "weft:mine", .run = run_add}, no_run = {.name = "f"},
                               wide = {.name = "f", .run_batch = run_none, .batch = {.size = -8}};
    static char name[200];
#define BAD(...)                                                                                                       \
    {                                                                                                                  \
        .has_rank = true, .world_size = 1, __VA_ARGS__                                                                 \
    }
    static const struct {
        weft_status status;
        const char *text;
        weft_agent_options given;
    } bad[] = {{WEFT_ERR_INVALID, "rank 1", BAD(.rank = 1)},
               {WEFT_ERR_INVALID, "world size 0", {.has_rank = true}},
               {WEFT_ERR_INVALID, "-3", BAD(.threads = -3)},
               {WEFT_ERR_INVALID, "too long", BAD(.name = name)},
               {WEFT_ERR_INVALID, "", BAD(.fabric = "pigeon")},
               {WEFT_ERR_INVALID, "sim", BAD(.fabric = "sim")},
               {WEFT_ERR_INVALID, "function 0", BAD(.functions = &no_name, .function_count = 1)},
               {WEFT_ERR_INVALID, "function 0, \"f\", cannot be registered: run is NULL",
                BAD(.functions = &no_run, .function_count = 1)},
               {WEFT_ERR_INVALID, "batch.size is -8: 1 to 65536", BAD(.functions = &wide, .function_count = 1)},
               {WEFT_ERR_INVALID, "weft:", BAD(.functions = &ours, .function_count = 1)},
               {WEFT_ERR_INVALID, "functions is NULL", BAD(.function_count = 3)},
               {WEFT_ERR_INVALID, "secret", BAD(.secret_size = 32)},
               {WEFT_ERR_EXISTS, "taken", BAD(.functions = twice, .function_count = 2)},
               {WEFT_ERR_RENDEZVOUS, "1", {.has_rank = true, .world_size = 2}}};
#undef BAD
    static const char *const no_ports[] = {"9-8",   "1",          "80",         "0-9", "5000-",
                                           "-5000", "5000-65536", "5000-6000x", "a-b"};
    memset(name, 'n', sizeof(name) - 1);
    unsetenv("RANK");
    assert_int_equal(weft_agent_open(&bad[0].given, NULL, NULL), WEFT_ERR_INVALID);
    must_not_open((weft_agent_options){.master_port = 1}, WEFT_ERR_INVALID, "RANK");
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        weft_agent_options options = bad[i].given;
        options.master_port = world_free_port();
        must_not_open(options, bad[i].status, bad[i].text);
    }
    for (size_t i = 0; i < sizeof(no_ports) / sizeof(*no_ports); i++)
        must_not_open((weft_agent_options){.has_rank = true, .world_size = 1, .master_port = 1, .ports = no_ports[i]},
                      WEFT_ERR_INVALID, "ports (WEFT_PORTS)");
}

static weft_status run_unknown(weft_call *call, void *user)
{
    return (weft_status)-77;
}

static void must_refuse_function(weft_agent *agent, weft_function function, const char *text)
{
    said_line[0] = 0;
    function.name = "wrong";
    weft_logging_set_sink(said_sink, NULL);
    MUST_BE(weft_agent_register(agent, &function), WEFT_ERR_INVALID);
    weft_logging_set_sink(NULL, NULL);
    if (!strstr(said_line, text))
        fail_msg("\"%s\" does not speak of \"%s\"", said_line, text);
}

/* Errors have the value that is wrong. */
static void test_named_values(void **s)
{
    static const weft_function unknown = {.name = "unknown", .run = run_unknown};
    weft_agent *agent;
    weft_group *group;
    weft_error *error = NULL;
    MUST_OK(weft_agent_open(&(weft_agent_options){.has_rank = true,
                                                  .world_size = 1,
                                                  .master_port = WEFT_ANY_PORT,
                                                  .functions = &unknown,
                                                  .function_count = 1},
                            &agent, NULL));
    MUST_BE(
        weft_rpc_sync(agent, weft_to_rank(0), "unknown", WEFT_NO_VALUES, &(weft_rpc_options){.error = &error}, NULL),
        WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), -77);
    MUST(strstr(weft_error_message(error), "the handler ended with -77"));
    weft_error_unref(error);
    must_refuse_function(agent, (weft_function){.run = run_unknown, .flags = 1u << 20},
                         "flags has a bit that is no flag: 0x100000");
    must_refuse_function(agent, (weft_function){.run = run_unknown, .takes = {WEFT_TYPE_I64, (weft_type)99}},
                         "takes has a number that is no type: takes[1] is 99");
    must_refuse_function(agent, (weft_function){.run = run_unknown, .gives = {(weft_type)98}}, "gives[0] is 98");
    weft_call_metrics numbers;
    weft_batch_stats stats;
    weft_rref *rref;
    weft_value value;
    void *nobody = agent;
    REFUSES(weft_metrics_read(agent, (weft_metric_side)7, -1, NULL, &numbers), WEFT_ERR_INVALID, "side is 7");
    REFUSES(weft_metrics_read(agent, WEFT_METRIC_CALLS, -1, NULL, NULL), WEFT_ERR_INVALID, "out is NULL");
    REFUSES(weft_metrics_write(agent, NULL), WEFT_ERR_INVALID, "weft_metrics_write: to is NULL");
    REFUSES(weft_batch_stats_read(agent, "unknown", &stats), WEFT_ERR_NOT_FOUND,
            "\"unknown\" is no registered function");
    REFUSES(weft_agent_expect_callers(agent, "inc", NULL, 0), WEFT_ERR_NOT_FOUND, "\"inc\" is no registered function");
    REFUSES(weft_agent_set_call_timeout(agent, -4), WEFT_ERR_INVALID, "timeout_ms is -4");
    REFUSES(weft_agent_watch(agent, 0), WEFT_ERR_NOT_FOUND, "weft_agent_watch: rank 0 is this worker itself");
    REFUSES(weft_agent_unwatch(agent, 9), WEFT_ERR_NOT_FOUND,
            "rank 9: worker0 has not heard of a worker with that rank");
    MUST_OK(weft_rref_create_object(agent, nobody, NULL, &rref, NULL));
    REFUSES(weft_rref_local_value(rref, 0, &value), WEFT_ERR_TYPE, "the reference names an object");
    REFUSES(weft_rref_local_value(rref, -5, &value), WEFT_ERR_INVALID, "weft_rref_local_value: wait_ms is -5");
    weft_rref_unref(rref);
    REFUSES(weft_rref_create(agent, weft_of_tensor(NULL), &rref, NULL), WEFT_ERR_INVALID, "value 0 is a NULL tensor");
    setenv("WEFT_ALGORITHMS", "allreduce 4 64 rng", 1);
    error = NULL;
    MUST_BE(weft_group_open(agent, "g", NULL, 0, 0, &group, &error), WEFT_ERR_INVALID);
    unsetenv("WEFT_ALGORITHMS");
    MUST(strstr(weft_error_message(error), "WEFT_ALGORITHMS: \"rng\" in \"allreduce 4 64 rng\" is wrong"));
    weft_error_unref(error);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

UNIT_MAIN(test_bad_options, test_driven_by_hand, test_alone_without_threads, test_open_and_close, test_call_everybody,
          test_stop_under_waiters, test_own_future_outlives_agent, test_leave_looking_up, test_named_values)
