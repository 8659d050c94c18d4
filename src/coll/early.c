/* SPDX-License-Identifier: Apache-2.0 */
/*
 * early.c - messages that arrive before this member is ready for them: for operations that have not begun, and for
 * groups that are not open. All count against the memory budget.
 */
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

/* ---- For operations that have not begun -------------------------------------------------------------------------- */

static size_t early_bytes(const wfi_early *early)
{
    return sizeof(*early) + (early->data.rides ? early->data.size : 0);
}

wfi_early *wfi_early_make(size_t from, const wfi_data *data)
{
    size_t riding = data->rides ? data->size : 0;
    wfi_early *early = malloc(sizeof(*early) + riding);
    if (!early)
        return NULL;
    *early = (wfi_early){.from = from, .data = *data};
    wfi_list_init(&early->link);
    if (riding)
        memcpy(early + 1, data->bytes, riding);
    early->data.bytes = (const uint8_t *)(early + 1);
    return early;
}

void wfi_early_keep(weft_group *group, size_t from, const wfi_data *data)
{
    weft_agent *agent = group->agent;
    size_t bytes = sizeof(wfi_early) + (data->rides ? data->size : 0);
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
    wfi_list *where =
        data->space == WFI_TOGETHER ? &group->early[data->number % WFI_GROUP_AHEAD] : &group->members[from].early;
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
    if (operation->space == WFI_BETWEEN && operation->sends)
        return NULL;
    wfi_list *where = operation->space == WFI_TOGETHER ? &group->early[operation->number % WFI_GROUP_AHEAD]
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
            early->data.rides && early->data.size == step->size && wfi_signature_is(&early->data.signature, &ours))
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
        const wfi_list *where = operation->space == WFI_TOGETHER ? &group->early[number % WFI_GROUP_AHEAD]
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

/* ---- For groups that are not open --------------------------------------------------------------------------------
 * OVER says that a group has ended. Then the earlier messages of its sender are discarded. OVER itself is kept, so
 * that this member learns the reason if it makes the group later. The last OVERS_MOST of these are kept. They do not
 * count against the budget, because nobody can know whether the group will ever be made here. */

#define OVERS_MOST 128
#define OVERS_EACH 2 /* of one group: a worker that is no member of it may have sent the first one */

typedef struct stray {
    wfi_list link;
    struct record *of;
    wfi_peer *from;     /* referenced */
    bool is_over;       /* OVER: not counted */
    wfi_list over_link; /* of OVER: in wfi_groups.overs */
    size_t size;
    uint8_t *bytes;
} stray;

typedef struct record {
    uint64_t id;
    wfi_group_key key;
    wfi_list strays;
    /* Why a message for the group was not kept: then the group cannot begin. WEFT_OK: all were kept. */
    weft_status refused;
    wfi_peer *of; /* referenced: the sender of that message */
} record;

#define REFUSED_MOST 1024 /* records that only hold such a reason: they count against no budget */

static void free_stray(weft_agent *agent, stray *one)
{
    wfi_list_remove(&one->link);
    wfi_list_remove(&one->over_link);
    if (one->is_over)
        wfi_groups_of(agent)->over_count--;
    else
        wfi_budget_keep_item(agent, -(int64_t)(sizeof(*one) + one->size));
    wfi_peer_unref(one->from);
    free(one->bytes);
    free(one);
}

/* NULL: no memory. */
static record *make_record(wfi_map *records, uint64_t id, const wfi_group_key *key)
{
    record *made = wfi_calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    made->id = id;
    made->key = *key;
    wfi_list_init(&made->strays);
    if (wfi_map_put(records, id, made)) {
        free(made);
        return NULL;
    }
    return made;
}

/* Frees the record if it is empty. */
static bool drop_record(wfi_groups *groups, record *kept)
{
    if (!wfi_list_empty(&kept->strays) || kept->refused)
        return false;
    (void)wfi_map_take(&groups->records, kept->id);
    free(kept);
    return true;
}

static void refuse(wfi_groups *groups, record *kept, wfi_peer *from, weft_status why)
{
    if (kept->refused)
        return;
    kept->refused = why;
    kept->of = wfi_peer_ref(from);
    groups->refused_records++;
}

static void forget_refusal(wfi_groups *groups, record *kept)
{
    if (!kept->refused)
        return;
    kept->refused = WEFT_OK;
    wfi_peer_unref(kept->of);
    kept->of = NULL;
    groups->refused_records--;
}

/* NULL: no memory. The caller counts it. */
static stray *make_stray(record *of, wfi_peer *from, const uint8_t *bytes, size_t size)
{
    stray *one = wfi_calloc(1, sizeof(*one));
    uint8_t *copy = one ? malloc(size) : NULL;
    if (!copy) {
        free(one);
        return NULL;
    }
    memcpy(copy, bytes, size);
    *one = (stray){.of = of, .from = wfi_peer_ref(from), .size = size, .bytes = copy};
    wfi_list_init(&one->link);
    wfi_list_init(&one->over_link);
    wfi_list_push_back(&of->strays, &one->link);
    return one;
}

static weft_status keep(weft_agent *agent, record *kept, wfi_peer *from, const uint8_t *bytes, size_t size)
{
    weft_status status = room_for(agent, sizeof(stray) + size);
    if (!status && !make_stray(kept, from, bytes, size))
        status = WEFT_ERR_MEMORY;
    if (!status)
        wfi_budget_keep_item(agent, (int64_t)(sizeof(stray) + size));
    return status;
}

