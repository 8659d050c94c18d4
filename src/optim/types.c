/* SPDX-License-Identifier: Apache-2.0 */
/*
 * types.c - weft's own types of optimizers (weft/optimizer_type.h): their options and defaults, the state that they
 * keep for each parameter, and their step. Names and defaults are PyTorch's. tensor/cpu/optim/optim.h says what the
 * slots hold, algorithms.c beside it has the formulas. rules.c lists the types.
 */
#include "optim/rules.h"

#include <math.h>

/* ---- SGD --------------------------------------------------------------------------------------------------------- */

static weft_sgd_options sgd_options(const double *o)
{
    return (weft_sgd_options){.momentum = o[0], .dampening = o[1], .weight_decay = o[2], .nesterov = o[3] != 0};
}

static weft_error *sgd_check(double lr, const double *options)
{
    weft_sgd_options o = sgd_options(options);
    (void)lr;
    if (o.nesterov && o.momentum == 0)
        return wfi_bad_option("SGD", "momentum", o.momentum, "positive with nesterov");
    if (o.nesterov && o.dampening != 0)
        return wfi_bad_option("SGD", "dampening", o.dampening, "0 with nesterov");
    return NULL;
}

static weft_status sgd_step(const weft_optimizer_update *update)
{
    weft_sgd_options o = sgd_options(update->options);
    wfi_sgd how = {update->lr, o.momentum, o.dampening, o.weight_decay, o.nesterov};
    wfi_sparse_rows rows;
    wfi_update u = wfi_optimizer_kernel_update(update, &rows);
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
    .check = sgd_check,
    .step = sgd_step,
};

/* ---- Adam, AdamW ------------------------------------------------------------------------------------------------- */

static weft_status adam(const weft_optimizer_update *update, bool decoupled)
{
    const double *o = update->options;
    wfi_adam how = {.lr = update->lr,
                    .beta1 = o[0],
                    .beta2 = o[1],
                    .eps = o[2],
                    .weight_decay = o[3],
                    .amsgrad = o[4] != 0,
                    .decoupled = decoupled};
    wfi_sparse_rows rows;
    wfi_update u = wfi_optimizer_kernel_update(update, &rows);
    return wfi_adam_step(&u, &how);
}

static weft_status adam_step(const weft_optimizer_update *update)
{
    return adam(update, false);
}

static weft_status adamw_step(const weft_optimizer_update *update)
{
    return adam(update, true);
}

#define ADAM_OPTIONS                                                                                                   \
    {                                                                                                                  \
        {"beta1", 0.9, .max = 1, .open = true}, {"beta2", 0.999, .max = 1, .open = true},                              \
            {"eps", 1e-8, .max = INFINITY}, {"weight_decay", .max = INFINITY, .dense_only = true},                     \
        {                                                                                                              \
            "amsgrad", .flag = true                                                                                    \
        }                                                                                                              \
    }
#define ADAM_SLOTS                                                                                                     \
    {                                                                                                                  \
        {"exp_avg"}, {"exp_avg_sq"},                                                                                   \
        {                                                                                                              \
            "max_exp_avg_sq", .needs = "amsgrad"                                                                       \
        }                                                                                                              \
    }
const weft_optimizer_type weft_adam_type = {
    .name = "Adam", .lr = 1e-3, .options = ADAM_OPTIONS, .slots = ADAM_SLOTS, .sparse = true, .step = adam_step};
const weft_optimizer_type weft_adamw_type = {
    .name = "AdamW", .lr = 1e-3, .options = ADAM_OPTIONS, .slots = ADAM_SLOTS, .sparse = true, .step = adamw_step};

/* ---- Adamax ------------------------------------------------------------------------------------------------------ */

static weft_status adamax_step(const weft_optimizer_update *update)
{
    const weft_adamax_options *o = (const void *)update->options;
    wfi_adamax how = {update->lr, o->beta1, o->beta2, o->eps, o->weight_decay};
    wfi_sparse_rows rows;
    wfi_update u = wfi_optimizer_kernel_update(update, &rows);
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
    .step = adamax_step,
};

/* ---- Adagrad ----------------------------------------------------------------------------------------------------- */

static weft_status adagrad_step(const weft_optimizer_update *update)
{
    const weft_adagrad_options *o = (const void *)update->options;
    wfi_adagrad how = {update->lr, o->lr_decay, o->eps, o->weight_decay};
    wfi_sparse_rows rows;
    wfi_update u = wfi_optimizer_kernel_update(update, &rows);
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
    .step = adagrad_step,
};

/* ---- Adadelta ---------------------------------------------------------------------------------------------------- */

static weft_status adadelta_step(const weft_optimizer_update *update)
{
    const weft_adadelta_options *o = (const void *)update->options;
    wfi_adadelta how = {update->lr, o->rho, o->eps, o->weight_decay};
    wfi_sparse_rows rows;
    wfi_update u = wfi_optimizer_kernel_update(update, &rows);
    return wfi_adadelta_step(&u, &how);
}

const weft_optimizer_type weft_adadelta_type = {
    .name = "Adadelta",
    .lr = 1,
    .options = {{"rho", 0.9, .max = 1, .open = true},
                {"eps", 1e-6, .max = INFINITY},
                {"weight_decay", .max = INFINITY}},
    .slots = {{"square_avg"}, {"acc_delta"}},
    .step = adadelta_step,
};

/* ---- RMSprop ----------------------------------------------------------------------------------------------------- */

static weft_status rmsprop_step(const weft_optimizer_update *update)
{
    const double *o = update->options;
    wfi_rmsprop how = {
        .lr = update->lr, .alpha = o[0], .eps = o[1], .weight_decay = o[2], .momentum = o[3], .centered = o[4] != 0};
    wfi_sparse_rows rows;
    wfi_update u = wfi_optimizer_kernel_update(update, &rows);
    if (!u.slots[1]) { /* without momentum: the kernel wants the mean in slot 1 */
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
    .step = rmsprop_step,
};

/* ---- Rprop ------------------------------------------------------------------------------------------------------- */

static weft_error *rprop_check(double lr, const double *options)
{
    const weft_rprop_options *o = (const void *)options;
    (void)lr;
    return o->step_max >= o->step_min
               ? NULL
               : wfi_bad_option("Rprop", "step_max", o->step_max, "finite and at least step_min");
}

static weft_status rprop_step(const weft_optimizer_update *update)
{
    const weft_rprop_options *o = (const void *)update->options;
    wfi_rprop how = {o->eta_minus, o->eta_plus, o->step_min, o->step_max};
    wfi_sparse_rows rows;
    wfi_update u = wfi_optimizer_kernel_update(update, &rows);
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
    .check = rprop_check,
    .step = rprop_step,
};
