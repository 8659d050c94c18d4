/* SPDX-License-Identifier: Apache-2.0 */
/*
 * respond.c - sends the answer of a served call.
 *
 * Results of up to 32 KiB, over tcp 128 KiB, are part of the reply. Larger ones are pushed into the caller's landing
 * places first; the reply follows when the last byte was acknowledged. Without landing places, or if the fabric cannot
 * write, they are exposed, and kept until the caller sends DONE.
 */
#include "rpc/server/server.h"
#include "rpc/agent/notify.h"

#include "base/error.h"
#include "rpc/payload/explain.h"
#include "rpc/agent/budget.h"
#include "rpc/server/stream.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that write_reply_header writes, besides a recording. */
#define REPLY_HEADER_SIZE (sizeof(uint64_t) + sizeof(uint8_t) + sizeof(uint32_t))
#define RECORDING_HOLDERS_BYTES 256 /* besides WFI_RECORDING_BYTES */

static void write_reply_header(wfi_writer *writer, const weft_call *call, uint8_t flags)
{
    wfi_write_u64(writer, call->id);
    wfi_write_u8(writer, flags);
    wfi_write_u32(writer, wfi_items_out_count(call));
    if (!(flags & WFI_REPLY_LINKED))
        return;
    uint8_t room[WFI_RECORDING_BYTES + RECORDING_HOLDERS_BYTES];
    wfi_writer recording;
    wfi_writer_init(&recording, room, sizeof(room));
    wfi_recording_ops_get()->write(call->recording, &recording);
    wfi_write_blob(writer, room, recording.size);
}

static void reply_gone(wfi_message *message, weft_status status)
{
    weft_call *call = wfi_container_of(message, weft_call, message);
    (void)status;
    wfi_serve_drop_hold(call);
}

/* Nothing more of this call is sent to the caller. [agent lock] */
static void abandon_answer(weft_call *call)
{
    wfi_outbound_withdraw(&call->outbound, call->peer, true);
    call->awaiting_done = false;
    wfi_observe_ended(call->agent, wfi_serve_observed(call), &call->span);
    wfi_items_out_drop(call);
    wfi_serve_leave_table(call);
}

/* There is no memory for the error's text: sends its codes in a promised notification. */
static void send_bare_reply(weft_call *call)
{
    uint8_t room[64];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof(room));
    write_reply_header(&writer, call, WFI_REPLY_ERROR);
    wfi_error_write_bare(&writer, weft_error_code(call->error), wfi_error_remote_code(call->error),
                         wfi_agent_rank(call->agent));
    wfi_post(call->agent, call->peer, WFI_RPC_REPLY, &writer, &call->notifications);
    wfi_observe_ended(call->agent, wfi_serve_observed(call), &call->span);
    call->replied = true;
    wfi_serve_interest(call, wfi_items_out_busy(call));
    wfi_serve_leave_if_ended(call);
}

static void send_reply(weft_call *call)
{
    weft_agent *agent = call->agent;
    if (call->header.failed && !call->cancelled) {
        send_bare_reply(call);
        return;
    }
    /* A reply that names references is sent after the calls that make them. Any other is sent before queued calls. It
     * enters even a full queue: the caller waits for it, and wfi_budget_keep has bounded it. */
    call->message = (wfi_message){.type = WFI_RPC_REPLY,
                                  .exempt = true,
                                  .persistent = true,
                                  .head = call->header.data,
                                  .head_size = call->header.size,
                                  .done = reply_gone};
    if (!call->error)
        wfi_outbound_fill(&call->outbound, &call->header, &call->message);
    call->message.urgent = !call->outbound.body.rref_count && wfi_message_size(&call->message) <= WFI_MESSAGE_MAX;
    if (call->cancelled || wfi_peer_send(call->peer, &call->message)) {
        abandon_answer(call);
        return;
    }
    call->holds++;
    wfi_observe_ended(call->agent, wfi_serve_observed(call), &call->span);
    agent->stats.bytes_packed += call->outbound.body.packed_bytes;
    agent->stats.bytes_copied += call->outbound.body.copied_bytes;
    call->replied = true;
    wfi_serve_interest(call, call->awaiting_done || wfi_items_out_busy(call));
    wfi_serve_leave_if_ended(call);
}

