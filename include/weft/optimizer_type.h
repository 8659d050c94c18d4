/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/optimizer_type.h - a custom optimizer: its options, its state, and one step over one parameter.
 *
 * weft's own types (weft_sgd_type, weft_adam_type and others, weft/optim.h) have the same form. A custom optimizer
 * therefore has everything that they have: groups of parameters, accumulation, clipping, averaging, both ways of
 * updating, state, files, and distributed optimizers (weft_agent_register_optimizer, weft/dist_optim.h).
 *
 * Example: p -= lr sign(g), with weight decay.
 *
 *     enum { DECAY }; // the index of the option
 *     static void sign_span(const void *arg, const weft_optimizer_span *s)
 *     {
 *         const weft_optimizer_update *u = arg;
 *         const float *from = s->from, *g = s->gradient;
 *         float *to = s->to, lr = (float)u->lr, decay = (float)u->options[DECAY];
 *         for (int64_t i = 0; i < s->count; i++) {
 *             float d = (float)u->factor * g[i];
 *             to[i] = from[i] - lr * ((d > 0) - (d < 0) + decay * from[i]);
 *         }
 *     }
 *     static weft_status sign_step(const weft_optimizer_update *u)
 *     {
 *         if (weft_tensor_dtype(u->from) != WEFT_DTYPE_FLOAT32)
 *             return WEFT_ERR_UNSUPPORTED;
 *         return weft_optimizer_update_run(u, sign_span, u);
 *     }
 *     static const weft_optimizer_type sign_type = {
 *         .name = "SignSGD", .lr = 1e-3, .options = {[DECAY] = {"weight_decay", .max = 1}}, .step = sign_step};
 *     weft_status make(weft_tensors parameters, weft_optimizer **out)
 *     {
 *         weft_optimizer_spec spec = {.type = &sign_type, .lr = 1e-4, .own = {[DECAY] = 0.01}};
 *         return weft_optimizer_create(parameters, &spec, out, NULL);
 *     }
 *
 * A complete program is examples/own_optimizer.c. docs/optimizers.md has the rules.
 */
#ifndef WEFT_OPTIMIZER_TYPE_H
#define WEFT_OPTIMIZER_TYPE_H

#include <weft/tensor.h>

WEFT_BEGIN_C

#define WEFT_OPTIMIZER_OPTIONS 16 /* the most options of a type */
#define WEFT_OPTIMIZER_SLOTS 4    /* the most tensors of state for each parameter */
#define WEFT_OPTIMIZER_NAME 32    /* the longest name of a type, an option or a slot, in bytes */

/*
 * One option, a number. A value of 0 takes `otherwise`. The resulting value must be finite and between min and max, or
 * weft_optimizer_create fails with an error that names the type, the option and the value.
 */
typedef struct weft_optimizer_option {
    const char *name;
    double otherwise;     /* the default */
    double min, max;      /* both 0: any finite number; INFINITY: no bound on this side */
    bool open;            /* min and max themselves are not allowed */
    bool flag;            /* 0 or 1 only; min and max are ignored */
    bool dense_only;      /* if the option is not 0, sparse gradients are rejected */
    uint64_t reserved[2]; /* 0: room for later fields */
} weft_optimizer_option;

/*
 * One tensor of state for each parameter, with the parameter's shape and dtype. It is created when the parameter is
 * stepped for the first time, and is called `name` in weft_optimizer_ref_state and in files.
 */
typedef struct weft_optimizer_slot {
    const char *name;
    double initial;         /* the value of its elements before the first step */
    const char *initial_of; /* an option, or "lr", whose value replaces `initial`; NULL: none */
    const char *needs;      /* the slot exists only if this option is not 0; NULL: always */
    uint64_t reserved[2];   /* 0: room for later fields */
} weft_optimizer_slot;

