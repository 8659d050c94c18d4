/* SPDX-License-Identifier: Apache-2.0 */
/* end.c - how a call ends: it is completed, fails, or is cancelled, waits for its last items, and is freed. */
#include "rpc/agent/notify.h"
#include "rpc/client/client.h"

#include "base/error.h"
#include "rpc/client/stream.h"
#include "rpc/refs/refs.h"
#include "rpc/server/server.h"
#include "tensor/check.h"

#include <stdlib.h>

/* ---- Items ------------------------------------------------------------------------------------------------------- */

void wfi_items_in_empty(wfi_item_slot *s)
{
    weft_values_unref(s->values);
    s->values = NULL;
    wfi_inbound_fini(&s->inbound);
    s->inbound = (wfi_inbound){0};
}

void wfi_items_in_free(wfi_items_in *items)
{
    if (!items)
        return;
    for (int i = 0; i < WFI_ITEMS_MAX; i++)
        wfi_items_in_empty(&items->slots[i]);
    weft_error_unref(items->error);
    free(items);
}

static bool is_drained(const wfi_items_in *items)
{
    if (items->in_hand)
        return false;
    if (!items->stopped)
        return !items->running && items->known && items->next >= items->expected;
    /* Does not wait for a queued task: it will find nothing to do, and may be queued for a long time. */
    for (int i = 0; i < WFI_ITEMS_MAX; i++)
        if (items->slots[i].state == SLOT_COMING)
            return false;
    return true;
}

void wfi_items_in_complete_call(wfi_items_in *items)
{
    if (!items->waiting || !is_drained(items))
        return;
    weft_error *error = items->error;
    items->error = NULL;
    items->waiting = false;
    wfi_call_complete(items->call, items->values, error, items->peer_done);
    weft_error_unref(error);
}

bool wfi_items_in_wait(wfi_items_in *items, const weft_values *values, const weft_error *error, bool peer_done,
                       bool stop)
{
    if (items->waiting && items->stopped)
        return true;                /* it is failing already */
    weft_error_unref(items->error); /* this end replaces one that waited */
    items->error = NULL;
    items->waiting = false;
    if (stop && !items->stopped) {
        items->stopped = true;
        for (int i = 0; i < WFI_ITEMS_MAX; i++)
            if (items->slots[i].state == SLOT_COMING)
                wfi_inbound_cancel(&items->slots[i].inbound);
    }
    if (is_drained(items))
        return false;
    items->waiting = true;
    items->values = values;
    items->error = error ? weft_error_ref(error) : NULL;
    items->peer_done = peer_done;
    return true;
}

/* ---- Freeing ----------------------------------------------------------------------------------------------------- */

void wfi_call_free(wfi_request *call)
{
    for (size_t i = 0; i < call->land_count; i++)
        weft_tensor_unref(call->land[i]);
    free(call->land_exposures);
    if (call->recording)
        wfi_recording_ops_get()->free(call->recording);
    wfi_serve_discard(call->local);
    wfi_inbound_fini(&call->results);
    wfi_items_in_free(call->items);
    wfi_outbound_fini(&call->arguments);
    wfi_writer_fini(&call->header);
    weft_future_unref(call->future);
    weft_rref_unref(call->remote);
    weft_error_unref(call->failure);
    wfi_agent_unref(call->agent);
    free(call);
}

static void release_task(wfi_task *task)
{
    wfi_call_free(wfi_container_of(task, wfi_request, release));
}

void wfi_call_drop_hold(wfi_request *call)
{
    if (--call->holds)
        return;
    wfi_peer_unref(call->peer);
    call->release.run = release_task;
    wfi_net_defer(call->agent->net, &call->release, WFI_DEFER_RELEASE);
}

