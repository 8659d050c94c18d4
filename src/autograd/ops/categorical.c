/* SPDX-License-Identifier: Apache-2.0 */
/* categorical.c - drawing classes from distributions. */
#include "autograd/autograd.h"

static const wfi_node_type categorical_type = {.name = "categorical"};

static void draw(wfi_op *op, weft_tensor *y)
{
    int64_t row = 0;
    weft_status status = wfi_random_categorical(y, wfi_tape_random(op->tape), op->in[0], &row);
    if (status == WEFT_ERR_INVALID)
        wfi_op_fail(op, status,
                    "row %lld is no distribution: wants weights that are finite, not negative, and not all 0",
                    (long long)row);
    else
        wfi_op_check(op, status);
}

weft_tensor *weft_categorical(weft_tape *tape, weft_tensor *probabilities)
{
    wfi_op op;
    if (!wfi_op_begin(&op, tape, &categorical_type, 0, &probabilities, 1))
        return NULL;
    weft_shape rows = probabilities->shape;
    if (rows.ndim == 0)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "wants probabilities [..., C]");
    else
        rows.ndim--;
    weft_tensor *y = wfi_op_output_as(&op, rows, WEFT_INT64);
    if (y != NULL)
        draw(&op, y);
    return wfi_op_end(&op);
}
