/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/hooks.h - functions of yours that a backward pass calls for a leaf (a parameter): with each share of its
 * gradient, and with the whole.
 *
 *     static weft_tensor *halve(weft_tensor *gradient, void *arg)
 *     {
 *         (void)arg;
 *         weft_tensor *half = weft_tensor_clone(gradient); // what you are given may be seen by others
 *         for (int64_t i = 0; half && i < weft_tensor_numel(half); i++)
 *             ((float *)weft_tensor_data(half))[i] *= 0.5f;
 *         return half; // NULL makes the pass fail
 *     }
 *     weft_status halve_shares_of(weft_tape *t, weft_tensor *weight)
 *     {
 *         weft_hooks *hooks = weft_hooks_create();
 *         weft_status st = weft_hooks_add(hooks, weight, &(weft_leaf_hook){.pre = halve});
 *         if (!st)
 *             weft_tape_set_hooks(t, hooks);
 *         weft_hooks_unref(hooks); // the tape has a reference of its own
 *         return st;
 *     }
 *
 * THREADS. Hooks run on the thread that runs the backward pass, with no lock of weft held: they may wait, call
 * and begin passes. One set of hooks may be used on any number of tapes and threads at once. References may be
 * taken and dropped on any thread.
 */
#ifndef WEFT_HOOKS_H
#define WEFT_HOOKS_H

#include <weft/tape.h>

WEFT_BEGIN_C

/*
 * Receives a gradient, borrowed and not to be changed: others may see it. Returns a reference: to the same tensor
 * (weft_tensor_ref), or to another of its shape and dtype that takes its place. NULL, or a tensor of another shape
 * or dtype, makes the pass fail with WEFT_ERR_INVALID.
 */
typedef weft_tensor *(*weft_gradient_fn)(weft_tensor *gradient, void *arg);

typedef struct weft_leaf_hook {
    /* Called with each share of the leaf's gradient before it is added to the sum; or NULL. */
    weft_gradient_fn pre;
    /*
     * Called once a pass with the leaf and the sum of its shares; not in a pass that brought the leaf none. Or NULL.
     * The function may change `sum` in place, also after it has returned: then it sets *wait (NULL before) to a
     * future, whose reference the pass takes over. Until any thread completes that future `sum` may be changed, and the pass does not end. What it
     * returns, or the future's failure, makes the pass fail. The tensors are borrowed; until *wait completes they stay.
     */
    weft_status (*post)(weft_tensor *leaf, weft_tensor *sum, weft_future **wait, void *arg);
    void *arg;
    weft_drop_fn drop; /* called with `arg` when the set's last reference goes; or NULL */
    /* As post, and besides gives the tensor that takes the sum's place: a reference, to `sum` or to another of its shape and dtype,
     * contiguous. NULL makes the pass fail. Or NULL; called before post. */
    weft_tensor *(*replace)(weft_tensor *leaf, weft_tensor *sum, weft_future **wait, void *arg);
    /* Called at the end of a pass that brought the leaf no gradient here, once all that hooks began is complete; not if the pass has
     * failed. Gives what becomes its gradient: a reference to a contiguous tensor of its shape and dtype; NULL: it has none. Or NULL. */
    weft_tensor *(*absent)(weft_tensor *leaf, void *arg);
} weft_leaf_hook;

/* An empty set of hooks, with one reference; NULL if memory is out. */
WEFT_API weft_hooks *weft_hooks_create(void);
WEFT_API weft_hooks *weft_hooks_ref(weft_hooks *hooks);
WEFT_API void weft_hooks_unref(weft_hooks *hooks); /* NULL does nothing */

/*
 * Adds a hook for `leaf`, of which it takes a reference. Several hooks of one leaf run in the order in which they
 * were added, each with what the one before made. A leaf with hooks gets dense gradients only. WEFT_ERR_INVALID (NULL,
 * or a tensor that does not want a gradient), WEFT_ERR_MEMORY; then `drop` has run (unless `how` is NULL). Not while a pass uses the set.
 */
WEFT_API WEFT_NODISCARD weft_status weft_hooks_add(weft_hooks *hooks, weft_tensor *leaf, const weft_leaf_hook *how);

/*
 * A function that a pass calls once on this worker: when all leaves here have had their hooks, before the pass waits for what they
 * began; or when it has failed, with `why` (else NULL), and then nothing more of it follows. It may set *wait as a post hook does. What it
 * returns, or the future's failure, makes the pass fail. weft_backward, weft_backward_with and weft_dist_backward call it also where no pass
 * begins: with the error of the tape, which had failed before or fails then.
 */
typedef weft_status (*weft_pass_end_fn)(const weft_error *why, weft_future **wait, void *arg);
/* In place of the one before; NULL: none. `arg` lives as long as the set. Not while a pass uses the set. */
WEFT_API void weft_hooks_set_end(weft_hooks *hooks, weft_pass_end_fn fn, void *arg);

/* From now on backward passes begun with this tape call these hooks. NULL: none. The tape takes a reference. */
WEFT_API void weft_tape_set_hooks(weft_tape *tape, weft_hooks *hooks);

/*
 * A tensor with x's elements (the same storage) whose gradient goes on to x as `fn` makes it: for any tensor of a
 * tape, not only leaves. `fn` gets the whole gradient, once a pass. `drop(arg)` runs when the record ends, or at once if nothing is recorded or this fails.
 */
WEFT_API weft_tensor *weft_on_gradient(weft_tape *tape, weft_tensor *x, weft_gradient_fn fn, void *arg,
                                       weft_drop_fn drop);

WEFT_END_C
#endif
