/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/optim.h - optimizers, which update a list of parameters by their gradients: SGD, Adam, AdamW, Adagrad, RMSprop,
 * Rprop, Adadelta, Adamax.
 *
 * weft_optimizer_apply steps with gradients that the caller lends. To add several gradients first, call
 * weft_optimizer_accumulate any number of times, then weft_optimizer_step, which uses the sums and clears them.
 * Gradients are added in the order of the calls, so the same order gives the same bits.
 *
 *     weft_status train(weft_tensors parameters, weft_gradients gradients)
 *     {
 *         weft_optimizer *sgd = weft_sgd_create(parameters, &(weft_sgd_options){.lr = 0.1, .momentum = 0.9});
 *         if (!sgd)
 *             return WEFT_ERR_INVALID;
 *         weft_status st = weft_optimizer_apply(sgd, gradients); // [i] belongs to parameters[i]
 *         weft_optimizer_unref(sgd);
 *         return st;
 *     }
 *
 * NO GRADIENT. If the gradient of a parameter is NULL, the parameter, its state and its step count do not change.
 *
 * SPARSE GRADIENTS (weft_gradient.rows) are added by row, in order, and step only the rows that they name. The rows may
 * be in any order. Each kind says below with which options it takes them; otherwise WEFT_ERR_UNSUPPORTED.
 *
 * CLIPPING. With max_norm > 0 all gradients of a step are multiplied by min(1, max_norm / (norm + 1e-6)), as by
 * PyTorch's clip_grad_norm_; `norm` is weft_gradients_norm. The caller's gradients are read twice and not written. If
 * the norm is NaN, all parameters that have a gradient become NaN. If the norm is infinite, finite elements of the
 * gradients become 0 and infinite ones NaN. In both cases the step succeeds, as in PyTorch.
 *
 * With error_if_nonfinite a step whose norm is infinite or NaN fails with WEFT_ERR_INVALID and changes nothing, also
 * without max_norm; weft_optimizer_norm then returns the norm. To continue without that step, call weft_optimizer_zero
 * if gradients were accumulated.
 *
 * BESIDE. If several threads use one module, a step in place makes backward passes of other threads fail
 * (WEFT_ERR_STATE), and their forward passes may read a mixture of old and new elements. With WEFT_UPDATE_BESIDE
 * (weft_optimizer_spec.update) a step with a dense gradient writes the new value to other memory, which then replaces
 * the old value. Readers do not wait for the step, and each backward pass uses the values that its forward pass read.
 * This takes the memory of the parameters twice, and keeps old values as long as records hold them. A sparse gradient
 * changes rows in place if nothing else holds the value; otherwise the value is copied first.
 *
 * THREADS. One thread at a time may use an optimizer. Any thread may take and drop references.
 */
#ifndef WEFT_OPTIM_H
#define WEFT_OPTIM_H

#include <weft/tensor.h>

WEFT_BEGIN_C

/*
 * Options that all kinds have. `average`, max_norm, error_if_nonfinite and pin_timeout_ms (and `update` of
 * weft_optimizer_spec) are the same for all groups of an optimizer.
 *   The learning rate lr is finite and not negative. An lr of 0 takes the default, except in SGD. For a rate of 0, as
 *   in a warm-up, set has_lr in weft_optimizer_spec, or call weft_optimizer_set_lr.
 *   With maximize a step ascends the gradient.
 *   Unless said otherwise, weight_decay adds weight_decay p to the gradient.
 *   With average weft_optimizer_step divides the sums by the number of accumulations.
 *   A max_norm above 0 clips the gradients of each step (CLIPPING).
 *   With error_if_nonfinite a step fails if the norm of its gradients is infinite or NaN (CLIPPING).
 *   A step waits at most pin_timeout_ms for transfers that read a parameter; 0: 60,000; or WEFT_FOREVER.
 */
typedef struct weft_sgd_options {
    double lr; /* the learning rate, >= 0; no default: 0 means a rate of 0 */
    double momentum;
    double dampening;
    double weight_decay;
    bool nesterov; /* needs momentum > 0 and dampening 0 */
    bool maximize;
    bool average;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} weft_sgd_options;

