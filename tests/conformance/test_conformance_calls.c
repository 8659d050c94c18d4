/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_calls.c - items 8 to 16: what travels as arguments and results, objects, nesting, many calls. */
#include "conformance/conformance.h"

#include <stdlib.h>

#include "tensors.h"
#include "unit.h"

/* ---- Functions ------------------------------------------------------------------------------------------------ */

/* A tensor larger than what a reply carries, and of it one column: not contiguous where it is made. */
static weft_status serve_column(weft_call *call, void *user)
{
    weft_tensor *whole = tensor_arange(100 * 1000, WEFT_DTYPE_INT64);
    weft_tensor *table = tensor_reshape(whole, WEFT_SHAPE(1000, 100));
    weft_tensor *column = tensor_select(table, 1, weft_call_i64(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(column)));
    weft_tensor_unref(column);
    weft_tensor_unref(table);
    weft_tensor_unref(whole);
    return WEFT_OK;
}

/* Asks the caller back, from within the handler. */
static weft_status serve_nested_add(weft_call *call, void *user)
{
    int64_t sum = ask(weft_call_agent(call), weft_to_rank(weft_call_from(call)), "add",
                      WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0)), weft_of_i64(weft_call_i64(call, 1))));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(sum)));
    return WEFT_OK;
}

static atomic_int hops;

/* On to the next worker, waiting for nobody. */
static weft_status serve_hop(weft_call *call, void *user)
{
    int64_t left = weft_call_i64(call, 0);
    weft_agent *agent = weft_call_agent(call);
    item_sleep_ms(2); /* so that the others are long closing */
    if (left > 1)
        weft_future_unref(start(agent, weft_to_rank(next_rank(agent)), "hop", WEFT_VALUES(weft_of_i64(left - 1))));
    atomic_fetch_add(&hops, 1);
    return WEFT_OK;
}

/* A counter that lives on its owner: the class of item 13. */
typedef struct counter {
    int64_t value;
} counter;
static atomic_int counters;

static void drop_counter(void *object)
{
    free(object);
    atomic_fetch_sub(&counters, 1);
}
static const weft_object_type counter_type = {.name = "counter", .drop = drop_counter};
static const weft_object_type other_type = {.name = "other", .drop = drop_counter};

static weft_status serve_new_counter(weft_call *call, void *user)
{
    counter *made = malloc(sizeof(*made));
    MUST(made);
    made->value = weft_call_i64(call, 0);
    atomic_fetch_add(&counters, 1);
    weft_call_give_object(call, &counter_type, made);
    return WEFT_OK;
}

/* An instance method: the reference is argument 0. */
static weft_status serve_count(weft_call *call, void *user)
{
    counter *self = NULL;
    void *wrong = NULL;
    weft_status status =
        weft_rref_local_typed(weft_call_rref(call, 0), &counter_type, ITEM_PATIENCE_MS, (void **)&self);
    if (status)
        return status;
    MUST_BE(weft_rref_local_typed(weft_call_rref(call, 0), &other_type, 0, &wrong), WEFT_ERR_TYPE);
    self->value += weft_call_i64(call, 1);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(self->value)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "column", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_column},
    {.name = "nested add", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_nested_add},
    {.name = "hop", .takes = {WEFT_TYPE_I64}, .run = serve_hop},
    {.name = "new counter", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_ANY}, .run = serve_new_counter},
    {.name = "count", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_count},
};

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

static weft_values *echo(weft_agent *agent, int to, weft_args list)
{
    weft_values *got = NULL;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "echo", WEFT_VALUES(weft_of_list(list)), NULL, &got));
    return got;
}

static weft_args list_of(const weft_values *values)
{
    weft_args list = WEFT_NO_VALUES;
    MUST_OK(weft_values_get_list(values, 0, &list));
    return list;
}

static bool same_elements(weft_tensor *a, weft_tensor *b)
{
    if (weft_tensor_dtype(a) != weft_tensor_dtype(b) || !weft_tensor_same_shape(a, b))
        return false;
    for (int64_t i = 0; i < weft_tensor_numel(a); i++)
        if (weft_tensor_get_f64(a, i) != weft_tensor_get_f64(b, i))
            return false;
    return true;
}

/* ---- 8: twenty shapes -------------------------------------------------------------------------------------------- */

