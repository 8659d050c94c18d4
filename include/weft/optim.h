/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/optim.h - optimizers: they add up gradients for a list of parameters, and update the parameters in place.
 *
 * Call weft_optimizer_accumulate any number of times, then weft_optimizer_step, which uses the sums and clears
 * them. Gradients are added in the order of the calls: the same order gives the same bits.
 *
 *     weft_status train(weft_tensors parameters, weft_tensors gradients)
 *     {
 *         weft_optimizer *sgd = weft_sgd_create(parameters, &(weft_sgd_options){.lr = 0.1, .momentum = 0.9});
 *         if (!sgd)
 *             return WEFT_ERR_INVALID;
 *         weft_status st = weft_optimizer_accumulate(sgd, gradients); // [i] has the shape of parameters[i]
 *         if (!st)
 *             st = weft_optimizer_step(sgd);
 *         weft_optimizer_unref(sgd);
 *         return st;
 *     }
 *
 * One thread at a time uses an optimizer. References may be taken and dropped on any thread.
 */
#ifndef WEFT_OPTIM_H
#define WEFT_OPTIM_H

#include <weft/tensor.h>

WEFT_BEGIN_C

typedef struct weft_sgd_options {
    double lr; /* the learning rate, > 0; no default */
    double momentum;
    double dampening;
    double weight_decay;
    bool nesterov;          /* needs momentum > 0 and dampening 0 */
    bool average;           /* a step divides the sum of the gradients by the number of accumulations */
    int64_t pin_timeout_ms; /* how long a step waits for transfers that read a parameter; 0: 60,000; or WEFT_FOREVER */
} weft_sgd_options;

/*
 * Stochastic gradient descent with momentum, by Sutskever, Martens, Dahl, Hinton (ICML 2013), in the form of
 * PyTorch's SGD:
 *   g += weight_decay p;  v = momentum v + (1 - dampening) g (v = g at the first step);  g = nesterov ? g + momentum v : v;
 *   p -= lr g.
 * Here p is a parameter, g the sum of its gradients, v its velocity. There must be at least one parameter, each
 * contiguous and float32 or float64; the optimizer holds references to them. NULL if memory is out or an
 * argument is wrong.
 */
WEFT_API weft_optimizer *weft_sgd_create(weft_tensors parameters, const weft_sgd_options *options);

typedef struct weft_adam_options { /* a zero field takes its default */
    double lr;                     /* 1e-3 */
    double beta1, beta2;           /* in (0, 1); 0.9 and 0.999 */
    double eps;                    /* 1e-8 */
    double weight_decay;           /* 0 */
    bool amsgrad;                  /* divides by the largest v so far: Reddi, Kale, Kumar (ICLR 2018) */
    bool average;                  /* as for SGD */
    int64_t pin_timeout_ms;        /* as for SGD */
} weft_adam_options;

/*
 * Adam, by Kingma, Ba (ICLR 2015), in the form of PyTorch's Adam; at step t, counted from 1:
 *   g += weight_decay p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *   p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps).
 * Parameters as for SGD; `options` NULL takes all defaults. NULL if memory is out or an argument is wrong.
 */
WEFT_API weft_optimizer *weft_adam_create(weft_tensors parameters, const weft_adam_options *options);

WEFT_API weft_optimizer *weft_optimizer_ref(weft_optimizer *optimizer);
WEFT_API void weft_optimizer_unref(weft_optimizer *optimizer);

/*
 * Adds gradients to the sums: one for each parameter, in the same order, with its dtype and shape and any
 * strides. The optimizer keeps no reference to them. WEFT_ERR_SHAPE (their number or a shape is wrong),
 * WEFT_ERR_TYPE, WEFT_ERR_INVALID (NULL), WEFT_ERR_MEMORY; then nothing has changed.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_accumulate(weft_optimizer *optimizer, weft_tensors gradients);
/* Tells whether weft_optimizer_accumulate would accept these gradients, with its codes. `error`, if not NULL,
 * receives what does not fit, with both shapes; you release it. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_check(const weft_optimizer *optimizer, weft_tensors gradients,
                                                         weft_error **error);
WEFT_API size_t weft_optimizer_accumulated(const weft_optimizer *optimizer); /* accumulations since the last step */

/*
 * Updates the parameters in place and clears the sums. Before it writes it waits until no transfer to another
 * worker reads a parameter. WEFT_ERR_TIMEOUT if one still does after pin_timeout_ms, WEFT_ERR_STATE if nothing
 * was accumulated; then nothing has changed.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_step(weft_optimizer *optimizer);
WEFT_API void weft_optimizer_zero(weft_optimizer *optimizer); /* clears the sums */

/*
 * Updates the parameters in place by gradients that you lend it until it returns: one for each parameter, in the
 * same order. It makes no sums, and leaves those of weft_optimizer_accumulate alone. A parameter whose gradient is
 * none keeps its value, and what the optimizer keeps for it. Waits and fails as weft_optimizer_step does, and as
 * weft_optimizer_accumulate does for gradients that do not fit; WEFT_ERR_UNSUPPORTED for sparse ones. On failure
 * nothing has changed.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_apply(weft_optimizer *optimizer, weft_gradients gradients);

WEFT_API WEFT_NODISCARD weft_status weft_optimizer_set_lr(weft_optimizer *optimizer, double lr); /* WEFT_ERR_INVALID */
WEFT_API double weft_optimizer_lr(const weft_optimizer *optimizer);
WEFT_API weft_tensors weft_optimizer_parameters(const weft_optimizer *optimizer); /* borrowed */

WEFT_END_C
#endif