/*
 * One step over one parameter. All tensors are contiguous, in host memory, and have the parameter's shape and dtype
 * (float32 or float64). They are borrowed for the duration of the step.
 *
 * A sparse gradient has row_count rows instead of a `gradient` tensor: row k of the gradient belongs to row rows[k] of
 * the parameter, and its elements are at row_values[k]. The row numbers are ascending and different. With a sparse
 * gradient `to` and `from` are the same tensor, and the step changes only these rows. Types without `sparse` never
 * receive sparse gradients.
 */
typedef struct weft_optimizer_update {
    const weft_tensor *from;                  /* the value to read */
    weft_tensor *to;                          /* write the new value here: every element; may be `from` itself */
    const weft_tensor *gradient;              /* NULL: sparse */
    int64_t row_count;                        /* sparse: the number of rows */
    int64_t row_size;                         /* sparse: elements of each row */
    const int64_t *rows;                      /* sparse */
    const void *const *row_values;            /* sparse */
    double factor;                            /* multiply the gradient by this first: clipping, averaging, maximize */
    double lr;                                /* the learning rate of the parameter's group */
    const double *options;                    /* in the order of the type's options, defaults filled in */
    weft_tensor *slots[WEFT_OPTIMIZER_SLOTS]; /* in the order of the type's slots; NULL if it does not exist */
    uint64_t step;                            /* counts the steps of this parameter, from 1 */
    const struct weft_optimizer_gpu *gpu;     /* only for weft's own types, on a GPU */
} weft_optimizer_update;

/* A part of an update: `count` consecutive elements of each tensor, as arrays of float or of double. `from` and `to`
 * may be the same. */
typedef struct weft_optimizer_span {
    const void *from, *gradient;
    void *to, *slots[WEFT_OPTIMIZER_SLOTS];
    int64_t count;
    weft_dtype dtype;
} weft_optimizer_span;

/* Computes a part of a step, for weft_optimizer_update_run. */
typedef void (*weft_optimizer_span_fn)(const void *arg, const weft_optimizer_span *span);

/*
 * Calls `run` for parts of the parameter, or for each row of a sparse gradient, on several threads at once. Use it
 * for steps in which each element depends only on its own gradient and state. `arg` is passed to `run`.
 * WEFT_ERR_INVALID: a tensor of the update is missing.
 */
WEFT_API WEFT_NODISCARD weft_status weft_optimizer_update_run(const weft_optimizer_update *update,
                                                              weft_optimizer_span_fn run, const void *arg);

/*
 * A type of optimizers. It must exist as long as any optimizer of this type, and is not copied: usually it is a static
 * constant. Options, slots and names are checked when an optimizer is created. Names have letters, digits, '_', '-'
 * and '.'.
 */
typedef struct weft_optimizer_type {
    const char *name; /* for messages, files, and distributed optimizers */
    double lr;        /* the default learning rate; 0: none, a spec must set it */
    /* The list ends with the first option without a name. weft_optimizer_spec.own has the values, in this order. */
    weft_optimizer_option options[WEFT_OPTIMIZER_OPTIONS];
    weft_optimizer_slot slots[WEFT_OPTIMIZER_SLOTS]; /* ends with the first slot without a name */
    /* The step function uses `step` only to compare it with 1, and the state has no "step". */
    bool uncounted;
    bool sparse; /* the step takes sparse gradients; otherwise they are rejected with WEFT_ERR_UNSUPPORTED */
    /*
     * Checks options that depend on each other; NULL: no check. `options` is in the order of the type's options.
     * Returns NULL, or an error of weft_error_create, which weft takes over.
     */
    weft_error *(*check)(double lr, const double *options);
    /*
     * Steps one parameter. Parameters are stepped one after another, by the thread that called weft_optimizer_step or
     * weft_optimizer_apply. Other threads may step other optimizers of the type at the same time. The function may use
     * only the tensors of `update`, not the module that they belong to, and it must not wait. If it fails, it must not
     * have changed anything; the whole step then fails with its status, and the parameters before this one have been
     * stepped.
     */
    weft_status (*step)(const weft_optimizer_update *update);
    uint64_t reserved[8]; /* 0: room for later fields */
} weft_optimizer_type;

WEFT_END_C
#endif