/*
 * Stochastic gradient descent with momentum (Sutskever, Martens, Dahl, Hinton, ICML 2013), as PyTorch's SGD:
 *
 *   g += weight_decay p;  v = momentum v + (1 - dampening) g (v = g at the first step);
 *   g = nesterov ? g + momentum v : v;  p -= lr g;
 *
 * Here p is a parameter, g the sum of its gradients, and v its velocity (state "momentum_buffer"). Sparse gradients:
 * without momentum and weight_decay. There must be at least one parameter, none twice, each contiguous and float32 or
 * float64; the optimizer references them. NULL if memory is out or an argument is wrong: weft_optimizer_create reports
 * which.
 */
WEFT_API weft_optimizer *weft_sgd_create(weft_tensors parameters, const weft_sgd_options *options);

typedef struct weft_adam_options { /* a zero field takes its default, so beta1 and eps cannot be 0 */
    double lr;                     /* 1e-3 */
    double beta1, beta2;           /* in (0, 1); 0.9 and 0.999 */
    double eps;                    /* 1e-8 */
    double weight_decay;           /* 0, for AdamW too, whose default in PyTorch is 0.01 */
    bool amsgrad;                  /* divides by the largest v so far: Reddi, Kale, Kumar (ICLR 2018) */
    bool maximize;
    bool average;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} weft_adam_options;

/*
 * Adam (Kingma, Ba, ICLR 2015), as PyTorch's Adam. In step t of a parameter, counted from 1:
 *
 *   g += weight_decay p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *   p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps);
 *
 * State: "step", "exp_avg" (m), "exp_avg_sq" (v), "max_exp_avg_sq" (the largest v, with amsgrad). Parameters as for
 * SGD; `options` NULL takes all defaults. NULL if memory is out or an argument is wrong.
 *
 * Sparse gradients, without weight_decay, are applied as by PyTorch's SparseAdam ("lazy"). If a gradient does not name
 * a row, m and v of that row do not change, but t counts all steps of the parameter. eps is added to sqrt(v) before the
 * correction. With amsgrad the largest v is kept by row.
 */
WEFT_API weft_optimizer *weft_adam_create(weft_tensors parameters, const weft_adam_options *options);

/* AdamW (Loshchilov, Hutter, ICLR 2019), as PyTorch's AdamW: p -= lr weight_decay p comes first, in place of Adam's
 * weight decay, which passes through m and v. Otherwise as Adam. */
WEFT_API weft_optimizer *weft_adamw_create(weft_tensors parameters, const weft_adam_options *options);

typedef struct weft_adagrad_options { /* a zero field takes its default */
    double lr;                        /* 1e-2 */
    double lr_decay;                  /* 0 */
    double eps;                       /* 1e-10 */
    double weight_decay;              /* 0 */
    double initial_accumulator_value; /* the first value of s, >= 0; 0 */
    bool maximize;
    bool average;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} weft_adagrad_options;

/*
 * Adagrad (Duchi, Hazan, Singer, JMLR 2011), as PyTorch's Adagrad. In step t of a parameter, counted from 1:
 *
 *   g += weight_decay p;  s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps);
 *
 * State: "step", "sum" (s). Parameters as for SGD; `options` NULL takes all defaults. Sparse gradients: without
 * weight_decay; rows that they do not name step as with g = 0. NULL if memory is out or an argument is wrong.
 */
WEFT_API weft_optimizer *weft_adagrad_create(weft_tensors parameters, const weft_adagrad_options *options);

typedef struct weft_rmsprop_options { /* a zero field takes its default */
    double lr;                        /* 1e-2 */
    double alpha;                     /* in (0, 1); 0.99 */
    double eps;                       /* 1e-8 */
    double weight_decay;              /* 0 */
    double momentum;                  /* 0 */
    bool centered;                    /* divides by the standard deviation: Graves (arXiv:1308.0850) */
    bool maximize;
    bool average;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} weft_rmsprop_options;

/*
 * RMSprop (Tieleman, Hinton, Coursera lecture 6.5, 2012), as PyTorch's RMSprop:
 *
 *   g += weight_decay p;  s = alpha s + (1 - alpha) g^2;  m = alpha m + (1 - alpha) g;
 *   d = g / (sqrt(centered ? s - m^2 : s) + eps);  v = momentum v + d;  p -= lr (momentum > 0 ? v : d);
 *
 * State: "step", "square_avg" (s), "momentum_buffer" (v, with momentum), "grad_avg" (m, if centered). Dense gradients
 * only. Parameters as for SGD; `options` NULL takes all defaults. NULL if memory is out or an argument is wrong.
 */
