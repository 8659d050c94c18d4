/* SPDX-License-Identifier: Apache-2.0 */
/* early.c - messages for operations that have not begun here. All count against the memory budget. */
#include "coll/group.h"

#include "base/alloc.h"
#include "rpc/agent/budget.h"

#include <stdlib.h>
#include <string.h>

static weft_status room_for(const weft_agent *agent, size_t bytes)
{
    size_t budget = agent->options.values.memory_budget_bytes, held = wfi_budget_unreserved(agent);
    return !budget || held + bytes <= budget ? WEFT_OK : WEFT_ERR_BUSY;
}

static size_t early_bytes(const wfi_early *early)
{
    return sizeof(*early) + (early->data.is_eager ? early->data.size : 0);
}

wfi_early *wfi_early_make(size_t from, const wfi_data *data)
{
    size_t eager_bytes = data->is_eager ? data->size : 0;
    wfi_early *early = malloc(sizeof(*early) + eager_bytes);
    if (!early)
        return NULL;
    *early = (wfi_early){.from = from, .data = *data};
    wfi_list_init(&early->link);
    if (eager_bytes)
        memcpy(early + 1, data->bytes, eager_bytes);
    early->data.bytes = (const uint8_t *)(early + 1);
    return early;
}

void wfi_early_keep(weft_group *group, size_t from, const wfi_data *data)
{
    weft_agent *agent = group->agent;
    size_t bytes = sizeof(wfi_early) + (data->is_eager ? data->size : 0);
    weft_status status = room_for(agent, bytes);
    wfi_early *early = status ? NULL : wfi_early_make(from, data);
    if (status)
        wfi_group_break_for(group, status, wfi_agent_rank(agent),
                            "rank %d: %zu bytes are held, and %zu more came early: raise memory_budget_bytes "
                            "(WEFT_MEMORY_BUDGET) above %zu, or let members call in step",
                            wfi_agent_rank(agent), agent->held_bytes, bytes, agent->options.values.memory_budget_bytes);
    else if (!early)
        wfi_group_break_for(group, WEFT_ERR_MEMORY, wfi_agent_rank(agent),
                            "rank %d has no memory for %zu bytes that came early", wfi_agent_rank(agent), bytes);
    if (!early)
        return;
    early->agent = agent;
    wfi_budget_keep_item(agent, (int64_t)bytes);
    wfi_list *where = data->space == WFI_SPACE_COLLECTIVE ? &group->early[data->number % WFI_GROUP_AHEAD]
                                                          : &group->members[from].early;
    wfi_list_push_back(where, &early->link);
}

void wfi_early_free(wfi_early *early)
{
    wfi_list_remove(&early->link);
    if (early->agent)
        wfi_budget_keep_item(early->agent, -(int64_t)early_bytes(early));
    free(early);
}

wfi_early *wfi_early_take(const wfi_operation *operation)
{
    weft_group *group = operation->group;
    if (operation->space == WFI_SPACE_P2P && operation->sends)
        return NULL;
    wfi_list *where = operation->space == WFI_SPACE_COLLECTIVE ? &group->early[operation->number % WFI_GROUP_AHEAD]
                                                               : &group->members[operation->peer].early;
    WFI_FOR_LIST (wfi_early, early, where, link) {
        bool is_later = operation->more && early->data.slot >= operation->schedule.recvs[early->from];
        if (early->data.number == operation->number && !is_later) {
            wfi_list_remove(&early->link);
            return early;
        }
    }
    return NULL;
}

static bool has(const wfi_list *where, const wfi_operation *operation, uint64_t number, const wfi_step *step)
{
    wfi_signature ours = wfi_operation_signature(operation);
    WFI_FOR_LIST (const wfi_early, early, where, link)
        if (early->from == (size_t)step->peer && early->data.number == number && early->data.slot == step->slot &&
            early->data.is_eager && early->data.size == step->size &&
            wfi_operation_signature_equals(&early->data.signature, &ours))
            return true;
    return false;
}

bool wfi_early_has_all(const wfi_operation *operation, uint64_t number)
{
    const weft_group *group = operation->group;
    size_t recvs = 0;
    for (size_t i = 0; i < operation->schedule.step_count; i++) {
        const wfi_step *step = &operation->schedule.steps[i];
        recvs += step->kind == WFI_STEP_RECV;
        const wfi_list *where = operation->space == WFI_SPACE_COLLECTIVE ? &group->early[number % WFI_GROUP_AHEAD]
                                                                         : &group->members[operation->peer].early;
        if (step->kind == WFI_STEP_SEND || step->kind == WFI_STEP_CARRY || step->kind == WFI_STEP_SHARE ||
            (step->kind == WFI_STEP_RECV && !has(where, operation, number, step)))
            return false;
    }
    return recvs && !operation->more;
}

static void free_all(wfi_list *list)
{
    while (!wfi_list_empty(list))
        wfi_early_free(wfi_container_of(list->next, wfi_early, link));
}

void wfi_early_forget(weft_group *group)
{
    for (size_t i = 0; i < WFI_GROUP_AHEAD; i++)
        free_all(&group->early[i]);
    for (size_t i = 0; i < group->size; i++)
        free_all(&group->members[i].early);
}
