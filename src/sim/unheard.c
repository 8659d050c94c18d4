/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unheard.c - quiet fabrics: connections whose break nobody announces. Packets of a severed connection are lost. An end
 * detects the break only when its packets stay unacknowledged for unheard_ns. This imitates an RDMA adapter whose
 * retries are exhausted. The adapter of a paused worker still acknowledges.
 */
#include "sim/world.h"

static void watch(sim_end *end);

static void timer_drop(weft_sim *sim, sim_event *event)
{
    (void)sim;
    wfi_sim_pair_unref(wfi_container_of(event, sim_end, unheard_timer)->pair);
}

/* Whether packets may only be slow: something arrived, bytes still leave, or the peer is paused. */
static bool may_be_slow(const weft_sim *sim, const sim_end *end)
{
    const sim_end *peer = &end->pair->ends[!end->index];
    const sim_rank *rank = wfi_sim_rank_seen(sim, peer->rank);
    bool is_paused = rank && rank->paused && !end->pair->severed;
    return end->heard != end->heard_at_timer || end->wire.busy_until_ns > sim->now_ns ||
           peer->wire.busy_until_ns > sim->now_ns || is_paused;
}

static void timer_fire(weft_sim *sim, sim_event *event)
{
    sim_end *end = wfi_container_of(event, sim_end, unheard_timer);
    end->watched = false;
    if (end->state == SIM_OPEN && end->unheard > 0) {
        if (may_be_slow(sim, end)) {
            watch(end);
        } else {
            end->pair->severed = true;
            wfi_sim_end_break(end, WEFT_ERR_FABRIC);
        }
    }
    timer_drop(sim, event);
}

static void watch(sim_end *end)
{
    sim_pair *pair = end->pair;
    end->watched = true;
    end->heard_at_timer = end->heard;
    pair->references++;
    end->unheard_timer =
        (sim_event){.fire = timer_fire, .drop = timer_drop, .from = end->rank, .to = -1, .kind = SIM_UNHEARD};
    wfi_sim_schedule(pair->sim, &end->unheard_timer, pair->sim->now_ns + pair->form->unheard_ns);
}

void wfi_sim_packet_left(sim_packet *packet)
{
    sim_end *end = packet->from;
    if (!end->pair->form->quiet)
        return;
    packet->unheard = true;
    end->unheard++;
    if (!end->watched)
        watch(end);
}

void wfi_sim_packet_heard(sim_packet *packet)
{
    if (!packet->unheard)
        return;
    packet->unheard = false;
    packet->from->unheard--;
    packet->from->heard++;
}

bool wfi_sim_packet_is_lost(sim_packet *packet)
{
    const sim_form *form = packet->pair->form;
    sim_end *to = packet->to;
    if (packet->pair->severed)
        return true;
    if (!form->closes_quietly || to->state != SIM_CLOSED)
        return false;
    const sim_rank *rank = wfi_sim_rank_seen(packet->pair->sim, to->rank);
    if (rank && rank->listens[form->number])
        wfi_sim_end_bye(to); /* the answer to a packet for an unknown lane */
    return true;
}

void wfi_sim_fabric_sever(sim_fabric *fabric)
{
    for (wfi_list *node = fabric->ends.next; node != &fabric->ends; node = node->next)
        wfi_container_of(node, sim_end, link)->pair->severed = true;
}
