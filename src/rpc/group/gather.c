/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather.c - contributions come to the member that gathers (group.h): ours, those of others, early ones. operation.c
 * ends the operations. Everything here runs with the agent's lock held, but for the handler of "weft:gather" itself.
 */
#include "base/alloc.h"
#include "rpc/group/group.h"

#include "base/error.h"
#include "rpc/server/server.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_MISSING_MAX 8

/* ---- A contribution comes ---------------------------------------------------------------------------------------- */

static const char *kind_name(wfi_gather_kind kind)
{
    return kind == WFI_GATHER_BARRIER ? "a barrier" : "an all-gather";
}

static const wfi_contribution *any_contribution(const wfi_operation *operation)
{
    for (size_t i = 0; i < operation->size; i++)
        if (operation->contributions[i])
            return operation->contributions[i];
    return NULL;
}

/* It was sent again, because the answer was lost: who waits now is the newer one. */
static void take_place_of(wfi_contribution *contribution, wfi_contribution *before)
{
    weft_error *error = wfi_group_problem(contribution->group, WEFT_ERR_CANCELLED, -1, "it was sent again");
    wfi_contribution_fail(before, error);
    weft_error_unref(error);
    before->wait = contribution->wait;
    before->wait->contribution = before;
    contribution->wait = NULL;
    wfi_contribution_discard(contribution);
}

/* What this worker has not come to before it leaves an elastic job, it will not come to. */
static void fail_if_leaving(weft_group *group, wfi_operation *operation)
{
    const weft_agent *agent = group->agent;
    if (!agent->closing || !agent->options.values.elastic || operation->failure ||
        operation->contributions[group->index])
        return;
    int me = wfi_agent_rank(agent);
    wfi_operation_fail(operation, wfi_group_problem(group, WEFT_ERR_PEER_LEFT, me,
                                                    "rank %d, a member of group \"%s\", leaves", me, group->key.name));
}

void wfi_gather_leaving(weft_group *group)
{
    WFI_FOR_LIST (wfi_operation, operation, &group->operations, link)
        fail_if_leaving(group, operation);
}

/* What a member says that cannot take part. */
static weft_error *why_absent(const weft_group *group, const wfi_contribution *contribution)
{
    int64_t code;
    const char *text;
    if (contribution->kind != WFI_GATHER_ABSENT || weft_values_get_i64(contribution->values, 0, &code) ||
        weft_values_get_string(contribution->values, 1, &text))
        return NULL; /* no such thing was said */
    return wfi_group_problem(group, (weft_status)code, contribution->from,
                             "rank %d could not take part in operation %llu of group \"%s\": %s", contribution->from,
                             (unsigned long long)contribution->number, group->key.name, text);
}

static bool is_good_absence(const weft_values *values)
{
    int64_t code;
    const char *text;
    return weft_values_count(values) == 2 && !weft_values_get_i64(values, 0, &code) && code < 0 && code >= INT_MIN &&
           wfi_status_is_known((int)code) && !weft_values_get_string(values, 1, &text);
}

static void put_in(weft_group *group, wfi_operation *operation, wfi_contribution *contribution, int index)
{
    const wfi_contribution *other = any_contribution(operation);
    contribution->operation = operation;
    weft_error *absent = why_absent(group, contribution);
    if (absent)
        wfi_operation_fail(operation, absent);
    if (operation->contributions[index]) {
        take_place_of(contribution, operation->contributions[index]);
        contribution = operation->contributions[index];
    } else {
        operation->contributions[index] = contribution;
        operation->come++;
    }
    if (other && !operation->failure && other->kind != contribution->kind)
        wfi_operation_fail(
            operation, wfi_group_problem(group, WEFT_ERR_STATE, contribution->from,
                                         "operation %llu of group \"%s\" is %s on rank %d and %s on rank %d",
                                         (unsigned long long)operation->number, group->key.name, kind_name(other->kind),
                                         other->from, kind_name(contribution->kind), contribution->from));
    fail_if_leaving(group, operation);
    if (operation->failure)
        wfi_contribution_fail(contribution, operation->failure);
    if (operation->come == operation->size)
        wfi_operation_close(group, operation);
}

