/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_draws.c - random fills and draws; what index_select, scatter_add and losses over more dimensions
 * refuse. */
#include <weft/weft.h>

#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <string.h>

#define COUNT 20000

static void moments(const weft_tensor *x, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    int64_t count = weft_tensor_numel(x);
    for (int64_t i = 0; i < count; i++) {
        double value = weft_tensor_get_f64(x, i);
        sum += value;
        squares += value * value;
    }
    *mean = sum / (double)count;
    *deviation = sqrt(squares / (double)count - *mean * *mean);
}

static void fills_have_their_distribution_and_follow_the_seed(void **state)
{
    const weft_dtype dtypes[] = {WEFT_DTYPE_FLOAT32, WEFT_DTYPE_FLOAT64};
    for (int d = 0; d < 2; d++) {
        weft_tensor *x = tensor_empty(WEFT_SHAPE(COUNT), dtypes[d]);
        weft_tensor *y = tensor_empty(WEFT_SHAPE(COUNT), dtypes[d]);
        double mean, deviation;
        assert_int_equal(weft_tensor_fill_uniform(x, 7, -1, 3), WEFT_OK);
        moments(x, &mean, &deviation);
        assert_true(fabs(mean - 1) < 0.03 && fabs(deviation - 4 / sqrt(12)) < 0.03);
        for (int64_t i = 0; i < COUNT; i++)
            assert_true(weft_tensor_get_f64(x, i) >= -1 && weft_tensor_get_f64(x, i) < 3);
        assert_int_equal(weft_tensor_fill_normal(y, 7, 5, 2), WEFT_OK);
        moments(y, &mean, &deviation);
        assert_true(fabs(mean - 5) < 0.05 && fabs(deviation - 2) < 0.05);
        weft_tensor *again = tensor_empty(WEFT_SHAPE(COUNT), dtypes[d]);
        assert_int_equal(weft_tensor_fill_normal(again, 7, 5, 2), WEFT_OK);
        assert_memory_equal(weft_tensor_data(again), weft_tensor_data(y), weft_tensor_nbytes(y));
        assert_int_equal(weft_tensor_fill_normal(again, 8, 5, 2), WEFT_OK);
        assert_memory_not_equal(weft_tensor_data(again), weft_tensor_data(y), weft_tensor_nbytes(y));
        weft_tensor_unref(x);
        weft_tensor_unref(y);
        weft_tensor_unref(again);
    }
}

static void tensor_with_gaps_gets_the_same_numbers(void **state)
{
    weft_tensor *whole = tensor_zeros(WEFT_SHAPE(4, 6), WEFT_DTYPE_FLOAT32);
    weft_tensor *part = tensor_narrow(whole, 1, 1, 3), *plain = tensor_empty(WEFT_SHAPE(4, 3), WEFT_DTYPE_FLOAT32);
    assert_int_equal(weft_tensor_fill_uniform(part, 3, 1, 2), WEFT_OK);
    assert_int_equal(weft_tensor_fill_uniform(plain, 3, 1, 2), WEFT_OK);
    for (int64_t i = 0; i < 12; i++)
        assert_true(weft_tensor_get_f64(part, i) == weft_tensor_get_f64(plain, i));
    assert_true(weft_tensor_get_f64(whole, 0) == 0 && weft_tensor_get_f64(whole, 4) == 0);
    weft_tensor_unref(whole);
    weft_tensor_unref(part);
    weft_tensor_unref(plain);
}

static void fills_refuse_what_makes_no_sense(void **state)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32),
                *whole = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT64);
    weft_tensor *none = tensor_empty(WEFT_SHAPE(0), WEFT_DTYPE_FLOAT64);
    assert_int_equal(weft_tensor_fill_uniform(NULL, 1, 0, 1), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_fill_normal(NULL, 1, 0, 1), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_fill_uniform(x, 1, 2, 1), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_fill_uniform(x, 1, 0, (double)INFINITY), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_fill_normal(x, 1, (double)NAN, 1), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_fill_normal(x, 1, 0, -1), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_fill_uniform(whole, 1, 0, 1), WEFT_ERR_TYPE);
    assert_int_equal(weft_tensor_fill_normal(whole, 1, 0, 1), WEFT_ERR_TYPE);
    assert_int_equal(weft_tensor_fill_normal(none, 1, 0, 1), WEFT_OK);
    assert_int_equal(weft_tensor_fill_normal(x, 1, 4, 0), WEFT_OK);
    assert_true(weft_tensor_get_f64(x, 2) == 4);
    weft_tensor_unref(x);
    weft_tensor_unref(whole);
    weft_tensor_unref(none);
}

