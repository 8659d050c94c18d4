/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c - the callee's side of a call: makes the served call, checks the message, and receives its arguments
 * (payload/inbound.c).
 *
 * Then the handler runs (run.c), and respond.c sends its results. This file also handles later messages of the caller
 * (DONE, TOOK, CANCEL), and has the callee's component of the agent.
 */
#include "rpc/server/server.h"
#include "rpc/agent/notify.h"

#include "base/alloc.h"
#include "rpc/agent/budget.h"
#include "rpc/server/stream.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- Arrival ----------------------------------------------------------------------------------------------------- */

/* Tensors that the caller's tape recorded are recorded here too. */
static weft_error *receive_recorded(weft_call *call, const wfi_inbound *inbound)
{
    const wfi_decoded *decoded = &inbound->decoded;
    if (!decoded->linked_count)
        return NULL;
    if (wfi_runner_of(call->function) || call->function->flags & WEFT_FUNCTION_LAND_ADD)
        return wfi_call_error(
            call, WEFT_ERR_UNSUPPORTED,
            "an argument was recorded under a distributed context, which a function that %s does not take",
            call->function->flags & WEFT_FUNCTION_LAND_ADD ? "adds what lands" : "is served in batches");
    weft_status status = wfi_recording_ops_get()->add_recvs(call->recording, call->peer, 0, call->args, decoded->linked,
                                                            decoded->linked_count);
    return status ? wfi_call_error(call, status, "the arguments could not be recorded: %s", weft_status_text(status))
                  : NULL;
}

static void arguments_ready(wfi_inbound *inbound, weft_status status)
{
    weft_call *call = inbound->owner;
    char problem[128];
    weft_error *error = NULL;
    if (status) {
        error = wfi_call_error(call, status, "the arguments: %s", inbound->problem);
    } else {
        call->args = inbound->values;
        inbound->values = NULL;
        error = receive_recorded(call, inbound);
        if (!error &&
            !wfi_serve_signature_fits(call->function->takes, weft_values_args(call->args), problem, sizeof(problem)))
            error = wfi_call_error(call, WEFT_ERR_TYPE, "%s", problem);
    }
    if (!error) {
        wfi_serve_run(call);
        return;
    }
    if (call->queued)
        wfi_runner_of(call->function)->ops->leave(call);
    wfi_serve_refuse(call, error);
}

static weft_tensor *user_place(void *arg, size_t index, weft_dtype dtype, weft_shape shape)
{
    weft_call *call = arg;
    return call->function->land(call->from, index, dtype, shape, call->function->user);
}

static_assert(sizeof(weft_call) <= WFI_CACHED_BYTES && sizeof(wfi_inbound) <= WFI_CACHED_BYTES,
              "wfi_calloc is slower for larger blocks");

weft_call *wfi_serve_create(weft_agent *agent, wfi_peer *from)
{
    weft_call *call = wfi_calloc(1, sizeof(*call));
    if (!call)
        return NULL;
    call->agent = agent;
    call->peer = from;
    call->from = from ? wfi_peer_rank(from) : wfi_agent_rank(agent);
    call->charge = (wfi_charge){.agent = agent, .from = call->from};
    wfi_list_init(&call->children);
    return call;
}

weft_status wfi_serve_enter(weft_call *call, uint64_t id)
{
    weft_agent *agent = call->agent;
    weft_status status = call->peer ? wfi_notifications_promise(agent, 1, &call->notifications) : WEFT_OK;
    if (!status)
        status = wfi_map_put(&agent->peers[call->from].serving, id, call);
    if (status) {
        wfi_notifications_release(agent, &call->notifications);
        return status;
    }
    WFI_HANDLE_INIT(call);
    call->id = id;
    call->incarnation =
        call->peer ? wfi_peer_incarnation(call->peer) : wfi_net_member(agent->net, call->from)->incarnation;
    wfi_agent_ref(agent);
    if (call->peer)
        wfi_peer_ref(call->peer);
    call->in_map = call->in_table = true;
    call->holds = 1;
    call->counted = true;
    agent->serving++;
    return WEFT_OK;
}

void wfi_serve_discard(weft_call *call)
{
    if (!call)
        return;
    if (call->recording)
        wfi_recording_ops_get()->free(call->recording);
    weft_values_unref(call->args);
    free(call->arguments);
    free(call);
}

