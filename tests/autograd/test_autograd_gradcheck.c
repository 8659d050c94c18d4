/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_gradcheck.c - every operator's gradient by finite differences in float64, odd shapes included. */
#include "autograd/gradcheck.h"
#include "tensors.h"

#define S(...) WEFT_SHAPE(__VA_ARGS__)
#define SHAPES(...) ((const weft_shape[]){__VA_ARGS__})

/* clang-format off */
#define EXPRESSION(name, expr)                                                                                         \
    static weft_tensor *name(weft_tape *t, weft_tensor *const *in, const void *arg)                                    \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        return expr;                                                                                                   \
    }
EXPRESSION(add, weft_add(t, in[0], in[1]))
EXPRESSION(sub, weft_sub(t, in[0], in[1]))
EXPRESSION(mul, weft_mul(t, in[0], in[1]))
EXPRESSION(divide, weft_div(t, in[0], in[1]))
EXPRESSION(square, weft_mul(t, in[0], in[0]))
EXPRESSION(neg, weft_neg(t, in[0]))
EXPRESSION(scale, weft_scale(t, in[0], -2.5))
EXPRESSION(add_scalar, weft_add_scalar(t, in[0], 3))
EXPRESSION(exponential, weft_exp(t, in[0]))
EXPRESSION(logarithm, weft_log(t, in[0]))
EXPRESSION(relu, weft_relu(t, in[0]))
EXPRESSION(sigmoid, weft_sigmoid(t, in[0]))
EXPRESSION(hyperbolic_tangent, weft_tanh(t, in[0]))
EXPRESSION(index_select, weft_index_select(t, in[0], 1, (weft_tensor *)arg))
EXPRESSION(scatter_add, weft_scatter_add(t, in[0], 1, (weft_tensor *)arg, in[1]))
EXPRESSION(matmul, weft_matmul(t, in[0], in[1]))
EXPRESSION(matmul_turned, weft_matmul(t, weft_transpose(t, in[0], 0, 1), weft_transpose(t, in[1], 0, 1)))
EXPRESSION(linear, weft_linear(t, in[0], in[1], in[2]))
EXPRESSION(linear_plain, weft_linear(t, in[0], in[1], NULL))
EXPRESSION(conv, weft_conv2d(t, in[0], in[1], in[2], arg))
EXPRESSION(conv_plain, weft_conv2d(t, in[0], in[1], NULL, arg))
EXPRESSION(norm_train, weft_batch_norm2d(t, in[0], in[1], in[2], NULL, NULL, &(weft_batch_norm_options){.train = true}))
EXPRESSION(norm_bare, weft_batch_norm2d(t, in[0], NULL, NULL, NULL, NULL, &(weft_batch_norm_options){.train = true}))
EXPRESSION(max_pool, weft_max_pool2d(t, in[0], arg))
EXPRESSION(avg_pool, weft_adaptive_avg_pool2d(t, in[0], 2, 3))
EXPRESSION(avg_pool_one, weft_adaptive_avg_pool2d(t, in[0], 1, 1))
EXPRESSION(dropout, weft_dropout(t, in[0], 0.4, true))
EXPRESSION(dropout2d, weft_dropout2d(t, in[0], 0.4, true))
EXPRESSION(flatten, weft_flatten(t, in[0], 1))
EXPRESSION(reshape, weft_reshape(t, in[0], S(4, -1)))
EXPRESSION(transpose, weft_transpose(t, in[0], 0, -1))
EXPRESSION(narrow, weft_narrow(t, in[0], 1, 1, 2))
EXPRESSION(narrow_twice, weft_add(t, weft_narrow(t, in[0], 0, 0, 1), weft_narrow(t, in[0], 0, 1, 1)))
EXPRESSION(select_one, weft_select(t, in[0], 1, 2))
EXPRESSION(clone, weft_mul(t, weft_clone(t, in[0]), in[0]))
EXPRESSION(sum, weft_sum(t, in[0]))
EXPRESSION(mean, weft_mean(t, in[0]))
EXPRESSION(sum_dim, weft_sum_dim(t, in[0], 1, false))
EXPRESSION(mean_dim, weft_mean_dim(t, in[0], -1, true))
EXPRESSION(softmax, weft_softmax(t, in[0], 1))
EXPRESSION(log_softmax, weft_log_softmax(t, in[0], -1))
EXPRESSION(nll, weft_nll_loss(t, in[0], (weft_tensor *)arg))
EXPRESSION(nll_sum, weft_nll_loss_reduced(t, in[0], (weft_tensor *)arg, WEFT_REDUCTION_SUM))
EXPRESSION(nll_none, weft_nll_loss_reduced(t, in[0], (weft_tensor *)arg, WEFT_REDUCTION_NONE))
EXPRESSION(cross_entropy, weft_cross_entropy(t, in[0], (weft_tensor *)arg))
EXPRESSION(mse, weft_mse_loss(t, in[0], in[1]))
EXPRESSION(mse_sum, weft_mse_loss_reduced(t, in[0], in[1], WEFT_REDUCTION_SUM))
EXPRESSION(mse_none, weft_mse_loss_reduced(t, in[0], in[1], WEFT_REDUCTION_NONE))
#define LIST(...) ((weft_tensors){(weft_tensor *[]){__VA_ARGS__}, sizeof((weft_tensor *[]){__VA_ARGS__}) / sizeof(weft_tensor *)})
EXPRESSION(gather, weft_take_along_dim(t, in[0], 1, (weft_tensor *)arg))
EXPRESSION(gather_turned, weft_take_along_dim(t, weft_transpose(t, in[0], 0, 1), 0, weft_tape_take(t, tensor_transpose((weft_tensor *)arg, 0, 1))))
EXPRESSION(log_of_gathered, weft_log(t, weft_take_along_dim(t, weft_softmax(t, in[0], 1), 1, (weft_tensor *)arg)))
EXPRESSION(stack_first, weft_stack(t, LIST(in[0], in[1], in[2]), 0))
EXPRESSION(stack_last, weft_stack(t, LIST(in[0], in[1]), -1))
EXPRESSION(stack_again, weft_stack(t, LIST(in[0], in[1], in[0], weft_exp(t, in[0]), in[1]), 1))
EXPRESSION(stack_turned, weft_stack(t, LIST(weft_transpose(t, in[0], 0, 1), in[1]), 1))
EXPRESSION(concat_first, weft_concat(t, LIST(in[0], in[1], in[2]), 0))
EXPRESSION(concat_inner, weft_concat(t, LIST(in[0], in[1]), 1))
EXPRESSION(concat_again, weft_mul(t, weft_concat(t, LIST(in[0], in[0], in[1], in[0]), 0), weft_concat(t, LIST(in[1], in[0], in[0], in[0]), 0)))
/* clang-format on */

