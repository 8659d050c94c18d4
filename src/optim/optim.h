/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.h - what all optimizers share: parameters in groups, sums of gradients, state, and a rule that steps one parameter.
 *
 * optimizer.c makes them and their groups; gradients.c looks at gradients before a step; step.c steps; state.c takes the state out and
 * in. To add a kind: a rule in a file of its own (see adagrad_optimizer.c), its options in weft_optimizer_spec, its place in
 * the table of rules.c. What a rule keeps for each parameter (momentum and the like) are the parameter's slots.
 *
 * LOCKING. None: one thread at a time uses an optimizer; only `refs` is atomic. LIFETIME. It holds one reference to
 * each parameter, sum and slot.
 */
#ifndef WFI_OPTIM_H
#define WFI_OPTIM_H

#include "optim/rules.h"

#include <stdatomic.h>

typedef struct wfi_group {
    weft_optimizer_spec spec; /* complete; the rate is the present one */
    size_t begin, count;      /* its parameters */
} wfi_group;

/* What the optimizer keeps for one parameter. */
typedef struct wfi_kept {
    size_t group;
    weft_tensor *sum;                   /* of the gradients, contiguous; made at first use */
    bool is_summed;                     /* since the last step */
    weft_tensor *slots[WFI_STEP_SLOTS]; /* made at the first step */
    uint64_t steps;                     /* done */
} wfi_kept;

struct weft_optimizer {
    _Atomic uint32_t refs;
    const wfi_optimizer_rule *rule;
    wfi_common_options common; /* of the first group; its rate is not looked at */
    wfi_group *groups;
    size_t group_count;
    weft_tensor **parameters; /* one reference each */
    wfi_kept *kept;           /* of each */
    size_t count;
    size_t accumulated; /* calls since the last step */
    double norm;        /* of the last step's gradients, where there is a max_norm */
};

/* A gradient that fits its parameter, made ready for a step. Zeroed: there is none. */
typedef struct wfi_ready {
    weft_tensor *dense;     /* contiguous; one reference */
    wfi_gradient_rows rows; /* values NULL: it is dense */
    weft_tensor *slab;      /* what a step beside will write; step.c's */
} wfi_ready;

/* An error that says what does not fit; NULL: all do. */
weft_error *wfi_optimizer_misfit(const weft_optimizer *optimizer, weft_gradients gradients);
/* Of gradients that fit. WEFT_ERR_MEMORY, _UNSUPPORTED. */
weft_status wfi_ready_gradients(weft_gradients gradients, wfi_ready **out);
void wfi_ready_drop(wfi_ready *ready, size_t count);
weft_status wfi_ready_norm(const wfi_ready *ready, size_t count, double *norm);

static inline bool wfi_ready_is_none(const wfi_ready *ready)
{
    return ready->dense == NULL && ready->rows.values == NULL;
}

/* The slots of parameter i, where they are not made yet, as they are before the first step. WEFT_ERR_MEMORY. */
weft_status wfi_optimizer_make_slots(const weft_optimizer *optimizer, size_t i);

#define WFI_STATE_SHOWN 64 /* bytes of a state's name that a message has */
/* Why the optimizer keeps no such state (item->parameter, item->name) of that dtype and shape; NULL: it does. state.c */
weft_error *wfi_state_fault(const weft_optimizer *optimizer, const weft_optimizer_state *item, weft_dtype dtype,
                            const weft_shape *shape);

#endif
