/* SPDX-License-Identifier: Apache-2.0 */
/* rules.h - the kinds of optimizers: what each makes of its options, what it keeps for a parameter, and its step. */
#ifndef WFI_OPTIM_RULES_H
#define WFI_OPTIM_RULES_H

#include "tensor/cpu/optim/optim.h"

#include <weft/optim.h>

/* Where a spec has the options that all kinds have. */
typedef struct wfi_common_options {
    double *lr;
    bool average, maximize;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} wfi_common_options;

/* A slot: its name in PyTorch's state dicts, and what its elements are before the first step. NULL ends a list of them. */
typedef struct wfi_slot {
    const char *name;
    double initial;
} wfi_slot;

typedef struct wfi_optimizer_rule {
    const char *name; /* for messages */
    /* Fills in defaults; the first option that is wrong, or NULL. The rate and the other common ones are the caller's to check. */
    weft_error *(*complete)(weft_optimizer_spec *spec);
    wfi_common_options (*common)(weft_optimizer_spec *spec);
    /* These see complete specs. */
    void (*slots)(const weft_optimizer_spec *spec, wfi_slot slots[WFI_STEP_SLOTS + 1]);
    /* The option that forbids sparse gradients, or NULL. Itself NULL: the kind takes none. */
    const char *(*not_sparse)(const weft_optimizer_spec *spec);
    weft_status (*step)(const weft_optimizer_spec *spec, const wfi_update *update);
    bool counts; /* its state has the number of steps */
} wfi_optimizer_rule;

extern const wfi_optimizer_rule wfi_sgd_rule, wfi_adam_rule, wfi_adamw_rule, wfi_adagrad_rule, wfi_rmsprop_rule,
    wfi_rprop_rule, wfi_adadelta_rule, wfi_adamax_rule;

const wfi_optimizer_rule *wfi_optimizer_rule_of(weft_optimizer_kind kind); /* NULL: there is no such kind */

/* Completes a spec and checks it all. NULL: it is right. */
weft_error *wfi_spec_complete(weft_optimizer_spec *spec);

static inline wfi_common_options wfi_spec_common(const weft_optimizer_spec *spec)
{
    return wfi_optimizer_rule_of(spec->kind)->common((weft_optimizer_spec *)spec);
}

/* option.c */
bool wfi_is_positive(double number);     /* and finite */
bool wfi_is_not_negative(double number); /* and finite */
bool wfi_is_share(double number);        /* between 0 and 1 */
weft_error *wfi_bad_option(const char *kind, const char *option, double value, const char *must);
double wfi_or_else(double given, double otherwise); /* `otherwise` for 0 */
/* The learning rate of a spec whose option lr is `given`: `otherwise` for 0, unless the spec has has_lr. */
double wfi_lr_or_else(const weft_optimizer_spec *spec, double given, double otherwise);
/* The factor by which gradients of this norm are multiplied, so that their norm is at most max_norm, as by PyTorch's
 * clip_grad_norm_. A norm that is NaN gives NaN. */
double wfi_clip_factor(double norm, double max_norm);

#endif
