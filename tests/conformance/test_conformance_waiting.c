/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance_waiting.c - what the reference hangs on: everybody waits for everybody. Its time limits are
 * queued on the very workers that wait, so that they do not fire either.
 */
#include "conformance/conformance.h"

#include <pthread.h>

#include "unit.h"

/* ---- Functions ------------------------------------------------------------------------------------------------ */

/* (depth): there and back, waiting at every step; the last one waits for "hold". */
static weft_status serve_nest(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    int64_t depth = weft_call_i64(call, 0);
    weft_target next = weft_to_rank(next_rank(agent));
    if (depth == 0)
        return WEFT_OK;
    return weft_rpc_sync(agent, next, "nest", WEFT_VALUES(weft_of_i64(depth - 1)), &(weft_rpc_options){.parent = call},
                         NULL);
}

static atomic_int unwound;

/* (depth, bounded): as above, and the last one asks for what nobody answers; `bounded`: for as long as its caller
 * waits. */
static weft_status serve_nest_hold(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    int64_t depth = weft_call_i64(call, 0);
    bool bounded = weft_call_bool(call, 1);
    weft_rpc_options options = {.timeout_ms = bounded ? 0 : WEFT_FOREVER, .parent = bounded ? call : NULL};
    weft_target next = weft_to_rank(next_rank(agent));
    weft_status status = depth
                             ? weft_rpc_sync(agent, next, "nest hold",
                                             WEFT_VALUES(weft_of_i64(depth - 1), weft_of_bool(bounded)), &options, NULL)
                             : weft_rpc_sync(agent, next, "hold", WEFT_NO_VALUES, &options, NULL);
    atomic_fetch_add(&unwound, 1);
    return status;
}

static pthread_mutex_t users_mutex;
static atomic_int locked_calls, callbacks;

static weft_status serve_needs_mutex(weft_call *call, void *user)
{
    MUST(!pthread_mutex_lock(&users_mutex)); /* EDEADLK if it is the waiter that runs this */
    atomic_fetch_add(&locked_calls, 1);
    MUST(!pthread_mutex_unlock(&users_mutex));
    return WEFT_OK;
}

static weft_status serve_slow(weft_call *call, void *user)
{
    item_sleep_ms(20);
    return WEFT_OK;
}

static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "nest", .takes = {WEFT_TYPE_I64}, .run = serve_nest},
    {.name = "nest hold", .takes = {WEFT_TYPE_I64, WEFT_TYPE_BOOL}, .run = serve_nest_hold},
    {.name = "needs mutex", .run = serve_needs_mutex},
    {.name = "slow", .run = serve_slow},
};

static void one_worker(weft_agent_options *options)
{
    options->threads = 1;
}

static void reset(void)
{
    release_held(0);
    atomic_store(&unwound, 0);
    atomic_store(&locked_calls, 0);
    atomic_store(&callbacks, 0);
}

/* ---- One worker on both sides, A -> B -> A -> B, from both ends at once --------------------------------------- */

static void await_all(weft_future **futures, int count)
{
    MUST_OK(weft_future_wait_all(futures, (size_t)count, ITEM_PATIENCE_MS));
    for (int i = 0; i < count; i++)
        weft_future_unref(futures[i]);
}

