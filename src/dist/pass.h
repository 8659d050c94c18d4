/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.h - one worker's part in a backward pass over a context.
 *
 * THE PROTOCOL (docs/decisions/046-passes-are-calls.md). Each pair that a pass may concern is answered once, by its
 * gradient or by *none*. All messages between workers in a pass are calls of "weft:pass". Such a call carries, from
 * the target of pairs to their origin: gradients; nones; and, in the first call, a statement: which of the origin's
 * sends stay pending there. Sends that are neither listed nor answered in it are none. A worker
 *   - joins at its first call, the root at the start: it waits for an answer to each of its sends, except those already
 *     ruled out;
 *   - writes to a peer when it has gradients for it; when the peer asked and has no statement; when the peer has the
 *     statement and is owed a none; or, to ask, when the peer owes answers and neither of the two has written;
 *   - answers a call at once, with one exception: it answers the call that made it join only when all pairs, and its
 *     own calls, are answered. The answer says whether all was answered; then what the caller still waits for is none.
 * One call carries at most WFI_PASS_GRADIENTS gradients. Further calls carry the rest, which the statement in the
 * first one lists as pending. So the unanswered calls form a tree below the root, and when the root ends, all have
 * ended.
 *
 * A failure ends the worker's part, fails the calls that it has not answered, and is sent once to all workers with
 * which it exchanged messages ("weft:abort").
 *
 * THREADS. Everything that arrives is an event, queued under `lock`. One task at a time (or the thread that waits for
 * the root's pass) processes events, runs nodes and writes, without any lock held.
 * LIFETIME. Reference-counted: by its context's list, its task, its calls in progress, and the root's future.
 */
#ifndef WFI_DIST_PASS_H
#define WFI_DIST_PASS_H

#include "dist/context.h"

#include <weft/dist_optim.h>

typedef struct wfi_dist_pass wfi_dist_pass;

weft_status wfi_passes_register(weft_agent *agent); /* weft's own functions */
/* Whether a call of "weft:pass" may carry what its metadata describe: wfi_links.admit. [agent lock] */
weft_status wfi_pass_admit(weft_call *call, const uint8_t *meta, size_t size, uint64_t bytes, char *problem,
                           size_t room);
struct wfi_contexts;
void wfi_passes_abort_again(
    wfi_timer *timer); /* wfi_contexts.aborting: tells the workers that do not know yet that a pass failed */
/* The agent is closed: no more workers are told. Not locked */
void wfi_passes_forget_unheard(struct wfi_contexts *all);
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
typedef weft_status wfi_pass_step_fn(weft_agent *agent, const void *names, size_t size, const wfi_pass_record *pass,
                                     size_t *stepped, weft_error **error);
void wfi_pass_register_step(wfi_pass_step_fn *step); /* once, before an agent is opened */

/*
 * Which passes over a context are known here to have failed: written to another worker, and read from it. So a result
 * that a worker requests after a failure never includes that pass, even if its "weft:abort" has not arrived yet. Not
 * locked. *in: WEFT_ERR_PROTOCOL if it is malformed.
 */
void wfi_passes_write_failed(weft_context *context, wfi_writer *out);
weft_status wfi_passes_read_failed(const weft_call *call, const weft_context_id *id, wfi_reader *in);

/* Adds the pass's gradient of `leaf`; for wfi_pass_step_fn. WEFT_ERR_MEMORY. */
weft_status wfi_pass_add_gradient(const wfi_pass_record *pass, const weft_tensor *leaf, weft_gradient *sum);

#endif
