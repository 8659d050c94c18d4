/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - a call being served: weft_call, from its first message to the last acknowledgement of its answer.
 *
 * The calls of each worker, this one too, are in a map by the caller's ids (wfi_rpc_peer.serving). Ids start anew with
 * each incarnation of a rank. So when a peer is gone its calls leave the map at once, even if they are still held. Two
 * flags:
 *   - in_map: the call is found by its id.
 *   - in_table: the map's hold on the call has not been dropped. It may outlast in_map while arguments or results are
 *     in flight.
 *
 * LOCK. The agent's lock guards `stage`, `cancelled`, `holds` and the maps. While the handler may run (from stage
 * SERVING to weft_call_finish) the other fields belong to the user, one thread at a time. The user calls
 * weft_call_finish exactly once, and does not use the call afterwards.
 */
#ifndef WFI_SERVE_H
#define WFI_SERVE_H

#include "rpc/agent/budget.h"
#include "rpc/observe/observe.h"
#include "rpc/payload/recording.h"
#include "rpc/payload/payload.h"
#include "rpc/refs/refs.h"
#include "value/encode.h"

/*
 * How calls of one function are served if they are batched (wfi_runner_of). All [agent lock]; no slot is NULL.
 */
typedef struct wfi_runner_ops {
    /* Called before a call's arguments are received. Returns NULL, or why the call is refused. Sets where the arguments
     * are stored. */
    weft_error *(*admit)(weft_call *call);
    void (*ready)(weft_call *call); /* all its arguments have arrived: the runner takes the call over */
    void (*leave)(weft_call *call); /* it was admitted, but its arguments failed, or its answer is no longer needed */
} wfi_runner_ops;

/*
 * How a served call gives its answer: over the wire (respond.c), or to this process itself (client/local.c). No slot is
 * NULL.
 */
typedef struct wfi_responder_ops {
    void (*returned)(weft_call *call); /* the handler has returned, and the call is deferred. [agent lock] */
    /* Sends the call's results or its error, and drops the user's hold. Not locked, the agent entered. */
    void (*respond)(weft_call *call);
    weft_status (*send_item)(weft_call *call, weft_args item); /* weft_call_send_item. Not locked, the agent entered */
} wfi_responder_ops;

/*
 * A call of this worker that was started within a served call. It is in that call's `children` until one of the two
 * ends. parent_ended is called if the served call ends first, after the child was removed from the list. `why` is
 * WEFT_OK if the served call was answered: the child continues. Otherwise the child is cancelled too. [agent lock]
 */
typedef struct wfi_child {
    wfi_list link;
    weft_call *parent; /* the served call, while it is being served; else NULL */
    void (*parent_ended)(struct wfi_child *child, weft_status why, const char *text);
} wfi_child;

/* Data that a higher layer keeps in a call: a tape, a context. */
typedef struct wfi_call_slot {
    void *value;
    weft_error *(*error)(void *value); /* the failure recorded in `value`, with a reference; NULL: none */
    void (*publish)(void *value);      /* makes what was recorded so far visible to others; may be NULL */
    void (*drop)(void *value);         /* called when the handler's work is over */
} wfi_call_slot;

typedef enum wfi_serve_stage {
    WFI_SERVE_TAKING,    /* arguments are in flight */
    WFI_SERVE_SERVING,   /* the handler runs, or the call is deferred */
    WFI_SERVE_ANSWERING, /* results are being pushed, or the reply is in flight, or kept until DONE */
} wfi_serve_stage;

struct weft_call {
    wfi_handle handle; /* ended when the user has finished it */
    weft_agent *agent;
    const wfi_responder_ops *responder;
    wfi_peer *peer;             /* held while the agent lives; NULL: a call of this worker to itself */
    struct wfi_request *caller; /* of a call of this worker to itself, until that is answered or has failed */
    int from;
    uint32_t incarnation; /* the caller's */
    uint64_t id;
    const weft_function *function;
    uint64_t deadline_ns; /* or WFI_NEVER */
    atomic_int holds;     /* of the table, the message that net sends, each unmade reference, and the user. Atomic:
                           * wfi_serve_finish_late */
    wfi_serve_stage stage;
    bool in_map, in_table, counted, cancelled, awaiting_done, replied, pushing;
    bool ran;        /* its handler has begun */
    bool begun;      /* the same, of a call of this worker to itself. [agent lock] */
    bool starved;    /* no memory to wait for the references among the arguments */
    bool interested; /* interest in the peer is registered: wfi_serve_interest */
    bool in_line;
    bool queued;       /* for a batch: batch/batch.h */
    bool pinned;       /* `results` have read pins: unread.c */
    bool has_returned; /* its handler has returned, and it is deferred. [agent lock] */
    size_t unmade;     /* references among the arguments of a call to itself whose values are being made */