static weft_tensor *norm_eval(weft_tape *t, weft_tensor *const *in, const void *arg)
{
    weft_tensor *mean = weft_tape_take(t, formula_tensor(S(3), WEFT_DTYPE_FLOAT64, 8));
    weft_tensor *var = weft_tape_take(t, tensor_full(S(3), WEFT_DTYPE_FLOAT64, 1.5));
    return weft_batch_norm2d(t, in[0], in[1], in[2], mean, var, NULL);
}

#define CHECK(test, fn, offset, arg, ...)                                                                              \
    static void test(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        const weft_shape *shapes = SHAPES(__VA_ARGS__);                                                                \
        gradcheck_shapes(fn, shapes, (int)(sizeof(SHAPES(__VA_ARGS__)) / sizeof(weft_shape)), offset, arg);            \
    }
CHECK(check_add, add, 0, NULL, S(2, 3), S(2, 3))
CHECK(check_add_broadcast, add, 0, NULL, S(2, 1, 3), S(4, 1))
CHECK(check_sub, sub, 0, NULL, S(2, 3), S(3))
CHECK(check_sub_same, sub, 0, NULL, S(2, 3), S(2, 3))
CHECK(check_mul, mul, 0, NULL, S(2, 3), S(2, 1))
CHECK(check_div, divide, 2.5, NULL, S(2, 3), S(3))
CHECK(check_square, square, 0, NULL, S(5))
CHECK(check_neg, neg, 0, NULL, S(5))
CHECK(check_scale, scale, 0, NULL, S(5))
CHECK(check_add_scalar, add_scalar, 0, NULL, S(5))
CHECK(check_exp, exponential, 0, NULL, S(2, 3))
CHECK(check_log, logarithm, 2, NULL, S(2, 3))
CHECK(check_relu, relu, 0, NULL, S(3, 5))
CHECK(check_sigmoid, sigmoid, 0, NULL, S(3, 5))
CHECK(check_tanh, hyperbolic_tangent, 0, NULL, S(3, 5))
CHECK(check_matmul, matmul, 0, NULL, S(3, 4), S(4, 2))
CHECK(check_matmul_turned, matmul_turned, 0, NULL, S(3, 2), S(4, 3))
CHECK(check_linear, linear, 0, NULL, S(3, 4), S(2, 4), S(2))
CHECK(check_linear_of_three_dims, linear, 0, NULL, S(2, 3, 4), S(2, 4), S(2))
CHECK(check_linear_of_one_dim, linear_plain, 0, NULL, S(4), S(2, 4))
static const weft_conv2d_options odd = {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}};
static const weft_conv2d_options grouped = {.groups = 2, .padding = {1, 1}};
CHECK(check_conv, conv, 0, NULL, S(2, 2, 4, 5), S(3, 2, 3, 2), S(3))
CHECK(check_conv_odd, conv, 0, &odd, S(1, 2, 5, 6), S(2, 2, 3, 3), S(2))
CHECK(check_conv_grouped, conv, 0, &grouped, S(1, 4, 3, 3), S(4, 2, 3, 3), S(4))
CHECK(check_conv_plain, conv_plain, 0, &odd, S(1, 1, 4, 4), S(1, 1, 1, 1))
CHECK(check_norm_train, norm_train, 0, NULL, S(2, 3, 2, 2), S(3), S(3))
CHECK(check_norm_bare, norm_bare, 0, NULL, S(3, 2, 1, 2))
CHECK(check_norm_eval, norm_eval, 0, NULL, S(2, 3, 1, 2), S(3), S(3))
static const weft_max_pool2d_options pool2 = {.kernel = {2, 2}};
static const weft_max_pool2d_options pool3 = {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}};
CHECK(check_max_pool, max_pool, 0, &pool2, S(2, 2, 5, 4))
CHECK(check_max_pool_overlapping, max_pool, 0, &pool3, S(1, 2, 5, 4))
CHECK(check_avg_pool, avg_pool, 0, NULL, S(2, 2, 5, 4))
CHECK(check_avg_pool_one, avg_pool_one, 0, NULL, S(2, 2, 3, 3))
CHECK(check_dropout, dropout, 0, NULL, S(4, 5))
CHECK(check_dropout2d, dropout2d, 0, NULL, S(3, 4, 2, 2))
CHECK(check_flatten, flatten, 0, NULL, S(2, 3, 2))
CHECK(check_reshape, reshape, 0, NULL, S(2, 6))
CHECK(check_transpose, transpose, 0, NULL, S(2, 3, 4))
CHECK(check_narrow, narrow, 0, NULL, S(2, 4))
CHECK(check_narrow_twice, narrow_twice, 0, NULL, S(2, 4))
CHECK(check_select, select_one, 0, NULL, S(2, 4, 3))
CHECK(check_clone, clone, 0, NULL, S(3))
CHECK(check_sum, sum, 0, NULL, S(2, 3))
CHECK(check_mean, mean, 0, NULL, S(2, 3))
CHECK(check_sum_dim, sum_dim, 0, NULL, S(2, 3, 2))
CHECK(check_mean_dim, mean_dim, 0, NULL, S(2, 3, 4))
CHECK(check_softmax, softmax, 0, NULL, S(2, 3, 2))
CHECK(check_log_softmax, log_softmax, 0, NULL, S(3, 4))
CHECK(check_mse, mse, 0, NULL, S(2, 3), S(2, 3))
CHECK(check_mse_sum, mse_sum, 0, NULL, S(2, 3), S(2, 3))
CHECK(check_mse_none, mse_none, 0, NULL, S(2, 3), S(2, 3))
CHECK(check_stack_first, stack_first, 0, NULL, S(2, 3), S(2, 3), S(2, 3))
CHECK(check_stack_last, stack_last, 0, NULL, S(2, 3), S(2, 3))
CHECK(check_stack_scalars, stack_first, 0, NULL, WEFT_SCALAR, WEFT_SCALAR, WEFT_SCALAR)
CHECK(check_stack_again, stack_again, 0, NULL, S(2, 2), S(2, 2))
CHECK(check_stack_turned, stack_turned, 0, NULL, S(2, 3), S(3, 2))
CHECK(check_concat_first, concat_first, 0, NULL, S(2, 3), S(1, 3), S(3, 3))
CHECK(check_concat_inner, concat_inner, 0, NULL, S(2, 1, 2), S(2, 3, 2))
CHECK(check_concat_again, concat_again, 0, NULL, S(1, 2), S(1, 2))
CHECK(check_concat_empty, concat_first, 0, NULL, S(0, 3), S(2, 3), S(0, 3))
CHECK(check_empty_add, add, 0, NULL, S(0, 3), S(3))
CHECK(check_empty_sum, sum, 0, NULL, S(0, 3))
/* As PyTorch: gradients of no elements, or of zeros. */
CHECK(check_matmul_of_no_rows, matmul, 0, NULL, S(0, 3), S(3, 2))
CHECK(check_matmul_of_no_columns, matmul, 0, NULL, S(2, 3), S(3, 0))
CHECK(check_matmul_over_nothing, matmul, 0, NULL, S(2, 0), S(0, 3))
CHECK(check_linear_to_nothing, linear, 0, NULL, S(2, 3), S(0, 3), S(0))
CHECK(check_linear_to_nothing_of_three_dims, linear, 0, NULL, S(2, 3, 4), S(0, 4), S(0))
CHECK(check_linear_to_nothing_of_one_dim, linear_plain, 0, NULL, S(4), S(0, 4))
CHECK(check_linear_of_nothing, linear, 0, NULL, S(2, 0), S(3, 0), S(3))
CHECK(check_linear_of_nothing_of_three_dims, linear, 0, NULL, S(2, 3, 0), S(2, 0), S(2))
CHECK(check_linear_of_no_rows, linear, 0, NULL, S(2, 0, 4), S(3, 4), S(3))
CHECK(check_conv_of_no_images, conv, 0, NULL, S(0, 2, 4, 4), S(3, 2, 3, 3), S(3))
CHECK(check_conv_of_no_channels, conv, 0, NULL, S(2, 0, 4, 4), S(3, 0, 3, 3), S(3))
CHECK(check_conv_to_nothing, conv, 0, NULL, S(2, 2, 4, 4), S(0, 2, 3, 3), S(0))
CHECK(check_norm_of_no_channels, norm_bare, 0, NULL, S(2, 0, 2, 2))
CHECK(check_norm_eval_of_no_images, norm_eval, 0, NULL, S(0, 3, 1, 2), S(3), S(3))
CHECK(check_max_pool_of_no_images, max_pool, 0, &pool2, S(0, 3, 4, 4))
CHECK(check_max_pool_of_no_channels, max_pool, 0, &pool2, S(2, 0, 4, 4))
CHECK(check_avg_pool_of_no_images, avg_pool, 0, NULL, S(0, 3, 4, 4))
CHECK(check_softmax_of_nothing, softmax, 0, NULL, S(2, 0))
CHECK(check_softmax_of_no_rows, softmax, 0, NULL, S(0, 3))
CHECK(check_log_softmax_of_no_rows, log_softmax, 0, NULL, S(0, 4))
CHECK(check_relu_of_nothing, relu, 0, NULL, S(0))
CHECK(check_div_of_nothing, divide, 0, NULL, S(0, 3), S(3))

