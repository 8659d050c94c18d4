/* SPDX-License-Identifier: Apache-2.0 */
/* adadelta.c - one step of Adadelta, as PyTorch defines it, in one pass over memory. */
#include "tensor/clones.h"
#include "tensor/cpu/optim/update.h"

#include <math.h>

typedef struct numbers {
    double factor, decay;
    double rho, fresh; /* both means become rho s + fresh x^2 */
    double lr, eps;
} numbers;

#define ADADELTA(name, T, ROOT)                                                                                        \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict s = span->slots[0], *restrict u = span->slots[1];                                  \
        T factor = (T)n->factor, decay = (T)n->decay, rho = (T)n->rho, fresh = (T)n->fresh;                            \
        T lr = (T)n->lr, eps = (T)n->eps;                                                                              \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i], square = rho * s[i] + fresh * d * d;                                   \
            T step = ROOT(u[i] + eps) / ROOT(square + eps) * d;                                                        \
            s[i] = square;                                                                                             \
            u[i] = rho * u[i] + fresh * step * step;                                                                   \
            to[i] = p[i] - lr * step;                                                                                  \
        }                                                                                                              \
    }
ADADELTA(adadelta_f32, float, sqrtf)
ADADELTA(adadelta_f64, double, sqrt)

weft_status wfi_adadelta_step(const wfi_update *update, const wfi_adadelta *how)
{
    numbers n = {update->factor, how->weight_decay, how->rho, 1 - how->rho, how->lr, how->eps};
    return WFI_UPDATE_RUN(update, n, 2, adadelta_f32, adadelta_f64, WFI_GPU_ADADELTA);
}
