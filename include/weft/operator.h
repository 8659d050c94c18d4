/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/operator.h - user-defined operators: the program computes the result, and records how to find its gradient.
 *
 *     static weft_status square_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted,
 *                                        weft_tensor **dx)
 *     {
 *         (void)state, (void)wanted; // the one input is wanted
 *         const float *x = weft_tensor_data(saved.items[0]), *d = weft_tensor_data(dy.items[0]);
 *         weft_status status = weft_tensor_empty(weft_tensor_shape(saved.items[0]), WEFT_DTYPE_FLOAT32, &dx[0], NULL);
 *         for (int64_t i = 0; !status && i < weft_tensor_numel(dx[0]); i++)
 *             ((float *)weft_tensor_data(dx[0]))[i] = 2 * x[i] * d[i];
 *         return status;
 *     }
 *     weft_tensor *square(weft_tape *t, weft_tensor *x) // float32, contiguous
 *     {
 *         static const weft_operator op = {.name = "square", .backward = square_backward};
 *         weft_tensor *y = NULL, *out = NULL;
 *         weft_status status = weft_tensor_clone(x, &y, NULL);
 *         for (int64_t i = 0; !status && i < weft_tensor_numel(y); i++)
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

/* A user-defined operator. */
typedef struct weft_operator {
    const char *name; /* for errors; must stay valid */
    /*
     * Computes the gradients of the inputs. `saved` has the tensors saved when the operator was recorded. dy.items[i]
     * is the gradient of result i: contiguous, borrowed, read-only; NULL if there is none. At least one is not NULL. If
     * wanted[i] is true, the function may set dx[i] (initially NULL) to a reference to a tensor of the shape and dtype
     * of input i; that may be a tensor of dy. NULL means no gradient. If the function fails, the pass fails with its
     * code, and tensors in dx are dropped. The function runs on the thread of its pass. Passes that retain records
     * may run the function on several threads at once with the same `state`, so protect what it changes in `state`.
     */
    weft_status (*backward)(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx);
    weft_drop_fn drop; /* called with `state` when weft no longer needs it; NULL: none */
} weft_operator;

/*
 * Records that `results` were computed from `inputs`. out[i] receives the recorded form of result i: a tensor over the
 * same storage, which belongs to the tape. Use it in place of results.items[i], and drop your own reference to
 * results.items[i]. The lists and *op are borrowed until the function returns. A NULL input is absent.
 *
 * `saved` tensors are kept for the backward pass; entries may be NULL. If one of them is changed in place before the
 * backward pass, that pass fails. For a module's parameter the value at the time of this call is kept. If other
 * threads may step the parameter, call weft_tensor_contiguous(parameter) first, and compute with, and save, that
 * tensor.
 *
 * Nothing is recorded if the tape does not record, or if no input is floating and wants a gradient. out[i] is then
 * results.items[i] itself, which the tape references. The function takes over `state`: `drop` runs in every case, and
 * at once if nothing is recorded, or if the tape has failed or is NULL. After a failure all of out[] is NULL. Errors,
 * which the tape keeps: WEFT_ERR_INVALID (no results, a NULL result or function), WEFT_ERR_TYPE (a recorded result is
 * not floating), WEFT_ERR_MEMORY.
 */
WEFT_API void weft_tape_record_sized(weft_tape *tape, const weft_operator *op, size_t size, weft_tensors inputs,
                                     weft_tensors saved, void *state, weft_tensors results, weft_tensor **out);
static inline void weft_tape_record(weft_tape *tape, const weft_operator *op, weft_tensors inputs, weft_tensors saved,
                                    void *state, weft_tensors results, weft_tensor **out)
{
    weft_tape_record_sized(tape, op, sizeof(*op), inputs, saved, state, results, out);
}

WEFT_END_C
#endif
