/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.h - what all optimizers share: parameters, gradient accumulators, and a rule that steps one parameter.
 *
 * To add an optimizer: a struct that begins with a weft_optimizer, a wfi_optimizer_rule with its step function, and a
 * constructor that calls wfi_optimizer_create (see sgd_optimizer.c). What the rule keeps for each parameter (momentum
 * and the like) are its slots.
 *
 * LOCKING. None: one thread at a time uses an optimizer; only `refs` is atomic. LIFETIME. It holds one reference to
 * each parameter, accumulator and slot.
 */
#ifndef WFI_OPTIM_H
#define WFI_OPTIM_H

#include "tensor/tensor.h"

#include <weft/optim.h>

#include <stdatomic.h>

#define WFI_OPTIMIZER_SLOTS 3

typedef struct wfi_optimizer_rule {
    const char *name; /* for messages */
    size_t size;      /* of the rule's own struct */
    /*
     * Steps one parameter in place; `before`: how often it was stepped already. `slots`: as many tensors as the optimizer has
     * slots, of the parameter's shape and dtype, zeros at the first step.
     */
    weft_status (*step)(const weft_optimizer *optimizer, weft_tensor *parameter, const weft_tensor *gradient,
                        weft_tensor *const *slots, uint64_t before);
} wfi_optimizer_rule;

struct weft_optimizer {
    _Atomic uint32_t refs;
    const wfi_optimizer_rule *rule;
    double lr;
    bool average;
    int64_t pin_timeout_ms;
    int slot_count; /* up to WFI_OPTIMIZER_SLOTS */
    size_t accumulated;
    size_t count;
    weft_tensor **parameters;                   /* one reference each */
    weft_tensor **accumulators;                 /* contiguous; made at first use */
    weft_tensor *(*slots)[WFI_OPTIMIZER_SLOTS]; /* made at the parameter's first step */
    uint64_t *steps;                            /* how many each parameter has taken */
};

/*
 * A new optimizer of that rule with one reference, its fields above filled in (slot_count 0), the rest of its struct zero.
 * NULL: memory is out, or a parameter or the pin timeout is wrong.
 */
weft_optimizer *wfi_optimizer_create(const wfi_optimizer_rule *rule, weft_tensors parameters, double lr, bool average,
                                     int64_t pin_timeout_ms);

bool wfi_is_rate(double lr); /* positive and finite */

#endif
