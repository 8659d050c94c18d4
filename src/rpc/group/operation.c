/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operation.c - the operations of a group, at the gathering member (group.h): one begins with its first contribution,
 * and ends with the last one, or by a failure.
 *
 * Everything here runs with the agent's lock held. Telling those who wait (answers, futures) and freeing values is
 * deferred until the lock is released.
 */
#include "base/alloc.h"
#include "rpc/group/group.h"

#include "base/error.h"
#include "rpc/server/server.h"

#include <stdlib.h>
#include <string.h>

weft_error *wfi_group_problem(const weft_group *group, weft_status code, int worker, const char *format, ...)
{
    wfi_error_detail detail = {.code = code, .function = group->key.name, .worker = worker};
    va_list args;
    va_start(args, format);
    weft_error *error = wfi_error_create_v(&detail, format, args);
    va_end(args);
    return error;
}

/* ---- Telling those who wait -------------------------------------------------------------------------------------- */

/* Not locked. */
static void tell_waiter(wfi_gather_wait *wait)
{
    weft_call *call = wait->call;
    if (call && wait->error) {
        /* A failure is sent as three values. An answer that succeeded has lists only, so the two cannot be confused. */
        weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_error_code(wait->error)),
                                         weft_of_i64(weft_error_worker(wait->error)),
                                         weft_of_string(weft_error_message(wait->error))));
    } else if (call) {
        weft_values_unref(call->results);
        call->results = weft_values_ref(wait->results); /* one copy for all who wait */
    }
    if (call)
        weft_call_finish(call, WEFT_OK);
    else
        wfi_future_settle(wait->future, wait->results, wait->error);
    weft_future_unref(wait->future);
    weft_values_unref(wait->results);
    weft_error_unref(wait->error);
    free(wait);
}

static void tell_task(wfi_task *task)
{
    tell_waiter(wfi_container_of(task, wfi_gather_wait, task));
}

/* An answer that was owed has arrived, or never will. */
static void answer_settled(weft_agent *agent)
{
    if (--wfi_groups_of(agent)->owed_answers == 0 && wfi_groups_of(agent)->answers_settled)
        wfi_future_settle(wfi_groups_of(agent)->answers_settled, NULL, NULL);
}

/* An answer is owed now: until it has arrived, weft_agent_stop waits a little (group.c). */
static void owe(const weft_group *group, const wfi_gather_wait *wait)
{
    if (!wait->call)
        return;
    wait->call->charge.is_exempt = true;
    wait->call->over = answer_settled;
    wfi_groups_of(group->agent)->owed_answers++;
}

/* The contribution stays; its member waits no more. */
void wfi_contribution_fail(wfi_contribution *contribution, const weft_error *error)
{
    wfi_gather_wait *wait = contribution->wait;
    wfi_net *net = contribution->group->agent->net;
    if (!wait)
        return;
    contribution->wait = NULL;
    owe(contribution->group, wait);
    wfi_net_timer_clear(net, &wait->timer);
    wait->error = weft_error_ref(error);
    wait->task.run = tell_task;
    wfi_net_defer(net, &wait->task, WFI_DEFER_RELEASE);
}

static void free_contribution(wfi_contribution *contribution)
{
    if (!contribution)
        return;
    weft_values_unref(contribution->values);
    free(contribution);
}

static void free_contribution_task(wfi_task *task)
{
    free_contribution(wfi_container_of(task, wfi_contribution, release));
}

static void uncharge_contribution(const weft_group *group, wfi_contribution *contribution)
{
    wfi_budget_give_back(group->agent, contribution->charged);
    contribution->charged = 0;
}

void wfi_contribution_discard(wfi_contribution *contribution)
{
    uncharge_contribution(contribution->group, contribution);
    contribution->release.run = free_contribution_task;
    wfi_net_defer(contribution->group->agent->net, &contribution->release, WFI_DEFER_RELEASE);
}

/* See group.h. */
void wfi_contribution_refuse(wfi_contribution *contribution, weft_error *error)
{
    wfi_contribution_fail(contribution, error);
    weft_error_unref(error);
    wfi_contribution_discard(contribution);
}

/* ---- Records and groups ------------------------------------------------------------------------------------------ */

weft_group *wfi_group_find(weft_agent *agent, const wfi_group_key *key, bool opened)
{
    WFI_FOR_LIST (weft_group, group, &wfi_groups_of(agent)->all, link)
        if (group->opened == opened && group->key.members_hash == key->members_hash &&
            group->key.generation == key->generation && strcmp(group->key.name, key->name) == 0)
            return group;
    return NULL;
}

