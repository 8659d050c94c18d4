/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_kernels.c - the other kernels: float32 against float64, gradients by finite differences, edges. */
#include "check_gradients.h"
#include "tensors.h"

#include <string.h>

static weft_tensor *f64s(weft_shape shape, const double *values)
{
    weft_tensor *tensor = tensor_copy_of(shape, WEFT_DTYPE_FLOAT64, values);
    assert_non_null(tensor);
    return tensor;
}

typedef struct norm_set {
    weft_tensor *x, *weight, *bias, *mean, *var, *y, *save_mean, *save_invstd, *dy, *dx, *dweight, *dbias;
    bool train;
} norm_set;

static double norm_output(void *arg)
{
    norm_set *s = arg;
    weft_status status =
        s->train ? wfi_batchnorm_train(s->x, s->weight, s->bias, 1e-5, s->y, s->save_mean, s->save_invstd, NULL)
                 : wfi_batchnorm_eval(s->x, s->weight, s->bias, s->mean, s->var, 1e-5, s->y, s->save_invstd);
    assert_int_equal(status, WEFT_OK);
    return dot(s->y, s->dy);
}

static void norm_make(norm_set *s, weft_dtype dtype, bool train)
{
    weft_shape shape = WEFT_SHAPE(3, 2, 5, 5), channels = WEFT_SHAPE(2);
    s->train = train;
    s->x = random_tensor(shape, dtype, 1);
    s->dy = random_tensor(shape, dtype, 2);
    s->weight = random_tensor(channels, dtype, 3);
    s->bias = random_tensor(channels, dtype, 4);
    s->mean = random_tensor(channels, dtype, 5);
    s->var = tensor_full(channels, dtype, 1.5);
    s->y = tensor_empty(shape, dtype);
    s->dx = tensor_empty(shape, dtype);
    s->save_mean = tensor_empty(channels, dtype);
    s->save_invstd = tensor_empty(channels, dtype);
    s->dweight = tensor_empty(channels, dtype);
    s->dbias = tensor_empty(channels, dtype);
    norm_output(s);
    assert_int_equal(wfi_batchnorm_backward(s->dy, s->x, s->weight, train ? s->save_mean : s->mean, s->save_invstd,
                                            train, s->dx, s->dweight, s->dbias),
                     WEFT_OK);
}

