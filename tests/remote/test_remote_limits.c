/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_limits.c - every limit in milliseconds of every public options struct takes the longest value, and values
 * near those whose nanoseconds, or a small multiple of them, no longer fit 64 bits.
 */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

/* Each value fails in another place if limits are multiplied by hand: the product, three times it, the sum with a
 * clock. */
static const int64_t longest[] = {INT64_MAX,
                                  INT64_MAX - 1,
                                  INT64_MAX / 1000000 + 1,
                                  INT64_MAX / 1000000,
                                  (int64_t)(UINT64_MAX / 3000000) + 1,
                                  (int64_t)(UINT64_MAX / 500000) + 1};

static int64_t limit; /* of the world that runs */

static void long_limits(weft_agent_options *options, void *arg)
{
    options->rendezvous_timeout_ms = options->call_timeout_ms = options->death_timeout_ms = limit;
}

static weft_status run_busy_once(weft_call *call, void *user)
{
    static atomic_int runs;
    return atomic_fetch_add(&runs, 1) % 2 == 0 ? WEFT_ERR_BUSY : world_run_echo(call, user);
}

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "busy once", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_busy_once},
};

static weft_module *make_linear(int64_t argument)
{
    return linear_create(3, 1, false, 1, NULL);
}

static void call_with_limits(weft_agent *agent, weft_tensor *x)
{
    const weft_rpc_options options = {.timeout_ms = limit, .retry = {.attempts = 2, .attempt_ms = limit}};
    weft_values *values;
    weft_rref *there;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, &values));
    weft_values_unref(values);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, &values));
    weft_values_unref(values);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, &there));
    MUST_OK(weft_rref_to_here(there, limit, &values, NULL));
    weft_values_unref(values);
    weft_rref_unref(there);
    MUST_OK(weft_agent_set_call_timeout(agent, limit));
}

/* The pauses are bounded from above only: a pause of the longest value comes second. */
static void retry_with_limits(weft_agent *agent, weft_tensor *x)
{
    const weft_rpc_options options = {.timeout_ms = limit,
                                      .retry = {.attempts = 2, .pause_ms = 1, .pause_most_ms = limit}};
    const weft_rpc_options far = {.timeout_ms = limit,
                                  .retry = {.attempts = 2, .pause_ms = limit, .pause_most_ms = limit}};
    weft_values *values;
    weft_future *future;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "busy once", WEFT_VALUES(weft_of_tensor(x)), &options, &values));
    weft_values_unref(values);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "busy once", WEFT_VALUES(weft_of_tensor(x)), &far, &future));
    MUST_BE(weft_future_wait(future, 50), WEFT_ERR_TIMEOUT); /* it pauses */
    (void)!weft_future_cancel(future);
    MUST_BE(weft_future_wait(future, limit), WEFT_ERR_CANCELLED);
    weft_future_unref(future);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "busy once", WEFT_VALUES(weft_of_tensor(x)), NULL, &values));
    weft_values_unref(values);
}

static void learn_with_limits(weft_agent *agent, weft_tensor *x)
{
    weft_rref *module;
    weft_dist_optimizer *sgd;
    weft_context *context;
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 0.1, .pin_timeout_ms = limit};
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "linear", WEFT_NO_VALUES, NULL, &module));
    MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(module)), &spec, &sgd, NULL));
    for (size_t count = SIZE_MAX; count > SIZE_MAX - 3; count--) {
        weft_error *error = NULL;
        const weft_value list[] = {weft_of_rref(module), weft_of_rref(NULL)};
        MUST_BE(weft_dist_optimizer_create(agent, (weft_args){list, count}, &spec, &sgd, &error), WEFT_ERR_INVALID);
        MUST(strstr(weft_error_message(error), "count is 1844674407370955161"));
        weft_error_unref(error);
    }
    MUST_OK(weft_context_open(agent, &context, NULL));
    weft_tape *tape = weft_context_tape(context, NULL);
    weft_tensor *y = weft_remote_forward(tape, module, x, &(weft_forward_options){.timeout_ms = limit});
    weft_dist_backward(tape, weft_sum(tape, y), &(weft_pass_options){.timeout_ms = limit});
    MUST_OK(weft_tape_status(tape));
    MUST_OK(weft_dist_optimizer_step(sgd, &context, 1, &(weft_dist_step_options){.max_norm = 1, .timeout_ms = limit}));
    weft_tape_close(tape);
    weft_context_close(context, NULL);
    /* A second reference holds it. */
    weft_dist_optimizer_unref(weft_dist_optimizer_ref(sgd));
    MUST(weft_dist_optimizer_owners(sgd) == 1);
    weft_dist_optimizer_unref(sgd);
    weft_rref_unref(module);
}

