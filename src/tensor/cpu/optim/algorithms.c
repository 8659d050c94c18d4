/* SPDX-License-Identifier: Apache-2.0 */
/*
 * algorithms.c - one step of each of weft's optimizers, as PyTorch defines it, in one pass over memory. Each function
 * wfi_NAME_step computes the constants of a step, and runs the loop for the dtype (update.h), or the GPU's kernel
 * (tensor/cuda/optim.cu). The kernel has the same expressions in the same order, so both give the same bits.
 *
 * p is the parameter, g the gradient, and d = factor g + decay p. decay is the weight decay; AdamW multiplies p by
 * `keep` instead, and Rprop has none. Comparisons are written so that a NaN reaches the parameter.
 */
#include "tensor/clones.h"
#include "tensor/cpu/optim/update.h"

#include <math.h>

/* ---- SGD --------------------------------------------------------------------------------------------------------- */

/*
 * v = momentum v + (1 - dampening) d; the first step sets v = d, and does not read what is there, perhaps a NaN;
 * p = p - lr v, with nesterov p - lr (d + momentum v); plain, without momentum: p - lr d;
 */
typedef struct sgd_numbers {
    double factor, lr, decay;
    double old, fresh;    /* v = old v + fresh d */
    double ahead, direct; /* p = p - lr (direct d + ahead v) */
} sgd_numbers;

#define SGD(plain, first, later, T)                                                                                    \
    WFI_CLONES static void plain(const void *arg, const wfi_span *span)                                                \
    {                                                                                                                  \
        const sgd_numbers *n = arg;                                                                                    \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, factor = (T)n->factor, lr = (T)n->lr, decay = (T)n->decay;                                   \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++)                                                                      \
            to[i] = p[i] - lr * (factor * g[i] + decay * p[i]);                                                        \
    }                                                                                                                  \
    WFI_CLONES static void first(const void *arg, const wfi_span *span)                                                \
    {                                                                                                                  \
        const sgd_numbers *n = arg;                                                                                    \
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
        const sgd_numbers *n = arg;                                                                                    \
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
SGD(sgd_plain_f32, sgd_first_f32, sgd_later_f32, float)
SGD(sgd_plain_f64, sgd_first_f64, sgd_later_f64, double)

weft_status wfi_sgd_step(const wfi_update *update, const wfi_sgd *how)
{
    sgd_numbers n = {update->factor,     how->lr,
                     how->weight_decay,  how->momentum,
                     1 - how->dampening, how->nesterov ? how->momentum : 1,
                     how->nesterov};
    if (how->momentum == 0)
        return WFI_UPDATE_RUN(update, n, 0, sgd_plain_f32, sgd_plain_f64, WFI_GPU_SGD_PLAIN);
    if (update->step == 1)
        return WFI_UPDATE_RUN(update, n, 1, sgd_first_f32, sgd_first_f64, WFI_GPU_SGD_FIRST);
    return WFI_UPDATE_RUN(update, n, 1, sgd_later_f32, sgd_later_f64, WFI_GPU_SGD);
}

/* ---- Adam, AdamW ------------------------------------------------------------------------------------------------- */

/*
 * m = m + (1 - beta1) (d - m), v = beta2 v + (1 - beta2) d^2; amsgrad: the largest v so far in the place of v;
 * p = keep p - rate m / (sqrt(v) + eps), where one division does both bias corrections;
 */
typedef struct adam_numbers {
    double factor, decay;
    double keep; /* AdamW: 1 - lr weight_decay; otherwise 1 */
    double beta2, fresh1, fresh2;
    double rate; /* lr sqrt(1 - beta2^step) / (1 - beta1^step) */
    double eps;  /* times sqrt(1 - beta2^step); on rows eps itself, as in SparseAdam */
} adam_numbers;

#define ADAM(adam, amsgrad, T, ROOT)                                                                                   \
    WFI_CLONES static void adam(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const adam_numbers *n = arg;                                                                                   \
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
        const adam_numbers *n = arg;                                                                                   \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict m = span->slots[0], *restrict v = span->slots[1], *restrict top = span->slots[2];  \
        T factor = (T)n->factor, decay = (T)n->decay, keep = (T)n->keep, fresh1 = (T)n->fresh1, beta2 = (T)n->beta2;   \
        T fresh2 = (T)n->fresh2, rate = (T)n->rate, eps = (T)n->eps;                                                   \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i], mean = m[i] + fresh1 * (d - m[i]);                                     \
            T square = beta2 * v[i] + fresh2 * d * d;                                                                  \
            T largest = square > top[i] || square != square ? square : top[i];                                         \
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
    adam_numbers n = {.factor = update->factor,
                      .decay = how->decoupled ? 0 : how->weight_decay,
                      .keep = how->decoupled ? 1 - how->lr * how->weight_decay : 1,
                      .beta2 = how->beta2,
                      .fresh1 = 1 - how->beta1,
                      .fresh2 = 1 - how->beta2,
                      .rate = how->lr * scale / (1 - pow(how->beta1, steps)),
                      .eps = !update->rows ? how->eps * scale : how->eps};
    if (how->amsgrad)
        return WFI_UPDATE_RUN(update, n, 3, amsgrad_f32, amsgrad_f64, WFI_GPU_AMSGRAD);
    return WFI_UPDATE_RUN(update, n, 2, adam_f32, adam_f64, WFI_GPU_ADAM);
}

