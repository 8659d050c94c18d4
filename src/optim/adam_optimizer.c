/* SPDX-License-Identifier: Apache-2.0 */
/* adam_optimizer.c - Adam and AdamW: the running means of the gradient and of its square, and the largest of those for AMSGrad. */
#include "optim/rules.h"

#include <math.h>

static weft_status step(const weft_optimizer_update *update, bool decoupled)
{
    const weft_adam_options *o = (const void *)update->options;
    wfi_adam how = {update->lr, o->beta1, o->beta2, o->eps, o->weight_decay, decoupled, o->amsgrad != 0};
    wfi_gradient_rows rows;
    wfi_update u = wfi_update_of(update, &rows);
    return wfi_adam_step(&u, &how);
}

static weft_status adam_step(const weft_optimizer_update *update)
{
    return step(update, false);
}

static weft_status adamw_step(const weft_optimizer_update *update)
{
    return step(update, true);
}

#define OPTIONS                                                                                                        \
    {                                                                                                                  \
        {"beta1", 0.9, .max = 1, .open = true}, {"beta2", 0.999, .max = 1, .open = true},                              \
            {"eps", 1e-8, .max = INFINITY}, {"weight_decay", .max = INFINITY, .dense_only = true},                     \
        {                                                                                                              \
            "amsgrad", .flag = true                                                                                    \
        }                                                                                                              \
    }
#define SLOTS                                                                                                          \
    {                                                                                                                  \
        {"exp_avg"}, {"exp_avg_sq"},                                                                                   \
        {                                                                                                              \
            "max_exp_avg_sq", .needs = "amsgrad"                                                                       \
        }                                                                                                              \
    }
const weft_optimizer_type weft_adam_type = {
    .name = "Adam", .lr = 1e-3, .options = OPTIONS, .slots = SLOTS, .sparse = true, .step = adam_step};
const weft_optimizer_type weft_adamw_type = {
    .name = "AdamW", .lr = 1e-3, .options = OPTIONS, .slots = SLOTS, .sparse = true, .step = adamw_step};
