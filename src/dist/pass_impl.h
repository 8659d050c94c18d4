/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_impl.h - the internals of a pass. A message takes this way through the files:
 *
 *   backward.c       the program begins a pass here, or asks another worker to begin one;
 *   pass_calls.c     a call of "weft:pass" arrives: wfi_pass_admit checks it before its gradients are pulled, and its
 *                    handler finds or makes the pass;
 *   pass_events.c    the call is queued as an event; the first event makes a thread run the pass;
 *   pass.c           that thread processes the events, lets the engine run nodes, steps optimizers, ends the pass;
 *   pass_messages.c  it writes messages to the workers that need one, and gets their answers as events;
 *   pass_failure.c   texts of errors, "weft:abort", workers and contexts that end;
 *   pass_budget.c    the memory of a pass in the agent's budget;
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

/* The arguments of "weft:pass". pass_messages.c has their content. */
enum {
    WFI_PASS_ARG_HEAD,
    WFI_PASS_ARG_PENDING,
    WFI_PASS_ARG_ABSENT,
    WFI_PASS_ARG_NUMBERS,
    WFI_PASS_ARG_STEPS,
    WFI_PASS_ARG_GRADIENTS,
    WFI_PASS_ARGS,
};

/* Flags in the head of a message. */
enum {
    WFI_PASS_ASKS = 1,          /* the sender waits for answers of the receiver */
    WFI_PASS_LISTS_PENDING = 2, /* the message has a pending list */
    WFI_PASS_RETAINS = 4,       /* weft_pass_options.retain */
    WFI_PASS_UNORDERED = 8,     /* weft_pass_options.unordered */
    WFI_PASS_FINAL = 16,        /* wfi_pass_head.final follows */
    WFI_PASS_FLAGS = 31,        /* all of them */
};

typedef enum wfi_recv_state {
    WFI_RECV_PENDING,  /* some consumer of the tensor has not contributed yet */
    WFI_RECV_READY,    /* it has a gradient, which has to be sent */
    WFI_RECV_ABSENT,   /* it has no gradient; its origin has the pending list, so it waits for the answer */
    WFI_RECV_ANSWERED, /* its origin has the answer, or does not wait for one */
} wfi_recv_state;

/* A tensor that this worker received, in one pass: its gradient goes to its origin. */
typedef struct wfi_pass_recv {
    wfi_recv pair; /* its node referenced */
    wfi_recv_state state;
    weft_tensor *gradient;
    struct wfi_pass_recv *next;        /* of the same peer, in the pass's order */
    struct wfi_pass_recv *next_unsent; /* READY or ABSENT: the next one of the same peer */
} wfi_pass_recv;

/* A tensor that this worker sent, in one pass: the engine waits for its gradient. */
typedef struct wfi_pass_send {
    wfi_send send; /* its node referenced */
    bool answered;
    uint64_t mark;              /* wfi_pass.marks when this send was last marked */
    struct wfi_pass_send *next; /* to the same peer, in the pass's order */
} wfi_pass_send;

#define WFI_PASS_GRADIENTS_MAX 16384 /* the most in one message; the others follow in further messages */

/* Another worker, in one pass. */
typedef struct wfi_pass_peer {
    uint32_t incarnation;                /* of the worker that had the rank when this worker joined the pass */
    wfi_pass_send *sends;                /* to it */
    wfi_pass_recv *recvs;                /* from it */
    wfi_pass_recv *unsent, *last_unsent; /* recvs whose answers have to be sent to it, oldest first */
    size_t unsent_gradients, unsent_absent;
    size_t awaited;      /* number of this worker's sends that it has not answered */
    size_t calls;        /* number of this worker's calls to it in progress */
    weft_status gone;    /* WEFT_ERR_PEER_DEAD or similar once that worker has ended; otherwise WEFT_OK */
    bool received, sent; /* a message from it has arrived; one has been sent to it */
    bool wants_pending_list, has_pending_list; /* it asked and waits for one; this worker sent it one */
} wfi_pass_peer;

/*
 * A call of the pass for which the thread that waits for the root's pass waits itself, so that no other thread has to
 * wake for its answer.
 */
typedef struct wfi_waiter_call {
    weft_future *call;            /* referenced */
    struct wfi_pass_event *event; /* for its answer, owned */
} wfi_waiter_call;
#define WFI_PASS_WAITS 8 /* for further calls another thread wakes */

typedef enum wfi_pass_event_kind {
    WFI_PASS_EVENT_CALL,   /* a call of "weft:pass" has arrived: `call`, deferred, which the pass finishes */
    WFI_PASS_EVENT_ANSWER, /* this worker's call to `rank` has ended: with `error`, or with `all_answered` */
    WFI_PASS_EVENT_FAIL,   /* the pass failed at another worker, as `rank` reports: `error` */
    WFI_PASS_EVENT_END,    /* the pass must end here with `error`, because its time is up or it was cancelled */
    WFI_PASS_EVENT_GONE,   /* worker `rank` has ended: `error` */
    WFI_PASS_EVENT_HOOK,   /* an operation that a hook started has ended; `error`: why it failed */
} wfi_pass_event_kind;

