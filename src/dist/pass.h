/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.h - one worker's part in a backward pass over a context.
 *
 * THE PROTOCOL (docs/decisions/046-passes-are-calls.md). Each pair that a pass may concern is answered once, by its gradient or by *none*. All that workers
 * say to each other in a pass are calls of "weft:pass". Such a call brings, from the target of pairs to their origin: gradients; nones; and,
 * in the first one, a statement: which of the origin's sends stay pending there. Sends that are neither listed nor answered in it are
 * none. A worker
 *   - joins at its first call, the root at the start: it awaits an answer for each of its sends, but those ruled out by then;
 *   - writes to a peer when it has gradients for it; when the peer asked and has no statement; when the peer has the statement and is owed a
 *     none; or, to ask, when the peer owes answers and neither of the two has written;
 *   - answers a call at once, but the one by which it joined: that when all is answered, and its own calls are. The answer says whether all
 *     was answered; then what the caller still awaits from it is none.
 * One call brings at most WFI_PASS_GRADIENTS gradients. Further calls bring the rest, which a statement in the first
 * one lists as pending. So the calls that are not answered form a tree below the root, and the root's end is
 * everybody's.
 *
 * A failure ends the part, fails the calls that it owes answers, and goes to all with whom it wrote ("weft:abort"), once.
 *
 * THREADS. What comes is an event, put down under `lock`; one task at a time (or the thread that waits for the root's pass) takes events,
 * runs nodes and writes, without any lock held.
 * LIFETIME. Counted: by its context's list, its task, its calls under way, and the root's future.
 */
#ifndef WFI_DIST_PASS_H
#define WFI_DIST_PASS_H

#include "dist/context.h"

typedef struct wfi_dist_pass wfi_dist_pass;

weft_status wfi_passes_register(weft_agent *agent); /* weft's own functions */
/* Whether a call of "weft:pass" may bring what its metadata say: wfi_links.admit. [agent lock] */
weft_status wfi_pass_admit(weft_call *call, const uint8_t *meta, size_t size, uint64_t bytes, char *problem,
                           size_t room);
struct wfi_contexts;
void wfi_passes_abort_again(
    wfi_timer *timer); /* wfi_contexts.aborting: tells the workers that were not told that a pass failed */
/* the agent is closed: no worker is told any more. Not locked */
void wfi_passes_forget_unheard(struct wfi_contexts *all);
/* All passes of a context that run here end. [agent lock] */
void wfi_passes_cancel(weft_context *context, weft_status why, const char *text);
/* Those fail that need a worker which is gone. [agent lock] */
void wfi_passes_peer_gone(weft_context *context, int rank, weft_status why, const char *text);

/*
 * What steps optimizers where a pass has become whole: src/remote, above. `names` go along with all calls of the pass, and mean nothing
 * here. `write`'s *owner is the rank that its failure is about, or -1. `run` adds to *stepped how many stepped, and says in *error what did not fit; it may be called by several threads, for several passes; not locked.
 */
typedef struct wfi_pass_steps {
    weft_status (*write)(const struct weft_dist_optimizer *optimizer, const weft_agent *agent, wfi_writer *names,
                         int *owner);
    weft_status (*run)(weft_agent *agent, const void *names, size_t size, const wfi_pass_record *pass, size_t *stepped,
                       weft_error **error);
} wfi_pass_steps;
void wfi_pass_steps_set(const wfi_pass_steps *steps); /* once, before there is an agent */

/*
 * Which passes over a context are known here to have failed: written for another worker, and told by one. So what a worker asks for after
 * a failure never counts that pass, even where its "weft:abort" has not come yet. Not locked. *in: WEFT_ERR_PROTOCOL if it is malformed.
 */
void wfi_passes_write_failed(weft_context *context, wfi_writer *out);
weft_status wfi_passes_read_failed(const weft_call *call, const weft_context_id *id, wfi_reader *in);

/* Adds what a pass found for `leaf`; for `run`. WEFT_ERR_MEMORY. */
weft_status wfi_pass_add_gradient(const wfi_pass_record *pass, const weft_tensor *leaf, weft_gradient *sum);

#endif
