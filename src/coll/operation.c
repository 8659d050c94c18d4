/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operation.c - an operation before it runs: its number, its turn, its time limit, its cancelling. And the end of a
 * group: its members are told, and all of its operations fail.
 */
#include "coll/group.h"

#define QUICK_MS 10   /* a quick operation that takes longer becomes an ordinary one */
#define TIMED_EVERY 8 /* the clock is read for each eighth of the small operations that do not wait */

wfi_operation *wfi_operation_find(weft_group *group, wfi_space space, bool sends, size_t peer, uint64_t number)
{
    WFI_FOR_LIST (wfi_operation, operation, &group->operations, link) {
        if (operation->space == space && operation->number == number &&
            (space == WFI_SPACE_COLLECTIVE || (operation->sends == sends && operation->peer == peer)))
            return operation;
    }
    return NULL;
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

/*
 * Asks a member to report when it has begun operation `number`; the member keeps the lowest number that it was asked
 * for.
 */
static void ask(wfi_operation *operation, size_t whom, uint64_t number)
{
    operation->group->members[whom].spaces[operation->space].asked = number;
    wfi_group_send_number(operation->group, whom, WFI_ASK, operation->space, number);
}

/*
 * Whether the operation may begin: it is at most WFI_GROUP_AHEAD operations ahead of each member to which it sends, as
 * far as these have reported. Asks a member for a report half of that lead earlier, so that its answer usually arrives
 * before anyone has to wait for it.
 */
static bool may_begin(wfi_operation *operation)
{
    weft_group *group = operation->group;
    bool may = true;
    for (size_t i = 0; i < group->size; i++) {
        wfi_group_member *member = &group->members[i];
        if (!operation->schedule.sends[i] || !member->peer)
            continue;
        uint64_t begun = member->spaces[operation->space].begun, asked = member->spaces[operation->space].asked;
        bool waits = operation->number > begun + WFI_GROUP_AHEAD, is_asked = asked > begun;
        uint64_t needed = operation->number - WFI_GROUP_AHEAD;
        if (waits && (!is_asked || asked > needed))
            ask(operation, i, needed);
        else if (!is_asked && operation->number > begun + WFI_GROUP_AHEAD / 2)
            ask(operation, i, operation->number - WFI_GROUP_AHEAD / 2);
        may = may && !waits;
    }
    return may;
}

static uint64_t *begun_count(wfi_operation *operation)
{
    weft_group *group = operation->group;
    if (operation->space == WFI_SPACE_COLLECTIVE)
        return &group->begun;
    return operation->sends ? &group->members[operation->peer].sends_begun
                            : &group->members[operation->peer].recvs_begun;
}

/* Reports this member's progress to the members that asked. */
static void tell_begun(wfi_operation *operation)
{
    weft_group *group = operation->group;
    for (size_t i = 0; i < group->size; i++) {
        wfi_group_member *member = &group->members[i];
        uint64_t *wanted = &member->spaces[operation->space].wanted;
        bool concerns = operation->space == WFI_SPACE_COLLECTIVE || (!operation->sends && operation->peer == i);
        if (!concerns || !*wanted || *wanted > operation->number || !member->peer)
            continue;
        *wanted = 0;
        wfi_group_send_number(group, i, WFI_BEGUN, operation->space, operation->number);
    }
}

static void begin(wfi_operation *operation)
{
    *begun_count(operation) = operation->number;
    operation->span.run_ns = wfi_net_now(operation->group->agent->net);
    tell_begun(operation);
    wfi_run_begin(operation);
}

void wfi_operations_begin(weft_group *group)
{
    for (bool again = true; again && !group->over;) {
        again = false;
        WFI_FOR_LIST (wfi_operation, operation, &group->operations, link) {
            if (operation->begun || operation->number != *begun_count(operation) + 1 || !may_begin(operation))
                continue;
            again = true;
            begin(operation); /* it may have ended, and others with it */
            break;
        }
    }
}

static void time_over(wfi_timer *timer)
{
    wfi_missing_ask(wfi_container_of(timer, wfi_operation, timer));
}

/* Returns the counter of the operations that are numbered together with this one. */
static uint64_t *called_count(const wfi_operation *operation)
{
    weft_group *group = operation->group;
    if (operation->space == WFI_SPACE_COLLECTIVE)
        return &group->called;
    return operation->sends ? &group->members[operation->peer].sends : &group->members[operation->peer].recvs;
}

static void hold_agent(void *owner)
{
    wfi_agent_ref(owner);
}

static void cancel_by_id(void *owner, uint64_t id)
{
    weft_agent *agent = owner;
    if (wfi_agent_enter_locked(agent)) {
        wfi_operation *operation = wfi_map_get(&wfi_groups_of(agent)->operations, id);
        if (operation)
            wfi_group_break_for(operation->group, WEFT_ERR_CANCELLED, wfi_agent_rank(agent), "rank %d cancelled %s",
                                wfi_agent_rank(agent), wfi_operation_names[operation->collective.kind]);
        wfi_agent_leave_locked(agent);
    }
    wfi_agent_unref(agent);
}

static const wfi_canceller canceller = {.hold = hold_agent, .cancel = cancel_by_id};

/* Numbers the operation, and adds it to the group. Returns why the group takes none. [agent lock] */
static weft_status enqueue(wfi_operation *operation)
{
    weft_group *group = operation->group;
    wfi_groups *groups = wfi_groups_of(group->agent);
    uint64_t next = *called_count(operation) + 1;
    if (operation->space == WFI_SPACE_COLLECTIVE)
        operation->history = wfi_share_history(operation);
    operation->completes_locally =
        wfi_group_delivers(group) && (wfi_share_has_early(operation, next) || wfi_early_has_all(operation, next));
    weft_status status = operation->completes_locally ? WEFT_OK : wfi_agent_usable(group->agent);
    if (!status && group->over && !operation->completes_locally)
        status = weft_error_code(group->over);
    else if (!status && !group->open)
        status = WEFT_ERR_CANCELLED;
    if (!status)
        status = wfi_map_put(&groups->operations, operation->id = ++groups->last_operation, operation);
    if (status)
        return status;
    operation->number = *called_count(operation) = next;
    if (operation->space == WFI_SPACE_COLLECTIVE)
        group->history = operation->history;
    group->used = true;
    groups->under_way++;
    if (wfi_list_empty(&group->operations))
        wfi_group_depend(group, 1);
    wfi_list_push_back(&group->operations, &operation->link);
    if (operation->space == WFI_SPACE_COLLECTIVE && !operation->completes_locally)
        wfi_missing_watch(group);
    return WEFT_OK;
}

/*
 * From now on the operation can be cancelled, and has a time limit. False: there is no memory for that, and the group
 * is over. [agent lock]
 */
static bool arm(wfi_operation *operation)
{
    weft_agent *agent = operation->group->agent;
    int me = wfi_agent_rank(agent);
    if (!operation->timeout_ms)
        operation->timeout_ms = agent->call_timeout_ms;
    wfi_future_set_canceller(operation->future, &canceller, agent, operation->id);
    operation->timer.fire = time_over;
    uint64_t until = wfi_deadline_after(operation->span.begun_ns, operation->timeout_ms);
    if (until == WFI_NEVER || !wfi_net_timer_set(agent->net, &operation->timer, until))
        return true;
    wfi_group_break_for(operation->group, WEFT_ERR_MEMORY, me, "rank %d has no memory for a time limit", me);
    return false;
}

weft_status wfi_operation_start(wfi_operation *operation)
{
    weft_group *group = operation->group;
    weft_agent *agent = group->agent;
    operation->left = operation->schedule.step_count;
    operation->ready = WFI_NO_STEP;
    wfi_operation_observe_begin(operation);
    wfi_net_lock(agent->net);
    weft_status status = enqueue(operation);
    if (!status && operation->completes_locally) {
        *begun_count(operation) = operation->number;
        wfi_run_begin(operation);
    } else if (!status && arm(operation)) {
        wfi_operations_begin(group);
    }
    if (status)
        wfi_operation_count(operation, true);
    wfi_net_unlock(agent->net);
    if (status) {
        wfi_operation_observe_end(operation, status);
        wfi_operation_free(operation);
    }
    return status;
}

/* ---- Quick operations -------------------------------------------------------------------------------------------- */

/*
 * Whether the clock is read when it begins. That takes a tenth of the time of a small operation. If it has to wait, its
 * thread reads the clock then.
 */
static bool is_timed(const wfi_operation *operation)
{
    return wfi_part_bytes(&operation->collective) > WFI_SLOTS_LINE_BYTES || operation->number % TIMED_EVERY == 0;
}

/* How long its thread may sleep on the futex; 0: it must not. */
static int64_t futex_wait_ms(const wfi_operation *operation)
{
    const weft_agent *agent = operation->group->agent;
    int64_t limit_ms = operation->timeout_ms ? operation->timeout_ms : agent->call_timeout_ms;
    if (!wfi_aside_may_begin(&agent->net->progress))
        return 0;
    return limit_ms < 0 || limit_ms > QUICK_MS ? QUICK_MS : limit_ms;
}

/* Sets what request.c: make_quick leaves open: number, history and times. */
bool wfi_operation_begin_quick(wfi_operation *operation)
{
    weft_group *group = operation->group;
    weft_agent *agent = group->agent;
    wfi_net_lock(agent->net);
    /* Not while the agent closes: quick operations in a loop leave no moment without one, for which the close waits. */
    bool may = !group->over && group->open && !group->carrier && !wfi_agent_usable(agent) && !agent->closing &&
               wfi_list_empty(&group->operations) && wfi_share_is_free(group) &&
               wfi_rules_choose(&group->rules, &operation->collective, &operation->algorithm) == wfi_build_shared;
    if (may) {
        operation->history = group->history = wfi_share_history(operation);
        operation->number = group->begun = ++group->called;
        group->share.quick = operation;
        operation->share.waited = false;
        operation->share.futex_wait_ms = futex_wait_ms(operation);
        operation->span.begun_ns = is_timed(operation) ? wfi_net_now(agent->net) : 0;
        atomic_store_explicit(&group->share.stop, false, memory_order_relaxed);
        wfi_groups_of(agent)->under_way++;
        wfi_group_ref(group);
        tell_begun(operation);
    }
    wfi_net_unlock(agent->net);
    return may;
}

void wfi_operation_end_quick(wfi_operation *operation)
{
    weft_group *group = operation->group;
    weft_agent *agent = group->agent;
    wfi_net_lock(agent->net);
    wfi_operation_count_quick(operation);
    wfi_groups_of(agent)->under_way--;
    wfi_share_ended(group);
    wfi_net_unlock(agent->net);
    wfi_group_unref(group);
}

/* `operation` takes over the number, the times and the place of the quick one, which is on the caller's stack. */
void wfi_operation_resume(weft_group *group, wfi_operation *operation)
{
    weft_agent *agent = group->agent;
    wfi_groups *groups = wfi_groups_of(agent);
    wfi_net_lock(agent->net);
    const wfi_operation *quick = group->share.quick;
    if (operation) {
        int me = wfi_agent_rank(agent);
        operation->number = quick->number;
        operation->history = quick->history;
        uint64_t begun = quick->span.begun_ns ? quick->span.begun_ns : wfi_net_now(agent->net);
        operation->span.begun_ns = operation->span.run_ns = begun;
        operation->left = operation->schedule.step_count;
        operation->ready = WFI_NO_STEP;
        if (wfi_list_empty(&group->operations))
            wfi_group_depend(group, 1);
        wfi_list_push_front(&group->operations, &operation->link);
        if (wfi_map_put(&groups->operations, operation->id = ++groups->last_operation, operation))
            wfi_group_break_for(group, WEFT_ERR_MEMORY, me, "rank %d has no memory for an operation", me);
        else if (!group->over && arm(operation))
            wfi_missing_watch(group);
        wfi_run_resume(operation);
    } else {
        groups->under_way--;
        wfi_share_ended(group);
    }
    wfi_net_unlock(agent->net);
    wfi_group_unref(group);
}

/* ---- The end of a group ------------------------------------------------------------------------------------------ */

static void let_go(wfi_task *task)
{
    wfi_group_unref(wfi_container_of(task, weft_group, let_go));
}

void wfi_group_tell(weft_group *group)
{
    for (size_t i = 0; !group->told && i < group->size; i++)
        wfi_group_send_over(group, i);
    group->told = true;
}

void wfi_group_ended(wfi_done *done)
{
    weft_group *group = wfi_container_of(done, weft_group, ended);
    wfi_agent_log(group->agent, WEFT_LOG_INFO, 0, "%s", weft_error_message(group->over));
    if (group->tells)
        wfi_group_tell(group);
    if (!wfi_group_delivers(group))
        wfi_early_forget(group);
    wfi_missing_unwatch(group);
    wfi_share_end(group);
    WFI_FOR_LIST_TAKING (wfi_operation, operation, next, &group->operations, link)
        wfi_run_fail(operation); /* it leaves the list, now or later */
    group->let_go.run = let_go;
    wfi_net_defer(group->agent->net, &group->let_go, WFI_DEFER_RELEASE);
}
