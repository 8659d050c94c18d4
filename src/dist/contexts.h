/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts.h - the contexts of an agent: who has something of which, and how each ends everywhere.
 *
 * The opener of a context learns who holds something of it from replies: each says whom its sender has called. Whom no reply will name is
 * told to the opener by a call ("weft:joined"): where no call is served any more. When a worker dies, each holder names itself. When a context is
 * closed they are told. Each call carries the opener's floor, the lowest number that it still has open: what lies below is over. So in a
 * loop the next call tells its callee for nothing; whoever is not told so within 2 ms gets a call of its own ("weft:close").
 * If a future waits for the end, the floor does not pass the context: each holder is told by "weft:close", and its
 * answer names those whom it has called. They are told too. The future completes when all that were named have
 * answered. If a worker dies, nobody can say whom it had called: then every worker is told.
 * News of a holder can be lost with the answer of a call that nobody waits for any more. So whoever has something of another's context, and heard of
 * no call under it for 10 to 20 s, names itself to the opener, which says whether the context is over. docs/models/ends.pml is a model of all this.
 *
 * LOCK. The agent's, for everything here but where stated.
 */
#ifndef WFI_CONTEXTS_H
#define WFI_CONTEXTS_H

#include "dist/context.h"
#include "dist/observe.h"
#include "rpc/payload/link.h"

enum wfi_holder {
    WFI_HOLDER_NONE,
    WFI_HOLDER_YES,     /* and, of a closed context, it is not known to have heard of that */
    WFI_HOLDER_TELLING, /* a call that tells it is under way */
    WFI_HOLDER_TOLD,    /* only at the opener: it has let go of a context that is over */
};

/* A worker's contexts as others know them. */
typedef struct wfi_opener {
    uint32_t incarnation;
    uint64_t floor; /* all below are over */
    wfi_map closed; /* numbers from the floor on that are over; values mean nothing */
} wfi_opener;

typedef struct wfi_contexts {
    weft_agent *agent;
    wfi_map table;         /* hash of the id -> weft_context, linked by next_same; each referenced */
    size_t count;          /* in the table */
    _Atomic size_t passes; /* that run here. Any thread */
    wfi_list ours;         /* that this worker opened, by number: open, or closed and not heard of by all */
    uint64_t last_number;
    wfi_opener *openers;    /* by rank */
    wfi_dist_counts counts; /* with a lock of its own */
    wfi_timer timer;        /* tells those who were not told by a call */
    wfi_list unheard;   /* wfi_dist_pass.unheard: passes whose failure some worker was not told of; each referenced */
    wfi_timer aborting; /* tells these workers again */
    wfi_timer asking;   /* asks the openers of what is quiet here, */
    bool asks;          /* and is set */
} wfi_contexts;

static inline wfi_contexts *wfi_contexts_of(const weft_agent *agent)
{
    return agent->state[WFI_STATE_CONTEXTS];
}

weft_context *wfi_contexts_find(weft_agent *agent, const weft_context_id *id); /* borrowed; NULL: it has nothing here */
weft_context *wfi_contexts_find_ref(weft_agent *agent, const weft_context_id *id); /* not locked; with a reference */
/* The first, made where it is not there. WEFT_ERR_STATE: it is over; WEFT_ERR_MEMORY. */
weft_status wfi_contexts_join(weft_agent *agent, const weft_context_id *id, weft_context **out);
/* What a worker says of its contexts: those below `floor` are over. */
void wfi_contexts_floor(weft_agent *agent, uint32_t rank, uint32_t incarnation, uint64_t floor);
uint64_t wfi_contexts_our_floor(const weft_agent *agent);
/* A call to `rank` leaves with our floor; it was answered, or it failed. */
void wfi_contexts_telling(weft_agent *agent, int rank, uint64_t floor);
void wfi_contexts_told(weft_agent *agent, int rank, uint64_t floor, bool heard);

/* On a worker that did not open it: tells the opener whom this worker has called, if no answer will carry that. */
void wfi_contexts_report(weft_context *context);
/* On the opener: a holder is heard of when the context is over. */
void wfi_contexts_late_holder(weft_context *context, int rank);

/* table.c and ends.c, for contexts.c. */
weft_status wfi_contexts_add(wfi_contexts *all, weft_context *context);
void wfi_contexts_take(wfi_contexts *all, weft_context *context); /* out of the table */
void wfi_context_unref_later(
    weft_context *context); /* when the lock is let go. Without memory for that it is kept for ever */
/* Takes it out of the table: its passes end, and calls that name it fail. */
void wfi_contexts_end(wfi_contexts *all, weft_context *context, weft_status why, const char *text);
void wfi_contexts_look_again(wfi_contexts *all);  /* tells those who have not heard, soon */
void wfi_contexts_forget_told(wfi_contexts *all); /* lets go of those of ours that are over, and heard of by all */
/* The future of the end of one of ours that is over, with a reference. NULL: no memory. */
weft_future *wfi_contexts_end_of(weft_context *context);
/* Some worker that may have called others under one of ours is gone, or its answer is. If a future waits for the end,
 * every worker is told of it. */
void wfi_contexts_lose_names(weft_context *context);
void wfi_contexts_report_again(weft_context *context);
void wfi_contexts_tell_all(wfi_timer *timer);
void wfi_contexts_ask_later(wfi_contexts *all); /* there is one of another's here */
void wfi_contexts_ask_openers(wfi_timer *timer);
/* Begins a call of "weft:close" to `rank`, for all that it has not heard of, and for number `also` (0: none). If the
 * call fails, the worker is told again later. Not locked. */
void wfi_contexts_tell(weft_agent *agent, int rank, uint64_t also);
/* All incomplete futures of weft_context_close fail. */
void wfi_contexts_give_up(wfi_contexts *all, weft_status why, const char *text);
extern const weft_function wfi_close_function, wfi_joined_function;

/* For the component: component.c. */
weft_status wfi_contexts_open(weft_agent *agent);
void wfi_contexts_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text);
void wfi_contexts_fail_all(weft_agent *agent, weft_status why, const char *text);
bool wfi_contexts_are_busy(weft_agent *agent);
void wfi_contexts_await(weft_agent *agent, wfi_awaits *out);
size_t wfi_contexts_leaks(weft_agent *agent); /* not locked */
void wfi_contexts_close(weft_agent *agent);   /* not locked */
void wfi_contexts_dump(weft_agent *agent, struct wfi_json *j);

extern const wfi_component wfi_dist_component;
extern const wfi_links wfi_dist_links; /* link.c */

#endif