    wfi_inbound *arguments; /* of a remote call; allocated separately: small blocks are cheap for malloc */
    weft_values *args;      /* the arguments that the handler sees */
    atomic_bool deferred;   /* set by the handler, without the lock, while weft_debug_dump may read it */
    bool keep_arguments;
    weft_values *results;
    struct wfi_object *object; /* of a user's type, instead of results: refs/object.c */
    weft_error *error;
    wfi_call_slot slot;
    wfi_recording *recording; /* of a call under a distributed context; otherwise NULL */

    wfi_outbound outbound; /* the results that are sent */
    wfi_writer header;
    wfi_message message;
    wfi_segment *pushes;
    size_t push_count;
    wfi_transfer push;

    wfi_owned *owned; /* of weft_rpc_remote: receives the result */

    atomic_int cancel_reason;  /* a weft_status: why the answer is no longer needed; WEFT_OK: it is needed */
    weft_future *cancellation; /* created by the first weft_call_cancellation */
    wfi_list children;         /* wfi_child */
    weft_error *inner;         /* the error of the child that failed last. [agent lock] */
    struct weft_batch *batch;  /* the batch in which it has row number `row`; NULL: none */
    size_t row;
    struct wfi_line *line;       /* of a function with WEFT_FUNCTION_ORDERED, until its handler has returned: order.c */
    wfi_list line_link;          /* in its line, while `in_line`: until its handler may begin */
    weft_future *unread;         /* created by the first weft_call_unread */
    struct wfi_items_out *items; /* server/stream.c; NULL: the caller takes no items */
    unsigned notifications;      /* promised for it: a bare reply, if there is no memory for its answer */
    wfi_charge charge;           /* against the memory budget; 0 bytes in a call of this worker to itself */
    wfi_span span;

    const bool *batch_returned; /* has_returned of the batch that it runs in; NULL: none. [agent lock] */
    wfi_timer timer;            /* for its deadline: wfi_serve_watch_deadline */

    wfi_task task, release;
};

/* Bytes of the memory budget that a call of another worker uses, without its arguments. */
#define WFI_SERVE_BYTES (sizeof(weft_call) + sizeof(wfi_inbound))

extern const wfi_component wfi_server_component;

/* A call of that peer, or (NULL) of this worker to itself; in no table yet. NULL: no memory. */
weft_call *wfi_serve_create(weft_agent *agent, wfi_peer *from);
/* Puts it into the table of its caller's calls. WEFT_ERR_EXISTS if the peer has used the id before, WEFT_ERR_MEMORY:
 * then the caller frees it with wfi_serve_discard. [agent lock] */
weft_status wfi_serve_enter(weft_call *call, uint64_t id);
void wfi_serve_discard(weft_call *call); /* NULL is a no-op */
/* Does the work of weft_call_finish, for deferred calls and others. */
void wfi_call_finish(weft_call *call, weft_status status);
/* Drops a hold after the executor and net are gone: no answer is sent. Not locked. */
void wfi_serve_finish_late(weft_call *call);
/* The answer is no longer needed: notifies the handler, and cancels the call's children. No-op if the call is being
 * answered, or was cancelled before. [agent lock] */
void wfi_serve_cancel(weft_call *call, weft_status why, const char *text);
/* Sets a timer for the call's deadline, unless there is one. Needed if weft_call_cancellation was called, or the call
 * has children. (weft_call_cancelled reads the clock, and needs no timer.) [agent lock] */