WEFT_API weft_optimizer *weft_rmsprop_create(weft_tensors parameters, const weft_rmsprop_options *options);

typedef struct weft_rprop_options { /* a zero field takes its default */
    double lr;                      /* the length of the first step of each element; 1e-2 */
    double eta_minus, eta_plus;     /* eta_minus in (0, 1), eta_plus above 1; 0.5 and 1.2 */
    double step_min, step_max;      /* 1e-6 and 50 */
    bool maximize;
    bool average;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} weft_rprop_options;

/*
 * Resilient backpropagation (Riedmiller, Braun, ICNN 1993), as PyTorch's Rprop. With g' the gradient of the last step:
 *
 *   l = min(step_max, max(step_min, l (g g' > 0 ? eta_plus : g g' < 0 ? eta_minus : 1)));
 *   if g g' < 0: g = 0;  p -= sign(g) l;  g' = g;
 *
 * State: "step", "prev" (g'), "step_size" (l, at first lr). A later change of lr affects only parameters that were
 * never stepped. Dense gradients only. Parameters as for SGD; `options` NULL takes all defaults. NULL if memory is out
 * or an argument is wrong.
 */
WEFT_API weft_optimizer *weft_rprop_create(weft_tensors parameters, const weft_rprop_options *options);

typedef struct weft_adadelta_options { /* a zero field takes its default */
    double lr;                         /* 1 */
    double rho;                        /* in (0, 1); 0.9 */
    double eps;                        /* 1e-6 */
    double weight_decay;               /* 0 */
    bool maximize;
    bool average;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} weft_adadelta_options;

/*
 * Adadelta (Zeiler, arXiv:1212.5701), as PyTorch's Adadelta:
 *
 *   g += weight_decay p;  s = rho s + (1 - rho) g^2;
 *   d = sqrt(u + eps) / sqrt(s + eps) g;  u = rho u + (1 - rho) d^2;  p -= lr d;
 *
 * State: "step", "square_avg" (s), "acc_delta" (u). Dense gradients only. Parameters as for SGD; `options` NULL takes
 * all defaults. NULL if memory is out or an argument is wrong.
 */
WEFT_API weft_optimizer *weft_adadelta_create(weft_tensors parameters, const weft_adadelta_options *options);

typedef struct weft_adamax_options { /* a zero field takes its default */
    double lr;                       /* 2e-3 */
    double beta1, beta2;             /* in (0, 1); 0.9 and 0.999 */
    double eps;                      /* 1e-8 */
    double weight_decay;             /* 0 */
    bool maximize;
    bool average;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} weft_adamax_options;

/*
 * Adamax (Kingma, Ba, ICLR 2015, section 7.1), as PyTorch's Adamax. In step t of a parameter, counted from 1:
 *
 *   g += weight_decay p;  m = beta1 m + (1 - beta1) g;  u = max(beta2 u, |g| + eps);
 *   p -= lr / (1 - beta1^t) m / u;
 *
 * State: "step", "exp_avg" (m), "exp_inf" (u). Dense gradients only. Parameters as for SGD; `options` NULL takes all
 * defaults. NULL if memory is out or an argument is wrong.
 */
WEFT_API weft_optimizer *weft_adamax_create(weft_tensors parameters, const weft_adamax_options *options);

/* --- any kind, and groups of parameters --- */
typedef enum weft_optimizer_kind {
    WEFT_OPTIMIZER_SGD = 0,
    WEFT_OPTIMIZER_ADAM = 1,
    WEFT_OPTIMIZER_ADAMW = 2,
    WEFT_OPTIMIZER_ADAGRAD = 3,
    WEFT_OPTIMIZER_RMSPROP = 4,
    WEFT_OPTIMIZER_RPROP = 5,
    WEFT_OPTIMIZER_ADADELTA = 6,
    WEFT_OPTIMIZER_ADAMAX = 7,
} weft_optimizer_kind;

typedef enum weft_update {
    /* A step overwrites the parameter. No other thread may use it meanwhile, and records that saved it become
     * invalid. */
    WEFT_UPDATE_IN_PLACE = 0,
    /* A step writes a new value (BESIDE above). Only for parameters of modules, otherwise WEFT_ERR_UNSUPPORTED. */
    WEFT_UPDATE_BESIDE = 1,
} weft_update;

