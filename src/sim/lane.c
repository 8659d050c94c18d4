/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.c - connections: a request, an answer, a third step that tells the acceptor, and the goodbye that closes or
 * refuses.
 *
 * An end sends at most one goodbye, ordered behind its messages. The receiving end becomes BROKEN and waits until its
 * owner releases it; an end without an owner (an unanswered request) is released at once.
 */
#include "base/alloc.h"
#include "sim/world.h"

#include <stdlib.h>
#include <string.h>

static sim_end *other_end(sim_end *end)
{
    return &end->pair->ends[!end->index];
}

static void notify(sim_end *end, sim_notice *notice, wfi_event_kind kind)
{
    notice->kind = kind;
    wfi_list_push_back(&end->fabric->notices, &notice->link);
    wfi_sim_fabric_wake(end->fabric);
}

/* ---- The end of a connection ----------------------------------------------------------------------------------- */

void wfi_sim_end_break(sim_end *end, weft_status why)
{
    end->state = SIM_BROKEN;
    end->why = why;
    wfi_sim_end_flush(end, WEFT_ERR_UNREACHABLE);
    wfi_sim_passed_drop(end);
    wfi_list_remove(&end->up.link); /* its CONNECTED event is no longer needed */
    notify(end, &end->down, WFI_EVENT_CLOSED);
}

static void bye_drop(weft_sim *sim, sim_event *event)
{
    (void)sim;
    wfi_sim_pair_unref(wfi_container_of(event, sim_end, bye)->pair);
}

static void bye_fire(weft_sim *sim, sim_event *event)
{
    sim_end *told = other_end(wfi_container_of(event, sim_end, bye));
    if (told->pair->severed) {
        bye_drop(sim, event);
        return;
    }
    if (told->state == SIM_REQUESTED) {
        if (!wfi_list_empty(&told->up.link))
            wfi_sim_end_close(told); /* the request was not seen */
        else
            told->said_bye = true; /* its owner has the request: connect reports the break */
    } else if (told->state == SIM_CONNECTING || told->state == SIM_OPEN) {
        bool refused = told->state == SIM_CONNECTING && told->index == 0;
        wfi_sim_end_break(told, refused ? WEFT_ERR_UNREACHABLE : WEFT_ERR_FABRIC);
    }
    bye_drop(sim, event);
}

void wfi_sim_end_bye(sim_end *end)
{
    if (end->said_bye || end->pair->severed)
        return;
    end->said_bye = true;
    end->pair->references++;
    weft_sim *sim = end->pair->sim;
    wfi_sim_travel(sim, &end->bye, wfi_sim_departure(sim, &end->wire, 0));
}

void wfi_sim_end_close(sim_end *end)
{
    if (end->state == SIM_CLOSED)
        return;
    bool broken = end->state == SIM_BROKEN;
    end->state = SIM_CLOSED;
    wfi_sim_end_flush(end, WEFT_ERR_CANCELLED);
    wfi_sim_passed_drop(end);
    if (!broken && !end->pair->form->closes_quietly)
        wfi_sim_end_bye(end);
    wfi_list_remove(&end->up.link);
    wfi_list_remove(&end->down.link);
    wfi_list_remove(&end->link);
    end->fabric = NULL;
    wfi_sim_pair_unref(end->pair);
}

void wfi_sim_lane_close(wfi_lane *lane)
{
    wfi_sim_end_close((sim_end *)lane);
}

/* ---- The handshake --------------------------------------------------------------------------------------------- */

static void hello_drop(weft_sim *sim, sim_event *event)
{
    (void)sim;
    wfi_sim_pair_unref(wfi_container_of(event, sim_pair, hello));
}

static void hello_send(sim_pair *pair, sim_end *from, sim_kind kind, void (*fire)(weft_sim *, sim_event *))
{
    pair->hello.kind = kind;
    pair->hello.fire = fire;
    pair->hello.wire = &from->wire;
    pair->hello.from = from->rank;
    pair->hello.to = other_end(from)->rank;
    pair->hello.size = from->data_size;
    pair->hello.form = pair->form;
    pair->references++;
    wfi_sim_travel(pair->sim, &pair->hello, wfi_sim_departure(pair->sim, &from->wire, from->data_size));
}

/* 3. The acceptor learns that the connection is up. */
static void ready_fire(weft_sim *sim, sim_event *event)
{
    sim_end *end = &wfi_container_of(event, sim_pair, hello)->ends[1];
    if (end->state == SIM_CONNECTING && !end->pair->severed) {
        end->state = SIM_OPEN;
        notify(end, &end->up, WFI_EVENT_CONNECTED);
    }
    hello_drop(sim, event);
}

/* 2. The answer reaches the connecting end. */
static void answer_fire(weft_sim *sim, sim_event *event)
{
    sim_pair *pair = wfi_container_of(event, sim_pair, hello);
    sim_end *end = &pair->ends[0];
    if (end->state == SIM_CONNECTING && !pair->severed) {
        end->state = SIM_OPEN;
        notify(end, &end->up, WFI_EVENT_CONNECTED);
        hello_send(pair, end, SIM_READY, ready_fire);
    }
    hello_drop(sim, event);
}

