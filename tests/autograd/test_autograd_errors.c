/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_errors.c - what each operator refuses, and that its message names the operator and what did not fit. */
#include <weft/weft.h>

#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <string.h>

#define S(...) WEFT_SHAPE(__VA_ARGS__)

/* Operands: v [3], m [2, 3], n [4, 5], c [1, 4, 5, 5], w [6, 2, 3, 3], d float64 [3], i int64 [2]. */
typedef struct operands {
    weft_tensor *v, *m, *n, *c, *w, *d, *i;
} operands;

typedef weft_tensor *(*refused_fn)(weft_tape *t, const operands *x);

/* clang-format off */
#define REFUSED(name, expr) static weft_tensor *name(weft_tape *t, const operands *x) { (void)x; return expr; }
REFUSED(add_shapes, weft_add(t, x->m, x->n))
REFUSED(mul_dtypes, weft_mul(t, x->v, x->d))
REFUSED(sub_null, weft_sub(t, NULL, x->v))
REFUSED(exp_integers, weft_exp(t, x->i))
REFUSED(matmul_inner, weft_matmul(t, x->m, x->n))
REFUSED(matmul_vector, weft_matmul(t, x->m, x->v))
REFUSED(linear_bias, weft_linear(t, x->m, weft_reshape(t, x->m, S(2, 3)), x->v))
REFUSED(conv_channels, weft_conv2d(t, x->c, x->w, NULL, NULL))
REFUSED(conv_groups, weft_conv2d(t, x->c, x->w, NULL, &(weft_conv2d_options){.groups = 4}))
REFUSED(conv_stride, weft_conv2d(t, x->c, x->w, NULL, &(weft_conv2d_options){.groups = 2, .stride = {-1, 1}}))
REFUSED(conv_too_large, weft_conv2d(t, x->c, x->w, NULL, &(weft_conv2d_options){.groups = 2, .dilation = {3, 3}}))
REFUSED(conv_bias, weft_conv2d(t, x->c, x->w, x->v, &(weft_conv2d_options){.groups = 2}))
REFUSED(norm_matrix, weft_batch_norm2d(t, x->m, NULL, NULL, NULL, NULL, &(weft_batch_norm_options){.train = true}))
REFUSED(norm_eval, weft_batch_norm2d(t, x->c, NULL, NULL, NULL, NULL, NULL))
REFUSED(norm_mean, weft_batch_norm2d(t, x->c, NULL, NULL, x->v, x->v, NULL))
REFUSED(norm_one_value, weft_batch_norm2d(t, weft_reshape(t, x->v, S(1, 3, 1, 1)), NULL, NULL, NULL, NULL, &(weft_batch_norm_options){.train = true}))
REFUSED(pool_kernel, weft_max_pool2d(t, x->c, NULL))
REFUSED(pool_padding, weft_max_pool2d(t, x->c, &(weft_max_pool2d_options){.kernel = {2, 2}, .padding = {2, 2}}))
REFUSED(avg_size, weft_adaptive_avg_pool2d(t, x->c, 0, 1))
REFUSED(conv_padding, weft_conv2d(t, x->c, x->w, NULL, &(weft_conv2d_options){.groups = 2, .padding = {INT64_MAX, 0}}))
REFUSED(conv_stride_large, weft_conv2d(t, x->c, x->w, NULL, &(weft_conv2d_options){.groups = 2, .stride = {1, INT64_MAX}}))
REFUSED(conv_dilation_large, weft_conv2d(t, x->c, x->w, NULL, &(weft_conv2d_options){.groups = 2, .dilation = {INT64_MAX, 1}}))
REFUSED(pool_padding_large, weft_max_pool2d(t, x->c, &(weft_max_pool2d_options){.kernel = {2, 2}, .padding = {INT64_MAX / 2 + 2, 0}}))
REFUSED(pool_kernel_large, weft_max_pool2d(t, x->c, &(weft_max_pool2d_options){.kernel = {INT64_MAX, INT64_MAX}, .padding = {INT64_MAX / 2, 0}}))
REFUSED(reshape_dims, weft_reshape(t, x->m, (weft_shape){.ndim = 64}))
REFUSED(uniform_order, weft_uniform(t, S(2), WEFT_DTYPE_FLOAT32, 2, 1))
REFUSED(uniform_int, weft_uniform(t, S(2), WEFT_DTYPE_INT64, 0, 1))
REFUSED(uniform_shape, weft_uniform(t, S(2, -3), WEFT_DTYPE_FLOAT32, 0, 1))
REFUSED(uniform_huge, weft_uniform(t, S(1L << 50), WEFT_DTYPE_FLOAT32, 0, 1))
REFUSED(normal_deviation, weft_normal(t, S(2), WEFT_DTYPE_FLOAT32, 0, -1))
REFUSED(no_such_mode, (weft_tape_set_mode(t, (weft_mode)9), weft_neg(t, x->v)))
REFUSED(dropout_one, weft_dropout(t, x->v, 1, true))
REFUSED(dropout_nan, weft_dropout(t, x->v, NAN, true))
REFUSED(dropout2d_vector, weft_dropout2d(t, x->v, 0.5, true))
REFUSED(reshape_count, weft_reshape(t, x->m, S(4, 2)))
REFUSED(reshape_two_unknown, weft_reshape(t, x->m, S(-1, -1)))
REFUSED(transpose_dim, weft_transpose(t, x->m, 0, 2))
REFUSED(narrow_range, weft_narrow(t, x->m, 1, 2, 2))
REFUSED(narrow_overflow, weft_narrow(t, x->m, 1, 1, INT64_MAX))
REFUSED(select_index, weft_select(t, x->m, 0, 2))
REFUSED(sum_dim, weft_sum_dim(t, x->m, -3, false))
REFUSED(argmax_dim, weft_argmax(t, x->m, 2))
REFUSED(argmax_empty, weft_argmax(t, weft_narrow(t, x->m, 0, 0, 0), 0))
REFUSED(softmax_dim, weft_softmax(t, x->m, 5))
REFUSED(nll_target, weft_nll_loss(t, x->m, x->v))
REFUSED(nll_class, weft_nll_loss(t, x->m, x->i))
REFUSED(cross_entropy_null, weft_cross_entropy(t, x->m, NULL))
REFUSED(cross_entropy_rows, weft_cross_entropy(t, x->n, x->i))
REFUSED(mse_shapes, weft_mse_loss(t, x->m, x->v))
#define LIST(...) ((weft_tensors){(weft_tensor *[]){__VA_ARGS__}, sizeof((weft_tensor *[]){__VA_ARGS__}) / sizeof(weft_tensor *)})
REFUSED(gather_float, weft_take_along_dim(t, x->m, 0, x->m))
REFUSED(gather_null, weft_take_along_dim(t, x->m, 0, NULL))
REFUSED(gather_dim, weft_take_along_dim(t, x->v, 1, x->i))
REFUSED(gather_dims, weft_take_along_dim(t, x->m, 1, x->i))
REFUSED(gather_wider, weft_take_along_dim(t, x->m, 1, weft_reshape(t, weft_stack(t, LIST(x->i, x->i, x->i), 0), S(6, 1))))
REFUSED(gather_outside, weft_take_along_dim(t, x->v, 0, x->i))
REFUSED(gather_negative, weft_take_along_dim(t, x->n, 1, weft_sub(t, weft_reshape(t, x->i, S(2, 1)), weft_add(t, x->i, x->i))))
REFUSED(div_zero, weft_div(t, x->i, weft_sub(t, x->i, x->i)))
REFUSED(uniform_shape_large, weft_uniform(t, S((int64_t)1 << 40, (int64_t)1 << 40), WEFT_DTYPE_FLOAT32, 0, 1))
REFUSED(uniform_bytes_large, weft_uniform(t, S((int64_t)1 << 62), WEFT_DTYPE_FLOAT32, 0, 1))
REFUSED(stack_none, weft_stack(t, (weft_tensors){NULL, 0}, 0))
REFUSED(stack_null, weft_stack(t, LIST(x->m, NULL), 0))
REFUSED(stack_shapes, weft_stack(t, LIST(x->m, x->m, x->v), 0))
REFUSED(stack_dtypes, weft_stack(t, LIST(x->v, x->d), 0))
REFUSED(stack_dim, weft_stack(t, LIST(x->m), 3))
REFUSED(stack_dims, weft_stack(t, LIST(weft_reshape(t, x->v, S(1, 1, 1, 1, 1, 1, 1, 3))), 0))
REFUSED(stack_long, weft_stack(t, LIST(x->v, x->v, x->v, x->v, x->v, x->m), 0))
REFUSED(concat_none, weft_concat(t, (weft_tensors){NULL, 0}, 0))
REFUSED(concat_null, weft_concat(t, LIST(NULL), 0))
REFUSED(concat_shapes, weft_concat(t, LIST(x->m, x->n), 0))
REFUSED(concat_dims, weft_concat(t, LIST(x->m, x->v), 0))
REFUSED(concat_dtypes, weft_concat(t, LIST(x->v, x->i), 0))
REFUSED(concat_dim, weft_concat(t, LIST(x->v, x->v), 1))
REFUSED(concat_scalars, weft_concat(t, LIST(weft_sum(t, x->v)), 0))
REFUSED(categorical_null, weft_categorical(t, NULL))
REFUSED(categorical_integers, weft_categorical(t, x->i))
REFUSED(categorical_scalar, weft_categorical(t, weft_sum(t, x->v)))
REFUSED(categorical_negative, weft_categorical(t, weft_add_scalar(t, x->m, -4)))
REFUSED(categorical_zeros, weft_categorical(t, weft_scale(t, x->m, 0)))
REFUSED(categorical_nan, weft_categorical(t, weft_log(t, weft_add_scalar(t, x->m, -4))))
REFUSED(categorical_infinite, weft_categorical(t, weft_exp(t, weft_scale(t, x->m, 1e4))))
REFUSED(categorical_no_classes, weft_categorical(t, weft_narrow(t, x->m, 1, 0, 0)))
REFUSED(categorical_row, weft_categorical(t, weft_concat(t, LIST(x->m, weft_neg(t, x->m)), 0)))