static void twenty_shapes(weft_agent *agent, void *arg)
{
    for (int i = 0; i < 20; i++) {
        int to = i % WORKERS;                                /* ourselves among them */
        int64_t n = weft_agent_rank(agent) + to + 1 + 3 * i; /* on both sides of what a message carries */
        weft_tensor *x = tensor_full(WEFT_SHAPE(n, n), WEFT_DTYPE_FLOAT32, 1.5),
                    *y = tensor_full(WEFT_SHAPE(n, n), WEFT_DTYPE_FLOAT32, i);
        weft_values *got = NULL;
        weft_tensor *sum = NULL;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "sum", WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(y)), NULL,
                              &got));
        MUST_OK(weft_values_get_tensor(got, 0, &sum));
        MUST(weft_tensor_ndim(sum) == 2 && weft_tensor_size(sum, 0) == n && weft_tensor_size(sum, 1) == n);
        for (int64_t k = 0; k < n * n; k++)
            MUST(weft_tensor_get_f64(sum, k) == 1.5 + i);
        weft_values_unref(got);
        weft_tensor_unref(x);
        weft_tensor_unref(y);
    }
    /* The shapes at the edges: a scalar, none at all, and all dimensions there may be. */
    weft_tensor *edges[] = {tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, 0.1),
                            tensor_zeros(WEFT_SHAPE(0), WEFT_DTYPE_INT32),
                            tensor_zeros(WEFT_SHAPE(3, 0, 5), WEFT_DTYPE_UINT8),
                            tensor_full(WEFT_SHAPE(1, 2, 1, 2, 1, 2, 1, 2), WEFT_DTYPE_INT64, 7)};
    weft_values *got = echo(agent, next_rank(agent), WEFT_VALUES(weft_of_tensors((weft_tensors){edges, 4})));
    weft_args list = list_of(got);
    for (int i = 0; i < 4; i++) {
        MUST(same_elements(edges[i], list.items[0].as.tensors.items[i]));
        weft_tensor_unref(edges[i]);
    }
    weft_values_unref(got);
}

ITEM(item_8_twenty_shapes, .program = twenty_shapes, ITEM_FUNCTIONS(functions))

/* ---- 9: no result --------------------------------------------------------------------------------------------- */

static void no_result(weft_agent *agent, void *arg)
{
    for (int to = 0; to < WORKERS; to++) {
        weft_values *got = NULL;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "nothing", WEFT_NO_VALUES, NULL, &got));
        MUST(got && weft_values_count(got) == 0 && weft_values_type(got, 0) == WEFT_TYPE_NONE);
        weft_values_unref(got);
        weft_future *future = start(agent, weft_to_rank(to), "nothing", WEFT_NO_VALUES);
        MUST_OK(weft_future_wait(future, ITEM_PATIENCE_MS));
        MUST(weft_values_count(weft_future_values(future)) == 0 && !weft_future_tensor(future, 0));
        weft_future_unref(future);
        got = echo(agent, to, WEFT_VALUES(weft_of_null())); /* None is a value as well */
        MUST(list_of(got).count == 1 && list_of(got).items[0].type == WEFT_TYPE_NULL);
        weft_values_unref(got);
    }
}

ITEM(item_9_no_return_value, .program = no_result, ITEM_FUNCTIONS(functions))

/* ---- 10: tensors in containers -------------------------------------------------------------------------------- */

static void containers(weft_agent *agent, void *arg)
{
    weft_tensor *small = tensor_arange(6, WEFT_DTYPE_INT32), *large = tensor_arange(5000, WEFT_DTYPE_FLOAT64);
    weft_tensor *both[] = {large, small};
    for (int to = 0; to < WORKERS; to++) {
        weft_values *got =
            echo(agent, to,
                 WEFT_VALUES(
                     weft_of_list(WEFT_VALUES(weft_of_tensor(large), weft_of_list(WEFT_VALUES(weft_of_tensor(small))))),
                     weft_of_string("between"), weft_of_tensors((weft_tensors){both, 2}), weft_of_list(WEFT_NO_VALUES),
                     weft_of_bool(true), weft_of_f64(-0.5), weft_of_bytes("\0\1", 2)));
        weft_args list = list_of(got), first = list.items[0].as.list;
        MUST(list.count == 7 && list.items[0].type == WEFT_TYPE_LIST && first.count == 2);
        MUST(same_elements(first.items[0].as.tensor, large));
        MUST(first.items[1].type == WEFT_TYPE_LIST && same_elements(first.items[1].as.list.items[0].as.tensor, small));
        MUST(list.items[1].as.bytes.size == 7 && memcmp(list.items[1].as.bytes.data, "between", 7) == 0);
        MUST(list.items[2].as.tensors.count == 2 && same_elements(list.items[2].as.tensors.items[0], large));
        MUST(same_elements(list.items[2].as.tensors.items[1], small));
        MUST(list.items[3].type == WEFT_TYPE_LIST && list.items[3].as.list.count == 0);
        MUST(list.items[4].as.boolean && list.items[5].as.f64 == -0.5);
        MUST(list.items[6].as.bytes.size == 2 && memcmp(list.items[6].as.bytes.data, "\0\1", 2) == 0);
        weft_values_unref(got);
    }
    weft_tensor_unref(small);
    weft_tensor_unref(large);
}