/* There is no memory for the contribution, nor to note that it is missing: then the group is broken. */
static void break_without_memory(weft_group *group, uint64_t number)
{
    int me = wfi_agent_rank(group->agent);
    group->broken =
        wfi_group_problem(group, WEFT_ERR_MEMORY, me, "rank %d had no memory for operation %llu of group \"%s\"", me,
                          (unsigned long long)number, group->key.name);
    wfi_gather_fail_all(group, group->broken);
    wfi_log_agent(group->agent, WEFT_LOG_ERROR, 0, "%s: the group is broken", weft_error_message(group->broken));
}

/* A contribution to a group that is open here. */
static void admit_contribution(weft_group *group, wfi_contribution *contribution)
{
    wfi_operation *operation;
    const wfi_group_member *member = wfi_map_get(&group->places, (uint64_t)contribution->from + 1);
    contribution->group = group;
    if (!member || member->incarnation != contribution->incarnation || group->index != 0) {
        wfi_contribution_refuse(contribution,
                                wfi_group_problem(group, WEFT_ERR_INVALID, -1,
                                                  "rank %d is no member of group \"%s\", or does not gather there",
                                                  contribution->from, group->key.name));
        return;
    }
    if (group->broken) {
        wfi_contribution_refuse(contribution, weft_error_ref(group->broken));
        return;
    }
    weft_status st = wfi_operation_find(group, contribution->number, &operation);
    if (st == WEFT_ERR_MEMORY)
        break_without_memory(group, contribution->number);
    if (st == WEFT_ERR_MEMORY)
        wfi_contribution_refuse(contribution, weft_error_ref(group->broken));
    else if (st)
        wfi_contribution_refuse(
            contribution, wfi_group_problem(group, st, -1, "operation %llu of group \"%s\": %s",
                                            (unsigned long long)contribution->number, group->key.name,
                                            st == WEFT_ERR_BUSY ? "too many operations are under way" : "it is over"));
    else
        put_in(group, operation, contribution, member->index);
}

/* ---- Early contributions ----------------------------------------------------------------------------------------- */

static void leave_record(wfi_contribution *contribution)
{
    wfi_list_remove(&contribution->link);
    wfi_groups_of(contribution->group->agent)->early_count--;
    wfi_groups_of(contribution->group->agent)->early_by_rank[contribution->from]--;
}

static void forget_if_empty(weft_group *record)
{
    if (record->opened || !wfi_list_empty(&record->early))
        return;
    wfi_list_remove(&record->link);
    wfi_group_free(record); /* the agent lives: its lock is held */
}

/* Takes over `error`. */
static void refuse_early(wfi_contribution *contribution, weft_error *error)
{
    leave_record(contribution);
    wfi_contribution_refuse(contribution, error);
}

static wfi_operation *operation_without(weft_group *group, int index)
{
    WFI_FOR_LIST (wfi_operation, operation, &group->operations, link)
        if (operation->contributions[0] && operation->contributions[0]->wait && !operation->contributions[index])
            return operation;
    return NULL;
}

/*
 * A contribution for another list of members under the name of a group that waits, here, for that very worker: the
 * lists differ by mistake. If nothing waits for it, it may belong to a group that this worker is about to make.
 */
static void refuse_if_mistaken(weft_group *group, wfi_contribution *contribution)
{
    const wfi_group_member *member = wfi_map_get(&group->places, (uint64_t)contribution->from + 1);
    wfi_operation *operation = member ? operation_without(group, member->index) : NULL;
    if (!operation)
        return;
    weft_error *error = wfi_group_problem(group, WEFT_ERR_INVALID, contribution->from,
                                          "rank %d made group \"%s\" with other members than rank %d",
                                          contribution->from, group->key.name, wfi_agent_rank(group->agent));
    wfi_operation_fail(operation, weft_error_ref(error));
    refuse_early(contribution, error);
}

