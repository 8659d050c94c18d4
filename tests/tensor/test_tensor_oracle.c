/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tensor_oracle.c - the kernels against PyTorch's results (tests/data/tensor_oracle.txt, made by
 * tests/oracle/tensor_oracle.py): float64 to 1e-12, float32 to 1e-5.
 */
#include "check_gradients.h"
#include "oracle/formula.h"
#include "tensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS_MAX 16

static struct {
    FILE *file;
    char *line;
    size_t room;
    char kind[32];
    double number[NUMBERS_MAX];
    int numbers;
    weft_dtype dtype; /* that the case is computed in */
} oracle;

static bool next_line(void)
{
    return getline(&oracle.line, &oracle.room, oracle.file) > 0;
}

static int64_t whole(int i)
{
    assert_true(i < oracle.numbers);
    return (int64_t)oracle.number[i];
}

static bool read_case(void)
{
    char *rest = oracle.line;
    int used = 0;
    if (!next_line())
        return false;
    assert_int_equal(sscanf(oracle.line, "op %31s%n", oracle.kind, &used), 1);
    rest = oracle.line + used;
    for (oracle.numbers = 0; oracle.numbers < NUMBERS_MAX; oracle.numbers++) {
        char *end;
        double value = strtod(rest, &end);
        if (end == rest)
            break;
        oracle.number[oracle.numbers] = value;
        rest = end;
    }
    return true;
}

/* The next result of the case is `got`; drops it. */
static void expect(const char *name, weft_tensor *got)
{
    char found[32];
    int used = 0;
    long count;
    assert_true(next_line());
    assert_int_equal(sscanf(oracle.line, "out %31s %ld%n", found, &count, &used), 2);
    assert_string_equal(found, name);
    assert_int_equal(count, weft_tensor_numel(got));
    char *rest = oracle.line + used;
    double worst = 0, largest = 1e-3;
    for (long i = 0; i < count; i++) {
        double expected = strtod(rest, &rest);
        worst = fmax(worst, fabs(expected - weft_tensor_get_f64(got, i)));
        largest = fmax(largest, fabs(expected));
    }
    if (!(worst <= (oracle.dtype == WEFT_DTYPE_FLOAT64 ? 1e-12 : 1e-5) * largest))
        fail_msg("%s of %s is off by %g of %g", name, oracle.kind, worst, largest);
    weft_tensor_unref(got);
}

static weft_tensor *input(weft_shape shape, uint64_t key, double factor, double offset)
{
    weft_tensor *tensor = tensor_empty(shape, oracle.dtype);
    assert_non_null(tensor);
    formula_fill(tensor, key, factor, offset);
    return tensor;
}

static weft_tensor *plain(weft_shape shape, uint64_t key)
{
    return input(shape, key, 1, 0);
}

