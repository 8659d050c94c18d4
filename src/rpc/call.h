/* SPDX-License-Identifier: Apache-2.0 */
/* call.h - a call of ours that is under way, from weft_rpc_async to the completion of its future. */
#ifndef WFI_CALL_H
#define WFI_CALL_H

#include "rpc/intake.h"
#include "rpc/observe.h"
#include "rpc/pack.h"

/*
 * Guarded by the agent's lock once it is in the table. It lives until it has completed and net has let go of its message:
 * `holds` counts those. What must not be freed under the lock goes in a deferred task.
 */
struct wfi_outcall {
    weft_agent *agent;
    wfi_peer *peer;
    uint64_t id;
    int holds;
    bool completed;
    weft_future *future;
    char function[WFI_FUNCTION_NAME_MAX + 1];
    wfi_timer timer;

    wfi_pack arguments;
    wfi_writer header;
    wfi_message message;
    bool message_out; /* net has it */

    weft_tensor **land; /* referenced; the results' places */
    wfi_landing *landing;
    wfi_exposure *land_exposures;
    size_t land_count, land_exposed;

    wfi_intake results;
    bool needs_done;     /* the callee keeps something until we say DONE */
    weft_error *failure; /* why it ends, while the intake of its results is being cancelled */
    weft_rref *remote;   /* rpc_remote: the handle that the reply confirms */
    weft_call *within;   /* the served call that this one is made for, while it is being served; else NULL */
    wfi_list within_link;
    struct wfi_parts_in *parts; /* streamed results: src/rpc/parts_in.c */
    wfi_span span;
    wfi_task release;
};

/* Starts a call to another worker. `remote`, if not NULL, makes it an rpc_remote; it takes a reference. */
weft_status wfi_call_start(weft_agent *agent, int rank, const char *function, weft_args arguments,
                           const weft_rpc_options *options, weft_rref *remote, weft_future **out);
/* The same to ourselves, by reference (src/rpc/local.c). */
weft_status wfi_call_start_local(weft_agent *agent, const char *function, weft_args arguments,
                                 const weft_rpc_options *options, weft_rref *remote, weft_future **out);

/* Fails the calls to ourselves that have not been answered. [agent lock] */
void wfi_local_fail_all(weft_agent *agent, weft_status why, const char *text);

void wfi_call_on_reply(weft_agent *agent, wfi_peer *from, wfi_reader *reader); /* [agent lock] */
/* Ends the call: completes its future with `values` or `error` (one of them; borrowed). `quiet`: the peer is known to be
 * done with what we exposed. [agent lock] */
void wfi_call_complete(wfi_outcall *call, const weft_values *values, const weft_error *error, bool quiet);
/* Fails it from our side: stops what is under way first. Takes over `error`. [agent lock] */
void wfi_call_abort(wfi_outcall *call, weft_error *error);
void wfi_calls_fail_all(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text); /* peer NULL: all */

/* Cancels what was started within a call that nobody wants any more, and forgets it all. [agent lock] */
void wfi_calls_cancel_within(weft_call *call, weft_status why, const char *text);

/* A message that is its own owner: type and a few bytes, urgent, freed when through. [agent lock] */
void wfi_post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes);
void wfi_post_id(weft_agent *agent, wfi_peer *to, uint8_t type, uint64_t id);

#endif
