/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_api.c - the public tensor: making, views, copies, errors. */
#include "check_gradients.h"

static void count(void *arg)
{
    ++*(int *)arg;
}

static void bad_geometry_makes_no_tensor(void **state)
{
    assert_null(weft_tensor_empty(WEFT_SHAPE(-1), WEFT_FLOAT32));
    assert_null(weft_tensor_empty(WEFT_SHAPE(INT64_MAX, 2), WEFT_UINT8));
    assert_null(weft_tensor_empty(WEFT_SHAPE(INT64_MAX), WEFT_FLOAT64));
    assert_null(weft_tensor_empty(WEFT_SHAPE(2), (weft_dtype)17));
    assert_null(weft_tensor_empty((weft_shape){9, {1}}, WEFT_FLOAT32));
    assert_null(weft_tensor_arange(-1, WEFT_INT64));
}

static void wrapped_memory_is_dropped_once_even_on_failure(void **state)
{
    int drops = 0;
    double data[2] = {1, 2};
    assert_null(weft_tensor_wrap(WEFT_SHAPE(-2), WEFT_FLOAT64, data, count, &drops));
    assert_null(weft_tensor_wrap(WEFT_SHAPE(1), WEFT_FLOAT64, (char *)data + 1, count, &drops));
    assert_null(weft_tensor_wrap(WEFT_SHAPE(1), WEFT_FLOAT64, NULL, count, &drops));
    assert_int_equal(drops, 3);
    weft_tensor *tensor = weft_tensor_wrap(WEFT_SHAPE(2), WEFT_FLOAT64, data, count, &drops);
    weft_tensor *view = weft_tensor_select(tensor, 0, 1);
    weft_tensor_unref(tensor);
    assert_int_equal(drops, 3);
    assert_true(weft_tensor_get_f64(view, 0) == 2);
    weft_tensor_unref(view);
    assert_int_equal(drops, 4);
}

static void empty_tensors_are_tensors(void **state)
{
    weft_tensor *empty = weft_tensor_zeros(WEFT_SHAPE(3, 0), WEFT_FLOAT32), *copy = weft_tensor_clone(empty);
    weft_tensor *flat = weft_tensor_reshape(empty, WEFT_SHAPE(0));
    assert_int_equal(weft_tensor_numel(copy), 0);
    assert_true(weft_tensor_is_contiguous(empty));
    assert_non_null(flat);
    assert_true(weft_tensor_get_f64(empty, 0) == 0);
    weft_tensor_unref(empty);
    weft_tensor_unref(copy);
    weft_tensor_unref(flat);
}

/* Elements by their number: every narrow and select of a transposed tensor, and those that lie outside. */
static void views_show_what_they_are_asked_for(void **state)
{
    weft_tensor *a = weft_tensor_arange(12, WEFT_FLOAT32), *m = weft_tensor_reshape(a, WEFT_SHAPE(3, 4));
    weft_tensor *t = weft_tensor_transpose(m, 0, 1); /* [i, k] is k * 4 + i */
    for (int64_t start = 0; start < 4; start++) {
        weft_tensor *rest = weft_tensor_narrow(t, 0, start, 4 - start), *last = weft_tensor_narrow(rest, 1, 2, 1);
        assert_true(weft_tensor_get_f64(rest, 1) == (double)(4 + start));
        assert_true(weft_tensor_get_f64(last, 0) == (double)(8 + start));
        weft_tensor_unref(rest);
        weft_tensor_unref(last);
    }
    for (int64_t index = -4; index < 4; index++) {
        weft_tensor *one = weft_tensor_select(t, 0, index);
        assert_true(weft_tensor_get_f64(one, 2) == (double)(8 + (index + 4) % 4));
        weft_tensor_unref(one);
    }
    assert_null(weft_tensor_select(t, 0, 4));
    assert_null(weft_tensor_select(t, 0, -5));
    assert_null(weft_tensor_narrow(t, 0, 0, 5));
    assert_null(weft_tensor_narrow(t, 0, 4, 1));
    assert_null(weft_tensor_narrow(t, 0, 2, INT64_MAX));
    assert_null(weft_tensor_narrow(t, 0, -1, 1));
    assert_null(weft_tensor_narrow(t, 2, 0, 1));
    weft_tensor_unref(a);
    weft_tensor_unref(m);
    weft_tensor_unref(t);
}