static weft_status make_call(weft_agent *agent, wfi_peer *from, uint64_t id, weft_call **out)
{
    weft_call *call = wfi_serve_create(agent, from);
    wfi_inbound *arguments = call ? wfi_calloc(1, sizeof(*arguments)) : NULL;
    if (arguments) {
        call->responder = &wfi_wire_responder;
        call->arguments = arguments;
        arguments->agent = agent;
        arguments->peer = from;
        arguments->ready = arguments_ready;
        arguments->charge = &call->charge;
        arguments->owner = call;
        arguments->call_id = id;
        wfi_writer_init_room(&call->header, arguments->room.header, sizeof(arguments->room.header));
    }
    weft_status status = arguments ? wfi_serve_enter(call, id) : WEFT_ERR_MEMORY;
    if (status) {
        wfi_serve_discard(call);
        return status;
    }
    wfi_budget_charge(&call->charge, WFI_SERVE_BYTES);
    *out = call;
    return WEFT_OK;
}

/* Reads the part of the header that names the reference to the result. */
static weft_status read_remote(weft_call *call, wfi_reader *reader)
{
    wfi_rref_name name = wfi_reference_read_name(reader);
    uint64_t fork = wfi_read_u64(reader);
    if (reader->failed || name.owner != (uint32_t)wfi_agent_rank(call->agent) || name.creator != (uint32_t)call->from)
        return WEFT_ERR_PROTOCOL;
    return wfi_owned_create_for(call->agent, call->peer, call->id, &name, fork, &call->owned);
}

/* The span of the peer is only shown, so it is not checked. */
static wfi_span read_span(uint8_t flags, wfi_reader *reader)
{
    wfi_span span = {0};
    if (!(flags & WFI_CALL_TRACED))
        return span;
    span.trace = wfi_read_u64(reader);
    span.parent = wfi_read_u64(reader);
    span.left_ns = wfi_read_u64(reader);
    return span;
}

/* If this process has no contexts, the blob is ignored, and the reply carries none. */
static weft_status read_recording(weft_call *call, const uint8_t *bytes, size_t size)
{
    wfi_reader blob;
    if (!size || !wfi_recording_ops_get())
        return WEFT_OK;
    wfi_reader_init(&blob, bytes, size);
    return wfi_recording_ops_get()->read_request(call->agent, call->peer, &blob, &call->recording);
}

static weft_status admit_reserved(wfi_inbound *inbound, const uint8_t *meta, size_t size, uint64_t bytes)
{
    return wfi_recording_ops_get()->admit(inbound->owner, meta, size, bytes, inbound->problem,
                                          sizeof(inbound->problem));
}

static void take_in(weft_call *call, wfi_reader *body)
{
    const weft_function *function = call->function;
    const wfi_runner *runner = wfi_runner_of(function);
    weft_error *error = runner ? runner->ops->admit(call) : NULL;
    if (error) {
        wfi_serve_refuse(call, error);
        return;
    }
    wfi_inbound *arguments = call->arguments;
    arguments->is_let_in = function->flags & WFI_LET_IN;
    if (function->flags & WFI_RESERVED)
        arguments->admit = admit_reserved;
    arguments->user_places = function->land && !(function->flags & WEFT_FUNCTION_LAND_ADD);
    if (arguments->user_places)
        arguments->options = (wfi_decode_options){.place = user_place, .place_arg = call};
    arguments->options.takes_linked = call->recording != NULL;
    wfi_inbound_start(arguments, body);
}