static void write_error_reply(weft_call *call)
{
    wfi_writer_fini(&call->header); /* it may be incomplete */
    wfi_writer_init_room(&call->header, call->arguments->room.header, sizeof(call->arguments->room.header));
    write_reply_header(&call->header, call, WFI_REPLY_ERROR | (call->recording ? WFI_REPLY_LINKED : 0));
    wfi_error_write(&call->header, call->error);
    call->awaiting_done = false;
}

/* Writes the header and body of results. */
static weft_status write_reply(weft_call *call)
{
    const wfi_encoded *body = &call->outbound.body;
    size_t header_size = REPLY_HEADER_SIZE + (call->recording ? WFI_RECORDING_BYTES + RECORDING_HOLDERS_BYTES : 0);
    weft_status status = call->recording ? wfi_recording_ops_get()->add_sends(call->recording, call->peer, body->linked,
                                                                              body->linked_count, NULL)
                                         : WEFT_OK;
    if (status)
        return status;
    call->awaiting_done = wfi_outbound_exposes(&call->outbound, call->peer, header_size) || body->rref_count > 0;
    write_reply_header(&call->header, call,
                       (call->awaiting_done ? WFI_REPLY_NEEDS_DONE : 0) | (call->recording ? WFI_REPLY_LINKED : 0));
    return wfi_outbound_publish(&call->outbound, call->peer, &call->header);
}

/* ---- Pushing ----------------------------------------------------------------------------------------------------- */

static void pin_pushes(weft_call *call, bool pin)
{
    for (size_t i = 0; i < call->push_count; i++) {
        if (pin)
            wfi_storage_pin_read(call->pushes[i].storage);
        else
            wfi_storage_unpin_read(call->pushes[i].storage);
    }
}

static weft_error *push_error(weft_call *call, weft_status status)
{
    char problem[384], value[WFI_FIND_DATA] = "";
    wfi_transfer_problem(&call->push, call->peer, status, problem, sizeof(problem));
    if (call->push.is_spoilt)
        wfi_find_data(weft_values_args(call->results), call->pushes[call->push.bad_segment].local, value);
    return wfi_call_error(call, status, "the results%s%s could not be pushed to their landing places%s%s",
                          *value ? ": " : "", value, *problem ? ": " : "", problem);
}

static void pushed(wfi_transfer *transfer, weft_status status)
{
    weft_call *call = wfi_container_of(transfer, weft_call, push);
    call->pushing = false;
    pin_pushes(call, false);
    if (status && !call->cancelled) {
        call->error = push_error(call, status);
        write_error_reply(call);
    }
    send_reply(call);
}

static const wfi_transfer_ops pushed_ops = {.chunk = wfi_transfer_ignore_chunk, .done = pushed};

static weft_status start_push(weft_call *call)
{
    call->push = (wfi_transfer){.kind = WFI_PUSH,
                                .segments = call->pushes,
                                .segment_count = call->push_count,
                                .bulk_generation = call->arguments->bulk_generation,
                                .ops = &pushed_ops};
    pin_pushes(call, true);
    call->pushing = true;
    weft_status status = wfi_peer_transfer(call->peer, &call->push);
    if (!status)
        return WEFT_OK;
    call->pushing = false;
    pin_pushes(call, false);
    return status;
}

/* ---- The whole answer -------------------------------------------------------------------------------------------- */

/* Encodes the results (call->outbound), and lists those that are pushed into the caller's landing places (pushes). If a
 * value cannot be sent, `how.problem` may say which. */
