/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making.c - what a group waits for before it is open.
 *
 * NEWS. In an elastic job a worker may learn of a rank from another worker before the store's news of it arrive. So the
 * making of a group waits for ranks of which this worker has not heard. A rank that is dead, has left, or is leaving
 * here may have been taken again by a new worker. To find out, the making of a group waits for a sync, a round trip to
 * the store: its answer arrives after all news that the store had. A rank that is still gone then was not taken again.
 *
 * WHICH GROUP. Each member counts the groups of one name and list that it made (wfi_group_key.generation). The counts
 * differ if the making failed on some members, for example because of a wrong argument. Such a member makes a group
 * that the others have given up, and that group fails. After a group has failed, a member does not rely on its own
 * count. It asks the others which groups they have given up, and makes the first group that no member has given up.
 */
#include "coll/making.h"

#include "future/future.h"

typedef struct waiter {
    wfi_list link; /* in wfi_groups.waiters */
    weft_group *group;
    bool wants_news;
    size_t unanswered; /* members[].is_asked */
    uint64_t generation;
    weft_future *woken;
} waiter;

static void wake(waiter *one)
{
    wfi_future_settle(one->woken, NULL, NULL);
}

void wfi_making_news(weft_agent *agent)
{
    WFI_FOR_LIST (waiter, one, &wfi_groups_of(agent)->waiters, link)
        if (one->wants_news)
            wake(one);
}

void wfi_making_wake(weft_agent *agent)
{
    WFI_FOR_LIST (waiter, one, &wfi_groups_of(agent)->waiters, link)
        wake(one);
}

void wfi_making_end(weft_agent *agent)
{
    wfi_list *link;
    while ((link = wfi_list_pop_front(&wfi_groups_of(agent)->waiters)))
        wake(wfi_container_of(link, waiter, link));
}

/*
 * Waits until it is woken, or until that time. Releases the agent's lock and the agent meanwhile, so that the agent
 * can close.
 */
static weft_status sleep_until(wfi_making *making, waiter *one, uint64_t until)
{
    weft_agent *agent = making->group->agent;
    one->woken = wfi_agent_future(agent);
    if (!one->woken)
        return WEFT_ERR_MEMORY;
    wfi_list_init(&one->link);
    wfi_list_push_back(&wfi_groups_of(agent)->waiters, &one->link);
    wfi_agent_leave_locked(agent);
    weft_status status = wfi_future_wait_until(one->woken, until);
    making->inside = wfi_agent_enter_locked(agent);
    if (making->inside)
        wfi_list_remove(&one->link);
    weft_future_unref(one->woken);
    return making->inside ? status : WEFT_ERR_CLOSED;
}

static weft_status may_make(const weft_agent *agent)
{
    bool leaving = agent->closing && agent->options.values.elastic;
    return leaving ? WEFT_ERR_CLOSED : wfi_agent_usable(agent);
}

/* ---- News -------------------------------------------------------------------------------------------------------- */

/* Whether there is something to wait for. *sync: the number of the sync that was started for a rank that is gone here;
 * 0: none yet. */
static bool lacks_news(const weft_agent *agent, const int *ranks, size_t count, uint64_t *sync)
{
    bool is_unknown = false, is_gone = false;
    for (size_t i = 0; i < count; i++) {
        const wfi_member *known = NULL;
        if (ranks[i] < 0 || ranks[i] >= wfi_net_world_size(agent->net))
            return false; /* it is refused for that */
        known = wfi_net_member(agent->net, ranks[i]);
        if (!known || !known->incarnation)
            is_unknown = true;
        else if (!wfi_agent_lists(agent, ranks[i]))
            is_gone = true;
    }
    if (is_gone && !*sync)
        *sync = wfi_net_sync(agent->net);
    return is_unknown || (is_gone && !wfi_net_is_synced(agent->net, *sync));
}