typedef struct wfi_pass_event {
    wfi_list link;
    wfi_pass_event_kind kind;
    weft_call *call;
    int rank;
    bool all_answered;
    weft_error *error; /* referenced; NULL: none */
    bool is_spare;     /* part of the pass, so not freed: wfi_pass.spare */
} wfi_pass_event;

struct wfi_pass {
    _Atomic uint32_t refs;
    weft_agent *agent;     /* referenced */
    weft_context *context; /* referenced while it runs */
    weft_context_id context_id;
    wfi_pass_result result;
    unsigned flags;
    void *step_names; /* optimizers that step at the end, for wfi_pass_step_fn; owned; NULL: none */
    size_t step_size;

    wfi_mutex lock; /* guards these fields: */
    wfi_list events;
    bool running;         /* a thread runs the pass, or its task is queued */
    bool over;            /* no more events are accepted */
    wfi_pass_event spare; /* for an event that ends the pass, if there is no memory for another one */
    wfi_task task;

    /* Used by the thread that runs the pass. */
    bool begun;           /* the sends and recvs are known, and the engine has begun */
    bool reported;        /* the failure was reported by another worker, which tells the others */
    wfi_engine engine;    /* runs the nodes of this worker */
    wfi_pass_send *sends; /* number n is sends[n - 1] */
    size_t send_count;
    uint64_t marks; /* number of checks that have marked sends, so that a check recognizes its own marks */
    wfi_pass_recv *recvs;
    size_t recv_count;
    wfi_map recv_of;         /* node's slot + 1 -> wfi_pass_recv */
    wfi_pass_peer *peers;    /* by rank */
    size_t awaited;          /* number of sends that are not answered */
    size_t calls;            /* number of this worker's calls in progress */
    size_t hooks;            /* number of incomplete operations that hooks started */
    weft_call *joined_by;    /* the call by which this worker joined; answered at the end; NULL at the root */
    wfi_span span;           /* its place in a trace; constant once it is over */
    wfi_pointers unanswered; /* weft_call, which are answered at the end of this round */
    wfi_pointers futures;    /* weft_future of this worker's calls, referenced */

    bool waiter_runs;                             /* the thread that waits for the root's pass runs it now */
    wfi_waiter_call waiter_calls[WFI_PASS_WAITS]; /* calls that this thread made */
    size_t waiter_call_count;

    /* only at the root: */
    weft_future *future;
    wfi_timer timer;  /* [agent lock] */
    int64_t limit_ms; /* or WEFT_FOREVER */

    wfi_list unnotified; /* [agent lock] in wfi_contexts.unnotified, while some worker does not know of its failure */
    wfi_task abort_task;

    size_t gradient_bytes; /* [agent lock] charge of received gradients, until the pass is over */
    size_t counted_bytes;  /* charge of this struct, if another worker began the pass; constant */
    bool for_peer;         /* another worker began it, or requested it here; constant once it runs */
    size_t work_bytes;     /* [agent lock] then: charge of the sends, the recvs and the engine, until they are freed */
};

/* pass_events.c */
wfi_pass *wfi_pass_ref(wfi_pass *pass);
void wfi_pass_unref(wfi_pass *pass); /* not locked */
/* Adds it to its context's list, which references it. With the context's lock. */
void wfi_pass_enlist(wfi_pass *pass, int root, uint64_t number);
#define WFI_PASS_WHO_MAX 160
/* "rank 2 (worker2)". Not locked. */
const char *wfi_pass_who(const wfi_pass *pass, int rank, char out[WFI_PASS_WHO_MAX]);
void wfi_pass_refuse(weft_call *call, weft_error *error); /* ends a call of "weft:pass"; takes over the error */
void wfi_pass_answer_call(weft_call *call, bool all_answered);
/* Which thread runs a pass that no thread runs yet. */
typedef enum wfi_pass_runner {
    WFI_RUN_HERE,   /* the caller, a worker thread that holds no lock */
    WFI_RUN_WAITER, /* the caller, the thread that waits for the root's pass */
    WFI_RUN_LATER,  /* a worker thread; the caller holds no lock */
    WFI_RUN_LOCKED, /* a worker thread; the caller has the agent's lock */
} wfi_pass_runner;
/*
 * Adds an event, which it takes over, and makes sure that a thread runs the pass. If the pass is over, the event's
 * `call` is answered.
 */
void wfi_pass_post(wfi_pass *pass, wfi_pass_event *event, wfi_pass_runner runner);
void wfi_pass_post_failure(wfi_pass *pass, wfi_pass_event_kind kind, int rank, weft_error *error,
                           wfi_pass_runner runner);               /* takes over the error */
