/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_api.c - the public tensor: making, views, copies, errors. */
#include "check_gradients.h"
#include "said.h"
#include "tensors.h"

#include <string.h>

static void count(void *arg)
{
    ++*(int *)arg;
}

static void bad_geometry_makes_no_tensor(void **state)
{
    assert_null(tensor_empty(WEFT_SHAPE(-1), WEFT_DTYPE_FLOAT32));
    assert_null(tensor_empty(WEFT_SHAPE(INT64_MAX, 2), WEFT_DTYPE_UINT8));
    assert_null(tensor_empty(WEFT_SHAPE(INT64_MAX), WEFT_DTYPE_FLOAT64));
    assert_null(tensor_empty(WEFT_SHAPE(2), (weft_dtype)17));
    assert_null(tensor_empty((weft_shape){9, {1}}, WEFT_DTYPE_FLOAT32));
    assert_null(tensor_arange(-1, WEFT_DTYPE_INT64));
}

static void wrapped_memory_is_dropped_once_even_on_failure(void **state)
{
    int drops = 0;
    double data[2] = {1, 2};
    assert_null(tensor_wrap(WEFT_SHAPE(-2), WEFT_DTYPE_FLOAT64, data, NULL, count, &drops));
    assert_null(tensor_wrap(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT64, (char *)data + 1, NULL, count, &drops));
    assert_null(tensor_wrap(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT64, NULL, NULL, count, &drops));
    assert_int_equal(drops, 3);
    weft_tensor *tensor = tensor_wrap(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, data, NULL, count, &drops);
    weft_tensor *view = tensor_select(tensor, 0, 1);
    weft_tensor_unref(tensor);
    assert_int_equal(drops, 3);
    assert_true(weft_tensor_get_f64(view, 0) == 2);
    weft_tensor_unref(view);
    assert_int_equal(drops, 4);
}

/* Element [i, k] of A(3, 5) in Fortran order lies at i + 3 k. */
static void wrapped_memory_may_be_in_fortran_order(void **state)
{
    double column_major[15];
    for (int i = 0; i < 15; i++)
        column_major[i] = i;
    weft_tensor *a = tensor_wrap(WEFT_SHAPE(3, 5), WEFT_DTYPE_FLOAT64, column_major, (int64_t[]){1, 3}, NULL, NULL);
    assert_false(weft_tensor_is_contiguous(a));
    assert_int_equal(weft_tensor_stride(a, 1), 3);
    for (int64_t i = 0; i < 15; i++)
        assert_true(weft_tensor_get_f64(a, i) == (double)(i / 5 + 3 * (i % 5)));
    weft_tensor *turned = tensor_transpose(a, 0, 1);
    assert_true(weft_tensor_is_contiguous(turned)); /* it reaches to the end of the memory, and no further */
    weft_tensor_unref(turned);
    weft_tensor_unref(a);
}

static void wrapped_memory_may_have_halos(void **state)
{
    float field[6][8];
    for (int i = 0; i < 48; i++)
        field[i / 8][i % 8] = (float)i;
    weft_tensor *inside =
        tensor_wrap(WEFT_SHAPE(4, 6), WEFT_DTYPE_FLOAT32, &field[1][1], (int64_t[]){8, 1}, NULL, NULL);
    assert_true(weft_tensor_get_f64(inside, 0) == 9 && weft_tensor_get_f64(inside, 23) == 38);
    weft_tensor_fill(inside, -1);
    for (int i = 0; i < 48; i++) {
        bool halo = i / 8 == 0 || i / 8 == 5 || i % 8 == 0 || i % 8 == 7;
        assert_true(field[i / 8][i % 8] == (halo ? (float)i : -1));
    }
    weft_tensor_unref(inside);
}

