/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts.h - the contexts of an agent: which workers hold a part of each, and how all of them release it.
 *
 * A worker opens a context (the *opener*). A worker that a call under the context reaches becomes a *holder*: it has a
 * part of the context, and may call further workers. PyTorch's distributed autograd has the same roles, and sends
 * CLEANUP_AUTOGRAD_CONTEXT_REQ along the calls; here the opener knows all holders, and notifies each of them.
 *
 * The opener learns its holders from replies: each reply names up to 32 workers that its sender has called under the
 * context. A holder reports the others by a call to the opener ("weft:joined"). If a worker dies, its reports may be
 * lost, so each holder then reports itself. A holder that has served no call under the context for 10 to 20 s reports
 * itself too, because the reply that named it may be lost. The opener answers whether the context is over.
 *
 * When the opener closes the context, it notifies the holders. Each of its calls carries the lowest number of a
 * context that it still has open (`oldest_open`): all its contexts with lower numbers are over. So in a training
 * loop the next call notifies its callee at no cost. A holder that is not notified in this way within 2 ms gets a
 * call ("weft:close").
 *
 * If a future waits for the end (weft_context_close), `oldest_open` does not pass the context. Each holder is
 * notified by "weft:close". It answers with the workers that it has called, and the opener notifies these too. The
 * future completes when all of them have answered. If a worker has died, the workers that it had called are
 * unknown: then every worker of the job is notified.
 *
 * docs/models/ends.pml is a model of this, release.c the code.
 *
 * LOCK. The agent's, for everything here unless stated otherwise.
 */
#ifndef WFI_CONTEXTS_H
#define WFI_CONTEXTS_H

#include "dist/context.h"
#include "dist/observe.h"
#include "rpc/payload/recording.h"

/* Another worker's part in a context, as far as this worker knows it: weft_context.holders. */
enum wfi_holder {
    WFI_HOLDER_NONE,
    WFI_HOLDER_PRESENT, /* it has a part. At the opener: it has to be notified of the end. Elsewhere: to be reported */
    WFI_HOLDER_NOTIFYING, /* at the opener: a call that notifies it is in progress */
    WFI_HOLDER_RELEASED,  /* at the opener: it has released its part of a context that is over */
    WFI_HOLDER_REPORTED,  /* elsewhere: it has a part, and a message to the opener names it */
};

/* Which contexts of one opener are over, as far as this worker knows. */
typedef struct wfi_opener {
    uint32_t incarnation;
    uint64_t oldest_open; /* all its contexts with lower numbers are over */
    wfi_map closed;       /* numbers from there on that are over; the values are not used */
} wfi_opener;

typedef struct wfi_contexts {
    weft_agent *agent;
    wfi_map table;         /* hash of the id -> weft_context, linked by next_same; each referenced */
    size_t count;          /* in the table */
    _Atomic size_t passes; /* number of passes that run here. Any thread */
    wfi_list opened;       /* contexts of this worker by number: open, or closed with holders to notify; referenced */
    uint64_t last_number;
    wfi_opener *openers;    /* by rank */
    wfi_dist_counts counts; /* with its own lock */
    wfi_timer notify_timer; /* notifies the holders that no call has notified */
    wfi_timer query_timer;  /* queries the openers of idle contexts */
    bool query_timer_set;
    wfi_list unnotified;   /* wfi_pass.unnotified: passes whose failure some worker does not know; each referenced */
    wfi_timer abort_timer; /* notifies these workers again */
} wfi_contexts;

static inline wfi_contexts *wfi_contexts_of(const weft_agent *agent)
{
    return agent->state[WFI_STATE_CONTEXTS];
}

/* ---- context.c: the table ---- */

weft_context *wfi_contexts_find(weft_agent *agent, const weft_context_id *id);     /* borrowed; NULL: no part here */
weft_context *wfi_contexts_find_ref(weft_agent *agent, const weft_context_id *id); /* not locked; with a reference */
/* Whether a context that is not in the table is over; otherwise it never reached this worker. */
bool wfi_contexts_was_closed(const weft_agent *agent, const weft_context_id *id);
/* Borrowed. WEFT_ERR_STATE: the context is over; WEFT_ERR_MEMORY. */
weft_status wfi_contexts_find_or_create(weft_agent *agent, const weft_context_id *id, weft_context **out);
weft_status wfi_contexts_add(wfi_contexts *all, weft_context *context); /* takes over a reference. WEFT_ERR_MEMORY */
void wfi_contexts_remove(wfi_contexts *all, weft_context *context);     /* gives that reference back */
/* Drops a reference when the lock is released. Without memory for that the context is kept forever. */
void wfi_context_unref_later(weft_context *context);

/* ---- release.c: for the messages of calls (recording.c) ---- */

/* A message of an opener has arrived: its contexts with numbers below `oldest_open` are over. They end here. */
void wfi_contexts_end_older(weft_agent *agent, uint32_t rank, uint32_t incarnation, uint64_t oldest_open);
/* The lowest number of a context that this worker has open, or whose end a future waits for. */
uint64_t wfi_contexts_oldest_open(const weft_agent *agent);
/* A call to `rank` leaves with this worker's `oldest_open`. */
void wfi_contexts_notifying(weft_agent *agent, int rank, uint64_t oldest_open);
/* That call has ended; `received`: it was answered. Otherwise the worker is notified again. */
void wfi_contexts_notified(weft_agent *agent, int rank, uint64_t oldest_open, bool received);
/* On a worker that did not open it: reports to the opener the workers that this one has called, if no reply will. */
void wfi_contexts_report(weft_context *context);
/* On the opener: a reply names a holder of a context that is over. */
void wfi_contexts_late_holder(weft_context *context, int rank);
void wfi_contexts_query_later(wfi_contexts *all); /* a context of another worker is in use here */

/* ---- release.c: for contexts.c ---- */

/* Takes a context out of the table: its passes end, and calls that name it fail. */
void wfi_contexts_end(wfi_contexts *all, weft_context *context, weft_status why, const char *text);
void wfi_contexts_notify_soon(wfi_contexts *all);   /* sets notify_timer */
void wfi_contexts_drop_released(wfi_contexts *all); /* drops closed contexts that all their holders have released */
/* The future of the end of a context of this worker that is over, with a reference. NULL: no memory. */
weft_future *wfi_contexts_end_future(weft_context *context);
/*
 * Some holders of a context of this worker are unknown from now on: a worker that may have called others has ended, or
 * its answer was lost. If a future waits for the end, every worker is notified.
 */
void wfi_contexts_holders_unknown(weft_context *context);
/* A worker has ended, perhaps with reports about this worker and those that this one named: reports all again. */
void wfi_contexts_report_again(weft_context *context);
void wfi_contexts_notify_holders(wfi_timer *timer); /* notify_timer */
void wfi_contexts_query_openers(wfi_timer *timer);  /* query_timer */
/*
 * Starts a call of "weft:close" to `rank`, for all contexts whose end that worker does not know, and for number `also`
 * (0: none). If the call fails, the worker is notified again later. Not locked.
 */
void wfi_contexts_send_close(weft_agent *agent, int rank, uint64_t also);
/* Fails all incomplete futures of weft_context_close. */
void wfi_contexts_fail_ends(wfi_contexts *all, weft_status why, const char *text);
extern const weft_function wfi_close_function, wfi_joined_function;

/* ---- contexts.c; recording.c ---- */

extern const wfi_component wfi_dist_component;
extern const wfi_recording_ops wfi_dist_recording_ops;

#endif
