/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/context.h - distributed autograd: training a model that is split over several workers.
 *
 * A context holds the records of one training step on all workers that take part. A tape of the context records this
 * worker's operators (weft_dist_tape_open). A call takes part if it names such a tape (weft_rpc_options.tape):
 * recorded tensors among its arguments and results are then linked across the workers. One backward pass goes
 * through all records, and gives each worker the gradients of its own parameters.
 *
 *     #include <weft/ops.h>
 *     weft_status step(weft_agent *agent, weft_tensor *x, weft_tensor *target, weft_tensors mine, weft_optimizer *sgd)
 *     {
 *         weft_tape *t = weft_dist_tape_open(agent, NULL);
 *         weft_values *out = NULL; // the result of "front", on worker 1, for x
 *         weft_tensor *h = NULL;
 *         weft_gradient own[2] = {{NULL, NULL}, {NULL, NULL}};
 *         weft_status status = weft_rpc_sync(agent, weft_to_rank(1), "front", WEFT_VALUES(weft_of_tensor(x)),
 *                                            &(weft_rpc_options){.tape = t}, &out);
 *         if (!status)
 *             status = weft_values_get_tensor(out, 0, &h);
 *         if (!status) {
 *             weft_tensor *loss = weft_cross_entropy(t, weft_linear(t, h, mine.items[0], mine.items[1]), target);
 *             weft_dist_backward(t, loss, NULL); // on worker 1 as well
 *             status = weft_tape_status(t);
 *         }
 *         if (!status)
 *             status = weft_context_ref_gradients(weft_tape_context(t), mine, own);
 *         if (!status)
 *             status = weft_optimizer_apply(sgd, (weft_gradients){own, 2});
 *         weft_context_drop_gradients(own, 2);
 *         weft_values_unref(out);
 *         weft_tape_close(t); // ends the context, on worker 1 as well
 *         return status;
 *     }
 *
 * On worker 1 the handler of "front" computes on weft_call_tape(call), which records into the context.
 *
 * docs/distributed-autograd.md has the rules, and describes how a pass ends when workers die.
 *
 * THREADS. Any thread may call any function. One thread at a time uses a tape.
 */
#ifndef WEFT_CONTEXT_H
#define WEFT_CONTEXT_H

#include <weft/hooks.h>
#include <weft/rpc.h>
#include <weft/rref.h>
#include <weft/tape.h>

WEFT_BEGIN_C

/* The name of a context, unique in a job. */
typedef struct weft_context_id {
    uint32_t rank, incarnation; /* the worker that opened the context */
    uint64_t number;            /* counted by that worker, from 1 */
} weft_context_id;

/*
 * Opens a context with one tape, which records into it. weft_tape_close ends the context on all workers, as
 * weft_context_close does. `options` may be NULL; `record` is taken as true, and `parent` must be NULL.
 * weft_backward on the tape fails with WEFT_ERR_STATE: use weft_dist_backward.
 *
 * NULL only if memory is out. If the context cannot be opened, the tape has failed from the start, so a program
 * checks weft_tape_status once, at the end: WEFT_ERR_INVALID (the agent is NULL), WEFT_ERR_CLOSED and other codes of
 * an agent that has ended, WEFT_ERR_MEMORY. For a context with several tapes use weft_context_open.
 */
WEFT_API weft_tape *weft_dist_tape_open_sized(weft_agent *agent, const weft_tape_options *options, size_t size);
static inline weft_tape *weft_dist_tape_open(weft_agent *agent, const weft_tape_options *options)
{
    return weft_dist_tape_open_sized(agent, options, sizeof(*options));
}

/* The context into which a tape records; NULL: none. Tapes of weft_dist_tape_open and weft_context_tape, their
 * children, and the tapes of served calls that take part in a context (weft_call_tape) have one. Borrowed as long as
 * the tape is open, and in a handler until the call is finished: do not close it. */
WEFT_API weft_context *weft_tape_context(const weft_tape *tape);

/*
 * Opens a context without a tape on this worker; no message is sent. It must be closed, even after failures.
 * WEFT_ERR_INVALID (NULL), WEFT_ERR_CLOSED and other codes of an agent that has ended, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_context_open(weft_agent *agent, weft_context **out, weft_error **error);
WEFT_API weft_context_id weft_context_get_id(const weft_context *context); /* the context's name; all 0 for NULL */