int wfi_call_rank(const wfi_request *call)
{
    return call->peer ? wfi_peer_rank(call->peer) : wfi_agent_rank(call->agent);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

void wfi_call_withdraw(wfi_request *call, bool peer_done)
{
    /* Landing places first: if `peer_done` is not set, this closes the bulk connection that the arguments use
     * too. */
    if (call->land_exposed)
        wfi_peer_withdraw(call->peer, call->land_exposures, call->land_exposed, peer_done);
    wfi_outbound_withdraw(&call->arguments, call->peer, peer_done || call->land_exposed);
    call->land_exposed = 0;
}

/* Marks the large landing places as written, even if the call failed: the peer may have pushed a part of the results.
 * The decoder has marked the small ones, whose results were part of the reply. */
static void mark_landing_written(const wfi_request *call)
{
    for (size_t i = 0; call->peer && i < call->land_count; i++)
        if (weft_tensor_nbytes(call->land[i]) > WFI_TINY_TENSOR)
            wfi_storage_wrote(call->land[i]->storage); /* tapes detect that a recorded value has changed */
}

void wfi_call_complete_future(weft_future *future, weft_rref *remote, const weft_values *values,
                              const weft_error *error)
{
    wfi_complete_future(future, values, error);
    if (remote)
        wfi_rref_created(remote, error);
}

void wfi_call_complete(wfi_request *call, const weft_values *values, const weft_error *error, bool peer_done)
{
    weft_agent *agent = call->agent;
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (call->completed ||
        (call->items && wfi_items_in_wait(call->items, values, error, peer_done, call->failure != NULL)))
        return;
    call->completed = true;
    if (call->local)
        call->local->caller = NULL;
    call->local = NULL;
    wfi_map_take(&agent->calls, call->id);
    wfi_net_timer_clear(agent->net, &call->timer);
    wfi_observed seen = {
        .id = call->id, .rank = wfi_call_rank(call), .peer = call->peer, .function = call->function, .error = error};
    wfi_observe_completed(agent, seen, &call->span);
    if (call->peer)
        wfi_peer_depend(call->peer, -1, call->kept_bytes);
    wfi_notifications_release(agent, &call->notifications);
    wfi_child_end(&call->child, call->is_attempt ? NULL : error);
    if (!error)
        agent->stats.bytes_sent += call->arguments.exposed_bytes;
    wfi_call_withdraw(call, peer_done);
    mark_landing_written(call);
    if (call->message_out && wfi_peer_unsend(call->peer, &call->message)) {
        call->message_out = false;
        wfi_call_drop_hold(call);
    }
    agent->stats.calls_finished++;
    agent->stats.calls_failed += error != NULL;
    wfi_call_complete_future(call->future, call->is_attempt ? NULL : call->remote, values, error);
    wfi_call_drop_hold(call);
}

/* ---- A call to this worker itself, given up ---------------------------------------------------------------------- */

/* Whether the handler, or the code that finishes its deferred call, may still read the arguments. While the agent
 * closes only a running handler counts: a deferred call that keeps its arguments may never be finished. [agent lock] */
static bool is_read(const weft_call *call)
{
    const weft_agent *agent = call->agent;
    if (!call->begun || call->stage == WFI_SERVE_ANSWERING)
        return false;
    if (!call->has_returned && !(call->batch_returned && *call->batch_returned))
        return true; /* the handler runs; only it may write the fields that are read below */
    return (call->keep_arguments || call->batch_returned) && !agent->closing && !agent->stopped;
}

/* The arguments may have been let go: a call that has failed ends. [agent lock] */
void wfi_local_let_go(weft_call *call)
{
    wfi_request *request = call->caller;
    if (request && request->failure && !is_read(call))
        wfi_call_complete(request, NULL, request->failure, true);
}

static void give_up(wfi_request *request, weft_status why, const char *text)
{
    weft_call *call = request->local;
    if (!call) { /* it was answered, and waits for its items */
        wfi_call_complete(request, NULL, request->failure, true);
        return;
    }
    call->cancelled = true;
    wfi_local_let_go(call);
    wfi_serve_uncount(call); /* closing does not wait for it */
    wfi_serve_cancel(call, why, text);
}

void wfi_local_complete_returned(weft_agent *agent)
{
    size_t cursor = 0;
    for (weft_call *call; (call = wfi_map_next(&agent->peers[wfi_agent_rank(agent)].serving, &cursor, NULL));)
        wfi_local_let_go(call);
}

/* ---- Failing ----------------------------------------------------------------------------------------------------- */

/* Takes the message back if it was not sent. Returns whether the callee may have it, or may still get it. */
static bool may_have_been_sent(wfi_request *call)
{
    if (call->message_out && wfi_peer_unsend(call->peer, &call->message)) {
        call->message_out = false;
        wfi_call_drop_hold(call);
    }
    if (call->peer)
        return call->message.net.sequence != 0; /* net numbers the messages that it sends */
    return !call->local || call->local->begun;  /* NULL: it was answered, and waits for its items */
}

static void post_cancel(wfi_request *call, weft_status why)
{
    uint8_t room[9];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_write_u64(&writer, call->id);
    wfi_write_u8(&writer, why == WEFT_ERR_TIMEOUT);
    wfi_post(call->agent, call->peer, WFI_RPC_CANCEL, &writer, &call->notifications);
}

void wfi_call_abort(wfi_request *call, weft_error *error)
{
    if (call->completed || call->failure) {
        weft_error_unref(error);
        return;
    }
    bool sent = may_have_been_sent(call);
    call->failure = error;
    if (sent && wfi_peer_status(call->peer) == WEFT_OK && !call->agent->stopped)
        post_cancel(call, weft_error_code(error));
    if (wfi_inbound_busy(&call->results))
        wfi_inbound_cancel(&call->results); /* results_ready ends the call when nothing is in flight */
    else
        wfi_call_complete(call, NULL, error, !sent); /* if it was not sent, the peer does not know the exposures */
}

void wfi_call_fail(wfi_request *call, weft_status why, const char *text)
{
    if (call->completed || call->failure || call->landing)
        return;
    wfi_error_detail detail = {.code = why, .function = call->function, .worker = wfi_call_rank(call)};
    detail.remote_code = may_have_been_sent(call) ? WEFT_ERR_UNKNOWN : WEFT_OK;
    weft_error *error = wfi_error_create(&detail, "%s", text);
    if (call->peer) {
        wfi_call_abort(call, error);
    } else {
        call->failure = error;
        give_up(call, why, text);
    }
}

static void hold_agent(void *owner)
{
    wfi_agent_ref(owner);
}

static void cancel_by_id(void *owner, uint64_t id)
{
    weft_agent *agent = owner;
    if (wfi_agent_enter_locked(agent)) {
        wfi_request *call = wfi_map_get(&agent->calls, id);
        if (call)
            wfi_call_fail(call, WEFT_ERR_CANCELLED, "the caller cancelled it");
        wfi_agent_leave_locked(agent);
    }
    wfi_agent_unref(agent);
}

/* The call holds its agent until its future is complete. After that its id is not in the table, and cancelling is a
 * no-op. */
const wfi_canceller wfi_call_canceller = {.hold = hold_agent, .cancel = cancel_by_id};
