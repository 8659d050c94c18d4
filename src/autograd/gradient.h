/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradient.h - adding up a gradient (weft_gradient: dense, or of rows). The sum holds references. All zero is an
 * empty sum.
 *
 * LOCKING. None: one thread uses a sum.
 */
#ifndef WFI_GRADIENT_H
#define WFI_GRADIENT_H

#include "tensor/tensor.h"

/* Receives the gradient of the leaf with id `leaf`; it takes over the references of `sum`. */
typedef weft_status (*wfi_give_fn)(void *arg, uint64_t leaf, weft_gradient *sum);

/*
 * Adds a dense share and takes over its reference, even on failure. The first share is kept as it is. A later one is
 * added to the sum in place if it has no other reference, otherwise to a new tensor: tensors with other references
 * never change. WEFT_ERR_MEMORY.
 */
weft_status wfi_gradient_add(weft_gradient *sum, weft_tensor *share);
/* Appends rows to the earlier rows; adds them to a dense sum. Takes over both references. */
weft_status wfi_gradient_add_rows(weft_gradient *sum, weft_tensor *rows, weft_tensor *values);
/* Adds all of `more`, and empties it, even on failure. */
weft_status wfi_gradient_join(weft_gradient *sum, weft_gradient *more);
/* Turns rows into a dense sum. */
weft_status wfi_gradient_make_dense(weft_gradient *sum, const weft_shape *shape);
/* Makes sure that the values have no other reference, by a copy if necessary. */
weft_status wfi_gradient_make_own(weft_gradient *sum);
void wfi_gradient_clear(weft_gradient *sum);

#endif
