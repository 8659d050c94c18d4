/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/tape.h - a tape: what every operator takes first.
 *
 * A tape owns the results of the operators that run on it (temporaries), keeps the first error, and has the
 * seed of random operators. If it records, it also keeps what the backward pass needs. Nothing is thread-local:
 * one thread at a time uses a tape, and any number of threads may use a tape each, also over one graph (`parent`).
 *
 *     weft_status step(weft_tensor *x, weft_tensor *w, weft_tensor *target, weft_optimizer *sgd, uint64_t seed)
 *     {
 *         weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = seed});
 *         weft_tensor *loss = weft_cross_entropy(t, weft_linear(t, x, w, NULL), target);
 *         weft_backward(t, loss);
 *         weft_status st = weft_tape_status(t); // asked once, for all operators above
 *         if (!st)
 *             st = weft_optimizer_apply(sgd, weft_tape_gradients(t, weft_optimizer_parameters(sgd)));
 *         weft_tape_close(t); // loss and all temporaries are gone
 *         return st;
 *     }
 *
 * ERRORS. After an operator has failed every later one on the tape does nothing and returns NULL. So a program
 * asks the tape once, at the end.
 *
 * LEAVES. A leaf is a tensor that was not recorded into the tape's graph: the backward pass gives it a gradient if it wants one
 * (weft_tensor_set_requires_grad). A tape has a graph of its own, or its parent's; so all that have the same first ancestor record
 * into one.
 *
 * RANDOM NUMBERS. What a random operator draws depends on two things alone: the tape's seed, and how many
 * random operators ran on the tape before. Two tapes with the same seed draw the same numbers. (Those of a child depend also on how many
 * tapes its first ancestor's descendants opened before it: open them in a fixed order for the same numbers.) A program that
 * opens one tape a step should give each step of each run a seed of its own, for example `run << 32 | step`;
 * with several workers, put the rank between the two. Seeds that differ by one draw numbers that are as
 * unrelated as those of any other two. Such a program needs to save only the number of its step to be continued
 * later, in another process too, with the same numbers.
 */
#ifndef WEFT_TAPE_H
#define WEFT_TAPE_H

#include <weft/tensor.h>

WEFT_BEGIN_C

/* How modules run that do one thing in training and another in evaluation (dropout, batch norm; weft/nn.h). */
typedef enum weft_mode {
    WEFT_MODE_MODULE = 0, /* as the module's own flag says (weft_module_train); with a parent: as its tape says */
    WEFT_MODE_TRAIN = 1,
    WEFT_MODE_EVAL = 2,
} weft_mode;

typedef struct weft_tape_options {
    bool record; /* keep what the backward pass needs; else operators only compute */
    /* For random operators (dropout, categorical). A tape with a parent has the parent's seed, whatever stands
     * here, but draws other numbers than the parent does. */
    uint64_t seed;
    /* This tape records into its parent's graph: a backward pass of the parent goes through what this tape recorded,
     * once it is closed; do not begin one before. Children of one parent may be open at once, each on a thread of
     * its own; the parent's own thread opens and closes them, or sees to it that nobody uses the parent meanwhile. A
     * parameter's gradient is the sum of its shares, in the order in which they were recorded: where children record
     * at once, its last bits may differ from run to run (under a distributed context the last bits do not differ:
     * the records of a child take the place at which the child was opened). The records of a child that failed are
     * dropped, and its parent goes on: use none of the child's results there. */
    weft_tape *parent;
    weft_mode mode; /* so that threads may train and evaluate one module at once */
    /* Where operators compute: their operands must lie there, and so do their results. A tape with a parent has
     * the parent's. If there is no such device, the tape has failed from the start. All zero: the CPU. */
    weft_device device;
} weft_tape_options;

/* Opens a tape. With `options` NULL it does not record and has seed 0. NULL only if memory is out; an operator
 * on a NULL tape returns NULL. */
WEFT_API weft_tape *weft_tape_open(const weft_tape_options *options);

/* From now on random operators draw what they would draw on a new tape of this seed. It is meant for tapes that
 * weft opened, those of calls and batches. NULL does nothing. */
WEFT_API void weft_tape_set_seed(weft_tape *tape, uint64_t seed);

/* From now on modules run on the tape in this mode. NULL does nothing. */
WEFT_API void weft_tape_set_mode(weft_tape *tape, weft_mode mode);

/*
 * Drops every temporary, gradient and record of the tape. Take a reference (weft_tensor_ref) to what you keep
 * before you close. Close a child before its parent. NULL does nothing.
 */
WEFT_API void weft_tape_close(weft_tape *tape);

/* WEFT_OK, or the code of the first failure; WEFT_ERR_MEMORY for a NULL tape. */
WEFT_API weft_status weft_tape_status(const weft_tape *tape);
/* The first failure. Its message names the operator, its operands, and what did not fit. Borrowed from the
 * tape; NULL if there is none. */
WEFT_API const weft_error *weft_tape_error(const weft_tape *tape);
/* Makes the tape fail, with an error of yours: for modules and operators that you compose of others. A tape
 * that has failed already keeps its first error. */
WEFT_API void weft_tape_fail(weft_tape *tape, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

WEFT_API bool weft_tape_records(const weft_tape *tape);

/*
 * Gives your reference to `tensor` to the tape, which drops it when the tape closes, or at once if this fails.
 * Returns the tensor; NULL if `tensor` is NULL, or the tape is NULL or has failed.
 */
WEFT_API weft_tensor *weft_tape_take(weft_tape *tape, weft_tensor *tensor);

/* ---- Gradients ------------------------------------------------------------------------------------------- */

/*
 * Computes the gradient of `loss` with respect to every leaf that wants one. `loss` has one element, and was
 * recorded into this tape's graph. The gradients are added to those that earlier passes on this tape left. The pass uses up
 * the records: a second pass over the same ones fails with WEFT_ERR_STATE, unless the first one had the option
 * `retain`.
 *
 * The tape keeps a failure, and the gradients are incomplete then: WEFT_ERR_SHAPE (`loss` has not one element),
 * WEFT_ERR_INVALID (`loss` was not recorded), WEFT_ERR_STATE (also: a tensor that the pass needs was changed in
 * place), WEFT_ERR_MEMORY. Gradients belong to the tape that ran the pass.
 */
WEFT_API void weft_backward(weft_tape *tape, weft_tensor *loss);

typedef struct weft_backward_options {
    bool retain; /* keep the records, so that another pass may follow */
} weft_backward_options;

/*
 * Does the same for several outputs, whose gradients you give: gradients[i] has the shape and dtype of
 * outputs[i], and its contents must not change until the tape closes. NULL instead of a gradient means 1; that
 * is allowed for an output of one element. `options` NULL takes the defaults.
 */
WEFT_API void weft_backward_with(weft_tape *tape, weft_tensors outputs, weft_tensors gradients,
                                 const weft_backward_options *options);

/* The gradient of leaf `x`, dense and contiguous. Borrowed until the next backward pass, or until the tape closes.
 * NULL if `x` got none. */
WEFT_API weft_tensor *weft_tape_grad(const weft_tape *tape, const weft_tensor *x);

/*
 * The gradients of `parameters` in the same order, as the passes left them: dense, of rows only (a sparse
 * embedding's), or none. So an optimizer takes them (weft_optimizer_apply). The list is borrowed until the tape
 * closes, and the tensors in it do not change: a later pass makes new ones for a new list. It is empty after a failure.
 */
WEFT_API weft_gradients weft_tape_gradients(weft_tape *tape, weft_tensors parameters);
/* The same, all dense, with a tensor of zeros for each that got none. */
WEFT_API weft_tensors weft_tape_grads(weft_tape *tape, weft_tensors parameters);

WEFT_END_C
#endif
