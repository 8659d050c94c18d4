/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/optim.h - optimizers, which update a list of parameters by their gradients: SGD, Adam, AdamW, Adagrad, RMSprop, Rprop,
 * Adadelta, Adamax.
 *
 * weft_optimizer_apply steps straight from gradients that you lend it. Where several must be added first, call
 * weft_optimizer_accumulate any number of times and then weft_optimizer_step, which uses the sums and clears
 * them. Gradients are added in the order of the calls: the same order gives the same bits.
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
 * NO GRADIENT. A parameter whose gradient is none (NULL) keeps its value and its state, its count of steps too.
 *
 * SPARSE GRADIENTS (weft_gradient.rows) are added up by row, in order, and step the rows that they name and no
 * others; the rows may stand in any order. Which kinds take them, and with which options, is said there; else
 * WEFT_ERR_UNSUPPORTED.
 *
 * CLIPPING. With max_norm > 0 all gradients of a step are multiplied by min(1, max_norm / (norm + 1e-6)), as by PyTorch's
 * clip_grad_norm_; norm is that of weft_gradients_norm. They are read twice and not written; yours stay as they are.
 * If the norm is NaN, all parameters that have a gradient become NaN. If it is infinite, finite elements of the
 * gradients become 0 and infinite ones NaN. The step succeeds all the same, as in PyTorch. With the option
 * error_if_nonfinite the step fails with WEFT_ERR_INVALID instead, also without max_norm, and nothing has changed;
 * weft_optimizer_norm then gives the norm. To go on without that step, call weft_optimizer_zero if gradients were
 * accumulated.
 *
 * BESIDE (weft_optimizer_spec.update). Where several threads train one module, a step in place would make another's backward
 * pass fail (WEFT_ERR_STATE), or tear what its forward pass reads. With WEFT_UPDATE_BESIDE a step with a dense gradient writes the
 * new value into other memory and then puts it in the old one's place: no reader waits for a step's arithmetic, and each backward pass uses the values that
 * its forward pass read, bit for bit. It takes the memory of a parameter a second time, and that of old values as long as records have
 * them. A sparse gradient changes rows in place while nobody has the value; where somebody has, all is copied first.
 *
 * One thread at a time uses an optimizer. References may be taken and dropped on any thread.
 */
#ifndef WEFT_OPTIM_H
#define WEFT_OPTIM_H

#include <weft/tensor.h>

WEFT_BEGIN_C

/*
 * Options that all kinds have. lr: finite and not negative. In all kinds except SGD an lr of 0 takes the default; for a
 * rate of 0, which the first step of a warm-up may have, set has_lr in weft_optimizer_spec, or call
 * weft_optimizer_set_lr. maximize: steps up the gradient, not down. weight_decay, where nothing else is said, adds
 * weight_decay p to the gradient. These are the optimizer's as a whole, not a group's (as is `update` of weft_optimizer_spec):
 *   average         weft_optimizer_step divides the sums by the number of accumulations;
 *   max_norm        clips the gradients of each step, see above; 0: no clipping;
 *   error_if_nonfinite  a step fails if the norm of its gradients is infinite or NaN, see CLIPPING above;
 *   pin_timeout_ms  how long a step waits for transfers that read a parameter; 0: 60,000; or WEFT_FOREVER.
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
 * Stochastic gradient descent with momentum, by Sutskever, Martens, Dahl, Hinton (ICML 2013), in the form of
 * PyTorch's SGD:
 *   g += weight_decay p;  v = momentum v + (1 - dampening) g (v = g at the first step);  g = nesterov ? g + momentum v : v;
 *   p -= lr g.
 * Here p is a parameter, g the sum of its gradients, v its velocity (state "momentum_buffer"). There must be at least one
 * parameter, each contiguous and float32 or float64, none twice; the optimizer holds references to them. Sparse
 * gradients: without momentum and weight_decay. NULL if memory is out or an argument is wrong: weft_optimizer_create says which.
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
 * Adam, by Kingma, Ba (ICLR 2015), in the form of PyTorch's Adam; at step t of a parameter, counted from 1:
 *   g += weight_decay p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *   p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps).
 * State: "step", "exp_avg" (m), "exp_avg_sq" (v), "max_exp_avg_sq" (the largest v, with amsgrad). Parameters as for SGD;
 * `options` NULL takes all defaults. NULL if memory is out or an argument is wrong.
 *
 * Sparse gradients, without weight_decay, take PyTorch's SparseAdam, also called lazy: m and v of a row that a
 * gradient does not name stay as they are, while t counts all steps of the parameter, and eps is added to sqrt(v)
 * before the correction. With amsgrad the largest v is kept by row likewise.
 */
