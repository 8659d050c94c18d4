/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_plan.c - calls that cannot be started: the error says which field or value is at fault, and nothing was changed;
 * and what a handler or a continuation returns that is no status.
 */
#include "rpc/world.h"

static weft_status run_seven(weft_call *call, void *user)
{
    return (weft_status)7;
}

static const weft_function functions[] = {
    {.name = "seven", .run = run_seven},
    {.name = "take", .takes = {WEFT_REST}, .run = run_seven},
};

static void expect(weft_agent *agent, const char *function, weft_args arguments, weft_rpc_options options,
                   weft_status wanted, const char *words)
{
    weft_error *error = NULL;
    weft_future *future;
    options.error = &error;
    MUST_BE(weft_rpc_async(agent, weft_to_rank(1), function, arguments, &options, &future), wanted);
    MUST(error && weft_error_code(error) == wanted && weft_error_worker(error) == -1);
    if (!strstr(weft_error_message(error), words))
        fprintf(stderr, "\"%s\" lacks \"%s\"\n", weft_error_message(error), words);
    MUST(strstr(weft_error_message(error), words));
    weft_error_unref(error);
}

static void bad_options(weft_agent *agent)
{
    weft_tensor *base = weft_tensor_full(WEFT_SHAPE(3, 4), WEFT_FLOAT32, 1),
                *across = weft_tensor_transpose(base, 0, 1);
    char long_name[200];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    weft_rpc_options none = {0};
    expect(agent, "take", WEFT_NO_VALUES, (weft_rpc_options){.timeout_ms = -3}, WEFT_ERR_INVALID, "timeout_ms is -3");
    expect(agent, "take", WEFT_NO_VALUES, (weft_rpc_options){.retry.attempts = -1}, WEFT_ERR_INVALID, "attempts -1");
    expect(agent, "take", WEFT_NO_VALUES, (weft_rpc_options){.land = {NULL, 2}}, WEFT_ERR_INVALID, "2 tensors at NULL");
    expect(agent, "take", WEFT_NO_VALUES, (weft_rpc_options){.land = {&across, 1}}, WEFT_ERR_INVALID, "not contiguous");
    weft_error *error = NULL;
    weft_rref *rref;
    weft_rpc_options lands = {.land = {&base, 1}, .error = &error};
    MUST_BE(weft_rpc_remote(agent, weft_to_rank(1), "take", WEFT_NO_VALUES, &lands, &rref), WEFT_ERR_INVALID);
    MUST(strstr(weft_error_message(error), "land: the result of weft_rpc_remote"));
    weft_error_unref(error);
    MUST_BE(weft_agent_set_call_timeout(agent, -7), WEFT_ERR_INVALID);
    expect(agent, "", WEFT_NO_VALUES, none, WEFT_ERR_INVALID, "0 bytes");
    expect(agent, long_name, WEFT_NO_VALUES, none, WEFT_ERR_INVALID, "199 bytes");
    weft_tensor_unref(across);
    weft_tensor_unref(base);
}

static void bad_arguments(weft_agent *agent)
{
    static weft_value many[WEFT_MAX_VALUES + 1];
    weft_rpc_options none = {0};
    weft_value strange = {.type = (weft_type)99};
    weft_tensor *nothing = NULL;
    for (size_t i = 0; i <= WEFT_MAX_VALUES; i++)
        many[i] = weft_of_null();
    expect(agent, "take", (weft_args){NULL, 3}, none, WEFT_ERR_INVALID, "3 values at NULL");
    expect(agent, "take", (weft_args){many, WEFT_MAX_VALUES + 1}, none, WEFT_ERR_TOO_LARGE, "1025 values");
    expect(agent, "take", WEFT_VALUES(weft_of_i64(1), weft_of_tensor(NULL)), none, WEFT_ERR_INVALID,
           "argument 1 is a NULL tensor");
    expect(agent, "take", WEFT_VALUES(weft_of_list(WEFT_VALUES(weft_of_rref(NULL)))), none, WEFT_ERR_INVALID,
           "argument 0.0 is a NULL reference");
    expect(agent, "take", WEFT_VALUES(weft_of_tensors((weft_tensors){&nothing, 1})), none, WEFT_ERR_INVALID,
           "tensor 0 is NULL");
    expect(agent, "take", (weft_args){&strange, 1}, none, WEFT_ERR_INVALID, "type 99");
}

static weft_status continue_oddly(weft_future *parent, weft_future *child, void *arg)
{
    return (weft_status)5;
}

static void what_is_no_status(weft_agent *agent)
{
    weft_future *future;
    for (int rank = 0; rank < 2; rank++) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), "seven", WEFT_NO_VALUES, NULL, &future));
        MUST_BE(weft_future_wait(future, 10000), WEFT_ERR_REMOTE);
        MUST_BE(weft_error_remote_code(weft_future_error(future)), WEFT_ERR_INVALID);
        weft_future *child = weft_future_then(future, continue_oddly, NULL, NULL);
        MUST_BE(weft_future_wait(child, 10000), WEFT_ERR_INVALID);
        weft_future_unref(child);
        weft_future_unref(future);
    }
}

static void play(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    bad_options(agent);
    bad_arguments(agent);
    what_is_no_status(agent);
    weft_function reserved = {.name = "weft:mine", .run = run_seven};
    MUST_BE(weft_agent_register(agent, &reserved), WEFT_ERR_INVALID);
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    MUST(stats.calls_started == 2 && stats.bytes_held == 0);
}

static void run_on(world_fabric fabric)
{
    world w = {.fabric = fabric, .size = 2, .seed = 1, WORLD_FUNCTIONS(functions), .program = play};
    world_run(&w);
}

static void test_on_sim(void **state)
{
    run_on(WORLD_SIM);
}

static void test_on_tcp(void **state)
{
    run_on(WORLD_TCP);
}

static void test_opening(void **state)
{
    weft_agent *agent;
    weft_error *error = NULL;
    weft_agent_options options = {
        .has_rank = true, .world_size = 1, .master_port = 1, .function_count = 3, .error = &error};
    assert_int_equal(weft_agent_open(&options, &agent), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "functions is NULL"));
    weft_error_unref(error);
    options.function_count = 0;
    options.secret_size = 32;
    assert_int_equal(weft_agent_open(&options, &agent), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "secret"));
    weft_error_unref(error);
    assert_int_equal(weft_agent_open(&options, NULL), WEFT_ERR_INVALID);
}

/* Without threads, whoever waits runs what has come, also a call to oneself; a handler that closes its agent is told. */
static weft_status run_close(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    MUST_BE(weft_agent_close(agent), WEFT_ERR_DEADLOCK);
    return weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL);
}

static weft_status run_nothing(weft_call *call, void *user)
{
    return WEFT_OK;
}

static void test_alone_without_threads(void **state)
{
    static const weft_function own[] = {{.name = "close", .run = run_close}, {.name = "nothing", .run = run_nothing}};
    weft_agent *agent;
    weft_agent_options options = {.has_rank = true,
                                  .world_size = 1,
                                  .master_port = world_free_port(),
                                  .no_threads = true,
                                  .functions = own,
                                  .function_count = 2};
    MUST_OK(weft_agent_open(&options, &agent));
    MUST_OK(
        weft_rpc_sync(agent, weft_to_rank(0), "close", WEFT_NO_VALUES, &(weft_rpc_options){.timeout_ms = 20000}, NULL));
    MUST_OK(weft_agent_close(agent));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_on_sim), cmocka_unit_test(test_on_tcp),
                                       cmocka_unit_test(test_opening), cmocka_unit_test(test_alone_without_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
