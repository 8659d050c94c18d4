/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/optim.h - optimizers, which update a list of parameters by their gradients: SGD, Adam, AdamW, Adagrad, RMSprop,
 * Rprop, Adadelta, Adamax, and custom types (weft/optimizer_type.h).
 *
 * weft_optimizer_apply steps with gradients that the caller lends. To add several gradients first, call
 * weft_optimizer_accumulate any number of times, then weft_optimizer_step, which uses the sums and clears them.
 * Gradients are added in the order of the calls, so the same order gives the same bits.
 *
 *     weft_status train(weft_tensors parameters, weft_gradients gradients)
 *     {
 *         weft_optimizer *sgd;
 *         weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 0.1, .sgd.momentum = 0.9};
 *         weft_status status = weft_optimizer_create(parameters, &spec, &sgd, NULL);
 *         if (status)
 *             return status;
 *         status = weft_optimizer_apply(sgd, gradients); // [i] belongs to parameters[i]
 *         weft_optimizer_unref(sgd);
 *         return status;
 *     }
 *
 * NO GRADIENT. If the gradient of a parameter is NULL, the parameter, its state and its step count do not change.
 *
 * SPARSE GRADIENTS (weft_gradient.rows) are added by row, in order, and change only the rows that they name. The rows
 * may be in any order. The description of each type says with which options it accepts sparse gradients; otherwise a
 * step fails with WEFT_ERR_UNSUPPORTED.
 *
 * CLIPPING. With max_norm > 0 all gradients of a step are multiplied by min(1, max_norm / (norm + 1e-6)), as by
 * PyTorch's clip_grad_norm_; `norm` is weft_gradients_norm. The caller's gradients are read twice and not changed. If
 * the norm is NaN, all parameters that have a gradient become NaN. If the norm is infinite, finite elements of the
 * gradients become 0 and infinite ones NaN. In both cases the step succeeds, as in PyTorch.
 *
 * With error_if_nonfinite, even without max_norm, a step whose norm is infinite or NaN fails with WEFT_ERR_INVALID and
 * changes nothing; weft_optimizer_norm then returns the norm. To skip that step and continue, call weft_optimizer_zero
 * if gradients were accumulated.
 *
 * UPDATES. A step updates parameters of modules in another way than plain tensors (weft_update).
 *
 * A module's parameter: if something holds its value (a record, another thread, a transfer to another worker), the
 * step writes the new value to other memory, which then replaces the old value (BESIDE). So other threads may use
 * the module during a step, a transfer sends one value and never a mixture, and each backward pass uses the values
 * that its forward pass read. This needs memory for a second copy of the parameter, and keeps old values as long as
 * records hold them. If nothing holds the value, the step overwrites it, and a thread that begins to read the
 * parameter waits until it has been stepped. With WEFT_UPDATE_BESIDE a step with a dense gradient always writes to
 * other memory, and no thread waits.
 *
 * A plain tensor is overwritten (IN PLACE). No other thread may use it during the step. Backward passes of records that
 * saved it fail with WEFT_ERR_STATE. With WEFT_UPDATE_IN_PLACE this holds for the parameters of modules too.
 *
 * THREADS. One thread at a time may use an optimizer. Any thread may take and drop references.
 */
#ifndef WEFT_OPTIM_H
#define WEFT_OPTIM_H

#include <weft/optimizer_type.h>
#include <weft/tensor.h>

WEFT_BEGIN_C

/* --- options --- */
/* How a step changes a parameter (UPDATES above). */
typedef enum weft_update {
    WEFT_UPDATE_DEFAULT = 0,  /* beside for a module's parameter whose value has other references; else in place */
    WEFT_UPDATE_IN_PLACE = 1, /* all in place */
    WEFT_UPDATE_BESIDE = 2,   /* all beside; WEFT_ERR_UNSUPPORTED for tensors that are not parameters of modules */
} weft_update;

/*
 * OPTIONS of one type each: numbers and flags. A number of 0 takes the default in its description, so an option whose
 * default is not 0 cannot be 0. The formulas are with the types, such as weft_sgd_type.
 */

typedef struct weft_sgd_options {
    double momentum;
    double dampening;
    double weight_decay;  /* weight_decay * p is added to the gradient, unless said otherwise */
    bool nesterov;        /* needs momentum > 0 and dampening 0 */
    uint64_t reserved[4]; /* 0: room for later fields */
} weft_sgd_options;

