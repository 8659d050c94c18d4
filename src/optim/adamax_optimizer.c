/* SPDX-License-Identifier: Apache-2.0 */
/* adamax_optimizer.c - Adamax: the running mean of the gradient, and the largest of its absolute values, which decays. */
#include "optim/rules.h"

static weft_error *complete(weft_optimizer_spec *spec)
{
    weft_adamax_options *o = &spec->adamax;
    o->lr = wfi_lr_or_else(spec, o->lr, 2e-3);
    o->beta1 = wfi_or_else(o->beta1, 0.9);
    o->beta2 = wfi_or_else(o->beta2, 0.999);
    o->eps = wfi_or_else(o->eps, 1e-8);
    if (!wfi_is_share(o->beta1))
        return wfi_bad_option("Adamax", "beta1", o->beta1, "between 0 and 1");
    if (!wfi_is_share(o->beta2))
        return wfi_bad_option("Adamax", "beta2", o->beta2, "between 0 and 1");
    if (!wfi_is_not_negative(o->eps))
        return wfi_bad_option("Adamax", "eps", o->eps, "finite and not negative");
    if (!wfi_is_not_negative(o->weight_decay))
        return wfi_bad_option("Adamax", "weight_decay", o->weight_decay, "finite and not negative");
    return NULL;
}

static wfi_common_options common(weft_optimizer_spec *spec)
{
    weft_adamax_options *o = &spec->adamax;
    return (wfi_common_options){&o->lr, o->average, o->maximize, o->max_norm, o->error_if_nonfinite, o->pin_timeout_ms};
}

static void slots(const weft_optimizer_spec *spec, wfi_slot list[WFI_STEP_SLOTS + 1])
{
    (void)spec;
    list[0].name = "exp_avg";
    list[1].name = "exp_inf";
}

static weft_status step(const weft_optimizer_spec *spec, const wfi_update *update)
{
    const weft_adamax_options *o = &spec->adamax;
    wfi_adamax how = {o->lr, o->beta1, o->beta2, o->eps, o->weight_decay};
    return wfi_adamax_step(update, &how);
}

const wfi_optimizer_rule wfi_adamax_rule = {
    .name = "Adamax", .complete = complete, .common = common, .slots = slots, .step = step, .counts = true};