static const struct {
    const char *name;
    refused_fn run;
    weft_status code;
    const char *part;
} all[] = {
#define R(name, code, part) {#name, name, code, part}
    R(add_shapes, WEFT_ERR_SHAPE, "add(float32 [2, 3], float32 [4, 5]): the shapes do not broadcast"),
    R(mul_dtypes, WEFT_ERR_TYPE, "mul(float32 [3], float64 [3]): operand 1 is of another dtype"),
    R(sub_null, WEFT_ERR_INVALID, "sub: the first operand is NULL"),
    R(exp_integers, WEFT_ERR_TYPE, "exp(int64 [2]): wants float32 or float64"),
    R(matmul_inner, WEFT_ERR_SHAPE, "matmul(float32 [2, 3], float32 [4, 5]): 3 columns of the first do not fit 4 rows"),
    R(matmul_vector, WEFT_ERR_SHAPE, "matmul(float32 [2, 3], float32 [3]): wants two matrices"),
    R(linear_bias, WEFT_ERR_SHAPE, "linear(float32 [2, 3], float32 [2, 3], float32 [3]): wants a bias of 2 elements"),
    R(conv_channels, WEFT_ERR_SHAPE, "conv2d(float32 [1, 4, 5, 5], float32 [6, 2, 3, 3], NULL): x has 4 channels a group"),
    R(conv_groups, WEFT_ERR_SHAPE, "the channels do not divide into 4 groups"),
    R(conv_stride, WEFT_ERR_INVALID, "must be positive"),
    R(conv_too_large, WEFT_ERR_SHAPE, "the kernel does not fit into the padded input"),
    R(conv_bias, WEFT_ERR_SHAPE, "wants a bias of 6 elements"),
    R(norm_matrix, WEFT_ERR_SHAPE, "batch_norm2d(float32 [2, 3], NULL, NULL): wants x [N, C, H, W]"),
    R(norm_eval, WEFT_ERR_INVALID, "wants both running statistics"),
    R(norm_mean, WEFT_ERR_SHAPE, "running_mean must have 4 elements"),
    R(norm_one_value, WEFT_ERR_SHAPE, "batch_norm2d(float32 [1, 3, 1, 1], NULL, NULL): training wants more than one value a channel"),
    R(pool_kernel, WEFT_ERR_INVALID, "max_pool2d(float32 [1, 4, 5, 5])"),
    R(pool_padding, WEFT_ERR_INVALID, "max_pool2d(float32 [1, 4, 5, 5])"),
    R(avg_size, WEFT_ERR_INVALID, "height and width must be positive"),
    R(conv_stride_large, WEFT_ERR_TOO_LARGE, "stride 1 x 9223372036854775807: at most 2147483647 each"),
    R(conv_dilation_large, WEFT_ERR_TOO_LARGE, "dilation 9223372036854775807 x 1: at most 2147483647 each"),
    R(pool_padding_large, WEFT_ERR_INVALID, "padding at most half the kernel"),
    R(pool_kernel_large, WEFT_ERR_TOO_LARGE, "kernel 9223372036854775807 x 9223372036854775807: at most 2147483647 each"),
    R(conv_padding, WEFT_ERR_TOO_LARGE, "padding 9223372036854775807 x 0: at most 2147483647 each"),
    R(reshape_dims, WEFT_ERR_SHAPE, "6 elements do not fit a shape of 64 dimensions (0 to 8)"),
    R(uniform_order, WEFT_ERR_INVALID, "uniform(2, 1): both finite, and the first at most the second"),
    R(uniform_int, WEFT_ERR_TYPE, "uniform: int64: wants float32 or float64"),
    R(uniform_shape, WEFT_ERR_INVALID, "uniform: there is no tensor [2, -3]"),
    R(uniform_huge, WEFT_ERR_MEMORY, "uniform: out of memory for [1125899906842624]"),
    R(normal_deviation, WEFT_ERR_INVALID, "normal(0, -1): both finite, and the deviation not negative"),
    R(no_such_mode, WEFT_ERR_INVALID, "the tape's mode is 9, which is none"),
    R(dropout_one, WEFT_ERR_INVALID, "dropout: the rate 1 is not in [0, 1)"),
    R(dropout_nan, WEFT_ERR_INVALID, "dropout: the rate"),
    R(dropout2d_vector, WEFT_ERR_SHAPE, "dropout2d(float32 [3]): wants x [N, C, ...]"),
    R(reshape_count, WEFT_ERR_SHAPE, "reshape(float32 [2, 3]): 6 elements do not fit [4, 2]"),
    R(reshape_two_unknown, WEFT_ERR_SHAPE, "reshape(float32 [2, 3])"),
    R(transpose_dim, WEFT_ERR_SHAPE, "transpose(float32 [2, 3]): there is no dimension 2"),
    R(narrow_range, WEFT_ERR_SHAPE, "2 elements from 2 on do not lie in dimension 1"),
    R(narrow_overflow, WEFT_ERR_SHAPE, "do not lie in dimension 1"),
    R(select_index, WEFT_ERR_SHAPE, "index 2 does not lie in dimension 0"),
    R(sum_dim, WEFT_ERR_SHAPE, "sum(float32 [2, 3]): there is no dimension -3"),
    R(argmax_dim, WEFT_ERR_SHAPE, "there is no dimension 2"),
    R(argmax_empty, WEFT_ERR_SHAPE, "argmax(float32 [0, 3]): dimension 0 is empty"),
    R(softmax_dim, WEFT_ERR_SHAPE, "softmax(float32 [2, 3]): there is no dimension 5"),
    R(nll_target, WEFT_ERR_TYPE, "nll_loss(float32 [2, 3]"),
    R(nll_class, WEFT_ERR_INVALID, "nll_loss(float32 [2, 3]"),
    R(cross_entropy_null, WEFT_ERR_INVALID, "cross_entropy: "),
    R(cross_entropy_rows, WEFT_ERR_SHAPE, "cross_entropy(float32 [4, 5]"),
    R(mse_shapes, WEFT_ERR_SHAPE, "mse_loss(float32 [2, 3], float32 [3])"),
    R(gather_float, WEFT_ERR_TYPE, "take_along_dim(float32 [2, 3]): the index must be int64, not float32"),
    R(gather_null, WEFT_ERR_INVALID, "take_along_dim: the index is NULL"),
    R(gather_dim, WEFT_ERR_SHAPE, "take_along_dim(float32 [3]): there is no dimension 1"),
    R(gather_dims, WEFT_ERR_SHAPE, "the index [2] must have as many dimensions"),
    R(gather_wider, WEFT_ERR_SHAPE, "the index [6, 1] must have as many dimensions, and be no larger but along dimension 1"),
    R(gather_outside, WEFT_ERR_INVALID, "take_along_dim(float32 [3]): element 0 of the index is 3, not in [0, 3)"),
    R(gather_negative, WEFT_ERR_INVALID, "take_along_dim(float32 [4, 5]): element 0 of the index is -3, not in [0, 5)"),
    R(div_zero, WEFT_ERR_INVALID,
      "div(int64 [2], int64 [2]): an element of the divisor is 0: integers cannot be divided by 0"),
    R(uniform_shape_large, WEFT_ERR_TOO_LARGE,
      "uniform: float32 [1099511627776, 1099511627776] is larger than memory can be"),
    R(uniform_bytes_large, WEFT_ERR_TOO_LARGE, "uniform: float32 [4611686018427387904] is larger than memory can be"),
    R(stack_none, WEFT_ERR_INVALID, "stack: wants at least one tensor"),
    R(stack_null, WEFT_ERR_INVALID, "stack: operand 1 is NULL"),
    R(stack_shapes, WEFT_ERR_SHAPE, "stack(float32 [2, 3], float32 [2, 3], float32 [3]): operand 2 is [3] and does not fit the first, [2, 3]"),
    R(stack_dtypes, WEFT_ERR_TYPE, "stack(float32 [3], float64 [3]): operand 1 is of another dtype than the first"),
    R(stack_dim, WEFT_ERR_SHAPE, "stack(float32 [2, 3]): there is no dimension 3 in the result"),
    R(stack_dims, WEFT_ERR_SHAPE, "a dimension more than 8"),
    R(stack_long, WEFT_ERR_SHAPE, "stack(float32 [3], float32 [3], float32 [3], ... 6 in all): operand 5 is [2, 3]"),
    R(concat_none, WEFT_ERR_INVALID, "concat: wants at least one tensor"),
    R(concat_null, WEFT_ERR_INVALID, "concat: operand 0 is NULL"),
    R(concat_shapes, WEFT_ERR_SHAPE, "operand 1 is [4, 5] and does not fit the first, [2, 3]"),
    R(concat_dims, WEFT_ERR_SHAPE, "operand 1 is [3] and does not fit the first, [2, 3]"),
    R(concat_dtypes, WEFT_ERR_TYPE, "concat(float32 [3], int64 [2]): operand 1 is of another dtype than the first"),
    R(concat_dim, WEFT_ERR_SHAPE, "concat(float32 [3], float32 [3]): there is no dimension 1"),
    R(concat_scalars, WEFT_ERR_SHAPE, "concat(float32 []): there is no dimension 0"),
    R(categorical_null, WEFT_ERR_INVALID, "categorical: the first operand is NULL"),
    R(categorical_integers, WEFT_ERR_TYPE, "categorical(int64 [2]): wants float32 or float64"),
    R(categorical_scalar, WEFT_ERR_SHAPE, "categorical(float32 []): wants probabilities [..., C]"),
    R(categorical_negative, WEFT_ERR_INVALID, "categorical(float32 [2, 3]): row 0 is no distribution"),
    R(categorical_zeros, WEFT_ERR_INVALID, "row 0 is no distribution: wants weights that are finite, not negative, and not all 0"),
    R(categorical_nan, WEFT_ERR_INVALID, "row 0 is no distribution"),
    R(categorical_infinite, WEFT_ERR_INVALID, "row 0 is no distribution"),
    R(categorical_no_classes, WEFT_ERR_INVALID, "categorical(float32 [2, 0]): row 0 is no distribution"),
    R(categorical_row, WEFT_ERR_INVALID, "categorical(float32 [4, 3]): row 2 is no distribution"),
};
/* clang-format on */