/* 1. The request reaches its target. */
static void request_fire(weft_sim *sim, sim_event *event)
{
    sim_pair *pair = wfi_container_of(event, sim_pair, hello);
    sim_end *end = &pair->ends[1];
    sim_rank *rank = wfi_sim_rank_seen(sim, end->rank);
    sim_fabric *fabric = rank ? rank->listens[pair->form->number] : NULL;
    bool failed = rank && rank->failed[pair->form->number], answers = !pair->form->closes_quietly;
    if (wfi_sim_is_walled(sim, pair->ends[0].rank, end->rank) || pair->severed || (failed && pair->form->quiet)) {
        end->state = SIM_CLOSED; /* the connecting end gets no answer */
    } else if (failed || !fabric || fabric->number != pair->number || end->said_bye) {
        end->state = SIM_CLOSED;
        if (answers)
            wfi_sim_end_bye(end); /* refuses the request; sends nothing if the link was reset */
    } else {
        end->fabric = fabric;
        end->state = SIM_REQUESTED;
        pair->references++;
        wfi_list_push_back(&fabric->ends, &end->link);
        notify(end, &end->up, WFI_EVENT_REQUEST);
    }
    hello_drop(sim, event);
}

static void end_init(sim_pair *pair, int index, int rank, int peer)
{
    sim_end *end = &pair->ends[index];
    *end = (sim_end){.pair = pair, .index = index, .rank = rank};
    wfi_sim_wire_init(&end->wire);
    end->bye = (sim_event){.fire = bye_fire,
                           .drop = bye_drop,
                           .wire = &end->wire,
                           .from = rank,
                           .to = peer,
                           .kind = SIM_BYE,
                           .form = pair->form};
    wfi_list *lists[] = {&end->up.link, &end->down.link, &end->link,   &end->receives,
                         &end->sending, &end->arrived,   &end->passed, &end->bye.link};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        wfi_list_init(lists[i]);
    end->up.end = end->down.end = end;
}

static sim_pair *pair_create(weft_sim *sim, const sim_form *form, int from, int to)
{
    sim_pair *pair = wfi_calloc(1, sizeof(*pair));
    if (!pair || wfi_sim_reserve(sim, SIM_PAIR_EVENTS) != WEFT_OK) {
        free(pair);
        return NULL;
    }
    pair->sim = sim;
    pair->form = form;
    pair->references = 1;
    pair->hello.drop = hello_drop;
    end_init(pair, 0, from, to);
    end_init(pair, 1, to, from);
    wfi_list_push_back(&sim->pairs, &pair->link);
    return pair;
}

static void set_data(sim_end *end, const void *data, size_t size)
{
    if (size)
        memcpy(end->data, data, size);
    end->data_size = size;
}

static bool has_failed(const sim_fabric *fabric)
{
    return fabric->rank->failed[fabric->form->number];
}

weft_status wfi_sim_lane_open(wfi_fabric *base, const uint8_t *address, size_t address_size, void *lane_user,
                              wfi_lane **out)
{
    sim_fabric *fabric = (sim_fabric *)base;
    sim_address to;
    if (address_size != sizeof(to))
        return WEFT_ERR_INVALID;
    memcpy(&to, address, sizeof(to));
    if (to.rank < 0 || to.rank >= SIM_RANK_MAX || to.form != fabric->form->number)
        return WEFT_ERR_INVALID;
    if (has_failed(fabric))
        return WEFT_ERR_FABRIC;
    sim_pair *pair = pair_create(fabric->sim, fabric->form, fabric->rank->rank, to.rank);
    if (!pair)
        return WEFT_ERR_MEMORY;
    sim_end *end = &pair->ends[0];
    pair->number = to.fabric;
    end->fabric = fabric;
    end->user = lane_user;
    wfi_list_push_back(&fabric->ends, &end->link);
    *out = (wfi_lane *)end;
    return WEFT_OK;
}

weft_status wfi_sim_lane_take(wfi_fabric *base, wfi_connect_request *request, void *lane_user, wfi_lane **out)
{
    (void)base;
    sim_end *end = &((sim_pair *)request)->ends[1];
    end->user = lane_user;
    *out = (wfi_lane *)end;
    return WEFT_OK;
}

weft_status wfi_sim_connect(wfi_lane *lane, const void *data, size_t data_size)
{
    sim_end *end = (sim_end *)lane;
    if (data_size > WFI_CONNECT_DATA_MAX)
        return WEFT_ERR_INVALID;
    if (has_failed(end->fabric))
        return WEFT_ERR_FABRIC;
    set_data(end, data, data_size);
    if (end->said_bye) {
        wfi_sim_end_break(end, WEFT_ERR_FABRIC); /* the connecting end has gone since */
        return WEFT_OK;
    }
    end->state = SIM_CONNECTING;
    if (end->index == 0)
        hello_send(end->pair, end, SIM_REQUEST, request_fire);
    else
        hello_send(end->pair, end, SIM_ANSWER, answer_fire);
    return WEFT_OK;
}

void wfi_sim_reject(wfi_fabric *base, wfi_connect_request *request)
{
    (void)base;
    sim_end *end = &((sim_pair *)request)->ends[1];
    if (end->pair->form->closes_quietly)
        wfi_sim_end_bye(end); /* the close below tells nothing */
    wfi_sim_end_close(end);
}
