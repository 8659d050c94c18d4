/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_optim_kernels.c - steps that write beside what they read: the same bits as in place, and what was read stays;
 * and what kernels refuse. What they compute is seen through the public API in the files beside this one.
 */
#include "tensor/cpu/optim/optim.h"

#include "oracle/formula.h"
#include "tensors.h"
#include "unit.h"

#include <stdlib.h>

#define COUNT 100003 /* more than one piece of a parallel loop, and no multiple of what a vector holds */

typedef weft_status (*step_fn)(const wfi_update *update);

static weft_status sgd(const wfi_update *update)
{
    return wfi_sgd_step(update, &(wfi_sgd){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
}

static weft_status plain_sgd(const wfi_update *update)
{
    return wfi_sgd_step(update, &(wfi_sgd){.lr = 0.1, .weight_decay = 0.1});
}

static weft_status adamw(const wfi_update *update)
{
    return wfi_adam_step(
        update,
        &(wfi_adam){.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .decoupled = true});
}

static weft_status amsgrad(const wfi_update *update)
{
    return wfi_adam_step(update, &(wfi_adam){.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .amsgrad = true});
}

static weft_status adagrad(const wfi_update *update)
{
    return wfi_adagrad_step(update, &(wfi_adagrad){.lr = 0.1, .eps = 1e-8, .weight_decay = 0.1});
}

static weft_status rmsprop(const wfi_update *update)
{
    return wfi_rmsprop_step(
        update,
        &(wfi_rmsprop){.lr = 0.1, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1, .momentum = 0.9, .centered = true});
}

static weft_status rprop(const wfi_update *update)
{
    return wfi_rprop_step(update, &(wfi_rprop){.eta_minus = 0.5, .eta_plus = 1.2, .step_min = 1e-3, .step_max = 0.1});
}

static weft_status adadelta(const wfi_update *update)
{
    return wfi_adadelta_step(update, &(wfi_adadelta){.lr = 1, .rho = 0.9, .eps = 1e-6, .weight_decay = 0.1});
}

static weft_status adamax(const wfi_update *update)
{
    return wfi_adamax_step(update,
                           &(wfi_adamax){.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1});
}

static const step_fn kinds[] = {sgd, plain_sgd, adamw, amsgrad, adagrad, rmsprop, rprop, adadelta, adamax};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static void assert_same_bits(const weft_tensor *a, const weft_tensor *b)
{
    assert_memory_equal(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a));
}

static void run_beside(step_fn step, weft_dtype dtype)
{
    weft_shape shape = WEFT_SHAPE(COUNT);
    weft_tensor *in_place = formula_tensor(shape, dtype, 1), *from = tensor_clone(in_place);
    weft_tensor *was = tensor_empty(shape, dtype), *to = tensor_full(shape, dtype, 7);
    weft_tensor *gradient = tensor_empty(shape, dtype);
    wfi_update one = {.from = in_place, .to = in_place, .gradient = gradient, .factor = 0.5};
    wfi_update other = {.gradient = gradient, .factor = 0.5};
    for (int k = 0; k < WFI_STEP_SLOTS; k++) {
        one.slots[k] = tensor_zeros(shape, dtype);
        other.slots[k] = tensor_zeros(shape, dtype);
    }
    for (uint64_t i = 1; i <= 3; i++) {
        formula_fill(gradient, 10 + i, 1, 0);
        assert_int_equal(weft_tensor_assign(was, from), WEFT_OK);
        one.step = other.step = i;
        other.from = from;
        other.to = to;
        assert_int_equal(step(&one), WEFT_OK);
        assert_int_equal(step(&other), WEFT_OK);
        assert_same_bits(from, was);
        assert_same_bits(to, in_place);
        weft_tensor *old = from;
        from = to;
        to = old;
    }
    for (int k = 0; k < WFI_STEP_SLOTS; k++) {
        assert_same_bits(one.slots[k], other.slots[k]);
        weft_tensor_unref(one.slots[k]);
        weft_tensor_unref(other.slots[k]);
    }
    weft_tensor *all[] = {in_place, from, was, to, gradient};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

static void steps_beside_have_the_same_bits_and_leave_what_they_read(void **state)
{
    for (size_t k = 0; k < KINDS; k++) {
        run_beside(kinds[k], WEFT_DTYPE_FLOAT32);
        run_beside(kinds[k], WEFT_DTYPE_FLOAT64);
    }
}

static void kernels_refuse_what_does_not_fit(void **state)
{
    weft_tensor *p = formula_tensor(WEFT_SHAPE(4, 2), WEFT_DTYPE_FLOAT32, 1), *was = tensor_clone(p);
    weft_tensor *g = formula_tensor(WEFT_SHAPE(4, 2), WEFT_DTYPE_FLOAT32, 2),
                *doubles = tensor_zeros(WEFT_SHAPE(4, 2), WEFT_DTYPE_FLOAT64);
    weft_tensor *flat = tensor_zeros(WEFT_SHAPE(8), WEFT_DTYPE_FLOAT32),
                *v = tensor_zeros(WEFT_SHAPE(4, 2), WEFT_DTYPE_FLOAT32);
    weft_tensor *row = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_INT64);
    weft_tensor *square = tensor_zeros(WEFT_SHAPE(2, 4), WEFT_DTYPE_FLOAT32), *strided = tensor_transpose(square, 0, 1);
    weft_tensor *one_double = tensor_zeros(WEFT_SHAPE(1, 2), WEFT_DTYPE_FLOAT64);
    wfi_sparse_rows rows = {0};
    int64_t bad;
    assert_int_equal(wfi_sparse_rows_init(&rows, one_double, row, 4, &bad), WEFT_OK);
    const wfi_update fits = {.from = p, .to = p, .gradient = g, .factor = 1, .slots = {v}, .step = 1};
    wfi_update wrong[10];
    weft_status codes[10] = {WEFT_ERR_INVALID, WEFT_ERR_INVALID,    WEFT_ERR_INVALID, WEFT_ERR_INVALID,
                             WEFT_ERR_SHAPE,   WEFT_ERR_SHAPE,      WEFT_ERR_TYPE,    WEFT_ERR_TYPE,
                             WEFT_ERR_TYPE,    WEFT_ERR_UNSUPPORTED};
    for (int i = 0; i < 10; i++)
        wrong[i] = fits;
    wrong[0].step = 0;
    wrong[1].gradient = NULL;
    wrong[2].rows = &rows; /* both */
    wrong[3].slots[0] = NULL;
    wrong[4].gradient = flat;
    wrong[5].slots[0] = flat;
    wrong[6].gradient = doubles;
    wrong[7].to = doubles;
    wrong[8].gradient = NULL;
    wrong[8].rows = &rows;
    wrong[9].gradient = strided;
    for (int i = 0; i < 10; i++)
        assert_int_equal(sgd(&wrong[i]), codes[i]);
    wrong[8].to = was; /* only some rows would be written */
    assert_int_equal(sgd(&wrong[8]), WEFT_ERR_INVALID);
    assert_same_bits(p, was);
    assert_int_equal(sgd(&fits), WEFT_OK);
    wfi_sparse_rows_fini(&rows);
    weft_tensor *all[] = {p, was, g, doubles, flat, v, row, square, strided, one_double};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

/* Several threads, also where a test may have one. */
static int take_threads(void **state)
{
    return setenv("WEFT_CPU_THREADS", "3", 1);
}

UNIT_MAIN_WITH(take_threads, NULL, steps_beside_have_the_same_bits_and_leave_what_they_read,
               kernels_refuse_what_does_not_fit)
