/* SPDX-License-Identifier: Apache-2.0 */
/* pass_impl.h - the inside of a pass, which pass.c (events, nodes), pass_wire.c (what is written) and backward.c (the root) share. */
#ifndef WFI_DIST_PASS_IMPL_H
#define WFI_DIST_PASS_IMPL_H

#include "autograd/engine.h"
#include "base/error.h"
#include "dist/contexts.h"
#include "dist/pass.h"
#include "rpc/server/server.h"

#include <endian.h>

#define WFI_PASS_FUNCTION "weft:pass"

enum {
    WFI_PASS_ASKS = 1,
    WFI_PASS_STATES = 2,
    WFI_PASS_RETAINS = 4,
    WFI_PASS_UNORDERED = 8,
    WFI_PASS_FLAGS = 15, /* all of them */
};

typedef enum wfi_recv_state {
    WFI_RECV_PENDING, /* its consumers have not all answered */
    WFI_RECV_READY,   /* it has a gradient, which is to be written */
    WFI_RECV_NONE,    /* none, and its origin, which has the statement, is to hear so */
    WFI_RECV_ANSWERED,
} wfi_recv_state;

typedef struct wfi_pass_recv {
    wfi_recv pair; /* its node referenced */
    wfi_recv_state state;
    weft_tensor *gradient;
    struct wfi_pass_recv *next;        /* of the same peer, in the pass's order */
    struct wfi_pass_recv *next_unsaid; /* READY or NONE: of the same peer */
} wfi_pass_recv;

typedef struct wfi_pass_send {
    wfi_send send; /* its node referenced */
    bool answered;
    uint64_t look;              /* wfi_dist_pass.looks when this send was marked last */
    struct wfi_pass_send *next; /* to the same peer, in the pass's order */
} wfi_pass_send;

/* The most gradients in one message to a peer. Further gradients follow in further messages. */
#define WFI_PASS_GRADIENTS 16384

typedef struct wfi_pass_peer {
    uint32_t incarnation;                /* of whoever had the rank when this worker joined */
    wfi_pass_send *sends;                /* to it */
    wfi_pass_recv *recvs;                /* from it */
    wfi_pass_recv *unsaid, *last_unsaid; /* those whose answers it is to hear, in the order in which they came */
    size_t unsaid_gradients, unsaid_nones;
    size_t owed;        /* answers that it owes us */
    size_t calls;       /* of ours to it, under way */
    weft_status gone;   /* WEFT_ERR_PEER_DEAD or the like, once that worker is; else WEFT_OK */
    bool heard, wrote;  /* it wrote to us; we to it */
    bool asked, stated; /* it wants a statement; it has ours */
} wfi_pass_peer;

/* A call that whoever waits for the pass waits for. */
typedef struct wfi_pass_wait {
    weft_future *call;            /* referenced */
    struct wfi_pass_event *event; /* for its answer, owned */
} wfi_pass_wait;
#define WFI_PASS_WAITS 8 /* further calls wake another thread when they are answered */

/* An event of a pass. */
typedef struct wfi_pass_event {
    wfi_list link;
    /* FAIL: the pass failed elsewhere, as `rank` says; END: the pass is to end here, because its time is up or it
     * was cancelled. */
    enum { WFI_EVENT_CALL, WFI_EVENT_ANSWER, WFI_EVENT_FAIL, WFI_EVENT_END, WFI_EVENT_GONE, WFI_EVENT_HOOK } kind;
    weft_call *call;   /* CALL: "weft:pass", deferred; to be finished */
    int rank;          /* ANSWER, GONE: whose */
    bool all_answered; /* ANSWER: what it said */
    weft_error *error; /* ANSWER, FAIL, END, GONE, HOOK; referenced */
    bool is_spare;     /* part of the pass, so not freed: wfi_dist_pass.spare */
} wfi_pass_event;

struct wfi_dist_pass {
    _Atomic uint32_t refs;
    weft_agent *agent;     /* referenced */
    weft_context *context; /* referenced while it runs */
    weft_context_id context_id;
    wfi_pass_record record;
    unsigned flags;
    void *step_names; /* whose optimizers step when it is whole, for wfi_pass_steps; owned; NULL: nobody's */
    size_t step_size;

    wfi_mutex lock; /* of these */
    wfi_list events;
    bool running, over;   /* a task runs or is queued; no events are taken any more */
    wfi_pass_event spare; /* for an event that ends the pass, if memory for another is out */
    wfi_task task;