static void views_share_and_contiguous_packs(void **state)
{
    weft_tensor *a = weft_tensor_arange(6, WEFT_FLOAT32), *m = weft_tensor_reshape(a, WEFT_SHAPE(2, -1));
    weft_tensor *t = weft_tensor_transpose(m, 0, 1), *packed = weft_tensor_contiguous(t);
    weft_tensor *column = weft_tensor_narrow(m, -1, 1, 1);
    assert_false(weft_tensor_is_contiguous(t));
    float expected[] = {0, 3, 1, 4, 2, 5};
    assert_memory_equal(weft_tensor_data(packed), expected, sizeof(expected));
    weft_tensor_fill(column, 9);
    assert_true(weft_tensor_get_f64(a, 1) == 9 && weft_tensor_get_f64(a, 4) == 9 && weft_tensor_get_f64(a, 2) == 2);
    assert_null(weft_tensor_reshape(t, WEFT_SHAPE(6)));
    assert_null(weft_tensor_reshape(a, WEFT_SHAPE(-1, -1)));
    assert_null(weft_tensor_narrow(m, 1, 2, 2));
    assert_null(weft_tensor_select(m, 2, 0));
    weft_tensor *all[] = {a, m, t, packed, column};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(all[i]);
}

static void conversions_saturate(void **state)
{
    weft_tensor *x = weft_tensor_copy_of(WEFT_SHAPE(4), WEFT_FLOAT64, (double[]){1e30, -1e30, NAN, 2.9});
    weft_tensor *u8 = weft_tensor_to(x, WEFT_UINT8), *i64 = weft_tensor_to(x, WEFT_INT64);
    assert_memory_equal(weft_tensor_data(u8), ((uint8_t[]){255, 0, 0, 2}), 4);
    assert_memory_equal(weft_tensor_data(i64), ((int64_t[]){INT64_MAX, INT64_MIN, 0, 2}), 32);
    weft_tensor_unref(x);
    weft_tensor_unref(u8);
    weft_tensor_unref(i64);
}

static void assign_refuses_another_shape(void **state)
{
    weft_tensor *a = weft_tensor_zeros(WEFT_SHAPE(2), WEFT_FLOAT32), *b = weft_tensor_zeros(WEFT_SHAPE(3), WEFT_INT32);
    assert_int_equal(weft_tensor_assign(a, b), WEFT_ERR_SHAPE);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

static void without_a_tensor_nothing_is_made(void **state)
{
    weft_tensor *x = weft_tensor_zeros(WEFT_SHAPE(2), WEFT_FLOAT32);
    assert_null(weft_tensor_reshape(NULL, WEFT_SHAPE(2)));
    assert_null(weft_tensor_transpose(NULL, 0, 1));
    assert_null(weft_tensor_narrow(NULL, 0, 0, 1));
    assert_null(weft_tensor_select(NULL, 0, 0));
    assert_null(weft_tensor_contiguous(NULL));
    assert_null(weft_tensor_clone(NULL));
    assert_null(weft_tensor_to(NULL, WEFT_FLOAT64));
    assert_null(weft_tensor_ref(NULL));
    assert_int_equal(weft_tensor_assign(NULL, x), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_assign(x, NULL), WEFT_ERR_INVALID);
    weft_tensor_fill(NULL, 1);
    weft_tensor_unref(x);
}

static void no_tensor_answers_with_nothing(void **state)
{
    weft_tensor *x = weft_tensor_zeros(WEFT_SCALAR, WEFT_FLOAT32);
    assert_int_equal(weft_tensor_dtype(NULL), 0);
    assert_int_equal(weft_tensor_ndim(NULL), 0);
    assert_int_equal(weft_tensor_size(NULL, 0), 0);
    assert_int_equal(weft_tensor_stride(NULL, 0), 0);
    assert_int_equal(weft_tensor_shape(NULL).ndim, 0);
    assert_int_equal(weft_tensor_numel(NULL), 0);
    assert_int_equal(weft_tensor_nbytes(NULL), 0);
    assert_false(weft_tensor_is_contiguous(NULL));
    assert_false(weft_tensor_same_shape(NULL, x));
    assert_false(weft_tensor_same_shape(x, NULL));
    assert_null(weft_tensor_data(NULL));
    assert_true(weft_tensor_get_f64(NULL, 0) == 0);
    assert_int_equal(weft_tensor_get_i64(NULL, 0), 0);
    weft_tensor_set_requires_grad(NULL, true);
    assert_false(weft_tensor_requires_grad(NULL));
    weft_tensor_unref(x);
}

UNIT_MAIN(bad_geometry_makes_no_tensor, wrapped_memory_is_dropped_once_even_on_failure, empty_tensors_are_tensors,
          views_show_what_they_are_asked_for, views_share_and_contiguous_packs, conversions_saturate,
          assign_refuses_another_shape, without_a_tensor_nothing_is_made, no_tensor_answers_with_nothing)
