/* SPDX-License-Identifier: Apache-2.0 */
/* server/stream.c - parts of results on their way to the caller; see server/stream.h. */
#include "base/alloc.h"
#include "rpc/agent/budget.h"
#include "rpc/server/stream.h"
#include "value/value.h"

#include "tensor/tensor.h"

#include <stdlib.h>

/* One part; guarded by the agent's lock once it was sent. It holds its call, and lives until net and the caller let go of it. */
typedef struct part_out {
    wfi_list link;
    weft_call *call;
    uint32_t number;
    uint64_t kept; /* bytes against the budget */
    wfi_outbound outbound;
    wfi_writer header;
    wfi_message message;
    bool message_out, over;
    wfi_task release;
} part_out;

weft_status wfi_parts_out_create(wfi_parts_out **out)
{
    wfi_parts_out *parts = wfi_calloc(1, sizeof *parts);
    if (!parts)
        return WEFT_ERR_MEMORY;
    wfi_list_init(&parts->waiting);
    *out = parts;
    return WEFT_OK;
}

uint32_t wfi_parts_out_count(const weft_call *call)
{
    return call->parts ? call->parts->sent : 0;
}

/* ---- Letting go -------------------------------------------------------------------------------------------------- */

static void free_part(part_out *part)
{
    wfi_outbound_fini(&part->outbound);
    wfi_writer_fini(&part->header);
    free(part);
}

static void release_task(wfi_task *task)
{
    free_part(wfi_container_of(task, part_out, release));
}

static void free_if_over(part_out *part)
{
    if (!part->over || part->message_out)
        return;
    wfi_net *net = part->call->agent->net;
    part->release.run = release_task;
    wfi_net_defer(net, &part->release, WFI_DEFER_RELEASE);
    wfi_serve_drop_hold(part->call);
}

static void message_done(wfi_message *message, weft_status status)
{
    part_out *part = wfi_container_of(message, part_out, message);
    (void)status; /* where it never arrived the peer is gone, which ends the call */
    part->message_out = false;
    free_if_over(part);
}

static void end_part(part_out *part)
{
    weft_agent *agent = part->call->agent;
    wfi_outbound_withdraw(&part->outbound, part->call->peer, true);
    wfi_budget_keep_part(agent, -(int64_t)part->kept);
    wfi_list_remove(&part->link);
    part->call->parts->count--;
    part->over = true;
    free_if_over(part);
}

void wfi_parts_out_took(weft_call *call, uint32_t number)
{
    if (!call->parts)
        return;
    for (wfi_list *link = call->parts->waiting.next; link != &call->parts->waiting; link = link->next) {
        part_out *part = wfi_container_of(link, part_out, link);
        if (part->number != number)
            continue;
        call->agent->stats.bytes_sent += part->outbound.exposed_bytes;
        end_part(part);
        return;
    }
}

void wfi_parts_out_drop(weft_call *call)
{
    if (!call->parts)
        return;
    while (!wfi_list_empty(&call->parts->waiting)) {
        part_out *part = wfi_container_of(call->parts->waiting.next, part_out, link);
        if (part->message_out && wfi_peer_unsend(call->peer, &part->message))
            part->message_out = false;
        end_part(part);
    }
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

weft_status wfi_parts_may_send(const weft_call *call)
{
    if (call->stage != WFI_SERVE_SERVING)
        return WEFT_ERR_STATE;
    return call->cancelled || weft_call_cancelled(call) ? WEFT_ERR_CANCELLED : WEFT_OK;
}

/* [agent lock] */
static weft_status may_send(const weft_call *call)
{
    weft_status st = call->parts ? wfi_parts_may_send(call) : WEFT_ERR_STATE;
    return !st && call->parts->count >= WFI_PARTS_MAX ? WEFT_ERR_AGAIN : st;
}

static weft_status send_locked(weft_call *call, part_out *part)
{
    weft_status st = may_send(call);
    if (st)
        return st;
    part->number = call->parts->sent;
    part->kept = wfi_outbound_bytes(&part->outbound);
    wfi_write_u64(&part->header, call->id);
    wfi_write_u32(&part->header, part->number);
    wfi_write_u8(&part->header, 0);
    st = wfi_outbound_publish(&part->outbound, call->peer, &part->header);
    if (st)
        return st;
    /* As a reply: behind the calls that make the references in it, or ahead of all calls. */
    part->message = (wfi_message){.type = WFI_RPC_PART,
                                  .urgent = !part->outbound.body.rref_count,
                                  .owed = true,
                                  .lasts = true,
                                  .head = part->header.data,
                                  .head_size = part->header.size,
                                  .done = message_done};
    st = wfi_peer_send(call->peer, &part->message);
    if (st) {
        wfi_outbound_withdraw(&part->outbound, call->peer, true); /* nobody was told of them */
        return st;
    }
    part->message_out = true;
    part->call = call;
    call->holds++;
    call->parts->sent++;
    call->parts->count++;
    wfi_list_push_back(&call->parts->waiting, &part->link);
    wfi_budget_keep_part(call->agent, (int64_t)part->kept);
    call->agent->stats.bytes_packed += part->outbound.body.packed_bytes;
    call->agent->stats.bytes_copied += part->outbound.body.copied_bytes;
    return WEFT_OK;
}

weft_status wfi_parts_out_send(weft_call *call, weft_args values)
{
    wfi_net *net = call->agent->net;
    wfi_net_lock(net);
    weft_status st = may_send(call); /* before anything is packed */
    wfi_net_unlock(net);
    if (st)
        return st;
    part_out *part = wfi_calloc(1, sizeof *part);
    if (!part)
        return WEFT_ERR_MEMORY;
    wfi_writer_init_growing(&part->header);
    st = wfi_encode(&part->outbound.body, values, &(wfi_encode_options){0});
    if (!st) {
        wfi_encode_landing_count(&part->outbound.body, 0);
        wfi_net_lock(net);
        st = send_locked(call, part);
        wfi_net_unlock(net);
    }
    if (st)
        free_part(part);
    return st;
}

weft_status weft_call_send_item(weft_call *call, weft_args part)
{
    if (!wfi_args_are_readable(part))
        return WEFT_ERR_INVALID;
    if (!wfi_agent_enter(call->agent))
        return WEFT_ERR_CANCELLED;
    weft_status st = call->responder->send_part(call, part);
    wfi_agent_leave(call->agent);
    return st;
}
