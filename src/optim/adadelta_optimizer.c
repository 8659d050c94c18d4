/* SPDX-License-Identifier: Apache-2.0 */
/* adadelta_optimizer.c - Adadelta: the running means of the squares of gradients and of steps. */
#include "optim/rules.h"

static weft_error *complete(weft_optimizer_spec *spec)
{
    weft_adadelta_options *o = &spec->adadelta;
    o->lr = wfi_lr_or_else(spec, o->lr, 1);
    o->rho = wfi_or_else(o->rho, 0.9);
    o->eps = wfi_or_else(o->eps, 1e-6);
    if (!wfi_is_share(o->rho))
        return wfi_bad_option("Adadelta", "rho", o->rho, "between 0 and 1");
    if (!wfi_is_not_negative(o->eps))
        return wfi_bad_option("Adadelta", "eps", o->eps, "finite and not negative");
    if (!wfi_is_not_negative(o->weight_decay))
        return wfi_bad_option("Adadelta", "weight_decay", o->weight_decay, "finite and not negative");
    return NULL;
}

static wfi_common_options common(weft_optimizer_spec *spec)
{
    weft_adadelta_options *o = &spec->adadelta;
    return (wfi_common_options){&o->lr, o->average, o->maximize, o->max_norm, o->error_if_nonfinite, o->pin_timeout_ms};
}

static void slots(const weft_optimizer_spec *spec, wfi_slot list[WFI_STEP_SLOTS + 1])
{
    (void)spec;
    list[0].name = "square_avg";
    list[1].name = "acc_delta";
}

static weft_status step(const weft_optimizer_spec *spec, const wfi_update *update)
{
    const weft_adadelta_options *o = &spec->adadelta;
    wfi_adadelta how = {o->lr, o->rho, o->eps, o->weight_decay};
    return wfi_adadelta_step(update, &how);
}

const wfi_optimizer_rule wfi_adadelta_rule = {
    .name = "Adadelta", .complete = complete, .common = common, .slots = slots, .step = step, .counts = true};
