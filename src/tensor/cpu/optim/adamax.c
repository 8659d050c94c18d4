/* SPDX-License-Identifier: Apache-2.0 */
/* adamax.c - one step of Adamax, as PyTorch defines it, in one pass over memory. */
#include "tensor/clones.h"
#include "tensor/cpu/optim/update.h"

#include <math.h>

typedef struct numbers {
    double factor, decay;
    double fresh, beta2;
    double rate; /* lr / (1 - beta1^step) */
    double eps;
} numbers;

#define ADAMAX(name, T, ABSOLUTE)                                                                                      \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict m = span->slots[0], *restrict u = span->slots[1];                                  \
        T factor = (T)n->factor, decay = (T)n->decay, fresh = (T)n->fresh, beta2 = (T)n->beta2;                        \
        T rate = (T)n->rate, eps = (T)n->eps;                                                                          \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i], mean = m[i] + fresh * (d - m[i]);                                      \
            T old = beta2 * u[i], now = ABSOLUTE(d) + eps;                                                             \
            T largest = old > now || old != old ? old : now; /* a NaN stays to be seen */                              \
            m[i] = mean;                                                                                               \
            u[i] = largest;                                                                                            \
            to[i] = p[i] - rate * mean / largest;                                                                      \
        }                                                                                                              \
    }
ADAMAX(adamax_f32, float, fabsf)
ADAMAX(adamax_f64, double, fabs)

weft_status wfi_adamax_step(const wfi_update *update, const wfi_adamax *how)
{
    numbers n = {update->factor,
                 how->weight_decay,
                 1 - how->beta1,
                 how->beta2,
                 how->lr / (1 - pow(how->beta1, (double)update->step)),
                 how->eps};
    return WFI_UPDATE_RUN(update, n, 2, adamax_f32, adamax_f64, WFI_GPU_ADAMAX);
}