/* ---- Adamax ------------------------------------------------------------------------------------------------------ */

/* m = m + (1 - beta1) (d - m), u = max(beta2 u, |d| + eps), p = p - rate m / u; */
typedef struct adamax_numbers {
    double factor, decay;
    double fresh, beta2;
    double rate; /* lr / (1 - beta1^step) */
    double eps;
} adamax_numbers;

#define ADAMAX(name, T, ABSOLUTE)                                                                                      \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const adamax_numbers *n = arg;                                                                                 \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict m = span->slots[0], *restrict u = span->slots[1];                                  \
        T factor = (T)n->factor, decay = (T)n->decay, fresh = (T)n->fresh, beta2 = (T)n->beta2;                        \
        T rate = (T)n->rate, eps = (T)n->eps;                                                                          \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i] + decay * p[i], mean = m[i] + fresh * (d - m[i]);                                      \
            T old = beta2 * u[i], now = ABSOLUTE(d) + eps;                                                             \
            T largest = old > now || old != old ? old : now;                                                           \
            m[i] = mean;                                                                                               \
            u[i] = largest;                                                                                            \
            to[i] = p[i] - rate * mean / largest;                                                                      \
        }                                                                                                              \
    }
ADAMAX(adamax_f32, float, fabsf)
ADAMAX(adamax_f64, double, fabs)

weft_status wfi_adamax_step(const wfi_update *update, const wfi_adamax *how)
{
    adamax_numbers n = {update->factor,
                        how->weight_decay,
                        1 - how->beta1,
                        how->beta2,
                        how->lr / (1 - pow(how->beta1, (double)update->step)),
                        how->eps};
    return WFI_UPDATE_RUN(update, n, 2, adamax_f32, adamax_f64, WFI_GPU_ADAMAX);
}

/* ---- Adagrad ----------------------------------------------------------------------------------------------------- */

/* s = s + d^2, p = p - rate d / (sqrt(s) + eps); */
typedef struct adagrad_numbers {
    double factor, decay;
    double rate; /* lr / (1 + (step - 1) lr_decay) */
    double eps;
} adagrad_numbers;

#define ADAGRAD(name, T, ROOT)                                                                                         \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const adagrad_numbers *n = arg;                                                                                \
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
    adagrad_numbers n = {update->factor, how->weight_decay, how->lr / (1 + (double)(update->step - 1) * how->lr_decay),
                         how->eps};
    return WFI_UPDATE_RUN(update, n, 1, adagrad_f32, adagrad_f64, WFI_GPU_ADAGRAD);
}

/* ---- Adadelta ---------------------------------------------------------------------------------------------------- */

/* s = rho s + (1 - rho) d^2, step = sqrt(u + eps) / sqrt(s + eps) d, u = rho u + (1 - rho) step^2, p = p - lr step; */
typedef struct adadelta_numbers {
    double factor, decay;
    double rho, fresh;
    double lr, eps;
} adadelta_numbers;