    /* Of whoever runs it. */
    bool begun, told; /* told: why it fails was said by another worker */
    wfi_pass engine;
    wfi_pass_send *sends; /* number n is sends[n - 1] */
    size_t send_count;
    uint64_t looks; /* counts the checks that mark sends, so that a check knows its own marks */
    wfi_pass_recv *recvs;
    size_t recv_count;
    wfi_map recv_of;      /* node's slot + 1 -> wfi_pass_recv */
    wfi_pass_peer *peers; /* by rank */
    size_t awaited;       /* sends that were not answered */
    size_t calls;         /* of ours, under way; and: */
    size_t hooks;         /* what hooks began, and is not complete */
    weft_call *parent;
    wfi_span span;        /* its place in a trace; constant once it is over */
    wfi_pointers held;    /* weft_call to be answered at the end of this round */
    wfi_pointers futures; /* weft_future of our calls, referenced */

    bool waiter_runs;                        /* the thread that waits for the root's pass runs it now */
    wfi_pass_wait waits_for[WFI_PASS_WAITS]; /* that thread's: calls that it made */
    size_t waits_for_count;

    weft_future *future; /* of the root; NULL */
    wfi_timer timer;     /* of the root. [agent lock] */
    int64_t limit_ms;    /* that it has; or WEFT_FOREVER */

    /* [agent lock] In wfi_contexts.unheard, which references the pass, while some worker was not told that the pass
     * failed. */
    wfi_list unheard;
    wfi_task abort_task;

    size_t held_bytes;    /* gradients, against the memory budget until it is over. [agent lock] */
    size_t counted_bytes; /* itself, likewise, if another worker began it; constant */
    bool is_of_others;    /* another worker began it, or had it begun here; constant once it runs */
    size_t work_bytes; /* of such a pass: the snapshot and the engine's records, until they are freed. [agent lock] */
};

/* pass_life.c */
wfi_dist_pass *wfi_dist_pass_ref(wfi_dist_pass *pass);
void wfi_dist_pass_unref(wfi_dist_pass *pass); /* not locked */
/* Puts it in its context's list, which references it. With the context's lock. */
void wfi_dist_pass_enlist(wfi_dist_pass *pass, int root, uint64_t number);
/* One that had failed before it began here. With the context's lock. */
void wfi_dist_pass_stillborn(wfi_dist_pass *pass, const weft_error *error);
void wfi_pass_refuse(weft_call *call, weft_error *error); /* ends a call of "weft:pass"; takes over the error */
void wfi_pass_answer_call(weft_call *call, bool all_answered);
weft_status wfi_pass_set_steps(wfi_dist_pass *pass, const void *names, size_t size); /* copies them. WEFT_ERR_MEMORY */
/* Names the parts of `optimizer`. WEFT_ERR_INVALID: it is another agent's; or what became of *owner. */
weft_status wfi_pass_write_optimizer(const weft_agent *agent, const struct weft_dist_optimizer *optimizer,
                                     wfi_writer *names, int *owner);
void wfi_pass_step(wfi_dist_pass *pass); /* it is whole here: optimizers step, if it takes any along */
/* Waits for the operations that hooks have begun, as for calls of ours. */
void wfi_pass_follow_hooks(wfi_dist_pass *pass);
/* It had ended well here, and fails elsewhere: its sums go. False: it had not. With the context's lock. */
bool wfi_pass_undo(wfi_pass_record *record, const weft_error *error);
/* Moves what the call is charged for `gradients`, which it brought, to the pass. The call is charged for its other words
 * until it is answered. Not locked. */
void wfi_pass_hold(wfi_dist_pass *pass, weft_call *call, weft_tensors gradients);
void wfi_pass_let_go(wfi_dist_pass *pass); /* releases that charge. Not locked */
/*
 * Counts what a pass of others over `context` will allocate for itself, before it does. One such pass over each context
 * is let in however full the budget is. WEFT_ERR_BUSY: it does not fit; `problem` says why. wfi_pass_may_work counts
 * nothing, and is for a pass that does not exist yet. [agent lock], the context's
 */
weft_status wfi_pass_may_work(const weft_context *context, char *problem, size_t room);
/* Counts it, until wfi_pass_end_work. May be repeated: then only the difference is counted. Not locked */
weft_status wfi_pass_count_work(wfi_dist_pass *pass, char *problem, size_t room);
/* Whether the context has grown since then. With the context's lock. */
bool wfi_pass_work_grew(const wfi_dist_pass *pass);
void wfi_pass_trim_work(wfi_dist_pass *pass); /* it has begun: counts what it did allocate. Not locked */
void wfi_pass_end_work(wfi_dist_pass *pass);  /* it is freed. Not locked */
void wfi_pass_free_event(wfi_pass_event *event);
void wfi_pass_answer_late(wfi_dist_pass *pass,
                          wfi_pass_event *event); /* of a pass that is over; takes over the event */
