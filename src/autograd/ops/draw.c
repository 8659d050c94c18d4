/* SPDX-License-Identifier: Apache-2.0 */
/* draw.c - random tensors: classes drawn from distributions, uniform and normal numbers. */
#include "autograd/autograd.h"

#include <math.h>

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

/* ---- New tensors of random numbers ---- */

/* Fails the tape unless `x` is one. Takes over the reference. */
static weft_tensor *take_drawn(weft_tape *tape, const char *name, weft_tensor *x, weft_status status)
{
    if (x == NULL)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, name, "%s: no such tensor: a negative size, or out of memory", name);
    else if (status != WEFT_OK)
        wfi_tape_fail(tape, status, name, "%s(%s): %s", name, weft_dtype_name(x->dtype), weft_status_text(status));
    return weft_tape_take(tape, x);
}

weft_tensor *weft_uniform(weft_tape *tape, weft_shape shape, weft_dtype dtype, double low, double high)
{
    if (!wfi_tape_ready(tape))
        return NULL;
    wfi_random random = wfi_tape_random(tape);
    weft_tensor *x = weft_tensor_empty(shape, dtype);
    weft_status status = isfinite(low) && isfinite(high) && low <= high ? WEFT_OK : WEFT_ERR_INVALID;
    if (x != NULL && status == WEFT_OK)
        status = wfi_random_uniform(x, random, low, high);
    return take_drawn(tape, "uniform", x, status);
}

weft_tensor *weft_normal(weft_tape *tape, weft_shape shape, weft_dtype dtype, double mean, double deviation)
{
    if (!wfi_tape_ready(tape))
        return NULL;
    wfi_random random = wfi_tape_random(tape);
    weft_tensor *x = weft_tensor_empty(shape, dtype);
    weft_status status = isfinite(mean) && isfinite(deviation) && deviation >= 0 ? WEFT_OK : WEFT_ERR_INVALID;
    if (x != NULL && status == WEFT_OK)
        status = wfi_random_normal(x, random, mean, deviation);
    return take_drawn(tape, "normal", x, status);
}
