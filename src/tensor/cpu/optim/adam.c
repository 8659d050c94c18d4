/* SPDX-License-Identifier: Apache-2.0 */
/* adam.c - one step of Adam, as PyTorch defines it, in one pass over memory. */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/cpu/optim/optim.h"

#include <math.h>

typedef struct adam_args {
    void *parameter, *mean, *square, *largest; /* largest: NULL without AMSGrad */
    const void *gradient;
    const wfi_adam *how;
    double rate;  /* lr / (1 - beta1^step) */
    double scale; /* sqrt(1 - beta2^step) */
} adam_args;

#define ADAM_PIECE(name, T, ROOT)                                                                                      \
    static void name(void *arg, int64_t begin, int64_t end)                                                            \
    {                                                                                                                  \
        const adam_args *args = arg;                                                                                   \
        const T *restrict g = args->gradient;                                                                          \
        T *restrict p = args->parameter, *restrict m = args->mean, *restrict v = args->square;                         \
        T *restrict top = args->largest;                                                                               \
        T decay = (T)args->how->weight_decay, fresh1 = (T)(1 - args->how->beta1), beta2 = (T)args->how->beta2;         \
        T fresh2 = (T)(1 - args->how->beta2), rate = (T)args->rate, scale = (T)args->scale, eps = (T)args->how->eps;   \
        for (int64_t i = begin; i < end; i++) {                                                                        \
            T d = g[i] + decay * p[i];                                                                                 \
            m[i] += fresh1 * (d - m[i]);                                                                               \
            v[i] = beta2 * v[i] + fresh2 * d * d;                                                                      \
        }                                                                                                              \
        for (int64_t i = begin; i < end && top != NULL; i++)                                                           \
            top[i] = v[i] > top[i] || v[i] != v[i] ? v[i] : top[i]; /* a NaN stays to be seen */                       \
        const T *restrict seen = top != NULL ? top : v;                                                                \
        for (int64_t i = begin; i < end; i++)                                                                          \
            p[i] -= rate * m[i] / (ROOT(seen[i]) / scale + eps);                                                       \
    }
ADAM_PIECE(adam_f32, float, sqrtf)
ADAM_PIECE(adam_f64, double, sqrt)

weft_status wfi_adam_step(weft_tensor *parameter, const weft_tensor *gradient, weft_tensor *mean, weft_tensor *square,
                          weft_tensor *largest, const wfi_adam *how)
{
    weft_status status = WFI_CHECK_FLOATS(parameter, gradient, mean, square, largest);
    if (status != WEFT_OK)
        return status;
    if (how->step < 1)
        return WEFT_ERR_INVALID;
    bool fits = weft_tensor_same_shape(parameter, gradient) && weft_tensor_same_shape(parameter, mean) &&
                weft_tensor_same_shape(parameter, square) &&
                (largest == NULL || weft_tensor_same_shape(parameter, largest));
    if (!fits)
        return WEFT_ERR_SHAPE;
    double steps = (double)how->step;
    adam_args args = {wfi_tensor_address(parameter),
                      wfi_tensor_address(mean),
                      wfi_tensor_address(square),
                      largest != NULL ? wfi_tensor_address(largest) : NULL,
                      wfi_tensor_address(gradient),
                      how,
                      how->lr / (1 - pow(how->beta1, steps)),
                      sqrt(1 - pow(how->beta2, steps))};
    wfi_parallel(parameter->numel, WFI_GRAIN, WFI_BY_FLOAT(parameter->dtype, adam_f32, adam_f64), &args);
    return WEFT_OK;
}
