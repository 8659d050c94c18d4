/* SPDX-License-Identifier: Apache-2.0 */
/* client/stream.c - the caller's side of items: pulls them, and calls on_item in order; see server/stream.h. */
#include "base/alloc.h"
#include "rpc/client/stream.h"
#include "rpc/server/stream.h"
#include "rpc/agent/notify.h"

#include "base/error.h"

#include <stdlib.h>

wfi_items_in *wfi_items_in_create(wfi_request *call, const weft_rpc_options *options)
{
    wfi_items_in *items = wfi_calloc(1, sizeof(*items));
    if (!items)
        return NULL;
    items->agent = call->agent;
    items->fn = options->on_item;
    items->arg = options->item_arg;
    items->call = call;
    return items;
}

static wfi_item_slot *slot_of(wfi_items_in *items, uint32_t number)
{
    return &items->slots[number % WFI_ITEMS_MAX];
}

bool wfi_items_in_expect(wfi_items_in *items, uint32_t count)
{
    bool first = !items->known;
    if (first)
        items->expected = count;
    items->known = true;
    return first;
}

void wfi_items_in_expect_given(wfi_items_in *items)
{
    (void)wfi_items_in_expect(items, items->given);
}

/* ---- Calling on_item --------------------------------------------------------------------------------------------- */

static void send_took(const wfi_items_in *items)
{
    uint8_t room[12];
    wfi_writer writer;
    if (!items->call->peer || items->agent->stopped || wfi_peer_status(items->call->peer))
        return;
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_write_u64(&writer, items->call->id);
    wfi_write_u32(&writer, items->next);
    wfi_post_answer(items->agent, items->call->peer, WFI_RPC_TOOK, &writer, &items->call->notifications);
}

/* At most one such task runs. The lock is released while on_item runs. */
static void deliver_all(wfi_task *task)
{
    wfi_items_in *items = wfi_container_of(task, wfi_items_in, task);
    wfi_net *net = items->agent->net;
    wfi_net_lock(net);
    for (wfi_item_slot *s; !items->stopped && (s = slot_of(items, items->next))->state == SLOT_READY;) {
        items->in_hand = true;
        wfi_net_unlock(net);
        items->fn(s->values ? s->values : s->inbound.values, items->arg);
        wfi_items_in_empty(s);
        wfi_net_lock(net);
        items->in_hand = false;
        s->state = SLOT_FREE;
        send_took(items);
        items->next++;
    }
    items->running = false;
    wfi_items_in_complete_call(items);
    wfi_call_drop_hold(items->call);
    wfi_net_unlock(net);
}

static void begin_delivery(wfi_items_in *items)
{
    if (items->running || items->stopped || slot_of(items, items->next)->state != SLOT_READY)
        return;
    items->running = true;
    items->call->holds++;
    items->task.run = deliver_all;
    wfi_net_defer(items->agent->net, &items->task, WFI_DEFER_WORKER);
}

/* ---- Arrival ----------------------------------------------------------------------------------------------------- */

static weft_status receive_recorded(const wfi_item_slot *s)
{
    const wfi_request *call = s->items->call;
    const wfi_decoded *decoded = &s->inbound.decoded;
    if (!decoded->linked_count)
        return WEFT_OK;
    return wfi_recording_ops_get()->add_recvs(call->recording, call->peer, s->linked, s->inbound.values,
                                              decoded->linked, decoded->linked_count);
}

static void item_ready(wfi_inbound *inbound, weft_status status)
{
    wfi_item_slot *s = wfi_container_of(inbound, wfi_item_slot, inbound);
    wfi_items_in *items = s->items;
    wfi_request *call = items->call;
    if (!status && !items->stopped) {
        status = receive_recorded(s);
        if (status)
            snprintf(inbound->problem, sizeof(inbound->problem), "it could not be recorded: %s",
                     weft_status_text(status));
    }
    s->state = status || items->stopped ? SLOT_FREE : SLOT_READY; /* its contents are freed with the call */
    if (items->stopped) {
        wfi_items_in_complete_call(items);
    } else if (status) {
        wfi_error_detail detail = {.code = status,
                                   .remote_code = WEFT_ERR_UNKNOWN, /* the handler has begun */
                                   .function = call->function,
                                   .worker = wfi_peer_rank(call->peer)};
        wfi_call_abort(items->call, wfi_error_create(&detail, "an item of the results: %s", inbound->problem));
    } else {
        begin_delivery(items);
    }
}

void wfi_items_in_on_item(weft_agent *agent, wfi_peer *from, wfi_reader *reader)
{
    uint64_t id = wfi_read_u64(reader);
    uint32_t number = wfi_read_u32(reader);
    uint8_t flags = wfi_read_u8(reader);
    bool is_linked = flags & WFI_ITEM_LINKED;
    uint64_t linked = is_linked ? wfi_read_u64(reader) : 0;
    wfi_request *call = reader->failed || flags & ~WFI_ITEM_LINKED ? NULL : wfi_map_get(&agent->calls, id);
    if (!call || call->peer != from || !call->items || call->failure || call->completed)
        return; /* late, or malformed */
    if (is_linked && (!call->recording || !linked))
        return;
    wfi_items_in *items = call->items;
    wfi_item_slot *s = slot_of(items, number);
    if (items->stopped || number - items->next >= WFI_ITEMS_MAX || s->state != SLOT_FREE ||
        (items->known && number >= items->expected) || !wfi_post_may_answer(agent, from))
        return;
    if (wfi_notifications_promise(agent, 1, &call->notifications)) {
        wfi_net_untake(agent->net); /* no memory for its TOOK */
        return;
    }
    s->items = items;
    s->state = SLOT_COMING;
    s->linked = linked;
    s->inbound = (wfi_inbound){.agent = agent,
                               .peer = from,
                               .ready = item_ready,
                               .call_id = id,
                               .options = {.takes_linked = is_linked, .is_answer = true}};
    wfi_inbound_start(&s->inbound, reader);
}

weft_status wfi_items_in_give(wfi_items_in *items, weft_values *values)
{
    wfi_item_slot *s = slot_of(items, items->given);
    if (items->stopped)
        return WEFT_ERR_CANCELLED;
    if (items->given - items->next >= WFI_ITEMS_MAX)
        return WEFT_ERR_AGAIN;
    items->given++;
    s->items = items;
    s->values = values;
    s->state = SLOT_READY;
    begin_delivery(items);
    return WEFT_OK;
}
