/* SPDX-License-Identifier: Apache-2.0 */
/* client/stream.c - parts of results as they come to the caller; see server/stream.h. */
#include "base/alloc.h"
#include "rpc/client/stream.h"
#include "rpc/server/stream.h"
#include "rpc/agent/notify.h"

#include "base/error.h"

#include <stdlib.h>

typedef struct slot {
    wfi_parts_in *parts;
    enum { SLOT_FREE, SLOT_COMING, SLOT_READY } state;
    wfi_inbound inbound; /* of a part that comes over the wire */
    weft_values *values; /* of one of a call to ourselves */
} slot;

/* Guarded by the agent's lock; what a slot holds belongs to the task while `in_hand`. */
struct wfi_parts_in {
    weft_agent *agent;
    weft_item_fn fn;
    void *arg;
    void *owner; /* whose parts they are */
    const wfi_stream_owner_ops *ops;
    wfi_request *call; /* NULL: they are given by ourselves */

    uint32_t next;  /* number of the part to be handed over next */
    uint32_t given; /* by ourselves */
    uint32_t expected;
    bool known;   /* how many there will be */
    bool running; /* the task is, or waits for a worker */
    bool in_hand; /* the user's function has one */
    bool stopped; /* nothing more is handed over */
    wfi_task task;
    slot slots[WFI_PARTS_MAX]; /* part n in slot n % WFI_PARTS_MAX */

    bool waiting, quiet; /* the call's end waits for us, with these */
    const weft_values *values;
    weft_error *error;
};

weft_status wfi_parts_in_create(weft_agent *agent, weft_item_fn fn, void *arg, wfi_parts_in **out)
{
    wfi_parts_in *parts = wfi_calloc(1, sizeof *parts);
    if (!parts)
        return WEFT_ERR_MEMORY;
    parts->agent = agent;
    parts->fn = fn;
    parts->arg = arg;
    *out = parts;
    return WEFT_OK;
}

void wfi_parts_in_own(wfi_parts_in *parts, void *owner, const wfi_stream_owner_ops *ops, wfi_request *call)
{
    parts->owner = owner;
    parts->ops = ops;
    parts->call = call;
}

static void empty(slot *s)
{
    weft_values_unref(s->values);
    s->values = NULL;
    wfi_inbound_fini(&s->inbound);
    s->inbound = (wfi_inbound){0};
}

void wfi_parts_in_free(wfi_parts_in *parts)
{
    if (!parts)
        return;
    for (int i = 0; i < WFI_PARTS_MAX; i++)
        empty(&parts->slots[i]);
    weft_error_unref(parts->error);
    free(parts);
}

static slot *slot_of(wfi_parts_in *parts, uint32_t number)
{
    return &parts->slots[number % WFI_PARTS_MAX];
}

/* ---- The call's end ---------------------------------------------------------------------------------------------- */

static bool settled(const wfi_parts_in *parts)
{
    if (parts->in_hand)
        return false;
    if (!parts->stopped)
        return !parts->running && parts->known && parts->next >= parts->expected;
    /* A task that has no worker yet will find nothing to do: it is not waited for, since workers may be busy for long. */
    for (int i = 0; i < WFI_PARTS_MAX; i++)
        if (parts->slots[i].state == SLOT_COMING)
            return false;
    return true;
}

static void end_if_settled(wfi_parts_in *parts)
{
    if (!parts->waiting || !settled(parts))
        return;
    weft_error *error = parts->error;
    parts->error = NULL;
    parts->waiting = false;
    parts->ops->end(parts->owner, parts->values, error, parts->quiet);
    weft_error_unref(error);
}

static void stop(wfi_parts_in *parts)
{
    parts->stopped = true;
    for (int i = 0; i < WFI_PARTS_MAX; i++)
        if (parts->slots[i].state == SLOT_COMING)
            wfi_inbound_cancel(&parts->slots[i].inbound);
}

bool wfi_parts_in_wait(wfi_parts_in *parts, const weft_values *values, const weft_error *error, bool quiet,
                       bool stop_now)
{
    if (parts->waiting && parts->stopped)
        return true;                /* it ends already, and not well */
    weft_error_unref(parts->error); /* an end that waited, and is overtaken by this one */
    parts->error = NULL;
    parts->waiting = false;
    if (stop_now && !parts->stopped)
        stop(parts);
    if (settled(parts))
        return false;
    parts->waiting = true;
    parts->values = values;
    parts->error = error ? weft_error_ref(error) : NULL;
    parts->quiet = quiet;
    return true;
}

