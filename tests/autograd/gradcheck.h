/* SPDX-License-Identifier: Apache-2.0 */
/* gradcheck.h - gradients against central differences, in float64. */
#ifndef GRADCHECK_H
#define GRADCHECK_H

#include <weft/weft.h>

#include "oracle/formula.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>

#define GRADCHECK_INPUTS 5

/* An expression of the inputs; any shape. It must be the same function each time. */
typedef weft_tensor *(*gradcheck_fn)(weft_tape *t, weft_tensor *const *in, const void *arg);

/* The expression's elements weighed by fixed numbers and summed, so that no gradient is the same for all. */
static weft_tensor *gradcheck_loss(weft_tape *t, gradcheck_fn fn, weft_tensor *const *in, const void *arg)
{
    weft_tensor *y = fn(t, in, arg);
    if (!y)
        return NULL;
    weft_tensor *weights = weft_tape_take(t, formula_tensor(weft_tensor_shape(y), WEFT_DTYPE_FLOAT64, 77));
    return weft_sum(t, weft_mul(t, y, weights));
}

static double gradcheck_value(gradcheck_fn fn, weft_tensor *const *in, const void *arg)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = 3});
    weft_tensor *loss = gradcheck_loss(t, fn, in, arg);
    weft_error_print(weft_tape_error(t), stderr);
    assert_non_null(loss);
    double value = weft_tensor_get_f64(loss, 0);
    weft_tape_close(t);
    return value;
}

static void gradcheck_input(gradcheck_fn fn, weft_tensor *const *in, int which, const void *arg,
                            const weft_tensor *gradient)
{
    const double h = 1e-6;
    double *x = weft_tensor_data(in[which]);
    for (int64_t i = 0; i < weft_tensor_numel(in[which]); i++) {
        double kept = x[i];
        x[i] = kept + h;
        double above = gradcheck_value(fn, in, arg);
        x[i] = kept - h;
        double below = gradcheck_value(fn, in, arg);
        x[i] = kept;
        double wanted = (above - below) / (2 * h), got = !gradient ? 0 : weft_tensor_get_f64(gradient, i);
        if (fabs(wanted - got) > 1e-6 * (1 + fabs(wanted))) {
            print_error("input %d, element %d: %.12g, by differences %.12g\n", which, (int)i, got, wanted);
            fail();
        }
    }
}

/* Inputs are contiguous float64. */
static inline void gradcheck(gradcheck_fn fn, weft_tensor *const *in, int count, const void *arg)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = 3});
    for (int i = 0; i < count; i++)
        weft_tensor_set_requires_grad(in[i], true);
    weft_backward(t, gradcheck_loss(t, fn, in, arg));
    weft_error_print(weft_tape_error(t), stderr);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    for (int i = 0; i < count; i++)
        gradcheck_input(fn, in, i, arg, weft_tape_grad(t, in[i]));
    weft_tape_close(t);
}

/* The same on inputs of these shapes, with elements in offset +- 1. */
static inline void gradcheck_shapes(gradcheck_fn fn, const weft_shape *shapes, int count, double offset,
                                    const void *arg)
{
    weft_tensor *in[GRADCHECK_INPUTS];
    for (int i = 0; i < count; i++) {
        in[i] = tensor_empty(shapes[i], WEFT_DTYPE_FLOAT64);
        assert_non_null(in[i]);
        formula_fill(in[i], 100 + (uint64_t)i, 1, offset);
    }
    gradcheck(fn, in, count, arg);
    for (int i = 0; i < count; i++)
        weft_tensor_unref(in[i]);
}

#endif
