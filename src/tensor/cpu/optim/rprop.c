/* SPDX-License-Identifier: Apache-2.0 */
/* rprop.c - one step of Rprop, as PyTorch defines it, in one pass over memory. */
#include "tensor/clones.h"
#include "tensor/cpu/optim/update.h"

typedef struct numbers {
    double factor;
    double shorter, longer, shortest, longest;
} numbers;

#define RPROP(name, T)                                                                                                 \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict last = span->slots[0], *restrict size = span->slots[1];                            \
        T factor = (T)n->factor, shorter = (T)n->shorter, longer = (T)n->longer;                                       \
        T shortest = (T)n->shortest, longest = (T)n->longest;                                                          \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i], turn = d * last[i];                                                                   \
            T step = size[i] * (turn > 0 ? longer : turn < 0 ? shorter : 1 + turn); /* a NaN stays to be seen */       \
            step = step < shortest ? shortest : step > longest ? longest : step;                                       \
            d = turn < 0 ? 0 : d;                                                                                      \
            last[i] = d;                                                                                               \
            size[i] = step;                                                                                            \
            to[i] = p[i] - (T)((d > 0) - (d < 0)) * step;                                                              \
        }                                                                                                              \
    }
RPROP(rprop_f32, float)
RPROP(rprop_f64, double)

weft_status wfi_rprop_step(const wfi_update *update, const wfi_rprop *how)
{
    numbers n = {update->factor, how->eta_minus, how->eta_plus, how->step_min, how->step_max};
    return WFI_UPDATE_RUN(update, n, 2, rprop_f32, rprop_f64, WFI_GPU_RPROP);
}