bool wfi_parts_in_expect(wfi_parts_in *parts, uint32_t count)
{
    bool first = !parts->known;
    if (first)
        parts->expected = count;
    parts->known = true;
    return first;
}

void wfi_parts_in_expect_given(wfi_parts_in *parts)
{
    (void)wfi_parts_in_expect(parts, parts->given);
}

/* ---- Handing over ------------------------------------------------------------------------------------------------ */

static void say_took(const wfi_parts_in *parts)
{
    uint8_t room[12];
    wfi_writer writer;
    if (!parts->call || parts->agent->stopped || wfi_peer_status(parts->call->peer))
        return;
    wfi_writer_init(&writer, room, sizeof room);
    wfi_write_u64(&writer, parts->call->id);
    wfi_write_u32(&writer, parts->next);
    wfi_post_answer(parts->agent, parts->call->peer, WFI_RPC_TOOK, &writer, &parts->call->notifications);
}

/* Not while another runs; the lock is let go around the user's function. */
static void hand_over_all(wfi_task *task)
{
    wfi_parts_in *parts = wfi_container_of(task, wfi_parts_in, task);
    wfi_net *net = parts->agent->net;
    wfi_net_lock(net);
    for (slot *s; !parts->stopped && (s = slot_of(parts, parts->next))->state == SLOT_READY;) {
        parts->in_hand = true;
        wfi_net_unlock(net);
        parts->fn(s->values ? s->values : s->inbound.values, parts->arg);
        empty(s);
        wfi_net_lock(net);
        parts->in_hand = false;
        s->state = SLOT_FREE;
        say_took(parts);
        parts->next++;
    }
    parts->running = false;
    end_if_settled(parts);
    parts->ops->drop(parts->owner);
    wfi_net_unlock(net);
}

static void begin(wfi_parts_in *parts)
{
    if (parts->running || parts->stopped || slot_of(parts, parts->next)->state != SLOT_READY)
        return;
    parts->running = true;
    parts->ops->hold(parts->owner);
    parts->task.run = hand_over_all;
    wfi_net_defer(parts->agent->net, &parts->task, WFI_DEFER_WORKER);
}

/* ---- Arrival ----------------------------------------------------------------------------------------------------- */

static void part_ready(wfi_inbound *inbound, weft_status status)
{
    slot *s = wfi_container_of(inbound, slot, inbound);
    wfi_parts_in *parts = s->parts;
    wfi_request *call = parts->call;
    s->state = status || parts->stopped ? SLOT_FREE : SLOT_READY; /* what it holds goes with the call */
    if (parts->stopped) {
        end_if_settled(parts);
    } else if (status) {
        wfi_error_detail detail = {.code = status,
                                   .remote_code = WEFT_ERR_UNKNOWN, /* it has run, so far */
                                   .function = call->function,
                                   .worker = wfi_peer_rank(call->peer)};
        parts->ops->fail(parts->owner, wfi_error_create(&detail, "a part of the results: %s", inbound->problem));
    } else {
        begin(parts);
    }
}

void wfi_parts_in_on_part(weft_agent *agent, wfi_peer *from, wfi_reader *reader)
{
    uint64_t id = wfi_read_u64(reader);
    uint32_t number = wfi_read_u32(reader);
    uint8_t flags = wfi_read_u8(reader);
    wfi_request *call = reader->failed || flags ? NULL : wfi_map_get(&agent->calls, id);
    if (!call || call->peer != from || !call->parts || call->failure || call->completed)
        return; /* late, or nonsense */
    wfi_parts_in *parts = call->parts;
    slot *s = slot_of(parts, number);
    if (parts->stopped || number - parts->next >= WFI_PARTS_MAX || s->state != SLOT_FREE ||
        (parts->known && number >= parts->expected) || !wfi_may_answer(agent, from))
        return;
    if (wfi_notifications_promise(agent, 1, &call->notifications)) {
        wfi_net_untake(agent->net); /* no memory to say later that it was taken */
        return;
    }
    s->parts = parts;
    s->state = SLOT_COMING;
    s->inbound = (wfi_inbound){.agent = agent, .peer = from, .ready = part_ready};
    wfi_inbound_start(&s->inbound, reader);
}

weft_status wfi_parts_in_give(wfi_parts_in *parts, weft_values *values)
{
    slot *s = slot_of(parts, parts->given);
    if (parts->stopped)
        return WEFT_ERR_CANCELLED;
    if (parts->given - parts->next >= WFI_PARTS_MAX)
        return WEFT_ERR_AGAIN;
    parts->given++;
    s->parts = parts;
    s->values = values;
    s->state = SLOT_READY;
    begin(parts);
    return WEFT_OK;
}