WEFT_API weft_optimizer *weft_adam_create(weft_tensors parameters, const weft_adam_options *options);

/* AdamW, by Loshchilov, Hutter (ICLR 2019), in the form of PyTorch's AdamW: Adam, but weight decay does not pass
 * through m and v: before all else p -= lr weight_decay p. All else as for Adam. */
WEFT_API weft_optimizer *weft_adamw_create(weft_tensors parameters, const weft_adam_options *options);

typedef struct weft_adagrad_options { /* a zero field takes its default */
    double lr;                        /* 1e-2 */
    double lr_decay;                  /* 0 */
    double eps;                       /* 1e-10 */
    double weight_decay;              /* 0 */
    double initial_accumulator_value; /* what s begins with, >= 0; 0 */
    bool maximize;
    bool average;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} weft_adagrad_options;

/*
 * Adagrad, by Duchi, Hazan, Singer (JMLR 2011), in the form of PyTorch's Adagrad; at step t of a parameter, counted from 1:
 *   g += weight_decay p;  s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps).
 * State: "step", "sum" (s). Parameters as for SGD; `options` NULL takes all defaults. Sparse gradients: without
 * weight_decay; a row that they do not name is as if its g were 0. NULL if memory is out or an argument is wrong.
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
 * RMSprop, by Tieleman, Hinton (Coursera lecture 6.5, 2012), in the form of PyTorch's RMSprop:
 *   g += weight_decay p;  s = alpha s + (1 - alpha) g^2;  m = alpha m + (1 - alpha) g;
 *   d = g / (sqrt(centered ? s - m^2 : s) + eps);  v = momentum v + d;  p -= lr (momentum > 0 ? v : d).
 * State: "step", "square_avg" (s), "momentum_buffer" (v, with momentum), "grad_avg" (m, if centered). Parameters as for SGD;
 * `options` NULL takes all defaults. Dense gradients only. NULL if memory is out or an argument is wrong.
 */
WEFT_API weft_optimizer *weft_rmsprop_create(weft_tensors parameters, const weft_rmsprop_options *options);

typedef struct weft_rprop_options { /* a zero field takes its default */
    double lr;                      /* how long the first step of each element is; 1e-2 */
    double eta_minus, eta_plus;     /* in (0, 1), and above 1; 0.5 and 1.2 */
    double step_min, step_max;      /* 1e-6 and 50 */
    bool maximize;
    bool average;
    double max_norm;
    bool error_if_nonfinite;
    int64_t pin_timeout_ms;
} weft_rprop_options;

/*
 * Resilient backpropagation, by Riedmiller, Braun (ICNN 1993), in the form of PyTorch's Rprop: with g' the gradient of the step before,
 *   l = min(step_max, max(step_min, l (g g' > 0 ? eta_plus : g g' < 0 ? eta_minus : 1)));  if g g' < 0: g = 0;  p -= sign(g) l;  g' = g.
 * State: "step", "prev" (g'), "step_size" (l, lr at first: a later rate moves only parameters that were never stepped). Parameters as for
 * SGD; `options` NULL takes all defaults. Dense gradients only. NULL if memory is out or an argument is wrong.
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
 * Adadelta, by Zeiler (arXiv:1212.5701), in the form of PyTorch's Adadelta:
 *   g += weight_decay p;  s = rho s + (1 - rho) g^2;  d = sqrt(u + eps) / sqrt(s + eps) g;  u = rho u + (1 - rho) d^2;  p -= lr d.
 * State: "step", "square_avg" (s), "acc_delta" (u). Parameters as for SGD; `options` NULL takes all defaults. Dense gradients only. NULL
 * if memory is out or an argument is wrong.
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
 * Adamax, by Kingma, Ba (ICLR 2015, section 7.1), in the form of PyTorch's Adamax; at step t of a parameter, counted from 1:
 *   g += weight_decay p;  m = beta1 m + (1 - beta1) g;  u = max(beta2 u, |g| + eps);  p -= lr / (1 - beta1^t) m / u.
 * State: "step", "exp_avg" (m), "exp_inf" (u). Parameters as for SGD; `options` NULL takes all defaults. Dense gradients only. NULL if
 * memory is out or an argument is wrong.
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
    WEFT_UPDATE_IN_PLACE =
        0, /* a step writes over the parameter: no other thread may use it meanwhile, and records that
                                 saved it are stale */
    WEFT_UPDATE_BESIDE =
        1, /* a step writes beside it, see BESIDE above; parameters of modules alone, else WEFT_ERR_UNSUPPORTED */
} weft_update;

