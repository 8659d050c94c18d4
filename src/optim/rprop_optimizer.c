/* SPDX-License-Identifier: Apache-2.0 */
/* rprop_optimizer.c - Rprop: the gradient before, and how long the next step of each element is. */
#include "optim/rules.h"

static weft_error *complete(weft_optimizer_spec *spec)
{
    weft_rprop_options *o = &spec->rprop;
    o->lr = wfi_lr_or_else(spec, o->lr, 1e-2);
    o->eta_minus = wfi_or_else(o->eta_minus, 0.5);
    o->eta_plus = wfi_or_else(o->eta_plus, 1.2);
    o->step_min = wfi_or_else(o->step_min, 1e-6);
    o->step_max = wfi_or_else(o->step_max, 50);
    if (!wfi_is_share(o->eta_minus))
        return wfi_bad_option("Rprop", "eta_minus", o->eta_minus, "between 0 and 1");
    if (!(o->eta_plus > 1) || !wfi_is_positive(o->eta_plus))
        return wfi_bad_option("Rprop", "eta_plus", o->eta_plus, "finite and above 1");
    if (!wfi_is_positive(o->step_min))
        return wfi_bad_option("Rprop", "step_min", o->step_min, "positive and finite");
    if (!(o->step_max >= o->step_min) || !wfi_is_positive(o->step_max))
        return wfi_bad_option("Rprop", "step_max", o->step_max, "finite and at least step_min");
    return NULL;
}

static wfi_common_options common(weft_optimizer_spec *spec)
{
    weft_rprop_options *o = &spec->rprop;
    return (wfi_common_options){&o->lr, o->average, o->maximize, o->max_norm, o->error_if_nonfinite, o->pin_timeout_ms};
}

static void slots(const weft_optimizer_spec *spec, wfi_slot list[WFI_STEP_SLOTS + 1])
{
    list[0].name = "prev";
    list[1] = (wfi_slot){"step_size", spec->rprop.lr};
}

static weft_status step(const weft_optimizer_spec *spec, const wfi_update *update)
{
    const weft_rprop_options *o = &spec->rprop;
    wfi_rprop how = {o->eta_minus, o->eta_plus, o->step_min, o->step_max};
    return wfi_rprop_step(update, &how);
}

const wfi_optimizer_rule wfi_rprop_rule = {
    .name = "Rprop", .complete = complete, .common = common, .slots = slots, .step = step, .counts = true};
