/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - messages, remote reads and writes.
 *
 * An operation's memory is read when its bytes leave, not when it is posted; a write's target is written when they
 * arrive. So a program that frees or changes memory too early is noticed. If a lane is closed after a write has left,
 * the write still arrives, from a copy that is made then, like bytes in a socket. The memory of a read is never written
 * after its lane was closed. A large write arrives in two pieces, and its key is checked when it begins: as with tcp,
 * closing the region does not stop it, closing the lane does.
 */
#include "base/alloc.h"
#include "sim/world.h"

#include <stdlib.h>
#include <string.h>

#define SIM_ATONCE_BYTES ((size_t)4096)

static void packet_complete(sim_packet *packet, weft_status status)
{
    sim_op *op = packet->op;
    if (!op)
        return;
    packet->op = NULL;
    wfi_list_remove(&op->link);
    wfi_sim_complete(packet->from->fabric, op, status, packet->size);
}

/* Sends the packet from one end to the other. */
static void packet_travel(sim_packet *packet, sim_end *from, sim_end *to, sim_kind kind, uint64_t departure_ns,
                          void (*fire)(weft_sim *, sim_event *))
{
    packet->kind = packet->event.kind = kind;
    packet->event.from = from->rank;
    packet->event.to = to->rank;
    packet->event.wire = kind == SIM_MESSAGE ? &from->wire : NULL;
    packet->event.fire = fire;
    wfi_sim_travel(packet->pair->sim, &packet->event, departure_ns);
}

/* ---- Arrivals -------------------------------------------------------------------------------------------------- */

static void receive(sim_end *end, sim_op *op, const sim_packet *packet)
{
    bool fits = packet->size <= op->size + op->more_size;
    size_t size = fits ? packet->size : op->size + op->more_size;
    size_t first = size < op->size ? size : op->size;
    if (first)
        memcpy(op->data, packet->copy, first);
    if (size > first)
        memcpy(op->more, packet->copy + first, size - first);
    wfi_sim_complete(end->fabric, op, fits ? WEFT_OK : WEFT_ERR_TOO_LARGE, packet->size);
}

static void message_fire(weft_sim *sim, sim_event *event)
{
    sim_packet *packet = wfi_sim_packet_of(event);
    sim_end *end = packet->to;
    if (wfi_sim_packet_is_lost(packet)) {
        wfi_sim_packet_drop(sim, event);
        return;
    }
    if (wfi_sim_end_is_live(end))
        wfi_sim_packet_heard(packet);
    wfi_list *first = wfi_sim_end_is_live(end) ? wfi_list_pop_front(&end->receives) : NULL;
    if (wfi_sim_end_is_live(end) && !first) {
        wfi_list_push_back(&end->arrived, &event->link); /* waits for a receive, like data in a socket's buffer */
        return;
    }
    if (first)
        receive(end, wfi_container_of(first, sim_op, link), packet);
    wfi_sim_packet_drop(sim, event);
}

static void done_fire(weft_sim *sim, sim_event *event)
{
    sim_packet *packet = wfi_sim_packet_of(event);
    if (!packet->pair->severed) {
        wfi_sim_packet_heard(packet);
        packet_complete(packet, WEFT_OK);
    }
    wfi_sim_packet_drop(sim, event);
}

/* The target's memory. NULL if the region is gone, or after a bad access, which breaks the connection as with tcp. */
static uint8_t *target_memory(sim_packet *packet, unsigned access)
{
    sim_end *end = packet->to;
    if (wfi_sim_packet_is_lost(packet) || !wfi_sim_end_is_live(end))
        return NULL;
    uint8_t *memory = wfi_sim_region_find(end->fabric, packet->key, packet->remote, packet->size, access);
    if (!memory) {
        wfi_sim_end_break(end, WEFT_ERR_FABRIC);
        wfi_sim_end_bye(end);
    }
    return memory;
}

static void read_fire(weft_sim *sim, sim_event *event)
{
    sim_packet *packet = wfi_sim_packet_of(event);
    const uint8_t *from = packet->op ? target_memory(packet, WFI_REMOTE_READ) : NULL;
    if (!from) {
        wfi_sim_packet_drop(sim, event);
        return;
    }
    if (packet->size)
        memcpy(packet->local, from, packet->size);
    uint64_t departure_ns = wfi_sim_departure(sim, &packet->to->wire, packet->size),
             most = packet->pair->form->read_delay_ns;
    if (most)
        departure_ns += wfi_sim_random(sim) % most;
    packet_travel(packet, packet->to, packet->from, SIM_READ_DONE, departure_ns, done_fire);
}