/* Which optimizer, with which options: plain data, that may be copied and sent. */
typedef struct weft_optimizer_spec {
    weft_optimizer_kind kind;
    weft_update update;
    bool has_lr; /* take lr as it is, 0 included; false: an lr of 0 takes the default of the kind */
    union {
        weft_sgd_options sgd;
        weft_adam_options adam; /* of WEFT_OPTIMIZER_ADAM and _ADAMW */
        weft_adagrad_options adagrad;
        weft_rmsprop_options rmsprop;
        weft_rprop_options rprop;
        weft_adadelta_options adadelta;
        weft_adamax_options adamax;
    };
} weft_optimizer_spec;

/*
 * The optimizer of a spec, over the parameters, which are its first group. NULL on failure; then `error`, if not NULL,
 * receives what is wrong, with its value; you release it. WEFT_ERR_INVALID (an option, no or equal parameters, NULL),
 * WEFT_ERR_TYPE, WEFT_ERR_UNSUPPORTED (a parameter that is not contiguous, or on a device), WEFT_ERR_MEMORY.
 */
WEFT_API weft_optimizer *weft_optimizer_create(weft_tensors parameters, const weft_optimizer_spec *spec,
                                               weft_error **error);

/*
 * Adds a group: more parameters, which take the options of `spec`, of the same kind; of the optimizer as a whole are
 * kind, update, average, max_norm, error_if_nonfinite and pin_timeout_ms, so these must be those of the first group.
 * Groups count from 0. The new parameters follow the others in all lists. WEFT_ERR_STATE while gradients are
 * accumulated, else codes and `error` as above; then nothing has changed.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_add_group(weft_optimizer *optimizer, weft_tensors parameters,
                                                             const weft_optimizer_spec *spec, weft_error **error);
WEFT_API size_t weft_optimizer_group_count(const weft_optimizer *optimizer);
/* A group's parameters, borrowed until the next group is added; none past the last group. */
WEFT_API weft_tensors weft_optimizer_group_parameters(const weft_optimizer *optimizer, size_t group);
/* A group's options with the defaults filled in, and the learning rate as it is now; has_lr is set. WEFT_ERR_INVALID
 * past the last. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_get_spec(const weft_optimizer *optimizer, size_t group,
                                                            weft_optimizer_spec *spec);

WEFT_API weft_optimizer *weft_optimizer_ref(weft_optimizer *optimizer);
WEFT_API void weft_optimizer_unref(weft_optimizer *optimizer);

/* --- stepping --- */
/*
 * Updates the parameters by gradients that you lend it until it returns: one for each parameter, in the same order,
 * with its dtype and any strides. It makes no sums, and leaves those of weft_optimizer_accumulate alone. Before it
 * writes in place it waits until no transfer to another worker reads a parameter that it steps.
 *
 * WEFT_ERR_SHAPE (their number or a shape is wrong), WEFT_ERR_TYPE, WEFT_ERR_INVALID (NULL; a row outside of the
 * parameter; or the norm is not finite and error_if_nonfinite is set), WEFT_ERR_UNSUPPORTED (sparse, and the options do
 * not take that; on a device), WEFT_ERR_MEMORY, WEFT_ERR_TIMEOUT if a transfer still reads after pin_timeout_ms; then
 * no parameter and no state has changed. (One exception: with WEFT_UPDATE_BESIDE and sparse gradients, if another
 * thread begins to read a parameter during the step, and there is no memory for its copy: then the parameters before it
 * have been stepped.) The log at level debug says what did not fit, as weft_optimizer_check_gradients does.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_apply(weft_optimizer *optimizer, weft_gradients gradients);

/*
 * Adds gradients to the sums: one for each parameter, in the same order, with its dtype and shape and any
 * strides; NULL adds nothing. The optimizer keeps no reference to them. WEFT_ERR_SHAPE (their number or a shape is
 * wrong), WEFT_ERR_TYPE, WEFT_ERR_INVALID (the optimizer is NULL), WEFT_ERR_MEMORY; then nothing has changed.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_accumulate(weft_optimizer *optimizer, weft_tensors gradients);
WEFT_API size_t weft_optimizer_accumulated(const weft_optimizer *optimizer); /* accumulations since the last step */

/*
 * Updates the parameters and clears the sums. WEFT_ERR_STATE if nothing was accumulated; waits and fails as
 * weft_optimizer_apply does, and as the sums are dense without its exception: then nothing has changed. A parameter that only NULL was added for has no gradient.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_step(weft_optimizer *optimizer);
WEFT_API void weft_optimizer_zero(weft_optimizer *optimizer); /* clears the sums */

