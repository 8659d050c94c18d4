/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - the caller's side of a call.
 *
 * In order: weft_rpc_async (async.c) -> wfi_call_begin -> wfi_call_start -> the message is sent
 * (src/net/message/send.c) -> the reply arrives (reply.c) or the timer fires -> wfi_call_complete. A call to this
 * worker itself takes the same way, except that local.c passes it to the server, and its answer back.
 */
#include "rpc/client/client.h"
#include "rpc/agent/notify.h"

#include "base/alloc.h"
#include "base/error.h"
#include "rpc/client/stream.h"
#include "rpc/refs/refs.h"
#include "rpc/server/server.h"
#include "value/value.h"
#include "tensor/tensor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define COMPANY_BYTES                                                                                                  \
    1152 /* a call's future, notifications, entries in tables, overhead of malloc: measured, test_rpc_queue */

/* Largest size of a header without the function's name (write_header: 54; wfi_outbound_publish: 9). */
#define HEADER_BYTES (64 + sizeof(wfi_rref_name) + WFI_RECORDING_BYTES + WFI_RMA_BYTES)

/* ---- Its time, and its parent ------------------------------------------------------------------------------------ */

static void timer_fired(wfi_timer *timer)
{
    wfi_request *call = wfi_container_of(timer, wfi_request, timer);
    const wfi_member *member = wfi_net_member(call->agent->net, wfi_call_rank(call));
    unsigned long long limit_ms = call->limit_ns / 1000000 + (call->limit_ns % 1000000 != 0);
    char text[WFI_NAME_MAX + 512];
    snprintf(text, sizeof(text), "no answer from rank %d (%s) within %s, %llu ms", wfi_call_rank(call),
             member ? member->name : "unknown",
             call->is_attempt ? "the time that was left for this attempt" : "the call's time limit", limit_ms);
    if (call->peer)
        wfi_peer_control_problem(call->peer, text + strlen(text), sizeof(text) - strlen(text));
    wfi_call_fail(call, WEFT_ERR_TIMEOUT, text);
}

