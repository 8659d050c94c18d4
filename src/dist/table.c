/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - an agent's contexts by their ids. */
#include "dist/contexts.h"

#include "base/alloc.h"

#include <stdlib.h>

static uint64_t key_of(const weft_agent *agent, const weft_context_id *id)
{
    uint64_t words[] = {id->rank, id->incarnation, id->number};
    return wfi_hash_keyed(&agent->hash_key, words, sizeof words);
}

weft_context *wfi_contexts_find(weft_agent *agent, const weft_context_id *id)
{
    weft_context *context = wfi_map_get(&wfi_contexts_of(agent)->table, key_of(agent, id));
    while (context && !wfi_context_is_of(context, id))
        context = context->next_same;
    return context;
}

weft_context *wfi_contexts_find_ref(weft_agent *agent, const weft_context_id *id)
{
    wfi_net_lock(agent->net);
    weft_context *context = wfi_contexts_find(agent, id);
    if (context)
        wfi_context_ref(context);
    wfi_net_unlock(agent->net);
    return context;
}

weft_status wfi_contexts_add(wfi_contexts *all, weft_context *context)
{
    uint64_t key = key_of(all->agent, &context->id);
    context->next_same = wfi_map_take(&all->table, key);
    if (wfi_map_put(&all->table, key, context)) {
        if (context->next_same && wfi_map_put(&all->table, key, context->next_same))
            return WEFT_ERR_MEMORY; /* impossible: its entry has just become free */
        return WEFT_ERR_MEMORY;
    }
    all->count++;
    return WEFT_OK;
}

typedef struct unref_task {
    wfi_task task;
    weft_context *context;
} unref_task;

static void run_unref(wfi_task *task)
{
    unref_task *later = wfi_container_of(task, unref_task, task);
    wfi_context_unref(later->context);
    free(later);
}

void wfi_context_unref_later(weft_context *context)
{
    unref_task *later = wfi_calloc(1, sizeof *later);
    if (!later)
        return;
    *later = (unref_task){.task.run = run_unref, .context = context};
    wfi_net_defer(context->agent->net, &later->task, WFI_DEFER_RELEASE);
}

void wfi_contexts_take(wfi_contexts *all, weft_context *context)
{
    uint64_t key = key_of(all->agent, &context->id);
    weft_context *first = wfi_map_take(&all->table, key), **at = &first;
    while (*at && *at != context)
        at = &(*at)->next_same;
    if (*at)
        *at = context->next_same;
    if (first && wfi_map_put(&all->table, key, first))
        first = NULL; /* impossible: its entry has just become free */
    all->count--;
}

weft_status wfi_contexts_join(weft_agent *agent, const weft_context_id *id, weft_context **out)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    const wfi_opener *opener = &all->openers[id->rank];
    *out = wfi_contexts_find(agent, id);
    if (*out)
        return WEFT_OK;
    const wfi_member *member = wfi_net_member(agent->net, (int)id->rank);
    if ((int)id->rank == wfi_agent_rank(agent) || !wfi_agent_knows_alive(agent, (int)id->rank) ||
        member->incarnation > id->incarnation || opener->incarnation > id->incarnation ||
        (opener->incarnation == id->incarnation &&
         (id->number < opener->floor || wfi_map_get(&opener->closed, id->number))))
        return WEFT_ERR_STATE;
    weft_context *context = wfi_context_create(agent, *id);
    if (!context)
        return WEFT_ERR_MEMORY;
    if (wfi_contexts_add(all, context)) {
        wfi_context_unref_later(context);
        return WEFT_ERR_MEMORY;
    }
    *out = context;
    return WEFT_OK;
}