/*
 * Ends the context on all workers that take part, and drops your reference. Returns at once. Call it only on the
 * worker that opened the context: elsewhere contexts are borrowed (weft_tape_context). NULL does nothing.
 *   Passes of the context are cancelled. Later calls that name it fail with WEFT_ERR_STATE.
 *   Handlers that run under it continue, but their records do not reach their callers.
 *   Tensors of the context that you still hold are constants.
 * *out, if `out` is not NULL, receives a future. It completes when all workers that took part, also those that only
 * another worker has called, have released the context or are gone. On these workers weft_agent_contexts no longer
 * counts the context. The future does not wait for handlers that still run under the context, so a handler may wait
 * for the future. It fails with WEFT_ERR_UNREACHABLE or WEFT_ERR_TIMEOUT if a worker cannot be reached or does not
 * answer within call_timeout_ms; the error names that worker. That worker, and workers that only that worker has
 * called, release the context later. *out is NULL if memory is out. Without `out` the workers are notified by the
 * next call to them, or by a message 2 ms later.
 */
WEFT_API void weft_context_close(weft_context *context, weft_future **out);

/*
 * Opens a further tape that records into the context. A context may have any number of tapes: those of
 * micro-batches, or of several threads. NULL if memory is out, or the context is NULL. Close the tape with
 * weft_tape_close, before or after the context. `options` and weft_backward: as for weft_dist_tape_open.
 *
 * The order in which a worker opens its tapes determines the order of sums, and thereby the last bits of gradients.
 * Open the tapes of several threads in a fixed order (docs/distributed-autograd.md, "The order of sums").
 */
WEFT_API weft_tape *weft_context_tape_sized(weft_context *context, const weft_tape_options *options, size_t size);
static inline weft_tape *weft_context_tape(weft_context *context, const weft_tape_options *options)
{
    return weft_context_tape_sized(context, options, sizeof(*options));
}

/*
 * Sets hooks for leaves on this worker (weft/hooks.h). Each pass over the context that begins from now on, on any
 * worker, calls them. Exception: weft_dist_backward with a tape that has hooks of its own calls those instead.
 * The hooks replace the former ones; NULL: none. The context takes a reference. A handler passes
 * weft_tape_context(weft_call_tape(call)). If a hook begins an operation and returns its future (weft/hooks.h,
 * `wait`), the pass waits for it, unless the pass fails. Any thread. A NULL context does nothing.
 */
WEFT_API void weft_context_set_hooks(weft_context *context, weft_hooks *hooks);

/* ---- The backward pass -------------------------------------------------------------------------- */

typedef struct weft_pass_options {
    /* Of the roots, in order, each on its root's device; NULL entry or empty list: 1 (for roots of one element). */
    weft_tensors gradients;
    bool retain; /* keep the records, so that another pass may follow */
    /* Add gradients in the order of arrival. This takes less memory, but the last bits may differ from pass to pass.
     * If false, they are the same in every pass (docs/distributed-autograd.md, "The order of sums"). */
    bool unordered;
    int64_t timeout_ms; /* 0: the agent's default for calls; WEFT_FOREVER: none; a worker's death ends the pass */
    /* Each owner steps with this pass's gradients as soon as they are complete there, without a further message
     * (weft/dist_optim.h). A failure elsewhere undoes no step. So after a failure some parameters may have been
     * stepped and others not. NULL: no steps. */
    struct weft_dist_optimizer *step;
} weft_pass_options;

/*
 * Computes the gradients of all leaves that `loss` depends on, on all workers, and waits for the end. `loss` must
 * have been recorded on `tape`, a tape of a context. The gradients are then in the context, each on the worker of
 * its leaf. On failure the tape keeps the error, whose message names the worker and the operator. A pass that failed
 * leaves no gradients; with `retain` it may be repeated. Errors:
 *   WEFT_ERR_STATE: the tape has no context, the records are used up, or a tensor that the pass needs was changed in
 *   place.
 *   WEFT_ERR_INVALID: `loss` was not recorded.
 *   WEFT_ERR_SHAPE: `loss` has more or less than one element, and no gradient was given.
 *   WEFT_ERR_UNSUPPORTED: the gradient that was given is not on the device of its root.
 *   WEFT_ERR_BUSY, WEFT_ERR_TOO_LARGE: a worker has no room for its gradients (docs/budget.md).
 *   WEFT_ERR_DEADLOCK: this thread cannot wait.
 *   WEFT_ERR_TIMEOUT, WEFT_ERR_MEMORY, WEFT_ERR_PEER_DEAD and other codes of workers that have ended.
 */
