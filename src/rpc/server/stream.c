/* SPDX-License-Identifier: Apache-2.0 */
/* server/stream.c - sends items of results to the caller; see server/stream.h. */
#include "base/alloc.h"
#include "rpc/agent/budget.h"
#include "rpc/payload/explain.h"
#include "rpc/server/stream.h"
#include "value/value.h"

#include <stdlib.h>

/* One item. It holds its call. It is freed when net has released its message and the caller has sent TOOK. Guarded by
 * the agent's lock once it was sent. */
typedef struct item_out {
    wfi_list link;
    weft_call *call;
    uint32_t number;
    uint64_t kept; /* bytes against the budget */
    wfi_outbound outbound;
    wfi_writer header;
    wfi_message message;
    bool message_out, ended;
    bool is_staging; /* its tensors are being copied from devices; then it is sent */
    wfi_task release;
} item_out;

weft_status wfi_items_out_create(wfi_items_out **out)
{
    wfi_items_out *items = wfi_calloc(1, sizeof(*items));
    if (!items)
        return WEFT_ERR_MEMORY;
    wfi_list_init(&items->waiting);
    *out = items;
    return WEFT_OK;
}

uint32_t wfi_items_out_count(const weft_call *call)
{
    const wfi_items_out *items = call->items;
    return !items ? 0 : items->failure ? items->failed_item : items->sent;
}

/* ---- Ending items ------------------------------------------------------------------------------------------------ */

static void free_item(item_out *item)
{
    wfi_outbound_fini(&item->outbound);
    wfi_writer_fini(&item->header);
    free(item);
}

static void release_item(wfi_task *task)
{
    free_item(wfi_container_of(task, item_out, release));
}

static void free_if_ended(item_out *item)
{
    if (!item->ended || item->message_out || item->is_staging)
        return;
    wfi_net *net = item->call->agent->net;
    item->release.run = release_item;
    wfi_net_defer(net, &item->release, WFI_DEFER_RELEASE);
    wfi_serve_drop_hold(item->call);
}

static void item_gone(wfi_message *message, weft_status status)
{
    item_out *item = wfi_container_of(message, item_out, message);
    (void)status; /* if it never arrived, the peer is gone, which ends the call */
    item->message_out = false;
    free_if_ended(item);
}

static void end_item(item_out *item)
{
    weft_agent *agent = item->call->agent;
    wfi_outbound_withdraw(&item->outbound, item->call->peer, true);
    wfi_budget_keep_item(agent, -(int64_t)item->kept);
    wfi_list_remove(&item->link);
    item->call->items->count--;
    item->ended = true;
    free_if_ended(item);
}

void wfi_items_out_took(weft_call *call, uint32_t number)
{
    if (!call->items)
        return;
    WFI_FOR_LIST (item_out, item, &call->items->waiting, link) {
        if (item->number != number)
            continue;
        call->agent->stats.bytes_sent += item->outbound.exposed_bytes;
        end_item(item);
        return;
    }
}

