/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_calls.c - calls of every size and kind between two and more workers, on sim and on tcp. */
#include "rpc/world.h"

#include <pthread.h>

/* ---- Functions ------------------------------------------------------------------------------------------------- */

static weft_status run_nothing(weft_call *call, void *user)
{
    return WEFT_OK;
}

static weft_status run_echo(weft_call *call, void *user)
{
    weft_value items[8];
    size_t count = weft_call_count(call);
    for (size_t i = 0; i < count && i < 8; i++) {
        weft_type type = weft_call_type(call, i);
        if (type == WEFT_I64)
            items[i] = weft_of_i64(weft_call_i64(call, i));
        else if (type == WEFT_F64)
            items[i] = weft_of_f64(weft_call_f64(call, i));
        else if (type == WEFT_BOOL)
            items[i] = weft_of_bool(weft_call_bool(call, i));
        else if (type == WEFT_STRING)
            items[i] = weft_of_string(weft_call_string(call, i));
        else if (type == WEFT_TENSOR)
            items[i] = weft_of_tensor(weft_call_tensor(call, i));
        else if (type == WEFT_TENSORS)
            items[i] = weft_of_tensors(weft_call_tensors(call, i));
        else if (type == WEFT_LIST)
            items[i] = weft_of_list(weft_call_list(call, i));
        else
            items[i] = weft_of_null();
    }
    weft_call_give(call, (weft_args){items, count});
    return WEFT_OK;
}

static weft_status run_fail(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_SHAPE, "row %d is crooked", 7);
    return WEFT_ERR_SHAPE;
}

static weft_status run_never(weft_call *call, void *user)
{
    weft_call **kept = user;
    weft_call *mine = weft_call_defer(call);
    if (kept)
        *kept = mine;
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "nothing", .run = run_nothing},
    {.name = "inline", .run = run_nothing, .flags = WEFT_INLINE},
    {.name = "echo", .takes = {WEFT_REST}, .gives = {WEFT_REST}, .run = run_echo},
    {.name = "fail", .gives = {WEFT_I64}, .run = run_fail},
    {.name = "typed", .takes = {WEFT_TENSOR, WEFT_F64}, .gives = {WEFT_TENSOR}, .run = run_echo},
};

/* ---- Programs -------------------------------------------------------------------------------------------------- */

static int other(weft_agent *agent)
{
    return (weft_agent_rank(agent) + 1) % weft_agent_world_size(agent);
}

static void calls_nothing(weft_agent *agent, void *arg)
{
    for (int i = 0; i < 100; i++) {
        MUST(weft_rpc_sync(agent, weft_to_rank(other(agent)), "nothing", WEFT_NO_VALUES, NULL, NULL) == WEFT_OK);
        MUST(weft_rpc_sync(agent, weft_to_rank(other(agent)), "inline", WEFT_NO_VALUES, NULL, NULL) == WEFT_OK);
    }
}

static void echo_values(weft_agent *agent, void *arg)
{
    weft_values *got = NULL;
    const char *text;
    int64_t i;
    double f;
    bool b;
    weft_args list;
    weft_args sent = WEFT_VALUES(weft_of_i64(-5), weft_of_f64(0.25), weft_of_bool(true), weft_of_string("weft"),
                                 weft_of_null(), weft_of_list(WEFT_VALUES(weft_of_i64(9), weft_of_string("in"))));
    MUST(weft_rpc_sync(agent, weft_to_rank(other(agent)), "echo", sent, NULL, &got) == WEFT_OK);
    MUST(weft_values_count(got) == 6);
    MUST(!weft_values_get_i64(got, 0, &i) && i == -5);
    MUST(!weft_values_get_f64(got, 1, &f) && f == 0.25);
    MUST(!weft_values_get_bool(got, 2, &b) && b);
    MUST(!weft_values_get_string(got, 3, &text) && strcmp(text, "weft") == 0);
    MUST(weft_values_type(got, 4) == WEFT_NULL);
    MUST(!weft_values_get_list(got, 5, &list) && list.count == 2 && list.items[0].as.i64 == 9);
    weft_values_unref(got);
}

