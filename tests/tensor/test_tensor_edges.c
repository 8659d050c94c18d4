/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_edges.c - small kernels by hand-computed values, text, empty and huge shapes, arguments that do not
 * fit. */
#include "check_gradients.h"
#include "tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static weft_tensor *of(weft_shape shape, const double *values)
{
    weft_tensor *tensor = tensor_copy_of(shape, WEFT_DTYPE_FLOAT64, values);
    assert_non_null(tensor);
    return tensor;
}

static void drop(int count, weft_tensor **tensors)
{
    for (int i = 0; i < count; i++)
        weft_tensor_unref(tensors[i]);
}
#define DROP(...)                                                                                                      \
    drop((int)(sizeof((weft_tensor *[]){__VA_ARGS__}) / sizeof(weft_tensor *)), (weft_tensor *[]){__VA_ARGS__})

static void assert_values(const weft_tensor *got, const double *expected)
{
    for (int64_t i = 0; i < weft_tensor_numel(got); i++) {
        double value = weft_tensor_get_f64(got, i);
        assert_true((isnan(value) && isnan(expected[i])) || fabs(value - expected[i]) < 1e-12);
    }
}

static void sums_run_over_any_dimensions(void **state)
{
    weft_tensor *a = tensor_arange(24, WEFT_DTYPE_FLOAT64), *x = tensor_reshape(a, WEFT_SHAPE(2, 3, 4));
    weft_tensor *y = of(WEFT_SHAPE(3), (double[3]){0}), *kept = of(WEFT_SHAPE(2, 1, 4), (double[8]){0});
    weft_tensor *swapped = tensor_transpose(x, 0, 2), *z = of(WEFT_SHAPE(4, 3), (double[12]){0});
    assert_int_equal(wfi_sum(x, 1u << 0 | 1u << 2, y), WEFT_OK);
    assert_values(y, (double[]){60, 92, 124});
    assert_int_equal(wfi_mean(x, 1u << 1, kept), WEFT_OK);
    assert_values(kept, (double[]){4, 5, 6, 7, 16, 17, 18, 19});
    assert_int_equal(wfi_sum(swapped, 1u << 2, z), WEFT_OK); /* strides do not matter */
    assert_values(z, (double[]){12, 20, 28, 14, 22, 30, 16, 24, 32, 18, 26, 34});
    assert_int_equal(wfi_sum(x, 1u << 1, y), WEFT_ERR_SHAPE);
    DROP(a, x, y, kept, swapped, z);
}

static void sums_of_integers_are_int64(void **state)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(1000), WEFT_DTYPE_UINT8, 255);
    weft_tensor *flags = tensor_full(WEFT_SHAPE(3, 5), WEFT_DTYPE_BOOL, 1);
    weft_tensor *y = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_INT64), *f = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32);
    assert_int_equal(wfi_sum(x, WFI_ALL_DIMS, y), WEFT_OK);
    assert_int_equal(weft_tensor_get_i64(y, 0), 255000);
    assert_int_equal(wfi_sum(flags, WFI_ALL_DIMS, y), WEFT_OK);
    assert_int_equal(weft_tensor_get_i64(y, 0), 15);
    assert_int_equal(wfi_sum(x, WFI_ALL_DIMS, f), WEFT_ERR_TYPE);
    assert_int_equal(wfi_mean(x, WFI_ALL_DIMS, f), WEFT_ERR_TYPE);
    DROP(x, flags, y, f);
}

static void nothing_sums_to_zero_and_has_no_mean(void **state)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(0, 3), WEFT_DTYPE_FLOAT64), *y = of(WEFT_SHAPE(3), (double[]){7, 7, 7});
    assert_int_equal(wfi_mean(x, 1u << 0, y), WEFT_OK);
    assert_values(y, (double[]){NAN, NAN, NAN});
    assert_int_equal(wfi_sum(x, 1u << 0, y), WEFT_OK);
    assert_values(y, (double[]){0, 0, 0});
    DROP(x, y);
}

static void the_gradient_of_a_mean_is_spread(void **state)
{
    weft_tensor *dy = of(WEFT_SHAPE(2), (double[]){3, 6}), *dx = of(WEFT_SHAPE(2, 3), (double[6]){0});
    assert_int_equal(wfi_sum_backward(dy, 1u << 1, 1.0 / 3, dx), WEFT_OK);
    assert_values(dx, (double[]){1, 1, 1, 2, 2, 2});
    assert_int_equal(wfi_sum_backward(dy, 1u << 0, 1, dx), WEFT_ERR_SHAPE);
    DROP(dy, dx);
}