static void average_with_limits(weft_agent *agent, weft_group *all)
{
    weft_module *module = make_linear(0);
    const weft_data_parallel_options options = {.timeout_ms = limit};
    weft_data_parallel *parallel;
    weft_group *old, *made;
    MUST_OK(weft_data_parallel_create(all, module, &options, &parallel, NULL));
    weft_data_parallel_unref(parallel);
    weft_module_unref(module);
    MUST_OK(weft_group_open(agent, "old", NULL, 0, 0, &old, NULL));
    MUST_OK(weft_group_shrink(old, limit, &made, NULL));
    MUST_OK(weft_group_barrier(made, limit));
    weft_group_close(made);
    weft_group_close(old);
}

static void long_run(weft_agent *agent, void *arg)
{
    weft_group *all;
    weft_tensor *x = tensor_full(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32, 1);
    world_serve_module(agent, "linear", make_linear);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &all, NULL));
    MUST_OK(weft_group_barrier(all, limit));
    if (weft_agent_rank(agent) == 0) {
        call_with_limits(agent, x);
        retry_with_limits(agent, x);
        learn_with_limits(agent, x);
    }
    average_with_limits(agent, all);
    weft_group_close(all);
    weft_tensor_unref(x);
}

static void test_longest(void **state)
{
    for (size_t i = 0; i < sizeof(longest) / sizeof(*longest); i++) {
        limit = longest[i];
        world_play(&(world){.program = long_run, .size = 2, .adjust = long_limits, WORLD_FUNCTIONS(functions)}, 2, 1);
    }
}

/* A peer whose process is gone is noticed by the end of its connection, however long silence is no death. */
static void ends_early(weft_agent *agent, void *arg)
{
    const world *w = arg;
    weft_values *values;
    weft_tensor *x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1);
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &values));
        weft_values_unref(values);
        weft_sim_kill(w->sim, 1);
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)),
                              &(weft_rpc_options){.timeout_ms = limit}, &values),
                WEFT_ERR_PEER_DEAD);
    } else {
        weft_sim_sleep(w->sim, UINT64_C(3000000000000));
    }
    weft_tensor_unref(x);
}

static void test_death_all_the_same(void **state)
{
    for (size_t i = 0; i < sizeof(longest) / sizeof(*longest); i++) {
        limit = longest[i];
        world_play(&(world){.program = ends_early, .size = 2, .adjust = long_limits, WORLD_FUNCTIONS(functions)}, 3, 0);
    }
}

static void sleep_long(weft_sim *sim, int rank, void *arg)
{
    weft_sim_sleep(sim, UINT64_C(1) << 61); /* two of the longest durations of the library */
}

static void test_simulation(void **state)
{
    weft_sim *sim = sim_open(NULL);
    assert_non_null(sim);
    assert_int_equal(weft_sim_spawn(sim, 0, sleep_long, NULL), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, 1), WEFT_ERR_TIMEOUT);
    assert_int_equal(weft_sim_run(sim, INT64_MAX), WEFT_OK);
    weft_sim_close(sim);
}

UNIT_MAIN(test_longest, test_death_all_the_same, test_simulation)