static void check_echo_of(weft_agent *agent, int64_t count, weft_tensor *land)
{
    weft_tensor *x = weft_tensor_arange(count, WEFT_INT32), *y;
    weft_values *got = NULL;
    weft_error *error = NULL;
    weft_rpc_options options = {.land = {&land, land ? 1 : 0}, .timeout_ms = WEFT_FOREVER, .error = &error};
    weft_status st =
        weft_rpc_sync(agent, weft_to_rank(other(agent)), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, &got);
    weft_error_print(error, stderr);
    MUST(st == WEFT_OK);
    MUST(!weft_values_get_tensor(got, 0, &y));
    MUST(weft_tensor_same_shape(x, y) && weft_tensor_dtype(y) == WEFT_INT32 && (!land || y == land));
    MUST(memcmp(weft_tensor_data(x), weft_tensor_data(y), weft_tensor_nbytes(x)) == 0);
    weft_values_unref(got);
    weft_tensor_unref(x);
}

static void echo_tensors(weft_agent *agent, void *arg)
{
    static const int64_t counts[] = {0, 1, 16, 100, 500, 511, 513, 5000, 262144, 262145, 3000000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        weft_tensor *land = weft_tensor_empty(WEFT_SHAPE(counts[i]), WEFT_INT32);
        check_echo_of(agent, counts[i], NULL);
        check_echo_of(agent, counts[i], land);
        weft_tensor_unref(land);
    }
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    MUST(stats.bytes_copied == 0);
}

/* 161 tensors with 161 landing places: the metadata outgrows a frame both ways. */
static void echo_many_tensors(weft_agent *agent, void *arg)
{
    enum { COUNT = 161 };
    weft_tensor *sent[COUNT], *land[COUNT];
    for (int i = 0; i < COUNT; i++) {
        sent[i] = weft_tensor_full(WEFT_SHAPE(i % 3 ? 64 : 1000, 1 + i % 7), WEFT_FLOAT32, i + 0.5);
        land[i] = weft_tensor_zeros(weft_tensor_shape(sent[i]), WEFT_FLOAT32);
    }
    weft_rpc_options options = {.land = {land, COUNT}};
    MUST(weft_rpc_sync(agent, weft_to_rank(other(agent)), "echo",
                       WEFT_VALUES(weft_of_tensors((weft_tensors){sent, COUNT})), &options, NULL) == WEFT_OK);
    for (int i = 0; i < COUNT; i++) {
        MUST(weft_tensor_get_f64(land[i], 0) == i + 0.5);
        MUST(weft_tensor_get_f64(land[i], weft_tensor_numel(land[i]) - 1) == i + 0.5);
        weft_tensor_unref(sent[i]);
        weft_tensor_unref(land[i]);
    }
}

static void many_in_flight(weft_agent *agent, void *arg)
{
    enum { COUNT = 256 };
    weft_future *futures[COUNT];
    for (int i = 0; i < COUNT; i++)
        MUST(
            !weft_rpc_async(agent, weft_to_rank(other(agent)), "echo", WEFT_VALUES(weft_of_i64(i)), NULL, &futures[i]));
    MUST(weft_future_wait_all(futures, COUNT, WEFT_FOREVER) == WEFT_OK);
    for (int i = 0; i < COUNT; i++) {
        int64_t value = -1;
        MUST(!weft_values_get_i64(weft_future_values(futures[i]), 0, &value) && value == i);
        weft_future_unref(futures[i]);
    }
}

static weft_status call_for_error(weft_agent *agent, weft_target to, const char *function, weft_args args,
                                  weft_error **error)
{
    *error = NULL;
    return weft_rpc_sync(agent, to, function, args, &(weft_rpc_options){.error = error}, NULL);
}