typedef struct weft_adam_options {
    double beta1, beta2;  /* in (0, 1); 0.9 and 0.999 */
    double eps;           /* 1e-8 */
    double weight_decay;  /* 0, for AdamW too, whose default in PyTorch is 0.01 */
    bool amsgrad;         /* divide by the largest v so far: Reddi, Kale, Kumar (ICLR 2018) */
    uint64_t reserved[4]; /* 0: room for later fields */
} weft_adam_options;

typedef struct weft_adagrad_options {
    double lr_decay;                  /* 0 */
    double eps;                       /* 1e-10 */
    double weight_decay;              /* 0 */
    double initial_accumulator_value; /* the first value of s, >= 0; 0 */
    uint64_t reserved[4];             /* 0: room for later fields */
} weft_adagrad_options;

typedef struct weft_rmsprop_options {
    double alpha;         /* in (0, 1); 0.99 */
    double eps;           /* 1e-8 */
    double weight_decay;  /* 0 */
    double momentum;      /* 0 */
    bool centered;        /* divide by the standard deviation: Graves (arXiv:1308.0850) */
    uint64_t reserved[4]; /* 0: room for later fields */
} weft_rmsprop_options;

typedef struct weft_rprop_options {
    double eta_minus, eta_plus; /* eta_minus in (0, 1), eta_plus above 1; 0.5 and 1.2 */
    double step_min, step_max;  /* 1e-6 and 50 */
    uint64_t reserved[4];       /* 0: room for later fields */
} weft_rprop_options;

typedef struct weft_adadelta_options {
    double rho;           /* in (0, 1); 0.9 */
    double eps;           /* 1e-6 */
    double weight_decay;  /* 0 */
    uint64_t reserved[4]; /* 0: room for later fields */
} weft_adadelta_options;

typedef struct weft_adamax_options {
    double beta1, beta2;  /* in (0, 1); 0.9 and 0.999 */
    double eps;           /* 1e-8 */
    double weight_decay;  /* 0 */
    uint64_t reserved[4]; /* 0: room for later fields */
} weft_adamax_options;

/*
 * The type and all options of an optimizer: plain data that may be copied. `update`, `average`, max_norm,
 * error_if_nonfinite and pin_timeout_ms are the same for all groups of an optimizer.
 *
 * Only the options of the spec's own type may be set: `sgd` for weft_sgd_type, `adam` for weft_adam_type and
 * weft_adamw_type, and so on, `own` for a custom type. Setting others is an error that names the option.
 */
typedef struct weft_optimizer_spec {
    const weft_optimizer_type *type; /* for example &weft_sgd_type; a custom type: weft/optimizer_type.h */
    double lr;                       /* the learning rate, finite and >= 0; 0 takes the default of the type */
    bool has_lr;                     /* use lr as it is, even if it is 0, as in a warm-up */
    bool maximize;                   /* ascend the gradient */
    bool average;                    /* weft_optimizer_step divides the sums by the number of accumulations */
    bool error_if_nonfinite;         /* fail if the norm of a step's gradients is infinite or NaN (CLIPPING) */
    double max_norm;                 /* above 0: clip the gradients of each step (CLIPPING) */
    weft_update update;
    int64_t pin_timeout_ms; /* how long a step in place waits for transfers that read a parameter; 0: 60,000; or
                               WEFT_FOREVER */
    weft_sgd_options sgd;
    weft_adam_options adam;
    weft_adagrad_options adagrad;
    weft_rmsprop_options rmsprop;
    weft_rprop_options rprop;
    weft_adadelta_options adadelta;
    weft_adamax_options adamax;
    double own[WEFT_OPTIMIZER_OPTIONS]; /* of a custom type, in the order of its options */
} weft_optimizer_spec;

/* --- weft's own types --- */
/*
 * Stochastic gradient descent with momentum (Sutskever, Martens, Dahl, Hinton, ICML 2013), as PyTorch's SGD; lr 1e-3.
 * Here p is a parameter, g the sum of its gradients, and v its velocity (state "momentum_buffer", with momentum):
 *
 *   g += weight_decay p;  v = momentum v + (1 - dampening) g (v = g at the first step);
 *   g = nesterov ? g + momentum v : v;  p -= lr g;
 *
 * Sparse gradients: without momentum and weight_decay.
 */
WEFT_API extern const weft_optimizer_type weft_sgd_type;

/*
 * Adam (Kingma, Ba, ICLR 2015), as PyTorch's Adam; lr 1e-3. In step t of a parameter, counted from 1:
 *
 *   g += weight_decay p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *   p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps);
 *
 * State: "step", "exp_avg" (m), "exp_avg_sq" (v), "max_exp_avg_sq" (the largest v so far, with amsgrad).
 *
 * Sparse gradients, without weight_decay, are applied as by PyTorch's SparseAdam ("lazy"). If a gradient does not name
 * a row, m and v of that row do not change, but t counts all steps of the parameter. eps is added to sqrt(v) before the
 * correction. With amsgrad the largest v is kept by row.
 */
