/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/operator.h - operators of your own: compute what you like, then record how its gradient is found.
 *
 *     static weft_status square_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted,
 *                                        weft_tensor **dx)
 *     {
 *         (void)state, (void)wanted; // there is one input, and it is wanted
 *         const float *x = weft_tensor_data(saved.items[0]), *d = weft_tensor_data(dy.items[0]);
 *         dx[0] = weft_tensor_empty(weft_tensor_shape(saved.items[0]), WEFT_FLOAT32);
 *         for (int64_t i = 0; dx[0] && i < weft_tensor_numel(dx[0]); i++)
 *             ((float *)weft_tensor_data(dx[0]))[i] = 2 * x[i] * d[i];
 *         return dx[0] ? WEFT_OK : WEFT_ERR_MEMORY;
 *     }
 *     weft_tensor *square(weft_tape *t, weft_tensor *x) // float32, contiguous
 *     {
 *         static const weft_operator op = {.name = "square", .backward = square_backward};
 *         weft_tensor *y = x ? weft_tensor_clone(x) : NULL, *out = NULL;
 *         for (int64_t i = 0; y && i < weft_tensor_numel(y); i++)
 *             ((float *)weft_tensor_data(y))[i] *= ((float *)weft_tensor_data(y))[i];
 *         weft_tape_record(t, &op, (weft_tensors){&x, 1}, (weft_tensors){&x, 1}, NULL, (weft_tensors){&y, 1}, &out);
 *         weft_tensor_unref(y);
 *         return out; // belongs to the tape
 *     }
 */
#ifndef WEFT_OPERATOR_H
#define WEFT_OPERATOR_H

#include <weft/tape.h>

WEFT_BEGIN_C

typedef struct weft_operator {
    const char *name; /* for errors; must stay */
    /*
     * Finds the gradients of the inputs. saved: as given when it was recorded. dy.items[i]: the gradient of result i,
     * contiguous, borrowed, not to be changed; NULL if none came for it (for one at least one came). For each input with
     * wanted[i] it may set dx[i] (NULL before) to a reference to a tensor of that input's shape and dtype; what it leaves
     * NULL is no gradient. dx[i] may be a tensor of dy, referenced. If it fails, the pass fails with this code; what
     * is set in dx is dropped. Runs on the thread of its pass; where passes that retain the
     * records run at once it may run on several threads, with the same `state`: guard what it changes there.
     */
    weft_status (*backward)(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx);
    weft_drop_fn drop; /* called with `state` when nobody needs it any more; or NULL */
} weft_operator;

/*
 * Records that `results` were computed from `inputs`. out[i] becomes result i as the tape knows it: a tensor over the
 * same storage, which belongs to the tape; use it from now on in place of results.items[i], and drop your own reference
 * to that.
 *
 * A NULL input is one that is not there. If the tape does not record, or no input is floating and wants a gradient, nothing is
 * recorded: then out[i] is results.items[i] itself, of which the tape takes a reference, and `drop` runs at once. `saved` are kept for the backward pass, which
 * fails if one of them is changed in place before; entries may be NULL. Of a module's parameter the value is kept that it has in this call, which may be
 * later than the one that you computed with: where other threads may step it, take weft_tensor_contiguous(parameter), compute with that, and save that. The lists and *op are borrowed for this call.
 * `state` is taken over: `drop` runs on every path, also if the tape has failed or is NULL. After a failure all of
 * out[] is NULL. Errors, which the tape keeps: WEFT_ERR_INVALID (no results, a NULL result or function),
 * WEFT_ERR_TYPE (a result that is recorded and not floating), WEFT_ERR_MEMORY.
 */
WEFT_API void weft_tape_record(weft_tape *tape, const weft_operator *op, weft_tensors inputs, weft_tensors saved,
                               void *state, weft_tensors results, weft_tensor **out);

WEFT_END_C
#endif
