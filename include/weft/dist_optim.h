/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/dist_optim.h - one optimizer for parameters that live on several workers.
 *
 *     weft_status step(weft_dist_optimizer *sgd, weft_context *c, weft_tape *t, weft_tensor *loss)
 *     {
 *         weft_dist_backward(t, loss, NULL);
 *         weft_status st = weft_tape_status(t);
 *         return st ? st : weft_dist_optimizer_step(sgd, &c, 1, NULL); // on all owners
 *     }
 *     weft_status make(weft_agent *agent, weft_rref *const *parameters, size_t count, weft_dist_optimizer **out)
 *     { // parameters: handles to tensors, or to lists of them, on whichever workers
 *         weft_optimizer_spec spec = {.kind = WEFT_OPTIMIZER_SGD, .sgd.lr = 0.05};
 *         return weft_dist_optimizer_create(agent, parameters, count, &spec, out, NULL);
 *     }
 *
 * A pass can include the step, which saves one message in each direction:
 * weft_dist_backward(t, loss, &(weft_pass_options){.step = sgd}).
 *
 * Each owner has an optimizer for its part, which is freed with the last handle to it. Several trainers may have an
 * optimizer each for the same parameters; each then has its own state (momenta), as in PyTorch. The options of an
 * optimizer, its rate included, cannot be changed. Its state cannot be read, saved or sent to another worker. For a
 * schedule make another optimizer (with has_lr in its spec if the rate is 0).
 *
 * PARAMETERS OF MODULES are stepped as with WEFT_UPDATE_BESIDE: no reader waits for a step, no backward pass is
 * disturbed, and no step is lost. Other tensors are stepped as the spec says; no other thread may then use them
 * meanwhile.
 *
 * THREADS. Any thread; several threads may use one optimizer at once.
 */
#ifndef WEFT_DIST_OPTIM_H
#define WEFT_DIST_OPTIM_H

#include <weft/context.h>
#include <weft/optim.h>
#include <weft/rref.h>

WEFT_BEGIN_C

typedef struct weft_dist_optimizer weft_dist_optimizer;

/*
 * Makes the optimizer, and waits until all owners have made their parts. Each of `parameters` refers to a float32 or
 * float64 tensor, or to a list of them; the parameters of one owner keep the order of this list. Steps at one owner run
 * one at a time; a reader may see some of its parameters before a step and others after it. *error, if `error` is not
 * NULL, receives the detail; you release it.
 *
 * `max_norm` and `error_if_nonfinite` of the spec apply to the gradients of each owner alone, and one owner may fail
 * after others have stepped. For the norm over all owners use weft_dist_step_options. Errors:
 *   WEFT_ERR_INVALID: NULL, or no parameters.
 *   WEFT_ERR_TOO_LARGE: more than 1,023,000 parameters at one owner.
 *   WEFT_ERR_REMOTE: an owner failed; the error has its name and the reason.
 *   The errors of calls.
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_create(weft_agent *agent, weft_rref *const *parameters,
                                                               size_t count, const weft_optimizer_spec *spec,
                                                               weft_dist_optimizer **out, weft_error **error);
WEFT_API weft_dist_optimizer *weft_dist_optimizer_ref(weft_dist_optimizer *optimizer);
WEFT_API void weft_dist_optimizer_unref(weft_dist_optimizer *optimizer);          /* NULL does nothing */
WEFT_API size_t weft_dist_optimizer_owners(const weft_dist_optimizer *optimizer); /* the number of owners */

typedef struct weft_dist_step_options {
    /* Above 0: gradients are scaled down so that the norm of all of them, over all owners, is at most this. */
    double max_norm;
    double *norm; /* receives the norm before scaling, with max_norm > 0 or error_if_nonfinite */
    /* If the norm is infinite or NaN, fail with WEFT_ERR_INVALID before any owner steps. Otherwise such a norm makes
     * parameters NaN, and the step succeeds (weft/optim.h: CLIPPING). */
    bool error_if_nonfinite;
    int64_t timeout_ms; /* of each call; 0: the agent's default */
    weft_error **error; /* receives the first owner's error; you release it. The log has those of other owners */
} weft_dist_step_options;

/*
 * Steps with the gradients of the contexts, added in this order, and waits until all owners have stepped. It sends one
 * message to each owner, and another one with max_norm or error_if_nonfinite. Parameters without a gradient do not
 * change. Returns the error of the first owner that failed, in the order of the parameters; other owners may have
 * stepped. WEFT_ERR_BUSY: an owner's memory budget is exhausted (docs/budget.md).
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_step(weft_dist_optimizer *optimizer,
                                                             weft_context *const *contexts, size_t count,
                                                             const weft_dist_step_options *options);

WEFT_END_C
#endif