weft_group *wfi_group_make(weft_agent *agent, const wfi_group_key *key)
{
    weft_group *group = wfi_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->agent = wfi_agent_ref(agent);
    group->key = *key;
    wfi_list_init(&group->early);
    wfi_list_init(&group->ops);
    wfi_list_init(&group->operations);
    wfi_map_init(&group->places);
    wfi_list_push_back(&wfi_groups_of(agent)->all, &group->link);
    return group;
}

/* Nothing of it is under way, and it is in no list any more. */
void wfi_group_free(weft_group *group)
{
    wfi_map_fini(&group->places);
    weft_error_unref(group->broken);
    free(group->members);
    wfi_agent_unref(group->agent);
    free(group);
}

/* One map for all names: equal keys of different groups only share a counter, and do so on every member. */
static uint64_t generation_key(const wfi_group_key *key)
{
    return wfi_hash_bytes(key->name, strlen(key->name)) ^ key->members_hash;
}

wfi_group_past *wfi_group_past_of(weft_agent *agent, const wfi_group_key *key)
{
    return wfi_map_get(&wfi_groups_of(agent)->pasts, generation_key(key));
}

uint64_t wfi_group_generation(weft_agent *agent, const wfi_group_key *key)
{
    const wfi_group_past *past = wfi_group_past_of(agent, key);
    return past ? past->generations : 0;
}

static weft_status add_past(const weft_group *group, wfi_group_past **out)
{
    wfi_group_past *past = wfi_calloc(1, sizeof *past + group->size * sizeof *past->members);
    if (!past)
        return WEFT_ERR_MEMORY;
    wfi_list_init(&past->link);
    past->key = generation_key(&group->key);
    past->size = group->size;
    for (size_t i = 0; i < group->size; i++)
        past->members[i] = (weft_worker){group->members[i].rank, group->members[i].incarnation};
    weft_status st = wfi_map_put(&wfi_groups_of(group->agent)->pasts, past->key, past);
    if (st)
        free(past);
    else
        *out = past;
    return st;
}

weft_status wfi_group_next_generation(const weft_group *group)
{
    wfi_group_past *past = wfi_group_past_of(group->agent, &group->key);
    weft_status st = past ? WEFT_OK : add_past(group, &past);
    if (!st)
        past->generations++;
    return st;
}

void wfi_group_remember_broken(const weft_group *group)
{
    wfi_group_past *past = group->opened ? wfi_group_past_of(group->agent, &group->key) : NULL;
    if (past && !past->broken)
        past->broken = weft_error_ref(group->broken);
}

static void free_past(wfi_group_past *past)
{
    weft_error_unref(past->broken);
    free(past);
}

void wfi_group_pasts_fini(weft_agent *agent)
{
    size_t cursor = 0;
    for (wfi_group_past *past; (past = wfi_map_next(&wfi_groups_of(agent)->pasts, &cursor, NULL));)
        free_past(past);
    wfi_map_fini(&wfi_groups_of(agent)->pasts);
}

static bool names_former(const wfi_group_past *past, int rank, uint32_t incarnation)
{
    for (size_t i = 0; i < past->size; i++)
        if (past->members[i].rank == rank)
            return past->members[i].incarnation < incarnation;
    return false;
}

void wfi_groups_peer_joined(weft_agent *agent, wfi_peer *peer)
{
    size_t cursor = 0;
    for (wfi_group_past *past; (past = wfi_map_next(&wfi_groups_of(agent)->pasts, &cursor, NULL));) {
        if (!wfi_list_empty(&past->link) || !names_former(past, wfi_peer_rank(peer), wfi_peer_incarnation(peer)))
            continue;
        wfi_list_push_back(&wfi_groups_of(agent)->pasts_over, &past->link);
        wfi_groups_of(agent)->pasts_over_count++;
    }
    for (; wfi_groups_of(agent)->pasts_over_count > WFI_PASTS_OVER; wfi_groups_of(agent)->pasts_over_count--) {
        wfi_list *oldest = wfi_list_pop_front(&wfi_groups_of(agent)->pasts_over);
        wfi_group_past *past = wfi_container_of(oldest, wfi_group_past, link);
        wfi_map_take(&wfi_groups_of(agent)->pasts, past->key);
        free_past(past);
    }
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void update_interest(weft_group *group)
{
    bool interested = group->operation_count > 0;
    if (interested == group->interested)
        return;
    group->interested = interested;
    for (size_t i = 0; i < group->size; i++)
        if (group->members[i].peer)
            wfi_peer_interest(group->members[i].peer, interested ? 1 : -1);
}

/* Everybody's values, as lists in the group's order. Not locked. */
static weft_status collect(const wfi_operation *operation, weft_values **out)
{
    if (operation->contributions[0]->kind == WFI_GATHER_BARRIER)
        return weft_values_create(WEFT_NO_VALUES, out);
    weft_value *lists = wfi_calloc(operation->size, sizeof *lists);
    if (!lists)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < operation->size; i++)
        lists[i] = weft_of_list(weft_values_args(operation->contributions[i]->values));
    weft_status st = weft_values_create((weft_args){lists, operation->size}, out);
    free(lists);
    return st;
}