static void wrapping_checks_strides(void **state)
{
    static const struct {
        weft_shape shape;
        int64_t strides[2];
    } bad[] = {
        {{2, {2, 2}}, {-1, 1}},                /* backwards */
        {{2, {0, 2}}, {1, -1}},                /* also of nothing */
        {{2, {3, 2}}, {INT64_MAX / 2 + 1, 1}}, /* the last element's number is too large */
        {{2, {2, 2}}, {INT64_MAX, INT64_MAX}}, /* their sum is */
        {{2, {2, 1}}, {INT64_MAX / 4, 1}},     /* its bytes are */
        {{2, {INT64_MAX, INT64_MAX}}, {0, 0}}, /* so many elements */
    };
    double data[4] = {1, 2, 3, 4};
    int drops = 0;
    for (int i = 0; i < 6; i++)
        assert_null(tensor_wrap(bad[i].shape, WEFT_DTYPE_FLOAT64, data, bad[i].strides, count, &drops));
    assert_null(tensor_wrap(WEFT_SHAPE(2), WEFT_DTYPE_INT16, (char *)data + 1, (int64_t[]){1}, count, &drops));
    assert_null(tensor_wrap(WEFT_SHAPE(1), WEFT_DTYPE_COMPLEX128, (char *)data + 4, NULL, count, &drops));
    /* the end of the last element is too large */
    assert_null(tensor_wrap(WEFT_SHAPE(2), WEFT_DTYPE_UINT8, data, (int64_t[]){INT64_MAX}, count, &drops));
    assert_int_equal(drops, 9);
    weft_tensor *z =
        tensor_wrap(WEFT_SHAPE(1), WEFT_DTYPE_COMPLEX128, data + 1, NULL, count, &drops); /* aligned to 8 */
    weft_tensor *same = tensor_wrap(WEFT_SHAPE(5), WEFT_DTYPE_FLOAT64, data, (int64_t[]){0}, count, &drops);
    weft_tensor *none =
        tensor_wrap(WEFT_SHAPE(0, 7), WEFT_DTYPE_FLOAT64, NULL, (int64_t[]){INT64_MAX, 1}, count, &drops);
    assert_true(weft_tensor_get_f64(z, 0) == 2 && weft_tensor_get_f64(same, 4) == 1);
    assert_int_equal(weft_tensor_numel(none), 0);
    weft_tensor_unref(z);
    weft_tensor_unref(same);
    weft_tensor_unref(none);
    assert_int_equal(drops, 12);
}

static void a_device_that_is_none_is_refused_in_words(void **state)
{
    static const weft_device bad[] = {
        {WEFT_DEVICE_CPU, 1}, {(weft_device_kind)7, 0}, {WEFT_DEVICE_CUDA, -1}, {WEFT_DEVICE_CUDA, 4711}};
    static const char *const says[] = {"number 0, not 1", "7 is no kind", "cuda:-1", "cuda:4711"};
    for (int i = 0; i < 4; i++) {
        weft_error *error = NULL;
        assert_true(weft_device_check(bad[i], &error) < 0);
        assert_non_null(strstr(weft_error_message(error), says[i]));
        weft_error_unref(error);
        assert_true(weft_device_check(bad[i], NULL) < 0);
        assert_null(tensor_empty_on(bad[i], WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32));
    }
    weft_device cpu = {WEFT_DEVICE_CPU, 0};
    assert_int_equal(weft_device_check(cpu, NULL), WEFT_OK);
    weft_tensor *x = tensor_empty_on(cpu, WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32), *same = tensor_to_device(x, cpu);
    assert_ptr_equal(same, x);
    assert_int_equal(weft_tensor_device(x).kind, WEFT_DEVICE_CPU);
    assert_null(tensor_to_device(x, bad[3]));
    weft_tensor_unref(x);
    weft_tensor_unref(same);
}

static void empty_tensors_are_tensors(void **state)
{
    weft_tensor *empty = tensor_zeros(WEFT_SHAPE(3, 0), WEFT_DTYPE_FLOAT32), *copy = tensor_clone(empty);
    weft_tensor *flat = tensor_reshape(empty, WEFT_SHAPE(0));
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
    weft_tensor *a = tensor_arange(12, WEFT_DTYPE_FLOAT32), *m = tensor_reshape(a, WEFT_SHAPE(3, 4));
    weft_tensor *t = tensor_transpose(m, 0, 1); /* [i, k] is k * 4 + i */
    for (int64_t start = 0; start < 4; start++) {
        weft_tensor *rest = tensor_narrow(t, 0, start, 4 - start), *last = tensor_narrow(rest, 1, 2, 1);
        assert_true(weft_tensor_get_f64(rest, 1) == (double)(4 + start));
        assert_true(weft_tensor_get_f64(last, 0) == (double)(8 + start));
        weft_tensor_unref(rest);
        weft_tensor_unref(last);
    }
    for (int64_t index = -4; index < 4; index++) {
        weft_tensor *one = tensor_select(t, 0, index);
        assert_true(weft_tensor_get_f64(one, 2) == (double)(8 + (index + 4) % 4));
        weft_tensor_unref(one);
    }
    assert_null(tensor_select(t, 0, 4));
    assert_null(tensor_select(t, 0, -5));
    assert_null(tensor_narrow(t, 0, 0, 5));
    assert_null(tensor_narrow(t, 0, 4, 1));
    assert_null(tensor_narrow(t, 0, 2, INT64_MAX));
    assert_null(tensor_narrow(t, 0, -1, 1));
    assert_null(tensor_narrow(t, 2, 0, 1));
    weft_tensor_unref(a);
    weft_tensor_unref(m);
    weft_tensor_unref(t);
}