static void norm_drop(norm_set *s)
{
    weft_tensor *all[] = {s->x,  s->weight,    s->bias,        s->mean, s->var,     s->y,
                          s->dy, s->save_mean, s->save_invstd, s->dx,   s->dweight, s->dbias};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

static void batch_norm_gradients_agree_with_finite_differences(void **state)
{
    for (int train = 0; train < 2; train++) {
        norm_set s;
        norm_make(&s, WEFT_DTYPE_FLOAT64, train);
        check_gradient(norm_output, &s, s.x, s.dx);
        check_gradient(norm_output, &s, s.weight, s.dweight);
        check_gradient(norm_output, &s, s.bias, s.dbias);
        norm_drop(&s);
    }
}

static void batch_norm_float32_agrees_with_float64(void **state)
{
    for (int train = 0; train < 2; train++) {
        norm_set a, b;
        norm_make(&a, WEFT_DTYPE_FLOAT32, train);
        norm_make(&b, WEFT_DTYPE_FLOAT64, train);
        assert_true(relative_error(a.y, b.y) < 1e-5);
        assert_true(relative_error(a.dx, b.dx) < 1e-5);
        assert_true(relative_error(a.dweight, b.dweight) < 1e-5);
        norm_drop(&a);
        norm_drop(&b);
    }
}

static void running_statistics_use_the_unbiased_variance(void **state)
{
    weft_tensor *x = f64s(WEFT_SHAPE(4, 1), (double[]){1, 2, 3, 6});
    weft_tensor *mean = f64s(WEFT_SHAPE(1), (double[]){0}), *var = f64s(WEFT_SHAPE(1), (double[]){1});
    weft_tensor *y = tensor_clone(x), *m = tensor_clone(mean), *s = tensor_clone(mean);
    weft_tensor *moments = tensor_empty(WEFT_SHAPE(2, 1), WEFT_DTYPE_FLOAT64);
    assert_int_equal(wfi_batchnorm_train(x, NULL, NULL, 1e-5, y, m, s, moments), WEFT_OK);
    assert_int_equal(wfi_batchnorm_move(moments, 0, 0.1, mean, mean), WEFT_OK);
    assert_int_equal(wfi_batchnorm_move(moments, 1, 0.1, var, var), WEFT_OK);
    weft_tensor_unref(moments);
    assert_true(fabs(weft_tensor_get_f64(mean, 0) - 0.3) < 1e-12);
    assert_true(fabs(weft_tensor_get_f64(var, 0) - (0.9 + 0.1 * 14 / 3)) < 1e-12);
    weft_tensor *all[] = {x, mean, var, y, m, s};
    for (int i = 0; i < 6; i++)
        weft_tensor_unref(all[i]);
}

static void max_pool_sends_the_gradient_to_the_maximum(void **state)
{
    weft_tensor *x = f64s(WEFT_SHAPE(1, 1, 2, 4), (double[]){1, 5, 2, 2, 3, 0, NAN, 1});
    weft_tensor *y = tensor_empty(WEFT_SHAPE(1, 1, 1, 2), WEFT_DTYPE_FLOAT64), *dx = tensor_clone(x);
    weft_tensor *indices = tensor_empty(WEFT_SHAPE(1, 1, 1, 2), WEFT_DTYPE_INT32);
    weft_tensor *dy = f64s(WEFT_SHAPE(1, 1, 1, 2), (double[]){10, 20});
    wfi_pool2d how = {{2, 2}, {2, 2}, {0, 0}};
    assert_int_equal(wfi_max_pool2d(x, &how, y, indices), WEFT_OK);
    assert_true(weft_tensor_get_f64(y, 0) == 5 && isnan(weft_tensor_get_f64(y, 1)));
    assert_int_equal(wfi_max_pool2d_backward(dy, indices, dx), WEFT_OK);
    double expected[] = {0, 10, 0, 0, 0, 0, 20, 0};
    assert_memory_equal(weft_tensor_data(dx), expected, sizeof(expected));
    weft_tensor *all[] = {x, y, dx, indices, dy};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(all[i]);
}

static void padded_max_pool_never_picks_the_padding(void **state)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(1, 1, 4, 4), WEFT_DTYPE_FLOAT32, -3);
    weft_tensor *y = tensor_empty(WEFT_SHAPE(1, 1, 2, 2), WEFT_DTYPE_FLOAT32);
    weft_tensor *indices = tensor_empty(WEFT_SHAPE(1, 1, 2, 2), WEFT_DTYPE_INT32);
    wfi_pool2d how = {{3, 3}, {2, 2}, {1, 1}};
    assert_int_equal(wfi_max_pool2d(x, &how, y, indices), WEFT_OK);
    for (int i = 0; i < 4; i++)
        assert_true(weft_tensor_get_f64(y, i) == -3);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    weft_tensor_unref(indices);
}

static void adaptive_pool_covers_uneven_cells(void **state)
{
    weft_tensor *x = f64s(WEFT_SHAPE(1, 1, 1, 5), (double[]){1, 2, 3, 4, 5});
    weft_tensor *y = tensor_empty(WEFT_SHAPE(1, 1, 1, 3), WEFT_DTYPE_FLOAT64), *dx = tensor_clone(x);
    assert_int_equal(wfi_adaptive_avg_pool2d(x, y), WEFT_OK);
    assert_memory_equal(weft_tensor_data(y), ((double[]){1.5, 3, 4.5}), 24);
    assert_int_equal(wfi_adaptive_avg_pool2d_backward(y, dx), WEFT_OK);
    assert_memory_equal(weft_tensor_data(dx), ((double[]){0.75, 1.75, 1, 3.25, 2.25}), 40);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    weft_tensor_unref(dx);
}