ITEM(item_10_tensors_in_nested_containers, .program = containers, ITEM_FUNCTIONS(functions))

/* ---- 11: strides ---------------------------------------------------------------------------------------------- */

/* The elements arrive as they are seen; the strides do not: what is not contiguous is packed, and counted. */
static void strides(weft_agent *agent, void *arg)
{
    weft_tensor *flat = tensor_arange(1024 * 96, WEFT_DTYPE_FLOAT32),
                *table = tensor_reshape(flat, WEFT_SHAPE(1024, 96)), *turned = tensor_transpose(table, 0, 1),
                *strip = tensor_narrow(table, 1, 10, 80); /* each over 128 KiB: read, not copied into a message */
    weft_tensor *sent[] = {turned, strip};
    for (int i = 0; i < 2; i++) {
        weft_stats before, after;
        MUST(!weft_tensor_is_contiguous(sent[i]));
        weft_agent_stats(agent, &before);
        weft_values *got = echo(agent, next_rank(agent), WEFT_VALUES(weft_of_tensor(sent[i])));
        weft_agent_stats(agent, &after);
        weft_tensor *back = list_of(got).items[0].as.tensor;
        MUST(same_elements(back, sent[i]) && weft_tensor_is_contiguous(back));
        MUST(after.bytes_packed >= before.bytes_packed + weft_tensor_nbytes(sent[i]));
        MUST(after.bytes_copied == before.bytes_copied);
        weft_values_unref(got);
        /* To oneself it goes by reference, strides and all. */
        got = echo(agent, weft_agent_rank(agent), WEFT_VALUES(weft_of_tensor(sent[i])));
        MUST(list_of(got).items[0].as.tensor == sent[i]);
        weft_values_unref(got);
        weft_tensor_unref(sent[i]);
    }
    weft_tensor_unref(table);
    weft_tensor_unref(flat);
}

ITEM(item_11_non_contiguous_tensors, .program = strides, ITEM_FUNCTIONS(functions))

/* ---- 12: sparse tensors, views as results --------------------------------------------------------------------- */

/* There are no sparse tensors: indices and values go as two. A view as a result sends the view, not all that it is
 * of. */
static void sparse_and_views(weft_agent *agent, void *arg)
{
    weft_tensor *indices = tensor_copy_of(WEFT_SHAPE(2, 3), WEFT_DTYPE_INT64, (int64_t[]){0, 1, 1, 2, 0, 2}),
                *values = tensor_copy_of(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, (float[]){3, 4, 5});
    weft_stats before, after;
    int to = next_rank(agent);
    weft_values *got = echo(agent, to, WEFT_VALUES(weft_of_tensor(indices), weft_of_tensor(values)));
    MUST(same_elements(list_of(got).items[0].as.tensor, indices));
    MUST(same_elements(list_of(got).items[1].as.tensor, values));
    weft_values_unref(got);
    weft_agent_stats(agent, &before);
    weft_tensor *column = NULL;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "column", WEFT_VALUES(weft_of_i64(99)), NULL, &got));
    weft_agent_stats(agent, &after);
    MUST_OK(weft_values_get_tensor(got, 0, &column));
    MUST(weft_tensor_ndim(column) == 1 && weft_tensor_size(column, 0) == 1000);
    for (int64_t i = 0; i < 1000; i++)
        MUST(weft_tensor_get_i64(column, i) == 100 * i + 99);
    /* Of 800,000 bytes, 8,000; others may be asking this worker at the same time, for as little. */
    MUST(after.bytes_received - before.bytes_received < 100000);
    weft_values_unref(got);
    weft_tensor_unref(indices);
    weft_tensor_unref(values);
}

ITEM(item_12_sparse_as_two_and_views_as_results, .program = sparse_and_views, ITEM_FUNCTIONS(functions))

/* ---- 13: constructors and methods ----------------------------------------------------------------------------- */

static int64_t count_on(weft_rref *object, int64_t by)
{
    weft_values *got = NULL;
    int64_t n = 0;
    MUST_OK(weft_rref_rpc_sync(object, "count", WEFT_VALUES(weft_of_i64(by)), NULL, &got));
    MUST_OK(weft_values_get_i64(got, 0, &n));
    weft_values_unref(got);
    return n;
}

/* A constructor is a function called by remote that gives an object; methods take the reference; class and static
 * methods are functions like any other. */
