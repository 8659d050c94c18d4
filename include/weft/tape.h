/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/tape.h - a tape: what every operator takes first.
 *
 * A tape records operators or not, owns their results (temporaries), keeps the first error, and carries the seed of random
 * operators. Nothing is thread-local: a tape is used by one thread at a time, any number of tapes by any number of threads.
 *
 * The numbers that a random operator draws are a function of the seed and of how many ran on its tape before it, and of
 * nothing else: two tapes of one seed draw the same. A program that opens a tape a step gives each a seed that follows from
 * the run and the step, each from a range of its own, so that no two steps of any two runs have the same one:
 *     .seed = run << 32 | step
 * (with several workers the rank between the two). Neighbouring seeds are as unrelated as any. Such a program needs to keep
 * its step number alone to go on later, in another process too, as if it had never ended; and a step can be done again.
 *
 * After an error every operator on the tape does nothing and returns NULL; the tape is asked once, at the end.
 * A tensor that this tape did not make is a leaf: it gets a gradient if it wants one (weft_tensor_set_requires_grad). So
 * is a tensor of another tape, unless that tape is this one's parent or its parent's parent and so on.
 */
#ifndef WEFT_TAPE_H
#define WEFT_TAPE_H

#include <weft/tensor.h>

WEFT_BEGIN_C

typedef struct weft_tape_options {
    bool record;   /* keep what the backward pass needs; off: operators only compute */
    uint64_t seed; /* of random operators (dropout, categorical); a child takes its parent's and streams of its own */
    weft_tape
        *parent; /* what the child recorded moves there when the child closes; not used meanwhile by other threads */
} weft_tape_options;

/* A new tape; `options` NULL: does not record, seed 0. NULL only if memory is out; operators on a NULL tape return NULL. */
WEFT_API weft_tape *weft_tape_open(const weft_tape_options *options);

/* From here on its random operators draw what those of a new tape of this seed would. For tapes that somebody else opened: those of
 * calls and batches. NULL is a no-op. */
WEFT_API void weft_tape_set_seed(weft_tape *tape, uint64_t seed);

/*
 * Drops every temporary, gradient and record: what you keep you weft_tensor_ref before. A child is closed before its
 * parent. NULL is a no-op.
 */
WEFT_API void weft_tape_close(weft_tape *tape);

/* WEFT_OK or the first failure; WEFT_ERR_MEMORY for a NULL tape. */
WEFT_API weft_status weft_tape_status(const weft_tape *tape);
/* The first failure: names the operator, its operands, and what did not fit. Borrowed from the tape; NULL if none. */
WEFT_API const weft_error *weft_tape_error(const weft_tape *tape);
/* Keeps a failure of your own, for modules and operators composed of others. The first one counts. */
WEFT_API void weft_tape_fail(weft_tape *tape, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

WEFT_API bool weft_tape_records(const weft_tape *tape);

/*
 * Hands your reference to `tensor` to the tape, which drops it when it closes; on every path, failure included. Returns
 * the tensor, or NULL if it is NULL or the tape has failed.
 */
WEFT_API weft_tensor *weft_tape_take(weft_tape *tape, weft_tensor *tensor);

/* ---- Gradients -------------------------------------------------------------------------------------------------- */

/*
 * Computes the gradient of `loss` (one element, recorded on this tape) with respect to every leaf that wants one, and adds
 * it to what earlier backward passes on this tape left. The records that it used are gone: a second pass over them fails
 * (WEFT_ERR_STATE), see `retain`. Failures are kept by the tape: WEFT_ERR_SHAPE (not one element), WEFT_ERR_INVALID (not
 * recorded), WEFT_ERR_STATE (a tensor that the pass needs was changed in place), WEFT_ERR_MEMORY; gradients are then
 * incomplete.
 */
WEFT_API void weft_backward(weft_tape *tape, weft_tensor *loss);

typedef struct weft_backward_options {
    bool retain; /* keep the records, so that another pass may follow */
} weft_backward_options;

/*
 * The same from several outputs, with their gradients (same count, shapes and dtypes; contents must not change until the
 * tape closes). A NULL gradient stands for 1, and is legal for an output of one element. `options` NULL: defaults.
 */
WEFT_API void weft_backward_with(weft_tape *tape, weft_tensors outputs, weft_tensors gradients,
                                 const weft_backward_options *options);

/* The gradient of leaf `x`, contiguous; borrowed until the next backward pass or close. NULL if it got none. */
WEFT_API weft_tensor *weft_tape_grad(const weft_tape *tape, const weft_tensor *x);

/*
 * The gradients of `parameters` in their order, zeros for those that got none. Borrowed until the tape closes; the tensors
 * in it do not change. Empty after a failure.
 */
WEFT_API weft_tensors weft_tape_grads(weft_tape *tape, weft_tensors parameters);

WEFT_END_C
#endif
