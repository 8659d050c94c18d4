/* SPDX-License-Identifier: Apache-2.0 */
/* adam_optimizer.c - Adam: the running means of the gradient and of its square, and the largest of those for AMSGrad. */
#include "optim/optim.h"

#include "base/text/log.h"
#include "tensor/cpu/optim/optim.h"

#include <math.h>

enum { MEAN, SQUARE, LARGEST };

typedef struct adam {
    weft_optimizer base;
    weft_adam_options options; /* with the defaults filled in; but for the rate, which the base has */
} adam;

static weft_status adam_step(const weft_optimizer *optimizer, weft_tensor *parameter, const weft_tensor *gradient,
                             weft_tensor *const *slots, uint64_t before)
{
    const weft_adam_options *o = &((const adam *)optimizer)->options;
    wfi_adam how = {optimizer->lr, o->beta1, o->beta2, o->eps, o->weight_decay, before + 1};
    return wfi_adam_step(parameter, gradient, slots[MEAN], slots[SQUARE], o->amsgrad ? slots[LARGEST] : NULL, &how);
}

static const wfi_optimizer_rule adam_rule = {.name = "Adam", .size = sizeof(adam), .step = adam_step};

static double or_else(double given, double otherwise)
{
    return given == 0 ? otherwise : given;
}

static weft_adam_options with_defaults(const weft_adam_options *options)
{
    weft_adam_options o = options == NULL ? (weft_adam_options){0} : *options;
    o.lr = or_else(o.lr, 1e-3);
    o.beta1 = or_else(o.beta1, 0.9);
    o.beta2 = or_else(o.beta2, 0.999);
    o.eps = or_else(o.eps, 1e-8);
    return o;
}

static bool is_option(const weft_adam_options *o)
{
    return o->beta1 > 0 && o->beta1 < 1 && o->beta2 > 0 && o->beta2 < 1 && o->eps > 0 && isfinite(o->eps) &&
           o->weight_decay >= 0 && isfinite(o->weight_decay);
}

weft_optimizer *weft_adam_create(weft_tensors parameters, const weft_adam_options *options)
{
    weft_adam_options o = with_defaults(options);
    if (!is_option(&o)) {
        wfi_log(WEFT_LOG_DEBUG, "no Adam: bad options");
        return NULL;
    }
    weft_optimizer *optimizer = wfi_optimizer_create(&adam_rule, parameters, o.lr, o.average, o.pin_timeout_ms);
    if (optimizer == NULL)
        return NULL;
    optimizer->slot_count = o.amsgrad ? 3 : 2;
    ((adam *)optimizer)->options = o;
    return optimizer;
}