void wfi_serve_watch_deadline(weft_call *call);
/* The call is being answered: completes its cancellation future, and clears its timer. [agent lock] */
void wfi_serve_end_watch(weft_call *call);
/* Passes a call whose arguments have arrived to its handler. [agent lock] */
void wfi_serve_run(weft_call *call);
void wfi_serve_handler_task(wfi_task *task); /* the task that wfi_serve_run queues */
wfi_urgency wfi_serve_urgency(const weft_function *function);
/* Called just before the handler. WEFT_OK if it is to run, or why the answer is no longer needed. Not locked. */
weft_status wfi_serve_begin(weft_call *call);
/* Answers a call that waited for its handler, which will not run. Takes over `error`. [agent lock] */
void wfi_serve_withdraw(weft_call *call, weft_error *error);
void wfi_serve_refuse_queued(weft_call *call); /* refuses a call taken from the executor's queue. [agent lock] */
/* Answers with an error of weft, not of the handler. Takes over `error`. [agent lock] */
void wfi_serve_refuse(weft_call *call, weft_error *error);
/* The handler's work is over: the call is being answered. [agent lock] */
void wfi_serve_end(weft_call *call);
extern const wfi_responder_ops wfi_wire_responder;
void wfi_serve_drop_hold(weft_call *call);   /* [agent lock] */
void wfi_serve_leave_table(weft_call *call); /* [agent lock] */
/* The same, if the answer was sent and nothing is kept for the caller. [agent lock] */
void wfi_serve_leave_if_ended(weft_call *call);
/* Registers or ends interest in the caller's death: the call is deferred, or its results are kept. [agent lock] */
void wfi_serve_interest(weft_call *call, bool interested);
void wfi_serve_uncount(weft_call *call); /* closing the agent no longer waits for the call. [agent lock] */
/* Frees what only the handler needed: the arguments (if the call is not deferred), and the slot. Not locked. */
void wfi_serve_release_work(weft_call *call);

/* server/order.c. All [agent lock]. */
weft_status wfi_order_join(weft_call *call); /* no-op without WEFT_FUNCTION_ORDERED; WEFT_ERR_MEMORY */
/* The call's arguments have arrived, and its task is set: queues the task now, or in the call's turn. */
void wfi_order_run(weft_call *call);
/* The call is cancelled. If it waits for its turn, its task runs at once, and answers without running the handler. */
void wfi_order_skip(weft_call *call);
void wfi_order_leave(weft_call *call); /* its handler has returned, or will not run; no-op if it is in no line */

/* server/unread.c: read pins on the results. */
void wfi_results_pin(weft_call *call);    /* the handler has given results: pins them */
void wfi_results_unpin(weft_call *call);  /* transfers that still read them have their own pins; idempotent */
void wfi_results_unread(weft_call *call); /* nothing reads them now: completes weft_call_unread */

/* server/refuse.c. All [agent lock]. */
/* Whether each call of that worker must go to wfi_serve_refuse_by_id, without a weft_call. */
bool wfi_serve_refuses_all_of(const weft_agent *agent, const wfi_peer *from);
void wfi_serve_refuse_by_id(weft_agent *agent, wfi_peer *from, uint64_t id, bool no_memory);
void wfi_refusals_forget(weft_agent *agent, int rank); /* that worker is gone */

/* nested.c. All [agent lock]. */
void wfi_child_join(wfi_child *child, weft_call *parent); /* `parent` may be NULL */
void wfi_child_leave(wfi_child *child);                   /* no-op if it has no parent */
/* The same for a child that has ended. `error`: how it failed, for wfi_parent_note, or NULL. */
void wfi_child_end(wfi_child *child, const weft_error *error);
/* WEFT_OK, or why no child may start: WEFT_ERR_TIMEOUT, WEFT_ERR_CANCELLED. A call whose deadline has passed still
 * gives WEFT_OK until its timer fires. */
weft_status wfi_parent_status(const weft_call *parent);
/* A child failed with `error`. If the parent's handler returns the same status, the parent fails with this error and
 * its chain of workers. */
void wfi_parent_note(weft_call *parent, const weft_error *error);
/* The call has been answered, or never will be: its children continue without it. */
void wfi_children_forget(weft_call *call);
/* The answer of the call is no longer needed: cancels its children, and removes them from its list. */
void wfi_children_cancel(weft_call *call, weft_status why, const char *text);

/* Checks values against a signature, and writes what is wrong. */
bool wfi_serve_signature_fits(const weft_type *types, weft_args values, char *problem, size_t room);

/* accumulate.c: calls the function's `land` for each tensor of the arguments, adds or copies the tensors to the places,
 * and replaces them by the places in the arguments. If it fails while finding the places, nothing was added. Called on
 * the handler's thread, just before the handler. Not locked. */
weft_error *wfi_land_when_run(weft_call *call);

/* The call as metrics and traces name it. */
static inline wfi_observed wfi_serve_observed(const weft_call *call)
{
    return (wfi_observed){.id = call->id,
                          .rank = call->from,
                          .function = call->function ? call->function->name : "(unknown)",
                          .error = call->error};
}

weft_error *wfi_call_error(const weft_call *call, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

#endif