/* Not locked. */
static void end_operation(wfi_task *task)
{
    wfi_operation *operation = wfi_container_of(task, wfi_operation, task);
    weft_values *results = NULL;
    char problem[200] = "";
    weft_status st = operation->failure ? WEFT_OK : collect(operation, &results);
    if (!st && results)
        st = wfi_encode_fits(weft_values_args(results), problem, sizeof problem); /* or only we would have it */
    if (st) {
        wfi_error_detail detail = {.code = st, .function = operation->group_name, .worker = -1};
        operation->failure = wfi_error_create(&detail, "what operation %llu of group \"%s\" gathers is too much: %s",
                                              (unsigned long long)operation->number, operation->group_name,
                                              problem[0] ? problem : weft_status_text(st));
    }
    for (size_t i = 0; i < operation->size; i++) {
        wfi_gather_wait *wait = operation->contributions[i] ? operation->contributions[i]->wait : NULL;
        if (wait) {
            wait->error = operation->failure ? weft_error_ref(operation->failure) : NULL;
            wait->results = weft_values_ref(results);
            tell_waiter(wait);
        }
        free_contribution(operation->contributions[i]);
    }
    weft_values_unref(results);
    weft_error_unref(operation->failure);
    free(operation);
}

/* The operation is over: it succeeds if all contributions have come and nothing failed it. */
void wfi_operation_close(weft_group *group, wfi_operation *operation)
{
    wfi_net *net = group->agent->net;
    wfi_list_remove(&operation->link);
    group->operation_count--;
    for (size_t i = 0; i < operation->size; i++) {
        wfi_gather_wait *wait = operation->contributions[i] ? operation->contributions[i]->wait : NULL;
        if (operation->contributions[i])
            uncharge_contribution(group, operation->contributions[i]); /* soon they are gone */
        if (!wait)
            continue;
        wfi_net_timer_clear(net, &wait->timer);
        owe(group, wait);
    }
    operation->task.run = end_operation;
    wfi_net_defer(net, &operation->task, WFI_DEFER_RELEASE);
    update_interest(group);
}

static wfi_operation *open_operation(weft_group *group)
{
    wfi_operation *operation = wfi_calloc(1, sizeof *operation + group->size * sizeof *operation->contributions);
    if (!operation)
        return NULL;
    memcpy(operation->group_name, group->key.name, sizeof operation->group_name);
    operation->size = group->size;
    operation->number = group->opened_below++;
    group->operation_count++;
    wfi_list_push_back(&group->operations, &operation->link);
    update_interest(group);
    return operation;
}

/* Opens it, and all before it whose contributions are slower. */
weft_status wfi_operation_find(weft_group *group, uint64_t number, wfi_operation **out)
{
    if (number >= group->opened_below && number - group->opened_below >= WFI_OPERATIONS_MAX - group->operation_count)
        return WEFT_ERR_BUSY;
    while (number >= group->opened_below)
        if (!open_operation(group))
            return WEFT_ERR_MEMORY;
    WFI_FOR_LIST (wfi_operation, operation, &group->operations, link) {
        *out = operation;
        if (operation->number == number)
            return WEFT_OK;
    }
    return WEFT_ERR_UNKNOWN;
}

void wfi_operation_fail(wfi_operation *operation, weft_error *error)
{
    if (!operation->failure)
        operation->failure = weft_error_ref(error);
    for (size_t i = 0; i < operation->size; i++)
        if (operation->contributions[i])
            wfi_contribution_fail(operation->contributions[i], error);
    weft_error_unref(error);
}

void wfi_gather_fail_all(weft_group *group, const weft_error *error)
{
    while (!wfi_list_empty(&group->operations)) {
        wfi_operation *operation = wfi_container_of(group->operations.next, wfi_operation, link);
        wfi_operation_fail(operation, weft_error_ref(error));
        wfi_operation_close(group, operation);
    }
}

void wfi_gather_fail_own(weft_group *group, const weft_error *error)
{
    WFI_FOR_LIST (wfi_operation, operation, &group->operations, link)
        if (operation->contributions[group->index])
            wfi_contribution_fail(operation->contributions[group->index], error);
}
