/* SPDX-License-Identifier: Apache-2.0 */
/* sgd.c - one step of stochastic gradient descent, as PyTorch defines it, in one pass over memory. */
#include "tensor/clones.h"
#include "tensor/cpu/optim/update.h"

typedef struct numbers {
    double factor, lr, decay;
    double old,
        fresh; /* the velocity becomes old v + fresh d; what the first step finds there, a NaN perhaps, is not read */
    double ahead, direct; /* the step is lr (direct d + ahead v) */
} numbers;

#define SGD(plain, first, later, T)                                                                                    \
    WFI_CLONES static void plain(const void *arg, const wfi_span *span)                                                \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, factor = (T)n->factor, lr = (T)n->lr, decay = (T)n->decay;                                   \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++)                                                                      \
            to[i] = p[i] - lr * (factor * g[i] + decay * p[i]);                                                        \
    }                                                                                                                  \
    WFI_CLONES static void first(const void *arg, const wfi_span *span)                                                \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict v = span->slots[0], factor = (T)n->factor, lr = (T)n->lr, decay = (T)n->decay;     \
        T ahead = (T)n->ahead, direct = (T)n->direct;                                                                  \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i];                                                                        \
            v[i] = d;                                                                                                  \
            to[i] = p[i] - lr * (direct * d + ahead * d);                                                              \
        }                                                                                                              \
    }                                                                                                                  \
    WFI_CLONES static void later(const void *arg, const wfi_span *span)                                                \
    {                                                                                                                  \
        const numbers *n = arg;                                                                                        \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict v = span->slots[0], factor = (T)n->factor, lr = (T)n->lr, decay = (T)n->decay;     \
        T old = (T)n->old, fresh = (T)n->fresh, ahead = (T)n->ahead, direct = (T)n->direct;                            \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i], u = old * v[i] + fresh * d;                                            \
            v[i] = u;                                                                                                  \
            to[i] = p[i] - lr * (direct * d + ahead * u);                                                              \
        }                                                                                                              \
    }
SGD(plain_f32, first_f32, later_f32, float)
SGD(plain_f64, first_f64, later_f64, double)

weft_status wfi_sgd_step(const wfi_update *update, const wfi_sgd *how)
{
    numbers n = {update->factor,     how->lr,
                 how->weight_decay,  how->momentum,
                 1 - how->dampening, how->nesterov ? how->momentum : 1,
                 how->nesterov};
    if (how->momentum == 0)
        return WFI_UPDATE_RUN(update, n, 0, plain_f32, plain_f64, WFI_GPU_SGD_PLAIN);
    if (update->step == 1)
        return WFI_UPDATE_RUN(update, n, 1, first_f32, first_f64, WFI_GPU_SGD_FIRST);
    return WFI_UPDATE_RUN(update, n, 1, later_f32, later_f64, WFI_GPU_SGD);
}
