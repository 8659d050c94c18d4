/* SPDX-License-Identifier: Apache-2.0 */
/* channel.c - the store's message channels. Messages to an end that has no callbacks yet wait in its inbox. */
#include "base/alloc.h"
#include "sim/world.h"

#include <stdlib.h>
#include <string.h>

struct wfi_sim_channel {
    struct channel_pair *pair;
    int rank, index;
    bool open;
    bool peer_gone; /* the other end's goodbye has arrived */
    bool flushing;  /* a flush event is in flight */
    wfi_sim_channel_events events;
    sim_wire wire; /* away from this end */
    sim_event bye, flush;
    wfi_list inbox; /* channel_message */
    wfi_list link;  /* in the rank */
};

typedef struct channel_pair {
    wfi_list link;
    size_t references; /* open ends, and events in flight */
    weft_sim *sim;
    sim_event opening;
    wfi_sim_channel ends[2]; /* the dialling end, then the accepting one */
} channel_pair;

enum { EVENTS_OF_A_PAIR = 5 };

typedef struct channel_message {
    sim_event event;
    wfi_sim_channel *to;
    size_t size;
    bool is_of_stock;
    _Alignas(max_align_t) uint8_t data[];
} channel_message;

#define STOCK_COUNT 64
#define STOCK_SIZE (sizeof(channel_message) + 1024)

static wfi_sim_channel *other_channel(wfi_sim_channel *channel)
{
    return &channel->pair->ends[!channel->index];
}

static void unref_pair(channel_pair *pair)
{
    if (--pair->references > 0)
        return;
    wfi_list_remove(&pair->link);
    wfi_sim_release(pair->sim, EVENTS_OF_A_PAIR);
    free(pair);
}

/* ---- Their memory ---------------------------------------------------------------------------------------------- */

weft_status wfi_sim_stock_init(weft_sim *sim)
{
    wfi_list_init(&sim->stock);
    sim->stock_room = wfi_calloc(STOCK_COUNT, STOCK_SIZE);
    if (!sim->stock_room || wfi_sim_reserve(sim, STOCK_COUNT)) /* and room for their events */
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < STOCK_COUNT; i++) {
        channel_message *message = (channel_message *)((uint8_t *)sim->stock_room + i * STOCK_SIZE);
        message->is_of_stock = true;
        wfi_list_push_back(&sim->stock, &message->event.link);
    }
    return WEFT_OK;
}

void wfi_sim_stock_fini(weft_sim *sim)
{
    free(sim->stock_room);
}

static channel_message *make_message(weft_sim *sim, size_t size)
{
    channel_message *message = malloc(sizeof(*message) + size);
    if (message && wfi_sim_reserve(sim, 1) == WEFT_OK) {
        message->is_of_stock = false;
        return message;
    }
    free(message);
    wfi_list *link = sizeof(*message) + size <= STOCK_SIZE ? wfi_list_pop_front(&sim->stock) : NULL;
    return link ? wfi_container_of(link, channel_message, event.link) : NULL;
}

static void free_message(weft_sim *sim, channel_message *message)
{
    if (message->is_of_stock) {
        wfi_list_push_back(&sim->stock, &message->event.link);
        return;
    }
    wfi_sim_release(sim, 1);
    free(message);
}

/* ---- Deliveries ------------------------------------------------------------------------------------------------ */

static void channel_message_drop(weft_sim *sim, sim_event *event)
{
    channel_message *message = wfi_container_of(event, channel_message, event);
    unref_pair(message->to->pair);
    free_message(sim, message);
}

/*
 * Delivers the messages in the inbox, then the goodbye. A callback may close the channel; the caller holds a
 * reference.
 */
