/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/dist_optim.h - one optimizer for parameters that live on several workers.
 *
 *     weft_status make(weft_agent *agent, weft_rref *net, weft_module *head, weft_dist_optimizer **out)
 *     { // net: a module on another worker (weft/remote_module.h); head: one of this worker
 *         weft_tensors own = weft_module_parameters(head);
 *         return weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(net), weft_of_tensors(own)),
 *                                           &(weft_optimizer_spec){.type = &weft_adam_type}, out, NULL);
 *     }
 *     void step(weft_dist_optimizer *adam, weft_tape *t, weft_tensor *loss) // t: of a context (weft/context.h)
 *     {
 *         weft_dist_backward(t, loss, &(weft_pass_options){.step = adam}); // all owners step
 *     }
 *
 * A step within the pass saves one message in each direction to each owner. weft_dist_optimizer_step steps with the
 * gradients of several passes or contexts, or clips them by their norm over all owners.
 *
 * Each owner has an optimizer for its parameters. It is freed with the last reference to the distributed optimizer.
 * Several trainers may each have an optimizer for the same parameters; each then has its own rate and state (momenta),
 * as in PyTorch.
 *
 * PARAMETERS OF MODULES are stepped as weft/optim.h says (UPDATES): no reader gets a mixture of two values, no backward
 * pass is disturbed, and no step is lost. With WEFT_UPDATE_BESIDE no reader waits either. Other tensors are stepped in
 * place; no other thread may use them during a step.
 *
 * A CUSTOM TYPE (weft/optimizer_type.h) must be registered by each owner before the optimizer is created.
 *
 * RATE AND STATE can be changed and saved: weft_dist_optimizer_set_lr, _ref_state, _set_state, _save, _load. These
 * functions call all owners at once and wait. Each returns the error of the first owner that failed, in the order of
 * the parameters; the error names the owner, and the log has the errors of other owners. If an owner has died, they
 * fail like calls to it. timeout_ms limits each call; 0: the agent's default. In a handler they continue even if the
 * served call is cancelled. While one of them runs, no step of this optimizer may run.
 *
 * THREADS. Any thread; several threads may use one optimizer at once, except as RATE AND STATE says.
 */
#ifndef WEFT_DIST_OPTIM_H
#define WEFT_DIST_OPTIM_H

#include <weft/context.h>
#include <weft/optim.h>
#include <weft/rref.h>
#include <weft/value.h>

WEFT_BEGIN_C

typedef struct weft_dist_optimizer weft_dist_optimizer;

/*
 * Registers an optimizer type of this program. This worker and others can then create optimizers of this type for
 * parameters on this worker. The type must exist until the agent is closed; it is not copied. If a worker creates
 * such an optimizer before the type is registered here, it gets WEFT_ERR_REMOTE with the remote code
 * WEFT_ERR_NOT_FOUND: use a barrier first (weft/group.h). WEFT_ERR_INVALID: NULL, or the type is wrong; the log
 * names the fault. WEFT_ERR_EXISTS: a type of this name is already registered, or is one of weft's own.
 * WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_register_optimizer(weft_agent *agent, const weft_optimizer_type *type);

/*
 * Makes the optimizer, and waits until all owners have made their parts. `parameters` has values of these types, in
 * any order. All tensors are float32 or float64.
 *   WEFT_TYPE_RREF: a handle to a tensor, to a list of tensors, or to a module (weft/remote_module.h), on any worker.
 *   WEFT_TYPE_TENSOR, WEFT_TYPE_TENSORS: tensors of this worker, such as weft_module_parameters of a module.
 *   WEFT_TYPE_LIST: a list of these. For the list of weft_remote_parameters pass weft_values_args(list).
 * The parameters of one owner keep the order of this list. Steps at one owner run one at a time. A reader may see some
 * parameters of an owner before a step and others after it, but never a mixture within one parameter of a module. The
 * function keeps no reference to handles; the owners reference their tensors. *error, if `error` is not NULL, receives
 * the detail; you release it.
 *
 * `max_norm` and `error_if_nonfinite` of the spec apply to the gradients of each owner alone, and one owner may fail
 * after others have stepped. For the norm over all owners use weft_dist_step_options. Errors:
 *   WEFT_ERR_INVALID: NULL, also in the list; no parameters; or an option that is wrong.
 *   WEFT_ERR_TYPE: the list has a value of another type.
 *   WEFT_ERR_TOO_LARGE: more than 1,023,000 parameters at one owner; lists nested more than WEFT_MAX_LIST_DEPTH deep.
 *   WEFT_ERR_REMOTE: an owner failed; the error has its name and the reason.
 *   The errors of calls.
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_create_sized(weft_agent *agent, weft_args_in parameters,
                                                                     const weft_optimizer_spec *spec, size_t size,
                                                                     weft_dist_optimizer **out, weft_error **error);
static inline WEFT_NODISCARD weft_status weft_dist_optimizer_create(weft_agent *agent, weft_args_in parameters,
                                                                    const weft_optimizer_spec *spec,
                                                                    weft_dist_optimizer **out, weft_error **error)
{
    return weft_dist_optimizer_create_sized(agent, parameters, spec, sizeof(*spec), out, error);
}
WEFT_API weft_dist_optimizer *weft_dist_optimizer_ref(weft_dist_optimizer *optimizer);
WEFT_API void weft_dist_optimizer_unref(weft_dist_optimizer *optimizer);          /* NULL does nothing */
WEFT_API size_t weft_dist_optimizer_owners(const weft_dist_optimizer *optimizer); /* the number of owners */

