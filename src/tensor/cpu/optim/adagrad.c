/* SPDX-License-Identifier: Apache-2.0 */
/* adagrad.c - one step of Adagrad, as PyTorch defines it, in one pass over memory. */
#include "tensor/clones.h"
#include "tensor/cpu/optim/update.h"

#include <math.h>

typedef struct numbers {
    double factor, decay;
    double rate; /* lr / (1 + (step - 1) lr_decay) */
    double eps;
} numbers;

#define ADAGRAD(name, T, ROOT)                                                                                         \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict s = span->slots[0];                                                                \
        T factor = (T)n->factor, decay = (T)n->decay, rate = (T)n->rate, eps = (T)n->eps;                              \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i], sum = s[i] + d * d;                                                    \
            s[i] = sum;                                                                                                \
            to[i] = p[i] - rate * d / (ROOT(sum) + eps);                                                               \
        }                                                                                                              \
    }
ADAGRAD(adagrad_f32, float, sqrtf)
ADAGRAD(adagrad_f64, double, sqrt)

weft_status wfi_adagrad_step(const wfi_update *update, const wfi_adagrad *how)
{
    numbers n = {update->factor, how->weight_decay, how->lr / (1 + (double)(update->step - 1) * how->lr_decay),
                 how->eps};
    return WFI_UPDATE_RUN(update, n, 1, adagrad_f32, adagrad_f64, WFI_GPU_ADAGRAD);
}
