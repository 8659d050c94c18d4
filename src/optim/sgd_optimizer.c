/* SPDX-License-Identifier: Apache-2.0 */
/* sgd_optimizer.c - stochastic gradient descent: one slot, the velocity, where there is momentum. */
#include "optim/optim.h"

#include "base/text/log.h"
#include "tensor/cpu/optim/optim.h"

#include <math.h>

typedef struct sgd {
    weft_optimizer base;
    weft_sgd_options options; /* but for the rate, which the base has */
} sgd;

static weft_status sgd_step(const weft_optimizer *optimizer, weft_tensor *parameter, const weft_tensor *gradient,
                            weft_tensor *const *slots, uint64_t before)
{
    const weft_sgd_options *o = &((const sgd *)optimizer)->options;
    wfi_sgd how = {optimizer->lr, o->momentum, o->dampening, o->weight_decay, o->nesterov, before == 0};
    return wfi_sgd_step(parameter, gradient, o->momentum > 0 ? slots[0] : NULL, &how);
}

static const wfi_optimizer_rule sgd_rule = {.name = "SGD", .size = sizeof(sgd), .step = sgd_step};

static bool is_option(const weft_sgd_options *o)
{
    return o->momentum >= 0 && o->weight_decay >= 0 && isfinite(o->dampening) &&
           (!o->nesterov || (o->momentum > 0 && o->dampening == 0));
}

weft_optimizer *weft_sgd_create(weft_tensors parameters, const weft_sgd_options *options)
{
    if (options == NULL || !is_option(options)) {
        wfi_log(WEFT_LOG_DEBUG, "no SGD: bad options");
        return NULL;
    }
    weft_optimizer *optimizer =
        wfi_optimizer_create(&sgd_rule, parameters, options->lr, options->average, options->pin_timeout_ms);
    if (optimizer == NULL)
        return NULL;
    optimizer->slot_count = options->momentum > 0 ? 1 : 0;
    ((sgd *)optimizer)->options = *options;
    return optimizer;
}
