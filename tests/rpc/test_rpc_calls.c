/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_calls.c - calls of every size, with and without a place to land in, on sim and on tcp. What travels
 * besides is of tests/conformance (items 8 to 16).
 */
#include "rpc/world.h"
#include "tensors.h"

#include <pthread.h>

/* ---- Functions ------------------------------------------------------------------------------------------------- */

static weft_status run_echo(weft_call *call, void *user)
{
    weft_value items[2];
    size_t count = weft_call_count(call);
    for (size_t i = 0; i < count && i < 2; i++)
        items[i] = weft_call_type(call, i) == WEFT_TYPE_TENSORS ? weft_of_tensors(weft_call_tensors(call, i))
                                                                : weft_of_tensor(weft_call_tensor(call, i));
    weft_call_give(call, (weft_args){items, count});
    return WEFT_OK;
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
    {.name = "nothing", .run = world_run_nothing},
    {.name = "inline", .run = world_run_nothing, .flags = WEFT_FUNCTION_INLINE},
    {.name = "echo", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_echo},
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

static void check_echo_of(weft_agent *agent, int64_t count, weft_tensor *land)
{
    weft_tensor *x = tensor_arange(count, WEFT_DTYPE_INT32), *y;
    weft_values *got = NULL;
    weft_error *error = NULL;
    weft_rpc_options options = {.land = {&land, land ? 1 : 0}, .timeout_ms = WEFT_FOREVER, .error = &error};
    weft_status status =
        weft_rpc_sync(agent, weft_to_rank(other(agent)), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, &got);
    weft_error_print(error, stderr);
    MUST(status == WEFT_OK);
    MUST(!weft_values_get_tensor(got, 0, &y));
    MUST(weft_tensor_same_shape(x, y) && weft_tensor_dtype(y) == WEFT_DTYPE_INT32 && (!land || y == land));
    MUST(memcmp(weft_tensor_data(x), weft_tensor_data(y), weft_tensor_nbytes(x)) == 0);
    weft_values_unref(got);
    weft_tensor_unref(x);
}

static void echo_tensors(weft_agent *agent, void *arg)
{
    static const int64_t counts[] = {0, 1, 16, 100, 500, 511, 513, 5000, 262144, 262145, 3000000};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        weft_tensor *land = tensor_empty(WEFT_SHAPE(counts[i]), WEFT_DTYPE_INT32);
        check_echo_of(agent, counts[i], NULL);
        check_echo_of(agent, counts[i], land);
        weft_tensor_unref(land);
    }
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    MUST(stats.bytes_copied <= 8 * sizeof(int32_t) * (513 + 5000)); /* sent and received, as caller and callee, twice */
}

