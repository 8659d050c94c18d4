/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_impl.h - the internals of a pass. Below pass.c, which has what the thread that runs a pass does, are the life of
 * a pass and the delivery of events (pass_events.c), pass_budget.c, pass_messages.c and pass_failure.c. Above it are
 * backward.c and the functions that other workers call (pass_calls.c).
 */
#ifndef WFI_DIST_PASS_IMPL_H
#define WFI_DIST_PASS_IMPL_H

#include "autograd/engine.h"
#include "base/error.h"
#include "dist/contexts.h"
#include "dist/pass.h"
#include "rpc/server/server.h"

#include <endian.h>

#define WFI_PASS_FUNCTION "weft:pass"
#define WFI_FINAL_FUNCTION "weft:final"

enum {
    WFI_PASS_ASKS = 1,
    WFI_PASS_STATES = 2,
    WFI_PASS_RETAINS = 4,
    WFI_PASS_UNORDERED = 8,
    WFI_PASS_FINAL = 16, /* wfi_pass_head.final follows */
    WFI_PASS_FLAGS = 31, /* all of them */
};

typedef enum wfi_recv_state {
    WFI_RECV_PENDING, /* its consumers have not all answered */
    WFI_RECV_READY,   /* it has a gradient, which has to be sent */
    WFI_RECV_NONE,    /* it has none; its origin has the statement, and must be told */
    WFI_RECV_ANSWERED,
} wfi_recv_state;

typedef struct wfi_pass_recv {
    wfi_recv pair; /* its node referenced */
    wfi_recv_state state;
    weft_tensor *gradient;
    struct wfi_pass_recv *next;        /* of the same peer, in the pass's order */
    struct wfi_pass_recv *next_unsaid; /* READY or NONE: the next one of the same peer */
} wfi_pass_recv;

typedef struct wfi_pass_send {
    wfi_send send; /* its node referenced */
    bool answered;
    uint64_t look;              /* wfi_dist_pass.looks when this send was last marked */
    struct wfi_pass_send *next; /* to the same peer, in the pass's order */
} wfi_pass_send;

/* The most gradients in one message to a peer. Further gradients follow in further messages. */
#define WFI_PASS_GRADIENTS 16384

typedef struct wfi_pass_peer {
    uint32_t incarnation;                /* of the worker that had the rank when this worker joined */
    wfi_pass_send *sends;                /* to it */
    wfi_pass_recv *recvs;                /* from it */
    wfi_pass_recv *unsaid, *last_unsaid; /* recvs whose answers must be sent to it, in the order of arrival */
    size_t unsaid_gradients, unsaid_nones;
    size_t owed;        /* number of answers that it owes this worker */
    size_t calls;       /* this worker's calls to it in progress */
    weft_status gone;   /* WEFT_ERR_PEER_DEAD or similar once that worker has ended; otherwise WEFT_OK */
    bool heard, wrote;  /* whether it has written to this worker, and this worker to it */
    bool asked, stated; /* it wants a statement; it has this worker's */
} wfi_pass_peer;

/* A call for which the thread that waits for the pass waits. */
typedef struct wfi_pass_wait {
    weft_future *call;            /* referenced */
    struct wfi_pass_event *event; /* for its answer, owned */
} wfi_pass_wait;
#define WFI_PASS_WAITS 8 /* the answers of further calls wake another thread */