static void serve_call(weft_agent *agent, wfi_peer *from, wfi_reader *reader)
{
    char name[WFI_FUNCTION_NAME_MAX + 1] = "";
    uint64_t id = wfi_read_u64(reader);
    uint8_t flags = wfi_read_u8(reader);
    uint64_t timeout_ns = wfi_read_u64(reader);
    uint8_t name_size = wfi_read_u8(reader);
    const uint8_t *name_bytes = wfi_read_bytes(reader, name_size);
    size_t recording_size;
    const uint8_t *recording_bytes = wfi_read_blob(reader, WFI_MESSAGE_MAX, &recording_size);
    wfi_span span = read_span(flags, reader);
    weft_call *call = NULL;
    weft_status made = WEFT_ERR_PROTOCOL;
    if (!reader->failed)
        made = wfi_serve_refuses_all_of(agent, from) ? WEFT_ERR_BUSY : make_call(agent, from, id, &call);
    if (made == WEFT_ERR_MEMORY || made == WEFT_ERR_BUSY)
        wfi_serve_refuse_by_id(agent, from, id, made == WEFT_ERR_MEMORY);
    if (made)
        return; /* other errors: the message is malformed */
    if (name_size <= WFI_FUNCTION_NAME_MAX)
        memcpy(name, name_bytes, name_size);
    uint64_t now = wfi_net_now(agent->net);
    call->span = span;
    call->span.begun_ns = now;
    wfi_observe_arrived(agent, &call->span);
    call->deadline_ns = timeout_ns > WFI_NEVER - now ? WFI_NEVER : now + timeout_ns;
    call->function = wfi_function_find(agent, name);
    weft_status remote = flags & WFI_CALL_REMOTE ? read_remote(call, reader) : WEFT_OK;
    weft_status items = flags & WFI_CALL_ITEMS ? wfi_items_out_create(&call->items) : WEFT_OK;
    weft_status linked = read_recording(call, recording_bytes, recording_size);
    if (linked)
        wfi_serve_refuse(call,
                         wfi_call_error(call, linked, "%s",
                                        linked == WEFT_ERR_STATE ? "its distributed context is over"
                                                                 : "its distributed context could not be joined"));
    else if (items)
        wfi_serve_refuse(call, wfi_call_error(call, items, "no memory for its items"));
    else if (remote)
        wfi_serve_refuse(call, wfi_call_error(call, remote,
                                              remote == WEFT_ERR_MEMORY ? "no memory for the reference to its result"
                                                                        : "malformed name of a remote reference"));
    else if (agent->refuses_calls)
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_PEER_LEFT, "%s is leaving the job", agent->options.name));
    else if (!call->function)
        wfi_serve_refuse(call, wfi_function_unknown(agent, name));
    else if (wfi_order_join(call))
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_MEMORY, "no memory for its place in the order"));
    else
        take_in(call, reader);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

static void done_with(weft_call *call)
{
    weft_agent *agent = call->agent;
    if (!call->awaiting_done || call->pushing)
        return; /* the message is wrong: the results have not been sent */
    call->awaiting_done = false;
    agent->stats.bytes_sent += call->outbound.exposed_bytes;
    wfi_outbound_withdraw(&call->outbound, call->peer, true);
    wfi_serve_leave_if_ended(call);
}

/* The caller gave up, and has ended its side of all transfers; or it is gone. */
static void cancel_call(weft_call *call, weft_status why, const char *text)
{
    call->cancelled = true;
    wfi_serve_cancel(call, why, text);
    wfi_items_out_drop(call);
    if (call->stage == WFI_SERVE_SERVING)
        wfi_serve_uncount(call); /* it may never be finished, so closing does not wait for it */
    if (call->stage == WFI_SERVE_TAKING)
        wfi_inbound_cancel(call->arguments);
    else if (call->pushing)
        wfi_transfer_cancel(&call->push);
    else if (call->awaiting_done)
        done_with(call);
    else
        wfi_serve_leave_if_ended(call);
}

/* Handles a message of a caller: CALL, DONE, CANCEL, TOOK. */
static void serve_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader)
{
    if (type == WFI_RPC_CALL) {
        serve_call(agent, from, reader);
        return;
    }
    weft_call *call = wfi_map_get(&agent->peers[wfi_peer_rank(from)].serving, wfi_read_u64(reader));
    bool is_late = type == WFI_RPC_CANCEL && wfi_read_u8(reader);
    uint32_t item = type == WFI_RPC_TOOK ? wfi_read_u32(reader) : 0;
    if (!call || reader->failed)
        return;
    if (type == WFI_RPC_DONE) {
        done_with(call);
    } else if (type == WFI_RPC_CANCEL && is_late) {
        cancel_call(call, WEFT_ERR_TIMEOUT, "the call's time ran out");
    } else if (type == WFI_RPC_CANCEL) {
        cancel_call(call, WEFT_ERR_CANCELLED, "the caller cancelled the call");
    } else {
        wfi_items_out_took(call, item);
        wfi_serve_leave_if_ended(call);
    }
}

static void cancel_calls_of(weft_agent *agent, int rank, weft_status why, const char *text)
{
    wfi_map gone = agent->peers[rank].serving; /* the next worker with this rank finds none of these */
    size_t cursor = 0;
    weft_call *call;
    wfi_map_init_keyed(&agent->peers[rank].serving, &agent->hash_key);
    while ((call = wfi_map_next(&gone, &cursor, NULL)))
        call->in_map = false;
    for (cursor = 0; (call = wfi_map_next(&gone, &cursor, NULL));) {
        cancel_call(call, why, text);
        wfi_serve_interest(call, false);
        if (call->stage == WFI_SERVE_SERVING) /* only the user holds it */
            wfi_serve_leave_table(call);
    }
    wfi_map_fini(&gone);
}

