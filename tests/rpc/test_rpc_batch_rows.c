/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch_rows.c - rows in and out: arguments beside tensors, results of every type, shapes and dtypes that
 * form batches of their own, and every way to make a call.
 */
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensors.h"

#include <stdatomic.h>
#include <string.h>

enum { SIZE = 4 };

typedef struct turn {
    void (*program)(weft_agent *agent, void *arg);
    int from; /* the rank that runs it */
} turn;

static struct shared {
    world *w;
    atomic_bool finished;
    atomic_int batches;
    atomic_int inline_wait; /* what a wait inside an inline handler returned */
} shared;

static const weft_rpc_options patient = {.timeout_ms = 60000};

/* ---- Handlers ------------------------------------------------------------------------------------------------- */

static weft_tensor *numbers(weft_batch *batch, size_t rows, weft_dtype dtype, double first)
{
    weft_tape *t = weft_batch_tape(batch);
    weft_tensor *to = weft_tape_take(t, tensor_empty(WEFT_SHAPE((int64_t)rows), dtype));
    for (size_t i = 0; i < rows; i++)
        MUST_OK(weft_tensor_assign(weft_tape_take(t, tensor_select(to, 0, (int64_t)i)),
                                   weft_tape_take(t, tensor_full(WEFT_SCALAR, dtype, first + (double)i))));
    return to;
}

/* Seven results of one batch, as every type that rows can be. */
static weft_status run_kinds(weft_batch *batch, void *user)
{
    size_t n = weft_batch_count(batch);
    weft_tape *t = weft_batch_tape(batch);
    weft_batch_give(batch, 0, numbers(batch, n, WEFT_DTYPE_INT32, -2));
    weft_batch_give(batch, 1, numbers(batch, n, WEFT_DTYPE_UINT8, 200));
    weft_batch_give(batch, 2, numbers(batch, n, WEFT_DTYPE_FLOAT32, 0.5));
    weft_batch_give(batch, 3, numbers(batch, n, WEFT_DTYPE_FLOAT64, -1)); /* not zero, but the second */
    weft_batch_give(batch, 4, weft_tape_take(t, tensor_full(WEFT_SHAPE((int64_t)n, 1), WEFT_DTYPE_BOOL, 1)));
    weft_batch_give(batch, 5, numbers(batch, n, WEFT_DTYPE_INT64, 7)); /* rows without dimensions */
    weft_tensor *wide = weft_tape_take(t, tensor_arange(3 * (int64_t)n, WEFT_DTYPE_FLOAT32));
    wide = weft_tape_take(t, tensor_reshape(wide, WEFT_SHAPE(3, (int64_t)n)));
    weft_batch_give(batch, 6, weft_tape_take(t, tensor_transpose(wide, 0, 1))); /* strided rows */
    return WEFT_OK;
}

/* Values beside tensors; writes to what it sees. */
static weft_status run_mixed(weft_batch *batch, void *user)
{
    size_t n = weft_batch_count(batch);
    weft_tape *t = weft_batch_tape(batch);
    weft_tensor *x = weft_batch_tensor(batch, 1), *y = weft_batch_tensor(batch, 4);
    MUST(!weft_batch_tensor(batch, 0) && !weft_batch_tensor(batch, 2) && !weft_batch_tensor(batch, 3));
    MUST(weft_tensor_ndim(x) == 2 && weft_tensor_ndim(y) == 1 && weft_tensor_dtype(y) == WEFT_DTYPE_FLOAT64);
    MUST(weft_tensor_is_contiguous(x) && weft_tensor_is_contiguous(y));
    for (size_t i = 0; i < n; i++) {
        weft_call *call = weft_batch_call(batch, i);
        int64_t number = weft_call_bool(call, 3) ? 1 : 0;
        const char *text = weft_call_string(call, 0);
        weft_tensor *made;
        MUST(strncmp(text, "call ", 5) == 0 && weft_call_from(call) >= 0 && weft_call_time_left(call) > 0);
        number += text[5] - '0';
        MUST(weft_tensor_get_f64(y, (int64_t)i) == (double)number);
        MUST(weft_rref_confirmed(weft_call_rref(call, 2)) && !weft_call_cancelled(call));
        made = weft_tape_take(t, tensor_select(x, 0, (int64_t)i));
        MUST(weft_tensor_get_f64(made, 1) == (double)(number + 1));
    }
    memset(weft_tensor_data(x), 0, weft_tensor_nbytes(x));
    weft_batch_give(batch, 0, y);
    return WEFT_OK;
}