static void views_share_and_contiguous_packs(void **state)
{
    weft_tensor *a = tensor_arange(6, WEFT_DTYPE_FLOAT32), *m = tensor_reshape(a, WEFT_SHAPE(2, -1));
    weft_tensor *t = tensor_transpose(m, 0, 1), *packed = tensor_contiguous(t);
    weft_tensor *column = tensor_narrow(m, -1, 1, 1);
    assert_false(weft_tensor_is_contiguous(t));
    float expected[] = {0, 3, 1, 4, 2, 5};
    assert_memory_equal(weft_tensor_data(packed), expected, sizeof(expected));
    weft_tensor_fill(column, 9);
    assert_true(weft_tensor_get_f64(a, 1) == 9 && weft_tensor_get_f64(a, 4) == 9 && weft_tensor_get_f64(a, 2) == 2);
    assert_null(tensor_reshape(t, WEFT_SHAPE(6)));
    assert_null(tensor_reshape(a, WEFT_SHAPE(-1, -1)));
    assert_null(tensor_narrow(m, 1, 2, 2));
    assert_null(tensor_select(m, 2, 0));
    weft_tensor *all[] = {a, m, t, packed, column};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(all[i]);
}

static void conversions_saturate(void **state)
{
    weft_tensor *x = tensor_copy_of(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT64, (double[]){1e30, -1e30, NAN, 2.9});
    weft_tensor *u8 = tensor_to(x, WEFT_DTYPE_UINT8), *i64 = tensor_to(x, WEFT_DTYPE_INT64);
    assert_memory_equal(weft_tensor_data(u8), ((uint8_t[]){255, 0, 0, 2}), 4);
    assert_memory_equal(weft_tensor_data(i64), ((int64_t[]){INT64_MAX, INT64_MIN, 0, 2}), 32);
    weft_tensor_unref(x);
    weft_tensor_unref(u8);
    weft_tensor_unref(i64);
}

static void assign_refuses_another_shape(void **state)
{
    weft_tensor *a = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32),
                *b = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT32);
    assert_int_equal(weft_tensor_assign(a, b), WEFT_ERR_SHAPE);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

static void without_a_tensor_nothing_is_made(void **state)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    assert_null(tensor_reshape(NULL, WEFT_SHAPE(2)));
    assert_null(tensor_transpose(NULL, 0, 1));
    assert_null(tensor_narrow(NULL, 0, 0, 1));
    assert_null(tensor_select(NULL, 0, 0));
    assert_null(tensor_contiguous(NULL));
    assert_null(tensor_clone(NULL));
    assert_null(tensor_to(NULL, WEFT_DTYPE_FLOAT64));
    assert_null(weft_tensor_ref(NULL));
    assert_int_equal(weft_tensor_assign(NULL, x), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_assign(x, NULL), WEFT_ERR_INVALID);
    weft_tensor_fill(NULL, 1);
    weft_tensor_wrote(NULL);
    assert_null(tensor_to_device(NULL, (weft_device){WEFT_DEVICE_CPU, 0}));
    weft_tensor_unref(x);
}

static void no_tensor_answers_with_nothing(void **state)
{
    weft_tensor *x = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32);
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
    assert_int_equal(weft_tensor_device(NULL).kind, WEFT_DEVICE_CPU);
    assert_true(weft_tensor_get_f64(NULL, 0) == 0);
    assert_int_equal(weft_tensor_get_i64(NULL, 0), 0);
    weft_tensor_set_requires_grad(NULL, true);
    assert_false(weft_tensor_requires_grad(NULL));
    weft_tensor_unref(x);
}

/* The function fails, *out stays, and the reason is in the error, or without one in the log. */
#define MAKES_NOTHING(status, words, function, ...)                                                                    \
    do {                                                                                                               \
        weft_error *why = NULL;                                                                                        \
        REFUSES(function(__VA_ARGS__, &out, &why), status, NULL);                                                      \
        assert_int_equal(weft_error_code(why), status);                                                                \
        if (!strstr(weft_error_message(why), words))                                                                   \
            fail_msg("the error is \"%s\", not \"%s\"", weft_error_message(why), words);                               \
        weft_error_unref(why);                                                                                         \
        REFUSES(function(__VA_ARGS__, &out, NULL), status, words);                                                     \
        assert_ptr_equal(out, x);                                                                                      \
    } while (0)

