/* SPDX-License-Identifier: Apache-2.0 */
/* adam_optimizer.c - Adam and AdamW: the running means of the gradient and of its square, and the largest of those for AMSGrad. */
#include "optim/rules.h"

static weft_error *complete(weft_optimizer_spec *spec)
{
    const char *kind = spec->kind == WEFT_OPTIMIZER_ADAMW ? "AdamW" : "Adam";
    weft_adam_options *o = &spec->adam;
    o->lr = wfi_lr_or_else(spec, o->lr, 1e-3);
    o->beta1 = wfi_or_else(o->beta1, 0.9);
    o->beta2 = wfi_or_else(o->beta2, 0.999);
    o->eps = wfi_or_else(o->eps, 1e-8);
    if (!wfi_is_share(o->beta1))
        return wfi_bad_option(kind, "beta1", o->beta1, "between 0 and 1");
    if (!wfi_is_share(o->beta2))
        return wfi_bad_option(kind, "beta2", o->beta2, "between 0 and 1");
    if (!wfi_is_not_negative(o->eps))
        return wfi_bad_option(kind, "eps", o->eps, "finite and not negative");
    if (!wfi_is_not_negative(o->weight_decay))
        return wfi_bad_option(kind, "weight_decay", o->weight_decay, "finite and not negative");
    return NULL;
}

static wfi_common_options common(weft_optimizer_spec *spec)
{
    weft_adam_options *o = &spec->adam;
    return (wfi_common_options){&o->lr, o->average, o->maximize, o->max_norm, o->error_if_nonfinite, o->pin_timeout_ms};
}

static void slots(const weft_optimizer_spec *spec, wfi_slot list[WFI_STEP_SLOTS + 1])
{
    list[0].name = "exp_avg";
    list[1].name = "exp_avg_sq";
    list[2].name = spec->adam.amsgrad ? "max_exp_avg_sq" : NULL;
}

static const char *not_sparse(const weft_optimizer_spec *spec)
{
    return spec->adam.weight_decay > 0 ? "weight_decay" : NULL;
}

static weft_status step(const weft_optimizer_spec *spec, const wfi_update *update)
{
    const weft_adam_options *o = &spec->adam;
    wfi_adam how = {o->lr, o->beta1, o->beta2, o->eps, o->weight_decay, spec->kind == WEFT_OPTIMIZER_ADAMW, o->amsgrad};
    return wfi_adam_step(update, &how);
}

const wfi_optimizer_rule wfi_adam_rule = {.name = "Adam",
                                          .complete = complete,
                                          .common = common,
                                          .slots = slots,
                                          .not_sparse = not_sparse,
                                          .step = step,
                                          .counts = true};
const wfi_optimizer_rule wfi_adamw_rule = {.name = "AdamW",
                                           .complete = complete,
                                           .common = common,
                                           .slots = slots,
                                           .not_sparse = not_sparse,
                                           .step = step,
                                           .counts = true};
