/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - a call being served: weft_call, from the message that brings it to the last acknowledgement of its answer.
 *
 * The calls of a peer are in a map by the caller's ids (wfi_rpc_peer.serving). Ids start anew with each incarnation of
 * a rank, so when a peer is gone its calls leave the map at once, whoever still holds them. Two flags:
 *   - in_map: the call is found by its id.
 *   - in_table: the map's hold on the call has not been dropped. It may outlast in_map, while arguments or results are
 *     under way.
 *
 * Who may touch a call: the agent's lock guards `stage`, `cancelled`, `holds` and the maps. From the moment when its
 * handler may run (stage SERVING) to weft_call_finish the rest belongs to the user, that is, to one thread at a time:
 * weft_call_finish is called exactly once, and nobody touches the call afterwards.
 */
#ifndef WFI_SERVE_H
#define WFI_SERVE_H

#include "rpc/agent/budget.h"
#include "rpc/payload/link.h"
#include "rpc/payload/payload.h"
#include "rpc/refs/refs.h"
#include "value/encode.h"

/*
 * How calls of one function are served if not one by one (wfi_runner_of): in batches. All [agent lock]; no slot is
 * NULL.
 */
typedef struct wfi_runner_ops {
    weft_error *(*admit)(weft_call *call); /* before its arguments are taken in: NULL, or why it is refused */
    void (*options)(weft_call *call, wfi_decode_options *options); /* where its arguments are to go */
    void (*ready)(weft_call *call); /* its arguments are whole: it is the runner's from here on */
    void (*leave)(weft_call *call); /* it was admitted, and its arguments will never be whole */
    /* Nobody wants the answer of one that waits. */
    void (*withdraw)(weft_call *call, weft_status why, const char *text);
} wfi_runner_ops;

/*
 * How a served call gives its answer: over the wire (respond.c), or to this process itself (client/loopback.c). No slot
 * is NULL.
 */
typedef struct wfi_responder_ops {
    /* Its handler's turn has come: WEFT_OK, or why it must not run. Not locked. */
    weft_status (*begin)(weft_call *call);
    void (*left)(weft_call *call); /* its handler has returned, and it is deferred. [agent lock] */
    /* Its results or its error are set: sends them, and drops the user's hold. Not locked, the agent entered. */
    void (*respond)(weft_call *call);
    weft_status (*send_item)(weft_call *call, weft_args item); /* weft_call_send_item. Not locked, the agent entered */
    void (*fini)(weft_call *call);                             /* its own, before the call is freed. Not locked */
} wfi_responder_ops;

/*
 * Something of ours that was started within a served call: in that call's `children` until one of the two ends.
 * parent_over is called when the served call ends first, after the child was taken out of the list. why: WEFT_OK, it
 * has been answered and the child goes on alone; else nobody wants the child either. [agent lock]
 */
typedef struct wfi_child {
    wfi_list link;
    weft_call *parent; /* the served call, while it is being served; else NULL */
    void (*parent_over)(struct wfi_child *child, weft_status why, const char *text);
} wfi_child;

/* What a higher layer keeps in a call: a tape, a context. */
typedef struct wfi_call_slot {
    void *value;
    weft_error *(*error)(void *value); /* the failure it keeps, with a reference; NULL: none */
    void (*publish)(void *value);      /* others may see what was made with it so far; NULL: nothing */
    void (*drop)(void *value);         /* when the handler's work is over */
} wfi_call_slot;

typedef enum wfi_serve_stage {
    WFI_SERVE_TAKING,    /* arguments are under way */
    WFI_SERVE_SERVING,   /* the handler runs, or somebody holds the deferred call */
    WFI_SERVE_ANSWERING, /* results are being pushed, or the reply is on its way, or kept until DONE */
} wfi_serve_stage;