/* An event of a pass. */
typedef struct wfi_pass_event {
    wfi_list link;
    /*
     * FAIL: `rank` reports that the pass failed elsewhere. END: the pass must end here, because its time is up or it
     * was cancelled.
     */
    enum { WFI_EVENT_CALL, WFI_EVENT_ANSWER, WFI_EVENT_FAIL, WFI_EVENT_END, WFI_EVENT_GONE, WFI_EVENT_HOOK } kind;
    weft_call *call;   /* CALL: "weft:pass", deferred; to be finished */
    int rank;          /* ANSWER, GONE: whose */
    bool all_answered; /* ANSWER: its content */
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
    void *step_names; /* optimizers that step at the end, for wfi_pass_step_fn; owned; NULL: none */
    size_t step_size;

    wfi_mutex lock; /* guards these fields: */
    wfi_list events;
    bool running, over;   /* a task runs or is queued; no more events are accepted */
    wfi_pass_event spare; /* for an event that ends the pass, if memory for another is exhausted */
    wfi_task task;

    /* Used by the thread that runs the pass. */
    bool begun, told; /* told: another worker reported why it fails */
    wfi_engine engine;
    wfi_pass_send *sends; /* number n is sends[n - 1] */
    size_t send_count;
    uint64_t looks; /* counts the checks that mark sends, so that a check recognizes its own marks */
    wfi_pass_recv *recvs;
    size_t recv_count;
    wfi_map recv_of;      /* node's slot + 1 -> wfi_pass_recv */
    wfi_pass_peer *peers; /* by rank */
    size_t awaited;       /* sends that are not answered */
    size_t calls;         /* number of this worker's calls in progress */
    size_t hooks;         /* number of incomplete operations that hooks started */
    weft_call *parent;
    wfi_span span;        /* its place in a trace; constant once it is over */
    wfi_pointers held;    /* weft_call to be answered at the end of this round */
    wfi_pointers futures; /* weft_future of this worker's calls, referenced */

    bool waiter_runs;                        /* the thread that waits for the root's pass runs it now */
    wfi_pass_wait waits_for[WFI_PASS_WAITS]; /* the calls that this thread made */
    size_t waits_for_count;

    weft_future *future; /* of the root; NULL */
    wfi_timer timer;     /* of the root. [agent lock] */
    int64_t limit_ms;    /* the root's time limit; or WEFT_FOREVER */

    /*
     * [agent lock] In wfi_contexts.unheard, which references the pass, while some worker does not know that the pass
     * failed.
     */
    wfi_list unheard;
    wfi_task abort_task;

    size_t held_bytes;    /* size of gradients in the memory budget until the pass is over. [agent lock] */
    size_t counted_bytes; /* its own size, likewise, if another worker began it; constant */
    bool is_of_others;    /* another worker began it, or requested it here; constant once it runs */
    /* of such a pass: size of the snapshot and the engine's records, until they are freed. [agent lock] */
    size_t work_bytes;
};

/* pass_events.c */
wfi_dist_pass *wfi_dist_pass_ref(wfi_dist_pass *pass);
void wfi_dist_pass_unref(wfi_dist_pass *pass); /* not locked */
/* Adds it to its context's list, which references it. With the context's lock. */
void wfi_dist_pass_enlist(wfi_dist_pass *pass, int root, uint64_t number);
#define WFI_PASS_WHO_MAX 160
/* "rank 2 (worker2)". Not locked. */
const char *wfi_pass_who(const wfi_dist_pass *pass, int rank, char out[WFI_PASS_WHO_MAX]);
void wfi_pass_refuse(weft_call *call, weft_error *error); /* ends a call of "weft:pass"; takes over the error */
void wfi_pass_answer_call(weft_call *call, bool all_answered);
/*
 * Which thread runs a pass that no thread runs: the caller, which is a worker thread that holds no lock; or later a
 * worker thread.
 */
typedef enum wfi_pass_runner {
    WFI_RUN_HERE,
    WFI_RUN_WAITER, /* the caller is the thread that waits for the root's pass */
    WFI_RUN_LATER,  /* the caller is any thread, not locked */
    WFI_RUN_LOCKED, /* the caller has the agent's lock */
} wfi_pass_runner;
/*
 * Adds an event, which it takes over, and makes sure that a thread runs the pass. If the pass is over, the event's
 * `call` is answered.
 */
void wfi_pass_post(wfi_dist_pass *pass, wfi_pass_event *event, wfi_pass_runner runner);
void wfi_pass_post_failure(wfi_dist_pass *pass, int kind, int rank, weft_error *error,
                           wfi_pass_runner runner); /* takes over the error */
void wfi_pass_answer_late(wfi_dist_pass *pass,
                          wfi_pass_event *event); /* of a pass that is over; takes the event over */
void wfi_pass_free_event(wfi_pass_event *event);

/* pass_budget.c */
/*
 * Moves the charge of the `gradients` that the call carried from the call to the pass. The call keeps the charge of
 * its other data until it is answered. Not locked.
 */
void wfi_pass_hold(wfi_dist_pass *pass, weft_call *call, weft_tensors gradients);
void wfi_pass_let_go(wfi_dist_pass *pass); /* releases that charge. Not locked */
/*
 * Counts the memory that a pass of another worker over `context` will allocate for itself, before it does. One such
 * pass over each context is admitted even if the budget is full. WEFT_ERR_BUSY: it does not fit; `problem` says why.
 * wfi_pass_may_work counts nothing, and is for a pass that does not exist yet. [agent lock], the context's
 */
