/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/tape.h - tapes: the first argument of every operator.
 *
 * A tape owns the results of the operators that run on it (temporaries), keeps the first error, and has the seed of
 * random operators. If it records, it also keeps what the backward pass needs. One thread at a time uses a tape.
 * Several threads use one tape each; their tapes may record into one graph (`parent`). Nothing is thread-local.
 *
 *     weft_status step(weft_tensor *x, weft_tensor *w, weft_tensor *target, weft_optimizer *sgd, uint64_t seed)
 *     {
 *         weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = seed});
 *         weft_tensor *loss = weft_cross_entropy(t, weft_linear(t, x, w, NULL), target);
 *         weft_backward(t, loss);
 *         weft_status status = weft_tape_status(t); // asked once, for all operators above
 *         if (!status)
 *             status = weft_optimizer_apply(sgd, weft_tape_gradients(t, weft_optimizer_parameters(sgd)));
 *         weft_tape_close(t); // loss and all temporaries are gone
 *         return status;
 *     }
 *
 * ERRORS. After an operator has failed, every later one on the tape does nothing and returns NULL. So a program
 * checks the tape once, at the end.
 *
 * On a GPU, operators are queued and no operator waits. Some errors are only seen when the GPU computes: an index or
 * target outside of its range, a wrong offset, a row that is no distribution, an integer divided by 0. The tape
 * fails with such an error after the next wait for its stream: a copy of a result to the CPU, or weft_tape_wait.
 * Until then the values are undefined, and steps with them may already have changed parameters. If nothing waits
 * before the tape is closed, the error becomes that of its parent; without a parent it is logged. It is also logged
 * if the program has not asked for the status of the tape before it closes the tape. If the tape has already
 * failed, for example because a later operator was refused, the text of the GPU's error is added to the text of the
 * tape's error.
 *
 * LEAVES. A leaf is a tensor that was not recorded into the tape's graph. The backward pass computes the gradients
 * of leaves that want one (weft_tensor_set_requires_grad). A tape without a parent has its own graph, and a child
 * tape records into the graph of its parent; so all descendants of one tape share its graph.
 *
 * RANDOM NUMBERS. The numbers that a random operator draws depend only on the tape's seed and on how many random
 * operators ran on the tape before. Tapes with the same seed draw the same numbers. The numbers of a child tape also
 * depend on how many tapes were opened into the same graph before it, so open child tapes in a fixed order.
 *
 * A program that opens one tape per step should give each step of each run its own seed, such as (run << 32) + step.
 * With several workers, put the rank into the seed too, for example between the bits of `run` and the bits of
 * `step`. Seeds that differ by one give unrelated numbers. To continue such a program later with the same numbers,
 * save the step number.
 */
#ifndef WEFT_TAPE_H
#define WEFT_TAPE_H

#include <weft/stream.h>
#include <weft/tensor.h>

WEFT_BEGIN_C

/* The mode of modules that behave differently in training and evaluation (dropout, batch norm; weft/nn.h). */
typedef enum weft_mode {
    WEFT_MODE_MODULE = 0, /* the module's own flag (weft_module_train); for a tape with a parent: the parent's mode */
    WEFT_MODE_TRAIN = 1,
    WEFT_MODE_EVAL = 2,
} weft_mode;

typedef struct weft_tape_options {
    bool record; /* keep what the backward pass needs; otherwise operators only compute */
    /* The seed of random operators (dropout, categorical). A tape with a parent ignores this field: it uses the
     * parent's seed, but draws other numbers than the parent. */
    uint64_t seed;
    /* The tape records into this parent's graph. A backward pass on the parent uses all records that its outputs
     * depend on, including the records of a child that is still open. No thread may record on that child during the
     * pass, so first close the children that other threads use. Children of one parent may be open at the same time,
     * each on its own thread. The thread that uses the parent opens and closes them. Another thread may do so only
     * while no thread uses the parent.
     *
     * A parameter's gradient is the sum of one share for each use, in the order in which the uses were recorded. If
     * children record at the same time, the last bits of the gradient may differ from run to run. Under a
     * distributed context the bits do not differ: the shares of a child have their place in the order where the
     * child was opened. If a child has failed, its records are dropped, and the parent can still be used, without
     * the child's results. */
    weft_tape *parent;
    weft_mode mode; /* the mode of modules on this tape; other threads may use the same modules in another mode */
    /* The device on which operators compute; operands and results are on it. If the device does not exist, the tape
     * has failed from the start. All zero: with a parent the parent's device, otherwise the CPU. */
    weft_device device;
    /* The stream on which the tape queues its work on a GPU; it is on the tape's device (weft/stream.h). The tape
     * takes a reference. NULL: with a parent of the same device the parent's stream, otherwise weft's stream of the
     * device. */
    weft_stream *stream;
} weft_tape_options;

/* Opens a tape; `options` NULL: it does not record and has seed 0. NULL only if memory is out; an operator on a NULL
 * tape returns NULL. */
WEFT_API weft_tape *weft_tape_open_sized(const weft_tape_options *options, size_t size);
static inline weft_tape *weft_tape_open(const weft_tape_options *options)
{
    return weft_tape_open_sized(options, sizeof(*options));
}