static weft_status encode_results(weft_call *call, wfi_encode_options how)
{
    const wfi_inbound *inbound = call->arguments;
    weft_args results = call->owned ? WEFT_NO_VALUES : weft_values_args(call->results);
    how.pass = wfi_rref_pass;
    how.room = call->arguments->room.meta;
    if (call->recording) {
        how.is_linked = wfi_recording_ops_get()->is_linked;
        how.context = wfi_recording_ops_get()->source(call->recording);
    }
    if (!call->owned && inbound->landing_count) {
        how.landing = inbound->landing;
        how.landing_count = inbound->landing_count;
        wfi_net_lock(call->agent->net); /* how large results get there */
        how.never_pushes = !wfi_peer_can_push(call->peer);
        how.eager = wfi_payload_eager(call->peer);
        wfi_net_unlock(call->agent->net);
    }
    weft_status status = wfi_encode(&call->outbound.body, results, &how);
    if (!status)
        wfi_encode_landing_count(&call->outbound.body, 0);
    if (!status)
        status = wfi_outbound_check(&call->outbound, call->agent->net, call->from);
    if (!status && call->outbound.body.remote_count)
        status = wfi_outbound_pushes(&call->outbound, how.landing, &call->pushes, &call->push_count);
    return status ? status : wfi_stage(&call->outbound.body, call->agent, &call->outbound.staging);
}

/* Freed without the lock, when the answer has been sent: the arguments, and the parts of an answer that is not sent,
 * because too much is kept for this caller. */
typedef struct leftovers {
    weft_values *args;
    wfi_outbound outbound;
    weft_values *results;
} leftovers;

/* [agent lock] */
static void keep_within_bounds(weft_call *call, leftovers *left)
{
    const wfi_rpc_peer *peer = &call->agent->peers[call->from];
    size_t bytes = call->error ? strlen(weft_error_message(call->error)) : wfi_outbound_bytes(&call->outbound);
    if (wfi_budget_keep(&call->charge, bytes + 64) || call->error)
        return;
    call->error =
        wfi_call_error(call, WEFT_ERR_UNKNOWN,
                       "it ran, but its answer could not be kept: %zu answers of %llu bytes wait for this caller",
                       peer->kept_count, (unsigned long long)peer->kept_bytes);
    wfi_results_unpin(call);
    left->outbound = call->outbound;
    left->results = call->results;
    call->outbound = (wfi_outbound){0};
    call->results = NULL;
}

static weft_error *cannot_be_sent(weft_call *call, weft_status status)
{
    if (status != WEFT_ERR_TOO_LARGE)
        return wfi_call_error(call, status, "the results could not be sent: %s",
                              status == WEFT_ERR_STATE && call->recording ? "its distributed context is over"
                                                                          : weft_status_text(status));
    return wfi_call_error(
        call, status,
        "the results: %zu bytes beside tensors (strings, bytes, the shape of each tensor), where a call "
        "carries %d",
        call->outbound.body.meta.size, WEFT_MAX_CALL_BYTES);
}

void wfi_serve_end(weft_call *call)
{
    wfi_serve_end_watch(call);
    call->stage = WFI_SERVE_ANSWERING;
    wfi_serve_uncount(call);
    wfi_children_forget(call);
    call->agent->answered++;
    call->agent->stats.calls_served += call->ran;
    wfi_observe_answered(call->agent, wfi_serve_observed(call), &call->span);
    if (!call->deferred || wfi_runner_of(call->function)) /* otherwise its handler may still use them */
        wfi_budget_release_arguments(&call->charge);
    wfi_owned *owned = call->owned; /* of weft_rpc_remote: the result or error becomes the value of the reference */
    call->owned = NULL;
    if (owned)
        wfi_owned_finish(owned, &(wfi_made){call->error, &call->object, call->results});
}

