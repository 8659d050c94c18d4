/* SPDX-License-Identifier: Apache-2.0 */
/* adagrad_optimizer.c - Adagrad: one slot, the sum of the squares of all gradients. */
#include "optim/rules.h"

static weft_error *complete(weft_optimizer_spec *spec)
{
    weft_adagrad_options *o = &spec->adagrad;
    o->lr = wfi_lr_or_else(spec, o->lr, 1e-2);
    o->eps = wfi_or_else(o->eps, 1e-10);
    const struct {
        const char *name;
        double value;
    } all[] = {{"lr_decay", o->lr_decay},
               {"eps", o->eps},
               {"weight_decay", o->weight_decay},
               {"initial_accumulator_value", o->initial_accumulator_value}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!wfi_is_not_negative(all[i].value))
            return wfi_bad_option("Adagrad", all[i].name, all[i].value, "finite and not negative");
    return NULL;
}

static wfi_common_options common(weft_optimizer_spec *spec)
{
    weft_adagrad_options *o = &spec->adagrad;
    return (wfi_common_options){&o->lr, o->average, o->maximize, o->max_norm, o->error_if_nonfinite, o->pin_timeout_ms};
}

static void slots(const weft_optimizer_spec *spec, wfi_slot list[WFI_STEP_SLOTS + 1])
{
    list[0] = (wfi_slot){"sum", spec->adagrad.initial_accumulator_value};
}

static const char *not_sparse(const weft_optimizer_spec *spec)
{
    return spec->adagrad.weight_decay > 0 ? "weight_decay" : NULL;
}

static weft_status step(const weft_optimizer_spec *spec, const wfi_update *update)
{
    const weft_adagrad_options *o = &spec->adagrad;
    wfi_adagrad how = {o->lr, o->lr_decay, o->eps, o->weight_decay};
    return wfi_adagrad_step(update, &how);
}

const wfi_optimizer_rule wfi_adagrad_rule = {.name = "Adagrad",
                                             .complete = complete,
                                             .common = common,
                                             .slots = slots,
                                             .not_sparse = not_sparse,
                                             .step = step,
                                             .counts = true};