/* The data of a write; NULL: none, or it was lost because memory was exhausted. */
static const uint8_t *bytes_written(const sim_packet *packet)
{
    return packet->op ? packet->local : packet->copy;
}

static void write_ends(weft_sim *sim, sim_packet *packet, bool landed)
{
    if (landed && packet->op)
        packet_travel(packet, packet->to, packet->from, SIM_WRITE_DONE, wfi_sim_departure(sim, &packet->to->wire, 0),
                      done_fire);
    else
        wfi_sim_packet_drop(sim, &packet->event);
}

/*
 * The second piece of a large write. Its key was checked when it began: a closed lane stops it, a closed region does
 * not.
 */
static void write_rest_fire(weft_sim *sim, sim_event *event)
{
    sim_packet *packet = wfi_sim_packet_of(event);
    const uint8_t *from = bytes_written(packet);
    bool lands = from && !packet->pair->severed && wfi_sim_end_is_live(packet->to);
    if (lands)
        memcpy(packet->landing + SIM_ATONCE_BYTES, from + SIM_ATONCE_BYTES, packet->size - SIM_ATONCE_BYTES);
    write_ends(sim, packet, lands);
}

static void write_fire(weft_sim *sim, sim_event *event)
{
    sim_packet *packet = wfi_sim_packet_of(event);
    const uint8_t *from = bytes_written(packet);
    uint8_t *to = from || packet->op ? target_memory(packet, WFI_REMOTE_WRITE) : NULL;
    bool is_large = packet->size > SIM_ATONCE_BYTES;
    if (to && from && packet->size)
        memcpy(to, from, is_large ? SIM_ATONCE_BYTES : packet->size);
    packet->landing = to;
    if (to && is_large)
        packet_travel(packet, packet->from, packet->to, SIM_WRITE, sim->now_ns, write_rest_fire);
    else
        write_ends(sim, packet, to != NULL);
}

/* ---- Departures ------------------------------------------------------------------------------------------------ */

static void gather(sim_packet *packet)
{
    uint8_t *to = packet->copy;
    for (size_t i = 0; i < packet->iov_count; i++) {
        if (packet->iov[i].size)
            memcpy(to, packet->iov[i].data, packet->iov[i].size);
        to += packet->iov[i].size;
    }
}

static void depart_fire(weft_sim *sim, sim_event *event)
{
    sim_packet *packet = wfi_sim_packet_of(event);
    if (!packet->op) {
        wfi_sim_packet_drop(sim, event); /* its lane was closed before it left */
        return;
    }
    packet->departed = true;
    wfi_sim_packet_left(packet);
    if (packet->kind == SIM_MESSAGE) {
        gather(packet);
        packet_complete(packet, WEFT_OK);
        packet_travel(packet, packet->from, packet->to, SIM_MESSAGE, sim->now_ns, message_fire);
    } else {
        bool reads = packet->kind == SIM_READ;
        packet_travel(packet, packet->from, packet->to, packet->kind, sim->now_ns, reads ? read_fire : write_fire);
    }
}

static weft_status may_initiate(const sim_end *end)
{
    if (end->state == SIM_OPEN)
        return WEFT_OK;
    return end->state == SIM_CONNECTING ? WEFT_ERR_STATE : WEFT_ERR_UNREACHABLE;
}

static sim_packet *packet_create(sim_end *end, sim_kind kind, size_t size)
{
    sim_packet *packet = wfi_calloc(1, sizeof(*packet));
    if (!packet)
        return NULL;
    if (kind == SIM_MESSAGE && !(packet->copy = malloc(size ? size : 1)))
        goto free_packet;
    if (wfi_sim_reserve(end->pair->sim, 1) != WEFT_OK)
        goto free_copy;
    packet->pair = end->pair;
    packet->pair->references++;
    packet->from = end;
    packet->to = &end->pair->ends[!end->index];
    packet->kind = kind;
    packet->size = size;
    packet->event = (sim_event){.fire = depart_fire,
                                .drop = wfi_sim_packet_drop,
                                .from = end->rank,
                                .to = -1,
                                .kind = SIM_DEPART,
                                .size = size,
                                .form = end->pair->form};
    return packet;
free_copy:
    free(packet->copy);
free_packet:
    free(packet);
    return NULL;
}

