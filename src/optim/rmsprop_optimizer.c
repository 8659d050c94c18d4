/* SPDX-License-Identifier: Apache-2.0 */
/* rmsprop_optimizer.c - RMSprop: the running mean of the squared gradient; a velocity, with momentum; the mean of the gradient, if centered. */
#include "optim/rules.h"

#include <math.h>

static weft_status step(const weft_optimizer_update *update)
{
    const weft_rmsprop_options *o = (const void *)update->options;
    wfi_rmsprop how = {update->lr, o->alpha, o->eps, o->weight_decay, o->momentum, o->centered != 0};
    wfi_gradient_rows rows;
    wfi_update u = wfi_update_of(update, &rows);
    if (u.slots[1] == NULL) { /* the kernel has no gap where there is no velocity */
        u.slots[1] = u.slots[2];
        u.slots[2] = NULL;
    }
    return wfi_rmsprop_step(&u, &how);
}

const weft_optimizer_type weft_rmsprop_type = {
    .name = "RMSprop",
    .lr = 1e-2,
    .options = {{"alpha", 0.99, .max = 1, .open = true},
                {"eps", 1e-8, .max = INFINITY},
                {"weight_decay", .max = INFINITY},
                {"momentum", .max = INFINITY},
                {"centered", .flag = true}},
    .slots = {{"square_avg"}, {"momentum_buffer", .needs = "momentum"}, {"grad_avg", .needs = "centered"}},
    .step = step,
};
