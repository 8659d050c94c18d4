/* SPDX-License-Identifier: Apache-2.0 */
/*
 * missing.c - finds which members are missing when an operation is late.
 *
 * A late operation may wait for a member that itself waits for another one. So its member asks all the others how far
 * they are. It names those that have not called the operation, and those that do not answer within
 * WFI_GROUP_ANSWER_MS. If all have called it, the operation continues until that time. Late answers only make the
 * names incomplete.
 *
 * Members that called different operations (for example with another root) could wait for each other forever if there
 * is no time limit. So a member checks its oldest collective operation from time to time. If it is the same operation
 * as at the last check, the member asks the members from which it still has to receive. Each answer has the signature
 * of their operation, which must be the same (receive.c). It also compares what members of its host do in shared memory
 * meanwhile. A member that has closed the group has forgotten its
 * operations. So it is blamed only when the answers of the others have shown no difference.
 */
#include "coll/group.h"

#define CHECK_MS 500       /* after this time an operation may be blocked forever */
#define CHECK_MOST_MS 8000 /* the longest pause between two checks of one operation */

/* The texts for members that have not begun the operation. */
static const char has_not_called[] = "has not called it", has_closed[] = "has closed the group";

/* A member that has closed the group may have done its part before: it is named only if no other member is missing. */
static void name_missing(const weft_group *group, bool closed, char *out, size_t room, int *first)
{
    size_t used = 0;
    for (size_t i = 0; i < group->size; i++) {
        const wfi_group_member *member = &group->members[i];
        const char *why = member->is_asked ? "does not answer" : member->missing;
        if (!why || (why == has_closed) != closed)
            continue;
        if (*first < 0)
            *first = member->rank;
        if (used < room)
            used += (size_t)snprintf(out + used, room - used, "%srank %d (%s)", used ? ", " : "", member->rank, why);
    }
}

/* All members have answered, or the time for answers is over. */
static void conclude(weft_group *group)
{
    const wfi_operation *operation = group->late_operation;
    char missing[560] = "", which[80];
    int first = -1;
    if (group->left_member) {
        wfi_group_break_for(group, WEFT_ERR_CANCELLED, group->left_member->rank,
                            "operation %llu, %s: rank %d has closed the group" WFI_GROUP_AGAIN,
                            (unsigned long long)operation->number, wfi_operation_names[operation->collective.kind],
                            group->left_member->rank);
        return;
    }
    if (operation->space == WFI_SPACE_COLLECTIVE)
        snprintf(which, sizeof(which), "operation %llu, %s,", (unsigned long long)operation->number,
                 wfi_operation_names[operation->collective.kind]);
    else
        snprintf(which, sizeof(which), "%s rank %d", operation->sends ? "a send to" : "a recv from",
                 group->members[operation->peer].rank);
    name_missing(group, false, missing, sizeof(missing), &first);
    if (first < 0)
        name_missing(group, true, missing, sizeof(missing), &first);
    wfi_group_break_for(group, WEFT_ERR_TIMEOUT, first, "rank %d: %s was not complete within %lld ms: %s%s",
                        wfi_agent_rank(group->agent), which, (long long)operation->timeout_ms,
                        missing[0] ? "missing is " : "all have begun it, and it takes longer: raise timeout_ms",
                        missing);
}

static void answers_due(wfi_timer *timer)
{
    conclude(wfi_container_of(timer, weft_group, ask_timer));
}

void wfi_missing_forget(wfi_operation *operation)
{
    weft_group *group = operation->group;
    if (group->late_operation != operation)
        return;
    group->late_operation = NULL;
    group->left_member = NULL;
    wfi_net_timer_clear(group->agent->net, &group->ask_timer);
    for (size_t i = 0; i < group->size; i++)
        group->members[i].is_asked = false;
}

/*
 * Queries all members that the operation can wait for. Their answers (wfi_missing_on_answer), or answers_due, end in
 * `conclude`, which ends the group with an error that names the missing members. The group
 * asks about one operation at a time (late_operation).
 */
