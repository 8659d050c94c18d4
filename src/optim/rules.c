/* SPDX-License-Identifier: Apache-2.0 */
/* rules.c - the table of the kinds, and the options that they have in common. */
#include "optim/rules.h"

const wfi_optimizer_rule *wfi_optimizer_rule_of(weft_optimizer_kind kind)
{
    switch (kind) {
    case WEFT_OPTIMIZER_SGD:
        return &wfi_sgd_rule;
    case WEFT_OPTIMIZER_ADAM:
        return &wfi_adam_rule;
    case WEFT_OPTIMIZER_ADAMW:
        return &wfi_adamw_rule;
    case WEFT_OPTIMIZER_ADAGRAD:
        return &wfi_adagrad_rule;
    case WEFT_OPTIMIZER_RMSPROP:
        return &wfi_rmsprop_rule;
    case WEFT_OPTIMIZER_RPROP:
        return &wfi_rprop_rule;
    case WEFT_OPTIMIZER_ADADELTA:
        return &wfi_adadelta_rule;
    case WEFT_OPTIMIZER_ADAMAX:
        return &wfi_adamax_rule;
    }
    return NULL;
}

weft_error *wfi_spec_complete(weft_optimizer_spec *spec)
{
    const wfi_optimizer_rule *rule = wfi_optimizer_rule_of(spec->kind);
    if (rule == NULL)
        return weft_error_create(WEFT_ERR_INVALID, "there is no optimizer of kind %d", (int)spec->kind);
    weft_error *error = rule->complete(spec);
    if (error != NULL)
        return error;
    wfi_common_options common = rule->common(spec);
    if (!wfi_is_not_negative(*common.lr))
        return wfi_bad_option(rule->name, "lr", *common.lr, "finite and not negative");
    spec->has_lr = true;
    if (!wfi_is_not_negative(common.max_norm))
        return wfi_bad_option(rule->name, "max_norm", common.max_norm, "finite and not negative");
    if (common.pin_timeout_ms < WEFT_FOREVER)
        return wfi_bad_option(rule->name, "pin_timeout_ms", (double)common.pin_timeout_ms,
                              "WEFT_FOREVER (-1) or not negative");
    if (spec->update != WEFT_UPDATE_IN_PLACE && spec->update != WEFT_UPDATE_BESIDE)
        return weft_error_create(WEFT_ERR_INVALID, "%s: there is no update %d", rule->name, (int)spec->update);
    return NULL;
}