WEFT_API void weft_dist_backward_sized(weft_tape *tape, weft_tensor *loss, const weft_pass_options *options,
                                       size_t size);
static inline void weft_dist_backward(weft_tape *tape, weft_tensor *loss, const weft_pass_options *options)
{
    weft_dist_backward_sized(tape, loss, options, sizeof(*options));
}

/*
 * Starts a pass from several roots. *out receives its future, which fails as weft_dist_backward; cancelling it ends
 * the pass on all workers. A pass uses all records of closed tapes. Of an open tape it uses the records that were
 * made before the last call that had the tape as its option `tape`. So, before a pass begins, close all tapes whose
 * records it needs, also those of the roots. Several passes may run at once. If they use the same records, all
 * except the last must have `retain`.
 */
WEFT_API WEFT_NODISCARD weft_status weft_context_backward_sized(weft_context *context, weft_tensors roots,
                                                                const weft_pass_options *options, size_t size,
                                                                weft_future **out);
static inline WEFT_NODISCARD weft_status weft_context_backward(weft_context *context, weft_tensors roots,
                                                               const weft_pass_options *options, weft_future **out)
{
    return weft_context_backward_sized(context, roots, options, sizeof(*options), out);
}

/*
 * Starts a pass from a root on another worker: a tensor, or a list of tensors, recorded there under the context.
 * That worker begins the pass. The future fails as that of weft_rpc_async. With WEFT_ERR_REMOTE,
 * weft_error_handler_code is a code of weft_dist_backward, or WEFT_ERR_INVALID: the value is not a tensor, or the
 * worker has nothing of the context. options->timeout_ms limits the call to that worker.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_backward_sized(weft_rref *root, weft_context *context,
                                                             const weft_pass_options *options, size_t size,
                                                             weft_future **out);
static inline WEFT_NODISCARD weft_status weft_rref_backward(weft_rref *root, weft_context *context,
                                                            const weft_pass_options *options, weft_future **out)
{
    return weft_rref_backward_sized(root, context, options, sizeof(*options), out);
}

/*
 * Fetches a copy of the value of a handle, like weft_rref_to_here_async, and links it under options->tape: the
 * backward pass continues at the owner. The gradient of a leaf is on the worker that has the leaf. Options and errors
 * as for weft_rpc_async.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_fetch_sized(weft_rref *rref, const weft_rpc_options *options, size_t size,
                                                          weft_future **out);
static inline WEFT_NODISCARD weft_status weft_rref_fetch(weft_rref *rref, const weft_rpc_options *options,
                                                         weft_future **out)
{
    return weft_rref_fetch_sized(rref, options, sizeof(*options), out);
}

/*
 * The gradient of `leaf` on this worker, dense and on the leaf's device: the sum over all passes that succeeded. Later
 * passes do not change the returned tensor. You get a reference; NULL: no gradient, or memory is out.
 */
WEFT_API weft_tensor *weft_context_ref_grad(weft_context *context, const weft_tensor *leaf);

/*
 * The gradients of `parameters`, in order, into out[parameters.count], for an optimizer: dense, by rows, or none.
 * You get references, which weft_context_drop_gradients drops. WEFT_ERR_INVALID (NULL), WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_context_ref_gradients(weft_context *context, weft_tensors parameters,
                                                               weft_gradient *out);
WEFT_API void weft_context_drop_gradients(weft_gradient *gradients, size_t count);

/* The number of contexts, opened by any worker, that have state here; *passes receives the number of passes that run
 * here. Both are 0 for a NULL agent. */
WEFT_API size_t weft_agent_contexts(weft_agent *agent, size_t *passes);

WEFT_END_C
#endif