/*
 * The tape of a call or of a batch that a handler serves (weft/rpc.h, weft/batch.h): it owns temporaries until the
 * call or the batch ends. Borrowed. It does not record, unless the call has a distributed context (weft/context.h).
 *   The seed of a call's tape follows from the ranks of both workers, the caller's incarnation, and the number of the
 *   call, so every call and every attempt has its own.
 *   The seed of a batch's tape follows from this worker's rank and incarnation, the function's name, and the number of
 *   earlier batches of that function.
 * A replay in the simulation draws the same numbers. weft_tape_set_seed sets another seed.
 */
WEFT_API weft_tape *weft_call_tape(weft_call *call);
WEFT_API weft_tape *weft_batch_tape(weft_batch *batch);

/* Sets the seed of a tape: from now on random operators draw the numbers that they would draw on a new tape with
 * this seed. Use it for tapes that weft opened, those of calls and batches. NULL does nothing. */
WEFT_API void weft_tape_set_seed(weft_tape *tape, uint64_t seed);

/* Sets the mode of modules that run on the tape from now on. NULL does nothing. */
WEFT_API void weft_tape_set_mode(weft_tape *tape, weft_mode mode);

/*
 * Drops all temporaries, gradients and records of the tape. First take a reference (weft_tensor_ref) to what you
 * keep. Close a child before its parent. NULL does nothing.
 */
WEFT_API void weft_tape_close(weft_tape *tape);

/* The code of the first failure on the tape, or WEFT_OK; WEFT_ERR_MEMORY for a NULL tape. */
WEFT_API weft_status weft_tape_status(const weft_tape *tape);
/* The first failure on the tape, or NULL; borrowed until the tape closes. Its message names the operator, its
 * operands, and the mismatch. On a GPU a wait for the stream may show that an earlier operator failed; the error is
 * then that operator's. */
WEFT_API const weft_error *weft_tape_error(const weft_tape *tape);
/*
 * Waits until the GPU has done all work of the tape's stream, and returns weft_tape_status. On the CPU there is
 * nothing to wait for. WEFT_ERR_SYSTEM: the GPU has failed.
 */
WEFT_API weft_status weft_tape_wait(weft_tape *tape);
/* Makes the tape fail with your own error, for modules and operators that you compose of others. If the tape has
 * failed already, the first error stays. */
WEFT_API void weft_tape_fail(weft_tape *tape, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

WEFT_API bool weft_tape_records(const weft_tape *tape); /* whether the tape records */

/*
 * Gives your reference to `tensor` to the tape. The tape drops the reference when the tape is closed, or immediately
 * if this function fails. Returns the tensor; NULL if `tensor` is NULL, or if the tape is NULL or has failed.
 */
WEFT_API weft_tensor *weft_tape_take(weft_tape *tape, weft_tensor *tensor);

/* ---- Gradients ------------------------------------------------------------------------------------------- */

/*
 * Computes the gradient of `loss` for every leaf that wants one, and adds it to the gradients of earlier passes on
 * this tape. `loss` must have one element, and must have been recorded into this tape's graph. The pass uses up the
 * records: a second pass over them fails with WEFT_ERR_STATE, unless the first had the option `retain`. Gradients
 * belong to the tape that ran the pass.
 *
 * On failure the tape keeps the error, and the gradients are incomplete: WEFT_ERR_SHAPE (`loss` has more or less
 * than one element), WEFT_ERR_INVALID (`loss` was not recorded), WEFT_ERR_STATE (the records are used up, or a
 * tensor that the pass needs was changed in place), WEFT_ERR_MEMORY.
 */
WEFT_API void weft_backward(weft_tape *tape, weft_tensor *loss);

typedef struct weft_backward_options {
    bool retain; /* keep the records, so that another pass may follow */
} weft_backward_options;

/*
 * Runs a backward pass from several outputs, with given gradients. gradients[i] has the shape and dtype of
 * outputs[i], and must not change until the tape closes. For an output of one element, a NULL gradient means 1.
 * `options` NULL takes the defaults.
 */
WEFT_API void weft_backward_with_sized(weft_tape *tape, weft_tensors outputs, weft_tensors gradients,
                                       const weft_backward_options *options, size_t size);
static inline void weft_backward_with(weft_tape *tape, weft_tensors outputs, weft_tensors gradients,
                                      const weft_backward_options *options)
{
    weft_backward_with_sized(tape, outputs, gradients, options, sizeof(*options));
}

/* The gradient of leaf `x`, dense and contiguous; NULL if it has none. Borrowed until the next backward pass, or
 * until the tape closes. */
WEFT_API weft_tensor *weft_tape_grad(const weft_tape *tape, const weft_tensor *x);

/*
 * The gradients of `parameters` in the same order, for weft_optimizer_apply. Each entry is a dense gradient, a
 * gradient of some rows only (of a sparse embedding), or empty. The list is borrowed until the tape closes. Its
 * tensors do not change: a later pass makes new tensors for a new list. After a failure the list has no entries.
 */
WEFT_API weft_gradients weft_tape_gradients(weft_tape *tape, weft_tensors parameters);
/* The gradients of `parameters` in the same order, all dense, with a tensor of zeros for each parameter without a
 * gradient. */
WEFT_API weft_tensors weft_tape_grads(weft_tape *tape, weft_tensors parameters);

WEFT_END_C
#endif