static void look_for_mistakes(weft_group *group, weft_group *record)
{
    if (!group->opened || record->opened || group->index != 0 || strcmp(group->key.name, record->key.name) != 0 ||
        group->key.ranks_hash == record->key.ranks_hash)
        return;
    WFI_FOR_LIST_TAKING (wfi_contribution, early, next, &record->early, link)
        refuse_if_mistaken(group, early);
}

static void keep_early(weft_agent *agent, const wfi_group_key *key, wfi_contribution *contribution)
{
    weft_group *record = wfi_group_find(agent, key, false);
    if (!record)
        record = wfi_group_make(agent, key);
    if (!record) {
        wfi_contribution_refuse(contribution, wfi_group_problem(contribution->group, WEFT_ERR_MEMORY,
                                                                wfi_agent_rank(agent), "out of memory"));
        return;
    }
    contribution->group = record;
    wfi_list_push_back(&record->early, &contribution->link);
    wfi_groups_of(agent)->early_count++;
    wfi_groups_of(agent)->early_by_rank[contribution->from]++;
    WFI_FOR_LIST (weft_group, group, &wfi_groups_of(agent)->all, link)
        look_for_mistakes(group, record);
    forget_if_empty(record);
}

void wfi_gather_adopt(weft_group *group, weft_group *record)
{
    while (record && !wfi_list_empty(&record->early)) {
        wfi_contribution *contribution = wfi_container_of(record->early.next, wfi_contribution, link);
        leave_record(contribution);
        admit_contribution(group, contribution);
    }
    if (record)
        forget_if_empty(record);
}

/* ---- Time limits ------------------------------------------------------------------------------------------------- */

static void name_missing(const weft_group *group, const wfi_operation *operation, char *out, size_t room)
{
    size_t missing = operation->size - operation->come, named = 0;
    size_t size = (size_t)snprintf(out, room, missing == 1 ? "rank" : "ranks");
    for (size_t i = 0; i < operation->size && named < NAMED_MISSING_MAX; i++) {
        if (!operation->contributions[i])
            size += (size_t)snprintf(out + size, room - size, "%s %d", named++ ? "," : "", group->members[i].rank);
    }
    if (missing > named)
        snprintf(out + size, room - size, " and %zu more", missing - named);
}

static void contribution_late(wfi_timer *timer)
{
    wfi_contribution *contribution = wfi_container_of(timer, wfi_gather_wait, timer)->contribution;
    weft_group *group = contribution->group;
    char missing[160];
    if (!contribution->operation) {
        refuse_early(contribution, wfi_group_problem(group, WEFT_ERR_TIMEOUT, wfi_agent_rank(group->agent),
                                                     "rank %d has not made group \"%s\" with these members",
                                                     wfi_agent_rank(group->agent), group->key.name));
        forget_if_empty(group);
        return;
    }
    name_missing(group, contribution->operation, missing, sizeof missing);
    weft_error *error = wfi_group_problem(group, WEFT_ERR_TIMEOUT, -1, "%s of group \"%s\": %s did not come",
                                          kind_name(contribution->kind), group->key.name, missing);
    wfi_contribution_fail(contribution, error);
    weft_error_unref(error);
}

static weft_status set_timer(weft_agent *agent, wfi_contribution *contribution, int64_t timeout_ms)
{
    contribution->wait->timer.fire = contribution_late;
    if (timeout_ms < 0)
        return WEFT_OK;
    return wfi_net_timer_set(agent->net, &contribution->wait->timer,
                             wfi_deadline(wfi_net_clock(agent->net), timeout_ms));
}

/* ---- Our own contribution ---------------------------------------------------------------------------------------- */

/* Takes over nothing. */
static wfi_contribution *make_contribution(int from, uint32_t incarnation, uint64_t number, wfi_gather_kind kind)
{
    wfi_contribution *contribution = wfi_calloc(1, sizeof *contribution);
    wfi_gather_wait *wait = wfi_calloc(1, sizeof *wait);
    if (!contribution || !wait) {
        free(contribution);
        free(wait);
        return NULL;
    }
    contribution->from = from;
    contribution->incarnation = incarnation;
    contribution->number = number;
    contribution->kind = kind;
    contribution->wait = wait;
    wait->contribution = contribution;
    wfi_list_init(&contribution->link);
    return contribution;
}