WEFT_API extern const weft_optimizer_type weft_adam_type;

/* AdamW (Loshchilov, Hutter, ICLR 2019), as PyTorch's AdamW: p -= lr weight_decay p comes first, in place of Adam's
 * weight decay, which passes through m and v. Otherwise as Adam. */
WEFT_API extern const weft_optimizer_type weft_adamw_type;

/*
 * Adagrad (Duchi, Hazan, Singer, JMLR 2011), as PyTorch's Adagrad; lr 1e-2. In step t of a parameter, counted from 1:
 *
 *   g += weight_decay p;  s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps);
 *
 * State: "step", "sum" (s). Sparse gradients: without weight_decay; rows that they do not name are stepped with g = 0.
 */
WEFT_API extern const weft_optimizer_type weft_adagrad_type;

/*
 * RMSprop (Tieleman, Hinton, Coursera lecture 6.5, 2012), as PyTorch's RMSprop; lr 1e-2:
 *
 *   g += weight_decay p;  s = alpha s + (1 - alpha) g^2;  m = alpha m + (1 - alpha) g;
 *   d = g / (sqrt(centered ? s - m^2 : s) + eps);  v = momentum v + d;  p -= lr (momentum > 0 ? v : d);
 *
 * State: "step", "square_avg" (s), "momentum_buffer" (v, with momentum), "grad_avg" (m, if centered). Dense gradients
 * only.
 */
WEFT_API extern const weft_optimizer_type weft_rmsprop_type;

/*
 * Rprop, resilient backpropagation (Riedmiller, Braun, ICNN 1993), as PyTorch's Rprop. lr is the length of the first
 * step of each element; 1e-2. With g' the gradient of the last step:
 *
 *   l = min(step_max, max(step_min, l (g g' > 0 ? eta_plus : g g' < 0 ? eta_minus : 1)));
 *   if g g' < 0: g = 0;  p -= sign(g) l;  g' = g;
 *
 * State: "step", "prev" (g'), "step_size" (l, at first lr). A later change of lr affects only parameters that were
 * never stepped. Dense gradients only.
 */
WEFT_API extern const weft_optimizer_type weft_rprop_type;

/*
 * Adadelta (Zeiler, arXiv:1212.5701), as PyTorch's Adadelta; lr 1:
 *
 *   g += weight_decay p;  s = rho s + (1 - rho) g^2;
 *   d = sqrt(u + eps) / sqrt(s + eps) g;  u = rho u + (1 - rho) d^2;  p -= lr d;
 *
 * State: "step", "square_avg" (s), "acc_delta" (u). Dense gradients only.
 */
WEFT_API extern const weft_optimizer_type weft_adadelta_type;

/*
 * Adamax (Kingma, Ba, ICLR 2015, section 7.1), as PyTorch's Adamax; lr 2e-3. In step t of a parameter, counted from 1:
 *
 *   g += weight_decay p;  m = beta1 m + (1 - beta1) g;  u = max(beta2 u, |g| + eps);
 *   p -= lr / (1 - beta1^t) m / u;
 *
 * State: "step", "exp_avg" (m), "exp_inf" (u). Dense gradients only.
 */
WEFT_API extern const weft_optimizer_type weft_adamax_type;