static void wrong_arguments_are_named(void **state)
{
    static double memory[9];
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32);
    weft_tensor *y = tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_INT64);
    weft_log_level level = weft_logging_get_level();
    REFUSES(weft_tensor_assign(x, y), WEFT_ERR_SHAPE, NULL);
    weft_logging_set_level(WEFT_LOG_DEBUG);
    REFUSES(weft_tensor_assign(x, y), WEFT_ERR_SHAPE, "the source is int64 [4], the target float32 [2, 3]");
    REFUSES(weft_tensor_assign(x, NULL), WEFT_ERR_INVALID, "weft_tensor_assign: the source is NULL");
    REFUSES(weft_tensor_fill_uniform(x, 1, 3, 1), WEFT_ERR_INVALID, "low is 3 and high 1");
    REFUSES(weft_tensor_fill_normal(x, 1, 0, -1), WEFT_ERR_INVALID, "mean is 0 and deviation -1");
    REFUSES(weft_tensor_fill_normal(y, 1, 0, 1), WEFT_ERR_TYPE, "weft_tensor_fill_normal: the target is int64");
    REFUSES(weft_tensor_fill_uniform(NULL, 1, 0, 1), WEFT_ERR_INVALID, "the target is NULL");
    REFUSES(weft_tensor_wait_unread(x, -9), WEFT_ERR_INVALID, "weft_tensor_wait_unread: wait_ms is -9");
    weft_logging_set_level(level);
    weft_tensor *out = x;
    MAKES_NOTHING(WEFT_ERR_SHAPE, "no new tensor float32 [2, -4]: its size 1 is -4", weft_tensor_zeros,
                  WEFT_SHAPE(2, -4), WEFT_DTYPE_FLOAT32);
    MAKES_NOTHING(WEFT_ERR_TOO_LARGE,
                  "no new tensor float32 [1099511627776, 1099511627776]: it would have 2^63 bytes or more",
                  weft_tensor_zeros, WEFT_SHAPE((int64_t)1 << 40, (int64_t)1 << 40), WEFT_DTYPE_FLOAT32);
    MAKES_NOTHING(WEFT_ERR_TYPE, "[2] of dtype 99", weft_tensor_full, WEFT_SHAPE(2), (weft_dtype)99, 1);
    MAKES_NOTHING(WEFT_ERR_INVALID, "no copy of a NULL pointer", weft_tensor_copy_of, WEFT_SHAPE(2), WEFT_DTYPE_INT64,
                  NULL);
    MAKES_NOTHING(WEFT_ERR_INVALID, "the address is NULL, and float64 [2] has 16 bytes", weft_tensor_wrap,
                  WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, NULL, NULL, NULL, NULL);
    MAKES_NOTHING(WEFT_ERR_INVALID, "is not aligned for the dtype: float64 needs a multiple of 8", weft_tensor_wrap,
                  WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, (char *)memory + 1, NULL, NULL, NULL);
    MAKES_NOTHING(WEFT_ERR_INVALID, "no view of [2, 3]: 9 elements from 1 on lie outside dimension 1",
                  weft_tensor_narrow, x, 1, 1, 9);
    MAKES_NOTHING(WEFT_ERR_INVALID, "no view of [2, 3]: it has no dimension 7", weft_tensor_select, x, 7, 0);
    MAKES_NOTHING(WEFT_ERR_INVALID, "index -4 lies outside dimension 1", weft_tensor_select, x, 1, -4);
    MAKES_NOTHING(WEFT_ERR_SHAPE, "[7] has another number of elements", weft_tensor_reshape, x, WEFT_SHAPE(7));
    MAKES_NOTHING(WEFT_ERR_INVALID, "the tensor is NULL", weft_tensor_clone, NULL);
    REFUSES(weft_tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, NULL, NULL), WEFT_ERR_INVALID,
            "weft_tensor_zeros: out is NULL");
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

UNIT_MAIN(bad_geometry_makes_no_tensor, wrapped_memory_is_dropped_once_even_on_failure,
          wrapped_memory_may_be_in_fortran_order, wrapped_memory_may_have_halos, wrapping_checks_strides,
          a_device_that_is_none_is_refused_in_words, empty_tensors_are_tensors, views_show_what_they_are_asked_for,
          views_share_and_contiguous_packs, conversions_saturate, assign_refuses_another_shape,
          without_a_tensor_nothing_is_made, no_tensor_answers_with_nothing, wrong_arguments_are_named)