struct weft_call {
    wfi_handle handle; /* ended when the user has finished it */
    weft_agent *agent;
    const wfi_responder_ops *responder;
    wfi_peer *peer; /* held while the agent lives; NULL: called by ourselves */
    int from;
    uint32_t incarnation; /* the caller's */
    uint64_t id;
    const weft_function *function;
    uint64_t deadline_ns; /* WFI_NEVER */
    atomic_int holds;     /* the table; the message in net's hands; the user. Atomic for those who come after the end */
    wfi_serve_stage stage;
    bool in_map, in_table, counted, cancelled, awaiting_done, replied, message_out, pushing;
    bool ran;                        /* its handler has begun */
    bool interested;                 /* on the peer: it is deferred, or its results are kept */
    void (*over)(weft_agent *agent); /* NULL; or called when the last hold goes, while the agent lives. [agent lock] */

    wfi_inbound *arguments; /* of a remote call; a block of its own: malloc has small ones at hand */
    weft_values *args;      /* what the handler sees */
    atomic_bool deferred;   /* set by the handler, without the lock, while weft_debug_dump may read it */
    bool keep_arguments;
    weft_values *results;
    struct wfi_object *object; /* of the user's own type, instead of results: refs/object.c */
    weft_error *error;
    wfi_call_slot slot;
    wfi_link *link; /* under a distributed context; else NULL */

    wfi_outbound outbound; /* the results on their way */
    wfi_writer header;
    wfi_message message;
    wfi_segment *pushes;
    size_t push_count;
    wfi_transfer push;

    wfi_owned *owned; /* rpc_remote: where the result stays */

    atomic_int cancel_reason;  /* a weft_status: why nobody wants the answer; WEFT_OK: somebody does */
    weft_future *cancellation; /* made at first asking */
    wfi_list children;         /* wfi_child */
    weft_error *inner;         /* the error of the child that failed last. [agent lock] */
    struct weft_batch *batch;  /* where it has row number `row`; NULL: it has none */
    size_t row;
    struct wfi_line *line; /* of a function with WEFT_FUNCTION_ORDERED, until its handler is over: order.c */
    wfi_list line_link;    /* in its line, while `in_line`: until its handler may begin */
    bool in_line;
    bool pinned;                 /* `results` are marked as read: unread.c */
    weft_future *unread;         /* made at first asking */
    bool queued;                 /* for a batch: batch/batch.h */
    bool is_late;                /* a batch began without it */
    struct wfi_items_out *items; /* items sent and not taken: server/stream.c; NULL: the caller takes none */
    unsigned notifications;      /* promised for it: a bare reply, if there is no memory for its answer */
    wfi_charge charge;           /* against the memory budget; of a call to ourselves: unused */
    wfi_span span;

    bool has_left;          /* its handler has returned, and it is deferred. [agent lock] */
    const bool *batch_left; /* has_left of the batch that it runs in; NULL: it runs in none. [agent lock] */
    wfi_timer timer;        /* for its deadline: set by wfi_serve_watch_deadline, or by client/loopback.c */

    wfi_task task, release;
};

/* What a call of another worker takes of the memory budget, without its arguments. */
#define WFI_SERVE_BYTES (sizeof(weft_call) + sizeof(wfi_inbound))

extern const wfi_component wfi_server_component;

/* weft_call_finish, also of a call that was not deferred. */
void wfi_call_finish(weft_call *call, weft_status status);
/* weft_call_finish after the executor and net are gone: there is nobody to answer. Not locked. */
void wfi_serve_finish_late(weft_call *call);
/* Nobody wants the answer any more: tells the handler, and cancels the call's children. A no-op if it is being
 * answered, or was cancelled before. [agent lock] */
void wfi_serve_cancel(weft_call *call, weft_status why, const char *text);
/* Sets a timer for the call's deadline, unless there is one: somebody asked for its cancellation, or it has children.
 * (weft_call_cancelled looks at the clock, and needs no timer.) [agent lock] */
void wfi_serve_watch_deadline(weft_call *call);
/* It is being answered: its cancellation completes, its timer goes. [agent lock] */
void wfi_serve_end_watch(weft_call *call);
/* Hands a call whose arguments are whole to its handler. [agent lock] */
void wfi_serve_run(weft_call *call);
void wfi_serve_handler_task(wfi_task *task); /* what wfi_serve_run queues */
wfi_urgency wfi_serve_urgency(const weft_function *function);
/* The handler's turn has come: WEFT_OK if it is to begin, or why nobody wants its answer any more. Not locked. */
weft_status wfi_serve_begin(weft_call *call);
/* Answers a call that waited for its handler, which will not run. Takes over `error`. [agent lock] */
void wfi_serve_withdraw(weft_call *call, weft_error *error);
void wfi_serve_turn_away(weft_call *call); /* one that was withdrawn from the executor's queue. [agent lock] */
/* Answers with an error that arose here rather than in the handler. Takes over `error`. [agent lock] */
void wfi_serve_refuse(weft_call *call, weft_error *error);
/* If the call was made by weft_rpc_remote: its result, or why there is none, becomes the value of the reference. Else a
 * no-op. [agent lock] */
