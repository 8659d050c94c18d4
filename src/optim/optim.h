/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.h - what all optimizers share: parameters in groups, sums of gradients, state, and a type that steps one
 * parameter.
 *
 * optimizer.c makes optimizers and their groups; gradients.c checks gradients before a step; step.c steps; state.c
 * reads and sets the state. To add a type to the library: a type in types.c, its options in weft_optimizer_spec, its
 * section in rules.c. The slots of a parameter are the tensors that a type keeps for it,
 * such as momentum.
 *
 * LOCKING. None: one thread at a time uses an optimizer; only `refs` is atomic. LIFETIME. It holds one reference to
 * each parameter, sum and slot.
 */
#ifndef WFI_OPTIM_H
#define WFI_OPTIM_H

#include "autograd/checks.h"
#include "base/handle.h"
#include "optim/rules.h"
#include "tensor/cell.h"

#include <stdatomic.h>

typedef struct wfi_group {
    weft_optimizer_spec spec; /* complete; with the current rate */
    size_t begin, count;      /* its parameters */
} wfi_group;

/* The optimizer's data for one parameter (PyTorch: state[p]). */
typedef struct wfi_kept {
    size_t group;
    weft_tensor *sum;                         /* of the gradients, contiguous; made at first use */
    bool is_summed;                           /* since the last step */
    weft_tensor *slots[WEFT_OPTIMIZER_SLOTS]; /* in the type's order; made at the first step */
    uint64_t steps;                           /* done */
} wfi_kept;

struct weft_optimizer {
    wfi_handle handle;
    _Atomic uint32_t refs;
    const weft_optimizer_type *type;
    wfi_group *groups;
    size_t group_count;
    weft_tensor **parameters; /* one reference each */
    wfi_kept *kept;           /* of each */
    size_t count;
    size_t accumulated;       /* calls since the last step */
    double norm;              /* of the last step's gradients, if there is a max_norm */
    weft_tensor *norm_on_gpu; /* instead of `norm`: its first element, after a step on a GPU; or NULL */
    wfi_steps *steps;         /* collects a step on a GPU; made at the first one */
    wfi_checks *checks;       /* of rows of gradients on GPUs, that are not known to be done */
    uint32_t round;           /* counts the steps with such checks */
    weft_error *error;        /* of one of them; weft_optimizer_wait gives it away; or NULL */
};

/* A gradient that fits its parameter, prepared for a step. Zeroed: there is none. */
typedef struct wfi_ready {
    weft_tensor *dense;   /* contiguous; one reference */
    wfi_sparse_rows rows; /* values NULL: it is dense */
    /* Used by step.c: */
    weft_tensor *slab; /* for a step that does not write in place */
    wfi_write write;   /* while the step is collected */
    bool is_collected;
} wfi_ready;

/* The error of a row that the parameter does not have. */
weft_error *wfi_optimizer_row_error(int64_t gradient, int64_t row_count, const wfi_report_slot *found);
/* An error that names a gradient that does not fit, or the error of an earlier step; NULL: all fit. */
weft_error *wfi_optimizer_mismatch(const weft_optimizer *optimizer, weft_gradients gradients);
/* Prepares gradients that fit. WEFT_ERR_MEMORY, _UNSUPPORTED. */
weft_status wfi_ready_gradients(weft_gradients gradients, wfi_ready **out);
void wfi_ready_drop(wfi_ready *ready, size_t count);
weft_status wfi_ready_norm(const wfi_ready *ready, size_t count, double *norm);
/* If all gradients are on one GPU: the norm times `factor`, and the factor that limits it to max_norm, in a new tensor
 * of two float64 on that GPU, without a wait. Otherwise *out is NULL. WEFT_ERR_MEMORY, WEFT_ERR_SYSTEM. */
weft_status wfi_ready_clip(const wfi_ready *ready, size_t count, double factor, double max_norm, weft_tensor **out);

static inline bool wfi_ready_is_none(const wfi_ready *ready)
{
    return !ready->dense && !ready->rows.values;
}

/* Makes the slots of parameter i, if they are not made yet, as they are before the first step. WEFT_ERR_MEMORY. */
weft_status wfi_optimizer_make_slots(const weft_optimizer *optimizer, size_t i);

/* The options that are the same for all groups are in the first one's. */
static inline const weft_optimizer_spec *wfi_optimizer_common(const weft_optimizer *optimizer)
{
    return &optimizer->groups[0].spec;
}

#define WFI_STATE_SHOWN 64 /* bytes of a state's name that a message has */
/* Why the optimizer has no such state (item->parameter, item->name) of that dtype and shape; NULL: it has. state.c */
weft_error *wfi_state_mismatch(const weft_optimizer *optimizer, const weft_optimizer_state *item, weft_dtype dtype,
                               const weft_shape *shape);

/*
 * A state that is collected item by item, and then replaces the state of an optimizer (state.c). The function
 * wfi_state_begin makes an empty one; NULL: no memory. wfi_state_add copies one item. If a parameter lacks
 * a part, wfi_state_missing returns an error. Then wfi_state_put exchanges the new state and the old one, and
 * wfi_state_drop frees the old one.
 */
typedef struct wfi_new_state wfi_new_state;
wfi_new_state *wfi_state_begin(const weft_optimizer *optimizer);
weft_error *wfi_state_add(const weft_optimizer *optimizer, wfi_new_state *incoming, const weft_optimizer_state *item);
weft_error *wfi_state_missing(const weft_optimizer *optimizer, const wfi_new_state *incoming);
void wfi_state_put(weft_optimizer *optimizer, wfi_new_state *incoming);
void wfi_state_drop(const weft_optimizer *optimizer, wfi_new_state *incoming);

/* Files of states; optimizer_file.c. `type`: the name of the optimizer's type. */
weft_status wfi_state_save(const char *path, const char *type, const weft_optimizer_state *items, size_t count,
                           weft_error **error);
/* The receiver of the items of a file. `check` is called with each item before the elements are read, and returns an
 * error if the item is wrong; it may be NULL. */
typedef struct wfi_state_sink {
    const char *type;
    weft_error *(*check)(void *arg, const weft_optimizer_state *item, weft_dtype dtype, const weft_shape *shape);
    weft_status (*set)(void *arg, const weft_optimizer_state *items, size_t count, weft_error **error);
    void *arg;
} wfi_state_sink;
weft_status wfi_state_load(const char *path, const wfi_state_sink *sink, weft_error **error);

#endif
