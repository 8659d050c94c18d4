/* SPDX-License-Identifier: Apache-2.0 */
/* group.c - what a group is: its names, its references, its error. */
#include "coll/group.h"

#include "base/alloc.h"
#include "base/error.h"
#include "coll/carrier.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- Names ------------------------------------------------------------------------------------------------------- */

typedef struct id_bytes {
    uint64_t words[3];
} id_bytes;

uint64_t wfi_group_id(const weft_agent *agent, const wfi_group_key *key)
{
    id_bytes bytes = {{key->name_hash, key->members_hash, key->generation}};
    return wfi_hash_keyed(&agent->hash_key, &bytes, sizeof bytes);
}

static uint64_t past_id(const weft_agent *agent, const wfi_group_key *key)
{
    id_bytes bytes = {{key->name_hash, key->members_hash, UINT64_MAX}};
    return wfi_hash_keyed(&agent->hash_key, &bytes, sizeof bytes);
}

uint64_t wfi_group_past(const weft_agent *agent, const wfi_group_key *key)
{
    return (uintptr_t)wfi_map_get(&wfi_groups_of(agent)->pasts, past_id(agent, key));
}

weft_status wfi_group_remember(const weft_group *group)
{
    wfi_map *pasts = &wfi_groups_of(group->agent)->pasts;
    uint64_t id = past_id(group->agent, &group->key);
    (void)wfi_map_take(pasts, id);
    return wfi_map_put(pasts, id, (void *)((uintptr_t)group->key.generation + 1));
}

/* ---- References -------------------------------------------------------------------------------------------------- */

weft_group *wfi_group_make(weft_agent *agent, const char *name, void (*ended)(wfi_done *done))
{
    weft_group *group = wfi_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->agent = wfi_agent_ref(agent);
    atomic_init(&group->refs, 1);
    snprintf(group->name, sizeof group->name, "%s", name);
    group->ended.run = ended;
    wfi_list_init(&group->link);
    wfi_list_init(&group->operations);
    wfi_map_init(&group->places);
    for (size_t i = 0; i < WFI_GROUP_AHEAD; i++)
        wfi_list_init(&group->early[i]);
    return group;
}

weft_group *wfi_group_ref(weft_group *group)
{
    atomic_fetch_add_explicit(&group->refs, 1, memory_order_relaxed);
    return group;
}

void wfi_group_unref(weft_group *group)
{
    if (atomic_fetch_sub_explicit(&group->refs, 1, memory_order_acq_rel) != 1)
        return;
    weft_error_unref(group->over);
    wfi_rules_fini(&group->rules);
    wfi_carrier_free(group->carrier);
    wfi_map_fini(&group->places);
    free(group->members);
    wfi_agent_unref(group->agent);
    free(group);
}

wfi_group_member *wfi_group_member_of(const weft_group *group, const wfi_peer *peer)
{
    wfi_group_member *member = wfi_map_get(&group->places, (uint64_t)wfi_peer_rank(peer) + 1);
    return member && member->peer == peer ? member : NULL;
}

void wfi_group_depend(weft_group *group, int change)
{
    for (size_t i = 0; i < group->size; i++)
        if (group->members[i].peer)
            wfi_peer_depend(group->members[i].peer, change, 0);
}

/* ---- Its error --------------------------------------------------------------------------------------------------- */

WEFT_PRINTF(4, 0)
static weft_error *problem_of(const weft_group *group, weft_status code, int worker, const char *format, va_list args)
{
    wfi_error_detail detail = {.code = code, .function = group->name, .worker = worker};
    char text[WFI_ERROR_MESSAGE_MAX];
    vsnprintf(text, sizeof text, format, args);
    return wfi_error_create(&detail, "group \"%s\": %s", group->name, text);
}

weft_error *wfi_group_problem(const weft_group *group, weft_status code, int worker, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    weft_error *error = problem_of(group, code, worker, format, args);
    va_end(args);
    return error;
}

void wfi_group_break(weft_group *group, weft_error *error, bool tells)
{
    if (group->over) {
        weft_error_unref(error);
        return;
    }
    group->over = error;
    group->tells = tells;
    wfi_group_ref(group); /* over.c lets go of it */
    wfi_progress_end(&group->agent->net->progress, &group->ended, WFI_DONE_MESSAGE);
}

void wfi_group_break_for(weft_group *group, weft_status code, int worker, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    wfi_group_break(group, problem_of(group, code, worker, format, args), true);
    va_end(args);
}