void wfi_missing_ask(wfi_operation *operation)
{
    weft_group *group = operation->group;
    weft_agent *agent = group->agent;
    uint64_t until = wfi_deadline(wfi_net_clock(agent->net), WFI_GROUP_ANSWER_MS);
    if (group->over)
        return;
    if (group->late_operation) { /* for another operation: its answers end the group, or it has ended by then */
        if (wfi_net_timer_set(agent->net, &operation->timer, until))
            conclude(group);
        return;
    }
    group->late_operation = operation;
    group->unanswered = 0;
    for (size_t i = 0; i < group->size && !group->over; i++) {
        wfi_group_member *member = &group->members[i];
        member->missing = NULL;
        if (!member->peer || member == group->left_member ||
            (operation->space == WFI_SPACE_P2P && operation->peer != i))
            continue;
        member->is_asked = true;
        group->unanswered++;
        wfi_group_send_query(group, i, operation->space, !operation->sends, operation->number);
    }
    if (group->over)
        return;
    group->ask_timer.fire = answers_due;
    if (!group->unanswered || wfi_net_timer_set(agent->net, &group->ask_timer, until))
        conclude(group);
}

void wfi_missing_left(wfi_operation *operation, const wfi_group_member *member)
{
    operation->group->left_member = member;
    wfi_missing_ask(operation);
}

/* ---- Checking the oldest operation ------------------------------------------------------------------------------- */

static bool waits_for(const wfi_operation *operation, size_t member)
{
    const wfi_schedule *schedule = &operation->schedule;
    for (wfi_step_id id = schedule->first_recv[member]; id != WFI_NO_STEP; id = schedule->steps[id].next) {
        const wfi_step *step = &schedule->steps[id];
        if (step->begun && !step->done && !step->bulk)
            return true;
    }
    return wfi_share_waits(operation, member);
}

bool wfi_missing_waits(const wfi_operation *operation, size_t member)
{
    return operation->begun && !operation->failing && waits_for(operation, member);
}

static void ask_those_waited_for(weft_group *group, const wfi_operation *operation)
{
    for (size_t i = 0; i < group->size && !group->over; i++)
        if (group->members[i].peer && !group->members[i].has_withdrawn && wfi_missing_waits(operation, i))
            wfi_group_send_query(group, i, operation->space, false, operation->number);
}

static wfi_operation *oldest(const weft_group *group)
{
    WFI_FOR_LIST (wfi_operation, operation, &group->operations, link)
        if (operation->space == WFI_SPACE_COLLECTIVE)
            return operation;
    return NULL;
}

static void check_later(weft_group *group)
{
    weft_agent *agent = group->agent;
    uint64_t at = wfi_deadline(wfi_net_clock(agent->net), group->check_pause_ms);
    weft_status status = wfi_net_timer_set(agent->net, &group->check_timer, at);
    (void)status; /* without memory there are no checks; a time limit still holds */
}

static void check_progress(wfi_timer *timer)
{
    weft_group *group = wfi_container_of(timer, weft_group, check_timer);
    const wfi_operation *operation = oldest(group);
    if (!operation || group->over)
        return;
    if (operation->id != group->checked_id) {
        group->checked_id = operation->id;
        group->check_pause_ms = CHECK_MS;
    } else {
        wfi_share_compare(operation);
        ask_those_waited_for(group, operation);
        group->check_pause_ms = group->check_pause_ms < CHECK_MOST_MS / 2 ? 2 * group->check_pause_ms : CHECK_MOST_MS;
    }
    if (!group->over)
        check_later(group);
}

void wfi_missing_watch(weft_group *group)
{
    if (group->check_timer.heap_index || group->size == 1)
        return;
    group->check_timer.fire = check_progress;
    group->checked_id = oldest(group)->id;
    group->check_pause_ms = CHECK_MS;
    check_later(group);
}

void wfi_missing_unwatch(weft_group *group)
{
    wfi_net_timer_clear(group->agent->net, &group->check_timer);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static bool is_anybody_missing(const weft_group *group)
{
    for (size_t i = 0; i < group->size; i++)
        if (group->members[i].missing && group->members[i].missing != has_closed)
            return true;
    return false;
}

void wfi_missing_on_answer(weft_group *group, wfi_group_member *member, const wfi_progress_report *report)
{
    const wfi_operation *operation = group->late_operation;
    if (!operation || !member->is_asked || report->space != operation->space || report->number != operation->number)
        return;
    member->is_asked = false;
    if (operation->space == WFI_SPACE_P2P && report->signature.kind < WFI_OPERATION_KINDS &&
        !wfi_operation_check(operation, (size_t)(member - group->members), &report->signature))
        return;
    if (!report->has_group || report->called < operation->number)
        member->missing = report->has_group ? has_not_called : has_closed;
    if (--group->unanswered == 0 && (group->left_member || is_anybody_missing(group)))
        conclude(group); /* otherwise all have called it: it may still end before the answers are due */
}