/* The number of OVERs kept for this group; OVERS_EACH if the one from `from` is not to be kept. */
static int count_overs(const record *kept, const wfi_peer *from)
{
    int count = 0;
    WFI_FOR_LIST (const stray, one, &kept->strays, link) {
        count += one->is_over;
        if (one->is_over && one->from == from)
            return OVERS_EACH;
    }
    return count;
}

static weft_status keep_over(weft_agent *agent, record *kept, wfi_peer *from, const uint8_t *bytes, size_t size)
{
    wfi_groups *groups = wfi_groups_of(agent);
    int count = count_overs(kept, from);
    if (count >= OVERS_EACH)
        return WEFT_OK;
    stray *one = make_stray(kept, from, bytes, size);
    if (!one)
        return WEFT_ERR_MEMORY;
    one->is_over = true;
    if (count) /* the second one of a group is the first to be dropped */
        wfi_list_push_front(&groups->overs, &one->over_link);
    else
        wfi_list_push_back(&groups->overs, &one->over_link);
    if (++groups->over_count > OVERS_MOST) {
        stray *oldest = wfi_container_of(groups->overs.next, stray, over_link);
        record *of = oldest->of;
        free_stray(agent, oldest);
        (void)drop_record(groups, of);
    }
    return WEFT_OK;
}

/* Frees the messages of that peer, except OVER. */
static void forget_strays(weft_agent *agent, record *kept, const wfi_peer *from)
{
    WFI_FOR_LIST_TAKING (stray, one, next, &kept->strays, link)
        if (one->from == from && !one->is_over)
            free_stray(agent, one);
}

weft_status wfi_record_keep(weft_agent *agent, wfi_peer *from, const wfi_group_key *key, const uint8_t *bytes,
                            size_t size, bool is_over)
{
    wfi_groups *groups = wfi_groups_of(agent);
    uint64_t id = wfi_group_id(agent, key);
    record *kept = wfi_map_get(&groups->records, id);
    if (!kept)
        kept = make_record(&groups->records, id, key);
    if (!kept)
        return WEFT_ERR_MEMORY;
    if (is_over) { /* messages before OVER are of no use to a member that makes the group now */
        forget_strays(agent, kept, from);
        if (kept->of == from)
            forget_refusal(groups, kept);
    }
    weft_status status = is_over ? keep_over(agent, kept, from, bytes, size) : keep(agent, kept, from, bytes, size);
    if (status && groups->refused_records < REFUSED_MOST)
        refuse(groups, kept, from, status);
    (void)drop_record(groups, kept);
    return status;
}

uint8_t *wfi_record_take(weft_agent *agent, const wfi_group_key *key, wfi_peer **from, size_t *size)
{
    wfi_groups *groups = wfi_groups_of(agent);
    record *kept = wfi_map_get(&groups->records, wfi_group_id(agent, key));
    if (!kept || wfi_list_empty(&kept->strays))
        return NULL;
    stray *one = wfi_container_of(kept->strays.next, stray, link);
    uint8_t *bytes = one->bytes;
    *from = wfi_peer_ref(one->from);
    *size = one->size;
    one->bytes = NULL;
    free_stray(agent, one);
    (void)drop_record(groups, kept);
    return bytes;
}

weft_status wfi_record_refused(weft_agent *agent, const wfi_group_key *key)
{
    wfi_groups *groups = wfi_groups_of(agent);
    record *kept = wfi_map_get(&groups->records, wfi_group_id(agent, key));
    weft_status status = kept ? kept->refused : WEFT_OK;
    if (!kept)
        return WEFT_OK;
    forget_refusal(groups, kept);
    (void)drop_record(groups, kept);
    return status;
}

size_t wfi_records_count(const weft_agent *agent, size_t *bytes)
{
    const record *kept;
    size_t count = 0;
    *bytes = 0;
    for (size_t at = 0; (kept = wfi_map_next(&wfi_groups_of(agent)->records, &at, NULL));)
        WFI_FOR_LIST (const stray, one, &kept->strays, link) {
            if (one->is_over)
                continue;
            count++;
            *bytes += sizeof(*one) + one->size;
        }
    return count;
}

/* Returns whether the record became empty and was freed. */
static bool forget_of(weft_agent *agent, record *kept, const wfi_peer *from)
{
    WFI_FOR_LIST_TAKING (stray, one, next, &kept->strays, link)
        if (!from || one->from == from)
            free_stray(agent, one);
    if (!from || kept->of == from)
        forget_refusal(wfi_groups_of(agent), kept);
    return drop_record(wfi_groups_of(agent), kept);
}

void wfi_records_forget(weft_agent *agent, const wfi_peer *from)
{
    record *kept;
    for (size_t at = 0; (kept = wfi_map_next(&wfi_groups_of(agent)->records, &at, NULL));)
        if (forget_of(agent, kept, from))
            at = 0; /* the table has changed */
}

void wfi_records_forget_former(weft_agent *agent, const wfi_group_key *key)
{
    record *kept;
    for (size_t at = 0; (kept = wfi_map_next(&wfi_groups_of(agent)->records, &at, NULL));)
        if (wfi_group_is_same_list(&kept->key, key) && kept->key.generation < key->generation &&
            forget_of(agent, kept, NULL))
            at = 0; /* the table has changed */
}
