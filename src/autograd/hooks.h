/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h - hooks on leaves, for a backward pass. */
#ifndef WFI_HOOKS_H
#define WFI_HOOKS_H

#include "autograd/gradient.h"
#include "autograd/pointers.h"
#include "base/map.h"

#include <weft/hooks.h>

/*
 * The result of a function for a gradient (borrowed): one reference, contiguous. NULL: it gave NULL, or another shape
 * or dtype.
 */
weft_tensor *wfi_gradient_from(weft_gradient_fn fn, void *arg, weft_tensor *gradient);

/* `leaf`: the id of the leaf's tensor. */
bool wfi_hooks_has(weft_hooks *hooks, uint64_t leaf);
/*
 * Passes a share, whose reference it takes over, through the leaf's hooks. NULL: one gave NULL, or a tensor of
 * another shape or dtype.
 */
weft_tensor *wfi_hooks_pre(weft_hooks *hooks, uint64_t leaf, weft_tensor *share);
/*
 * Passes the sum, which then has no other reference, to the leaf's hooks; adds the futures that they start
 * (referenced) to `waits`.
 */
weft_status wfi_hooks_post(weft_hooks *hooks, uint64_t leaf, weft_gradient *sum, wfi_pointers *waits);

/* Calls the function set by weft_hooks_set_end, if there is one; `why`: the pass has failed. */
weft_status wfi_hooks_end(weft_hooks *hooks, const weft_error *why, wfi_pointers *waits);

/* For leaves whose ids are not in `came`, calls `give` with the result of their `absent` functions. */
weft_status wfi_hooks_give_absent(weft_hooks *hooks, const wfi_map *came, wfi_give_fn give, void *arg);

#endif