typedef struct softmax_set {
    weft_tensor *x, *y, *dy, *dx;
    bool logarithm;
} softmax_set;

static double softmax_output(void *arg)
{
    softmax_set *s = arg;
    assert_int_equal(s->logarithm ? wfi_logsoftmax(s->x, 1, s->y) : wfi_softmax(s->x, 1, s->y), WEFT_OK);
    return dot(s->y, s->dy);
}

static void softmax_gradients_agree_with_finite_differences(void **state)
{
    for (int logarithm = 0; logarithm < 2; logarithm++) {
        weft_shape shape = WEFT_SHAPE(2, 5, 3);
        softmax_set s = {random_tensor(shape, WEFT_DTYPE_FLOAT64, 1), tensor_empty(shape, WEFT_DTYPE_FLOAT64),
                         random_tensor(shape, WEFT_DTYPE_FLOAT64, 2), tensor_empty(shape, WEFT_DTYPE_FLOAT64),
                         logarithm};
        softmax_output(&s);
        assert_int_equal(logarithm ? wfi_logsoftmax_backward(s.dy, s.y, 1, s.dx)
                                   : wfi_softmax_backward(s.dy, s.y, 1, s.dx),
                         WEFT_OK);
        check_gradient(softmax_output, &s, s.x, s.dx);
        weft_tensor_unref(s.x);
        weft_tensor_unref(s.y);
        weft_tensor_unref(s.dy);
        weft_tensor_unref(s.dx);
    }
}

static void a_class_out_of_range_is_refused(void **state)
{
    weft_tensor *logp = tensor_zeros(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32);
    weft_tensor *y = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32);
    weft_tensor *high = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_INT64, (int64_t[]){0, 3});
    weft_tensor *low = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_INT64, (int64_t[]){-1, 0});
    assert_int_equal(wfi_nll_loss(logp, high, WFI_REDUCE_MEAN, y), WEFT_ERR_INVALID);
    assert_int_equal(wfi_nll_loss(logp, low, WFI_REDUCE_MEAN, y), WEFT_ERR_INVALID);
    weft_tensor_unref(logp);
    weft_tensor_unref(y);
    weft_tensor_unref(high);
    weft_tensor_unref(low);
}

static void sums_do_not_depend_on_the_thread_count(void **state)
{
    weft_tensor *x = random_tensor(WEFT_SHAPE(300, 1000), WEFT_DTYPE_FLOAT32, 9), *y[2], *z[2];
    int before = wfi_cpu_threads();
    for (int i = 0; i < 2; i++) {
        wfi_cpu_threads_set(i == 0 ? 1 : 3);
        y[i] = tensor_empty(WEFT_SCALAR, WEFT_DTYPE_FLOAT32);
        z[i] = tensor_clone(x);
        assert_int_equal(wfi_sum(x, WFI_ALL_DIMS, y[i]), WEFT_OK);
        assert_int_equal(wfi_scale(x, 0.3, z[i]), WEFT_OK);
    }
    wfi_cpu_threads_set(before);
    assert_memory_equal(weft_tensor_data(y[0]), weft_tensor_data(y[1]), 4);
    assert_memory_equal(weft_tensor_data(z[0]), weft_tensor_data(z[1]), weft_tensor_nbytes(x));
    weft_tensor_unref(x);
    for (int i = 0; i < 2; i++) {
        weft_tensor_unref(y[i]);
        weft_tensor_unref(z[i]);
    }
}

static void broadcasting_adds_a_row_to_a_column(void **state)
{
    weft_tensor *a = f64s(WEFT_SHAPE(2, 1), (double[]){10, 20}), *b = f64s(WEFT_SHAPE(3), (double[]){1, 2, 3});
    weft_tensor *y = tensor_empty(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT64), *back = tensor_clone(a);
    assert_int_equal(wfi_binary(WFI_ADD, a, b, y), WEFT_OK);
    assert_memory_equal(weft_tensor_data(y), ((double[]){11, 12, 13, 21, 22, 23}), 48);
    assert_int_equal(wfi_sum_to_shape(y, back), WEFT_OK);
    assert_memory_equal(weft_tensor_data(back), ((double[]){36, 66}), 16);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
    weft_tensor_unref(y);
    weft_tensor_unref(back);
}