static void parent_ended(wfi_child *child, weft_status why, const char *text)
{
    if (why)
        wfi_call_fail(wfi_container_of(child, wfi_request, child), why, text);
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static void message_done(wfi_message *message, weft_status status)
{
    wfi_request *call = wfi_container_of(message, wfi_request, message);
    call->message_out = false;
    if (status == WEFT_ERR_MEMORY ||
        status == WEFT_ERR_SYSTEM) /* other failures mean that the peer is gone, and peer_gone fails the call */
        wfi_call_fail(
            call, status,
            status == WEFT_ERR_MEMORY
                ? "it could not be sent: no memory for a connection"
                : "it could not be sent: no connection could be made, as this process is out of file descriptors "
                  "(ulimit -n)");
    wfi_call_drop_hold(call);
}

/* Whether the callee may write a result into the place: not a tiny one, nor one on a device. */
static bool may_be_pushed(const weft_tensor *place)
{
    return weft_tensor_nbytes(place) > WFI_TINY_TENSOR && wfi_tensor_kind(place) != WFI_MEMORY_CUDA;
}

static weft_status take_landing(wfi_request *call, int rank, weft_tensors land)
{
    bool any_large = false, checks = false;
    for (size_t i = 0; i < land.count; i++) {
        if (!land.items[i] || !weft_tensor_is_contiguous(land.items[i]))
            return WEFT_ERR_INVALID;
        const weft_tensor *place = call->land[call->land_count++] = wfi_tensor_read(land.items[i]);
        size_t nbytes = weft_tensor_nbytes(place);
        if (!may_be_pushed(place)) /* weft copies its result there */
            continue;
        if (!any_large)
            checks = wfi_payload_needs_check(call->agent->net, rank);
        any_large = true;
        if (checks && !wfi_storage_is_accessible(place->storage, weft_tensor_data(place), nbytes, true))
            return WEFT_ERR_INVALID;
    }
    any_large = any_large && rank != wfi_agent_rank(call->agent);
    call->land_exposures = any_large ? wfi_calloc(land.count, sizeof(*call->land_exposures)) : NULL;
    return any_large && !call->land_exposures ? WEFT_ERR_MEMORY : WEFT_OK;
}

/* [agent lock] */
static weft_status expose_landing(wfi_request *call)
{
    if (call->arguments.shared)
        return WEFT_OK; /* shared arguments never have landing places */
    wfi_encode_landing_count(&call->arguments.body, call->land_count);
    for (size_t i = 0; i < call->land_count; i++) {
        const weft_tensor *place = call->land[i];
        size_t nbytes = weft_tensor_nbytes(place);
        /* The result of a small place is part of the reply; one that cannot be pushed is pulled into its place. */
        wfi_exposure nowhere = {0}, *exposure = &nowhere;
        if (may_be_pushed(place) && wfi_peer_can_push(call->peer)) {
            exposure = &call->land_exposures[call->land_exposed];
            weft_status status = wfi_peer_expose(call->peer, place->storage, weft_tensor_data(place), nbytes,
                                                 WFI_REMOTE_WRITE, exposure);
            if (status)
                return status;
            call->land_exposed++;
        }
        wfi_encode_landing(&call->arguments.body, place, &exposure->remote);
    }
    return WEFT_OK;
}

static void write_header(wfi_request *call, uint64_t timeout_ns)
{
    uint8_t recording_room[WFI_RECORDING_BYTES];
    wfi_writer *w = &call->header, recording;
    wfi_writer_init(&recording, recording_room, sizeof(recording_room));
    if (call->recording)
        wfi_recording_ops_get()->write(call->recording, &recording);
    wfi_write_u64(w, call->id);
    wfi_write_u8(w, (uint8_t)((call->remote ? WFI_CALL_REMOTE : 0) | (call->items ? WFI_CALL_ITEMS : 0) |
                              (call->span.trace ? WFI_CALL_TRACED : 0)));
    wfi_write_u64(w, timeout_ns);
    wfi_write_u8(w, call->function_size);
    wfi_write_bytes(w, call->function, call->function_size);
    wfi_write_blob(w, recording_room, recording.size);
    if (call->span.trace) {
        wfi_write_u64(w, call->span.trace);
        wfi_write_u64(w, call->span.id);
        wfi_write_u64(w, call->span.left_ns);
    }
    if (call->remote) {
        wfi_reference_write_name(w, &call->remote->name);
        wfi_write_u64(w, call->remote->fork);
    }
}

/* Finds the peer: one incarnation of the rank, which must be alive; none for this worker's own rank. The store counts
 * incarnations for all ranks together, so a smaller number joined earlier. [agent lock] */
static weft_status find_peer(wfi_request *call, int rank, const wfi_call_spec *spec)
{
    uint32_t incarnation = spec->to.incarnation;
    uint32_t ours = wfi_net_member(call->agent->net, wfi_agent_rank(call->agent))->incarnation;
    bool is_here = rank == wfi_agent_rank(call->agent);
    call->peer = wfi_net_peer(call->agent->net, rank);
    call->results.peer = call->peer;
    if (is_here && (!incarnation || incarnation == ours))
        return WEFT_OK;
    if (!call->peer && incarnation) /* joined before this worker: it would be in the table if it were alive */
        return incarnation < ours ? WEFT_ERR_PEER_DEAD : WEFT_ERR_UNREACHABLE;
    if (!call->peer)
        return WEFT_ERR_NOT_FOUND;
    if (incarnation && incarnation != wfi_peer_incarnation(call->peer))
        return incarnation > wfi_peer_incarnation(call->peer)
                   ? WEFT_ERR_UNREACHABLE
                   : wfi_net_former_status(call->agent->net, rank, incarnation);
    weft_status status = wfi_peer_status(call->peer);
    if (status || !wfi_peer_is_leaving(call->peer))
        return status;
    /* A worker that is leaving needs some of weft's own calls to end. It also waits for the calls that it has made, and
     * so for those that their handlers make. */
    const weft_call *parent = *spec->parent;
    bool is_ours = strncmp(call->function, "weft:", 5) == 0;
    return is_ours || (parent && parent->peer == call->peer) ? WEFT_OK : WEFT_ERR_PEER_LEFT;
}

weft_status wfi_call_limit(weft_agent *agent, wfi_call_spec *spec, uint64_t now, uint64_t *deadline_ns)
{
    const weft_call *parent = *spec->parent;
    int64_t timeout_ms = spec->options->timeout_ms;
    if (!spec->deadline_ns)
        spec->deadline_ns = wfi_deadline_after(now, timeout_ms ? timeout_ms : agent->call_timeout_ms);
    weft_status status = parent ? wfi_parent_status(parent) : WEFT_OK;
    *deadline_ns = spec->deadline_ns;
    if (parent && parent->deadline_ns < *deadline_ns)
        *deadline_ns = parent->deadline_ns;
    return !status && now >= *deadline_ns ? WEFT_ERR_TIMEOUT : status;
}

/* Writes the message, and exposes the memory that the callee is to read and write. [agent lock] */
static weft_status seal(wfi_request *call, wfi_recording_source *source, uint64_t timeout_ns)
{
    const wfi_encoded *body = &call->arguments.body;
    weft_status status = call->remote ? wfi_rref_launch(call->remote, call->peer) : WEFT_OK;
    if (!status && source)
        status = wfi_recording_ops_get()->open(source, call->peer, &call->recording);
    if (!status && source)
        status =
            wfi_recording_ops_get()->add_sends(call->recording, call->peer, body->linked, body->linked_count, NULL);
    if (!status)
        status = expose_landing(call);
    if (status)
        return status;
    write_header(call, timeout_ns);
    assert(!call->header.failed && "HEADER_BYTES");
    return wfi_outbound_publish(&call->arguments, call->peer, &call->header);
}

/* Queues the message. [agent lock] */
static weft_status post(wfi_request *call)
{
    /* `keeps`: memory of the call besides the bytes of the message, counted until the peer has received it. */
    const wfi_writer *meta = &call->arguments.body.meta;
    size_t place = sizeof(*call->land) + (call->land_exposures ? sizeof(*call->land_exposures) : 0);
    size_t in_message = (call->arguments.frame ? 0 : call->header.size) + (meta->in_room ? meta->size : 0);
    size_t block = sizeof(*call) + HEADER_BYTES + 2 * (size_t)call->function_size + 1;
    wfi_message *message = &call->message;
    *message = (wfi_message){.type = WFI_RPC_CALL,
                             .exempt = true, /* launch has checked the queue, unless wfi_call_spec.exempt */
                             .keeps = block + COMPANY_BYTES + call->land_count * place + call->arguments.small_bytes -
                                      in_message,
                             .done = message_done};
    wfi_outbound_fill(&call->arguments, &call->header, message);
    weft_status status = wfi_peer_send(call->peer, message);
    if (status)
        return status;
    call->message_out = true;
    call->holds++;
    wfi_peer_ref(call->peer);
    if (call->remote)
        wfi_rref_launched(call->remote);
    call->kept_bytes = call->arguments.copied_bytes;
    wfi_peer_depend(call->peer, 1, call->kept_bytes);
    return WEFT_OK;
}

/* The call is on its way: sets the timer and the canceller, and counts the call. [agent lock] */
static void watch(wfi_request *call, uint64_t deadline_ns)
{
    weft_agent *agent = call->agent;
    wfi_observe_sent(agent, &call->span);
    wfi_future_set_canceller(call->future, &wfi_call_canceller, agent, call->id);
    agent->stats.calls_started++;
    agent->stats.bytes_packed += call->arguments.body.packed_bytes;
    agent->stats.bytes_copied += call->arguments.body.copied_bytes;
    call->child.parent_ended = parent_ended;
    wfi_child_join(&call->child, call->child.parent);
    call->timer.fire = timer_fired;
    /* Without a timer the call could hang, so it fails now. */
    if (deadline_ns != WFI_NEVER && wfi_net_timer_set(agent->net, &call->timer, deadline_ns))
        wfi_call_fail(call, WEFT_ERR_MEMORY, "no memory for the call's timer");
}

/* Starts a prepared call. On failure no table has an entry of it. [agent lock] */
static weft_status launch(wfi_request *call, int rank, wfi_call_spec *spec)
{
    weft_agent *agent = call->agent;
    uint64_t now = wfi_net_now(agent->net), deadline_ns;
    weft_status status = wfi_agent_usable(agent);
    if (!status)
        status = find_peer(call, rank, spec);
    if (!status) {
        spec->kept_bytes = call->peer ? wfi_peer_kept_bytes(call->peer) : 0;
        status = wfi_call_limit(agent, spec, now, &deadline_ns);
    }
    if (status)
        return status;
    call->limit_ns = deadline_ns - now;
    if (!call->span.begun_ns) /* set before if it waited for room in the queue */
        call->span.begun_ns = now;
    if (!spec->exempt && call->peer && !wfi_peer_has_room(call->peer))
        return WEFT_ERR_AGAIN;
    if (!agent->next_call_id) /* the upper bits: no id equals one of a former incarnation */
        agent->next_call_id = (uint64_t)wfi_net_member(agent->net, wfi_agent_rank(agent))->incarnation << 40;
    call->id = ++agent->next_call_id;
    call->child.parent = (weft_call *)*spec->parent; /* watch adds it to the parent's children */
    wfi_observe_started(agent, &call->span, call->child.parent ? &call->child.parent->span : NULL);
    if (call->peer)
        status = wfi_notifications_promise(agent, 2, &call->notifications);
    if (!status && call->peer)
        status = seal(call, spec->source, deadline_ns == WFI_NEVER ? WFI_TIMEOUT_NEVER : deadline_ns - now);
    if (!status)
        status = wfi_map_put(&agent->calls, call->id, call);
    if (status)
        goto withdraw;
    status = call->peer ? post(call) : wfi_local_send(call, deadline_ns);
    if (status)
        goto forget;
    watch(call, deadline_ns);
    return WEFT_OK;
forget:
    wfi_map_take(&agent->calls, call->id);
withdraw:
    wfi_call_withdraw(call, true); /* the peer was not told of the exposures */
    wfi_notifications_release(agent, &call->notifications);
    return status;
}

/* ---- Waiting for room -------------------------------------------------------------------------------------------- */

/* A thread that waits until the queue to a peer has room. It is on the thread's stack. */
typedef struct room_wait {
    wfi_room_waiter room;
    wfi_child child; /* of the served call that the new call is made for: the end of that call ends the wait */
    weft_status end; /* why that call ended before it was answered */
    wfi_parker parker;
} room_wait;

static void room_came(wfi_done *done)
{
    wfi_unpark(&wfi_container_of(done, room_wait, room.woken)->parker);
}

static void parent_ended_wait(wfi_child *child, weft_status why, const char *text)
{
    room_wait *wait = wfi_container_of(child, room_wait, child);
    (void)text;
    wait->end = why;
    if (why)
        wfi_unpark(&wait->parker);
}

/* Waits until there may be room, the deadline passes, or the parent call ends. Returns WEFT_OK, WEFT_ERR_DEADLOCK if
 * the thread must not wait, or why the parent ended. [agent lock], released while it waits */
static weft_status sleep_until_room(wfi_request *call, wfi_call_spec *spec, room_wait *wait)
{
    weft_agent *agent = call->agent;
    wfi_driver *driver = wfi_net_driver(agent->net);
    uint64_t deadline_ns;
    weft_status status = wfi_call_limit(agent, spec, wfi_net_now(agent->net), &deadline_ns);
    if (status)
        return status;
    spec->waited = true;
    wfi_parker_init(&wait->parker);
    wfi_room_await(&wait->room, call->peer);
    wfi_child_join(&wait->child, (weft_call *)*spec->parent);
    wfi_net_unlock(agent->net);
    wfi_executor_block_begin(); /* another thread replaces this one: making room may need a thread */
    bool can_wait = wfi_driver_suits(driver) && driver->drive(driver, &wait->parker, deadline_ns);
    wfi_executor_block_end();
    wfi_net_lock(agent->net);
    wfi_child_leave(&wait->child);
    return can_wait ? wait->end : WEFT_ERR_DEADLOCK;
}

/* `prepared`: what was registered for the call, which is released in any case; or NULL. */
static weft_status launch_when_there_is_room(wfi_request *call, int rank, wfi_call_spec *spec, wfi_prepared *prepared)
{
    room_wait wait = {.room.woken.run = room_came, .child.parent_ended = parent_ended_wait};
    wfi_net_lock(call->agent->net);
    weft_status status = launch(call, rank, spec);
    while (status == WEFT_ERR_AGAIN && spec->options->wait_for_room) {
        if (prepared)
            wfi_prepared_put(prepared); /* the wait may take long */
        status = sleep_until_room(call, spec, &wait);
        if (!status && prepared) {
            wfi_net_unlock(call->agent->net);
            status = wfi_prepared_open(prepared);
            wfi_net_lock(call->agent->net);
        }
        if (!status)
            status = launch(call, rank, spec);
    }
    wfi_room_leave(&wait.room);
    if (prepared)
        wfi_prepared_put(prepared);
    wfi_net_unlock(call->agent->net);
    return status;
}

/* ---- Registering memory ------------------------------------------------------------------------------------------ */

/* Most bytes that expose_landing adds to the metadata. */
static size_t landing_room(const wfi_request *call)
{
    return call->arguments.shared ? 0 : sizeof(uint32_t) + call->land_count * WFI_LANDING_BYTES;
}

/* Registers the arguments and landing places without the lock: that takes long. On failure nothing is in use. */
static weft_status register_memory(wfi_request *call, int rank, wfi_prepared *prepared)
{
    *prepared = (wfi_prepared){0};
    wfi_net_lock(call->agent->net);
    const wfi_peer *peer = wfi_net_peer(call->agent->net, rank);
    if (peer) {
        wfi_prepared_begin(prepared, peer);
        wfi_outbound_prepare(&call->arguments, landing_room(call), prepared);
    }
    for (size_t i = 0; peer && i < call->land_count && wfi_peer_can_push(peer); i++)
        if (may_be_pushed(call->land[i]))
            wfi_prepared_want(prepared, call->land[i]->storage, WFI_REMOTE_WRITE);
    wfi_net_unlock(call->agent->net);
    weft_status status = wfi_prepared_open(prepared);
    if (status)
        wfi_prepared_put(prepared);
    return status;
}

/* ---- Preparing --------------------------------------------------------------------------------------------------- */

static wfi_encode_options encode_options(const weft_agent *agent, const wfi_call_spec *spec)
{
    wfi_encode_options how = {
        .context = spec->source, .pass = wfi_rref_pass, .names_devices = spec->devices || wfi_devices_map_cpu(agent)};
    if (spec->source)
        how.is_linked = wfi_recording_ops_get()->is_linked;
    return how;
}

/* Waits until a further call may be staged: the page-locked memory of all is at most memory_budget_bytes.
 * WEFT_ERR_AGAIN: it is more, and spec does not wait for room. WEFT_ERR_DEADLOCK, or why the call cannot start. */
static weft_status await_staging_room(weft_agent *agent, const wfi_call_spec *spec)
{
    wfi_driver *driver = wfi_net_driver(agent->net);
    wfi_parker parker;
    wfi_call_spec timed = *spec;
    uint64_t deadline_ns;
    wfi_net_lock(agent->net);
    weft_status status = wfi_call_limit(agent, &timed, wfi_now(wfi_net_clock(agent->net)), &deadline_ns);
    while (!status && !spec->exempt && atomic_load(&agent->staged_bytes) >= agent->options.values.memory_budget_bytes) {
        if (!spec->options->wait_for_room) {
            status = WEFT_ERR_AGAIN;
        } else {
            wfi_parker_init(&parker);
            wfi_list_push_back(&agent->room_waiters, &parker.link);
            wfi_net_unlock(agent->net);
            wfi_executor_block_begin(); /* another thread replaces this one */
            bool can_wait = wfi_driver_suits(driver) && driver->drive(driver, &parker, deadline_ns);
            wfi_executor_block_end();
            wfi_net_lock(agent->net);
            wfi_list_remove(&parker.link);
            if (!can_wait)
                status = WEFT_ERR_DEADLOCK;
            else if (wfi_now(wfi_net_clock(agent->net)) >= deadline_ns)
                status = WEFT_ERR_TIMEOUT;
            else
                status = wfi_agent_usable(agent);
        }
    }
    wfi_net_unlock(agent->net);
    return status;
}

weft_status wfi_spec_pack(weft_agent *agent, const wfi_call_spec *spec)
{
    if (*spec->packed)
        return WEFT_OK;
    wfi_encode_options how = encode_options(agent, spec);
    bool stages = wfi_storage_devices_used() && wfi_values_on_device(spec->arguments);
    weft_status status = stages ? await_staging_room(agent, spec) : WEFT_OK;
    if (!status)
        status = wfi_shared_body_create(spec->arguments, &how, spec->packed);
    if (!status)
        status = wfi_shared_body_stage(*spec->packed, agent);
    if (status)
        return status;
    wfi_net_lock(agent->net);
    agent->stats.bytes_packed += wfi_shared_body_get(*spec->packed)->packed_bytes;
    agent->stats.bytes_copied += wfi_shared_body_get(*spec->packed)->copied_bytes;
    wfi_net_unlock(agent->net);
    return WEFT_OK;
}

static weft_status pack_arguments(wfi_request *call, int rank, const wfi_call_spec *spec)
{
    wfi_encode_options how = encode_options(call->agent, spec);
    char problem[WFI_DEVICE_PROBLEM];   /* wfi_spec_explain finds it again */
    how.room = call->results.room.meta; /* unused until the reply, whose frame acknowledges the message */
    weft_status status =
        spec->packed ? wfi_spec_pack(call->agent, spec) : wfi_encode(&call->arguments.body, spec->arguments, &how);
    if (!status && spec->packed)
        status = wfi_outbound_share(&call->arguments, *spec->packed);
    assert(status || !wfi_encoded_leaves_device(&call->arguments.body) || spec->packed);
    if (!status)
        status = wfi_outbound_address(&call->arguments, call->agent, rank, spec->devices, problem, sizeof(problem));
    return status ? status : wfi_outbound_check(&call->arguments, call->agent->net, rank);
}

static weft_status prepare(wfi_request *call, int rank, const wfi_call_spec *spec)
{
    wfi_list_init(&call->child.link);
    call->holds = 1;
    call->results.agent = call->agent;
    call->remote = weft_rref_ref(spec->remote);
    call->is_attempt = spec->is_attempt;
    if (spec->within) {
        call->span.trace = spec->within->trace;
        call->span.parent = spec->within->id;
    }
    call->future = wfi_agent_future(call->agent);
    if (spec->options->on_item)
        call->items = wfi_items_in_create(call, spec->options);
    if (!call->future || (spec->options->on_item && !call->items))
        return WEFT_ERR_MEMORY;
    bool is_here = rank == wfi_agent_rank(call->agent);
    weft_status status = is_here ? wfi_local_prepare(call, spec) : pack_arguments(call, rank, spec);
    return status ? status : take_landing(call, rank, spec->options->land);
}

weft_status wfi_call_start(weft_agent *agent, int rank, wfi_call_spec *spec, weft_future **out)
{
    size_t name_size = strlen(spec->function); /* wfi_spec_check has limited it */
    size_t land_count = spec->options->land.count;
    if (land_count > WEFT_MAX_CALL_TENSORS)
        return WEFT_ERR_TOO_LARGE;
    size_t land_bytes = land_count * sizeof(weft_tensor *);
    wfi_request *call = wfi_calloc(1, sizeof(*call) + land_bytes + name_size + 1 + HEADER_BYTES + name_size);
    if (!call)
        return WEFT_ERR_MEMORY;
    call->function = (char *)call->land + land_bytes;
    call->function_size = (uint8_t)name_size;
    memcpy(call->function, spec->function, name_size + 1);
    wfi_writer_init(&call->header, call->function + name_size + 1, HEADER_BYTES + name_size);
    call->agent = wfi_agent_ref(agent);
    weft_status status = prepare(call, rank, spec);
    weft_future *future = weft_future_ref(call->future);
    wfi_prepared prepared; /* set if `registers` */
    bool registers = !status && (wfi_outbound_registers(&call->arguments, agent->net, landing_room(call)) ||
                                 (call->land_exposures && wfi_net_registers(agent->net)));
    if (registers)
        status = register_memory(call, rank, &prepared);
    if (!status)
        status = launch_when_there_is_room(call, rank, spec, registers ? &prepared : NULL);
    if (registers)
        wfi_prepared_fini(&prepared);
    if (status) {
        weft_future_unref(future);
        wfi_call_free(call);
        return status;
    }
    *out = future;
    return WEFT_OK;
}

/* ---- The target -------------------------------------------------------------------------------------------------- */

int wfi_target_resolve(weft_agent *agent, weft_target to, const char *function, weft_error **error)
{
    wfi_error_detail unknown = {.code = WEFT_ERR_NOT_FOUND, .function = function, .worker = -1};
    int rank = to.name && !agent->forked ? wfi_agent_find(agent, to.name, true) : to.name ? -1 : to.rank;
    if (rank >= 0 && rank < wfi_net_world_size(agent->net))
        return rank;
    if (!to.name && to.rank == WEFT_NAME_NULL) {
        wfi_error_detail no_name = {.code = WEFT_ERR_INVALID, .function = function, .worker = -1};
        *error = wfi_error_create(&no_name, "the name of the worker to be called is NULL");
        return -1;
    }
    weft_status gone = weft_agent_status(agent); /* out of the job no worker can be found by name */
    wfi_error_detail out_of_job = {.code = gone, .function = function, .worker = -1};
    if (to.name && gone)
        *error = wfi_error_create(&out_of_job, "worker \"%s\" cannot be called: %s", to.name, weft_status_text(gone));
    else if (to.name)
        *error = wfi_error_create(&unknown, "no worker is named \"%s\"", to.name);
    else
        *error = wfi_error_create(&unknown, "no worker has rank %d: the world size is %d", to.rank,
                                  wfi_net_world_size(agent->net));
    return -1;
}

weft_status wfi_call_begin(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error)
{
    int rank = wfi_target_resolve(agent, spec->to, spec->function, error);
    if (rank < 0)
        return weft_error_code(*error);
    weft_status status = wfi_call_start(agent, rank, spec, out);
    if (status)
        *error = wfi_spec_explain(agent, spec, status, rank);
    return status;
}
