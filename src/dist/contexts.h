/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts.h - the contexts of an agent: which workers hold a part of each, and how each ends at all of them.
 *
 * The opener of a context learns its holders from replies: each reply names the workers that its sender has called. A
 * holder that no reply will name is reported to the opener by a call ("weft:joined"), also where calls are not served
 * any longer. When a worker dies, each holder reports itself. When a context is closed, its holders are told. Each
 * call carries the opener's floor, the lowest number of an open context: all contexts below it are over. So in a loop
 * the next call tells its callee at no cost; a holder that is not told within 2 ms gets a call of its own
 * ("weft:close"). If a future waits for the end, the floor does not pass the context: each holder is told by
 * "weft:close", and its answer names the workers that it has called, which are told too. The future completes when
 * all named workers have answered. If a worker dies, the workers that it had called are unknown: then every worker is
 * told.
 * News of a holder can be lost with the answer of a call that nobody waits for. So a holder that has seen no call
 * under the context for 10 to 20 s reports itself to the opener, which answers whether the context is over.
 * docs/models/ends.pml is a model of this.
 *
 * LOCK. The agent's, for everything here unless stated otherwise.
 */
#ifndef WFI_CONTEXTS_H
#define WFI_CONTEXTS_H

#include "dist/context.h"
#include "dist/observe.h"
#include "rpc/payload/link.h"

enum wfi_holder {
    WFI_HOLDER_NONE,
    WFI_HOLDER_YES,     /* it holds a part; if the context is closed, it is not known to have been told */
    WFI_HOLDER_TELLING, /* a call that tells it is in progress */
    WFI_HOLDER_TOLD,    /* only at the opener: it has released a context that is over */
};

/* The contexts of one worker, as others know them. */
typedef struct wfi_opener {
    uint32_t incarnation;
    uint64_t floor; /* all contexts below are over */
    wfi_map closed; /* numbers from the floor on that are over; the values are not used */
} wfi_opener;

typedef struct wfi_contexts {
    weft_agent *agent;
    wfi_map table;         /* hash of the id -> weft_context, linked by next_same; each referenced */
    size_t count;          /* in the table */
    _Atomic size_t passes; /* that run here. Any thread */
    wfi_list ours; /* contexts that this worker opened, by number: open, or closed with holders that do not know it */
    uint64_t last_number;
    wfi_opener *openers;    /* by rank */
    wfi_dist_counts counts; /* with its own lock */
    wfi_timer timer;        /* tells the holders that no call has told */
    wfi_list unheard;       /* wfi_dist_pass.unheard: passes whose failure some worker does not know; each referenced */
    wfi_timer aborting;     /* tells these workers again */
    wfi_timer asking;       /* timer: queries the openers of idle contexts */
    bool asks;              /* `asking` is set */
} wfi_contexts;

static inline wfi_contexts *wfi_contexts_of(const weft_agent *agent)
{
    return agent->state[WFI_STATE_CONTEXTS];
}

weft_context *wfi_contexts_find(weft_agent *agent, const weft_context_id *id);     /* borrowed; NULL: no part here */
weft_context *wfi_contexts_find_ref(weft_agent *agent, const weft_context_id *id); /* not locked; with a reference */
/* The first of these finds the context, or makes it. WEFT_ERR_STATE: it is over; WEFT_ERR_MEMORY. */
weft_status wfi_contexts_join(weft_agent *agent, const weft_context_id *id, weft_context **out);
/* A worker's message about its contexts: those below `floor` are over. */
void wfi_contexts_floor(weft_agent *agent, uint32_t rank, uint32_t incarnation, uint64_t floor);
uint64_t wfi_contexts_our_floor(const weft_agent *agent);
/* A call to `rank` leaves with this worker's floor; it was answered, or it failed. */
void wfi_contexts_telling(weft_agent *agent, int rank, uint64_t floor);
void wfi_contexts_told(weft_agent *agent, int rank, uint64_t floor, bool heard);

/* On a worker that did not open it: tells the opener which workers this one has called, if no answer will do so. */
void wfi_contexts_report(weft_context *context);
/* On the opener: a holder is reported when the context is over. */
void wfi_contexts_late_holder(weft_context *context, int rank);

/* release.c, and for it */
weft_status wfi_contexts_add(wfi_contexts *all, weft_context *context);
void wfi_contexts_take(wfi_contexts *all, weft_context *context); /* out of the table */
void wfi_context_unref_later(
    weft_context *context); /* when the lock is released. Without memory for that it is kept forever */
/* Takes it out of the table: its passes end, and calls that name it fail. */
void wfi_contexts_end(wfi_contexts *all, weft_context *context, weft_status why, const char *text);
void wfi_contexts_look_again(wfi_contexts *all); /* soon tells the holders that do not know yet */
/* releases this worker's contexts that are over and known to be so by all */
void wfi_contexts_forget_told(wfi_contexts *all);
/* The future of the end of a context of this worker that is over, with a reference. NULL: no memory. */
weft_future *wfi_contexts_end_of(weft_context *context);
/*
 * A worker that may have called others under a context of this worker has ended, or its answer was lost. If a future
 * waits for the end, every worker is told of it.
 */
void wfi_contexts_lose_names(weft_context *context);
void wfi_contexts_report_again(weft_context *context);
void wfi_contexts_tell_all(wfi_timer *timer);
void wfi_contexts_ask_later(wfi_contexts *all); /* there is a context of another worker here */
void wfi_contexts_ask_openers(wfi_timer *timer);
/*
 * Starts a call of "weft:close" to `rank`, for all contexts whose end it does not know, and for number `also` (0:
 * none). If the call fails, the worker is told again later. Not locked.
 */
void wfi_contexts_tell(weft_agent *agent, int rank, uint64_t also);
/* Fails all incomplete futures of weft_context_close. */
void wfi_contexts_give_up(wfi_contexts *all, weft_status why, const char *text);
extern const weft_function wfi_close_function, wfi_joined_function;

/* contexts.c; link.c */
extern const wfi_component wfi_dist_component;
extern const wfi_links wfi_dist_links;

#endif
