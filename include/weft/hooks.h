/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/hooks.h - hooks: functions that a backward pass calls for a leaf (a parameter), with each share of its gradient
 * and with the sum of the shares.
 *
 *     static weft_tensor *halve(weft_tensor *gradient, void *arg)
 *     {
 *         (void)arg;
 *         weft_tensor *half = NULL; // others may use the given tensor
 *         weft_status status = weft_tensor_clone(gradient, &half, NULL);
 *         for (int64_t i = 0; !status && i < weft_tensor_numel(half); i++)
 *             ((float *)weft_tensor_data(half))[i] *= 0.5f;
 *         return half; // NULL makes the pass fail
 *     }
 *     weft_status halve_shares_of(weft_tape *t, weft_tensor *weight)
 *     {
 *         weft_hooks *hooks = NULL;
 *         weft_status status = weft_hooks_create(&hooks, NULL);
 *         if (!status)
 *             status = weft_hooks_add(hooks, weight, &(weft_leaf_hook){.pre = halve});
 *         if (!status)
 *             weft_tape_set_hooks(t, hooks);
 *         weft_hooks_unref(hooks); // the tape has a reference of its own
 *         return status;
 *     }
 *
 * THREADS. Hooks run on the thread that runs the backward pass, with no lock of weft held: they may wait, make calls
 * and begin passes. Several tapes and threads may use one set of hooks at once. Any thread may take and drop
 * references.
 */
#ifndef WEFT_HOOKS_H
#define WEFT_HOOKS_H

#include <weft/tape.h>

WEFT_BEGIN_C

/*
 * Receives a gradient: borrowed, and read-only because others may hold it. Returns a reference to the same tensor
 * (weft_tensor_ref), or to a tensor of its shape and dtype that replaces it. NULL, or a tensor of another shape or
 * dtype, makes the pass fail with WEFT_ERR_INVALID.
 */
typedef weft_tensor *(*weft_gradient_fn)(weft_tensor *gradient, void *arg);

/* Hooks of one leaf. */
typedef struct weft_leaf_hook {
    /* Called with each share of the leaf's gradient before the share is added to the sum. NULL: none. */
    weft_gradient_fn pre;
    /*
     * Called once in a pass that computed a gradient for the leaf, with the sum of its shares. NULL: none. The
     * function may change `sum` in place. To change `sum` after it has returned, the function sets *wait (initially
     * NULL) to a future, whose reference the pass takes over. The pass does not end before that future is complete.
     * If the function returns a failure, or the future fails, the pass fails. Both tensors are borrowed, until *wait
     * completes.
     */
    weft_status (*post)(weft_tensor *leaf, weft_tensor *sum, weft_future **wait, void *arg);
    void *arg;
    weft_drop_fn drop; /* called with `arg` when the last reference to the hooks is dropped; NULL: none */
    /* Like `post`, but returns the tensor that replaces the sum: a reference to `sum`, or to another contiguous tensor
     * of its shape and dtype. If it returns NULL, the pass fails. Called before `post`. NULL: none. */
    weft_tensor *(*replace)(weft_tensor *leaf, weft_tensor *sum, weft_future **wait, void *arg);
    /* Called at the end of a pass that computed no gradient for the leaf on this worker, when everything that hooks
     * began is complete. Not called if the pass has failed. NULL: none. Returns the leaf's gradient: a reference to
     * a contiguous tensor of its shape and dtype, or NULL for none. */
    weft_tensor *(*absent)(weft_tensor *leaf, void *arg);
} weft_leaf_hook;

/* Makes an empty set of hooks, with one reference. WEFT_ERR_MEMORY. */
WEFT_API WEFT_NODISCARD weft_status weft_hooks_create(weft_hooks **out, weft_error **error);
WEFT_API weft_hooks *weft_hooks_ref(weft_hooks *hooks);
WEFT_API void weft_hooks_unref(weft_hooks *hooks); /* NULL does nothing */

/*
 * Adds a hook for `leaf`, which it references. Several hooks of one leaf run in the order in which they were added,
 * each with the result of the one before. A leaf with hooks gets dense gradients only. Do not call this while a pass
 * uses the set. WEFT_ERR_INVALID (NULL, or a tensor that does not want a gradient), WEFT_ERR_MEMORY. On failure `drop`
 * has run, unless `how` is NULL.
 */
WEFT_API WEFT_NODISCARD weft_status weft_hooks_add_sized(weft_hooks *hooks, weft_tensor *leaf,
                                                         const weft_leaf_hook *how, size_t size);
static inline WEFT_NODISCARD weft_status weft_hooks_add(weft_hooks *hooks, weft_tensor *leaf, const weft_leaf_hook *how)
{
    return weft_hooks_add_sized(hooks, leaf, how, sizeof(*how));
}

/*
 * Called once in each pass on this worker. If the pass has not failed, the function runs after the hooks of all
 * leaves here, and before the pass waits for the operations that these hooks began. `why` is then NULL, and the
 * function may set *wait like a post hook. If the pass has failed, `why` is the error, and no further hook of the
 * pass is called. If the function returns a failure, or the future fails, the pass fails. weft_backward,
 * weft_backward_with and weft_dist_backward also call the function if no pass begins because the tape has failed;
 * `why` is then the tape's error.
 */
typedef weft_status (*weft_pass_end_fn)(const weft_error *why, weft_future **wait, void *arg);
/* Sets the function that ends each pass, in place of the former one; NULL: none. `arg` must live as long as the set. Do
 * not call this while a pass uses the set. */
WEFT_API void weft_hooks_set_end(weft_hooks *hooks, weft_pass_end_fn fn, void *arg);

/* Sets the hooks for backward passes that begin with this tape from now on; NULL: none. The tape takes a
 * reference. */
WEFT_API void weft_tape_set_hooks(weft_tape *tape, weft_hooks *hooks);

/*
 * Makes a tensor with x's elements (the same storage), and passes its gradient through `fn` on the way to x. x may be
 * any tensor of a tape, not only a leaf. `fn` gets the whole gradient, once in each pass. `drop(arg)` runs when the
 * record is freed, or at once if nothing is recorded or the function fails.
 */
WEFT_API weft_tensor *weft_on_gradient(weft_tape *tape, weft_tensor *x, weft_gradient_fn fn, void *arg,
                                       weft_drop_fn drop);

WEFT_END_C
#endif