static void argmax_takes_the_first_of_equals_and_any_nan(void **state)
{
    weft_tensor *x = of(WEFT_SHAPE(3, 3), (double[]){1, 5, 5, -INFINITY, -INFINITY, -INFINITY, 2, NAN, INFINITY});
    weft_tensor *y = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT64);
    weft_tensor *none = tensor_zeros(WEFT_SHAPE(3, 0), WEFT_DTYPE_FLOAT32);
    assert_int_equal(wfi_argmax(x, 1, y), WEFT_OK);
    assert_values(y, (double[]){1, 0, 1});
    assert_int_equal(wfi_argmax(x, 0, y), WEFT_OK);
    assert_values(y, (double[]){2, 2, 2});
    assert_int_equal(wfi_argmax(x, 2, y), WEFT_ERR_SHAPE);
    assert_int_equal(wfi_argmax(none, 1, y), WEFT_ERR_SHAPE);
    DROP(x, y, none);
}

static void relu_lets_a_nan_through(void **state)
{
    weft_tensor *x = of(WEFT_SHAPE(5), (double[]){-1, 0, 2, NAN, -INFINITY}), *y = tensor_clone(x);
    weft_tensor *dy = of(WEFT_SHAPE(5), (double[]){1, 2, 3, 4, 5}), *dx = tensor_clone(x);
    assert_int_equal(wfi_relu(x, y), WEFT_OK);
    assert_values(y, (double[]){0, 0, 2, NAN, 0});
    assert_int_equal(wfi_relu_backward(dy, y, dx), WEFT_OK);
    assert_values(dx, (double[]){0, 0, 3, 4, 0}); /* as PyTorch */
    assert_int_equal(wfi_relu(x, x), WEFT_OK);    /* in place */
    assert_values(x, (double[]){0, 0, 2, NAN, 0});
    assert_int_equal(wfi_relu_backward(dy, y, dy), WEFT_OK);
    assert_values(dy, (double[]){0, 0, 3, 4, 0});
    DROP(x, y, dy, dx);
}

/* By how many units in the last place `got` is not `wanted`. */
static double units_off(float got, double wanted)
{
    int exponent;
    (void)frexp(wanted, &exponent);
    return fabs((double)got - wanted) / ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
}

/* Floats of all sizes, of both signs, subnormal ones among them, in their order as bits. */
static void sigmoid_and_tanh_are_near_the_true_value_everywhere(void **state)
{
    enum { STRIDE = 9973, COUNT = 0xff000000u / STRIDE };
    weft_tensor *x = tensor_empty(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32), *y = tensor_clone(x);
    float *in = weft_tensor_data(x);
    const float *out = weft_tensor_data(y);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits = i * STRIDE;
        if ((bits & 0x7f800000) == 0x7f800000)
            bits = 0; /* no number */
        memcpy(&in[i], &bits, sizeof(bits));
    }
    assert_int_equal(wfi_sigmoid(x, y), WEFT_OK);
    for (int64_t i = 0; i < COUNT; i++) {
        double e = exp(-fabs((double)in[i])), wanted = (in[i] < 0 ? e : 1) / (1 + e);
        if (!(units_off(out[i], wanted) <= 3))
            fail_msg("sigmoid(%.9g) is %.9g, not %.9g", (double)in[i], (double)out[i], wanted);
    }
    assert_int_equal(wfi_tanh(x, y), WEFT_OK);
    for (int64_t i = 0; i < COUNT; i++)
        if (!(units_off(out[i], tanh((double)in[i])) <= 3))
            fail_msg("tanh(%.9g) is %.9g", (double)in[i], (double)out[i]);
    DROP(x, y);
}

