/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_autograd_join.c - stack, concat and gather beyond their values: long lists, one tensor many times, gradients
 * that are views of one storage, tapes below tapes, second passes, any dtype, any number of threads.
 */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "tensor/parallel.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define S(...) WEFT_SHAPE(__VA_ARGS__)
#define STEPS 500

static weft_tape *recording(weft_tape *parent)
{
    return weft_tape_open(&(weft_tape_options){.record = true, .parent = parent});
}

static weft_tensor *leaf(weft_shape shape, uint64_t key)
{
    weft_tensor *x = formula_tensor(shape, WEFT_DTYPE_FLOAT64, key);
    assert_non_null(x);
    weft_tensor_set_requires_grad(x, true);
    return x;
}

/*
 * An episode as REINFORCE has it: each step's log-probability made on a tape of its own and kept, all stacked at the
 * end and weighed by returns. The gradient is the sum over the steps of return times gradient.
 */
static void stack_takes_the_steps_of_an_episode(void **state)
{
    weft_tensor *scores = leaf(S(2), 1), *returns = formula_tensor(S(STEPS), WEFT_DTYPE_FLOAT64, 2), *steps[STEPS];
    weft_tape *t = recording(NULL);
    for (int i = 0; i < STEPS; i++) {
        weft_tape *child = recording(t);
        weft_tensor *action = weft_tape_take(child, tensor_full(S(1), WEFT_DTYPE_INT64, i % 3 == 0));
        weft_tensor *log_p = weft_log_softmax(child, scores, 0);
        steps[i] = weft_tensor_ref(weft_select(child, weft_take_along_dim(child, log_p, 0, action), 0, 0));
        weft_tape_close(child);
        weft_tape_take(t, steps[i]);
    }
    weft_tensor *all = weft_stack(t, (weft_tensors){steps, STEPS}, 0);
    weft_backward(t, weft_neg(t, weft_sum(t, weft_mul(t, all, returns))));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    double p1 = 1 / (1 + exp(weft_tensor_get_f64(scores, 0) - weft_tensor_get_f64(scores, 1))), wanted = 0;
    for (int i = 0; i < STEPS; i++)
        wanted -= weft_tensor_get_f64(returns, i) * ((i % 3 == 0) - p1);
    weft_tensor *gradient = weft_tape_grad(t, scores);
    assert_true(fabs(weft_tensor_get_f64(gradient, 1) - wanted) < 1e-10);
    assert_true(fabs(weft_tensor_get_f64(gradient, 0) + wanted) < 1e-10);
    weft_tape_close(t);
    weft_tensor_unref(scores);
    weft_tensor_unref(returns);
}

/* 20,000 operands, three tensors over and over: time and memory grow with their number, not with its square. */
static void concat_takes_a_very_long_list(void **state)
{
    const size_t count = 20000;
    weft_tensor *x[] = {leaf(S(1, 2), 1), leaf(S(3, 2), 2), tensor_full(S(0, 2), WEFT_DTYPE_FLOAT64, 0)};
    weft_tensor **list = calloc(count, sizeof(*list));
    assert_non_null(list);
    for (size_t i = 0; i < count; i++)
        list[i] = x[i % 3];
    weft_tape *t = recording(NULL);
    weft_tensor *y = weft_concat(t, (weft_tensors){list, count}, 0);
    assert_non_null(y);
    assert_int_equal(weft_tensor_size(y, 0), 6667 * 1 + 6667 * 3);
    assert_true(weft_tensor_get_f64(y, 9) == weft_tensor_get_f64(x[0], 1));
    weft_backward(t, weft_sum(t, weft_scale(t, y, 2)));
    assert_true(weft_tensor_get_f64(weft_tape_grad(t, x[0]), 1) == 2 * 6667);
    assert_true(weft_tensor_get_f64(weft_tape_grad(t, x[1]), 5) == 2 * 6667);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    weft_tape_close(t);
    free(list);
    for (int i = 0; i < 3; i++)
        weft_tensor_unref(x[i]);
}

/* The gradients lie in one storage: what is added to one of them must not reach its neighbour, nor the caller's
 * tensor. */
static void gradients_that_share_a_storage_stay_apart(void **state)
{
    weft_tensor *x[5], *weights = formula_tensor(S(5, 3), WEFT_DTYPE_FLOAT64, 50), *kept = tensor_clone(weights);
    for (int i = 0; i < 5; i++)
        x[i] = leaf(S(3), 1 + (uint64_t)i);
    weft_tape *t = recording(NULL);
    weft_tensor *middle = weft_scale(t, x[2], 1); /* gets a second share besides */
    weft_tensor *y = weft_stack(t, (weft_tensors){(weft_tensor *[]){x[0], x[1], middle, x[3], x[4]}, 5}, 0);
    weft_tensor *outputs[] = {y, middle},
                *gradients[] = {weights, weft_tape_take(t, tensor_full(S(3), WEFT_DTYPE_FLOAT64, 10))};
    for (int pass = 1; pass <= 2; pass++) {
        weft_backward_with(t, (weft_tensors){outputs, 2}, (weft_tensors){gradients, 2},
                           &(weft_backward_options){.retain = pass == 1});
        for (int i = 0; i < 15; i++) {
            double wanted = pass * (weft_tensor_get_f64(kept, i) + (i / 3 == 2 ? 10 : 0));
            assert_true(fabs(weft_tensor_get_f64(weft_tape_grad(t, x[i / 3]), i % 3) - wanted) < 1e-14);
        }
    }
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_memory_equal(weft_tensor_data(weights), weft_tensor_data(kept), weft_tensor_nbytes(kept));
    weft_backward(t, weft_sum(t, weft_concat(t, (weft_tensors){&y, 1}, 0)));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_STATE); /* the second pass spent the stack's records */
    weft_tape_close(t);
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(x[i]);
    weft_tensor_unref(weights);
    weft_tensor_unref(kept);
}