void wfi_pass_answer_late(wfi_pass *pass, wfi_pass_event *event); /* of a pass that is over; takes the event over */
void wfi_pass_free_event(wfi_pass_event *event);

/* pass_budget.c */
/*
 * Moves the charge of the `gradients` that a call carried from the call to the pass. The call keeps the charge of its
 * other data until it is answered. Not locked.
 */
void wfi_pass_charge_gradients(wfi_pass *pass, weft_call *call, weft_tensors gradients);
void wfi_pass_release_gradients(wfi_pass *pass); /* releases that charge. Not locked */
/*
 * A pass's *work* is the memory that it allocates for itself: sends, recvs, the engine. Whether that of a pass of
 * another worker over `context` fits the budget. Charges nothing. One such pass over each context is admitted even if
 * the budget is full. WEFT_ERR_BUSY: `problem` says why. [agent lock], the context's
 */
weft_status wfi_pass_check_budget(const weft_context *context, char *problem, size_t room);
/* Charges the work, until wfi_pass_release_work. May be repeated: then only the difference is charged. Not locked */
weft_status wfi_pass_charge_work(wfi_pass *pass, char *problem, size_t room);
/* Whether the context has grown since it was charged. With the context's lock. */
bool wfi_pass_work_grew(const wfi_pass *pass);
void wfi_pass_trim_work(wfi_pass *pass);    /* the pass has begun: charges only what it allocated. Not locked */
void wfi_pass_release_work(wfi_pass *pass); /* the work is freed. Not locked */

/* pass_messages.c: written */
weft_status wfi_pass_write(wfi_pass *pass); /* to all peers that must get a message */
/* For the thread that waits for the root's pass: waits for its calls, and runs the pass with their answers. */
void wfi_pass_wait_for_calls(wfi_pass *pass);
/*
 * Sends "weft:final" to each worker that exchanged messages with this one in the pass, except that rank: the passes of
 * its root up to *number* are final. If it is lost, the next message of a pass says so too. Not locked.
 */
void wfi_pass_send_final(wfi_pass *pass, uint64_t number, int except);
#define WFI_PASS_HEAD_BYTES (3 * sizeof(uint32_t) + 3 * sizeof(uint64_t) + 1)
void wfi_pass_write_head(const wfi_pass *pass, uint64_t number, unsigned flags, uint64_t final, wfi_writer *writer);

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
typedef struct wfi_pass_message {
    wfi_pass_head head;
    const void *step_names;
    size_t step_size;
    const uint64_t *pending, *absent, *numbers; /* numbers of this worker's sends; wfi_pass_number reads one */
    size_t pending_count, absent_count, number_count;
    weft_tensors gradients;
} wfi_pass_message;
static inline uint64_t wfi_pass_number(const uint64_t *numbers, size_t i)
{
    return le64toh(numbers[i]);
}
bool wfi_pass_read(const weft_call *call, wfi_pass_message *out); /* false: malformed */

/* pass_failure.c */
/*
 * Drops the sums of a pass that ended well here but failed elsewhere. If it is final, its root has died: then the sums
 * of all final passes of the root, which are added up, are dropped. False: it had not ended well. With the context's
 * lock.
 */
bool wfi_pass_undo(weft_context *context, wfi_pass_result *result, const weft_error *error);
/*
 * Sends "weft:abort" once to each worker that exchanged messages with this one in the pass. If memory is exhausted,
 * here or there, tries again later. Not locked.
 */
void wfi_pass_abort(wfi_pass *pass, const weft_error *error);
/*
 * The error with this worker's name, the operator after which the pass stopped here, and the workers that it waits
 * for. For the thread that runs the pass; takes over the error.
 */
weft_error *wfi_pass_error_here(const wfi_pass *pass, weft_error *error);
/* The engine's error with this worker's name; this worker is at fault unless another one caused it. A new reference. */
weft_error *wfi_pass_error_of_engine(const wfi_pass *pass);
/* Like wfi_pass_error_here, for an error from elsewhere: without the workers that it waits for. A new reference. */
weft_error *wfi_pass_error_from_elsewhere(const wfi_pass *pass, const weft_error *error);

/* pass.c */
wfi_pass *wfi_pass_create(weft_context *context, unsigned flags); /* one reference; NULL: no memory */
void wfi_pass_discard(wfi_pass *pass); /* for a pass that never ran; drops the reference. Not locked */
weft_status wfi_pass_copy_step_names(wfi_pass *pass, const void *names, size_t size); /* WEFT_ERR_MEMORY */
/* Processes all events. For one thread at a time, which set `running` and then `waiter_runs`. */
void wfi_pass_run(wfi_pass *pass);

/* backward.c */
weft_status wfi_backward_register(weft_agent *agent); /* weft's own functions for a root on another worker */

#endif
