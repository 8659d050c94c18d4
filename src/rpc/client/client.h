/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - a call of ours that is under way, from weft_rpc_async to the completion of its future. */
#ifndef WFI_CALL_H
#define WFI_CALL_H

#include "rpc/agent/notify.h"
#include "rpc/payload/link.h"
#include "rpc/payload/payload.h"
#include "rpc/server/server.h"
#include "value/encode.h"

/* What is to be called, and how: on the stack of whoever starts it, borrowed from the user. */
typedef struct wfi_call_spec {
    weft_target to;
    const char *function;
    weft_args arguments;
    const weft_rpc_options *options;
    weft_rref *remote;        /* rpc_remote: the handle for the result; NULL */
    bool is_attempt;          /* of a call with retries: client/retry.c tells `remote` how the last attempt ended */
    wfi_shared_body **packed; /* of several calls with the same arguments: these, once packed; NULL: it is alone */
    const weft_call *const *parent; /* where the served call stands; read under the agent's lock */
    uint64_t deadline_ns;           /* 0: to be found from the options */
    const wfi_span *within;         /* the span of what it is made for, where that is no served call; NULL */
    bool exempt; /* it is queued even if the queue is full, and never waits for room: wfi_rpc_start_reserved */
    wfi_link_source *source; /* the distributed context of options->tape, for all attempts; NULL: none. Referenced by
                                       whoever made the spec */
    size_t kept_bytes;       /* that the peer's queue held at the last try: for the error */
    bool waited;             /* there was no room at first: for the error, if the time then ran out */
} wfi_call_spec;

/*
 * Guarded by the agent's lock once it is in the table. It lives until it has completed and net has let go of its
 * message: `holds` counts those. What must not be freed under the lock goes in a deferred task.
 */
struct wfi_request {
    weft_agent *agent;
    wfi_peer *peer; /* held from its launch until the last hold goes */
    uint64_t id;
    int holds;
    bool completed;
    weft_future *future;
    wfi_timer timer;

    wfi_outbound arguments;
    wfi_writer header;
    wfi_message message;
    bool message_out;  /* net has it */
    size_t kept_bytes; /* copies, counted with the peer until it has completed */

    weft_tensor **land;           /* referenced; the results' places */
    wfi_exposure *land_exposures; /* of the large ones among them; NULL: none is */
    size_t land_count, land_exposed;

    wfi_link *link; /* under a distributed context; else NULL */
    wfi_inbound results;
    bool needs_done;            /* the callee keeps something until we say DONE */
    weft_error *failure;        /* why it ends, while the inbound of its results is being cancelled */
    weft_rref *remote;          /* rpc_remote: the handle that the reply confirms */
    bool is_attempt;            /* which leaves that to client/retry.c */
    uint64_t limit_ns;          /* from its launch to its deadline, for errors; if it has one */
    unsigned notifications;     /* promised for it: CANCEL, DONE, and a TOOK for each item that has come */
    wfi_child child;            /* of the served call that this one is made for, if any */
    struct wfi_items_in *items; /* streamed results: client/stream.c */
    wfi_span span;
    wfi_task release;
    uint8_t function_size;
    char function[]; /* its name, ended by NUL */
};

/* WEFT_OK, or WEFT_ERR_INVALID: what can be said of a spec before anything is done. */
weft_status wfi_spec_check(const weft_agent *agent, const wfi_call_spec *spec); /* client/check.c */
/* Why it could not be started at `rank` (-1: at whoever), naming the field or value at fault. Not locked. */
weft_error *wfi_spec_explain(weft_agent *agent, const wfi_call_spec *spec, weft_status why, int rank);
/* spec->source becomes the distributed context of the option `tape`, with a reference; NULL without one. On the thread that uses the
 * tape, not locked. */
weft_status wfi_spec_find_source(weft_agent *agent, wfi_call_spec *spec, weft_error **error);
/* Packs the arguments of several calls, and counts that, unless it was done. Not locked. */
weft_status wfi_spec_pack(weft_agent *agent, const wfi_call_spec *spec);
/* What weft_rpc_async does: checks the spec, and starts the call, with its retries if there are to be any. Not
 * locked. */
weft_status wfi_rpc_start(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error);
/*
 * Starts a call of a function of weft's own that a protocol depends on: a message of a backward pass, the end of a
 * context, a step of an optimizer. The call is queued even if the queue is full, so it never fails with WEFT_ERR_AGAIN
 * and never waits for room. It counts in the queue as any other. The caller bounds how many such calls there are
 * (docs/decisions/050-room-for-protocols.md). timeout_ms: as in weft_rpc_options. `within`: the span of what the call
 * is made for, or NULL. On failure *error has the reason, with a reference. Not locked.
 */