/* The kind and the options of an optimizer: plain data that may be copied and sent. */
typedef struct weft_optimizer_spec {
    weft_optimizer_kind kind;
    weft_update update;
    bool has_lr; /* take lr as it is, even 0; false: an lr of 0 takes the default of the kind */
    union {
        weft_sgd_options sgd;
        weft_adam_options adam; /* for WEFT_OPTIMIZER_ADAM and WEFT_OPTIMIZER_ADAMW */
        weft_adagrad_options adagrad;
        weft_rmsprop_options rmsprop;
        weft_rprop_options rprop;
        weft_adadelta_options adadelta;
        weft_adamax_options adamax;
    };
} weft_optimizer_spec;

/*
 * Makes an optimizer; the parameters are its first group. NULL on failure: then *error, if `error` is not NULL,
 * receives the wrong argument with its value; you release it. WEFT_ERR_INVALID (an option, no parameters, equal
 * parameters, NULL), WEFT_ERR_TYPE, WEFT_ERR_UNSUPPORTED (a parameter is not contiguous, or on a device),
 * WEFT_ERR_MEMORY.
 */
WEFT_API weft_optimizer *weft_optimizer_create(weft_tensors parameters, const weft_optimizer_spec *spec,
                                               weft_error **error);

/*
 * Adds a group: further parameters with the options of `spec`. The kind, `update`, `average`, max_norm,
 * error_if_nonfinite and pin_timeout_ms must be those of the first group. Groups count from 0. In all lists the new
 * parameters follow the others. WEFT_ERR_STATE while gradients are accumulated; other errors and `error` as for
 * weft_optimizer_create. On failure nothing changes.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_add_group(weft_optimizer *optimizer, weft_tensors parameters,
                                                             const weft_optimizer_spec *spec, weft_error **error);
WEFT_API size_t weft_optimizer_group_count(const weft_optimizer *optimizer);
/* A group's parameters, borrowed until the next group is added; an empty list past the last group. */
WEFT_API weft_tensors weft_optimizer_group_parameters(const weft_optimizer *optimizer, size_t group);
/* A group's options: defaults are filled in, lr is the present rate, and has_lr is set. WEFT_ERR_INVALID past the last
 * group. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_get_spec(const weft_optimizer *optimizer, size_t group,
                                                            weft_optimizer_spec *spec);

WEFT_API weft_optimizer *weft_optimizer_ref(weft_optimizer *optimizer);
WEFT_API void weft_optimizer_unref(weft_optimizer *optimizer);

/* --- stepping --- */
/*
 * Updates the parameters by gradients that the caller lends until the function returns: one for each parameter, in the
 * same order, with its dtype and any strides. Sums of weft_optimizer_accumulate are neither used nor changed. Before a
 * step in place it waits until no transfer to another worker reads the parameters. Errors:
 *   WEFT_ERR_SHAPE: the number of gradients or a shape is wrong.
 *   WEFT_ERR_TYPE: a dtype is wrong.
 *   WEFT_ERR_INVALID: NULL; a row outside the parameter; or, with error_if_nonfinite, a norm that is not finite.
 *   WEFT_ERR_UNSUPPORTED: a sparse gradient with options that do not allow it, or a tensor on a device.
 *   WEFT_ERR_TIMEOUT: a transfer still reads a parameter after pin_timeout_ms.
 *   WEFT_ERR_MEMORY.
 * On failure no parameter and no state changes, with one exception: a step with WEFT_UPDATE_BESIDE and sparse gradients
 * copies a parameter that another thread begins to read during the step. If there is no memory for that copy, the
 * parameters before it have been stepped. The log at level debug names the mismatch, as weft_optimizer_check_gradients
 * does.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_apply(weft_optimizer *optimizer, weft_gradients gradients);

/*
 * Adds gradients to the sums: one for each parameter, in the same order, with its dtype and shape and any strides; NULL
 * adds nothing. The optimizer keeps no reference to them. WEFT_ERR_SHAPE (the number of gradients or a shape is wrong),
 * WEFT_ERR_TYPE, WEFT_ERR_INVALID (the optimizer is NULL), WEFT_ERR_MEMORY. On failure nothing changes.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_accumulate(weft_optimizer *optimizer, weft_tensors gradients);
WEFT_API size_t weft_optimizer_accumulated(const weft_optimizer *optimizer); /* accumulations since the last step */

