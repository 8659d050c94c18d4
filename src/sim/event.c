/* SPDX-License-Identifier: Apache-2.0 */
/* event.c - virtual time: the heap of events, travel, held events, and the fingerprint. */
#include "sim/world.h"

#include <stdlib.h>

/* ---- The heap -------------------------------------------------------------------------------------------------- */

weft_status wfi_sim_reserve(weft_sim *sim, size_t events)
{
    size_t wanted = sim->reserved + events;
    if (wanted > sim->heap_capacity) {
        size_t capacity = sim->heap_capacity * 2 > wanted ? sim->heap_capacity * 2 : wanted;
        sim_event **heap = realloc(sim->heap, capacity * sizeof(*heap));
        if (!heap)
            return WEFT_ERR_MEMORY;
        sim->heap = heap;
        sim->heap_capacity = capacity;
    }
    sim->reserved = wanted;
    return WEFT_OK;
}

void wfi_sim_release(weft_sim *sim, size_t events)
{
    sim->reserved -= events;
}

static bool sooner(const sim_event *a, const sim_event *b)
{
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->sequence < b->sequence;
}

static void heap_push(weft_sim *sim, sim_event *event)
{
    size_t at = sim->heap_count++;
    for (size_t parent; at > 0 && sooner(event, sim->heap[parent = (at - 1) / 2]); at = parent)
        sim->heap[at] = sim->heap[parent];
    sim->heap[at] = event;
}

static sim_event *heap_pop(weft_sim *sim)
{
    sim_event *first = sim->heap[0], *last = sim->heap[--sim->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < sim->heap_count; at = child) {
        if (child + 1 < sim->heap_count && sooner(sim->heap[child + 1], sim->heap[child]))
            child++;
        if (!sooner(sim->heap[child], last))
            break;
        sim->heap[at] = sim->heap[child];
    }
    if (sim->heap_count > 0)
        sim->heap[at] = last;
    return first;
}

void wfi_sim_schedule(weft_sim *sim, sim_event *event, uint64_t time_ns)
{
    event->time_ns = time_ns > sim->now_ns ? time_ns : sim->now_ns;
    event->sequence = sim->sequence++;
    heap_push(sim, event);
}

uint64_t wfi_sim_next_event(const weft_sim *sim)
{
    return sim->heap_count ? sim->heap[0]->time_ns : WFI_NEVER;
}

void wfi_sim_drop_events(weft_sim *sim)
{
    while (sim->heap_count) {
        sim_event *event = heap_pop(sim);
        wfi_list *waiting;
        while (event->wire && (waiting = wfi_list_pop_front(&event->wire->waiting)))
            wfi_sim_schedule(sim, wfi_container_of(waiting, sim_event, link), sim->now_ns);
        event->drop(sim, event);
    }
}

/* ---- Travelling ------------------------------------------------------------------------------------------------ */

void wfi_sim_wire_init(sim_wire *wire)
{
    *wire = (sim_wire){0};
    wfi_list_init(&wire->waiting);
}

uint64_t wfi_sim_departure(weft_sim *sim, sim_wire *wire, uint64_t size)
{
    uint64_t rate = sim->options.bytes_per_second;
    uint64_t start = wire->busy_until_ns > sim->now_ns ? wire->busy_until_ns : sim->now_ns;
    long double takes_ns = (long double)size * 1e9L / (long double)rate;
    wire->busy_until_ns = start + (uint64_t)takes_ns;
    return wire->busy_until_ns;
}

static uint64_t draw_latency(weft_sim *sim)
{
    uint64_t span = sim->options.latency_max_ns - sim->options.latency_min_ns;
    return sim->options.latency_min_ns + wfi_sim_random_next(&sim->random) % (span + 1);
}

void wfi_sim_travel(weft_sim *sim, sim_event *event, uint64_t departure_ns)
{
    uint64_t arrival = departure_ns + draw_latency(sim);
    sim_wire *wire = event->wire;
    if (wire && arrival < wire->last_arrival_ns)
        arrival = wire->last_arrival_ns;
    if (wire) {
        wire->last_arrival_ns = arrival;
        event->ordinal = wire->sent++;
    }
    wfi_sim_schedule(sim, event, arrival);
}

void wfi_sim_let_go(weft_sim *sim, wfi_list *held)
{
    uint64_t arrival = sim->now_ns + draw_latency(sim);
    wfi_list *node;
    while ((node = wfi_list_pop_front(held)))
        wfi_sim_schedule(sim, wfi_container_of(node, sim_event, link), arrival);
}

/* The list in which an event that reached `to` must wait; NULL: none. */
static wfi_list *held_at(weft_sim *sim, const sim_event *event)
{
    if (event->to < 0)
        return NULL;
    wfi_list *cut = event->from == event->to ? NULL : wfi_sim_cut_between(sim, event->from, event->to);
    if (!cut && event->form)
        cut = wfi_sim_fabric_cut(sim, event->form, event->from, event->to);
    if (cut)
        return cut;
    sim_rank *rank = wfi_sim_rank_seen(sim, event->to);
    return rank && rank->paused ? &rank->held : NULL;
}

/* Older events of its wire are held: it waits, in order, until they have arrived. */
static void wait_for_older(sim_event *event)
{
    wfi_list *waiting = &event->wire->waiting, *before = waiting->prev;
    while (before != waiting && wfi_container_of(before, sim_event, link)->ordinal > event->ordinal)
        before = before->prev;
    wfi_list_insert_after(before, &event->link);
}

/* An event of the wire has arrived; the next may have been waiting for it. */
static void wire_advance(weft_sim *sim, sim_wire *wire)
{
    wire->arrived++;
    if (wfi_list_empty(&wire->waiting))
        return;
    sim_event *next = wfi_container_of(wire->waiting.next, sim_event, link);
    if (next->ordinal != wire->arrived)
        return;
    wfi_list_remove(&next->link);
    wfi_sim_schedule(sim, next, sim->now_ns);
}

void wfi_sim_fire_due(weft_sim *sim)
{
    while (sim->heap_count && sim->heap[0]->time_ns <= sim->now_ns) {
        sim_event *event = heap_pop(sim);
        wfi_list *held = held_at(sim, event);
        if (held) {
            wfi_list_push_back(held, &event->link);
        } else if (event->wire && event->ordinal != event->wire->arrived) {
            wait_for_older(event);
        } else {
            if (event->wire)
                wire_advance(sim, event->wire);
            wfi_sim_trace(sim, event->kind, event->from, event->to, event->size);
            event->fire(sim, event);
        }
    }
}

/* ---- The fingerprint ------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

void wfi_sim_trace(weft_sim *sim, sim_kind kind, int a, int b, uint64_t size)
{
    uint64_t hash = mix(sim->trace, (uint64_t)kind);
    hash = mix(hash, sim->now_ns);
    hash = mix(hash, (uint64_t)(uint32_t)a << 32 | (uint32_t)b);
    sim->trace = mix(hash, size);
}
