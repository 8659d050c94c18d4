/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packet.c - how packets end (a message, a read or a write in progress): they arrive, are lost, or end with their end
 * of the connection. A connection's memory is freed with the last of its ends and packets.
 */
#include "sim/world.h"

#include <stdlib.h>
#include <string.h>

void wfi_sim_pair_unref(sim_pair *pair)
{
    if (--pair->references > 0)
        return;
    wfi_list_remove(&pair->link);
    wfi_sim_release(pair->sim, SIM_PAIR_EVENTS);
    free(pair);
}

void wfi_sim_packet_drop(weft_sim *sim, sim_event *event)
{
    sim_packet *packet = wfi_sim_packet_of(event);
    if (packet->op)
        packet->op->packet = NULL; /* it is lost: the other end's BYE, or unheard_timer, fails the operation */
    wfi_sim_release(sim, 1);
    wfi_sim_pair_unref(packet->pair);
    free(packet->copy);
    free(packet);
}

/*
 * No operation waits for the packet. A write that has left and not arrived continues from a copy; without memory for
 * the copy it is lost.
 */
static void packet_detach(sim_packet *packet)
{
    packet->op = NULL;
    if (packet->kind != SIM_WRITE || !packet->departed || !wfi_sim_end_is_live(packet->to))
        return;
    packet->copy = malloc(packet->size ? packet->size : 1);
    if (packet->copy && packet->size)
        memcpy(packet->copy, packet->local, packet->size);
}

void wfi_sim_end_flush(sim_end *end, weft_status status)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&end->receives)))
        wfi_sim_complete(end->fabric, wfi_container_of(node, sim_op, link), status, 0);
    while ((node = wfi_list_pop_front(&end->sending))) {
        sim_op *op = wfi_container_of(node, sim_op, link);
        if (op->packet)
            packet_detach(op->packet);
        wfi_sim_complete(end->fabric, op, status, 0);
    }
    while ((node = wfi_list_pop_front(&end->arrived)))
        wfi_sim_packet_drop(end->pair->sim, wfi_container_of(node, sim_event, link));
}
