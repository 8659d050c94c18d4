/* SPDX-License-Identifier: Apache-2.0 */
/* adagrad_optimizer.c - Adagrad: one slot, the sum of the squares of all gradients. */
#include "optim/rules.h"

#include <math.h>

static weft_status step(const weft_optimizer_update *update)
{
    const weft_adagrad_options *o = (const void *)update->options;
    wfi_adagrad how = {update->lr, o->lr_decay, o->eps, o->weight_decay};
    wfi_gradient_rows rows;
    wfi_update u = wfi_update_of(update, &rows);
    return wfi_adagrad_step(&u, &how);
}

const weft_optimizer_type weft_adagrad_type = {
    .name = "Adagrad",
    .lr = 1e-2,
    .options = {{"lr_decay", .max = INFINITY},
                {"eps", 1e-10, .max = INFINITY},
                {"weight_decay", .max = INFINITY, .dense_only = true},
                {"initial_accumulator_value", .max = INFINITY}},
    .slots = {{"sum", .initial_of = "initial_accumulator_value"}},
    .sparse = true,
    .step = step,
};
