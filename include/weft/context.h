/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/context.h - distributed autograd: a model that is split over workers is trained as if it were whole.
 *
 * A context is what one training step records, on all workers that take part. A call that names one of its tapes takes part: what
 * was recorded among the arguments and results stays joined across the wire. One backward pass then goes back through all of it, and
 * leaves each worker the gradients of its own parameters.
 *
 *     #include <weft/ops.h>
 *     weft_status step(weft_agent *agent, weft_tensor *x, weft_tensor *target, weft_tensors mine, weft_optimizer *sgd)
 *     {
 *         weft_context *c;
 *         weft_status st = weft_context_open(agent, &c);
 *         if (st)
 *             return st;
 *         weft_tape *t = weft_context_tape(c, NULL);
 *         weft_values *out = NULL; // what "front", on worker 1, makes of x
 *         weft_tensor *h = NULL;
 *         st = weft_rpc_sync(agent, weft_to_rank(1), "front", WEFT_VALUES(weft_of_tensor(x)),
 *                            &(weft_rpc_options){.tape = t}, &out);
 *         if (!st)
 *             st = weft_values_get_tensor(out, 0, &h);
 *         if (!st) {
 *             weft_tensor *loss = weft_cross_entropy(t, weft_linear(t, h, mine.items[0], mine.items[1]), target);
 *             weft_dist_backward(t, loss, NULL); // on worker 1 as well
 *             st = weft_tape_status(t);
 *         }
 *         weft_gradient own[2];
 *         if (!st)
 *             st = weft_context_gradients(c, mine, own);
 *         if (!st) {
 *             st = weft_optimizer_apply(sgd, (weft_gradients){own, 2});
 *             weft_context_drop_gradients(own, 2);
 *         }
 *         weft_values_unref(out);
 *         weft_tape_close(t);
 *         weft_context_close(c, NULL); // on worker 1 as well
 *         return st;
 *     }
 *
 * On worker 1 the handler of "front" computes on weft_call_tape(call), which records under a context. There is nothing else to it.
 *
 * docs/distributed-autograd.md has the rules, and how a pass ends when workers die.
 *
 * THREADS. Any thread may call any function; a tape is one thread's.
 */
#ifndef WEFT_CONTEXT_H
#define WEFT_CONTEXT_H

#include <weft/hooks.h>
#include <weft/rpc.h>
#include <weft/rref.h>
#include <weft/tape.h>

WEFT_BEGIN_C

/* Its name, unique in a job. */
typedef struct weft_context_id {
    uint32_t rank, incarnation; /* of the worker that opened it */
    uint64_t number;            /* counted by that worker, from 1 */
} weft_context_id;

/*
 * Opens a context on this worker; no message goes out. It must be closed, also after failures. WEFT_ERR_INVALID (NULL),
 * WEFT_ERR_CLOSED and the other ends of an agent, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_context_open(weft_agent *agent, weft_context **out);
WEFT_API weft_context_id weft_context_get_id(const weft_context *context); /* all 0 for NULL */

/*
 * Ends the context on all workers that hold something of it, and drops your reference. Its passes are cancelled; calls
 * that name it fail with WEFT_ERR_STATE from then on; handlers that run under it go on, and what they recorded does not
 * reach their caller; tensors of it that you still hold are constants. Returns at once. On a worker that did not open
 * it, it drops your reference and no more. `out`, if not NULL, receives a future that completes when all workers that
 * took part have let go (or are gone); without it, the next call to such a worker carries the news, or a message 2 ms
 * later. If a worker cannot be reached or does not answer within call_timeout_ms, the future fails with
 * WEFT_ERR_UNREACHABLE or WEFT_ERR_TIMEOUT. Its error names that worker, which releases the context when it is told
 * later. *out is NULL if memory is out. NULL for the context does nothing.
 */
WEFT_API void weft_context_close(weft_context *context, weft_future **out);

/*
 * A tape that records into the context; any number of them, one thread's each. The order in which a worker opens its
 * tapes decides the order of sums, and so the last bits of gradients: open tapes of several threads in a fixed order
 * (docs/distributed-autograd.md, "The order of sums"). weft_backward on it fails with WEFT_ERR_STATE: use
 * weft_dist_backward. `options` may be NULL; `record` is taken as true, and `parent` must be NULL. NULL if memory is
 * out, or the context NULL. Close it with weft_tape_close, before or after the context.
 */
WEFT_API weft_tape *weft_context_tape(weft_context *context, const weft_tape_options *options);

