/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim_norm.c - the norm of all gradients together, and steps that clip by it: exactly as steps from gradients
 * scaled by hand. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 100003 /* more than one piece of a parallel loop, and no multiple of what a vector holds */

static double squares(const weft_tensor *x)
{
    double sum = 0;
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        sum += weft_tensor_get_f64(x, i) * weft_tensor_get_f64(x, i);
    return sum;
}

static void norm_is_of_all_gradients_rows_added_first(void **state)
{
    const int64_t twice[] = {3, 1, 3}; /* row 3 has 1 + 3, 2 + 4 and row 1 has 5, 6 */
    const float values[] = {1, 2, 5, 6, 3, 4};
    weft_tensor *large = formula_tensor(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32, 1),
                *doubles = formula_tensor(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT64, 2);
    weft_tensor *turned = tensor_transpose(doubles, 0, 1), *empty = tensor_zeros(WEFT_SHAPE(0), WEFT_DTYPE_FLOAT32);
    weft_tensor *rows = tensor_copy_of(WEFT_SHAPE(3), WEFT_DTYPE_INT64, twice),
                *sparse = tensor_copy_of(WEFT_SHAPE(3, 2), WEFT_DTYPE_FLOAT32, values);
    const weft_gradient all[] = {{large, NULL}, {NULL, NULL}, {turned, NULL}, {empty, NULL}, {sparse, rows}};
    double norm = -1, wanted = sqrt(squares(large) + squares(doubles) + 4 * 4 + 6 * 6 + 5 * 5 + 6 * 6);
    assert_int_equal(weft_gradients_norm((weft_gradients){all, 5}, &norm), WEFT_OK);
    assert_true(fabs(norm - wanted) <= 1e-13 * wanted);
    assert_int_equal(weft_gradients_norm((weft_gradients){NULL, 0}, &norm), WEFT_OK);
    assert_true(norm == 0);
    weft_tensor *tensors[] = {large, doubles, turned, empty, rows, sparse};
    for (size_t i = 0; i < 6; i++)
        weft_tensor_unref(tensors[i]);
}

static void norm_refuses_what_is_no_gradient(void **state)
{
    weft_tensor *integers = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_INT64),
                *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_tensor *minus = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_INT64, -1),
                *three = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT64);
    const struct {
        weft_gradient gradient;
        weft_status code;
    } wrong[] = {{{integers, NULL}, WEFT_ERR_TYPE},     {{x, x}, WEFT_ERR_TYPE},
                 {{integers, integers}, WEFT_ERR_TYPE}, {{NULL, three}, WEFT_ERR_INVALID},
                 {{x, minus}, WEFT_ERR_INVALID},        {{x, three}, WEFT_ERR_SHAPE}};
    double norm = -1;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(weft_gradients_norm((weft_gradients){&wrong[i].gradient, 1}, &norm), wrong[i].code);
    assert_true(norm == -1);
    assert_int_equal(weft_gradients_norm((weft_gradients){NULL, 1}, &norm), WEFT_ERR_INVALID);
    assert_int_equal(weft_gradients_norm((weft_gradients){NULL, 0}, NULL), WEFT_ERR_INVALID);
    weft_tensor *tensors[] = {integers, x, minus, three};
    for (size_t i = 0; i < 4; i++)
        weft_tensor_unref(tensors[i]);
}

/* Two accumulations of mean 5 and an average: their norm is 5, not 10; 2.5 halves it, 50 leaves it alone. */
static void sums_are_clipped_by_the_norm_of_their_average(void **state)
{
    const struct {
        double max_norm, step, norm;
    } cases[] = {{2.5, 2.5 / (5 + 1e-6), 5}, {50, 1, 5}, {0, 1, 0}};
    const double low[] = {1, 2}, high[] = {5, 6};
    for (size_t i = 0; i < 3; i++) {
        weft_tensor *p = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64),
                    *a = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, low);
        weft_tensor *b = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, high);
        weft_optimizer *sgd = optimizer_create(
            (weft_tensors){&p, 1},
            &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1, .average = true, .max_norm = cases[i].max_norm},
            NULL);
        assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){&a, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){&b, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(sgd), WEFT_OK);
        assert_true(fabs(weft_optimizer_norm(sgd) - cases[i].norm) < 1e-12);
        assert_true(fabs(weft_tensor_get_f64(p, 0) + 3 * cases[i].step) < 1e-12);
        assert_true(fabs(weft_tensor_get_f64(p, 1) + 4 * cases[i].step) < 1e-12);
        weft_optimizer_unref(sgd);
        weft_tensor_unref(p);
        weft_tensor_unref(a);
        weft_tensor_unref(b);
    }
}