static void bad_calls(weft_agent *agent, void *arg)
{
    weft_error *error;
    int peer = other(agent);
    MUST(call_for_error(agent, weft_to_rank(peer), "no such", WEFT_NO_VALUES, &error) == WEFT_ERR_NOT_FOUND);
    MUST(strstr(weft_error_message(error), "no such") && weft_error_worker(error) == peer);
    weft_error_unref(error);
    MUST(call_for_error(agent, weft_to_rank(99), "echo", WEFT_NO_VALUES, &error) == WEFT_ERR_NOT_FOUND);
    weft_error_unref(error);
    MUST(call_for_error(agent, weft_to_name("nobody"), "echo", WEFT_NO_VALUES, &error) == WEFT_ERR_NOT_FOUND);
    MUST(strstr(weft_error_message(error), "nobody") != NULL);
    weft_error_unref(error);
    MUST(call_for_error(agent, weft_to_rank(peer), "typed", WEFT_VALUES(weft_of_i64(1)), &error) == WEFT_ERR_TYPE);
    MUST(strstr(weft_error_message(error), "int64") && strstr(weft_error_message(error), "tensor"));
    weft_error_unref(error);
    MUST(call_for_error(agent, weft_to_rank(peer), "fail", WEFT_NO_VALUES, &error) == WEFT_ERR_REMOTE);
    MUST(weft_error_remote_code(error) == WEFT_ERR_SHAPE && weft_error_worker(error) == peer);
    MUST(strcmp(weft_error_message(error), "row 7 is crooked") == 0);
    weft_error_unref(error);
    MUST(call_for_error(agent, weft_to_rank(peer), "echo", WEFT_VALUES(weft_of_tensor(NULL)), &error) ==
         WEFT_ERR_INVALID);
    weft_error_unref(error);
    calls_nothing(agent, NULL); /* and all goes on */
}

static void wrong_landing(weft_agent *agent, void *arg)
{
    weft_tensor *x = weft_tensor_arange(5000, WEFT_FLOAT32), *land = weft_tensor_zeros(WEFT_SHAPE(4999), WEFT_FLOAT32);
    weft_error *error = NULL;
    weft_rpc_options options = {.land = {&land, 1}, .error = &error};
    MUST(weft_rpc_sync(agent, weft_to_rank(other(agent)), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, NULL) ==
         WEFT_ERR_SHAPE);
    weft_error_unref(error);
    weft_tensor_unref(x);
    weft_tensor_unref(land);
    check_echo_of(agent, 5000, NULL);
}

static void non_contiguous(weft_agent *agent, void *arg)
{
    weft_tensor *flat = weft_tensor_arange(6000, WEFT_INT64), *x = weft_tensor_reshape(flat, WEFT_SHAPE(60, 100)), *y;
    weft_tensor *t = weft_tensor_transpose(x, 0, 1);
    weft_values *got;
    MUST(!weft_rpc_sync(agent, weft_to_rank(other(agent)), "echo", WEFT_VALUES(weft_of_tensor(t)), NULL, &got));
    MUST(!weft_values_get_tensor(got, 0, &y) && weft_tensor_size(y, 0) == 100);
    for (int64_t i = 0; i < 6000; i++)
        MUST(weft_tensor_get_i64(y, i) == weft_tensor_get_i64(t, i));
    weft_values_unref(got);
    weft_tensor_unref(t);
    weft_tensor_unref(x);
    weft_tensor_unref(flat);
}

static void to_self(weft_agent *agent, void *arg)
{
    weft_tensor *x = weft_tensor_arange(100000, WEFT_FLOAT32), *y,
                *land = weft_tensor_zeros(WEFT_SHAPE(100000), WEFT_FLOAT32);
    weft_values *got;
    int me = weft_agent_rank(agent);
    MUST(!weft_rpc_sync(agent, weft_to_rank(me), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &got));
    MUST(!weft_values_get_tensor(got, 0, &y) && y == x); /* by reference */
    weft_values_unref(got);
    weft_rpc_options options = {.land = {&land, 1}};
    MUST(!weft_rpc_sync(agent, weft_to_name(weft_agent_name(agent, me)), "echo", WEFT_VALUES(weft_of_tensor(x)),
                        &options, NULL));
    MUST(weft_tensor_get_f64(land, 99999) == 99999);
    MUST(weft_rpc_sync(agent, weft_to_rank(me), "fail", WEFT_NO_VALUES, NULL, NULL) == WEFT_ERR_REMOTE);
    weft_tensor_unref(x);
    weft_tensor_unref(land);
}