/*
 * From now on passes over the context, wherever they begin, call these hooks for leaves on this worker (weft/hooks.h),
 * but for those that weft_dist_backward begins here with a tape that has hooks of its own. They take the place of the
 * ones before; NULL: none. The context takes a reference. So a handler sets them:
 * weft_context_set_hooks(weft_call_context(call), hooks). An operation that a hook begins (*wait) is part of the pass;
 * only a pass that fails does not wait for it. Any thread. A NULL context does nothing.
 */
WEFT_API void weft_context_set_hooks(weft_context *context, weft_hooks *hooks);

/* The context of a call that is being served, borrowed until the call is finished: do not close it. NULL: none. weft_call_tape records into it. */
WEFT_API weft_context *weft_call_context(weft_call *call);

/* ---- The backward pass -------------------------------------------------------------------------- */

typedef struct weft_pass_options {
    weft_tensors gradients; /* of the roots, in order; an entry may be NULL. None: 1 each, for roots of one element */
    bool retain;            /* keep the records, so that another pass may follow */
    /* Add gradients as they come: this takes less memory, but the last bits may differ from pass to pass. Without
     * this option the last bits are the same in every pass (docs/distributed-autograd.md, "The order of sums") */
    bool unordered;
    int64_t timeout_ms; /* 0: the agent's default for calls; WEFT_FOREVER: deaths and cut links end it all the same */
    /* Owners step by this pass's gradients as soon as these are whole there, with no message more (weft/dist_optim.h). A failure elsewhere
     * undoes no step: after one, some parameters may have been stepped and others not. NULL: nobody steps */
    struct weft_dist_optimizer *step;
} weft_pass_options;

/*
 * Goes back from `loss` (recorded on `tape`, which records into a context) through all that it depends on, on all
 * workers, and waits for the end. The gradients are in the context then, each on the worker of its leaf. The tape keeps
 * a failure: WEFT_ERR_STATE (the tape records into no context; the records are used up; a tensor that the pass needs
 * was changed in place), WEFT_ERR_INVALID (`loss` was not recorded), WEFT_ERR_SHAPE (`loss` has not one element, and no
 * gradient was given), WEFT_ERR_TIMEOUT, WEFT_ERR_PEER_DEAD and the other ends of a worker that had a part in it,
 * WEFT_ERR_DEADLOCK (this thread cannot wait), WEFT_ERR_BUSY and WEFT_ERR_TOO_LARGE (the gradients for a worker do not
 * fit there: docs/budget.md), WEFT_ERR_MEMORY; the message names the worker and the operator. A pass that failed leaves
 * no gradients; if it was to retain the records it may be tried again.
 */
WEFT_API void weft_dist_backward(weft_tape *tape, weft_tensor *loss, const weft_pass_options *options);

/*
 * Starts the same from several roots; what other tapes recorded must have been made visible, by closing them or by a call that names them.
 * *out receives its future, which fails as said above; cancelling it ends the pass everywhere. Several passes may run at once; over the same
 * records all but the last must retain them.
 */
WEFT_API WEFT_NODISCARD weft_status weft_context_backward(weft_context *context, weft_tensors roots,
                                                          const weft_pass_options *options, weft_future **out);

/*
 * The same from a root that another worker has: a tensor, or a list of them, that was recorded there under the context. That worker
 * begins the pass. The future fails with WEFT_ERR_REMOTE, and the status said above inside (weft_error_remote_code), with
 * WEFT_ERR_INVALID inside (the value is no tensor, or that worker has nothing of the context), or as weft_rpc_async. timeout_ms is the call's.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_backward(weft_rref *root, weft_context *context,
                                                       const weft_pass_options *options, weft_future **out);

/*
 * Fetches a copy of what a handle names, as weft_rref_to_here_async, under options->tape: what was recorded there stays joined, and a leaf
 * that wants a gradient gets it there. A call as weft_rpc_async makes it: all options, and its errors.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_fetch(weft_rref *rref, const weft_rpc_options *options,
                                                    weft_future **out);

/*
 * The gradient of `leaf` on this worker: the sum over all passes that ended well, dense. A reference; NULL: there is none, or memory is out.
 * It does not change when later passes add to it.
 */
WEFT_API weft_tensor *weft_context_grad(weft_context *context, const weft_tensor *leaf);

/*
 * The gradients of `parameters`, in order, into out[parameters.count]: dense, by rows, or none, each with references that you drop with
 * weft_context_drop_gradients. So an optimizer takes them. WEFT_ERR_INVALID (NULL), WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_context_gradients(weft_context *context, weft_tensors parameters,
                                                           weft_gradient *out);
WEFT_API void weft_context_drop_gradients(weft_gradient *gradients, size_t count);

/* How many contexts, of whichever worker, have something here; and how many passes run here. Both 0 for a NULL agent. */
WEFT_API size_t weft_agent_contexts(weft_agent *agent, size_t *passes);

WEFT_END_C
#endif
