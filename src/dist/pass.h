/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.h - a distributed backward pass: one worker's part in the computation of the gradients of a context.
 *
 * The worker that begins a pass is its *root*. The pass follows the pairs of the context (context.h) backwards: the
 * target of a pair computes the gradient of the tensor that it received, and sends it to the origin. The algorithm is
 * that of PyTorch's distributed autograd in its FAST mode, with one difference: PyTorch assumes that each send gets a
 * gradient, and waits forever if it gets none. Here each worker learns which of its sends get none.
 *
 * THE PROTOCOL (docs/decisions/046-passes-are-calls.md). Each send that a pass may concern is answered once: by its
 * gradient, or as *absent*: it has none. All answers travel in calls of "weft:pass", from the target of pairs to their
 * origin: gradients, and the numbers of absent ones. The first call of a worker to another one also carries the
 * *pending list*: which of the other's sends will be answered later. Sends that are neither in that list nor answered
 * in that call are absent.
 *
 * A worker joins the pass when its first call arrives; the root joins at the start. From then on it waits for an answer
 * to each of its sends that the call does not rule out.
 *
 * A worker calls another one in these cases:
 *   It has gradients for the other.
 *   The other has asked, and has no pending list yet.
 *   The other has the pending list, and a send of that list turned out to be absent.
 *   It waits for answers of the other, and neither has called the other yet: such a call asks.
 *
 * It answers each call at once, except the call that made it join. It answers that call when all its sends, and all its
 * own calls, are answered. The answer says whether it has answered all sends of the caller: the rest is absent then.
 *
 * So the unanswered calls form a tree below the root, and when the root's calls are answered, the pass is over at all
 * workers (Dijkstra and Scholten, "Termination detection for diffusing computations", 1980). One call carries at most
 * WFI_PASS_GRADIENTS_MAX gradients. The rest follows in further calls, and is in the pending list of the first one.
 *
 * A failure ends this worker's part. The calls that it has not answered fail, and it sends "weft:abort" once to each
 * worker with which it exchanged messages in the pass.
 *
 * THREADS. Everything that arrives becomes an event, queued under the pass's `lock`. One thread at a time runs the
 * pass: a worker thread, or the thread that waits for the root's pass. It processes the events, runs nodes and
 * writes messages, without any lock held.
 * LIFETIME. Reference-counted: by its context's list, its task, its calls in progress, and the root's future.
 */
#ifndef WFI_DIST_PASS_H
#define WFI_DIST_PASS_H

#include "dist/context.h"

#include <weft/dist_optim.h>

typedef struct wfi_pass wfi_pass;

weft_status wfi_passes_register(weft_agent *agent); /* weft's own functions */
/* wfi_recording_ops.admit: whether the tensors that a call of "weft:pass" is about to pull are accepted. [agent
 * lock] */
weft_status wfi_pass_admit(weft_call *call, const uint8_t *meta, size_t size, uint64_t bytes, char *problem,
                           size_t room);
struct wfi_contexts;
void wfi_passes_abort_again(wfi_timer *timer); /* wfi_contexts.abort_timer: sends "weft:abort" again */
/* The agent is closed: gives up "weft:abort". Not locked */
void wfi_passes_drop_unnotified(struct wfi_contexts *all);
/* Ends all passes of a context that run here. [agent lock] */
void wfi_passes_cancel(weft_context *context, weft_status why, const char *text);
/* Fails the passes that need a worker which has ended. [agent lock] */
void wfi_passes_peer_gone(weft_context *context, int rank, weft_status why, const char *text);

/* An optimizer that may step at the end of a pass. src/remote, which is above this folder, makes it. */
struct weft_dist_optimizer {
    wfi_handle handle;
    atomic_int refs;
    weft_agent *agent;               /* referenced */
    const weft_optimizer_type *type; /* the user's, or weft's own */
    _Atomic double lr;               /* the last rate that all owners took */
    _Atomic uint64_t sets;           /* number of states that were sent to owners */
    weft_rref **parts;               /* handles of the owners' optimizers */
    size_t count;
};

/*
 * Steps the parts that are on this worker, of those whose names came with the pass (src/remote). Adds their number to
 * *stepped, and reports in *error what did not fit. Several threads may call it, for several passes; not locked.
 */
typedef weft_status wfi_pass_step_fn(weft_agent *agent, const void *names, size_t size, const wfi_pass_result *pass,
                                     size_t *stepped, weft_error **error);
void wfi_pass_register_step(wfi_pass_step_fn *step); /* once, before an agent is opened */

/*
 * Write, and read from another worker, which passes over a context have failed. A request for gradients carries
 * this, so that its answer never includes such a pass, even if "weft:abort" has not arrived there yet. Not locked.
 * WEFT_ERR_PROTOCOL: malformed.
 */
void wfi_passes_write_failed(weft_context *context, wfi_writer *out);
weft_status wfi_passes_read_failed(const weft_call *call, const weft_context_id *id, wfi_reader *in);

/* Adds the pass's gradient of `leaf`; for wfi_pass_step_fn. WEFT_ERR_MEMORY. */
weft_status wfi_pass_add_gradient(const wfi_pass_result *pass, const weft_tensor *leaf, weft_gradient *sum);

#endif
