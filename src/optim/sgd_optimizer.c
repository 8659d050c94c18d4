/* SPDX-License-Identifier: Apache-2.0 */
/* sgd_optimizer.c - stochastic gradient descent: one slot, the velocity, where there is momentum. */
#include "optim/rules.h"

#include <math.h>

static weft_error *complete(weft_optimizer_spec *spec)
{
    const weft_sgd_options *o = &spec->sgd;
    if (!wfi_is_not_negative(o->momentum))
        return wfi_bad_option("SGD", "momentum", o->momentum, "finite and not negative");
    if (!isfinite(o->dampening))
        return wfi_bad_option("SGD", "dampening", o->dampening, "finite");
    if (!wfi_is_not_negative(o->weight_decay))
        return wfi_bad_option("SGD", "weight_decay", o->weight_decay, "finite and not negative");
    if (o->nesterov && o->momentum == 0)
        return wfi_bad_option("SGD", "momentum", o->momentum, "positive with nesterov");
    if (o->nesterov && o->dampening != 0)
        return wfi_bad_option("SGD", "dampening", o->dampening, "0 with nesterov");
    return NULL;
}

static wfi_common_options common(weft_optimizer_spec *spec)
{
    weft_sgd_options *o = &spec->sgd;
    return (wfi_common_options){&o->lr, o->average, o->maximize, o->max_norm, o->error_if_nonfinite, o->pin_timeout_ms};
}

static void slots(const weft_optimizer_spec *spec, wfi_slot list[WFI_STEP_SLOTS + 1])
{
    list[0].name = spec->sgd.momentum > 0 ? "momentum_buffer" : NULL;
}

static const char *not_sparse(const weft_optimizer_spec *spec)
{
    if (spec->sgd.momentum > 0)
        return "momentum";
    return spec->sgd.weight_decay > 0 ? "weight_decay" : NULL;
}

static weft_status step(const weft_optimizer_spec *spec, const wfi_update *update)
{
    const weft_sgd_options *o = &spec->sgd;
    wfi_sgd how = {o->lr, o->momentum, o->dampening, o->weight_decay, o->nesterov};
    return wfi_sgd_step(update, &how);
}

const wfi_optimizer_rule wfi_sgd_rule = {
    .name = "SGD", .complete = complete, .common = common, .slots = slots, .not_sparse = not_sparse, .step = step};