/* 161 tensors with 161 landing places: the metadata outgrows a frame both ways. */
static void echo_many_tensors(weft_agent *agent, void *arg)
{
    enum { COUNT = 161 };
    weft_tensor *sent[COUNT], *land[COUNT];
    for (int i = 0; i < COUNT; i++) {
        sent[i] = tensor_full(WEFT_SHAPE(i % 3 ? 64 : 1000, 1 + i % 7), WEFT_DTYPE_FLOAT32, i + 0.5);
        land[i] = tensor_zeros(weft_tensor_shape(sent[i]), WEFT_DTYPE_FLOAT32);
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

/* Every dtype, there and back, of both sizes: in the frame, and pulled. */
static void echo_dtypes(weft_agent *agent, void *arg)
{
    for (int dtype = WEFT_DTYPE_FLOAT32; dtype <= WEFT_DTYPE_COMPLEX128; dtype++) {
        for (int64_t count = 5; count <= 50000; count *= 10000) {
            weft_tensor *x = tensor_empty(WEFT_SHAPE(count), (weft_dtype)dtype), *y;
            uint8_t *bytes = weft_tensor_data(x);
            for (size_t i = 0; i < weft_tensor_nbytes(x); i++)
                bytes[i] = dtype == WEFT_DTYPE_BOOL ? i % 2 : (uint8_t)(i * 37 + (i >> 8));
            weft_values *got;
            MUST(!weft_rpc_sync(agent, weft_to_rank(other(agent)), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &got));
            MUST(!weft_values_get_tensor(got, 0, &y) && weft_tensor_dtype(y) == (weft_dtype)dtype);
            MUST(weft_tensor_numel(y) == count && memcmp(weft_tensor_data(y), bytes, weft_tensor_nbytes(x)) == 0);
            weft_values_unref(got);
            weft_tensor_unref(x);
        }
    }
}

static void check_echo_of_view(weft_agent *agent, weft_tensor *x)
{
    weft_values *got;
    weft_tensor *y;
    MUST(!weft_rpc_sync(agent, weft_to_rank(other(agent)), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &got));
    MUST(!weft_values_get_tensor(got, 0, &y) && weft_tensor_same_shape(x, y) && weft_tensor_is_contiguous(y));
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        MUST(weft_tensor_get_f64(x, i) == weft_tensor_get_f64(y, i));
    weft_values_unref(got);
}

/* A program's own field: all of it in Fortran order, and its inside without the halo of two, in both orders. */
static void echo_fields(weft_agent *agent, void *arg)
{
    static const int64_t sides[] = {6, 150};
    for (int i = 0; i < 2; i++) {
        int64_t n = sides[i], m = n + 3, rest = (n - 4) * (m - 4);
        double *field = malloc((size_t)(n * m) * sizeof(*field));
        MUST(field);
        for (int64_t k = 0; k < n * m; k++)
            field[k] = (double)k + 0.25;
        weft_tensor *views[] = {
            tensor_wrap(WEFT_SHAPE(n, m), WEFT_DTYPE_FLOAT64, field, (int64_t[]){1, n}, NULL, NULL),
            tensor_wrap(WEFT_SHAPE(n - 4, m - 4), WEFT_DTYPE_FLOAT64, field + 2 + 2 * n, (int64_t[]){1, n}, NULL, NULL),
            tensor_wrap(WEFT_SHAPE(n - 4, m - 4), WEFT_DTYPE_FLOAT64, field + 2 * m + 2, (int64_t[]){m, 1}, NULL, NULL),
        };
        for (int k = 0; k < 3; k++)
            check_echo_of_view(agent, views[k]);
        MUST(weft_tensor_get_f64(views[1], rest - 1) == (double)((n - 3) + (m - 3) * n) + 0.25);
        MUST(weft_tensor_get_f64(views[2], rest - 1) == (double)((n - 3) * m + m - 3) + 0.25);
        for (int k = 0; k < 3; k++)
            weft_tensor_unref(views[k]);
        free(field);
    }
}

static void wrong_landing(weft_agent *agent, void *arg)
{
    weft_tensor *x = tensor_arange(5000, WEFT_DTYPE_FLOAT32),
                *land = tensor_zeros(WEFT_SHAPE(4999), WEFT_DTYPE_FLOAT32);
    weft_error *error = NULL;
    weft_rpc_options options = {.land = {&land, 1}, .error = &error};
    MUST(weft_rpc_sync(agent, weft_to_rank(other(agent)), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, NULL) ==
         WEFT_ERR_SHAPE);
    weft_error_unref(error);
    weft_tensor_unref(x);
    weft_tensor_unref(land);
    check_echo_of(agent, 5000, NULL);
}

static void to_self(weft_agent *agent, void *arg)
{
    weft_tensor *x = tensor_arange(100000, WEFT_DTYPE_FLOAT32), *y,
                *land = tensor_zeros(WEFT_SHAPE(100000), WEFT_DTYPE_FLOAT32);
    weft_values *got;
    int me = weft_agent_rank(agent);
    MUST(!weft_rpc_sync(agent, weft_to_rank(me), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &got));
    MUST(!weft_values_get_tensor(got, 0, &y) && y == x); /* by reference */
    weft_values_unref(got);
    weft_rpc_options options = {.land = {&land, 1}};
    MUST(!weft_rpc_sync(agent, weft_to_name(weft_agent_name(agent, me)), "echo", WEFT_VALUES(weft_of_tensor(x)),
                        &options, NULL));
    MUST(weft_tensor_get_f64(land, 99999) == 99999);
    weft_tensor_unref(x);
    weft_tensor_unref(land);
}

WORLD_TEST(calls_nothing, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(echo_tensors, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(echo_many_tensors, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(echo_dtypes, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(echo_fields, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(wrong_landing, 3, 1, .size = 2, WORLD_FUNCTIONS(functions))
WORLD_TEST(to_self, 3, 1, .size = 1, WORLD_FUNCTIONS(functions))

/* ---- Time limits ----------------------------------------------------------------------------------------------- */

static void never_answered(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 1) {
        weft_tensor *x = tensor_arange(200000, WEFT_DTYPE_FLOAT32),
                    *land = tensor_zeros(WEFT_SHAPE(200000), WEFT_DTYPE_FLOAT32);
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
            {.name = "never", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_never, .user = &kept},
            {.name = "nothing", .run = world_run_nothing}};
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
        weft_status status = weft_rpc_sync(agent, weft_to_rank(0), "join", WEFT_NO_VALUES, &options, NULL);
        if (status != WEFT_OK)
            weft_error_print(error, stderr);
        MUST(status == WEFT_OK);
    }
}

static void test_no_parked_threads(void **s)
{
    for (int fabric = WORLD_SIM; fabric <= WORLD_TCP; fabric++) {
        barrier b = {.lock = PTHREAD_MUTEX_INITIALIZER, .size = 64};
        weft_function table[] = {{.name = "join", .gives = {WEFT_TYPE_I64}, .run = run_join, .user = &b}};
        world_run(&(world){.fabric = (world_fabric)fabric,
                           .seed = 7,
                           .size = 65,
                           WORLD_FUNCTIONS(table),
                           .program = join_rounds,
                           .adjust = world_one_worker});
    }
}

UNIT_MAIN(test_calls_nothing, test_echo_tensors, test_echo_many_tensors, test_echo_dtypes, test_echo_fields,
          test_wrong_landing, test_to_self, test_never_answered, test_no_parked_threads)
