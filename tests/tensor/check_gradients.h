/* SPDX-License-Identifier: Apache-2.0 */
/* check_gradients.h - finite differences in float64 against a backward kernel, and small helpers. */
#ifndef CHECK_GRADIENTS_H
#define CHECK_GRADIENTS_H

#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/optim/optim.h"
#include "tensor/cpu/product/product.h"
#include "tensor/parallel.h"

#include <math.h>
#include "tensors.h"
#include "unit.h"

static inline weft_tensor *random_tensor(weft_shape shape, weft_dtype dtype, uint64_t stream)
{
    weft_tensor *tensor = tensor_empty(shape, dtype);
    assert_non_null(tensor);
    assert_int_equal(wfi_random_normal(tensor, (wfi_random){7, stream}, 0, 1), WEFT_OK);
    return tensor;
}

/* Largest |a - b| relative to the largest |b|. */
static inline double relative_error(const weft_tensor *a, const weft_tensor *b)
{
    double worst = 0, largest = 1e-30;
    assert_int_equal(weft_tensor_numel(a), weft_tensor_numel(b));
    for (int64_t i = 0; i < weft_tensor_numel(b); i++) {
        double u = weft_tensor_get_f64(a, i), v = weft_tensor_get_f64(b, i);
        worst = fmax(worst, fabs(u - v));
        largest = fmax(largest, fabs(v));
    }
    return worst / largest;
}

/* sum(forward(x) * weights) as a function of one input. */
typedef double (*scalar_function)(void *arg);

/* Compares `gradient` with central differences of `function` as `x` (float64) varies. */
static inline void check_gradient(scalar_function function, void *arg, weft_tensor *x, const weft_tensor *gradient)
{
    double *data = weft_tensor_data(x);
    const double step = 1e-5;
    for (int64_t i = 0; i < weft_tensor_numel(x); i++) {
        double before = data[i];
        data[i] = before + step;
        double up = function(arg);
        data[i] = before - step;
        double down = function(arg);
        data[i] = before;
        double expected = (up - down) / (2 * step), got = weft_tensor_get_f64(gradient, i);
        assert_true(fabs(expected - got) <= 1e-6 * (1 + fabs(expected)));
    }
}

static inline double dot(const weft_tensor *a, const weft_tensor *b)
{
    double sum = 0;
    for (int64_t i = 0; i < weft_tensor_numel(a); i++)
        sum += weft_tensor_get_f64(a, i) * weft_tensor_get_f64(b, i);
    return sum;
}

#endif