static void draws_follow_the_tape(void **state)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = 5, .record = true});
    weft_tape *again = weft_tape_open(&(weft_tape_options){.seed = 5});
    assert_true(weft_tape_records(t) && !weft_tape_records(again) && !weft_tape_records(NULL));
    weft_tensor *a = weft_uniform(t, WEFT_SHAPE(9), WEFT_DTYPE_FLOAT32, 0, 1),
                *b = weft_normal(t, WEFT_SHAPE(9), WEFT_DTYPE_FLOAT32, 0, 1);
    weft_tensor *c = weft_uniform(again, WEFT_SHAPE(9), WEFT_DTYPE_FLOAT32, 0, 1);
    weft_tensor *d = weft_normal(again, WEFT_SHAPE(9), WEFT_DTYPE_FLOAT32, 0, 1);
    assert_memory_equal(weft_tensor_data(a), weft_tensor_data(c), 36);
    assert_memory_equal(weft_tensor_data(b), weft_tensor_data(d), 36);
    weft_tensor *e = weft_uniform(t, WEFT_SHAPE(9), WEFT_DTYPE_FLOAT32, 0, 1);
    assert_memory_not_equal(weft_tensor_data(a), weft_tensor_data(e), 36);
    assert_null(weft_uniform(t, WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 2, 1));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    assert_null(weft_normal(t, WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 0, 1)); /* it has failed */
    assert_null(weft_normal(again, WEFT_SHAPE(3), WEFT_DTYPE_INT32, 0, 1));
    assert_int_equal(weft_tape_status(again), WEFT_ERR_TYPE);
    assert_null(weft_normal(NULL, WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 0, 1));
    weft_tape_close(t);
    weft_tape_close(again);
}

typedef weft_tensor *(*run_fn)(weft_tape *t, weft_tensor *x, weft_tensor *index);

static weft_tensor *select_rows(weft_tape *t, weft_tensor *x, weft_tensor *index)
{
    return weft_index_select(t, x, 0, index);
}

static weft_tensor *select_nowhere(weft_tape *t, weft_tensor *x, weft_tensor *index)
{
    return weft_index_select(t, x, 2, index);
}

static weft_tensor *add_rows(weft_tape *t, weft_tensor *x, weft_tensor *index)
{
    return weft_scatter_add(t, x, 0, index, x);
}

static weft_tensor *loss(weft_tape *t, weft_tensor *x, weft_tensor *index)
{
    return weft_cross_entropy(t, x, index);
}

/* x is [3, 2]. */
static void assert_refused(run_fn run, weft_tensor *index, weft_status code, const char *part)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *x = weft_tape_take(t, tensor_zeros(WEFT_SHAPE(3, 2), WEFT_DTYPE_FLOAT32));
    weft_tensor_set_requires_grad(x, true);
    assert_null(run(t, x, index));
    assert_int_equal(weft_tape_status(t), code);
    if (!strstr(weft_error_message(weft_tape_error(t)), part))
        fail_msg("\"%s\" is not in \"%s\"", part, weft_error_message(weft_tape_error(t)));
    weft_tape_close(t);
    weft_tensor_unref(index);
}

static weft_tensor *indices(weft_shape shape, int64_t value)
{
    return tensor_full(shape, WEFT_DTYPE_INT64, (double)value);
}

static void wrong_indices_are_named(void **state)
{
    assert_refused(select_rows, indices(WEFT_SHAPE(4), 3), WEFT_ERR_INVALID,
                   "element 0 of the index is 3, not in [0, 3)");
    assert_refused(select_rows, indices(WEFT_SHAPE(1), -1), WEFT_ERR_INVALID, "is -1");
    assert_refused(select_rows, indices(WEFT_SHAPE(2, 2), 0), WEFT_ERR_SHAPE, "one dimension, not [2, 2]");
    assert_refused(select_rows, tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_INT32), WEFT_ERR_TYPE, "int64, not int32");
    assert_refused(select_rows, NULL, WEFT_ERR_INVALID, "the index is NULL");
    assert_refused(select_nowhere, indices(WEFT_SHAPE(2), 0), WEFT_ERR_SHAPE, "no dimension 2");
    assert_refused(add_rows, indices(WEFT_SHAPE(3, 2), 7), WEFT_ERR_INVALID, "is 7, not in [0, 3)");
    assert_refused(add_rows, indices(WEFT_SHAPE(2, 2), 0), WEFT_ERR_SHAPE,
                   "the source is [3, 2], and the index [2, 2]");
    assert_refused(add_rows, indices(WEFT_SHAPE(3), 0), WEFT_ERR_SHAPE, "as many dimensions");
    assert_refused(loss, indices(WEFT_SHAPE(3), 2), WEFT_ERR_INVALID, "element 0 of the target is 2");
    assert_refused(loss, indices(WEFT_SHAPE(2), 0), WEFT_ERR_SHAPE, "the target must be [3], not [2]");
}

UNIT_MAIN(fills_have_their_distribution_and_follow_the_seed, tensor_with_gaps_gets_the_same_numbers,
          fills_refuse_what_makes_no_sense, draws_follow_the_tape, wrong_indices_are_named)