static void constructors_and_methods(weft_agent *agent, void *arg)
{
    for (int to = 0; to < WORKERS; to++) {
        weft_rref *object = make(agent, weft_to_rank(to), "new counter", WEFT_VALUES(weft_of_i64(10 * to)));
        MUST(count_on(object, 1) == 10 * to + 1);
        MUST(count_on(object, 2) == 10 * to + 3); /* the object itself, not a copy of it */
        MUST(ask(agent, weft_to_rank(to), "count", WEFT_VALUES(weft_of_rref(object), weft_of_i64(1))) == 10 * to + 4);
        weft_values *copy = NULL;
        MUST_BE(weft_rref_to_here(object, ITEM_PATIENCE_MS, &copy, NULL), WEFT_ERR_TYPE); /* it does not travel */
        weft_rref_unref(object);
    }
    /* Not by remote: there is nobody to keep it. It is dropped, and the call fails. */
    weft_error *error = NULL;
    MUST(weft_rpc_sync(agent, weft_to_rank(next_rank(agent)), "new counter", WEFT_VALUES(weft_of_i64(0)),
                       &(weft_rpc_options){.error = &error}, NULL) != WEFT_OK);
    MUST(weft_error_message(error)[0]);
    weft_error_unref(error);
}

static void no_counters_left(void)
{
    assert_int_equal(atomic_load(&counters), 0);
}

ITEM(item_13_constructors_and_methods, .program = constructors_and_methods, .after = no_counters_left,
     ITEM_FUNCTIONS(functions))

/* ---- 14: A -> B -> A ------------------------------------------------------------------------------------------ */

static void one_worker(weft_agent_options *options)
{
    options->threads = 1;
}

static void nested(weft_agent *agent, void *arg)
{
    for (int i = 0; i < 8; i++)
        MUST(ask(agent, weft_to_rank(next_rank(agent)), "nested add", WEFT_VALUES(weft_of_i64(i), weft_of_i64(2))) ==
             i + 2);
    MUST(ask(agent, weft_to_rank(weft_agent_rank(agent)), "nested add", WEFT_VALUES(weft_of_i64(1), weft_of_i64(2))) ==
         3); /* to oneself from oneself */
}

ITEM(item_14_nested_rpc, .program = nested, .adjust = one_worker, ITEM_FUNCTIONS(functions))

/* ---- 15: twenty hops that nobody waits for -------------------------------------------------------------------- */

static void twenty_hops(weft_agent *agent, void *arg)
{
    weft_future_unref(start(agent, weft_to_rank(next_rank(agent)), "hop", WEFT_VALUES(weft_of_i64(20))));
}

static void all_hops_were_made(void)
{
    assert_int_equal(atomic_exchange(&hops, 0), 20 * WORKERS);
}

ITEM(item_15_twenty_hops_of_fire_and_forget, .program = twenty_hops, .after = all_hops_were_made,
     ITEM_FUNCTIONS(functions))

/* ---- 16: a thousand light calls, and heavy ones --------------------------------------------------------------- */

static void light_calls(weft_agent *agent)
{
    enum { COUNT = 1000 };
    weft_future **futures = calloc(COUNT, sizeof(weft_future *));
    MUST(futures);
    for (int i = 0; i < COUNT; i++)
        futures[i] = start(agent, weft_to_rank(i % WORKERS), "add", WEFT_VALUES(weft_of_i64(i), weft_of_i64(1)));
    for (int i = 0; i < COUNT; i++)
        MUST(future_i64(futures[i]) == i + 1);
    free(futures);
}

static void heavy_calls(weft_agent *agent)
{
    enum { COUNT = 20 };
    weft_future *futures[COUNT];
    weft_tensor *x = tensor_full(WEFT_SHAPE(256, 1024), WEFT_DTYPE_FLOAT32, 2),
                *y = tensor_full(WEFT_SHAPE(256, 1024), WEFT_DTYPE_FLOAT32, 3);
    for (int i = 0; i < COUNT; i++)
        futures[i] =
            start(agent, weft_to_rank(next_rank(agent)), "sum", WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(y)));
    for (int i = 0; i < COUNT; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_tensor *sum = weft_future_tensor(futures[i], 0);
        MUST(sum && weft_tensor_numel(sum) == 256 * 1024);
        MUST(weft_tensor_get_f64(sum, 0) == 5 && weft_tensor_get_f64(sum, 256 * 1024 - 1) == 5);
        weft_future_unref(futures[i]);
    }
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

static void stress(weft_agent *agent, void *arg)
{
    light_calls(agent);
    heavy_calls(agent);
}

ITEM(item_16_a_thousand_light_calls_and_heavy_ones, .program = stress, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_8_twenty_shapes, item_9_no_return_value, item_10_tensors_in_nested_containers,
          item_11_non_contiguous_tensors, item_12_sparse_as_two_and_views_as_results, item_13_constructors_and_methods,
          item_14_nested_rpc, item_15_twenty_hops_of_fire_and_forget, item_16_a_thousand_light_calls_and_heavy_ones)
