/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.h - one step of an optimizer on one parameter, in place. The conventions are those of tensor/cpu/cpu.h; nothing is kept
 * between calls but in the tensors that are passed.
 */
#ifndef WFI_CPU_OPTIM_H
#define WFI_CPU_OPTIM_H

#include "tensor/tensor.h"

typedef struct wfi_sgd {
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
    bool first; /* the momentum buffer holds nothing yet: it becomes the gradient */
} wfi_sgd;
/* PyTorch's SGD. `velocity` may be NULL when momentum is 0. */
weft_status wfi_sgd_step(weft_tensor *parameter, const weft_tensor *gradient, weft_tensor *velocity,
                         const wfi_sgd *how);

typedef struct wfi_adam {
    double lr, beta1, beta2, eps, weight_decay;
    uint64_t step; /* which one this is; the first is 1 */
} wfi_adam;
/* PyTorch's Adam. `mean` and `square` (and `largest`, NULL without AMSGrad) are zeros before the first step. */
weft_status wfi_adam_step(weft_tensor *parameter, const weft_tensor *gradient, weft_tensor *mean, weft_tensor *square,
                          weft_tensor *largest, const wfi_adam *how);

#endif
