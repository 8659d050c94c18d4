/* SPDX-License-Identifier: Apache-2.0 */
/* adam.c - one step of Adam or AdamW, as PyTorch defines them, in one pass over memory. */
#include "tensor/clones.h"
#include "tensor/cpu/optim/update.h"

#include <math.h>

typedef struct numbers {
    double factor, decay;
    double keep; /* AdamW: what the parameter is multiplied by first; 1: nothing */
    double beta2, fresh1, fresh2;
    double rate; /* lr sqrt(1 - beta2^step) / (1 - beta1^step) */
    double eps;  /* but on rows times sqrt(1 - beta2^step): so one division does both corrections */
} numbers;

#define ADAM(adam, amsgrad, T, ROOT)                                                                                   \
    WFI_CLONES static void adam(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict m = span->slots[0], *restrict v = span->slots[1];                                  \
        T factor = (T)n->factor, decay = (T)n->decay, keep = (T)n->keep, fresh1 = (T)n->fresh1, beta2 = (T)n->beta2;   \
        T fresh2 = (T)n->fresh2, rate = (T)n->rate, eps = (T)n->eps;                                                   \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i], mean = m[i] + fresh1 * (d - m[i]);                                     \
            T square = beta2 * v[i] + fresh2 * d * d;                                                                  \
            m[i] = mean;                                                                                               \
            v[i] = square;                                                                                             \
            to[i] = keep * p[i] - rate * mean / (ROOT(square) + eps);                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    WFI_CLONES static void amsgrad(const void *arg, const wfi_span *span)                                              \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict m = span->slots[0], *restrict v = span->slots[1], *restrict top = span->slots[2];  \
        T factor = (T)n->factor, decay = (T)n->decay, keep = (T)n->keep, fresh1 = (T)n->fresh1, beta2 = (T)n->beta2;   \
        T fresh2 = (T)n->fresh2, rate = (T)n->rate, eps = (T)n->eps;                                                   \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i], mean = m[i] + fresh1 * (d - m[i]);                                     \
            T square = beta2 * v[i] + fresh2 * d * d;                                                                  \
            T largest = square > top[i] || square != square ? square : top[i]; /* a NaN stays to be seen */            \
            m[i] = mean;                                                                                               \
            v[i] = square;                                                                                             \
            top[i] = largest;                                                                                          \
            to[i] = keep * p[i] - rate * mean / (ROOT(largest) + eps);                                                 \
        }                                                                                                              \
    }
ADAM(adam_f32, amsgrad_f32, float, sqrtf)
ADAM(adam_f64, amsgrad_f64, double, sqrt)

weft_status wfi_adam_step(const wfi_update *update, const wfi_adam *how)
{
    double steps = (double)update->step, scale = sqrt(1 - pow(how->beta2, steps));
    numbers n = {.factor = update->factor,
                 .decay = how->decoupled ? 0 : how->weight_decay,
                 .keep = how->decoupled ? 1 - how->lr * how->weight_decay : 1,
                 .beta2 = how->beta2,
                 .fresh1 = 1 - how->beta1,
                 .fresh2 = 1 - how->beta2,
                 .rate = how->lr * scale / (1 - pow(how->beta1, steps)),
                 .eps = update->rows == NULL ? how->eps * scale : how->eps};
    if (how->amsgrad)
        return WFI_UPDATE_RUN(update, n, 3, amsgrad_f32, amsgrad_f64, WFI_GPU_AMSGRAD);
    return WFI_UPDATE_RUN(update, n, 2, adam_f32, adam_f64, WFI_GPU_ADAM);
}
