/* SPDX-License-Identifier: Apache-2.0 */
/* sgd_optimizer.c - stochastic gradient descent: one slot, the velocity, where there is momentum. */
#include "optim/rules.h"

#include <math.h>

static weft_error *check(double lr, const double *options)
{
    const weft_sgd_options *o = (const void *)options;
    (void)lr;
    if (o->nesterov != 0 && o->momentum == 0)
        return wfi_bad_option("SGD", "momentum", o->momentum, "positive with nesterov");
    if (o->nesterov != 0 && o->dampening != 0)
        return wfi_bad_option("SGD", "dampening", o->dampening, "0 with nesterov");
    return NULL;
}

static weft_status step(const weft_optimizer_update *update)
{
    const weft_sgd_options *o = (const void *)update->options;
    wfi_sgd how = {update->lr, o->momentum, o->dampening, o->weight_decay, o->nesterov != 0};
    wfi_gradient_rows rows;
    wfi_update u = wfi_update_of(update, &rows);
    return wfi_sgd_step(&u, &how);
}

const weft_optimizer_type weft_sgd_type = {
    .name = "SGD",
    .lr = 1e-3,
    .options = {{"momentum", .max = INFINITY, .dense_only = true},
                {"dampening"},
                {"weight_decay", .max = INFINITY, .dense_only = true},
                {"nesterov", .flag = true}},
    .slots = {{"momentum_buffer", .needs = "momentum"}},
    .uncounted = true,
    .sparse = true,
    .check = check,
    .step = step,
};