weft_status wfi_making_await_news(wfi_making *making, const int *ranks, size_t count)
{
    weft_agent *agent = making->group->agent;
    uint64_t until = wfi_deadline(wfi_net_clock(agent->net), agent->call_timeout_ms);
    uint64_t sync = 0;
    weft_status status = may_make(agent);
    bool may_lack = ranks && agent->options.values.elastic && !wfi_net_is_inline(agent->net);
    while (!status && may_lack && lacks_news(agent, ranks, count, &sync)) {
        waiter one = {.group = making->group, .wants_news = true};
        status = sleep_until(making, &one, until);
        if (status == WEFT_ERR_TIMEOUT)
            return WEFT_OK; /* the rank is refused */
        if (!status)
            status = may_make(agent);
    }
    return status;
}

/* ---- Which group ------------------------------------------------------------------------------------------------- */

static void ask_all(waiter *one)
{
    weft_group *group = one->group;
    for (size_t i = 0; i < group->size; i++) {
        wfi_group_member *member = &group->members[i];
        if (!member->peer || wfi_peer_status(member->peer))
            continue;
        member->is_asked = true;
        one->unanswered++;
        wfi_say_query(group, i, WFI_TOGETHER, false, 0);
    }
}

/* Resets the query. While the lock was released its worker may have died, and another may have taken its rank. */
static void ask_no_more(const weft_group *group, wfi_group_member *member)
{
    *member = (wfi_group_member){.rank = member->rank, .incarnation = member->incarnation};
    wfi_list_init(&member->early);
    wfi_peer *peer = wfi_net_peer(group->agent->net, member->rank);
    if (peer && wfi_peer_incarnation(peer) == member->incarnation && member->rank != wfi_agent_rank(group->agent))
        member->peer = peer;
}

weft_status wfi_making_agree(wfi_making *making)
{
    weft_group *group = making->group;
    weft_agent *agent = group->agent;
    waiter one = {.group = group, .generation = group->key.generation};
    weft_status status = WEFT_OK;
    if (!wfi_group_failed_before(group) || wfi_net_is_inline(agent->net))
        return WEFT_OK;
    ask_all(&one);
    if (one.unanswered)
        status = sleep_until(making, &one, wfi_deadline(wfi_net_clock(agent->net), WFI_GROUP_ANSWER_MS));
    if (!making->inside)
        return status;
    for (size_t i = 0; i < group->size; i++)
        ask_no_more(group, &group->members[i]);
    group->key.generation = (uint32_t)one.generation;
    wfi_records_forget_former(agent, &group->key);
    return status && status != WEFT_ERR_TIMEOUT ? status : may_make(agent);
}

/* The waiter whose group that peer was asked about, and the member that it is there; NULL: it was not asked. */
static waiter *find_asked(weft_agent *agent, const wfi_peer *from, const wfi_group_key *key, wfi_group_member **out)
{
    WFI_FOR_LIST (waiter, one, &wfi_groups_of(agent)->waiters, link) {
        wfi_group_member *member = wfi_group_member_of(one->group, from);
        const wfi_group_key *its = &one->group->key;
        bool is_meant = !key || (wfi_group_is_same_list(its, key) && its->generation == key->generation);
        *out = member;
        if (member && member->is_asked && is_meant)
            return one;
    }
    return NULL;
}

static void raise(waiter *one, uint64_t generation)
{
    if (generation > one->generation && generation < UINT32_MAX)
        one->generation = generation;
}

static void end_answer(waiter *one, wfi_group_member *member)
{
    member->is_asked = false;
    if (!--one->unanswered)
        wake(one);
}

void wfi_making_answered(weft_agent *agent, const wfi_peer *from, const wfi_group_key *key, uint64_t first_left)
{
    wfi_group_member *member;
    waiter *one = find_asked(agent, from, key, &member);
    if (!one)
        return;
    raise(one, first_left);
    end_answer(one, member);
}

void wfi_making_over(weft_agent *agent, const wfi_peer *from, const wfi_group_key *key)
{
    wfi_group_member *member;
    waiter *one = find_asked(agent, from, key, &member);
    if (one)
        raise(one, (uint64_t)key->generation + 1);
}

void wfi_making_gone(weft_agent *agent, const wfi_peer *peer)
{
    wfi_group_member *member;
    waiter *one;
    while ((one = find_asked(agent, peer, NULL, &member)))
        end_answer(one, member);
}