/* Who runs a pass that nobody runs: the caller, a worker thread that holds nothing; or a worker thread, by and by. */
typedef enum wfi_pass_runner {
    WFI_RUN_HERE,
    WFI_RUN_WAITER, /* the caller is the thread that waits for the root's pass */
    WFI_RUN_LATER,  /* the caller is any thread, not locked */
    WFI_RUN_LOCKED, /* the caller has the agent's lock */
} wfi_pass_runner;
/* Adds an event, which it takes over, and sees to it that somebody runs the pass. `call` of one that is over is answered. */
void wfi_pass_post(wfi_dist_pass *pass, wfi_pass_event *event, wfi_pass_runner runner);
void wfi_pass_post_failure(wfi_dist_pass *pass, int kind, int rank, weft_error *error,
                           wfi_pass_runner runner); /* takes over the error */
#define WFI_PASS_WHO_MAX 160
/* "rank 2 (worker2)". Not locked. */
const char *wfi_pass_who(const wfi_dist_pass *pass, int rank, char out[WFI_PASS_WHO_MAX]);
/* The error with this worker's name, the operator behind which the pass stands here, and whom it waits for. By who runs it; takes over the
 * error. */
weft_error *wfi_pass_located(const wfi_dist_pass *pass, weft_error *error);
/* What the engine says, with this worker's name; it is this worker's failure unless another one caused it. A new reference. */
weft_error *wfi_pass_named(const wfi_dist_pass *pass);
/* As wfi_pass_located, for one that came from elsewhere: without whom it waits for. A new reference. */
weft_error *wfi_pass_told(const wfi_dist_pass *pass, const weft_error *error);

/* pass.c */
wfi_dist_pass *wfi_dist_pass_create(weft_context *context, unsigned flags); /* one reference; NULL: no memory */
void wfi_dist_pass_discard(
    wfi_dist_pass *pass); /* one that never ran, with the reference. Not locked. NULL does nothing */
/* Takes all events that there are. By one thread at a time, which set `running` and then `waiter_runs`. */
void wfi_dist_pass_run(wfi_dist_pass *pass);

/* backward.c */
typedef struct wfi_pass_names {
    const void *bytes;
    size_t size;
} wfi_pass_names;
/* Starts a pass here, as weft_context_backward, for the served call `within`, or NULL; those of `steps` step, options->step is not looked
 * at. Its future; NULL: *error. */
weft_future *wfi_context_backward(weft_context *context, weft_tensors roots, const weft_pass_options *options,
                                  wfi_pass_names steps, const weft_call *within, weft_error **error);

/* remote_root.c */
weft_status wfi_remote_roots_register(weft_agent *agent);

/* pass_wire.c */
weft_status wfi_pass_write(wfi_dist_pass *pass); /* to all who are to be written to */
void wfi_pass_wait_for_calls(
    wfi_dist_pass *pass); /* the waiter: for all that it made, and runs the pass with what they answer */
/* Tells each worker that exchanged messages with this one in the pass that the pass failed, once. If memory is out,
 * here or there, tries again later. Not locked. */
void wfi_pass_abort(wfi_dist_pass *pass, const weft_error *error);
/* How calls of "weft:pass" and "weft:abort" begin. */
typedef struct wfi_pass_head {
    weft_context_id id;
    int root;
    uint64_t number;
    uint8_t flags;
} wfi_pass_head;
bool wfi_pass_read_head(const weft_agent *agent, const void *bytes, size_t size, wfi_pass_head *out);
/* What a "weft:pass" call says. Borrowed from the call. */
typedef struct wfi_pass_words {
    unsigned flags;
    const void *step_names;
    size_t step_size;
    const uint64_t *statement, *nones, *numbers; /* of sends of this worker; wfi_pass_number reads one */
    size_t statement_count, none_count, number_count;
    weft_tensors gradients;
} wfi_pass_words;
static inline uint64_t wfi_pass_number(const uint64_t *numbers, size_t i)
{
    return le64toh(numbers[i]);
}
bool wfi_pass_read(const weft_call *call, wfi_pass_words *out, weft_context_id *id, int *root, uint64_t *number);

#endif
