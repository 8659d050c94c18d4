/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - the caller's side of a call, from weft_rpc_async to the completion of its future. */
#ifndef WFI_CALL_H
#define WFI_CALL_H

#include "rpc/agent/notify.h"
#include "rpc/payload/recording.h"
#include "rpc/payload/payload.h"
#include "rpc/server/server.h"
#include "value/encode.h"

/* The parameters of a call. On the stack of the starting function; the arguments are borrowed from the user. */
typedef struct wfi_call_spec {
    weft_target to;
    const char *function;
    weft_args arguments;
    const weft_rpc_options *options;
    weft_rref *remote;              /* weft_rpc_remote: the handle for the result; otherwise NULL */
    bool is_attempt;                /* of a call with retries: then client/retry.c completes `remote` */
    wfi_shared_body **packed;       /* packed arguments shared by several calls; NULL: the call shares none */
    const weft_call *const *parent; /* points to the served call or NULL; read under the agent's lock */
    uint64_t deadline_ns;           /* 0: the options give it */
    const wfi_span *within;         /* the enclosing span, if that is not a served call; NULL: none */
    bool exempt; /* it is queued even if the queue is full, and never waits for room: wfi_rpc_start_reserved */
    /* The distributed context of options->tape, for all attempts; NULL: none. The function that made the spec holds
     * the reference. */
    wfi_recording_source *source;
    size_t kept_bytes;      /* bytes in the peer's queue at the last try, for the error text */
    bool waited;            /* the queue was full at first; for the error text after a timeout */
    const uint8_t *devices; /* where each tensor shall be at the worker (value/wire.h); NULL: the maps say it */
} wfi_call_spec;

/*
 * A call. Guarded by the agent's lock once it is in the table. `holds` counts the call until it has completed, and its
 * message until net has released it. A deferred task frees it without the lock.
 */
struct wfi_request {
    weft_agent *agent;
    wfi_peer *peer;   /* held from its launch until the last hold is dropped; NULL: a call to this worker itself */
    weft_call *local; /* of a call to this worker itself, until it is answered: what is served */
    uint64_t id;
    int holds;
    bool completed;
    weft_future *future;
    wfi_timer timer;

    wfi_outbound arguments;
    wfi_writer header;
    wfi_message message;
    bool message_out;  /* net has the message */
    size_t kept_bytes; /* bytes of copies, counted in the peer's queue until it has completed */

    wfi_exposure *land_exposures; /* of the large places; NULL: none is large */
    size_t land_count, land_exposed;
    bool landing; /* results of a call to this worker itself are being copied to the places: nothing ends it now */

    wfi_recording *recording; /* of a call under a distributed context; otherwise NULL */
    wfi_inbound results;
    bool needs_done;        /* the callee keeps results until this worker sends DONE */
    weft_error *failure;    /* why it ends, while results are still received or, in a call to itself, arguments read */
    weft_rref *remote;      /* weft_rpc_remote: the handle that the reply confirms */
    bool is_attempt;        /* then client/retry.c completes `remote` */
    uint64_t limit_ns;      /* from its launch to its deadline, for error texts; if it has one */
    unsigned notifications; /* promised for it: CANCEL, DONE, and a TOOK for each item that has arrived */
    wfi_child child;        /* of the served call that this one is made for, if any */
    struct wfi_items_in *items; /* streamed results: client/stream.c */
    wfi_span span;
    wfi_task release;
    uint8_t function_size;
    char *function;      /* its name, with a NUL. The block has this struct, `land`, the name, the bytes of `header` */
    weft_tensor *land[]; /* referenced; the places of the results */
};

/* Checks a spec before anything is started: WEFT_OK or WEFT_ERR_INVALID. */
weft_status wfi_spec_check(const weft_agent *agent, const wfi_call_spec *spec); /* client/check.c */
/* The error of a call that could not be started at `rank` (-1: unknown). It names the faulty field or value. Not
 * locked. */
weft_error *wfi_spec_explain(weft_agent *agent, const wfi_call_spec *spec, weft_status why, int rank);
/* Sets spec->source to the distributed context of the option `tape`, with a reference; NULL without that option. Called
 * on the thread that uses the tape, not locked. */
weft_status wfi_spec_find_source(weft_agent *agent, wfi_call_spec *spec, weft_error **error);
/* Packs the arguments that several calls share, unless they are packed. Not locked. */
weft_status wfi_spec_pack(weft_agent *agent, const wfi_call_spec *spec);
/* The work of weft_rpc_async: checks the spec, and starts the call, with retries if the options say so. Not locked. */
weft_status wfi_rpc_start(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error);
/*
 * Starts a call of one of weft's own functions that a protocol depends on: a message of a backward pass, the end of a
 * context, a step of an optimizer. The call is queued even if the queue is full, so it never fails with WEFT_ERR_AGAIN
 * and never waits for room. Its bytes count in the queue like those of any other call. The code that starts such calls
 * limits their number (docs/decisions/050-room-for-protocols.md). timeout_ms: as in weft_rpc_options. `within`: the
 * enclosing span, or NULL. On failure *error has the reason, with a reference. Not locked.
 */
typedef struct wfi_reserved_call {
    const char *function;
    weft_args arguments;
    int64_t timeout_ms;
    const wfi_span *within;
    const uint8_t *devices; /* as in wfi_call_spec; copied if it is needed after the call */
} wfi_reserved_call;
weft_status wfi_rpc_start_reserved(weft_agent *agent, weft_target to, const wfi_reserved_call *call, weft_future **out,
                                   weft_error **error);