/* Gives the row's number, and says what the batch is: all its rows are of one shape and dtype. */
static weft_status run_form(weft_batch *batch, void *user)
{
    size_t n = weft_batch_count(batch);
    weft_tensor *x = weft_batch_tensor(batch, 0), *y = weft_batch_tensor(batch, 1);
    MUST(n == 2 && weft_tensor_size(x, 0) == 2 && weft_tensor_size(y, 0) == 2);
    for (size_t i = 0; i < n; i++) {
        weft_tensor *own = weft_call_tensor(weft_batch_call(batch, i), 0);
        weft_shape row = weft_tensor_shape(own), all = weft_tensor_shape(x);
        MUST(weft_tensor_dtype(own) == weft_tensor_dtype(x) && all.ndim == row.ndim + 1);
        MUST(memcmp(all.dims + 1, row.dims, (size_t)row.ndim * sizeof(*row.dims)) == 0);
        int64_t each = weft_tensor_numel(own);
        for (int64_t k = 0; k < each; k++)
            MUST(weft_tensor_get_f64(x, (int64_t)i * each + k) == weft_tensor_get_f64(own, k));
    }
    weft_batch_give(batch, 0, x);
    weft_batch_give(batch, 1, y);
    return WEFT_OK;
}

static weft_status run_double(weft_batch *batch, void *user)
{
    weft_tape *t = weft_batch_tape(batch);
    weft_tensor *x = weft_batch_tensor(batch, 0);
    if (user) { /* inline: a wait is refused, not blocked */
        weft_future *never = weft_future_create(weft_batch_agent(batch));
        atomic_store(&shared.inline_wait, (int)weft_future_wait(never, WEFT_FOREVER));
        MUST_OK(weft_future_complete(never, NULL, NULL));
        weft_future_unref(never);
    }
    weft_batch_give(batch, 0, weft_add(t, x, x));
    return WEFT_OK;
}

/* Refuses its first batch, as a handler that has no room now. */
static weft_status run_busy_once(weft_batch *batch, void *user)
{
    static const weft_value yes = {.type = WEFT_TYPE_I64, .as.i64 = 1};
    if (atomic_fetch_add(&shared.batches, 1) == 0)
        return WEFT_ERR_BUSY;
    for (size_t i = 0; i < weft_batch_count(batch); i++)
        weft_call_give(weft_batch_call(batch, i), (weft_args){&yes, 1});
    return WEFT_OK;
}

static weft_status run_make(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(3)));
    return WEFT_OK;
}

#define OF_FOUR                                                                                                        \
    {                                                                                                                  \
        .size = SIZE, .wait_us = WEFT_FOREVER                                                                          \
    }
#define AT_ONCE                                                                                                        \
    {                                                                                                                  \
        .size = SIZE                                                                                                   \
    }

static const weft_function functions[] = {
    {.name = "kinds",
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_BOOL, WEFT_TYPE_BOOL, WEFT_TYPE_TENSOR,
               WEFT_TYPE_ANY},
     .run_batch = run_kinds,
     .batch = OF_FOUR},
    {.name = "mixed",
     .takes = {WEFT_TYPE_STRING, WEFT_TYPE_TENSOR, WEFT_TYPE_RREF, WEFT_TYPE_BOOL, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_F64},
     .run_batch = run_mixed,
     .batch = OF_FOUR},
    {.name = "form",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},
     .run_batch = run_form,
     .batch = {.size = 2, .wait_us = WEFT_FOREVER}},
    {.name = "double",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run_batch = run_double,
     .batch = AT_ONCE},
    {.name = "double inline",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run_batch = run_double,
     .user = &shared,
     .flags = WEFT_FUNCTION_INLINE,
     .batch = AT_ONCE},
    {.name = "busy once", .gives = {WEFT_TYPE_I64}, .run_batch = run_busy_once, .batch = AT_ONCE},
    {.name = "make", .gives = {WEFT_TYPE_I64}, .run = run_make},
};

/* ---- Values --------------------------------------------------------------------------------------------------- */

static weft_future *start(weft_agent *agent, int to, const char *function, weft_args args)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(to), function, args, &patient, &future));
    return future;
}