static void sigmoid_ends_at_zero_and_its_logarithm_at_minus_infinity(void **state)
{
    for (int i = 0; i < 2; i++) {
        weft_tensor *given = of(WEFT_SHAPE(5), (double[]){-1000, -INFINITY, 1000, INFINITY, NAN});
        weft_tensor *x = tensor_to(given, i == 0 ? WEFT_DTYPE_FLOAT32 : WEFT_DTYPE_FLOAT64), *y = tensor_clone(x);
        assert_int_equal(wfi_sigmoid(x, y), WEFT_OK);
        assert_values(y, (double[]){0, 0, 1, 1, NAN});
        assert_true(weft_tensor_get_f64(y, 0) == 0); /* nothing small that is left over */
        assert_int_equal(wfi_ln(y, y), WEFT_OK);
        assert_true(weft_tensor_get_f64(y, 0) == -INFINITY);
        assert_int_equal(wfi_tanh(x, y), WEFT_OK);
        assert_values(y, (double[]){-1, -1, 1, 1, NAN});
        DROP(given, x, y);
    }
}

static void exp_and_ln_undo_each_other(void **state)
{
    weft_tensor *x = of(WEFT_SHAPE(4), (double[]){-1, 0, 0.5, 3}), *y = tensor_clone(x);
    assert_int_equal(wfi_exp(x, y), WEFT_OK);
    assert_true(fabs(weft_tensor_get_f64(y, 3) - exp(3)) < 1e-12);
    assert_int_equal(wfi_ln(y, y), WEFT_OK);
    assert_values(y, (double[]){-1, 0, 0.5, 3});
    assert_int_equal(wfi_add_scalar(y, 1, y), WEFT_OK);
    assert_int_equal(wfi_scale(y, 2, y), WEFT_OK);
    assert_values(y, (double[]){0, 2, 3, 8});
    DROP(x, y);
}

static void matmul_transposes_either_side(void **state)
{
    weft_tensor *a = of(WEFT_SHAPE(2, 3), (double[]){1, 2, 3, 4, 5, 6});
    weft_tensor *at = of(WEFT_SHAPE(3, 2), (double[]){1, 4, 2, 5, 3, 6});
    weft_tensor *b = of(WEFT_SHAPE(3, 2), (double[]){7, 8, 9, 10, 11, 12});
    weft_tensor *bt = of(WEFT_SHAPE(2, 3), (double[]){7, 9, 11, 8, 10, 12}), *y = of(WEFT_SHAPE(2, 2), (double[4]){0});
    weft_tensor *bad = tensor_zeros(WEFT_SHAPE(3, 3), WEFT_DTYPE_FLOAT64);
    for (int i = 0; i < 4; i++) {
        wfi_fill(y, NAN); /* what was there must not come through */
        assert_int_equal(wfi_matmul(i & 1 ? at : a, i & 1, i & 2 ? bt : b, i & 2, y), WEFT_OK);
        assert_values(y, (double[]){58, 64, 139, 154});
    }
    assert_int_equal(wfi_matmul(a, false, a, false, y), WEFT_ERR_SHAPE);
    assert_int_equal(wfi_matmul(a, false, b, false, bad), WEFT_ERR_SHAPE);
    DROP(a, at, b, bt, y, bad);
}

static void a_product_over_nothing_is_zero(void **state)
{
    weft_tensor *a = tensor_zeros(WEFT_SHAPE(2, 0), WEFT_DTYPE_FLOAT32),
                *y = tensor_full(WEFT_SHAPE(2, 2), WEFT_DTYPE_FLOAT32, 5);
    assert_int_equal(wfi_matmul(a, false, a, true, y), WEFT_OK);
    assert_values(y, (double[]){0, 0, 0, 0});
    DROP(a, y);
}

static void a_mask_of_probability_zero_or_one_is_exact(void **state)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(1000), WEFT_DTYPE_FLOAT32);
    assert_int_equal(wfi_random_mask(x, (wfi_random){1, 1}, 0, 3), WEFT_OK);
    for (int i = 0; i < 1000; i++)
        assert_true(weft_tensor_get_f64(x, i) == 0);
    assert_int_equal(wfi_random_mask(x, (wfi_random){1, 1}, 1, 3), WEFT_OK);
    for (int i = 0; i < 1000; i++)
        assert_true(weft_tensor_get_f64(x, i) == 3);
    weft_tensor *integers = tensor_empty(WEFT_SHAPE(3), WEFT_DTYPE_INT64);
    assert_int_equal(wfi_random_mask(integers, (wfi_random){1, 1}, 0.5, 1), WEFT_ERR_TYPE);
    DROP(x, integers);
}

