/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c - injected faults: deaths, pauses, cuts, resets. */
#include "sim/world.h"

#include <stdlib.h>

/* ---- Deaths ---------------------------------------------------------------------------------------------------- */

static void programs_forget(weft_sim *sim, int rank)
{
    wfi_list *node = sim->programs.next;
    while (node != &sim->programs) {
        sim_program *program = wfi_container_of(node, sim_program, link);
        node = node->next;
        if (program->rank != rank)
            continue;
        wfi_list_remove(&program->link);
        free(program);
    }
}

static void fabrics_kill(weft_sim *sim, int rank)
{
    for (wfi_list *node = sim->fabrics.next; node != &sim->fabrics; node = node->next) {
        sim_fabric *fabric = wfi_container_of(node, sim_fabric, link);
        if (fabric->rank->rank != rank)
            continue;
        if (fabric->form->quiet)
            wfi_sim_fabric_sever(fabric);
        wfi_sim_fabric_kill(fabric);
    }
}

void weft_sim_kill(weft_sim *sim, int rank)
{
    WFI_CHECK_HANDLE(sim);
    sim_rank *killed = sim ? wfi_sim_rank_seen(sim, rank) : NULL;
    if (!killed)
        return;
    wfi_sim_trace(sim, SIM_KILL, rank, -1, 0);
    fabrics_kill(sim, rank);
    wfi_sim_channels_kill(killed);
    programs_forget(sim, rank);
    wfi_fibers_abandon(sim->fibers, rank);
    /* Releases the events held for it: they find its ends closed. A worker that is started later at this rank is not
     * paused. */
    weft_sim_resume(sim, rank);
    wfi_fiber *self = wfi_fiber_current();
    if (self && self->clock == &sim->clock)
        wfi_fiber_wait(self, sim->now_ns); /* does not return in a fiber that killed itself */
}

/* ---- Pauses ---------------------------------------------------------------------------------------------------- */

void weft_sim_pause(weft_sim *sim, int rank)
{
    WFI_CHECK_HANDLE(sim);
    if (!sim)
        return;
    sim_rank *paused = wfi_sim_rank(sim, rank);
    if (!paused) {
        sim->broken = rank >= 0 && rank < SIM_RANK_MAX ? WEFT_ERR_MEMORY : sim->broken;
        return;
    }
    if (paused->paused)
        return;
    wfi_sim_trace(sim, SIM_PAUSE, rank, -1, 0);
    paused->paused = true;
    if (wfi_fibers_freeze(sim->fibers, rank) != WEFT_OK)
        sim->broken = WEFT_ERR_MEMORY;
}

void weft_sim_resume(weft_sim *sim, int rank)
{
    WFI_CHECK_HANDLE(sim);
    sim_rank *resumed = sim ? wfi_sim_rank_seen(sim, rank) : NULL;
    if (!resumed || !resumed->paused)
        return;
    wfi_sim_trace(sim, SIM_RESUME, rank, -1, 0);
    resumed->paused = false;
    wfi_fibers_thaw(sim->fibers, rank);
    wfi_sim_let_go(sim, &resumed->held);
}

/* ---- Links ----------------------------------------------------------------------------------------------------- */

void weft_sim_cut(weft_sim *sim, int a, int b)
{
    WFI_CHECK_HANDLE(sim);
    if (!sim || a < 0 || b < 0 || a == b || wfi_sim_cut_between(sim, a, b))
        return;
    wfi_list *held = malloc(sizeof(*held));
    if (!held || wfi_map_put(&sim->cuts, wfi_sim_link_key(a, b), held) != WEFT_OK) {
        free(held);
        sim->broken = WEFT_ERR_MEMORY;
        return;
    }
    wfi_list_init(held);
    wfi_sim_trace(sim, SIM_CUT, a, b, 0);
}

void weft_sim_heal(weft_sim *sim, int a, int b)
{
    WFI_CHECK_HANDLE(sim);
    wfi_list *held = sim ? wfi_map_take(&sim->cuts, wfi_sim_link_key(a, b)) : NULL;
    if (!held)
        return;
    wfi_sim_trace(sim, SIM_HEAL, a, b, 0);
    wfi_sim_let_go(sim, held);
    free(held);
}

void wfi_sim_wall(weft_sim *sim, int from, int to, bool up)
{
    if (from < 0 || to < 0)
        return;
    wfi_sim_trace(sim, SIM_WALL, from, to, up);
    (void)wfi_map_take(&sim->walls, wfi_sim_wall_key(from, to));
    if (up && wfi_map_put(&sim->walls, wfi_sim_wall_key(from, to), sim) != WEFT_OK)
        sim->broken = WEFT_ERR_MEMORY;
}

/* For the end of the world: releases all that is held. */
void wfi_sim_let_all_go(weft_sim *sim)
{
    size_t cursor = 0;
    uint64_t key;
    for (wfi_list *held; (held = wfi_map_next(&sim->cuts, &cursor, &key));) {
        wfi_sim_let_go(sim, held);
        free(held);
    }
    cursor = 0;
    for (wfi_list *held; (held = wfi_map_next(&sim->fabric_cuts, &cursor, &key));) {
        wfi_sim_let_go(sim, held);
        free(held);
    }
    for (size_t i = 0; i < sim->rank_capacity; i++)
        if (sim->ranks[i])
            wfi_sim_let_go(sim, &sim->ranks[i]->held);
}

static void end_reset(sim_end *end)
{
    end->said_bye = true; /* neither end can tell the other */
    if (end->state == SIM_CONNECTING || end->state == SIM_OPEN)
        wfi_sim_end_break(end, WEFT_ERR_FABRIC);
}

void weft_sim_reset_link(weft_sim *sim, int a, int b)
{
    WFI_CHECK_HANDLE(sim);
    if (!sim)
        return;
    wfi_sim_trace(sim, SIM_RESET, a, b, 0);
    for (wfi_list *node = sim->pairs.next, *next; node != &sim->pairs; node = next) {
        sim_pair *pair = wfi_container_of(node, sim_pair, link);
        next = node->next;
        int from = pair->ends[0].rank, to = pair->ends[1].rank;
        if ((from != a || to != b) && (from != b || to != a))
            continue;
        if (pair->form->quiet) { /* it announces no break: packets are lost from now on */
            pair->severed = true;
            continue;
        }
        pair->references++; /* an end that breaks may drop the pair, and change the list */
        end_reset(&pair->ends[0]);
        end_reset(&pair->ends[1]);
        next = node->next;
        wfi_sim_pair_unref(pair);
    }
}
