/* SPDX-License-Identifier: Apache-2.0 */
/* rmsprop_optimizer.c - RMSprop: the running mean of the squared gradient; a velocity, with momentum; the mean of the gradient, if centered. */
#include "optim/rules.h"

static weft_error *complete(weft_optimizer_spec *spec)
{
    weft_rmsprop_options *o = &spec->rmsprop;
    o->lr = wfi_lr_or_else(spec, o->lr, 1e-2);
    o->alpha = wfi_or_else(o->alpha, 0.99);
    o->eps = wfi_or_else(o->eps, 1e-8);
    if (!wfi_is_share(o->alpha))
        return wfi_bad_option("RMSprop", "alpha", o->alpha, "between 0 and 1");
    if (!wfi_is_not_negative(o->eps))
        return wfi_bad_option("RMSprop", "eps", o->eps, "finite and not negative");
    if (!wfi_is_not_negative(o->weight_decay))
        return wfi_bad_option("RMSprop", "weight_decay", o->weight_decay, "finite and not negative");
    if (!wfi_is_not_negative(o->momentum))
        return wfi_bad_option("RMSprop", "momentum", o->momentum, "finite and not negative");
    return NULL;
}

static wfi_common_options common(weft_optimizer_spec *spec)
{
    weft_rmsprop_options *o = &spec->rmsprop;
    return (wfi_common_options){&o->lr, o->average, o->maximize, o->max_norm, o->error_if_nonfinite, o->pin_timeout_ms};
}

static void slots(const weft_optimizer_spec *spec, wfi_slot list[WFI_STEP_SLOTS + 1])
{
    int next = 0;
    list[next++].name = "square_avg";
    if (spec->rmsprop.momentum > 0)
        list[next++].name = "momentum_buffer";
    if (spec->rmsprop.centered)
        list[next].name = "grad_avg";
}

static weft_status step(const weft_optimizer_spec *spec, const wfi_update *update)
{
    const weft_rmsprop_options *o = &spec->rmsprop;
    wfi_rmsprop how = {o->lr, o->alpha, o->eps, o->weight_decay, o->momentum, o->centered};
    return wfi_rmsprop_step(update, &how);
}

const wfi_optimizer_rule wfi_rmsprop_rule = {
    .name = "RMSprop", .complete = complete, .common = common, .slots = slots, .step = step, .counts = true};