/* Tell whether weft_optimizer_accumulate, or weft_optimizer_apply, would accept these gradients, with its codes.
 * `error`, if not NULL, receives what does not fit, with both shapes; you release it. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_check(const weft_optimizer *optimizer, weft_tensors gradients,
                                                         weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_check_gradients(const weft_optimizer *optimizer,
                                                                   weft_gradients gradients, weft_error **error);

/*
 * The Euclidean norm of all gradients together, sparse ones added up by row first; the squares are added in float64, in an
 * order that does not depend on the number of threads. For own rules of clipping. WEFT_ERR_TYPE (not float32 or float64; rows
 * not int64), WEFT_ERR_SHAPE, WEFT_ERR_INVALID (rows without values, a negative row), WEFT_ERR_UNSUPPORTED (on a device),
 * WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_gradients_norm(weft_gradients gradients, double *norm);
/* That norm at the last step with max_norm or error_if_nonfinite, before clipping, also if the step failed because
 * of the norm; 0 before the first of these steps. */
WEFT_API double weft_optimizer_norm(const weft_optimizer *optimizer);

/* The learning rate of all groups is set, that of the first is returned; or of one group (0 past the last).
 * It may be 0: then a step leaves the parameters as they are, and the state goes on. WEFT_ERR_INVALID: negative or not
 * finite, or no such group. */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_set_lr(weft_optimizer *optimizer, double lr);
WEFT_API double weft_optimizer_lr(const weft_optimizer *optimizer);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_set_group_lr(weft_optimizer *optimizer, size_t group, double lr);
WEFT_API double weft_optimizer_group_lr(const weft_optimizer *optimizer, size_t group);
/* All groups' parameters, borrowed until the next group is added. */
WEFT_API weft_tensors weft_optimizer_parameters(const weft_optimizer *optimizer);

/* --- state --- */
/*
 * One tensor that an optimizer keeps for a parameter: of its shape and dtype, but for "step", a float64 scalar (PyTorch
 * has a float32). Names are those of PyTorch's state dicts. A parameter that was never stepped has none.
 */
typedef struct weft_optimizer_state {
    size_t parameter; /* its place in weft_optimizer_parameters */
    const char *name;
    weft_tensor *tensor;
} weft_optimizer_state;

/*
 * The state, by parameter and then by name in the order that is said with each kind. Together with the parameters and the
 * options (weft_optimizer_get_spec) it lets another optimizer go on with the same bits; what was accumulated and not
 * yet stepped is not in it.
 *
 * weft_optimizer_state_at fills in *out; the name is static, the tensor a reference that you release; its contents are those of
 * now until the next step. WEFT_ERR_INVALID past the end, WEFT_ERR_MEMORY.
 */
WEFT_API size_t weft_optimizer_state_count(const weft_optimizer *optimizer);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_state_at(const weft_optimizer *optimizer, size_t index,
                                                            weft_optimizer_state *out);
/*
 * Replaces the whole state by copies of these tensors, in any order; parameters that are not named have none then. "step" may have any
 * number type, the others the parameter's dtype and shape, any strides. WEFT_ERR_NOT_FOUND (no such parameter, or
 * name of this kind and its options), WEFT_ERR_EXISTS (given twice), WEFT_ERR_TYPE, WEFT_ERR_SHAPE, WEFT_ERR_INVALID
 * (NULL, a part of a parameter's state is missing, "step" is not a whole number), WEFT_ERR_MEMORY; then
 * nothing has changed, and `error`, if not NULL, receives which one it was; you release it.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_set_state(weft_optimizer *optimizer,
                                                             const weft_optimizer_state *items, size_t count,
                                                             weft_error **error);

/*
 * The state in a file of safetensors, under names such as "state.0.exp_avg": 0 is the parameter's place. Parameters and
 * options are not in it. Codes and promises of saving are those of weft_module_save (weft/nn.h), those of loading are
 * those of weft_optimizer_set_state and besides WEFT_ERR_NOT_FOUND (no such file), WEFT_ERR_IO, WEFT_ERR_FORMAT, WEFT_ERR_TYPE
 * (the state of another kind). `error`, if not NULL, receives the detail; you release it. It is safe to read a file that you do not
 * trust.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_save(const weft_optimizer *optimizer, const char *path,
                                                        weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_load(weft_optimizer *optimizer, const char *path,
                                                        weft_error **error);

WEFT_END_C
#endif