static void kinds(weft_agent *agent, void *arg)
{
    weft_future *futures[SIZE];
    for (int i = 0; i < SIZE; i++)
        futures[i] = start(agent, 0, "kinds", WEFT_NO_VALUES);
    for (int i = 0; i < SIZE; i++) {
        int64_t a, b;
        double c;
        bool d, e;
        weft_tensor *f, *g;
        MUST_OK(weft_future_wait(futures[i], 60000));
        const weft_values *got = weft_future_values(futures[i]);
        MUST_OK(weft_values_get_i64(got, 0, &a));
        MUST_OK(weft_values_get_i64(got, 1, &b));
        MUST_OK(weft_values_get_f64(got, 2, &c));
        MUST_OK(weft_values_get_bool(got, 3, &d));
        MUST_OK(weft_values_get_bool(got, 4, &e));
        MUST_OK(weft_values_get_tensor(got, 5, &f));
        MUST_OK(weft_values_get_tensor(got, 6, &g));
        MUST(a == i - 2 && b == 200 + i && c == 0.5 + i && d == (i != 1) && e);
        MUST(weft_tensor_ndim(f) == 0 && weft_tensor_dtype(f) == WEFT_DTYPE_INT64 &&
             weft_tensor_get_i64(f, 0) == 7 + i);
        MUST(weft_tensor_ndim(g) == 1 && weft_tensor_size(g, 0) == 3);
        for (int k = 0; k < 3; k++)
            MUST(weft_tensor_get_f64(g, k) == SIZE * k + i);
        weft_future_unref(futures[i]);
    }
}

static void mixed(weft_agent *agent, void *arg)
{
    weft_future *futures[SIZE];
    weft_tensor *x[SIZE], *y[SIZE];
    weft_rref *rref;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(0), "make", WEFT_NO_VALUES, NULL, &rref));
    for (int i = 0; i < SIZE; i++) {
        char text[16];
        int number = 2 * i + (i == 3); /* which the boolean adds to */
        snprintf(text, sizeof(text), "call %d", 2 * i);
        x[i] = tensor_full(WEFT_SHAPE(5), WEFT_DTYPE_INT32, number + 1);
        y[i] = tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, number);
        futures[i] = start(agent, 0, "mixed",
                           WEFT_VALUES(weft_of_string(text), weft_of_tensor(x[i]), weft_of_rref(rref),
                                       weft_of_bool(i == 3), weft_of_tensor(y[i])));
    }
    for (int i = 0; i < SIZE; i++) {
        double got;
        MUST_OK(weft_future_wait(futures[i], 60000));
        MUST_OK(weft_values_get_f64(weft_future_values(futures[i]), 0, &got));
        MUST(got == 2 * i + (i == 3));
        MUST(weft_tensor_get_i64(x[i], 4) == (int64_t)got + 1); /* it wrote to its own copy */
        weft_future_unref(futures[i]);
        weft_tensor_unref(x[i]);
        weft_tensor_unref(y[i]);
    }
    weft_rref_unref(rref);
}

/* ---- Shapes --------------------------------------------------------------------------------------------------- */

static weft_tensor *filled(weft_shape shape, weft_dtype dtype, int from)
{
    weft_tensor *flat, *tensor;
    int64_t numel = 1;
    for (int d = 0; d < shape.ndim; d++)
        numel *= shape.dims[d];
    flat = tensor_arange(numel + from, dtype);
    tensor = tensor_narrow(flat, 0, from, numel);
    weft_tensor *shaped = tensor_reshape(tensor, shape);
    weft_tensor_unref(flat);
    weft_tensor_unref(tensor);
    return shaped;
}

static void must_be_equal(const weft_tensor *a, const weft_tensor *b)
{
    weft_shape have = weft_tensor_shape(a), want = weft_tensor_shape(b);
    MUST(weft_tensor_dtype(a) == weft_tensor_dtype(b) && have.ndim == want.ndim);
    MUST(memcmp(have.dims, want.dims, (size_t)have.ndim * sizeof(*have.dims)) == 0);
    for (int64_t i = 0; i < weft_tensor_numel(a); i++)
        MUST(weft_tensor_get_f64(a, i) == weft_tensor_get_f64(b, i));
}

enum { FORMS = 9 };