void wfi_serve_settle_owned(weft_call *call);
extern const wfi_responder_ops wfi_wire_responder;
void wfi_serve_drop_hold(weft_call *call);   /* [agent lock] */
void wfi_serve_leave_table(weft_call *call); /* [agent lock] */
/* The same, if the answer has left and nothing is kept for the caller any more. [agent lock] */
void wfi_serve_leave_if_over(weft_call *call);
void wfi_serve_interest(weft_call *call, bool interested); /* [agent lock] */
void wfi_serve_uncount(weft_call *call); /* it does not keep the agent from closing any more. [agent lock] */
/* Frees what only the handler needed: the arguments (if it is not deferred), and the slot. Not locked. */
void wfi_serve_release_work(weft_call *call);

/* server/order.c. All [agent lock]. */
weft_status wfi_order_join(weft_call *call); /* no-op without WEFT_FUNCTION_ORDERED; WEFT_ERR_MEMORY */
/* Its arguments are whole, and its task is set: it is queued now, or when its turn comes. */
void wfi_order_run(weft_call *call);
/* It is cancelled. If it waits for its turn, its task runs at once, and finds that nobody waits for the call. */
void wfi_order_skip(weft_call *call);
void wfi_order_leave(weft_call *call); /* its handler has returned, or will not run; no-op if it is in no line */

/* server/unread.c: who reads the results. */
void wfi_results_pin(weft_call *call);    /* the handler gave them: they are read from now on */
void wfi_results_unpin(weft_call *call);  /* what still reads them has pins of its own; idempotent */
void wfi_results_unread(weft_call *call); /* nobody reads them any more: completes weft_call_unread */

/* server/refuse.c. All [agent lock]. */
bool wfi_refuses_calls_of(const weft_agent *agent, const wfi_peer *from); /* without keeping anything of them */
void wfi_refuse_call(weft_agent *agent, wfi_peer *from, uint64_t id, bool no_memory);
void wfi_refusals_forget(weft_agent *agent, int rank); /* that worker is gone */

/* nested.c. All [agent lock]. */
void wfi_child_join(wfi_child *child, weft_call *parent); /* parent: NULL if it is made for no call */
void wfi_child_leave(wfi_child *child);                   /* no-op if it has no parent */
/* The same for a child that has ended; error: how it failed, for wfi_parent_note, or NULL. */
void wfi_child_end(wfi_child *child, const weft_error *error);
/* WEFT_OK, or why no child may start any more: WEFT_ERR_TIMEOUT, WEFT_ERR_CANCELLED. Whose time is up, but was not told yet: WEFT_OK. */
weft_status wfi_parent_status(const weft_call *parent);
/* A child failed with this error. If the parent's handler returns the same status, the parent fails with this error and
 * its chain of workers. */
void wfi_parent_note(weft_call *parent, const weft_error *error);
/* The call has been answered, or never will be: its children go on alone. */
void wfi_children_forget(weft_call *call);
/* Nobody wants the answer of the call any more: its children are cancelled, and forgotten. */
void wfi_children_cancel(weft_call *call, weft_status why, const char *text);

/* Checks values against a signature; writes what is wrong. */
bool wfi_signature_fits(const weft_type *types, weft_args values, char *problem, size_t room);

/* accumulate.c: asks the call's function for the places, adds or copies its tensors there, and puts the places in their
 * stead in the arguments: all, or an error (then nothing was added). On the thread that is to run the handler, right
 * before it. Not locked. */
weft_error *wfi_land_when_run(weft_call *call);

weft_error *wfi_call_error(const weft_call *call, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

#endif