void wfi_items_out_drop(weft_call *call)
{
    if (!call->items)
        return;
    while (!wfi_list_empty(&call->items->waiting)) {
        item_out *item = wfi_container_of(call->items->waiting.next, item_out, link);
        if (item->message_out && wfi_peer_unsend(call->peer, &item->message))
            item->message_out = false;
        end_item(item);
    }
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

weft_status wfi_items_may_send(const weft_call *call)
{
    if (call->stage != WFI_SERVE_SERVING)
        return WEFT_ERR_STATE;
    return call->cancelled || weft_call_cancelled(call) ? WEFT_ERR_CANCELLED : WEFT_OK;
}

/* [agent lock] */
static weft_status may_send(const weft_call *call)
{
    weft_status status = call->items ? wfi_items_may_send(call) : WEFT_ERR_STATE;
    return !status && call->items->count >= WFI_ITEMS_MAX ? WEFT_ERR_AGAIN : status;
}

/* Recorded tensors get numbers; the header has the first one. */
static weft_status write_header(weft_call *call, item_out *item)
{
    const wfi_encoded *body = &item->outbound.body;
    uint64_t first = 0;
    weft_status status =
        body->linked_count
            ? wfi_recording_ops_get()->add_sends(call->recording, call->peer, body->linked, body->linked_count, &first)
            : WEFT_OK;
    wfi_write_u64(&item->header, call->id);
    wfi_write_u32(&item->header, item->number);
    wfi_write_u8(&item->header, body->linked_count ? WFI_ITEM_LINKED : 0);
    if (body->linked_count)
        wfi_write_u64(&item->header, first);
    return status;
}

/* Counts the item: from here on the caller waits for it. [agent lock] */
static void admit(weft_call *call, item_out *item)
{
    item->call = call;
    item->number = call->items->sent++;
    item->kept = wfi_outbound_bytes(&item->outbound);
    call->holds++;
    call->items->count++;
    wfi_list_push_back(&call->items->waiting, &item->link);
    wfi_budget_keep_item(call->agent, (int64_t)item->kept);
    call->agent->stats.bytes_packed += item->outbound.body.packed_bytes;
    call->agent->stats.bytes_copied += item->outbound.body.copied_bytes;
}

/* [agent lock] */
static weft_status send_locked(weft_call *call, item_out *item)
{
    weft_status status = !item->call ? may_send(call) : item->ended ? WEFT_ERR_CANCELLED : WEFT_OK;
    if (status)
        return status;
    if (!item->call)
        item->number = call->items->sent;
    status = write_header(call, item);
    if (status)
        return status;
    status = wfi_outbound_publish(&item->outbound, call->peer, &item->header);
    if (status)
        return status;
    /* Like a reply: after the calls that make the references in it, or before all queued calls. */
    item->message = (wfi_message){.type = WFI_RPC_ITEM, .exempt = true, .persistent = true, .done = item_gone};
    wfi_outbound_fill(&item->outbound, &item->header, &item->message);
    item->message.urgent = !item->outbound.body.rref_count && wfi_message_size(&item->message) <= WFI_MESSAGE_MAX;
    status = wfi_peer_send(call->peer, &item->message);
    if (status) {
        wfi_outbound_withdraw(&item->outbound, call->peer, true); /* the peer has not been told of the exposures */
        return status;
    }
    item->message_out = true;
    if (!item->call)
        admit(call, item);
    return WEFT_OK;
}

/* Registers the item's memory without the lock, which takes long, and sends it. */
static weft_status register_and_send(weft_call *call, item_out *item)
{
    wfi_net *net = call->agent->net;
    wfi_prepared prepared = {0};
    weft_status status = WEFT_OK;
    if (wfi_outbound_registers(&item->outbound, net, 0)) {
        wfi_net_lock(net);
        wfi_prepared_begin(&prepared, call->peer);
        wfi_outbound_prepare(&item->outbound, 0, &prepared);
        wfi_net_unlock(net);
        status = wfi_prepared_open(&prepared);
    }
    wfi_net_lock(net);
    if (!status)
        status = send_locked(call, item);
    wfi_prepared_put(&prepared);
    wfi_net_unlock(net);
    wfi_prepared_fini(&prepared);
    return status;
}

/* ---- Tensors of devices ------------------------------------------------------------------------------------------ */

/* Sends an item whose tensors have been copied from their devices. If that fails, the call does: its caller would wait
 * for the item. */
static void send_copied_item(void *owner)
{
    item_out *item = owner;
    weft_call *call = item->call;
    weft_agent *agent = call->agent;
    wfi_items_out *items = call->items;
    weft_status status = item->outbound.staging->status;
    wfi_encode_copied(&item->outbound.body);
    if (!status)
        status = register_and_send(call, item);
    wfi_net_lock(agent->net);
    item->is_staging = false;
    bool has_failed = status && !item->ended; /* otherwise the call was cancelled */
    if (has_failed && (!items->failure || item->number < items->failed_item)) {
        weft_error_unref(items->failure);
        items->failure =
            wfi_call_error(call, status, "item %u could not be sent: %s", item->number, weft_status_text(status));
        items->failed_item = item->number;
    }
    if (has_failed)
        end_item(item);
    else
        free_if_ended(item);
    items->staging--;
    bool answers_now = !items->staging && items->answer_waits;
    items->answer_waits &= !answers_now;
    wfi_net_unlock(agent->net);
    if (answers_now)
        call->responder->respond(call); /* the user's hold keeps the call */
}

/* Admits an item that is sent when its tensors have been copied. */
static weft_status send_later(weft_call *call, item_out *item)
{
    wfi_net *net = call->agent->net;
    wfi_net_lock(net);
    weft_status status = may_send(call);
    bool waits = false;
    if (!status) {
        admit(call, item);
        item->is_staging = true;
        call->items->staging++;
        waits = wfi_staging_then(item->outbound.staging, send_copied_item, item);
    }
    wfi_net_unlock(net);
    if (!status && !waits)
        send_copied_item(item);
    return status;
}

bool wfi_items_out_delay_answer(weft_call *call)
{
    wfi_items_out *items = call->items;
    if (!items)
        return false;
    wfi_net_lock(call->agent->net);
    items->answer_waits = items->staging > 0;
    bool delays = items->answer_waits;
    if (!delays && items->failure && !call->error)
        call->error = weft_error_ref(items->failure);
    wfi_net_unlock(call->agent->net);
    return delays;
}

weft_status wfi_items_out_send(weft_call *call, weft_args values)
{
    wfi_net *net = call->agent->net;
    wfi_net_lock(net);
    weft_status status = may_send(call); /* before anything is packed */
    wfi_net_unlock(net);
    if (status)
        return status;
    item_out *item = wfi_calloc(1, sizeof(*item));
    if (!item)
        return WEFT_ERR_MEMORY;
    wfi_writer_init_growing(&item->header);
    wfi_encode_options how = {.pass = wfi_rref_pass};
    if (call->recording) {
        how.is_linked = wfi_recording_ops_get()->is_linked;
        how.context = wfi_recording_ops_get()->source(call->recording);
    }
    status = wfi_encode(&item->outbound.body, values, &how);
    if (!status)
        status = wfi_outbound_check(&item->outbound, call->agent->net, call->from);
    if (!status) {
        wfi_encode_landing_count(&item->outbound.body, 0);
        status = wfi_stage(&item->outbound.body, call->agent, &item->outbound.staging);
    }
    if (!status)
        status = item->outbound.staging ? send_later(call, item) : register_and_send(call, item);
    if (status)
        free_item(item);
    return status;
}

/* Notes why an item was not sent: if the handler returns this status, the call fails with this text. */
static void note_refusal(weft_call *call, weft_args item, weft_status status)
{
    weft_error *error = status == WEFT_ERR_STATE
                            ? weft_error_create(status, "an item: the caller accepts no items (on_item), or its "
                                                        "distributed context is closed")
                        : status == WEFT_ERR_AGAIN
                            ? weft_error_create(status, "an item: %d items of this call are in flight", WFI_ITEMS_MAX)
                            : wfi_explain_values(call->agent, item, status);
    wfi_net_lock(call->agent->net);
    wfi_parent_note(call, error);
    wfi_net_unlock(call->agent->net);
    if (status == WEFT_ERR_INVALID || status == WEFT_ERR_TOO_LARGE) /* not if the caller accepts no items, as it may */
        (void)wfi_refuse(status, "weft_call_send_item: %s", weft_error_message(error));
    weft_error_unref(error);
}

weft_status weft_call_send_item(weft_call *call, weft_args item)
{
    WFI_CHECK_HANDLE(call);
    if (!call)
        return wfi_refuse_null("weft_call_send_item", "the call");
    if (!wfi_agent_enter(call->agent))
        return WEFT_ERR_CANCELLED;
    if (call->slot.publish)
        call->slot.publish(call->slot.value); /* before the receiver can use tensors of the item */
    weft_status status = wfi_args_are_readable(item) ? call->responder->send_item(call, item) : WEFT_ERR_INVALID;
    if (status && status != WEFT_ERR_CANCELLED)
        note_refusal(call, item, status);
    wfi_agent_leave(call->agent);
    return status;
}
