/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_defer.c - handlers that answer later or not at all, that call others, that do what they should not. */
#include "rpc/world.h"

#include <pthread.h>

static struct shared {
    world *w;
    _Atomic(weft_call *) held; /* set by a handler's thread */
    atomic_int waited;         /* what an inline handler's wait returned */
    atomic_int closed;         /* what closing from a handler returned */
    atomic_bool refused;
    atomic_bool deferred[2], dumped[2]; /* by rank; relaxed, so that they order nothing else */
} shared;

static weft_status run_hold(weft_call *call, void *user)
{
    shared.held = weft_call_defer_keeping(call);
    return WEFT_DEFERRED;
}

static void *finish_elsewhere(void *arg)
{
    weft_call *call = arg;
    int64_t n = weft_call_i64(call, 0);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(n + 1)));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(n + 2))); /* the last one counts */
    weft_call_finish(call, WEFT_OK);
    return NULL;
}

/* Finished by another thread, perhaps before this one has returned. */
static weft_status run_elsewhere(weft_call *call, void *user)
{
    pthread_t thread;
    weft_call_defer_keeping(call);
    if (shared.w->fabric == WORLD_SIM) {
        finish_elsewhere(call);
    } else {
        MUST(pthread_create(&thread, NULL, finish_elsewhere, call) == 0);
        pthread_detach(thread);
    }
    return WEFT_DEFERRED;
}

static weft_status run_gives_null(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(NULL)));
    return WEFT_OK;
}

static weft_status run_gives_wrong(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(1)));
    return WEFT_OK;
}

static weft_status run_fails_twice(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_SHAPE, "the first");
    weft_call_fail(call, WEFT_ERR_IO, "the second");
    MUST_BE(weft_call_status(call), WEFT_ERR_SHAPE);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(1)));
    return WEFT_OK;
}

/* Back and forth between two workers, waiting each time. */
static weft_status run_nest(weft_call *call, void *user)
{
    int64_t depth = weft_call_i64(call, 0);
    weft_agent *agent = weft_call_agent(call);
    if (depth == 0)
        return WEFT_OK;
    return weft_rpc_sync(agent, weft_to_rank(weft_call_from(call)), "nest", WEFT_VALUES(weft_of_i64(depth - 1)), NULL,
                         NULL);
}

static weft_status run_inline_wait(weft_call *call, void *user)
{
    weft_future *future;
    weft_agent *agent = weft_call_agent(call);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(weft_call_from(call)), "nothing", WEFT_NO_VALUES, NULL, &future));
    atomic_store(&shared.waited, weft_future_wait(future, 5000));
    atomic_store(&shared.closed, weft_agent_close(agent, WEFT_FOREVER));
    weft_future_unref(future);
    return WEFT_OK;
}

static weft_status run_close(weft_call *call, void *user)
{
    atomic_store(&shared.closed, weft_agent_close(weft_call_agent(call), WEFT_FOREVER));
    return WEFT_OK;
}

static void raise_flag(atomic_bool *flag)
{
    atomic_store_explicit(flag, true, memory_order_relaxed);
}

static void await_flag(const atomic_bool *flag)
{
    while (!atomic_load_explicit(flag, memory_order_relaxed))
        world_sleep_ms(shared.w, 1);
}

/* Between deferring and the return it takes no lock: whoever dumps meanwhile is ordered with it by nothing. */
static weft_status run_dumped(weft_call *call, void *user)
{
    int rank = weft_agent_rank(weft_call_agent(call));
    weft_call_defer(call);
    raise_flag(&shared.deferred[rank]);
    await_flag(&shared.dumped[rank]);
    weft_call_finish(call, WEFT_OK);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "nothing", .run = world_run_nothing},
    {.name = "hold", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_hold},
    {.name = "elsewhere", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_elsewhere},
    {.name = "gives null", .gives = {WEFT_TYPE_TENSOR}, .run = run_gives_null},
    {.name = "gives wrong", .gives = {WEFT_TYPE_TENSOR}, .run = run_gives_wrong},
    {.name = "gives nothing", .gives = {WEFT_TYPE_TENSOR}, .run = world_run_nothing},
    {.name = "fails twice", .gives = {WEFT_TYPE_I64}, .run = run_fails_twice},
    {.name = "nest", .takes = {WEFT_TYPE_I64}, .run = run_nest},
    {.name = "inline wait", .run = run_inline_wait, .flags = WEFT_FUNCTION_INLINE},
    {.name = "close", .run = run_close},
    {.name = "dumped", .run = run_dumped},
};

