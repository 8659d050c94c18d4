/* SPDX-License-Identifier: Apache-2.0 */
/* fabric_fault.c - injected faults of one kind of fabric: it fails at a worker, is cut, or refuses registrations. */
#include "sim/world.h"

#include "base/text/refuse.h"

#include <stdlib.h>

/* The fabric of a worker. `rank` is NULL if the arguments were refused. */
typedef struct target {
    const sim_form *form;
    sim_rank *rank;
} target;

static weft_status check_rank(const char *function, const char *name, int rank)
{
    if (rank >= 0 && rank < SIM_RANK_MAX)
        return WEFT_OK;
    return wfi_refuse(WEFT_ERR_INVALID, "%s: %s is %d: 0 to %d", function, name, rank, SIM_RANK_MAX - 1);
}

static weft_status find_target(const char *function, weft_sim *sim, const char *name, int rank, const char *fabric,
                               target *out)
{
    if (!sim || !fabric)
        return wfi_refuse_null(function, sim ? "fabric" : "the simulation");
    weft_status status = check_rank(function, name, rank);
    if (status)
        return status;
    out->form = wfi_sim_form_find(fabric);
    if (!out->form)
        return wfi_refuse(WEFT_ERR_INVALID,
                          "%s: no simulated fabric has the name \"%s\": sim, sim-verbs, sim-reads or sim-rdm", function,
                          fabric);
    out->rank = wfi_sim_rank(sim, rank);
    return out->rank ? WEFT_OK : WEFT_ERR_MEMORY;
}

/* ---- A fabric that fails at a worker --------------------------------------------------------------------------- */

static void end_fail(sim_end *end)
{
    if (end->state == SIM_REQUESTED && !wfi_list_empty(&end->up.link)) {
        wfi_sim_end_close(end); /* a request that was not seen */
    } else if (wfi_sim_end_is_live(end)) {
        wfi_sim_end_bye(end);
        wfi_sim_end_break(end, WEFT_ERR_FABRIC);
    }
}

weft_status weft_sim_fabric_fail(weft_sim *sim, int rank, const char *fabric)
{
    WFI_CHECK_HANDLE(sim);
    target at = {0};
    weft_status status = find_target("weft_sim_fabric_fail", sim, "rank", rank, fabric, &at);
    if (!at.rank || at.rank->failed[at.form->number])
        return status;
    wfi_sim_trace(sim, SIM_FABRIC_FAIL, rank, -1, at.form->number);
    at.rank->failed[at.form->number] = true;
    sim_fabric *open = at.rank->listens[at.form->number];
    if (!open)
        return WEFT_OK;
    if (at.form->quiet) {
        wfi_sim_fabric_sever(open);
        return WEFT_OK;
    }
    for (wfi_list *node = open->ends.next, *next; node != &open->ends; node = next) {
        next = node->next;
        end_fail(wfi_container_of(node, sim_end, link));
    }
    return WEFT_OK;
}

weft_status weft_sim_fabric_repair(weft_sim *sim, int rank, const char *fabric)
{
    WFI_CHECK_HANDLE(sim);
    target at = {0};
    weft_status status = find_target("weft_sim_fabric_repair", sim, "rank", rank, fabric, &at);
    if (!at.rank || !at.rank->failed[at.form->number])
        return status;
    wfi_sim_trace(sim, SIM_FABRIC_REPAIR, rank, -1, at.form->number);
    at.rank->failed[at.form->number] = false;
    return WEFT_OK;
}

weft_status weft_sim_fabric_refuse_memory(weft_sim *sim, int rank, const char *fabric, bool refuse)
{
    WFI_CHECK_HANDLE(sim);
    target at = {0};
    weft_status status = find_target("weft_sim_fabric_refuse_memory", sim, "rank", rank, fabric, &at);
    if (!at.rank)
        return status;
    wfi_sim_trace(sim, SIM_FABRIC_REFUSE, rank, (int)at.form->number, refuse);
    at.rank->refuses_memory[at.form->number] = refuse;
    return WEFT_OK;
}

/* ---- A fabric that is cut between two workers ------------------------------------------------------------------ */

static weft_status find_link(const char *function, weft_sim *sim, int from, int to, const char *fabric, target *out)
{
    weft_status status = find_target(function, sim, "from", from, fabric, out);
    if (!status)
        status = check_rank(function, "to", to);
    if (!status && from == to)
        return wfi_refuse(WEFT_ERR_INVALID, "%s: from and to are both %d: name two workers", function, from);
    return status;
}

weft_status weft_sim_fabric_cut(weft_sim *sim, int from, int to, const char *fabric)
{
    WFI_CHECK_HANDLE(sim);
    target at = {0};
    weft_status status = find_link("weft_sim_fabric_cut", sim, from, to, fabric, &at);
    if (status || !at.rank || wfi_sim_fabric_cut(sim, at.form, from, to))
        return status;
    wfi_list *held = malloc(sizeof(*held));
    status = held ? wfi_map_put(&sim->fabric_cuts, wfi_sim_fabric_cut_key(at.form, from, to), held) : WEFT_ERR_MEMORY;
    if (status) {
        free(held);
        return status;
    }
    wfi_list_init(held);
    wfi_sim_trace(sim, SIM_FABRIC_CUT, from, to, at.form->number);
    return WEFT_OK;
}

weft_status weft_sim_fabric_heal(weft_sim *sim, int from, int to, const char *fabric)
{
    WFI_CHECK_HANDLE(sim);
    target at = {0};
    weft_status status = find_link("weft_sim_fabric_heal", sim, from, to, fabric, &at);
    if (status || !at.rank)
        return status;
    wfi_list *held = wfi_map_take(&sim->fabric_cuts, wfi_sim_fabric_cut_key(at.form, from, to));
    if (!held)
        return WEFT_OK;
    wfi_sim_trace(sim, SIM_FABRIC_HEAL, from, to, at.form->number);
    wfi_sim_let_go(sim, held);
    free(held);
    return WEFT_OK;
}