weft_status wfi_gather_own(weft_group *group, uint64_t number, wfi_gather_kind kind, weft_values *values,
                           int64_t timeout_ms, weft_future *future)
{
    weft_agent *agent = group->agent;
    const wfi_group_member *self = &group->members[group->index];
    wfi_contribution *contribution = make_contribution(self->rank, self->incarnation, number, kind);
    wfi_operation *operation;
    weft_status st = contribution ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!st && !group->broken)
        st = wfi_operation_find(group, number, &operation);
    if (st != WEFT_ERR_MEMORY)
        st = set_timer(agent, contribution, timeout_ms);
    if (st) {
        if (contribution)
            free(contribution->wait);
        free(contribution);
        return st;
    }
    contribution->values = weft_values_ref(values);
    contribution->wait->future = weft_future_ref(future);
    admit_contribution(group, contribution);
    WFI_FOR_LIST_TAKING (weft_group, record, next, &wfi_groups_of(agent)->all, link) {
        look_for_mistakes(group, record);
        forget_if_empty(record);
    }
    return WEFT_OK;
}

/* Our contribution to this operation will not come. It counts as come, so that the operation can end; nobody waits for
 * it, so this needs no memory. */
weft_status wfi_gather_miss(weft_group *group, uint64_t number, const weft_error *why)
{
    wfi_operation *operation;
    weft_status st = wfi_operation_find(group, number, &operation);
    int me = wfi_agent_rank(group->agent);
    if (st)
        return st;
    operation->come++;
    wfi_operation_fail(operation,
                       wfi_group_problem(group, weft_error_code(why), me,
                                         "rank %d could not take part in operation %llu of group \"%s\": %s", me,
                                         (unsigned long long)number, group->key.name, weft_error_message(why)));
    if (operation->come == operation->size)
        wfi_operation_close(group, operation);
    return WEFT_OK;
}

/* ---- The contributions of others --------------------------------------------------------------------------------- */

/* The answer to a contribution to a group that was destroyed here. Its member may not know that the group was broken
 * before that. */
static weft_error *why_it_is_over(weft_group *nobody)
{
    const wfi_group_past *past = wfi_group_past_of(nobody->agent, &nobody->key);
    int me = wfi_agent_rank(nobody->agent);
    if (past && past->broken)
        return weft_error_ref(past->broken);
    return wfi_group_problem(nobody, WEFT_ERR_CANCELLED, me, "rank %d has destroyed group \"%s\"", me,
                             nobody->key.name);
}

static void take_contribution(weft_agent *agent, const wfi_group_key *key, wfi_contribution *contribution,
                              int64_t timeout_ms)
{
    weft_group *group = wfi_group_find(agent, key, true);
    weft_group nobody = {.agent = agent, .key = *key}; /* to refuse in the name of */
    int me = wfi_agent_rank(agent);
    weft_status st = set_timer(agent, contribution, timeout_ms);
    contribution->group = &nobody;
    if (st)
        wfi_contribution_refuse(contribution, wfi_group_problem(&nobody, st, me, "%s", weft_status_text(st)));
    else if (group)
        admit_contribution(group, contribution);
    else if (key->generation < wfi_group_generation(agent, key))
        wfi_contribution_refuse(contribution, why_it_is_over(&nobody));
    else if (agent->stopped || (agent->closing && agent->options.values.elastic))
        wfi_contribution_refuse(contribution,
                                wfi_group_problem(&nobody, WEFT_ERR_PEER_LEFT, me,
                                                  "rank %d closes, and has not made group \"%s\"", me, key->name));
    else
        keep_early(agent, key, contribution);
}

static bool read_key(weft_call *call, wfi_group_key *key)
{
    const char *name = weft_call_string(call, 0);
    if (!name[0] || strlen(name) > WFI_GROUP_NAME_MAX)
        return false;
    snprintf(key->name, sizeof key->name, "%s", name);
    key->ranks_hash = (uint64_t)weft_call_i64(call, 1);
    key->members_hash = (uint64_t)weft_call_i64(call, 2);
    key->generation = (uint64_t)weft_call_i64(call, 3);
    return true;
}