/* They are copies: later changes of the operands do not show, and results are contiguous. */
static void joined_tensors_are_new(void **state)
{
    const weft_dtype dtypes[] = {WEFT_DTYPE_FLOAT32, WEFT_DTYPE_FLOAT64, WEFT_DTYPE_INT64,
                                 WEFT_DTYPE_INT32,   WEFT_DTYPE_UINT8,   WEFT_DTYPE_BOOL};
    for (size_t k = 0; k < sizeof(dtypes) / sizeof(dtypes[0]); k++) {
        weft_tensor *x = tensor_full(S(2, 3), dtypes[k], 1), *turned = tensor_transpose(x, 0, 1);
        weft_tensor *at = tensor_full(S(3, 1), WEFT_DTYPE_INT64, 1);
        weft_tape *t = recording(NULL);
        weft_tensor *results[] = {weft_stack(t, (weft_tensors){&turned, 1}, 0),
                                  weft_concat(t, (weft_tensors){&turned, 1}, 0), weft_take_along_dim(t, turned, 1, at)};
        weft_tensor_fill(x, 0);
        for (int i = 0; i < 3; i++) {
            assert_non_null(results[i]);
            assert_int_equal(weft_tensor_dtype(results[i]), dtypes[k]);
            assert_true(weft_tensor_is_contiguous(results[i]));
            assert_int_equal(weft_tensor_get_i64(results[i], 2), 1);
        }
        weft_tape_close(t);
        weft_tensor_unref(at);
        weft_tensor_unref(turned);
        weft_tensor_unref(x);
    }
}

/* The index is kept for the gradient: to change it before the backward pass is an error, not a wrong gradient. */
static void gather_notices_a_changed_index(void **state)
{
    weft_tensor *x = leaf(S(4), 1), *at = tensor_full(S(2), WEFT_DTYPE_INT64, 3);
    weft_tape *t = recording(NULL);
    weft_tensor *loss = weft_sum(t, weft_take_along_dim(t, x, 0, at));
    weft_tensor_fill(at, 0);
    weft_backward(t, loss);
    assert_int_equal(weft_tape_status(t), WEFT_ERR_STATE);
    weft_tape_close(t);
    weft_tensor_unref(at);
    weft_tensor_unref(x);
}

/* Many picks of few elements: the sums must have the same bits each time, and be those of the index's order. */
static void gather_adds_in_the_indexs_order_on_any_number_of_threads(void **state)
{
    enum { ROWS = 500, PICKS = 201, WIDTH = 7 };
    weft_tensor *x = tensor_empty(S(ROWS, WIDTH), WEFT_DTYPE_FLOAT32),
                *at = tensor_empty(S(ROWS, PICKS), WEFT_DTYPE_INT64);
    weft_tensor *weights = formula_tensor(S(ROWS, PICKS), WEFT_DTYPE_FLOAT32, 3);
    static float wanted[ROWS][WIDTH];
    const int64_t *index = weft_tensor_data(at);
    const float *w = weft_tensor_data(weights);
    formula_fill(x, 1, 1, 0);
    formula_fill_below(at, 2, WIDTH);
    weft_tensor_set_requires_grad(x, true);
    for (int i = 0; i < ROWS * PICKS; i++)
        wanted[i / PICKS][index[i]] += w[i];
    int before = wfi_cpu_threads();
    for (int threads = 1; threads <= 3; threads++) {
        wfi_cpu_threads_set(threads);
        weft_tape *t = recording(NULL);
        weft_tensor *y = weft_take_along_dim(t, x, 1, at);
        for (int i = 0; i < ROWS * PICKS; i++)
            assert_true(weft_tensor_get_f64(y, i) == weft_tensor_get_f64(x, i / PICKS * WIDTH + index[i]));
        weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&weights, 1}, NULL);
        assert_memory_equal(weft_tensor_data(weft_tape_grad(t, x)), wanted, sizeof(wanted));
        weft_tape_close(t);
    }
    wfi_cpu_threads_set(before);
    weft_tensor_unref(x);
    weft_tensor_unref(at);
    weft_tensor_unref(weights);
}

static void concat_of_sizes_that_do_not_add_up_is_refused(void **state)
{
    weft_tensor *x = tensor_zeros(S(0, INT64_MAX), WEFT_DTYPE_FLOAT32);
    weft_tape *t = weft_tape_open(NULL);
    assert_non_null(x);
    assert_null(weft_concat(t, (weft_tensors){(weft_tensor *[]){x, x}, 2}, 1));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_SHAPE);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "too many elements along dimension 1"));
    weft_tape_close(t);
    weft_tensor_unref(x);
}

UNIT_MAIN(stack_takes_the_steps_of_an_episode, concat_takes_a_very_long_list, gradients_that_share_a_storage_stay_apart,
          joined_tensors_are_new, gather_notices_a_changed_index,
          gather_adds_in_the_indexs_order_on_any_number_of_threads, concat_of_sizes_that_do_not_add_up_is_refused)