static void deliver(weft_sim *sim, wfi_sim_channel *channel)
{
    while (channel->open && channel->events.message && !wfi_list_empty(&channel->inbox)) {
        sim_event *event = wfi_container_of(wfi_list_pop_front(&channel->inbox), sim_event, link);
        channel_message *message = wfi_container_of(event, channel_message, event);
        channel->events.message(channel->events.arg, channel, message->data, message->size);
        channel_message_drop(sim, event);
    }
    if (channel->open && channel->peer_gone && channel->events.closed) {
        void (*closed)(void *, wfi_sim_channel *) = channel->events.closed;
        channel->events.closed = NULL; /* once */
        closed(channel->events.arg, channel);
    }
}

static void channel_message_fire(weft_sim *sim, sim_event *event)
{
    wfi_sim_channel *channel = wfi_container_of(event, channel_message, event)->to;
    if (!channel->open) {
        channel_message_drop(sim, event);
        return;
    }
    channel->pair->references++;
    wfi_list_push_back(&channel->inbox, &event->link);
    deliver(sim, channel);
    unref_pair(channel->pair);
}

static void flush_drop(weft_sim *sim, sim_event *event)
{
    (void)sim;
    unref_pair(wfi_container_of(event, wfi_sim_channel, flush)->pair);
}

static void flush_fire(weft_sim *sim, sim_event *event)
{
    wfi_sim_channel *channel = wfi_container_of(event, wfi_sim_channel, flush);
    channel->flushing = false;
    deliver(sim, channel);
    flush_drop(sim, event);
}

static void channel_bye_drop(weft_sim *sim, sim_event *event)
{
    (void)sim;
    unref_pair(wfi_container_of(event, wfi_sim_channel, bye)->pair);
}

static void channel_bye_fire(weft_sim *sim, sim_event *event)
{
    wfi_sim_channel *told = other_channel(wfi_container_of(event, wfi_sim_channel, bye));
    told->peer_gone = true;
    deliver(sim, told);
    channel_bye_drop(sim, event);
}

static void say_bye(wfi_sim_channel *channel)
{
    weft_sim *sim = channel->pair->sim;
    channel->pair->references++;
    wfi_sim_travel(sim, &channel->bye, wfi_sim_departure(sim, &channel->wire, 0));
}

/* ---- Opening and closing --------------------------------------------------------------------------------------- */

static void opening_drop(weft_sim *sim, sim_event *event)
{
    (void)sim;
    unref_pair(wfi_container_of(event, channel_pair, opening));
}

static void opening_fire(weft_sim *sim, sim_event *event)
{
    channel_pair *pair = wfi_container_of(event, channel_pair, opening);
    wfi_sim_channel *end = &pair->ends[1];
    sim_rank *rank = wfi_sim_rank_seen(sim, end->rank);
    if (rank && rank->accepted) {
        end->open = true;
        pair->references++;
        wfi_list_push_back(&rank->channels, &end->link);
        rank->accepted(rank->accepted_arg, end);
    } else {
        say_bye(end);
    }
    opening_drop(sim, event);
}

static void channel_init(channel_pair *pair, int index, int rank, int peer)
{
    wfi_sim_channel *end = &pair->ends[index];
    end->pair = pair;
    end->index = index;
    end->rank = rank;
    wfi_sim_wire_init(&end->wire);
    end->bye = (sim_event){.fire = channel_bye_fire,
                           .drop = channel_bye_drop,
                           .wire = &end->wire,
                           .from = rank,
                           .to = peer,
                           .kind = SIM_CHANNEL_BYE};
    end->flush =
        (sim_event){.fire = flush_fire, .drop = flush_drop, .from = rank, .to = rank, .kind = SIM_CHANNEL_FLUSH};
    wfi_list_init(&end->inbox);
    wfi_list_init(&end->link);
}

weft_status wfi_sim_listen(weft_sim *sim, int rank, void (*accepted)(void *arg, wfi_sim_channel *channel), void *arg)
{
    if (rank < 0 || rank >= SIM_RANK_MAX)
        return WEFT_ERR_INVALID;
    sim_rank *listener = wfi_sim_rank(sim, rank);
    if (!listener)
        return WEFT_ERR_MEMORY;
    if (listener->accepted)
        return WEFT_ERR_EXISTS;
    listener->accepted = accepted;
    listener->accepted_arg = arg;
    return WEFT_OK;
}