/* Its caller is told to bring it again, as where the memory budget is full. */
static bool is_too_early(weft_call *call, const wfi_group_key *key)
{
    weft_agent *agent = call->agent;
    wfi_net_lock(agent->net);
    bool full = wfi_groups_of(agent)->early_count >= WFI_EARLY_MAX ||
                wfi_groups_of(agent)->early_by_rank[call->from] >= WFI_EARLY_PEER_MAX;
    bool is_early = full && !wfi_group_find(agent, key, true) && key->generation >= wfi_group_generation(agent, key);
    wfi_net_unlock(agent->net);
    if (is_early)
        weft_call_fail(call, WEFT_ERR_BUSY, "too many operations wait for groups that rank %d has not made",
                       wfi_agent_rank(agent));
    return is_early;
}

/* Likewise, until its caller has taken what earlier operations gathered: those answers are not refused, whatever is
 * kept for it. */
static bool is_sated(weft_call *call, int64_t kind)
{
    weft_agent *agent = call->agent;
    wfi_net_lock(agent->net);
    bool sated = kind == WFI_GATHER_VALUES && wfi_budget_is_sated(agent, call->from);
    agent->stats.calls_refused += sated;
    wfi_net_unlock(agent->net);
    if (sated)
        weft_call_fail(call, WEFT_ERR_BUSY, "rank %d keeps too many results that rank %d has not taken",
                       wfi_agent_rank(agent), call->from);
    return sated;
}

static weft_status run_gather(weft_call *call, void *user)
{
    weft_agent *agent = call->agent;
    wfi_group_key key = {0};
    int64_t kind = weft_call_i64(call, 5);
    (void)user;
    if (!call->peer || !read_key(call, &key) || kind < WFI_GATHER_BARRIER || kind > WFI_GATHER_ABSENT)
        return WEFT_ERR_INVALID;
    if (is_too_early(call, &key) || is_sated(call, kind))
        return WEFT_ERR_BUSY;
    wfi_contribution *contribution = make_contribution(call->from, wfi_peer_incarnation(call->peer),
                                                       (uint64_t)weft_call_i64(call, 4), (wfi_gather_kind)kind);
    weft_status st =
        contribution ? weft_values_create(weft_call_list(call, 7), &contribution->values) : WEFT_ERR_MEMORY;
    if (!st && kind == WFI_GATHER_ABSENT && !is_good_absence(contribution->values))
        st = WEFT_ERR_INVALID;
    if (st) {
        if (contribution)
            weft_values_unref(contribution->values);
        if (contribution)
            free(contribution->wait);
        free(contribution);
        return st;
    }
    int64_t timeout_ms = weft_call_i64(call, 6);
    contribution->wait->call = weft_call_defer(call);
    wfi_net_lock(agent->net);
    contribution->charged = wfi_budget_take_arguments(&call->charge);
    take_contribution(agent, &key, contribution, timeout_ms);
    wfi_net_unlock(agent->net);
    return WEFT_DEFERRED;
}

const weft_function wfi_gather_function = {
    .name = "weft:gather",
    .takes = {WEFT_STRING, WEFT_I64, WEFT_I64, WEFT_I64, WEFT_I64, WEFT_I64, WEFT_I64, WEFT_LIST},
    .gives = {WEFT_REST},
    .run = run_gather,
    .flags = WFI_AT_ONCE};

/* ---- Ends of others and our own ---------------------------------------------------------------------------------- */

void wfi_gather_refuse_early(weft_agent *agent, int from, weft_status why)
{
    int me = wfi_agent_rank(agent);
    WFI_FOR_LIST_TAKING (weft_group, record, next, &wfi_groups_of(agent)->all, link) {
        if (record->opened)
            continue;
        WFI_FOR_LIST_TAKING (wfi_contribution, early, next_early, &record->early, link)
            if (from < 0 || early->from == from)
                refuse_early(early, wfi_group_problem(record, why, me, "rank %d closes, and has not made group \"%s\"",
                                                      me, record->key.name));
        forget_if_empty(record);
    }
}