static weft_tensor *leaf(weft_shape shape, weft_dtype dtype)
{
    weft_tensor *x = tensor_full(shape, dtype, 3);
    assert_non_null(x);
    weft_tensor_set_requires_grad(x, dtype != WEFT_DTYPE_INT64);
    return x;
}

static int make_operands(void **state)
{
    static operands x;
    x = (operands){leaf(S(3), WEFT_DTYPE_FLOAT32),
                   leaf(S(2, 3), WEFT_DTYPE_FLOAT32),
                   leaf(S(4, 5), WEFT_DTYPE_FLOAT32),
                   leaf(S(1, 4, 5, 5), WEFT_DTYPE_FLOAT32),
                   leaf(S(6, 2, 3, 3), WEFT_DTYPE_FLOAT32),
                   leaf(S(3), WEFT_DTYPE_FLOAT64),
                   leaf(S(2), WEFT_DTYPE_INT64)};
    *state = &x;
    return 0;
}

static int drop_operands(void **state)
{
    operands *x = *state;
    weft_tensor *every[] = {x->v, x->m, x->n, x->c, x->w, x->d, x->i};
    for (size_t k = 0; k < sizeof(every) / sizeof(every[0]); k++)
        weft_tensor_unref(every[k]);
    return 0;
}

static void operators_refuse_and_say_why(void **state)
{
    int wrong = 0;
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *y = all[k].run(t, *state);
        const weft_error *error = weft_tape_error(t);
        const char *message = !error ? "(none)" : weft_error_message(error);
        if (y || weft_tape_status(t) != all[k].code || !strstr(message, all[k].part)) {
            print_error("%s: status %d, message \"%s\"\n", all[k].name, (int)weft_tape_status(t), message);
            wrong++;
        }
        weft_tape_close(t);
    }
    assert_int_equal(wrong, 0);
}

