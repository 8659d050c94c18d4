/* SPDX-License-Identifier: Apache-2.0 */
/* adamax_optimizer.c - Adamax: the running mean of the gradient, and the largest of its absolute values, which decays. */
#include "optim/rules.h"

#include <math.h>

static weft_status step(const weft_optimizer_update *update)
{
    const weft_adamax_options *o = (const void *)update->options;
    wfi_adamax how = {update->lr, o->beta1, o->beta2, o->eps, o->weight_decay};
    wfi_gradient_rows rows;
    wfi_update u = wfi_update_of(update, &rows);
    return wfi_adamax_step(&u, &how);
}

const weft_optimizer_type weft_adamax_type = {
    .name = "Adamax",
    .lr = 2e-3,
    .options = {{"beta1", 0.9, .max = 1, .open = true},
                {"beta2", 0.999, .max = 1, .open = true},
                {"eps", 1e-8, .max = INFINITY},
                {"weight_decay", .max = INFINITY}},
    .slots = {{"exp_avg"}, {"exp_inf"}},
    .step = step,
};