static void a_tensor_over_a_storage_must_fit_it(void **state)
{
    wfi_storage *storage;
    weft_tensor *tensor = NULL;
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, 40, &storage), WEFT_OK);
    assert_int_equal(wfi_tensor_over(storage, 2, WEFT_SHAPE(2, 4), WEFT_DTYPE_FLOAT32, &tensor), WEFT_OK);
    assert_ptr_equal(weft_tensor_data(tensor), (char *)wfi_storage_data(storage) + 8);
    weft_tensor_unref(tensor);
    tensor = NULL;
    assert_int_equal(wfi_tensor_over(storage, 3, WEFT_SHAPE(2, 4), WEFT_DTYPE_FLOAT32, &tensor), WEFT_ERR_INVALID);
    assert_int_equal(wfi_tensor_over(storage, -1, WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32, &tensor), WEFT_ERR_INVALID);
    assert_int_equal(wfi_tensor_over(storage, INT64_MAX, WEFT_SHAPE(1), WEFT_DTYPE_FLOAT64, &tensor), WEFT_ERR_INVALID);
    assert_int_equal(wfi_tensor_over(storage, 0, WEFT_SHAPE(INT64_MAX), WEFT_DTYPE_UINT8, &tensor), WEFT_ERR_INVALID);
    assert_int_not_equal(wfi_tensor_over(storage, 0, WEFT_SHAPE(-1), WEFT_DTYPE_UINT8, &tensor), WEFT_OK);
    assert_null(tensor);
    wfi_storage_unref(storage);
}

static void empty_tensors_pass_through_every_kernel(void **state)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(0, 4), WEFT_DTYPE_FLOAT32), *y = tensor_clone(x);
    weft_tensor *image = tensor_zeros(WEFT_SHAPE(0, 2, 4, 4), WEFT_DTYPE_FLOAT32);
    weft_tensor *pooled = tensor_zeros(WEFT_SHAPE(0, 2, 2, 2), WEFT_DTYPE_FLOAT32);
    weft_tensor *indices = tensor_zeros(WEFT_SHAPE(0, 2, 2, 2), WEFT_DTYPE_INT32);
    weft_tensor *loss = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32),
                *target = tensor_zeros(WEFT_SHAPE(0), WEFT_DTYPE_INT64);
    wfi_pool2d how = {{2, 2}, {2, 2}, {0, 0}};
    assert_int_equal(wfi_relu(x, y), WEFT_OK);
    assert_int_equal(wfi_binary(WFI_ADD, x, y, y), WEFT_OK);
    assert_int_equal(wfi_logsoftmax(x, 1, y), WEFT_OK);
    assert_int_equal(wfi_nll_loss(x, target, WFI_REDUCE_MEAN, loss), WEFT_OK);
    assert_true(isnan(weft_tensor_get_f64(loss, 0)));
    assert_int_equal(wfi_mse_loss(x, y, WFI_REDUCE_SUM, loss), WEFT_OK);
    assert_true(weft_tensor_get_f64(loss, 0) == 0);
    assert_int_equal(wfi_max_pool2d(image, &how, pooled, indices), WEFT_OK);
    assert_int_equal(wfi_max_pool2d_backward(pooled, indices, image), WEFT_OK);
    assert_int_equal(wfi_adaptive_avg_pool2d(image, pooled), WEFT_OK);
    assert_int_equal(wfi_random_normal(x, (wfi_random){1, 1}, 0, 1), WEFT_OK);
    DROP(x, y, image, pooled, indices, loss, target);
}

static void shapes_too_large_are_refused_everywhere(void **state)
{
    weft_shape y, wide = WEFT_SHAPE(1, 1, INT64_MAX, 1), weight = WEFT_SHAPE(1, 1, 3, 3);
    weft_shape large = WEFT_SHAPE(1, 1, 100000, 100000);
    wfi_conv2d conv = {{1, 1}, {0, 0}, {1, 1}, 1}, far = {{1, 1}, {INT64_MAX, 0}, {1, 1}, 1};
    wfi_pool2d pool = {{2, 2}, {2, 2}, {0, 0}};
    assert_int_not_equal(wfi_conv2d_shape(&wide, &weight, &conv, &y), WEFT_OK);
    assert_int_not_equal(wfi_conv2d_shape(&large, &weight, &far, &y), WEFT_OK);
    assert_int_not_equal(wfi_pool2d_shape(&wide, &pool, &y), WEFT_OK);
    assert_int_equal(wfi_pool2d_shape(&large, &pool, &y), WEFT_ERR_TOO_LARGE);
    assert_null(tensor_zeros(WEFT_SHAPE(INT64_C(1) << 31, INT64_C(1) << 31, 4), WEFT_DTYPE_FLOAT32));
    assert_null(tensor_zeros(WEFT_SHAPE(INT64_C(1) << 50), WEFT_DTYPE_UINT8));
}