/* The least that a train step takes: two values, which the norm makes -1 and 1. */
static void batch_norm_trains_on_two_values_a_channel(void **state)
{
    const float values[2] = {3, 5};
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *x = weft_tape_take(t, tensor_zeros(S(2, 1, 1, 1), WEFT_DTYPE_FLOAT32));
    memcpy(weft_tensor_data(x), values, sizeof(values));
    weft_tensor *y = weft_batch_norm2d(t, x, NULL, NULL, NULL, NULL, &(weft_batch_norm_options){.train = true});
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(fabs(weft_tensor_get_f64(y, 0) + 1) < 1e-4 && fabs(weft_tensor_get_f64(y, 1) - 1) < 1e-4);
    weft_tape_close(t);
}

static weft_tensor *no_forward(weft_tape *t, weft_module *self, weft_tensor *x)
{
    weft_tape_fail(t, WEFT_ERR_UNSUPPORTED, "%s does not like %d", weft_module_type_name(self), 7);
    return NULL;
}

static void users_module_fails_the_tape_in_its_words(void **state)
{
    static const weft_module_type type = {.name = "Picky", .forward = no_forward};
    weft_module *parts[] = {relu_create(), module_create(&type, NULL, NULL)};
    weft_module *net = sequential_create(parts, 2, NULL);
    weft_tape *t = weft_tape_open(NULL);
    assert_null(weft_module_forward(t, net, ((operands *)*state)->m));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_UNSUPPORTED);
    assert_string_equal(weft_error_message(weft_tape_error(t)), "Picky does not like 7");
    weft_tape_close(t);
    weft_module_unref(net);
}