#define ADADELTA(name, T, ROOT)                                                                                        \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const adadelta_numbers *n = arg;                                                                               \
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
    adadelta_numbers n = {update->factor, how->weight_decay, how->rho, 1 - how->rho, how->lr, how->eps};
    return WFI_UPDATE_RUN(update, n, 2, adadelta_f32, adadelta_f64, WFI_GPU_ADADELTA);
}

/* ---- RMSprop ----------------------------------------------------------------------------------------------------- */

/*
 * s = alpha s + (1 - alpha) d^2; centered: m = alpha m + (1 - alpha) d, and s - m^2 in the place of s;
 * step = d / (sqrt(s) + eps); with momentum: v = momentum v + step, and v in the place of step; p = p - lr step;
 */
typedef struct rmsprop_numbers {
    double factor, decay;
    double alpha, fresh;
    double momentum, lr, eps;
} rmsprop_numbers;

/* CENTERED, MOMENTUM: 0 or 1. Slots: the mean square; the velocity, with MOMENTUM; the mean, with CENTERED. */
#define RMSPROP(name, T, ROOT, CENTERED, MOMENTUM)                                                                     \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const rmsprop_numbers *n = arg;                                                                                \
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
RMSPROP(rmsprop_f32, float, sqrtf, 0, 0)
RMSPROP(rmsprop_f64, double, sqrt, 0, 0)
RMSPROP(rmsprop_momentum_f32, float, sqrtf, 0, 1)
RMSPROP(rmsprop_momentum_f64, double, sqrt, 0, 1)
RMSPROP(rmsprop_centered_f32, float, sqrtf, 1, 0)
RMSPROP(rmsprop_centered_f64, double, sqrt, 1, 0)
RMSPROP(rmsprop_both_f32, float, sqrtf, 1, 1)
RMSPROP(rmsprop_both_f64, double, sqrt, 1, 1)

weft_status wfi_rmsprop_step(const wfi_update *update, const wfi_rmsprop *how)
{
    rmsprop_numbers n = {update->factor, how->weight_decay, how->alpha, 1 - how->alpha,
                         how->momentum,  how->lr,           how->eps};
    if (how->momentum > 0)
        return how->centered
                   ? WFI_UPDATE_RUN(update, n, 3, rmsprop_both_f32, rmsprop_both_f64, WFI_GPU_RMSPROP_BOTH)
                   : WFI_UPDATE_RUN(update, n, 2, rmsprop_momentum_f32, rmsprop_momentum_f64, WFI_GPU_RMSPROP_MOMENTUM);
    return how->centered
               ? WFI_UPDATE_RUN(update, n, 2, rmsprop_centered_f32, rmsprop_centered_f64, WFI_GPU_RMSPROP_CENTERED)
               : WFI_UPDATE_RUN(update, n, 1, rmsprop_f32, rmsprop_f64, WFI_GPU_RMSPROP);
}

/* ---- Rprop ------------------------------------------------------------------------------------------------------- */

/*
 * The step size of an element grows while its gradient keeps its sign (d last > 0), and shrinks when it turns; then the
 * parameter stays, and the next step counts as the first: last = 0. p = p - sign(d) size;
 */
typedef struct rprop_numbers {
    double factor;
    double shorter, longer, shortest, longest;
} rprop_numbers;

#define RPROP(name, T)                                                                                                 \
    WFI_CLONES static void name(const void *arg, const wfi_span *span)                                                 \
    {                                                                                                                  \
        const rprop_numbers *n = arg;                                                                                  \
        const T *p = span->from, *restrict g = span->gradient;                                                         \
        T *to = span->to, *restrict last = span->slots[0], *restrict size = span->slots[1];                            \
        T factor = (T)n->factor, shorter = (T)n->shorter, longer = (T)n->longer;                                       \
        T shortest = (T)n->shortest, longest = (T)n->longest;                                                          \
        WFI_ELEMENTWISE                                                                                                \
        for (int64_t i = 0; i < span->count; i++) {                                                                    \
            T d = factor * g[i], turn = d * last[i];                                                                   \
            T step = size[i] * (turn > 0 ? longer : turn < 0 ? shorter : 1 + turn);                                    \
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
    rprop_numbers n = {update->factor, how->eta_minus, how->eta_plus, how->step_min, how->step_max};
    return WFI_UPDATE_RUN(update, n, 2, rprop_f32, rprop_f64, WFI_GPU_RPROP);
}