typedef struct weft_dist_step_options {
    /* Above 0: gradients are scaled down so that the norm of all of them, over all owners, is at most this. */
    double max_norm;
    double *norm; /* receives the norm before scaling, with max_norm > 0 or error_if_nonfinite */
    /* If the norm is infinite or NaN, fail with WEFT_ERR_INVALID before any owner steps. If false, the step succeeds,
     * and such a norm may make parameters NaN (weft/optim.h: CLIPPING). */
    bool error_if_nonfinite;
    int64_t timeout_ms; /* of each call; 0: the agent's default */
    weft_error **error; /* receives the error of the first owner that failed; you release it. The log has the others */
} weft_dist_step_options;

/*
 * Steps with the gradients of `contexts`, added in the order of that list, and waits until all owners have stepped.
 * It sends one message to each owner, and a second one with max_norm or error_if_nonfinite. Parameters without a
 * gradient do not change. Returns the error of the first owner that failed, in the order of the parameters; other
 * owners may have stepped. WEFT_ERR_BUSY: an owner's memory budget is exhausted (docs/budget.md).
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_step_sized(weft_dist_optimizer *optimizer,
                                                                   weft_context *const *contexts, size_t count,
                                                                   const weft_dist_step_options *options, size_t size);
static inline WEFT_NODISCARD weft_status weft_dist_optimizer_step(weft_dist_optimizer *optimizer,
                                                                  weft_context *const *contexts, size_t count,
                                                                  const weft_dist_step_options *options)
{
    return weft_dist_optimizer_step_sized(optimizer, contexts, count, options, sizeof(*options));
}

/*
 * Changes the learning rate at all owners. If it fails, some owners may have the new rate: call it again.
 * weft_dist_optimizer_lr returns the rate that was last set at all owners. WEFT_ERR_INVALID: negative or not finite.
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_set_lr(weft_dist_optimizer *optimizer, double lr,
                                                               int64_t timeout_ms, weft_error **error);
WEFT_API double weft_dist_optimizer_lr(const weft_dist_optimizer *optimizer);

/*
 * The state at all owners, copied to this worker, in the form of weft_optimizer_ref_state, ordered by parameter.
 * Parameters are numbered owner by owner: the owners in the order in which they first appear in the list of
 * weft_dist_optimizer_create, and the parameters of each in the order of that list. A local optimizer over the same
 * list numbers them in the same way if the parameters of each owner stand together in the list. Then a state, or its
 * file, can be loaded into either optimizer.
 */
typedef struct weft_optimizer_states {
    weft_optimizer_state *items;
    size_t count;
} weft_optimizer_states;

/*
 * Reads the state into *out; release it with weft_optimizer_states_drop. WEFT_ERR_STATE: an owner has stepped while its
 * state was read. WEFT_ERR_TOO_LARGE: the state of one parameter exceeds what a call may carry.
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_ref_state(weft_dist_optimizer *optimizer, int64_t timeout_ms,
                                                                  weft_optimizer_states *out, weft_error **error);
/* Releases the tensors and names, and empties *states. */
WEFT_API void weft_optimizer_states_drop(weft_optimizer_states *states);

/*
 * Replaces the state at all owners, as weft_optimizer_set_state does, in two phases. First each owner receives and
 * checks its part; if that fails anywhere, nothing changes. Then all owners replace their state. Only the death of an
 * owner, a lost connection or a timeout can interrupt the second phase; then the others have the new state, and the
 * error names the owner that may not have it.
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_set_state(weft_dist_optimizer *optimizer,
                                                                  const weft_optimizer_state *items, size_t count,
                                                                  int64_t timeout_ms, weft_error **error);

/*
 * Save the whole state as one file on this worker, and load it, with the names and errors of weft_optimizer_save and
 * weft_optimizer_load. Saving first reads the state; if an owner fails or dies, an existing file is not changed.
 * Loading sets the state as weft_dist_optimizer_set_state: a state that an owner refuses is WEFT_ERR_REMOTE.
 */
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_save(weft_dist_optimizer *optimizer, const char *path,
                                                             int64_t timeout_ms, weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_dist_optimizer_load(weft_dist_optimizer *optimizer, const char *path,
                                                             int64_t timeout_ms, weft_error **error);

WEFT_END_C
#endif