/*
 * Updates the parameters by the sums, and clears the sums. A parameter that only received NULL has no gradient.
 * WEFT_ERR_STATE if nothing was accumulated. Otherwise waits and fails as weft_optimizer_apply; on failure nothing
 * changes, without exception, because sums are dense.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_step(weft_optimizer *optimizer);
WEFT_API void weft_optimizer_zero(weft_optimizer *optimizer); /* clears the sums */

/* Check whether weft_optimizer_accumulate, or weft_optimizer_apply, would accept these gradients, with its errors.
 * *error, if `error` is not NULL, receives the mismatch with both shapes; you release it. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_check(const weft_optimizer *optimizer, weft_tensors gradients,
                                                         weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_check_gradients(const weft_optimizer *optimizer,
                                                                   weft_gradients gradients, weft_error **error);

/*
 * The Euclidean norm of all gradients together, for clipping rules of your own. Sparse gradients are first added by
 * row. The squares are added in float64, in an order that does not depend on the number of threads. Errors:
 * WEFT_ERR_TYPE (not float32 or float64; rows not int64), WEFT_ERR_SHAPE, WEFT_ERR_INVALID (rows without values, a
 * negative row), WEFT_ERR_UNSUPPORTED (on a device), WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_gradients_norm(weft_gradients gradients, double *norm);
/* The norm, before clipping, of the last step with max_norm or error_if_nonfinite, also if that step failed because of
 * the norm; 0 before the first such step. */
WEFT_API double weft_optimizer_norm(const weft_optimizer *optimizer);

/* weft_optimizer_set_lr sets the learning rate of all groups, weft_optimizer_set_group_lr that of one.
 * weft_optimizer_lr returns the rate of the first group, weft_optimizer_group_lr that of one (0 past the last). With a
 * rate of 0 a step updates only the state, except in Rprop: its steps depend on the rate only at the beginning.
 * WEFT_ERR_INVALID: negative, not finite, or no such group. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_set_lr(weft_optimizer *optimizer, double lr);
WEFT_API double weft_optimizer_lr(const weft_optimizer *optimizer);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_set_group_lr(weft_optimizer *optimizer, size_t group, double lr);
WEFT_API double weft_optimizer_group_lr(const weft_optimizer *optimizer, size_t group);
/* The parameters of all groups, borrowed until the next group is added. */
WEFT_API weft_tensors weft_optimizer_parameters(const weft_optimizer *optimizer);

/* --- state --- */
/*
 * One tensor of an optimizer's state for a parameter, with the parameter's shape and dtype. "step" is a float64 scalar
 * instead (a float32 in PyTorch). Names are those of PyTorch's state dicts. A parameter that was never stepped has
 * none.
 */
typedef struct weft_optimizer_state {
    size_t parameter; /* its index in weft_optimizer_parameters */
    const char *name;
    weft_tensor *tensor;
} weft_optimizer_state;

/*
 * Read the state, ordered by parameter, then by name as listed for each kind. With the parameters and the options
 * (weft_optimizer_get_spec) another optimizer continues with the same bits. Accumulated sums are not part of the state.
 *
 * weft_optimizer_ref_state fills in *out. The name is static; the tensor is a reference that you release. Its contents
 * are valid until the next step. WEFT_ERR_INVALID past the end, WEFT_ERR_MEMORY.
 */
WEFT_API size_t weft_optimizer_state_count(const weft_optimizer *optimizer);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_ref_state(const weft_optimizer *optimizer, size_t index,
                                                             weft_optimizer_state *out);
/*
 * Replaces the whole state by copies of these tensors, in any order; parameters that are not named then have none.
 * "step" may have any numeric dtype. Other tensors have the parameter's dtype and shape, and any strides. On failure
 * nothing changes, and *error, if `error` is not NULL, receives the wrong item; you release it. Errors:
 *   WEFT_ERR_NOT_FOUND: no such parameter, or no such name for this kind and its options.
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
 * WEFT_ERR_TYPE (the state of another kind). *error, if `error` is not NULL, receives the detail; you release it.
 * Untrusted files are safe to load.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_save(const weft_optimizer *optimizer, const char *path,
                                                        weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_load(weft_optimizer *optimizer, const char *path,
                                                        weft_error **error);

WEFT_END_C
#endif