static weft_tensor *room(weft_shape shape)
{
    weft_tensor *tensor = tensor_full(shape, oracle.dtype, (double)NAN); /* what is not written shows */
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

static void run_conv(void)
{
    weft_shape x_shape = WEFT_SHAPE(whole(0), whole(1), whole(2), whole(3)), y_shape;
    weft_shape weight_shape = WEFT_SHAPE(whole(4), whole(1) / whole(13), whole(5), whole(6));
    wfi_conv2d how = {{whole(7), whole(8)}, {whole(9), whole(10)}, {whole(11), whole(12)}, whole(13)};
    assert_int_equal(wfi_conv2d_shape(&x_shape, &weight_shape, &how, &y_shape), WEFT_OK);
    weft_tensor *x = plain(x_shape, 1), *weight = plain(weight_shape, 2), *bias = plain(WEFT_SHAPE(whole(4)), 3);
    weft_tensor *dy = plain(y_shape, 9), *y = room(y_shape), *dx = room(x_shape), *dweight = room(weight_shape);
    weft_tensor *dbias = room(WEFT_SHAPE(whole(4))), *alone = room(weight_shape);
    assert_int_equal(wfi_conv2d_forward(x, weight, bias, &how, y), WEFT_OK);
    assert_int_equal(wfi_conv2d_backward_data(dy, weight, &how, dx), WEFT_OK);
    assert_int_equal(wfi_conv2d_backward_weight(dy, x, &how, dweight, dbias), WEFT_OK);
    assert_int_equal(wfi_conv2d_backward_weight(dy, x, &how, alone, NULL), WEFT_OK);
    assert_true(relative_error(alone, dweight) < 1e-6);
    expect("y", y);
    expect("dx", dx);
    expect("dweight", dweight);
    expect("dbias", dbias);
    DROP(x, weight, bias, dy, alone);
}

static void run_norm(void)
{
    bool train = whole(0) != 0;
    weft_shape shape = {oracle.numbers - 1, {0}}, channels = WEFT_SHAPE(whole(2));
    for (int d = 0; d < shape.ndim; d++)
        shape.dims[d] = whole(d + 1);
    weft_tensor *x = input(shape, 1, 2, 0.5), *weight = input(channels, 2, 0.5, 1), *bias = plain(channels, 3);
    weft_tensor *mean = plain(channels, 4), *var = input(channels, 5, 0.5, 1), *dy = plain(shape, 9), *y = room(shape);
    weft_tensor *saved = room(channels), *invstd = room(channels), *dx = room(shape);
    weft_tensor *dweight = room(channels), *dbias = room(channels);
    weft_tensor *moments = tensor_empty(WEFT_SHAPE(2, channels.dims[0]), WEFT_DTYPE_FLOAT64);
    if (train) {
        assert_int_equal(wfi_batchnorm_train(x, weight, bias, 1e-5, y, saved, invstd, moments), WEFT_OK);
        assert_int_equal(wfi_batchnorm_move(moments, 0, 0.1, mean, mean), WEFT_OK);
        assert_int_equal(wfi_batchnorm_move(moments, 1, 0.1, var, var), WEFT_OK);
    } else
        assert_int_equal(wfi_batchnorm_eval(x, weight, bias, mean, var, 1e-5, y, invstd), WEFT_OK);
    weft_tensor_unref(moments);
    assert_int_equal(wfi_batchnorm_backward(dy, x, weight, train ? saved : mean, invstd, train, dx, dweight, dbias),
                     WEFT_OK);
    expect("y", y);
    expect("dx", dx);
    expect("dweight", dweight);
    expect("dbias", dbias);
    expect("mean", mean);
    expect("var", var);
    DROP(x, weight, bias, dy, saved, invstd);
}

static void run_max_pool(void)
{
    weft_shape shape = WEFT_SHAPE(whole(0), whole(1), whole(2), whole(3)), pooled;
    wfi_pool2d how = {{whole(4), whole(5)}, {whole(6), whole(7)}, {whole(8), whole(9)}};
    assert_int_equal(wfi_pool2d_shape(&shape, &how, &pooled), WEFT_OK);
    weft_tensor *x = plain(shape, 1), *dy = plain(pooled, 9), *y = room(pooled), *dx = room(shape);
    weft_tensor *indices = tensor_empty(pooled, WEFT_DTYPE_INT32);
    assert_int_equal(wfi_max_pool2d(x, &how, y, indices), WEFT_OK);
    assert_int_equal(wfi_max_pool2d_backward(dy, indices, dx), WEFT_OK);
    expect("y", y);
    expect("indices", indices);
    expect("dx", dx);
    DROP(x, dy);
}

static void run_average_pool(void)
{
    weft_shape shape = WEFT_SHAPE(whole(0), whole(1), whole(2), whole(3));
    weft_shape pooled = WEFT_SHAPE(whole(0), whole(1), whole(4), whole(5));
    weft_tensor *x = plain(shape, 1), *dy = plain(pooled, 9), *y = room(pooled), *dx = room(shape);
    assert_int_equal(wfi_adaptive_avg_pool2d(x, y), WEFT_OK);
    assert_int_equal(wfi_adaptive_avg_pool2d_backward(dy, dx), WEFT_OK);
    expect("y", y);
    expect("dx", dx);
    DROP(x, dy);
}

static void run_softmax(void)
{
    bool logarithm = whole(0) != 0;
    int dim = (int)whole(1);
    weft_shape shape = {oracle.numbers - 2, {0}};
    for (int d = 0; d < shape.ndim; d++)
        shape.dims[d] = whole(d + 2);
    weft_tensor *x = input(shape, 1, 20, 0), *dy = plain(shape, 9), *y = room(shape), *dx = room(shape);
    assert_int_equal(logarithm ? wfi_logsoftmax(x, dim, y) : wfi_softmax(x, dim, y), WEFT_OK);
    assert_int_equal(logarithm ? wfi_logsoftmax_backward(dy, y, dim, dx) : wfi_softmax_backward(dy, y, dim, dx),
                     WEFT_OK);
    expect("y", y);
    expect("dx", dx);
    DROP(x, dy);
}

static void run_nll(void)
{
    wfi_reduction reduction = (wfi_reduction)whole(0);
    weft_shape shape = WEFT_SHAPE(whole(1), whole(2)), each = WEFT_SHAPE(whole(1));
    weft_shape result = reduction == WFI_REDUCE_NONE ? each : WEFT_SCALAR;
    weft_tensor *logp = plain(shape, 1), *target = tensor_empty(each, WEFT_DTYPE_INT64), *dy = plain(result, 9);
    weft_tensor *y = room(result), *dlogp = room(shape);
    formula_fill_below(target, 2, whole(2));
    assert_int_equal(wfi_nll_loss(logp, target, reduction, y), WEFT_OK);
    assert_int_equal(wfi_nll_loss_backward(dy, target, reduction, dlogp), WEFT_OK);
    expect("y", y);
    expect("dlogp", dlogp);
    DROP(logp, target, dy);
}

static void run_mse(void)
{
    wfi_reduction reduction = (wfi_reduction)whole(0);
    weft_shape shape = WEFT_SHAPE(whole(1), whole(2)), result = reduction == WFI_REDUCE_NONE ? shape : WEFT_SCALAR;
    weft_tensor *x = plain(shape, 1), *target = plain(shape, 2), *dy = plain(result, 9);
    weft_tensor *y = room(result), *dx = room(shape);
    assert_int_equal(wfi_mse_loss(x, target, reduction, y), WEFT_OK);
    assert_int_equal(wfi_mse_loss_backward(dy, x, target, reduction, dx), WEFT_OK);
    expect("y", y);
    expect("dx", dx);
    DROP(x, target, dy);
}

static void run_linear(void)
{
    weft_shape x_shape = WEFT_SHAPE(whole(0), whole(1)), weight_shape = WEFT_SHAPE(whole(2), whole(1));
    weft_shape y_shape = WEFT_SHAPE(whole(0), whole(2)), bias_shape = WEFT_SHAPE(whole(2));
    weft_tensor *x = plain(x_shape, 1), *weight = plain(weight_shape, 2), *bias = plain(bias_shape, 3);
    weft_tensor *dy = plain(y_shape, 9), *y = room(y_shape), *dx = room(x_shape), *dweight = room(weight_shape);
    weft_tensor *dbias = room(bias_shape);
    assert_int_equal(wfi_linear(x, weight, bias, y), WEFT_OK);
    assert_int_equal(wfi_linear_backward(dy, x, weight, dx, dweight, dbias), WEFT_OK);
    expect("y", y);
    expect("dx", dx);
    expect("dweight", dweight);
    expect("dbias", dbias);
    DROP(x, weight, bias, dy);
}

static void run_sgd(void)
{
    wfi_sgd how = {.lr = 0.1,
                   .momentum = oracle.number[0],
                   .dampening = oracle.number[1],
                   .weight_decay = oracle.number[2],
                   .nesterov = whole(3) != 0};
    weft_tensor *p = plain(WEFT_SHAPE(7), 1), *velocity = room(WEFT_SHAPE(7));
    for (uint64_t step = 0; step < 4; step++) {
        weft_tensor *gradient = plain(WEFT_SHAPE(7), 20 + step);
        wfi_update update = {
            .from = p, .to = p, .gradient = gradient, .factor = 1, .slots = {velocity}, .step = step + 1};
        assert_int_equal(wfi_sgd_step(&update, &how), WEFT_OK);
        weft_tensor_unref(gradient);
    }
    expect("p", p);
    weft_tensor_unref(velocity);
}

static const struct {
    const char *kind;
    void (*run)(void);
} kinds[] = {
    {"conv", run_conv},       {"norm", run_norm}, {"max_pool", run_max_pool}, {"average_pool", run_average_pool},
    {"softmax", run_softmax}, {"nll", run_nll},   {"mse", run_mse},           {"linear", run_linear},
    {"sgd", run_sgd}};

static void run_file(weft_dtype dtype)
{
    int cases = 0;
    oracle.dtype = dtype;
    oracle.file = fopen(WEFT_TEST_DATA "/tensor_oracle.txt", "re");
    if (!oracle.file)
        fail_msg("tensor_oracle.txt: %s", strerror(errno));
    while (read_case()) {
        size_t k = 0;
        while (k < sizeof(kinds) / sizeof(kinds[0]) && strcmp(kinds[k].kind, oracle.kind) != 0)
            k++;
        assert_true(k < sizeof(kinds) / sizeof(kinds[0]));
        kinds[k].run();
        cases++;
    }
    fclose(oracle.file);
    free(oracle.line);
    oracle.line = NULL;
    oracle.room = 0;
    assert_true(cases > 40);
}

static void float64_agrees_with_pytorch(void **state)
{
    run_file(WEFT_DTYPE_FLOAT64);
}

static void float32_agrees_with_pytorch(void **state)
{
    run_file(WEFT_DTYPE_FLOAT32);
}

UNIT_MAIN(float64_agrees_with_pytorch, float32_agrees_with_pytorch)