static void answer_locked(weft_call *call, leftovers *left)
{
    weft_status status = WEFT_OK;
    wfi_serve_end(call);
    if (call->cancelled || call->agent->stopped) {
        abandon_answer(call);
        return;
    }
    keep_within_bounds(call, left);
    if (!call->error)
        status = write_reply(call);
    if (status)
        call->error = cannot_be_sent(call, status);
    if (!call->error && call->push_count) {
        status = start_push(call);
        if (!status)
            return; /* the reply follows */
        call->error = push_error(call, status);
    }
    if (call->error)
        write_error_reply(call);
    send_reply(call);
}

/* Registers the results without the lock: that takes long. */
static void register_results(weft_call *call, wfi_prepared *prepared)
{
    wfi_net *net = call->agent->net;
    *prepared = (wfi_prepared){0};
    wfi_net_lock(net);
    if (!call->cancelled) {
        wfi_prepared_begin(prepared, call->peer);
        wfi_outbound_prepare(&call->outbound, 0, prepared);
    }
    wfi_net_unlock(net);
    weft_status status = wfi_prepared_open(prepared);
    if (status)
        call->error = cannot_be_sent(call, status);
}

/* Sends the encoded answer. Not locked */
static void send_answer(weft_call *call)
{
    wfi_net *net = call->agent->net;
    leftovers left = {.args = NULL};
    wfi_prepared prepared; /* set if `registers` */
    bool registers = !call->error && wfi_outbound_registers(&call->outbound, net, 0);
    if (registers)
        register_results(call, &prepared);
    if (!call->deferred) { /* otherwise its handler may still use them */
        left.args = call->args;
        call->args = NULL;
    }
    wfi_serve_release_work(call);
    wfi_net_lock(net);
    bool was_deferred = call->deferred;
    answer_locked(call, &left);
    if (registers)
        wfi_prepared_put(&prepared); /* while the call keeps the agent open */
    wfi_results_unpin(call);         /* exposures and pushes have their own pins */
    wfi_serve_drop_hold(call);       /* the user's */
    if (!was_deferred)
        wfi_serve_drop_hold(call); /* that of the handler task, which runs this */
    wfi_net_unlock(net);
    if (registers)
        wfi_prepared_fini(&prepared);
    weft_values_unref(left.args);
    wfi_outbound_fini(&left.outbound);
    weft_values_unref(left.results);
}

/* The results have been copied from their devices. Not locked */
static void send_copied_answer(void *owner)
{
    weft_call *call = owner;
    weft_status status = call->outbound.staging->status;
    if (status)
        call->error =
            wfi_call_error(call, status, "the results could not be copied from a device: %s", weft_status_text(status));
    else
        wfi_encode_copied(&call->outbound.body);
    send_answer(call);
}

static void wire_respond(weft_call *call)
{
    if (wfi_items_out_delay_answer(call))
        return; /* the last item calls it again */
    if (!call->error) {
        char problem[320] = "";
        weft_status status =
            encode_results(call, (wfi_encode_options){.problem = problem, .problem_room = sizeof(problem)});
        if (status && call->outbound.staging)
            snprintf(problem, sizeof(problem), "the results could not be copied from a device: %s",
                     weft_status_text(status));
        else if (status && !problem[0])
            wfi_results_fault(call->agent, weft_values_args(call->results), status, problem, sizeof(problem));
        if (status)
            call->error = wfi_call_error(call, status, "%s", problem[0] ? problem : weft_status_text(status));
    }
    if (call->error || !call->outbound.staging) {
        send_answer(call);
        return;
    }
    wfi_net *net = call->agent->net;
    wfi_net_lock(net);
    bool waits = wfi_staging_then(call->outbound.staging, send_copied_answer, call);
    wfi_net_unlock(net);
    if (!waits)
        send_copied_answer(call);
}

/* ---- The responder ----------------------------------------------------------------------------------------------- */

static void wire_returned(weft_call *call)
{
    (void)call; /* the caller is not notified */
}

const wfi_responder_ops wfi_wire_responder = {
    .returned = wire_returned, .respond = wire_respond, .send_item = wfi_items_out_send};