static void nested_to_and_fro(weft_agent *agent, void *arg)
{
    enum { CHAINS = 4 };
    weft_future *chains[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        chains[i] = start(agent, weft_to_rank(next_rank(agent)), "nest", WEFT_VALUES(weft_of_i64(3 + 4 * i)));
    await_all(chains, CHAINS);
}

ITEM(case_nested_with_one_worker_on_both_sides, .program = nested_to_and_fro, .size = 2, .adjust = one_worker,
     ITEM_FUNCTIONS(functions))

enum { DEPTH = 2 }; /* f on B, g on A, h on B, and "hold" on A */

/* What nobody answers runs out of time, though all workers wait; the others go on answering. */
static void time_limits_fire(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    for (int bounded = 0; bounded < 2; bounded++) {
        weft_future *future = start_for(agent, weft_to_rank(1), "nest hold",
                                        WEFT_VALUES(weft_of_i64(DEPTH), weft_of_bool(bounded)), 1500);
        weft_status status = weft_future_wait(future, ITEM_PATIENCE_MS);
        MUST(weft_future_done(future));
        MUST(status == WEFT_ERR_TIMEOUT ||
             (bounded && status == WEFT_ERR_REMOTE)); /* an inner one may be the first to tell */
        weft_future_unref(future);
        for (int to = 0; to < 2; to++)
            MUST(ask(agent, weft_to_rank(to), "add", WEFT_VALUES(weft_of_i64(1), weft_of_i64(2))) == 3);
        if (!bounded) {
            item_await(&held_count, 1);
            MUST(atomic_load(&unwound) == 0);
            release_held(0);
        }
        item_await(&unwound, DEPTH + 1); /* bounded: with nobody's help */
        atomic_store(&unwound, 0);
    }
}

ITEM(case_time_limits_while_all_workers_wait, .program = time_limits_fire, .size = 2, .adjust = one_worker,
     .after = reset, ITEM_FUNCTIONS(functions))

/* ---- More chains than workers, round the whole world ---------------------------------------------------------- */

static bool ended_busy(const weft_future *future)
{
    return weft_error_handler_code(weft_future_error(future)) == WEFT_ERR_BUSY;
}

static void every_worker_waits(weft_agent *agent, void *arg)
{
    enum { CHAINS = 4, MANY = 40 };
    weft_future *chains[MANY];
    for (int i = 0; i < CHAINS; i++) /* 48 waiting handlers a worker */
        chains[i] = start(agent, weft_to_rank(next_rank(agent)), "nest", WEFT_VALUES(weft_of_i64(12)));
    await_all(chains, CHAINS);
    /* More than there are threads for (an executor makes 256 besides its own), without a time limit: when nothing
     * moves, the calls that have not run are refused, and so the rest goes on; and then everything is as before. */
    for (int i = 0; i < MANY; i++)
        chains[i] =
            start_for(agent, weft_to_rank(next_rank(agent)), "nest", WEFT_VALUES(weft_of_i64(12)), WEFT_FOREVER);
    for (int i = 0; i < MANY; i++) {
        weft_status status = weft_future_wait(chains[i], ITEM_PATIENCE_MS);
        MUST(weft_future_done(chains[i]));
        MUST(status == WEFT_OK || status == WEFT_ERR_BUSY || (status == WEFT_ERR_REMOTE && ended_busy(chains[i])));
        weft_future_unref(chains[i]);
    }
    weft_rpc_options patient = {.retry = {.attempts = 30}}; /* the others may be full yet */
    for (int to = 0; to < WORKERS; to++)
        MUST_OK(
            weft_rpc_sync(agent, weft_to_rank(to), "add", WEFT_VALUES(weft_of_i64(1), weft_of_i64(2)), &patient, NULL));
}

static void two_workers(weft_agent_options *options)
{
    options->threads = 2;
}

ITEM(case_nested_calls_while_every_worker_waits, .program = every_worker_waits, .adjust = two_workers,
     ITEM_FUNCTIONS(functions))

/* ---- The user's mutex ----------------------------------------------------------------------------------------- */

static void lock_in_callback(weft_future *future, void *arg)
{
    MUST(!pthread_mutex_lock(&users_mutex));
    atomic_fetch_add(&callbacks, 1);
    MUST(!pthread_mutex_unlock(&users_mutex));
}

/* Waits for a call with the mutex held, while others want handlers and callbacks run that need it: those have to
 * wait for the mutex, on workers; never may the waiter run them. */
static void wait_under_mutex(weft_agent *agent)
{
    enum { ROUNDS = 5 };
    for (int i = 0; i < ROUNDS; i++) {
        MUST(!pthread_mutex_lock(&users_mutex));
        int before = atomic_load(&locked_calls);
        weft_future *done = start(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES);
        MUST_OK(weft_future_add_done_callback(done, lock_in_callback, NULL, NULL));
        MUST_OK(weft_future_wait(done, ITEM_PATIENCE_MS));
        tell(agent, weft_to_rank(1), "slow", WEFT_NO_VALUES); /* meanwhile they arrive */
        MUST(atomic_load(&locked_calls) == before && atomic_load(&callbacks) == i);
        MUST(!pthread_mutex_unlock(&users_mutex));
        weft_future_unref(done);
        item_await(&callbacks, i + 1);
    }
}

static void *helper_thread(void *arg)
{
    wait_under_mutex(arg);
    return NULL;
}

static void mutex_holders(weft_agent *agent, void *arg)
{
    pthread_t thread;
    weft_future *wants[8];
    if (weft_agent_rank(agent) == 0) {
        MUST(!pthread_create(&thread, NULL, helper_thread, agent));
        pthread_join(thread, NULL);
        return;
    }
    for (int i = 0; i < 8; i++)
        wants[i] = start(agent, weft_to_rank(0), "needs mutex", WEFT_NO_VALUES);
    await_all(wants, 8);
}

static void prepare_mutex(void **state)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&users_mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static void case_waiting_with_the_users_mutex_held(void **state)
{
    prepare_mutex(state);
    item_run(&(item){.program = mutex_holders,
                     .size = 2,
                     .adjust = two_workers,
                     .after = reset,
                     .only_tcp = true,
                     ITEM_FUNCTIONS(functions)});
    pthread_mutex_destroy(&users_mutex);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_nested_with_one_worker_on_both_sides),
        cmocka_unit_test(case_time_limits_while_all_workers_wait),
        cmocka_unit_test(case_nested_calls_while_every_worker_waits),
        cmocka_unit_test(case_waiting_with_the_users_mutex_held),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* one of them, as "case_nested*" */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
