/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradient.h - adding up a gradient (weft_gradient: dense, or of rows), of which the sum holds references. All zero is an empty sum.
 *
 * LOCKING. None: one thread uses a sum.
 */
#ifndef WFI_GRADIENT_H
#define WFI_GRADIENT_H

#include "tensor/tensor.h"

/* Receives what a pass made for a leaf, whose id is `leaf`: `sum` is the callee's. */
typedef weft_status (*wfi_give_fn)(void *arg, uint64_t leaf, weft_gradient *sum);

/*
 * Adds a dense share, over whose reference it takes, also on failure. The first is kept as it is; a later one is added to it in place if
 * nobody else holds it, else to a new tensor: what others hold never changes. WEFT_ERR_MEMORY.
 */
weft_status wfi_gradient_add(weft_gradient *sum, weft_tensor *share);
/* Adds rows, behind those that came before; to a dense sum they are added. Takes over both references. */
weft_status wfi_gradient_add_rows(weft_gradient *sum, weft_tensor *rows, weft_tensor *values);
/* Adds all of `more`, and empties it, also on failure. */
weft_status wfi_gradient_join(weft_gradient *sum, weft_gradient *more);
/* Turns rows into a dense sum. */
weft_status wfi_gradient_make_dense(weft_gradient *sum, const weft_shape *shape);
/* Sees to it that nobody else holds the values, by a copy if need be. */
weft_status wfi_gradient_make_own(weft_gradient *sum);
void wfi_gradient_clear(weft_gradient *sum);

#endif
