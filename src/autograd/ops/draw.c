/* SPDX-License-Identifier: Apache-2.0 */
/* draw.c - random tensors: classes drawn from distributions, uniform and normal numbers. */
#include "autograd/autograd.h"

#include <math.h>

static const wfi_node_type categorical_type = {.name = "categorical"};

static void draw(wfi_op *op, weft_tensor *y)
{
    const weft_shape *weights = &op->in[0]->shape;
    if (wfi_op_check(op, wfi_categorical_draw(y, wfi_tape_random(op->tape), op->in[0])))
        (void)wfi_op_checked(op, WFI_CHECK_ROWS, y, weights->dims[weights->ndim - 1]);
}

weft_tensor *weft_categorical(weft_tape *tape, weft_tensor *probabilities)
{
    WFI_CHECK_HANDLE(tape, probabilities);
    wfi_op op;
    if (!wfi_op_begin(&op, tape, &categorical_type, 0, &probabilities, 1))
        return NULL;
    weft_shape rows = probabilities->shape;
    if (rows.ndim == 0)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "wants probabilities [..., C]");
    else
        rows.ndim--;
    weft_tensor *y = wfi_op_output_as(&op, rows, WEFT_DTYPE_INT64);
    if (y)
        draw(&op, y);
    return wfi_op_end(&op);
}

/* ---- New tensors of random numbers ---- */

/* A tensor to be filled with numbers of two parameters, which `fit`; NULL: the tape fails. */
static weft_tensor *begin_drawn(weft_tape *tape, const char *name, weft_shape shape, weft_dtype dtype, bool fit,
                                double a, double b)
{
    char text[WFI_SHAPE_TEXT];
    if (!wfi_tape_ready(tape))
        return NULL;
    weft_status status = wfi_tensor_check(&shape, dtype);
    if (status == WEFT_ERR_TOO_LARGE)
        wfi_tape_fail(tape, status, name, "%s: %s %s is larger than memory can be", name, weft_dtype_name(dtype),
                      wfi_shape_text(&shape, text));
    else if (status == WEFT_ERR_SHAPE)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, name, "%s: there is no tensor %s", name, wfi_shape_text(&shape, text));
    else if (!wfi_dtype_is_float(dtype))
        wfi_tape_fail(tape, WEFT_ERR_TYPE, name, "%s: %s: wants float32 or float64", name, weft_dtype_name(dtype));
    else if (!fit)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, name, "%s(%g, %g): both finite, and %s", name, a, b,
                      name[0] == 'u' ? "the first at most the second" : "the deviation not negative");
    if (!wfi_tape_ready(tape))
        return NULL;
    weft_tensor *x = wfi_tensor_empty_on(tape->device, shape, dtype, NULL);
    if (!x)
        wfi_tape_fail(tape, WEFT_ERR_MEMORY, name, "%s: out of memory for %s", name, wfi_shape_text(&shape, text));
    return x;
}

/* Returns the one before. */
static weft_stream *use_stream(const weft_tape *tape)
{
    return wfi_stream_set(!tape ? NULL : tape->stream);
}

/* Takes over the reference. */
static weft_tensor *give_drawn(weft_tape *tape, const char *name, weft_tensor *x, weft_status status)
{
    if (status != WEFT_OK)
        wfi_tape_fail(tape, status, name, "%s(%s): %s", name, weft_dtype_name(x->dtype), weft_status_text(status));
    return weft_tape_take(tape, x);
}

weft_tensor *weft_uniform(weft_tape *tape, weft_shape shape, weft_dtype dtype, double low, double high)
{
    WFI_CHECK_HANDLE(tape);
    bool fit = isfinite(low) && isfinite(high) && low <= high;
    weft_stream *before = use_stream(tape);
    weft_tensor *x = begin_drawn(tape, "uniform", shape, dtype, fit, low, high);
    weft_status status = !x ? WEFT_OK : wfi_random_uniform(x, wfi_tape_random(tape), low, high);
    (void)wfi_stream_set(before);
    return !x ? NULL : give_drawn(tape, "uniform", x, status);
}

weft_tensor *weft_normal(weft_tape *tape, weft_shape shape, weft_dtype dtype, double mean, double deviation)
{
    WFI_CHECK_HANDLE(tape);
    bool fit = isfinite(mean) && isfinite(deviation) && deviation >= 0;
    weft_stream *before = use_stream(tape);
    weft_tensor *x = begin_drawn(tape, "normal", shape, dtype, fit, mean, deviation);
    weft_status status = !x ? WEFT_OK : wfi_random_normal(x, wfi_tape_random(tape), mean, deviation);
    (void)wfi_stream_set(before);
    return !x ? NULL : give_drawn(tape, "normal", x, status);
}
