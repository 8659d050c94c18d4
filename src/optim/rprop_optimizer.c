/* SPDX-License-Identifier: Apache-2.0 */
/* rprop_optimizer.c - Rprop: the gradient before, and how long the next step of each element is. */
#include "optim/rules.h"

#include <math.h>

static weft_error *check(double lr, const double *options)
{
    const weft_rprop_options *o = (const void *)options;
    (void)lr;
    return o->step_max >= o->step_min
               ? NULL
               : wfi_bad_option("Rprop", "step_max", o->step_max, "finite and at least step_min");
}

static weft_status step(const weft_optimizer_update *update)
{
    const weft_rprop_options *o = (const void *)update->options;
    wfi_rprop how = {o->eta_minus, o->eta_plus, o->step_min, o->step_max};
    wfi_gradient_rows rows;
    wfi_update u = wfi_update_of(update, &rows);
    return wfi_rprop_step(&u, &how);
}

const weft_optimizer_type weft_rprop_type = {
    .name = "Rprop",
    .lr = 1e-2,
    .options = {{"eta_minus", 0.5, .max = 1, .open = true},
                {"eta_plus", 1.2, .min = 1, .max = INFINITY, .open = true},
                {"step_min", 1e-6, .max = INFINITY, .open = true},
                {"step_max", 50, .max = INFINITY, .open = true}},
    .slots = {{"prev"}, {"step_size", .initial_of = "lr"}},
    .check = check,
    .step = step,
};