/* ---- Programs -------------------------------------------------------------------------------------------------- */

static int other(weft_agent *agent)
{
    return (weft_agent_rank(agent) + 1) % weft_agent_world_size(agent);
}

static void finished_elsewhere(weft_agent *agent, void *arg)
{
    for (int i = 0; i < 50; i++) {
        weft_values *got;
        int64_t n;
        int to = i % weft_agent_world_size(agent);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "elsewhere", WEFT_VALUES(weft_of_i64(i)), NULL, &got));
        MUST_OK(weft_values_get_i64(got, 0, &n));
        MUST(n == i + 2);
        weft_values_unref(got);
    }
}

static void must_fail(weft_agent *agent, int to, const char *function, weft_status remote, const char *text)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.error = &error, .timeout_ms = 10000};
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(to), function, WEFT_NO_VALUES, &options, NULL), WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), remote);
    MUST(strstr(weft_error_message(error), text) && weft_error_worker(error) == to);
    MUST(strcmp(weft_error_function(error), function) == 0);
    weft_error_unref(error);
}

static void bad_handlers(weft_agent *agent, void *arg)
{
    for (int to = 0; to < weft_agent_world_size(agent); to++) {
        must_fail(agent, to, "gives null", WEFT_ERR_INVALID, "NULL");
        must_fail(agent, to, "gives wrong", WEFT_ERR_TYPE, "int64");
        must_fail(agent, to, "gives nothing", WEFT_ERR_STATE, "no results");
        must_fail(agent, to, "fails twice", WEFT_ERR_SHAPE, "the first");
    }
}

static void nested(weft_agent *agent, void *arg)
{
    weft_future *futures[4];
    for (int i = 0; i < 4; i++)
        MUST_OK(
            weft_rpc_async(agent, weft_to_rank(other(agent)), "nest", WEFT_VALUES(weft_of_i64(5)), NULL, &futures[i]));
    MUST_OK(weft_future_wait_all(futures, 4, WEFT_FOREVER));
    for (int i = 0; i < 4; i++)
        weft_future_unref(futures[i]);
}

typedef struct relay {
    weft_agent *agent;
    atomic_int left;
} relay;

static weft_status call_again(weft_future *parent, weft_future *child, void *arg)
{
    relay *r = arg;
    weft_future *next;
    MUST(!weft_future_error(parent));
    weft_status status =
        weft_rpc_async(r->agent, weft_to_rank(other(r->agent)), "nothing", WEFT_NO_VALUES, NULL, &next);
    if (!status) {
        status = weft_future_wait(next, WEFT_FOREVER); /* on a worker: may wait */
        weft_future_unref(next);
    }
    return status ? status : weft_future_complete(child, NULL, NULL);
}

static void from_continuations(weft_agent *agent, void *arg)
{
    relay r = {.agent = agent};
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(other(agent)), "nothing", WEFT_NO_VALUES, NULL, &future));
    for (int i = 0; i < 10; i++) {
        weft_future *next = weft_future_then(future, call_again, &r, NULL);
        weft_future_unref(future);
        future = next;
    }
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
}

/* Rank 1's thread sleeps meanwhile: one that closes may read the network itself, and hands inline handlers to the
 * executor. */
static void waits_refused(weft_agent *agent, void *arg)
{
    while (weft_agent_rank(agent) != 0 && !atomic_load(&shared.refused))
        world_sleep_ms(shared.w, 1);
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "inline wait", WEFT_NO_VALUES, NULL, NULL));
    MUST_BE((weft_status)atomic_load(&shared.waited), WEFT_ERR_DEADLOCK);
    MUST_BE((weft_status)atomic_load(&shared.closed), WEFT_ERR_DEADLOCK);
    atomic_store(&shared.closed, 0);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "close", WEFT_NO_VALUES, NULL, NULL));
    MUST_BE((weft_status)atomic_load(&shared.closed), WEFT_ERR_DEADLOCK);
    atomic_store(&shared.closed, 0);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "close", WEFT_NO_VALUES, NULL, NULL));
    MUST_BE((weft_status)atomic_load(&shared.closed), WEFT_ERR_DEADLOCK);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, NULL, NULL));
    atomic_store(&shared.refused, true);
}