/* The network works inside on tapes of its own: what fails there must be found on the caller's. */
static void failure_inside_a_resnet_reaches_the_callers_tape(void **state)
{
    weft_module *net = resnet50_create(2, 1, NULL);
    weft_tape *t = weft_tape_open(NULL);
    assert_null(weft_module_forward(t, net, ((operands *)*state)->c));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_SHAPE);
    assert_non_null(
        strstr(weft_error_message(weft_tape_error(t)), "conv2d(float32 [1, 4, 5, 5], float32 [64, 3, 7, 7]"));
    weft_tape_close(t);
    weft_module_unref(net);
}

/* The tape's error has these words; the tape closes. */
static void assert_refused(weft_tape *t, const char *words)
{
    const char *message = weft_error_message(weft_tape_error(t));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    if (!strstr(message, words))
        fail_msg("\"%s\" lacks \"%s\"", message, words);
    weft_tape_close(t);
}

static void lists_at_null_are_refused(void **state)
{
    static const weft_operator op = {.name = "mine"};
    const weft_tensors none = {NULL, 0}, two = {NULL, 2}, four = {NULL, 4};
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(1, 1, 1), WEFT_DTYPE_FLOAT32), *out[2];
    weft_tape *t = weft_tape_open(NULL);
    assert_int_equal(weft_tape_gradients(t, none).count, 0); /* an empty list */
    assert_int_equal(weft_tape_grads(t, none).count, 0);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(weft_tape_gradients(t, two).count, 0);
    assert_refused(t, "tape_gradients: the list of 2 parameters is NULL");
    t = weft_tape_open(NULL);
    assert_int_equal(weft_tape_grads(t, two).count, 0);
    assert_refused(t, "tape_grads: the list of 2 parameters is NULL");
    t = weft_tape_open(NULL);
    assert_null(weft_stack(t, two, 0));
    assert_refused(t, "stack: the list of 2 tensors is NULL");
    t = weft_tape_open(NULL);
    assert_null(weft_concat(t, two, 0));
    assert_refused(t, "concat: the list of 2 tensors is NULL");
    t = weft_tape_open(NULL);
    assert_null(weft_lstm(t, x, NULL, NULL, four, NULL, NULL, NULL));
    assert_refused(t, "lstm: the list of 4 weights is NULL");
    t = weft_tape_open(NULL);
    weft_tape_record(t, &op, two, none, NULL, (weft_tensors){&x, 1}, out);
    assert_refused(t, "mine: record: the list of 2 inputs is NULL");
    t = weft_tape_open(NULL);
    weft_tape_record(t, &op, none, two, NULL, (weft_tensors){&x, 1}, out);
    assert_refused(t, "the list of 2 saved tensors is NULL");
    t = weft_tape_open(NULL);
    weft_tape_record(t, &op, none, none, NULL, two, out);
    assert_refused(t, "the list of 2 results is NULL");
    weft_tensor_unref(x);
}

UNIT_MAIN_WITH(make_operands, drop_operands, operators_refuse_and_say_why, batch_norm_trains_on_two_values_a_channel,
               users_module_fails_the_tape_in_its_words, failure_inside_a_resnet_reaches_the_callers_tape,
               lists_at_null_are_refused)