/* ---- A component of the agent ------------------------------------------------------------------------------------ */

static void caller_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    int rank = wfi_peer_rank(peer);
    cancel_calls_of(agent, rank, why, text);
    wfi_refusals_forget(agent, rank);
}

static size_t refuse_queued(weft_agent *agent)
{
    size_t count = 0;
    for (wfi_task *task; (task = wfi_executor_withdraw(agent->executor, wfi_serve_handler_task)); count++)
        wfi_serve_refuse_queued(wfi_container_of(task, weft_call, task));
    return count;
}

static bool is_serving(weft_agent *agent)
{
    return agent->serving > 0;
}

/* Whether this worker must not leave the job because of a call of another worker: it is served, or its answer is in
 * flight or kept for the caller. False for a served call that was cancelled (it may never be finished), and for an
 * answered call whose caller cannot be reached. */
static bool keeps(const weft_call *call)
{
    if (call->stage == WFI_SERVE_SERVING)
        return !atomic_load(&call->cancel_reason);
    return !wfi_peer_is_unreachable(call->peer);
}

static bool has_kept_call(const wfi_map *serving)
{
    size_t cursor = 0;
    const weft_call *call = wfi_map_next(serving, &cursor, NULL);
    while (call && !keeps(call))
        call = wfi_map_next(serving, &cursor, NULL);
    return call != NULL;
}

static bool serves_others(weft_agent *agent)
{
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        if (rank != wfi_agent_rank(agent) && has_kept_call(&agent->peers[rank].serving))
            return true;
    return false;
}

static const char *doing(const weft_call *call)
{
    if (call->stage != WFI_SERVE_SERVING)
        return call->stage == WFI_SERVE_TAKING ? "its arguments on their way" : "its answer not taken yet";
    if (call->queued)
        return "waiting for its batch to fill";
    return atomic_load(&call->deferred) ? "deferred" : "its handler not finished";
}

static void awaited_served(weft_agent *agent, wfi_awaits *out)
{
    const weft_call *first = NULL;
    size_t count = 0;
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        size_t cursor = 0;
        for (const weft_call *call; (call = wfi_map_next(&agent->peers[rank].serving, &cursor, NULL));) {
            if (!call->peer || (!call->counted && !keeps(call)))
                continue;
            count++;
            if (!first || call->span.begun_ns < first->span.begun_ns)
                first = call;
        }
    }
    if (first)
        wfi_awaits_add(out, "calls of other workers: %zu, the oldest \"%s\" of rank %d (%s) for %.1f s", count,
                       first->function ? first->function->name : "?", first->from, doing(first),
                       (double)(out->now_ns - first->span.begun_ns) / 1e9);
}

/* Fails the values first, so that threads waiting for them get this error, not that of the calls that make them. */
static void fail_served(weft_agent *agent, weft_status why, const char *text)
{
    wfi_owned_fail_all(agent, why, "the owner closed its agent before the value was made");
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        if (rank != wfi_agent_rank(agent)) /* this worker's own have been cancelled by their caller's side */
            cancel_calls_of(agent, rank, why, text);
}

/* Calls of this worker to itself that the user holds stay alive until weft_call_finish. Those of others were cancelled
 * by fail_served. */
static void close_server(weft_agent *agent)
{
    for (int rank = 0; agent->peers && rank < agent->options.values.world_size; rank++) {
        size_t cursor = 0;
        for (weft_call *call; (call = wfi_map_next(&agent->peers[rank].serving, &cursor, NULL));)
            wfi_serve_finish_late(call);
        wfi_map_fini(&agent->peers[rank].serving);
    }
}

const wfi_component wfi_server_component = {
    .messages = WFI_TAKES(WFI_RPC_CALL) | WFI_TAKES(WFI_RPC_DONE) | WFI_TAKES(WFI_RPC_CANCEL) | WFI_TAKES(WFI_RPC_TOOK),
    .message = serve_message,
    .peer_gone = caller_gone,
    .refuse_queued = refuse_queued,
    .busy = is_serving,
    .awaits = awaited_served,
    .serves = serves_others,
    .fail = fail_served,
    .drain = wfi_inbound_await,
    .close = close_server,
};