/* A caller that gave up does not keep the callee from closing, though its call is never finished. On a busy machine
 * the time may be over before the handler's turn comes: then it does not run, and more time is given. */
static weft_future *unfinished; /* of one to ourselves: its arguments are kept, so it ends when the agent closes */

/* The call of ours is late, and its handler has it. */
static void stays_unfinished(weft_future *future)
{
    while (!weft_call_cancelled(shared.held))
        world_sleep_ms(shared.w, 1);
    MUST_BE(weft_future_wait(future, 20), WEFT_ERR_TIMEOUT);
    MUST(!weft_future_done(future));
    unfinished = weft_future_ref(future);
}

/* The error names the limit. */
static bool is_late(const weft_error *error, int64_t limit_ms)
{
    char limit[64];
    snprintf(limit, sizeof(limit), "within the call's time limit, %lld ms", (long long)limit_ms);
    return weft_error_code(error) == WEFT_ERR_TIMEOUT && strstr(weft_error_message(error), limit);
}

static void never_finished(weft_agent *agent, void *arg)
{
    weft_rpc_options options = {.timeout_ms = 20};
    int to = *(int *)arg;
    for (; weft_agent_rank(agent) == 0 && !shared.held; options.timeout_ms *= 4) {
        weft_future *future;
        MUST(options.timeout_ms < 100000);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(to), "hold", WEFT_VALUES(weft_of_i64(1)), &options, &future));
        while (!weft_future_done(future) && (to || !shared.held))
            world_sleep_ms(shared.w, 1);
        MUST(!weft_future_done(future) || is_late(weft_future_error(future), options.timeout_ms));
        for (int i = 0; i < 20 && !shared.held; i++) /* it may have begun just before */
            world_sleep_ms(shared.w, 1);
        if (shared.held && !to)
            stays_unfinished(future);
        weft_future_unref(future);
    }
}

/* For ThreadSanitizer: a dump reads a call that its handler is deferring. */
static void dumped_while_deferring(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    weft_future *futures[2];
    for (int to = 0; rank == 0 && to < 2; to++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(to), "dumped", WEFT_NO_VALUES, NULL, &futures[to]));
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    await_flag(&shared.deferred[rank]);
    MUST_OK(weft_debug_dump(agent, to));
    raise_flag(&shared.dumped[rank]);
    fclose(to);
    MUST(strstr(text, "\"deferred\""));
    free(text);
    if (rank == 0)
        MUST_OK(weft_future_wait_all(futures, 2, WEFT_FOREVER));
    for (int i = 0; rank == 0 && i < 2; i++)
        weft_future_unref(futures[i]);
}

static void begin(world *w)
{
    memset(&shared, 0, sizeof(shared));
    shared.w = w;
}

#define SCENE WORLD_FUNCTIONS(functions), .begin = begin

/* ---- Facts ----------------------------------------------------------------------------------------------------- */

WORLD_TEST(finished_elsewhere, 5, 1, SCENE, .size = 2)
WORLD_TEST(bad_handlers, 2, 1, SCENE, .size = 2)

WORLD_TEST(nested, 20, 1, SCENE, .size = 2, .adjust = world_one_worker)

WORLD_TEST(from_continuations, 5, 1, SCENE, .size = 2, .adjust = world_one_worker)
WORLD_TEST(waits_refused, 5, 1, SCENE, .size = 2)

WORLD_TEST(dumped_while_deferring, 0, 1, SCENE, .size = 2)

static void finish_too_late(world *w)
{
    assert_true(*(int *)w->arg != 0 || weft_error_code(weft_future_error(unfinished)) == WEFT_ERR_TIMEOUT);
    weft_future_unref(unfinished);
    unfinished = NULL;
    weft_call_give(shared.held, WEFT_VALUES(weft_of_i64(1))); /* after its agent has closed */
    assert_true(weft_call_time_left(shared.held) == 0);
    weft_call_finish(shared.held, WEFT_OK);
}

static void test_never_finished(void **s)
{
    for (int to = 0; to < 2; to++)
        world_play(&(world){SCENE, .size = 2, .program = never_finished, .arg = &to, .end = finish_too_late}, 1, 1);
}

UNIT_MAIN(test_finished_elsewhere, test_bad_handlers, test_nested, test_from_continuations, test_waits_refused,
          test_never_finished, test_dumped_while_deferring)
