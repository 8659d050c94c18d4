/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h - the inside of hooks on leaves, as a backward pass asks for them. */
#ifndef WFI_HOOKS_H
#define WFI_HOOKS_H

#include "autograd/gradient.h"
#include "autograd/pointers.h"
#include "base/map.h"

#include <weft/hooks.h>

/* What a function makes of a gradient (borrowed): one reference, contiguous. NULL: it gave NULL, or another shape or dtype. */
weft_tensor *wfi_gradient_from(weft_gradient_fn fn, void *arg, weft_tensor *gradient);

/* `leaf`: the id of the leaf's tensor. */
bool wfi_hooks_has(weft_hooks *hooks, uint64_t leaf);
/* What the leaf's hooks make of a share, whose reference they take over. NULL: one gave NULL, or what is no gradient of the leaf. */
weft_tensor *wfi_hooks_pre(weft_hooks *hooks, uint64_t leaf, weft_tensor *share);
/* Gives the sum, which nobody else holds then, to the leaf's hooks; adds the futures that they begin (referenced) to `waits`. */
weft_status wfi_hooks_post(weft_hooks *hooks, uint64_t leaf, weft_gradient *sum, wfi_pointers *waits);

/* Calls the function of weft_hooks_set_end, if there is one; `why`: the pass has failed. */
weft_status wfi_hooks_end(weft_hooks *hooks, const weft_error *why, wfi_pointers *waits);

/* Gives what `absent` makes for leaves whose ids are not in `came`. */
weft_status wfi_hooks_give_absent(weft_hooks *hooks, const wfi_map *came, wfi_give_fn give, void *arg);

#endif
