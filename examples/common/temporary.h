/* SPDX-License-Identifier: Apache-2.0 */
/* temporary.h - new tensors that a tape owns. After a failure they are NULL, and the tape has the reason. */
#ifndef EXAMPLES_TEMPORARY_H
#define EXAMPLES_TEMPORARY_H

#include <weft/tape.h>

/* Gives the tape what a function of weft/tensor.h made, or the reason why it did not. Releases `why`. */
static inline weft_tensor *temporary_keep(weft_tape *t, weft_status status, weft_tensor *made, weft_error *why)
{
    if (status)
        weft_tape_fail(t, status, "%s", weft_error_message(why));
    weft_error_unref(why);
    return weft_tape_take(t, made);
}

/* A CPU tensor, contents undefined. */
static inline weft_tensor *temporary_empty(weft_tape *t, weft_shape shape, weft_dtype dtype)
{
    weft_tensor *made = NULL;
    weft_error *why = NULL;
    weft_status status = weft_tensor_empty(shape, dtype, &made, &why);
    return temporary_keep(t, status, made, why);
}

/* The tensor on `device`. */
static inline weft_tensor *temporary_move(weft_tape *t, weft_tensor *x, weft_device device)
{
    weft_tensor *there = NULL;
    weft_error *why = NULL;
    weft_status status = weft_tensor_to_device(x, device, &there, &why);
    return temporary_keep(t, status, there, why);
}

/* A CPU tensor over memory that lives longer than the tape. */
static inline weft_tensor *temporary_wrap(weft_tape *t, weft_shape shape, weft_dtype dtype, void *data)
{
    weft_tensor *made = NULL;
    weft_error *why = NULL;
    weft_status status = weft_tensor_wrap(shape, dtype, data, NULL, NULL, NULL, &made, &why);
    return temporary_keep(t, status, made, why);
}

#endif