static char *printed(const weft_tensor *tensor)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    weft_tensor_print(tensor, file);
    fclose(file);
    return text;
}

static void assert_printed(weft_tensor *tensor, const char *expected)
{
    char *text = printed(tensor);
    assert_string_equal(text, expected);
    free(text);
    weft_tensor_unref(tensor);
}

static void tensors_print_as_text(void **state)
{
    weft_tensor *a = tensor_arange(4, WEFT_DTYPE_INT64);
    assert_printed(tensor_reshape(a, WEFT_SHAPE(2, 2)), "int64 [2, 2] [[0, 1], [2, 3]]\n");
    weft_tensor_unref(a);
    assert_printed(of(WEFT_SHAPE(4), (double[]){0.5, -1e-9, NAN, INFINITY}), "float64 [4] [0.5, -1e-09, nan, inf]\n");
    assert_printed(tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 1.25), "float32 [] 1.25\n");
    assert_printed(tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_BOOL, 1), "bool [2] [true, true]\n");
    assert_printed(tensor_zeros(WEFT_SHAPE(3, 0), WEFT_DTYPE_UINT8), "uint8 [3, 0] []\n");
    assert_printed(tensor_arange(2000, WEFT_DTYPE_INT32), "int32 [2000] [0, 1, 2, ..., 1997, 1998, 1999]\n");
    assert_printed(NULL, "no tensor\n");
}

/* As in PyTorch: a byte of a bool that is neither 0 nor 1 is true, and true is 1. */
static void any_byte_of_a_bool_but_0_is_1(void **state)
{
    static uint8_t bytes[] = {0, 255, 2, 1};
    weft_tensor *x = tensor_wrap(WEFT_SHAPE(4), WEFT_DTYPE_BOOL, bytes, NULL, NULL, NULL);
    weft_tensor *across = tensor_select(x, 0, 2);
    for (int dtype = 0; dtype < WFI_DTYPES; dtype++) {
        weft_tensor *y = tensor_to(x, (weft_dtype)dtype);
        for (int64_t i = 0; y && i < 4; i++) {
            assert_true(weft_tensor_get_f64(y, i) == (i > 0));
            assert_int_equal(weft_tensor_get_i64(y, i), i > 0);
        }
        weft_tensor_unref(y);
    }
    weft_tensor *count = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_INT64);
    assert_int_equal(wfi_sum(x, WFI_ALL_DIMS, count), WEFT_OK);
    assert_int_equal(weft_tensor_get_i64(count, 0), 3);
    assert_int_equal(wfi_sum(across, WFI_ALL_DIMS, count), WEFT_OK);
    assert_int_equal(weft_tensor_get_i64(count, 0), 1);
    assert_int_equal(wfi_argmax(x, 0, count), WEFT_OK);
    assert_int_equal(weft_tensor_get_i64(count, 0), 1); /* the first of equals */
    DROP(across, count);
    assert_printed(x, "bool [4] [false, true, true, true]\n");
}

UNIT_MAIN(any_byte_of_a_bool_but_0_is_1, sums_run_over_any_dimensions, sums_of_integers_are_int64,
          nothing_sums_to_zero_and_has_no_mean, the_gradient_of_a_mean_is_spread,
          argmax_takes_the_first_of_equals_and_any_nan, relu_lets_a_nan_through,
          sigmoid_and_tanh_are_near_the_true_value_everywhere, sigmoid_ends_at_zero_and_its_logarithm_at_minus_infinity,
          exp_and_ln_undo_each_other, matmul_transposes_either_side, a_product_over_nothing_is_zero,
          a_mask_of_probability_zero_or_one_is_exact, a_tensor_over_a_storage_must_fit_it,
          empty_tensors_pass_through_every_kernel, shapes_too_large_are_refused_everywhere, tensors_print_as_text)
