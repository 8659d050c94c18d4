/* SPDX-License-Identifier: Apache-2.0 */
/* sgd.c - one step of stochastic gradient descent, as PyTorch defines it, in one pass over memory. */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/cpu/optim/optim.h"

typedef struct sgd_args {
    void *parameter, *velocity;
    const void *gradient;
    const wfi_sgd *how;
} sgd_args;

#define SGD_PIECE(name, T)                                                                                             \
    static void name(void *arg, int64_t begin, int64_t end)                                                            \
    {                                                                                                                  \
        const sgd_args *args = arg;                                                                                    \
        T *restrict p = args->parameter, *restrict v = args->velocity;                                                 \
        const T *restrict g = args->gradient;                                                                          \
        T lr = (T)args->how->lr, decay = (T)args->how->weight_decay, momentum = (T)args->how->momentum;                \
        T fresh = args->how->first ? (T)1 : (T)(1 - args->how->dampening), old = args->how->first ? (T)0 : momentum;   \
        T ahead = args->how->nesterov ? momentum : (T)1, direct = args->how->nesterov ? (T)1 : (T)0;                   \
        if (v == NULL) {                                                                                               \
            for (int64_t i = begin; i < end; i++)                                                                      \
                p[i] -= lr * (g[i] + decay * p[i]);                                                                    \
            return;                                                                                                    \
        }                                                                                                              \
        if (args->how->first) { /* whatever the buffer holds, a NaN perhaps, must not come through */                  \
            for (int64_t i = begin; i < end; i++)                                                                      \
                v[i] = 0;                                                                                              \
        }                                                                                                              \
        for (int64_t i = begin; i < end; i++) {                                                                        \
            T d = g[i] + decay * p[i];                                                                                 \
            v[i] = old * v[i] + fresh * d;                                                                             \
            p[i] -= lr * (direct * d + ahead * v[i]);                                                                  \
        }                                                                                                              \
    }
SGD_PIECE(sgd_f32, float)
SGD_PIECE(sgd_f64, double)

weft_status wfi_sgd_step(weft_tensor *parameter, const weft_tensor *gradient, weft_tensor *velocity, const wfi_sgd *how)
{
    if (how->momentum == 0)
        velocity = NULL;
    weft_status status = WFI_CHECK_FLOATS(parameter, gradient, velocity);
    if (status != WEFT_OK)
        return status;
    if (how->momentum != 0 && velocity == NULL)
        return WEFT_ERR_INVALID;
    bool fits = weft_tensor_same_shape(parameter, gradient) &&
                (velocity == NULL || weft_tensor_same_shape(parameter, velocity));
    if (!fits)
        return WEFT_ERR_SHAPE;
    sgd_args args = {wfi_tensor_address(parameter), velocity != NULL ? wfi_tensor_address(velocity) : NULL,
                     wfi_tensor_address(gradient), how};
    wfi_parallel(parameter->numel, WFI_GRAIN, WFI_BY_FLOAT(parameter->dtype, sgd_f32, sgd_f64), &args);
    return WEFT_OK;
}