/* As PyTorch's clip_grad_norm_: what is not finite is seen in the parameters, not hidden. */
static void a_norm_that_is_not_a_number_is_seen(void **state)
{
    const float values[] = {1, NAN};
    weft_tensor *p = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32),
                *g = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, values);
    weft_optimizer *sgd = optimizer_create(
        (weft_tensors){&p, 1}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1, .max_norm = 1}, NULL);
    assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){&(weft_gradient){g, NULL}, 1}), WEFT_OK);
    assert_true(isnan(weft_optimizer_norm(sgd)) && isnan(weft_tensor_get_f64(p, 0)));
    weft_optimizer_unref(sgd);
    weft_tensor_unref(p);
    weft_tensor_unref(g);
}

static void count_warning(weft_log_level level, const char *line, void *arg)
{
    if (level == WEFT_LOG_WARN && strstr(line, "error_if_nonfinite"))
        ++*(int *)arg;
}

/* With error_if_nonfinite: neither parameters nor state change, by max_norm or without; the log says why. The next step
 * goes well. */
static void a_norm_that_is_not_finite_is_refused_if_asked(void **state)
{
    const double bad[] = {NAN, INFINITY, -INFINITY}, limits[] = {0, 1};
    int warnings = 0;
    weft_logging_set_sink(count_warning, &warnings);
    for (size_t i = 0; i < 6; i++) {
        const double values[] = {1, bad[i / 2]};
        weft_tensor *p = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64),
                    *g = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, values),
                    *good = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, 1);
        weft_optimizer *adam = optimizer_create(
            (weft_tensors){&p, 1},
            &(weft_optimizer_spec){.type = &weft_adam_type, .max_norm = limits[i % 2], .error_if_nonfinite = true},
            NULL);
        const weft_gradients lent = {&(weft_gradient){g, NULL}, 1};
        assert_int_equal(weft_optimizer_apply(adam, lent), WEFT_ERR_INVALID);
        assert_true(isnan(values[1]) ? isnan(weft_optimizer_norm(adam)) : weft_optimizer_norm(adam) == INFINITY);
        assert_int_equal(weft_optimizer_accumulate(adam, (weft_tensors){&g, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(adam), WEFT_ERR_INVALID);
        assert_int_equal(weft_optimizer_accumulated(adam), 1);
        assert_int_equal(weft_optimizer_state_count(adam), 0);
        assert_true(weft_tensor_get_f64(p, 0) == 0 && weft_tensor_get_f64(p, 1) == 0);
        weft_optimizer_zero(adam);
        assert_int_equal(weft_optimizer_accumulate(adam, (weft_tensors){&good, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(adam), WEFT_OK);
        assert_true(fabs(weft_optimizer_norm(adam) - sqrt(2)) < 1e-12 && weft_tensor_get_f64(p, 1) < 0);
        weft_optimizer_unref(adam);
        weft_tensor_unref(p);
        weft_tensor_unref(g);
        weft_tensor_unref(good);
    }
    weft_logging_set_sink(NULL, NULL);
    assert_int_equal(warnings, 12);
}

/* Several threads, also where a test may have one. */
static int take_threads(void **state)
{
    return setenv("WEFT_CPU_THREADS", "3", 1);
}

UNIT_MAIN_WITH(take_threads, NULL, norm_is_of_all_gradients_rows_added_first, norm_refuses_what_is_no_gradient,
               sums_are_clipped_by_the_norm_of_their_average, a_norm_that_is_not_a_number_is_seen,
               a_norm_that_is_not_finite_is_refused_if_asked)