void wfi_sim_unlisten(weft_sim *sim, int rank)
{
    sim_rank *listener = wfi_sim_rank_seen(sim, rank);
    if (listener)
        listener->accepted = NULL;
}

weft_status wfi_sim_dial(weft_sim *sim, int from, int to, wfi_sim_channel **out)
{
    if (from < 0 || from >= SIM_RANK_MAX)
        return WEFT_ERR_INVALID;
    sim_rank *listener = wfi_sim_rank_seen(sim, to), *dialler = wfi_sim_rank(sim, from);
    if (!listener || !listener->accepted)
        return WEFT_ERR_UNREACHABLE;
    channel_pair *pair = dialler ? wfi_calloc(1, sizeof(*pair)) : NULL;
    if (!pair || wfi_sim_reserve(sim, EVENTS_OF_A_PAIR) != WEFT_OK) {
        free(pair);
        return WEFT_ERR_MEMORY;
    }
    pair->sim = sim;
    pair->references = 2;
    channel_init(pair, 0, from, to);
    channel_init(pair, 1, to, from);
    pair->ends[0].open = true;
    pair->opening = (sim_event){.fire = opening_fire,
                                .drop = opening_drop,
                                .wire = &pair->ends[0].wire,
                                .from = from,
                                .to = to,
                                .kind = SIM_CHANNEL_OPEN};
    wfi_list_push_back(&sim->channels, &pair->link);
    wfi_list_push_back(&dialler->channels, &pair->ends[0].link);
    wfi_sim_travel(sim, &pair->opening, sim->now_ns);
    *out = &pair->ends[0];
    return WEFT_OK;
}

void wfi_sim_channel_on(wfi_sim_channel *channel, const wfi_sim_channel_events *events)
{
    channel->events = *events;
    bool waiting = channel->peer_gone || !wfi_list_empty(&channel->inbox);
    if (!waiting || channel->flushing)
        return;
    channel->flushing = true;
    channel->pair->references++;
    wfi_sim_schedule(channel->pair->sim, &channel->flush, channel->pair->sim->now_ns);
}

weft_status wfi_sim_channel_send(wfi_sim_channel *channel, const void *data, size_t size)
{
    weft_sim *sim = channel->pair->sim;
    if (!channel->open || channel->peer_gone)
        return WEFT_ERR_UNREACHABLE;
    if (size > SIM_MESSAGE_MAX)
        return WEFT_ERR_TOO_LARGE;
    channel_message *message = make_message(sim, size);
    if (!message)
        return WEFT_ERR_MEMORY;
    message->to = other_channel(channel);
    message->size = size;
    if (size)
        memcpy(message->data, data, size);
    message->event = (sim_event){.fire = channel_message_fire,
                                 .drop = channel_message_drop,
                                 .wire = &channel->wire,
                                 .from = channel->rank,
                                 .to = message->to->rank,
                                 .kind = SIM_CHANNEL_MESSAGE,
                                 .size = size};
    channel->pair->references++;
    sim->channel_messages++;
    wfi_sim_travel(sim, &message->event, wfi_sim_departure(sim, &channel->wire, size));
    return WEFT_OK;
}

uint64_t wfi_sim_channel_messages(const weft_sim *sim)
{
    return sim->channel_messages;
}

void wfi_sim_channel_close(wfi_sim_channel *channel)
{
    if (!channel || !channel->open)
        return;
    channel->open = false;
    wfi_list *node;
    while ((node = wfi_list_pop_front(&channel->inbox)))
        channel_message_drop(channel->pair->sim, wfi_container_of(node, sim_event, link));
    if (!channel->peer_gone)
        say_bye(channel);
    wfi_list_remove(&channel->link);
    unref_pair(channel->pair);
}

void wfi_sim_channels_kill(sim_rank *rank)
{
    rank->accepted = NULL;
    while (!wfi_list_empty(&rank->channels))
        wfi_sim_channel_close(wfi_container_of(rank->channels.next, wfi_sim_channel, link));
}