/* --- making, and groups of parameters --- */
/*
 * Makes an optimizer; the parameters are its first group. There must be at least one parameter, and none may occur
 * twice. Each must be contiguous, and float32 or float64. It may be on a device. The optimizer references them. *error,
 * if `error` is not NULL, receives the wrong argument with its value; you release it. WEFT_ERR_INVALID (an option, the
 * type, no parameters, a parameter twice, NULL), WEFT_ERR_TYPE, WEFT_ERR_UNSUPPORTED (a parameter is not contiguous),
 * WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_create_sized(weft_tensors parameters,
                                                                const weft_optimizer_spec *spec, size_t size,
                                                                weft_optimizer **out, weft_error **error);
static inline WEFT_NODISCARD weft_status weft_optimizer_create(weft_tensors parameters, const weft_optimizer_spec *spec,
                                                               weft_optimizer **out, weft_error **error)
{
    return weft_optimizer_create_sized(parameters, spec, sizeof(*spec), out, error);
}

/*
 * Adds a group: further parameters with the options of `spec`. The type, `update`, `average`, max_norm,
 * error_if_nonfinite and pin_timeout_ms must be those of the first group. Groups are numbered from 0. In all lists the
 * new parameters follow the others. WEFT_ERR_STATE while gradients are accumulated; other errors and `error` as for
 * weft_optimizer_create. On failure nothing changes.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_add_group_sized(weft_optimizer *optimizer, weft_tensors parameters,
                                                                   const weft_optimizer_spec *spec, size_t size,
                                                                   weft_error **error);
static inline WEFT_NODISCARD weft_status weft_optimizer_add_group(weft_optimizer *optimizer, weft_tensors parameters,
                                                                  const weft_optimizer_spec *spec, weft_error **error)
{
    return weft_optimizer_add_group_sized(optimizer, parameters, spec, sizeof(*spec), error);
}
WEFT_API size_t weft_optimizer_group_count(const weft_optimizer *optimizer);
/* A group's parameters, borrowed until the next group is added; an empty list past the last group. */
WEFT_API weft_tensors weft_optimizer_group_parameters(const weft_optimizer *optimizer, size_t group);
/* A group's options: defaults are filled in, lr is the current rate, and has_lr is set. WEFT_ERR_INVALID past the last
 * group. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_get_spec_sized(const weft_optimizer *optimizer, size_t group,
                                                                  weft_optimizer_spec *spec, size_t size);
static inline WEFT_NODISCARD weft_status weft_optimizer_get_spec(const weft_optimizer *optimizer, size_t group,
                                                                 weft_optimizer_spec *spec)
{
    return weft_optimizer_get_spec_sized(optimizer, group, spec, sizeof(*spec));
}

WEFT_API weft_optimizer *weft_optimizer_ref(weft_optimizer *optimizer);
WEFT_API void weft_optimizer_unref(weft_optimizer *optimizer);

/* --- stepping --- */
/*
 * Updates the parameters by gradients that the caller lends until the function returns: one for each parameter, in the
 * same order, with its dtype and any strides. Sums of weft_optimizer_accumulate are neither used nor changed. Before a
 * step in place the function waits until no transfer to another worker reads the parameters. Errors:
 *   WEFT_ERR_SHAPE: the number of gradients or a shape is wrong.
 *   WEFT_ERR_TYPE: a dtype is wrong.
 *   WEFT_ERR_INVALID: NULL; a row outside the parameter; or, with error_if_nonfinite, a norm that is not finite.
 *   WEFT_ERR_UNSUPPORTED: a sparse gradient with options that do not allow it, or a gradient on another
 *     device than its parameter.
 *   WEFT_ERR_TIMEOUT: a transfer still reads a parameter after pin_timeout_ms.
 *   WEFT_ERR_MEMORY.
 * On failure no parameter and no state changes, with two exceptions. In both, the parameters before the failing one
 * have been stepped. First, if another thread begins to read a module's parameter during the step, the step may need
 * memory for its new value, and fail without it. Second, the step function of a custom type may fail. The log names
 * the mismatch, as weft_optimizer_check_gradients does.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_apply(weft_optimizer *optimizer, weft_gradients gradients);

/*
 * Waits until the GPUs have done the steps of the optimizer. On the CPU steps are done when they return. On a GPU, rows
 * of a sparse gradient are checked while the GPU steps, and a step ignores a row outside the parameter. This function
 * then returns WEFT_ERR_INVALID, and *error, if `error` is not NULL, receives the same text as
 * weft_optimizer_check_gradients would give on the CPU; you release it. If the program waits for the GPU in another
 * way before that, all further steps fail with WEFT_ERR_INVALID until weft_optimizer_wait has returned the error.
 * WEFT_ERR_SYSTEM.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_wait(weft_optimizer *optimizer, weft_error **error);

/*
 * Adds gradients to the sums: one for each parameter, in the same order, with its dtype and shape and any strides; NULL
 * adds nothing. The optimizer keeps no reference to them. WEFT_ERR_SHAPE (the number of gradients or a shape is wrong),
 * WEFT_ERR_TYPE, WEFT_ERR_INVALID (the optimizer is NULL), WEFT_ERR_MEMORY. On failure nothing changes.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_accumulate(weft_optimizer *optimizer, weft_tensors gradients);
WEFT_API size_t weft_optimizer_accumulated(const weft_optimizer *optimizer); /* accumulations since the last step */

/*
 * Updates the parameters by the sums, and clears the sums. A parameter that only received NULL has no gradient.
 * WEFT_ERR_STATE if nothing was accumulated. Otherwise it waits and fails like weft_optimizer_apply.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_step(weft_optimizer *optimizer);
WEFT_API void weft_optimizer_zero(weft_optimizer *optimizer); /* clears the sums */

