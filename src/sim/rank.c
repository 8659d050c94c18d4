/* SPDX-License-Identifier: Apache-2.0 */
/* rank.c - the workers that the world has seen, and cuts and firewalls between them. */
#include "sim/world.h"

#include "base/alloc.h"

#include <stdlib.h>

sim_rank *wfi_sim_rank_seen(const weft_sim *sim, int rank)
{
    return rank >= 0 && (size_t)rank < sim->rank_capacity ? sim->ranks[rank] : NULL;
}

static bool ranks_grow(weft_sim *sim, size_t wanted)
{
    size_t capacity = sim->rank_capacity * 2 > wanted ? sim->rank_capacity * 2 : wanted;
    sim_rank **ranks = realloc(sim->ranks, capacity * sizeof(*ranks));
    if (!ranks)
        return false;
    for (size_t i = sim->rank_capacity; i < capacity; i++)
        ranks[i] = NULL;
    sim->ranks = ranks;
    sim->rank_capacity = capacity;
    return true;
}

sim_rank *wfi_sim_rank(weft_sim *sim, int rank)
{
    sim_rank *found = wfi_sim_rank_seen(sim, rank);
    if (found || rank < 0 || rank >= SIM_RANK_MAX)
        return found;
    if ((size_t)rank >= sim->rank_capacity && !ranks_grow(sim, (size_t)rank + 1))
        return NULL;
    found = wfi_calloc(1, sizeof(*found));
    if (!found)
        return NULL;
    found->rank = rank;
    wfi_list_init(&found->held);
    wfi_list_init(&found->channels);
    sim->ranks[rank] = found;
    return found;
}

void wfi_sim_ranks_free(weft_sim *sim)
{
    for (size_t i = 0; i < sim->rank_capacity; i++)
        free(sim->ranks[i]);
    free(sim->ranks);
}

uint64_t wfi_sim_link_key(int a, int b)
{
    uint32_t low = (uint32_t)(a < b ? a : b), high = (uint32_t)(a < b ? b : a);
    return (uint64_t)high << 32 | low;
}

wfi_list *wfi_sim_cut_between(const weft_sim *sim, int a, int b)
{
    return sim->cuts.count ? wfi_map_get(&sim->cuts, wfi_sim_link_key(a, b)) : NULL;
}

uint64_t wfi_sim_fabric_cut_key(const sim_form *form, int from, int to)
{
    return (uint64_t)form->number << 40 | (uint64_t)(uint32_t)from << 20 | (uint32_t)to;
}

wfi_list *wfi_sim_fabric_cut(const weft_sim *sim, const sim_form *form, int from, int to)
{
    return sim->fabric_cuts.count ? wfi_map_get(&sim->fabric_cuts, wfi_sim_fabric_cut_key(form, from, to)) : NULL;
}

uint64_t wfi_sim_wall_key(int from, int to)
{
    return (uint64_t)(uint32_t)from << 32 | (uint32_t)to;
}

bool wfi_sim_is_walled(const weft_sim *sim, int from, int to)
{
    return sim->walls.count && wfi_map_get(&sim->walls, wfi_sim_wall_key(from, to));
}