typedef struct wfi_reserved_call {
    const char *function;
    weft_args arguments;
    int64_t timeout_ms;
    const wfi_span *within;
} wfi_reserved_call;
weft_status wfi_rpc_start_reserved(weft_agent *agent, weft_target to, const wfi_reserved_call *call, weft_future **out,
                                   weft_error **error);
/* The same to the owner of a reference; the reference becomes the first argument. */
weft_status wfi_rref_start_reserved(weft_rref *rref, const wfi_reserved_call *call, weft_future **out,
                                    weft_error **error);
/* Whether the calling thread may wait for calls of this agent, asked before anything is started: WEFT_ERR_DEADLOCK,
 * with the detail, in an inline handler. `what` was to be called or done; `options` may be NULL. Not locked. */
weft_status wfi_rpc_may_wait(weft_agent *agent, const char *what, const weft_rpc_options *options);
/* To whoever asked for it (options may be NULL). What is a mistake of the program and goes to nobody goes to the log of
 * `agent` (NULL: to none). */
void wfi_rpc_give_error(const weft_agent *agent, const weft_rpc_options *options, weft_error *error);
/* For public functions that start a call, and need what a NULL was given for: the same way, as WEFT_ERR_INVALID, which it
 * returns. `options` and `function` may be NULL. */
weft_status wfi_rpc_refuse_null(const weft_rpc_options *options, const char *function, const char *what);
/* Waits for what a blocking function started, hands out its results or its error, and takes over the future, which
 * nobody else has: it is over afterwards whatever the waiting ended with. `options` and `out` may be NULL; and `agent`,
 * where the function that waits takes no options, so that nobody could ask for the error. */
weft_status wfi_rpc_await(const weft_agent *agent, weft_future *future, const weft_rpc_options *options,
                          weft_values **out);
/* The same call again and again, as its options say (client/retry.c). */
weft_status wfi_retry_start(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error);
void wfi_retries_fail_all(weft_agent *agent, weft_status why, const char *text); /* [agent lock] */
/* The target's rank, or -1 with the error of a call of `function` to it. Not locked. */
int wfi_target_resolve(weft_agent *agent, weft_target to, const char *function, weft_error **error);
/* One call (not its retries), to whomever the spec names. *error, if the start fails, is the detail. Not locked. */
weft_status wfi_call_begin(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error);
/* The same to another worker. */
weft_status wfi_call_start(weft_agent *agent, int rank, wfi_call_spec *spec, weft_future **out);
/* The same to ourselves, by reference (client/loopback.c). */
weft_status wfi_call_start_local(weft_agent *agent, wfi_call_spec *spec, weft_future **out);
/* What bounds a call: its own time limit, and the call that it is made within. WEFT_OK, WEFT_ERR_TIMEOUT,
 * WEFT_ERR_CANCELLED. [agent lock] */
weft_status wfi_call_limit(weft_agent *agent, wfi_call_spec *spec, uint64_t now, uint64_t *deadline_ns);

/* The id of our next call, to whomever it goes. [agent lock] */
uint64_t wfi_call_next_id(weft_agent *agent);
/* Prints "no answer from WHO within the call's time limit, 100 ms". An attempt (client/retry.c) has a limit of its
 * own. */
void wfi_late_text(char *out, size_t room, const char *who, bool is_attempt, uint64_t limit_ns);

/* Fails the calls to ourselves that have not been answered. [agent lock] */
void wfi_local_fail_all(weft_agent *agent, weft_status why, const char *text);
/* Fails those that nobody wants and whose arguments nobody reads any more: called when that may have changed for some.
 * [agent lock] */
void wfi_local_settle_left(weft_agent *agent);
/* After the executor and net are gone: lets go of what users still hold. Not locked. */
void wfi_local_orphan_all(weft_agent *agent);

/* Fails the calls that the message names. [agent lock] */
void wfi_calls_on_refused(weft_agent *agent, wfi_peer *from, wfi_reader *reader);
void wfi_call_on_reply(weft_agent *agent, wfi_peer *from, wfi_reader *reader); /* [agent lock] */
/* Ends the call: completes its future with `values` or `error` (one of them; borrowed). `quiet`: the peer is known to
 * be done with what we exposed. [agent lock] */
void wfi_call_complete(wfi_request *call, const weft_values *values, const weft_error *error, bool quiet);
/* The one place where a call's future completes: with `values` or `error` (one of them; borrowed). So does `remote`,
 * unless it is NULL. [agent lock] */
void wfi_call_settle(weft_future *future, weft_rref *remote, const weft_values *values, const weft_error *error);
/* Fails it from our side, with what is known of the handler: stops what is under way first. [agent lock] */
void wfi_call_fail(wfi_request *call, weft_status why, const char *text);
extern const wfi_component wfi_client_component;

extern const wfi_canceller wfi_call_canceller; /* of a call's future: its owner is the agent, its id the call's */

#endif