weft_status wfi_pass_may_work(const weft_context *context, char *problem, size_t room);
/* Counts it, until wfi_pass_end_work. May be repeated: then only the difference is counted. Not locked */
weft_status wfi_pass_count_work(wfi_dist_pass *pass, char *problem, size_t room);
/* Whether the context has grown since. With the context's lock. */
bool wfi_pass_work_grew(const wfi_dist_pass *pass);
void wfi_pass_trim_work(wfi_dist_pass *pass); /* It has begun: counts what it did allocate. Not locked */
void wfi_pass_end_work(wfi_dist_pass *pass);  /* it is freed. Not locked */

/* pass_messages.c: written */
weft_status wfi_pass_write(wfi_dist_pass *pass); /* to all peers that must get a message */
/* For the thread that waits for the root's pass: waits for its calls, and runs the pass with their answers. */
void wfi_pass_wait_for_calls(wfi_dist_pass *pass);
/*
 * Tells each worker that exchanged messages with this one in the pass, except that rank, that the passes of its root up
 * to *number* are final. If the message is lost, the next one of a pass says so too. Not locked.
 */
void wfi_pass_tell_final(wfi_dist_pass *pass, uint64_t number, int except);
#define WFI_PASS_HEAD_BYTES (3 * sizeof(uint32_t) + 3 * sizeof(uint64_t) + 1)
void wfi_pass_write_head(const wfi_dist_pass *pass, uint64_t number, unsigned flags, uint64_t final,
                         wfi_writer *writer);

/* pass_messages.c: read */
/* The beginning of calls of "weft:pass", "weft:final" and "weft:abort". */
typedef struct wfi_pass_head {
    weft_context_id id;
    int root;
    uint64_t number, final; /* final: of the root's last pass that is known to be final (context.h); 0: none */
    uint8_t flags;
} wfi_pass_head;
bool wfi_pass_read_head(const weft_agent *agent, const void *bytes, size_t size, wfi_pass_head *out);
/* The content of a "weft:pass" call. Borrowed from the call. */
typedef struct wfi_pass_words {
    unsigned flags;
    uint64_t final;
    const void *step_names;
    size_t step_size;
    const uint64_t *statement, *nones, *numbers; /* numbers of this worker's sends; wfi_pass_number reads one */
    size_t statement_count, none_count, number_count;
    weft_tensors gradients;
} wfi_pass_words;
static inline uint64_t wfi_pass_number(const uint64_t *numbers, size_t i)
{
    return le64toh(numbers[i]);
}
bool wfi_pass_read(const weft_call *call, wfi_pass_words *out, weft_context_id *id, int *root, uint64_t *number);

/* pass_failure.c */
/*
 * Drops the sums of a pass that ended well here but failed elsewhere. If it is final, its root has died: then the sums
 * of all final passes of the root, which are added up, are dropped. False: it had not ended well. With the context's
 * lock.
 */
bool wfi_pass_undo(weft_context *context, wfi_pass_record *record, const weft_error *error);
/*
 * Tells each worker that exchanged messages with this one in the pass, once, that the pass failed. If memory is
 * exhausted, here or there, tries again later. Not locked.
 */
void wfi_pass_abort(wfi_dist_pass *pass, const weft_error *error);
/*
 * The error with this worker's name, the operator after which the pass stopped here, and the workers that it waits
 * for. For the thread that runs the pass; takes over the error.
 */
weft_error *wfi_pass_located(const wfi_dist_pass *pass, weft_error *error);
/* The engine's error with this worker's name; this worker is at fault unless another one caused it. A new reference. */
weft_error *wfi_pass_named(const wfi_dist_pass *pass);
/* Like wfi_pass_located, for an error from elsewhere: without the workers that it waits for. A new reference. */
weft_error *wfi_pass_told(const wfi_dist_pass *pass, const weft_error *error);

/* pass.c */
wfi_dist_pass *wfi_dist_pass_create(weft_context *context, unsigned flags); /* one reference; NULL: no memory */
void wfi_dist_pass_discard(wfi_dist_pass *pass); /* for a pass that never ran; drops the reference. Not locked */
weft_status wfi_pass_copy_step_names(wfi_dist_pass *pass, const void *names, size_t size); /* WEFT_ERR_MEMORY */
/* Processes all events. For one thread at a time, which set `running` and then `waiter_runs`. */
void wfi_dist_pass_run(wfi_dist_pass *pass);

/* backward.c */
weft_status wfi_remote_roots_register(weft_agent *agent); /* weft's own functions for a root on another worker */

#endif
