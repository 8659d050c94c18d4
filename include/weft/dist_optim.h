/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/dist_optim.h - one optimizer over parameters that live on several workers.
 *
 *     weft_status step(weft_dist_optimizer *sgd, weft_context *c, weft_tape *t, weft_tensor *loss)
 *     {
 *         weft_dist_backward(t, loss, NULL);
 *         weft_status st = weft_tape_status(t);
 *         return st ? st : weft_dist_optimizer_step(sgd, &c, 1, NULL); // on all owners, by the gradients of that context
 *     }
 *     weft_status make(weft_agent *agent, weft_rref *const *parameters, size_t count, weft_dist_optimizer **out)
 *     { // parameters: handles to tensors, or to lists of them, on whichever workers
 *         weft_optimizer_spec spec = {.kind = WEFT_OPTIMIZER_SGD, .sgd.lr = 0.05};
 *         return weft_dist_optimizer_create(agent, parameters, count, &spec, out, NULL);
 *     }
 *
 * A pass can take the step along, which saves a message each way: weft_dist_backward(t, loss, &(weft_pass_options){.step = sgd}).
 *
 * Each owner has an optimizer of its own for its part, which goes when the last handle to it does. Several trainers may
 * have an optimizer each over the same parameters: then each has states of its own (momenta), as in PyTorch. The
 * options of an optimizer stay as they are. Rates cannot be changed, and its state cannot be read, saved or passed on
 * to another worker. For a schedule make another optimizer (with has_lr in its spec if the rate is 0).
 *
 * PARAMETERS OF MODULES are stepped beside (WEFT_UPDATE_BESIDE): nobody waits for a step, no backward pass is disturbed, no step is
 * lost. Other tensors are stepped as the spec says; then no other thread may use them meanwhile.
 *
 * THREADS. Any thread; an optimizer may be used by several.
 */
#ifndef WEFT_DIST_OPTIM_H
#define WEFT_DIST_OPTIM_H

#include <weft/context.h>
#include <weft/optim.h>
#include <weft/rref.h>

WEFT_BEGIN_C

typedef struct weft_dist_optimizer weft_dist_optimizer;

/*
 * Makes it, and waits until all owners have. parameters[i] names a float32 or float64 tensor or a list of them; the
 * order among those of one owner is theirs in the list. Steps at an owner run one at a time; a reader may see some of
 * its parameters before and some after a step. *error, if not NULL, receives the detail; you release it.
 * WEFT_ERR_INVALID (NULL, no parameters), WEFT_ERR_TOO_LARGE (more than 1,023,000 parameters of one owner),
 * WEFT_ERR_REMOTE (an owner could not: the error says which, and why), and the errors of calls. `max_norm` and
 * `error_if_nonfinite` of the spec apply at each owner to the gradients of that owner alone, and an owner may fail
 * after others have stepped; for the norm over all owners use weft_dist_step_options.
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_create(weft_agent *agent, weft_rref *const *parameters,
                                                               size_t count, const weft_optimizer_spec *spec,
                                                               weft_dist_optimizer **out, weft_error **error);
WEFT_API weft_dist_optimizer *weft_dist_optimizer_ref(weft_dist_optimizer *optimizer);
WEFT_API void weft_dist_optimizer_unref(weft_dist_optimizer *optimizer);          /* NULL does nothing */
WEFT_API size_t weft_dist_optimizer_owners(const weft_dist_optimizer *optimizer); /* how many workers have a part */

typedef struct weft_dist_step_options {
    /* > 0: gradients are scaled down so that the norm of all of them, over all owners, is at most this. */
    double max_norm;
    double *norm; /* receives that norm, before scaling, if max_norm > 0 or error_if_nonfinite */
    /* Fail with WEFT_ERR_INVALID before any owner steps if that norm is infinite or NaN. Without this option such a
     * norm makes parameters NaN, and the step succeeds (weft/optim.h: CLIPPING). */
    bool error_if_nonfinite;
    int64_t timeout_ms; /* of each call; 0: the agent's default */
    weft_error **error; /* the first owner's error; the log has the others'. You release it */
} weft_dist_step_options;

/*
 * Steps by the gradients of the contexts, added in this order, and waits until all owners have: one message to an
 * owner, and one more with max_norm or error_if_nonfinite. A parameter without a gradient is left alone. Errors: that
 * of the first owner, in the order of the parameters, that failed; others may have stepped. WEFT_ERR_BUSY: the memory
 * budget of an owner is exhausted (docs/budget.md).
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_step(weft_dist_optimizer *optimizer,
                                                             weft_context *const *contexts, size_t count,
                                                             const weft_dist_step_options *options);

WEFT_END_C
#endif