static void integer_division_by_zero_is_refused(void **state)
{
    weft_tensor *a = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_INT64, (int64_t[]){INT64_MIN, 7});
    weft_tensor *b = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_INT64, (int64_t[]){-1, 0});
    weft_tensor *y = tensor_clone(a);
    assert_int_equal(wfi_binary(WFI_DIV, a, b, y), WEFT_ERR_INVALID);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
    weft_tensor_unref(y);
}

static void linear_matches_hand_computed_values(void **state)
{
    weft_tensor *x = f64s(WEFT_SHAPE(1, 2), (double[]){1, 2}), *w = f64s(WEFT_SHAPE(2, 2), (double[]){3, 4, 5, 6});
    weft_tensor *b = f64s(WEFT_SHAPE(2), (double[]){10, 20}), *y = tensor_empty(WEFT_SHAPE(1, 2), WEFT_DTYPE_FLOAT64);
    weft_tensor *dx = tensor_clone(x), *dw = tensor_clone(w), *db = tensor_clone(b);
    assert_int_equal(wfi_linear(x, w, b, y), WEFT_OK);
    assert_memory_equal(weft_tensor_data(y), ((double[]){21, 37}), 16);
    assert_int_equal(wfi_linear_backward(x, x, w, dx, dw, db), WEFT_OK);
    assert_memory_equal(weft_tensor_data(dx), ((double[]){13, 16}), 16);
    assert_memory_equal(weft_tensor_data(dw), ((double[]){1, 2, 2, 4}), 32);
    assert_memory_equal(weft_tensor_data(db), ((double[]){1, 2}), 16);
    weft_tensor *all[] = {x, w, b, y, dx, dw, db};
    for (int i = 0; i < 7; i++)
        weft_tensor_unref(all[i]);
}

static void sgd_with_momentum_and_decay_matches_the_formula(void **state)
{
    weft_tensor *p = f64s(WEFT_SHAPE(1), (double[]){1}), *g = f64s(WEFT_SHAPE(1), (double[]){0.5});
    weft_tensor *v = f64s(WEFT_SHAPE(1), (double[]){NAN});
    wfi_sgd how = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    wfi_update update = {.from = p, .to = p, .gradient = g, .factor = 1, .slots = {v}, .step = 1};
    assert_int_equal(wfi_sgd_step(&update, &how), WEFT_OK);
    double d = 0.51, p1 = 1 - 0.1 * (d + 0.9 * d);
    assert_true(fabs(weft_tensor_get_f64(p, 0) - p1) < 1e-15);
    update.step = 2;
    assert_int_equal(wfi_sgd_step(&update, &how), WEFT_OK);
    double d2 = 0.5 + 0.01 * p1, v2 = 0.9 * d + d2;
    assert_true(fabs(weft_tensor_get_f64(p, 0) - (p1 - 0.1 * (d2 + 0.9 * v2))) < 1e-15);
    weft_tensor_unref(p);
    weft_tensor_unref(g);
    weft_tensor_unref(v);
}

UNIT_MAIN(batch_norm_gradients_agree_with_finite_differences, batch_norm_float32_agrees_with_float64,
          running_statistics_use_the_unbiased_variance, max_pool_sends_the_gradient_to_the_maximum,
          padded_max_pool_never_picks_the_padding, adaptive_pool_covers_uneven_cells,
          softmax_gradients_agree_with_finite_differences, a_class_out_of_range_is_refused,
          sums_do_not_depend_on_the_thread_count, broadcasting_adds_a_row_to_a_column,
          integer_division_by_zero_is_refused, linear_matches_hand_computed_values,
          sgd_with_momentum_and_decay_matches_the_formula)