WORLD_TEST(calls_nothing, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(echo_values, 3, 1, .size = 3, WORLD_FUNCTIONS(functions))
WORLD_TEST(echo_tensors, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(echo_many_tensors, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(many_in_flight, 3, 1, .size = 4, WORLD_FUNCTIONS(functions))
WORLD_TEST(bad_calls, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(wrong_landing, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(non_contiguous, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(to_self, 3, 1, .size = 1, WORLD_FUNCTIONS(functions))

/* ---- Time limits ----------------------------------------------------------------------------------------------- */

static void never_answered(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 1) {
        weft_tensor *x = weft_tensor_arange(200000, WEFT_FLOAT32),
                    *land = weft_tensor_zeros(WEFT_SHAPE(200000), WEFT_FLOAT32);
        weft_rpc_options options = {.land = {&land, 1}, .timeout_ms = 100};
        MUST(weft_rpc_sync(agent, weft_to_rank(0), "never", WEFT_VALUES(weft_of_tensor(x)), &options, NULL) ==
             WEFT_ERR_TIMEOUT);
        MUST(weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL) == WEFT_OK);
        weft_tensor_unref(x);
        weft_tensor_unref(land);
        weft_call **kept = w->functions[0].user;
        MUST(*kept || w->fabric == WORLD_TCP); /* where time is real it may have run out before the handler began */
        if (*kept)
            weft_call_finish(*kept, WEFT_OK); /* too late, and harmless */
    }
}

static void test_never_answered(void **s)
{
    for (int fabric = WORLD_SIM; fabric <= WORLD_TCP; fabric++) {
        weft_call *kept = NULL;
        weft_function table[] = {
            {.name = "never", .takes = {WEFT_REST}, .gives = {WEFT_REST}, .run = run_never, .user = &kept},
            {.name = "nothing", .run = run_nothing}};
        world w = {
            .fabric = (world_fabric)fabric, .seed = 5, .size = 2, WORLD_FUNCTIONS(table), .program = never_answered};
        w.arg = &w;
        world_run(&w);
    }
}

/* 64 trainers, a server whose executor has one worker: the last call answers all. */
typedef struct barrier {
    pthread_mutex_t lock;
    weft_call *waiting[64];
    int arrived, size;
} barrier;

static weft_status run_join(weft_call *call, void *user)
{
    barrier *b = user;
    pthread_mutex_lock(&b->lock);
    b->waiting[b->arrived++] = weft_call_defer(call);
    if (b->arrived == b->size) {
        for (int i = 0; i < b->size; i++) {
            weft_call_give(b->waiting[i], WEFT_VALUES(weft_of_i64(b->size)));
            weft_call_finish(b->waiting[i], WEFT_OK);
        }
        b->arrived = 0;
    }
    pthread_mutex_unlock(&b->lock);
    return WEFT_DEFERRED;
}

static void join_rounds(weft_agent *agent, void *arg)
{
    for (int round = 0; round < 5 && weft_agent_rank(agent) > 0; round++) {
        weft_error *error = NULL;
        weft_rpc_options options = {.error = &error};
        weft_status st = weft_rpc_sync(agent, weft_to_rank(0), "join", WEFT_NO_VALUES, &options, NULL);
        if (st != WEFT_OK)
            weft_error_print(error, stderr);
        MUST(st == WEFT_OK);
    }
}

static void one_worker(weft_agent_options *options, void *arg)
{
    options->workers = 1;
}

static void test_no_parked_threads(void **s)
{
    for (int fabric = WORLD_SIM; fabric <= WORLD_TCP; fabric++) {
        barrier b = {.lock = PTHREAD_MUTEX_INITIALIZER, .size = 64};
        weft_function table[] = {{.name = "join", .gives = {WEFT_I64}, .run = run_join, .user = &b}};
        world_run(&(world){.fabric = (world_fabric)fabric,
                           .seed = 7,
                           .size = 65,
                           WORLD_FUNCTIONS(table),
                           .program = join_rounds,
                           .adjust = one_worker});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_nothing),     cmocka_unit_test(test_echo_values),
        cmocka_unit_test(test_echo_tensors),      cmocka_unit_test(test_echo_many_tensors),
        cmocka_unit_test(test_many_in_flight),    cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_wrong_landing),     cmocka_unit_test(test_non_contiguous),
        cmocka_unit_test(test_to_self),           cmocka_unit_test(test_never_answered),
        cmocka_unit_test(test_no_parked_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