/* Two calls of each form, and all forms at once: batches of two, each of one form. */
static void forms(weft_agent *agent, void *arg)
{
    const struct form {
        weft_dtype dtype;
        weft_shape shape, second;
    } all[FORMS] = {{WEFT_DTYPE_FLOAT32, WEFT_SHAPE(3), WEFT_SHAPE(2)},
                    {WEFT_DTYPE_FLOAT32, WEFT_SHAPE(4), WEFT_SHAPE(2)},
                    {WEFT_DTYPE_FLOAT32, WEFT_SHAPE(3), WEFT_SHAPE(1, 2)}, /* the second alone differs */
                    {WEFT_DTYPE_INT64, WEFT_SHAPE(3), WEFT_SHAPE(2)},
                    {WEFT_DTYPE_UINT8, WEFT_SCALAR, WEFT_SCALAR},
                    {WEFT_DTYPE_FLOAT64, WEFT_SHAPE(0), WEFT_SHAPE(3, 0, 2)},
                    {WEFT_DTYPE_FLOAT32, WEFT_SHAPE(1, 2, 1, 2, 1, 2, 1), WEFT_SHAPE(2)},
                    {WEFT_DTYPE_FLOAT32, WEFT_SHAPE(30000), WEFT_SHAPE(2)},
                    {WEFT_DTYPE_FLOAT32, WEFT_SHAPE(2), WEFT_SHAPE(30000)}};
    weft_future *futures[2 * FORMS];
    weft_tensor *x[2 * FORMS], *y[2 * FORMS];
    for (int i = 0; i < 2 * FORMS; i++) {
        const struct form *form = &all[i % FORMS];
        x[i] = filled(form->shape, form->dtype, i);
        y[i] = filled(form->second, WEFT_DTYPE_FLOAT32, 2 * i);
        futures[i] = start(agent, 0, "form", WEFT_VALUES(weft_of_tensor(x[i]), weft_of_tensor(y[i])));
    }
    for (int i = 0; i < 2 * FORMS; i++) {
        MUST_OK(weft_future_wait(futures[i], 60000));
        must_be_equal(weft_future_tensor(futures[i], 0), x[i]);
        must_be_equal(weft_future_tensor(futures[i], 1), y[i]);
        weft_future_unref(futures[i]);
        weft_tensor_unref(x[i]);
        weft_tensor_unref(y[i]);
    }
}

static void too_many_dimensions(weft_agent *agent, void *arg)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.timeout_ms = 60000, .error = &error};
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), WEFT_DTYPE_FLOAT32);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "double", WEFT_VALUES(weft_of_tensor(x)), &options, NULL),
            WEFT_ERR_SHAPE);
    MUST(strstr(weft_error_message(error), "tensor 0 has 8 dimensions") && !weft_error_handler_code(error));
    weft_error_unref(error);
    error = NULL;
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "double", WEFT_NO_VALUES, &options, NULL), WEFT_ERR_TYPE);
    weft_error_unref(error);
    error = NULL;
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "double", WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(x)), &options,
                          NULL),
            WEFT_ERR_TYPE);
    weft_error_unref(error);
    weft_tensor_unref(x);
}

/* ---- Ways to call --------------------------------------------------------------------------------------------- */

static void check_doubled(const weft_tensor *got, const weft_tensor *x)
{
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        MUST(weft_tensor_get_f64(got, i) == 2 * weft_tensor_get_f64(x, i));
    MUST(weft_tensor_numel(got) == weft_tensor_numel(x));
}

static void strided(weft_agent *agent, const char *function, int to)
{
    weft_tensor *base = filled(WEFT_SHAPE(3, 5), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *x = tensor_transpose(base, 0, 1);
    weft_future *future = start(agent, to, function, WEFT_VALUES(weft_of_tensor(x)));
    MUST_OK(weft_future_wait(future, 60000));
    check_doubled(weft_future_tensor(future, 0), x);
    MUST(weft_tensor_get_f64(base, 14) == 15);
    weft_future_unref(future);
    weft_tensor_unref(x);
    weft_tensor_unref(base);
}

static void landed(weft_agent *agent, int to, int64_t columns)
{
    weft_tensor *x = filled(WEFT_SHAPE(columns), WEFT_DTYPE_FLOAT32, 3),
                *place = tensor_zeros(WEFT_SHAPE(columns), WEFT_DTYPE_FLOAT32);
    weft_rpc_options options = {.timeout_ms = 60000, .land = {&place, 1}};
    weft_values *got;
    weft_tensor *result;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "double", WEFT_VALUES(weft_of_tensor(x)), &options, &got));
    MUST_OK(weft_values_get_tensor(got, 0, &result));
    MUST(result == place);
    check_doubled(place, x);
    weft_values_unref(got);
    weft_tensor_unref(place);
    weft_tensor_unref(x);
}

