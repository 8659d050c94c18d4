/* SPDX-License-Identifier: Apache-2.0 */
/* adadelta_optimizer.c - Adadelta: the running means of the squares of gradients and of steps. */
#include "optim/rules.h"

#include <math.h>

static weft_status step(const weft_optimizer_update *update)
{
    const weft_adadelta_options *o = (const void *)update->options;
    wfi_adadelta how = {update->lr, o->rho, o->eps, o->weight_decay};
    wfi_gradient_rows rows;
    wfi_update u = wfi_update_of(update, &rows);
    return wfi_adadelta_step(&u, &how);
}

const weft_optimizer_type weft_adadelta_type = {
    .name = "Adadelta",
    .lr = 1,
    .options = {{"rho", 0.9, .max = 1, .open = true},
                {"eps", 1e-6, .max = INFINITY},
                {"weight_decay", .max = INFINITY}},
    .slots = {{"square_avg"}, {"acc_delta"}},
    .step = step,
};