static void packet_post(sim_packet *packet, sim_op *op)
{
    sim_end *end = packet->from;
    packet->op = op;
    op->packet = packet;
    wfi_list_push_back(&end->sending, &op->link);
    uint64_t leaving = packet->kind == SIM_READ ? 0 : packet->size; /* a read's bytes travel in the other direction */
    wfi_sim_schedule(end->pair->sim, &packet->event, wfi_sim_departure(end->pair->sim, &end->wire, leaving));
}

weft_status wfi_sim_send(wfi_lane *lane, wfi_fabric_op *op, const wfi_iov *iov, size_t count)
{
    sim_end *end = (sim_end *)lane;
    size_t size = 0;
    if (count > SIM_IOV_MAX)
        return WEFT_ERR_TOO_LARGE;
    for (size_t i = 0; i < count; i++) {
        if (iov[i].size > SIM_MESSAGE_MAX - size)
            return WEFT_ERR_TOO_LARGE;
        size += iov[i].size;
    }
    weft_status status = may_initiate(end);
    if (status != WEFT_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        if (!wfi_sim_region_covers(end->fabric, iov[i].region, iov[i].data, iov[i].size, WFI_LOCAL_READ))
            return WEFT_ERR_INVALID;
    sim_packet *packet = packet_create(end, SIM_MESSAGE, size);
    if (!packet)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < count; i++)
        packet->iov[i] = iov[i];
    packet->iov_count = count;
    packet_post(packet, (sim_op *)op);
    return WEFT_OK;
}

static weft_status access_post(sim_end *end, sim_op *op, sim_kind kind, uint8_t *local, size_t size,
                               const wfi_region *region, uint64_t remote, uint64_t key)
{
    weft_status status = may_initiate(end);
    if (status != WEFT_OK)
        return status;
    unsigned needed = kind == SIM_READ ? WFI_LOCAL_WRITE : WFI_LOCAL_READ;
    if (!wfi_sim_region_covers(end->fabric, region, local, size, needed))
        return WEFT_ERR_INVALID;
    if (size > SIM_RMA_MAX)
        return WEFT_ERR_TOO_LARGE;
    sim_packet *packet = packet_create(end, kind, size);
    if (!packet)
        return WEFT_ERR_MEMORY;
    packet->local = local;
    packet->remote = remote;
    packet->key = key;
    packet_post(packet, op);
    return WEFT_OK;
}

weft_status wfi_sim_read(wfi_lane *lane, wfi_fabric_op *op, void *local, size_t size, wfi_region *region,
                         uint64_t remote, uint64_t key)
{
    return access_post((sim_end *)lane, (sim_op *)op, SIM_READ, local, size, region, remote, key);
}

weft_status wfi_sim_write(wfi_lane *lane, wfi_fabric_op *op, const void *local, size_t size, wfi_region *region,
                          uint64_t remote, uint64_t key)
{
    return access_post((sim_end *)lane, (sim_op *)op, SIM_WRITE, (uint8_t *)(uintptr_t)local, size, region, remote,
                       key);
}

/* ---- Receives and the end -------------------------------------------------------------------------------------- */

weft_status wfi_sim_post_recv(wfi_lane *lane, wfi_fabric_op *base, const wfi_receive_buffer *buffers, size_t count)
{
    sim_end *end = (sim_end *)lane;
    sim_op *op = (sim_op *)base;
    bool before_connect = end->state == SIM_NONE || end->state == SIM_REQUESTED;
    if (!before_connect && !wfi_sim_end_is_live(end))
        return WEFT_ERR_UNREACHABLE;
    if (count == 0 || count > WFI_RECEIVE_BUFFERS_MAX)
        return WEFT_ERR_INVALID;
    for (size_t i = 0; i < count; i++)
        if (!wfi_sim_region_covers(end->fabric, buffers[i].region, buffers[i].data, buffers[i].size, WFI_LOCAL_WRITE))
            return WEFT_ERR_INVALID;
    op->data = buffers[0].data;
    op->size = buffers[0].size;
    op->more = count > 1 ? buffers[1].data : NULL;
    op->more_size = count > 1 ? buffers[1].size : 0;
    op->packet = NULL;
    wfi_list *first = wfi_list_pop_front(&end->arrived);
    if (!first) {
        wfi_list_push_back(&end->receives, &op->link);
        return WEFT_OK;
    }
    sim_packet *packet = wfi_sim_packet_of(wfi_container_of(first, sim_event, link));
    wfi_list_init(&op->link);
    receive(end, op, packet);
    wfi_sim_packet_drop(end->pair->sim, &packet->event);
    return WEFT_OK;
}