/* The same to the owner of a reference; the reference becomes the first argument. */
weft_status wfi_rref_start_reserved(weft_rref *rref, const wfi_reserved_call *call, weft_future **out,
                                    weft_error **error);
/* The program's options in this library's size (base/text/sized.h); never the NULL that the program passed. NULL: they
 * are refused, which is reported in given->error or the log: return WEFT_ERR_INVALID. */
const weft_rpc_options *wfi_rpc_options(const weft_rpc_options *given, size_t size, const char *function,
                                        weft_rpc_options *own);
/* Called before anything is started: whether the calling thread may wait for calls of this agent. In an inline handler
 * WEFT_ERR_DEADLOCK, with an error. `what` names the call or function; `options` may be NULL. Not locked. */
weft_status wfi_rpc_may_wait(weft_agent *agent, const char *function, const weft_rpc_options *options);
/* Gives the error to options->error (`options` may be NULL). If that is NULL and the error is a mistake of the program,
 * it is logged for `agent` (NULL: not logged). */
void wfi_rpc_give_error(const weft_agent *agent, const weft_rpc_options *options, weft_error *error);
/* For public functions that start a call: reports that the argument `what` is NULL, in options->error or the log, and
 * returns WEFT_ERR_INVALID. `options` and `function` may be NULL. */
weft_status wfi_rpc_refuse_null(const weft_rpc_options *options, const char *function, const char *argument);
/* Waits for the call of a blocking function, and gives its results or its error. Takes over the future, of which there
 * must be no other reference; if the wait fails, cancels it. `options` and `out` may be NULL. `agent` is NULL if the
 * blocking function takes no options: then the error is not logged. */
weft_status wfi_rpc_await(const weft_agent *agent, weft_future *future, const weft_rpc_options *options,
                          weft_values **out);
/* Starts a call with retries, as its options say, or one whose arguments are first copied from devices
 * (client/retry.c). */
weft_status wfi_retry_start(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error);
void wfi_retries_fail_all(weft_agent *agent, weft_status why, const char *text); /* [agent lock] */
/* The target's rank, or -1 with the error of a call of `function` to it. Not locked. */
int wfi_target_resolve(weft_agent *agent, weft_target to, const char *function, weft_error **error);
/* Starts one call (without retries). If that fails, sets *error. Not locked. */
weft_status wfi_call_begin(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error);
/* The same to that rank, which may be this worker's own. */
weft_status wfi_call_start(weft_agent *agent, int rank, wfi_call_spec *spec, weft_future **out);
/* The deadline of a call: the earlier one of its own and its parent's. WEFT_OK, WEFT_ERR_TIMEOUT if it has passed,
 * WEFT_ERR_CANCELLED if the parent was cancelled. [agent lock] */
weft_status wfi_call_limit(weft_agent *agent, wfi_call_spec *spec, uint64_t now, uint64_t *deadline_ns);
/* The rank of the worker that is called. */
int wfi_call_rank(const wfi_request *call);

/* local.c: calls to this worker itself. prepare: on failure wfi_call_free frees what was made. Not locked. */
weft_status wfi_local_prepare(wfi_request *call, const wfi_call_spec *spec);
weft_status wfi_local_send(wfi_request *call, uint64_t deadline_ns); /* [agent lock] */

/* ---- end.c ------------------------------------------------------------------------------------------------------- */

void wfi_call_free(wfi_request *call); /* one that no table has. Not locked */
/* Ends its exposures; `peer_done`: see below. [agent lock] */
void wfi_call_withdraw(wfi_request *call, bool peer_done);
/* The handler of a call of this worker to itself may have let the arguments go: the call ends if it has failed.
 * [agent lock] */
void wfi_local_let_go(weft_call *call);
/* Completes failed calls whose arguments are no longer read: closing has begun, or a batch was left. [agent lock] */
void wfi_local_complete_returned(weft_agent *agent);

/* Fails the calls that the message names. [agent lock] */
void wfi_calls_on_refused(weft_agent *agent, wfi_peer *from, wfi_reader *reader);
void wfi_call_on_reply(weft_agent *agent, wfi_peer *from, wfi_reader *reader); /* [agent lock] */
void wfi_call_drop_hold(wfi_request *call);                                    /* [agent lock] */
/* Ends the call: completes its future with `values` or `error` (one of them; borrowed). `peer_done`: the peer is
 * known to have finished using the exposures of this call. [agent lock] */
void wfi_call_complete(wfi_request *call, const weft_values *values, const weft_error *error, bool peer_done);
/* Completes a call's future, and `remote` unless it is NULL, with `values` or `error` (one of them; borrowed). All
 * calls complete here. [agent lock] */
void wfi_call_complete_future(weft_future *future, weft_rref *remote, const weft_values *values,
                              const weft_error *error);
/* Fails the call on this worker's side; the error says whether the handler may have run. Stops transfers first.
 * [agent lock] */
void wfi_call_fail(wfi_request *call, weft_status why, const char *text);
/* The same with an error, which it takes over, of a call to another worker. [agent lock] */
void wfi_call_abort(wfi_request *call, weft_error *error);
extern const wfi_component wfi_client_component;

extern const wfi_canceller wfi_call_canceller; /* of a call's future: `owner` is the agent, `id` the call's */

#endif