static void remote(weft_agent *agent, int to)
{
    weft_tensor *x = filled(WEFT_SHAPE(6), WEFT_DTYPE_FLOAT32, 1), *result;
    weft_rref *rref;
    weft_values *got;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(to), "double", WEFT_VALUES(weft_of_tensor(x)), &patient, &rref));
    MUST_OK(weft_rref_to_here(rref, 60000, &got, NULL));
    MUST_OK(weft_values_get_tensor(got, 0, &result));
    check_doubled(result, x);
    weft_values_unref(got);
    weft_rref_unref(rref);
    weft_tensor_unref(x);
}

static void multicast(weft_agent *agent)
{
    weft_target all[] = {weft_to_rank(0), weft_to_rank(1)};
    weft_tensor *x = filled(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1);
    weft_future *future;
    MUST_OK(weft_rpc_multicast(agent, all, 2, "double", WEFT_VALUES(weft_of_tensor(x)), &patient, &future));
    MUST_OK(weft_future_wait(future, 60000));
    for (int i = 0; i < 2; i++)
        check_doubled(weft_future_tensor(((weft_future **)weft_future_payload(future))[i], 0), x);
    weft_future_unref(future);
    weft_tensor_unref(x);
}

static void ways(weft_agent *agent, void *arg)
{
    int64_t value;
    weft_values *got;
    weft_rpc_options again = {.timeout_ms = 60000, .retry = {.attempts = 3, .pause_ms = 1}};
    strided(agent, "double", 0);
    if (weft_agent_rank(agent) != 0) /* else it is the fiber of the program that runs it */
        strided(agent, "double inline", 0);
    landed(agent, 0, 7);
    landed(agent, 0, 40000);
    if (weft_agent_rank(agent) == 0) { /* one to oneself is copied, so that the handler may write to it */
        weft_batch_stats stats;
        MUST_OK(weft_batch_stats_read(agent, "double", &stats));
        MUST(stats.copied_bytes == 40000 * sizeof(float));
    }
    remote(agent, 0);
    multicast(agent);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "busy once", WEFT_NO_VALUES, &again, &got));
    MUST_OK(weft_values_get_i64(got, 0, &value));
    MUST(value == 1 && atomic_load(&shared.batches) == 2);
    weft_values_unref(got);
    if (weft_agent_rank(agent) != 0)
        MUST_BE((weft_status)atomic_load(&shared.inline_wait), WEFT_ERR_DEADLOCK);
}

/* ---- Worlds --------------------------------------------------------------------------------------------------- */

/* One calls; the other waits until it is done, as a worker that closes lets no batch fill. */
static void play(weft_agent *agent, void *arg)
{
    const turn *t = arg;
    if (weft_agent_rank(agent) == t->from) {
        t->program(agent, NULL);
        atomic_store(&shared.finished, true);
    }
    while (!atomic_load(&shared.finished))
        world_sleep_ms(shared.w, 1);
}

static void begin(world *w)
{
    memset(&shared, 0, sizeof(shared));
    shared.w = w;
}

/* From another worker, and from the worker to itself. */
static void run(void (*program)(weft_agent *, void *), uint64_t seeds)
{
    for (int from = 0; from < 2; from++)
        world_play(&(world){WORLD_FUNCTIONS(functions), .size = 2, .program = play, .begin = begin,
                            .arg = &(turn){program, from}},
                   seeds, 1);
}

#define BOTH_WAYS(program, seeds)                                                                                      \
    static void test_##program(void **cmocka)                                                                          \
    {                                                                                                                  \
        run(program, seeds);                                                                                           \
    }

BOTH_WAYS(kinds, 10)
BOTH_WAYS(mixed, 20)
BOTH_WAYS(forms, 50)
BOTH_WAYS(too_many_dimensions, 3)
BOTH_WAYS(ways, 10)

UNIT_MAIN(test_kinds, test_mixed, test_forms, test_too_many_dimensions, test_ways)