static void check_with_target(gradcheck_fn fn)
{
    weft_tensor *target = tensor_empty(S(3), WEFT_DTYPE_INT64);
    formula_fill_below(target, 4, 5);
    gradcheck_shapes(fn, SHAPES(S(3, 5)), 1, 0, target);
    weft_tensor_unref(target);
}

static void check_nll(void **state)
{
    check_with_target(nll);
    check_with_target(nll_sum);
    check_with_target(nll_none);
}

static void check_cross_entropy(void **state)
{
    check_with_target(cross_entropy);
}

static void check_cross_entropy_of_pixels(void **state)
{
    weft_tensor *target = tensor_empty(S(2, 2, 3), WEFT_DTYPE_INT64);
    formula_fill_below(target, 4, 4);
    gradcheck_shapes(cross_entropy, SHAPES(S(2, 4, 2, 3)), 1, 0, target);
    gradcheck_shapes(nll_none, SHAPES(S(2, 4, 2, 3)), 1, 0, target);
    weft_tensor_unref(target);
}

static void check_slices(void **state)
{
    weft_tensor *at = tensor_empty(S(7), WEFT_DTYPE_INT64), *places = tensor_empty(S(2, 7), WEFT_DTYPE_INT64);
    formula_fill_below(at, 4, 5);
    formula_fill_below(places, 4, 5);
    gradcheck_shapes(index_select, SHAPES(S(3, 5)), 1, 0, at);
    gradcheck_shapes(index_select, SHAPES(S(2, 5, 3)), 1, 0, at);
    gradcheck_shapes(scatter_add, SHAPES(S(3, 5), S(2, 7)), 2, 0, places);
    weft_tensor_unref(at);
    weft_tensor_unref(places);
}

