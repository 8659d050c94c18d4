/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rules.h - types of optimizers (weft/optimizer_type.h): the checks of a type and of a spec, and the state that a type
 * keeps for a parameter.
 *
 * weft's own types are in types.c. They differ from a program's types only in the
 * place of their options in a spec: each of weft's types has a member, all others use `own`.
 */
#ifndef WFI_OPTIM_RULES_H
#define WFI_OPTIM_RULES_H

#include "tensor/cpu/optim/optim.h"

#include <weft/optim.h>

/* Why the type cannot be used; NULL: it can. */
weft_error *wfi_type_check(const weft_optimizer_type *type);
/* weft's own type of that name, or NULL. */
const weft_optimizer_type *wfi_type_find(const char *name);
/* The number of the type's options, and the index of one; -1: there is none. */
int wfi_type_option_count(const weft_optimizer_type *type);
int wfi_type_option_index(const weft_optimizer_type *type, const char *name);

/* Fills in the defaults of a spec and checks it all. NULL: it is right. */
weft_error *wfi_optimizer_spec_complete(weft_optimizer_spec *spec);
/* The same of the program's spec, which has `size` bytes (base/text/sized.h), into *out. */
weft_error *wfi_optimizer_spec_copy(const weft_optimizer_spec *given, size_t size, weft_optimizer_spec *out);
/* The options of the spec's type, in the type's order, as numbers: a flag is 0 or 1. */
void wfi_optimizer_spec_get_options(const weft_optimizer_spec *spec, double options[WEFT_OPTIMIZER_OPTIONS]);
void wfi_optimizer_spec_set_options(weft_optimizer_spec *spec, const double options[WEFT_OPTIMIZER_OPTIONS]);

/* A tensor that an optimizer with these options keeps for each parameter. */
typedef struct wfi_slot {
    const char *name;
    double initial;
    int place; /* among the type's slots */
} wfi_slot;
/* Their number. The spec is complete. */
int wfi_optimizer_spec_slots(const weft_optimizer_spec *spec, wfi_slot slots[WEFT_OPTIMIZER_SLOTS]);
/* The first option that makes the optimizer refuse sparse gradients, or NULL. The spec is complete, and its type takes
 * sparse gradients. */
const char *wfi_optimizer_spec_dense_only(const weft_optimizer_spec *spec);

/* The same update for the kernels. `rows` is memory for a part of it. */
wfi_update wfi_optimizer_kernel_update(const weft_optimizer_update *update, wfi_sparse_rows *rows);

bool wfi_option_is_not_negative(double number); /* and finite */
weft_error *wfi_bad_option(const char *type, const char *option, double value, const char *must);
/* The value must be finite and within the option's bounds. */
weft_error *wfi_option_check(const char *type, const weft_optimizer_option *option, double value);
double wfi_or_else(double given, double otherwise); /* `otherwise` for 0 */
/* The factor by which gradients of this norm are multiplied, so that their norm is at most max_norm, as by PyTorch's
 * clip_grad_norm_. A norm that is NaN gives NaN. */
double wfi_clip_factor(double norm, double max_norm);
#define WFI_NORM_ROOM 1e-6 /* PyTorch adds it to the norm that gradients are clipped by */

#endif