/* Check whether weft_optimizer_accumulate, or weft_optimizer_apply, would accept these gradients, and return the error
 * that it would return. *error, if `error` is not NULL, receives the mismatch with both shapes; you release it. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_check(const weft_optimizer *optimizer, weft_tensors gradients,
                                                         weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_check_gradients(const weft_optimizer *optimizer,
                                                                   weft_gradients gradients, weft_error **error);

/*
 * The Euclidean norm of all gradients together, for your own clipping rules. Sparse gradients are first added by row.
 * The squares are added in float64, in an order that does not depend on the number of threads. Errors: WEFT_ERR_TYPE
 * (not float32 or float64; rows not int64), WEFT_ERR_SHAPE, WEFT_ERR_INVALID (rows without values, a negative row),
 * WEFT_ERR_UNSUPPORTED (on a device), WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_gradients_norm(weft_gradients gradients, double *norm);
/* The norm, before clipping, of the last step with max_norm or error_if_nonfinite, even if that step failed because of
 * the norm; 0 before the first such step. */
WEFT_API double weft_optimizer_norm(const weft_optimizer *optimizer);

/* Set or return the learning rate. weft_optimizer_set_lr sets that of all groups, weft_optimizer_set_group_lr that of
 * one. weft_optimizer_lr returns the rate of the first group, weft_optimizer_group_lr that of one (0 past the last).
 * With a rate of 0 a step updates only the state, except in Rprop, whose steps depend on the rate only at the
 * beginning. WEFT_ERR_INVALID: negative, not finite, or no such group. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_set_lr(weft_optimizer *optimizer, double lr);
WEFT_API double weft_optimizer_lr(const weft_optimizer *optimizer);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_set_group_lr(weft_optimizer *optimizer, size_t group, double lr);
WEFT_API double weft_optimizer_group_lr(const weft_optimizer *optimizer, size_t group);
/* The parameters of all groups, borrowed until the next group is added. */
WEFT_API weft_tensors weft_optimizer_parameters(const weft_optimizer *optimizer);

/* --- state --- */
/*
 * One tensor of an optimizer's state for a parameter, with the parameter's shape and dtype. "step" is a float64 scalar
 * instead (a float32 in PyTorch). Names are those of PyTorch's state dicts. A parameter that was never stepped has no
 * state.
 */
typedef struct weft_optimizer_state {
    size_t parameter; /* its index in weft_optimizer_parameters */
    const char *name;
    weft_tensor *tensor;
} weft_optimizer_state;

/*
 * Read the state, ordered by parameter, then by name as listed for each type. With the state, the parameters and the
 * options (weft_optimizer_get_spec) another optimizer continues with the same bits. Accumulated sums are not part of
 * the state.
 *
 * weft_optimizer_ref_state fills in *out. The name is static; the tensor is a reference that you release. Its contents
 * are valid until the next step. WEFT_ERR_INVALID past the end, WEFT_ERR_MEMORY.
 */
WEFT_API size_t weft_optimizer_state_count(const weft_optimizer *optimizer);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_ref_state(const weft_optimizer *optimizer, size_t index,
                                                             weft_optimizer_state *out);
/*
 * Replaces the whole state by copies of these tensors, in any order; parameters that are not named then have no state.
 * "step" may have any numeric dtype. Other tensors have the parameter's dtype and shape, and any strides. On failure
 * nothing changes, and *error, if `error` is not NULL, receives the wrong item; you release it. Errors:
 *   WEFT_ERR_NOT_FOUND: no such parameter, or no such name for this type and its options.
 *   WEFT_ERR_EXISTS: an item is given twice.
 *   WEFT_ERR_INVALID: NULL, a missing part of a parameter's state, or a "step" that is not a whole number.
 *   WEFT_ERR_TYPE, WEFT_ERR_SHAPE, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_set_state(weft_optimizer *optimizer,
                                                             const weft_optimizer_state *items, size_t count,
                                                             weft_error **error);

/*
 * Save and load the state as a file of safetensors, under names such as "state.0.exp_avg", where 0 is the parameter's
 * index. Parameters and options are not in the file. Saving behaves and fails as weft_module_save (weft/nn.h). Loading
 * fails as weft_optimizer_set_state, and with WEFT_ERR_NOT_FOUND (no such file), WEFT_ERR_IO, WEFT_ERR_FORMAT, or
 * WEFT_ERR_TYPE (the state of another type). *error, if `error` is not NULL, receives the detail; you release it.
 * Untrusted files are safe to load.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_save(const weft_optimizer *optimizer, const char *path,
                                                        weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_load(weft_optimizer *optimizer, const char *path,
                                                        weft_error **error);

WEFT_END_C
#endif