static void check_gather(void **state)
{
    weft_tensor *at = tensor_empty(S(3, 7), WEFT_DTYPE_INT64);
    formula_fill_below(at, 4, 5);
    gradcheck_shapes(gather, SHAPES(S(3, 5)), 1, 0, at);
    gradcheck_shapes(gather, SHAPES(S(4, 5)), 1, 0, at);
    gradcheck_shapes(gather_turned, SHAPES(S(3, 5)), 1, 0, at);
    gradcheck_shapes(log_of_gathered, SHAPES(S(3, 5)), 1, 0, at);
    weft_tensor_unref(at);
}

/* The gradients of the sum of fn's result are `wanted`, as PyTorch 1.13 gives. */
static void assert_gradients(gradcheck_fn fn, weft_dtype dtype, const double *const *values, int count,
                             const double *const *wanted)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *in[2];
    for (int k = 0; k < count; k++) {
        weft_tensor *wide = tensor_copy_of(S(4), WEFT_DTYPE_FLOAT64, values[k]);
        in[k] = tensor_to(wide, dtype);
        weft_tensor_unref(wide);
        weft_tensor_set_requires_grad(in[k], true);
    }
    weft_backward(t, weft_sum(t, fn(t, in, NULL)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    for (int k = 0; k < count; k++)
        for (int64_t i = 0; i < 4; i++)
            assert_true(weft_tensor_get_f64(weft_tape_grad(t, in[k]), i) == wanted[k][i]);
    weft_tape_close(t);
    for (int k = 0; k < count; k++)
        weft_tensor_unref(in[k]);
}

static void relu_passes_the_gradient_on_at_nan(void **state)
{
    (void)state;
    const double *x = (double[]){NAN, 0, 1, -1}, *dx = (double[]){1, 0, 1, 0};
    assert_gradients(relu, WEFT_DTYPE_FLOAT64, &x, 1, &dx);
    assert_gradients(relu, WEFT_DTYPE_FLOAT32, &x, 1, &dx);
}

/* 1 / b overflows, and b b underflows. */
static void quotients_by_subnormals_have_gradients(void **state)
{
    (void)state;
    const double *by_double[] = {(double[]){1, 1e-30, 0, 0}, (double[]){0x1p-1070, 0x1p-1070, 0x1p-1070, 1}};
    const double *by_float[] = {(double[]){1, 0x1p-100, 0, 0}, (double[]){0x1p-140, 0x1p-140, 0x1p-140, 1}};
    const double *wanted[] = {(double[]){INFINITY, INFINITY, INFINITY, 1}, (double[]){-INFINITY, -INFINITY, 0, 0}};
    assert_gradients(divide, WEFT_DTYPE_FLOAT64, by_double, 2, wanted);
    assert_gradients(divide, WEFT_DTYPE_FLOAT32, by_float, 2, wanted);
}

#define T(test) cmocka_unit_test(test)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(check_add),
        T(check_add_broadcast),
        T(check_sub),
        T(check_sub_same),
        T(check_mul),
        T(check_div),
        T(check_square),
        T(check_neg),
        T(check_scale),
        T(check_add_scalar),
        T(check_exp),
        T(check_log),
        T(check_relu),
        T(check_sigmoid),
        T(check_tanh),
        T(check_cross_entropy_of_pixels),
        T(check_slices),
        T(check_matmul),
        T(check_matmul_turned),
        T(check_linear),
        T(check_linear_of_three_dims),
        T(check_linear_of_one_dim),
        T(check_conv),
        T(check_conv_odd),
        T(check_conv_grouped),
        T(check_conv_plain),
        T(check_norm_train),
        T(check_norm_bare),
        T(check_norm_eval),
        T(check_max_pool),
        T(check_max_pool_overlapping),
        T(check_avg_pool),
        T(check_avg_pool_one),
        T(check_dropout),
        T(check_dropout2d),
        T(check_flatten),
        T(check_reshape),
        T(check_transpose),
        T(check_narrow),
        T(check_narrow_twice),
        T(check_select),
        T(check_clone),
        T(check_sum),
        T(check_mean),
        T(check_sum_dim),
        T(check_mean_dim),
        T(check_softmax),
        T(check_log_softmax),
        T(check_mse),
        T(check_mse_sum),
        T(check_mse_none),
        T(check_stack_first),
        T(check_stack_last),
        T(check_stack_scalars),
        T(check_stack_again),
        T(check_stack_turned),
        T(check_concat_first),
        T(check_concat_inner),
        T(check_concat_again),
        T(check_concat_empty),
        T(check_gather),
        T(check_empty_add),
        T(check_empty_sum),
        T(relu_passes_the_gradient_on_at_nan),
        T(quotients_by_subnormals_have_gradients),
        T(check_matmul_of_no_rows),
        T(check_matmul_of_no_columns),
        T(check_matmul_over_nothing),
        T(check_linear_to_nothing),
        T(check_linear_to_nothing_of_three_dims),
        T(check_linear_to_nothing_of_one_dim),
        T(check_linear_of_nothing),
        T(check_linear_of_nothing_of_three_dims),
        T(check_linear_of_no_rows),
        T(check_conv_of_no_images),
        T(check_conv_of_no_channels),
        T(check_conv_to_nothing),
        T(check_norm_of_no_channels),
        T(check_norm_eval_of_no_images),
        T(check_max_pool_of_no_images),
        T(check_max_pool_of_no_channels),
        T(check_avg_pool_of_no_images),
        T(check_softmax_of_nothing),
        T(check_softmax_of_no_rows),
        T(check_log_softmax_of_no_rows),
        T(check_relu_of_nothing),
        T(check_div_of_nothing),
        T(check_nll),
        T(check_cross_entropy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
