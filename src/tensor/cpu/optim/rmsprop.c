/* SPDX-License-Identifier: Apache-2.0 */
/* rmsprop.c - one step of RMSprop, as PyTorch defines it, in one pass over memory. */
#include "tensor/clones.h"
#include "tensor/cpu/optim/update.h"

#include <math.h>

typedef struct numbers {
    double factor, decay;
    double alpha, fresh; /* the mean square becomes alpha s + fresh d^2 */
    double momentum, lr, eps;
} numbers;

/* CENTERED, MOMENTUM: 0 or 1. Slots: the mean square; the velocity, with MOMENTUM; the mean, with CENTERED. */
#define RMSPROP(name, T, ROOT, CENTERED, MOMENTUM)                                                                     \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict s = span->slots[0], *restrict v = span->slots[1];                                  \
        T *restrict m = span->slots[1 + MOMENTUM];                                                                     \
        T factor = (T)n->factor, decay = (T)n->decay, alpha = (T)n->alpha, fresh = (T)n->fresh;                        \
        T momentum = (T)n->momentum, lr = (T)n->lr, eps = (T)n->eps;                                                   \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i], square = alpha * s[i] + fresh * d * d, spread = square;                \
            s[i] = square;                                                                                             \
            if (CENTERED) {                                                                                            \
                T mean = alpha * m[i] + fresh * d;                                                                     \
                m[i] = mean;                                                                                           \
                spread = square - mean * mean;                                                                         \
            }                                                                                                          \
            d = d / (ROOT(spread) + eps);                                                                              \
            if (MOMENTUM) {                                                                                            \
                d = momentum * v[i] + d;                                                                               \
                v[i] = d;                                                                                              \
            }                                                                                                          \
            to[i] = p[i] - lr * d;                                                                                     \
        }                                                                                                              \
    }
RMSPROP(plain_f32, float, sqrtf, 0, 0)
RMSPROP(plain_f64, double, sqrt, 0, 0)
RMSPROP(momentum_f32, float, sqrtf, 0, 1)
RMSPROP(momentum_f64, double, sqrt, 0, 1)
RMSPROP(centered_f32, float, sqrtf, 1, 0)
RMSPROP(centered_f64, double, sqrt, 1, 0)
RMSPROP(both_f32, float, sqrtf, 1, 1)
RMSPROP(both_f64, double, sqrt, 1, 1)

weft_status wfi_rmsprop_step(const wfi_update *update, const wfi_rmsprop *how)
{
    numbers n = {update->factor, how->weight_decay, how->alpha, 1 - how->alpha, how->momentum, how->lr, how->eps};
    if (how->momentum > 0)
        return how->centered ? WFI_UPDATE_RUN(update, n, 3, both_f32, both_f64, WFI_GPU_RMSPROP_BOTH)
                             : WFI_UPDATE_RUN(update, n, 2, momentum_f32, momentum_f64, WFI_GPU_RMSPROP_MOMENTUM);
    return how->centered ? WFI_UPDATE_RUN(update, n, 2, centered_f32, centered_f64, WFI_GPU_RMSPROP_CENTERED)
                         : WFI_UPDATE_RUN(update, n, 1, plain_f32, plain_f64, WFI_GPU_RMSPROP);
}
