/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making.c - see making.h.
 *
 * NEWS. In an elastic job a worker may learn of a rank from another worker before the store's news of it arrive. So the
 * making of a group waits for ranks of which this worker has not heard. A rank that is dead, has left, or is leaving
 * here may have been taken again by a new worker. To find out, the making of a group waits for a sync, a round trip to
 * the store: its answer arrives after all news that the store had. A rank that is still gone then was not taken again.
 */
#include "coll/making.h"

#include "base/alloc.h"
#include "base/error.h"
#include "future/future.h"

#include <stdlib.h>
#include <string.h>

#define CALLS_EACH 64 /* of one worker, that are kept */

/* A call of another member that came before this worker's own. */
typedef struct call {
    wfi_list link;  /* in wfi_groups.calls */
    wfi_peer *from; /* referenced */
    uint64_t attempt, name_hash, what;
} call;

static bool gathers(const wfi_making *making)
{
    return (size_t)making->group->index == making->gatherer;
}

/* Whether it is this worker that gathers the calls, and more may come. */
static bool is_gathering(const wfi_making *making)
{
    return making->attempt && making->stage == WFI_MAKING_GATHERS && !making->group->over && gathers(making);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

void wfi_making_wake(weft_agent *agent)
{
    WFI_FOR_LIST (const wfi_making, making, &wfi_groups_of(agent)->makings, link)
        wfi_group_wake(making->group);
}

/*
 * Waits until it is woken, or until its time has passed. Releases the agent's lock and the agent meanwhile, so that the
 * agent can close.
 */
static weft_status sleep_a_while(wfi_making *making)
{
    weft_group *group = making->group;
    weft_agent *agent = group->agent;
    weft_future *woken = group->woken = wfi_agent_future(agent);
    if (!woken)
        return WEFT_ERR_MEMORY;
    wfi_list_push_back(&wfi_groups_of(agent)->makings, &making->link);
    wfi_agent_leave_locked(agent);
    weft_status status = wfi_future_wait_until(woken, making->until_ns);
    making->inside = wfi_agent_enter_locked(agent);
    if (making->inside) {
        wfi_list_remove(&making->link);
        group->woken = NULL;
    }
    weft_future_unref(woken);
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
    uint64_t sync = 0;
    weft_status status = may_make(agent);
    while (!status && ranks && agent->options.values.elastic && lacks_news(agent, ranks, count, &sync)) {
        status = sleep_a_while(making);
        if (status == WEFT_ERR_TIMEOUT)
            return WEFT_OK; /* the rank is refused */
        if (!status)
            status = may_make(agent);
    }
    return status;
}

/* ---- Its failure ------------------------------------------------------------------------------------------------- */

/* The ranks that are at fault: the first WFI_FAILED_RANKS of them. */
typedef struct culprits {
    size_t count;
    int ranks[WFI_FAILED_RANKS];
} culprits;

static void add_culprit(culprits *to, int rank)
{
    if (to->count < WFI_FAILED_RANKS)
        to->ranks[to->count] = rank;
    to->count++;
}

/* Ends the group for them. */
static void fail(const wfi_making *making, weft_status status, const culprits *whose)
{
    weft_group *group = making->group;
    char text[200] = "";
    size_t used = 0, named = whose->count < WFI_FAILED_RANKS ? whose->count : WFI_FAILED_RANKS;
    for (size_t i = 0; i < named; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%srank %d", i ? ", " : "", whose->ranks[i]);
    if (named < whose->count)
        snprintf(text + used, sizeof(text) - used, " and %zu more", whose->count - named);
    int first = named ? whose->ranks[0] : -1;
    bool waits = making->stage == WFI_MAKING_GATHERS && !gathers(making);
    if (waits && making->gone)
        wfi_group_break(group, wfi_group_end_of(group, making->gone, making->gone_rank), false);
    else if (status == WEFT_ERR_INVALID)
        wfi_group_break_for(group, status, first, "%s: %s gave other members for that name", making->function, text);
    else if (status != WEFT_ERR_TIMEOUT)
        wfi_group_break_for(group, status, first, "%s: %s: %s", making->function, text, weft_status_text(status));
    else if (waits && !making->has_left)
        wfi_group_break_for(group, status, first, "%s: rank %d has given up: missing is %s", making->function,
                            group->members[making->gatherer].rank, text);
    else
        wfi_group_break_for(group, status, first, "%s was not complete within %lld ms: missing is %s", making->function,
                            (long long)making->timeout_ms, text);
}

/*
 * At the gatherer. WEFT_ERR_INVALID, with the members that gave other lists; or WEFT_ERR_TIMEOUT, with those that have
 * not called, or not said READY, or, if there are none, with those that have taken their calls back. `to` is not
 * named; NULL: none.
 */
static weft_status find_culprits(const wfi_making *making, const wfi_group_member *to, culprits *out)
{
    const weft_group *group = making->group;
    culprits others = {0}, missing = {0}, gone = {0};
    for (size_t i = 0; i < group->size; i++) {
        const wfi_group_member *member = &group->members[i];
        if ((int)i == group->index || member == to)
            continue;
        if (making->stage == WFI_MAKING_MADE ? !member->has_made : !member->attempt)
            add_culprit(member->has_left ? &gone : &missing, member->rank);
        else if (member->what != making->what)
            add_culprit(&others, member->rank);
    }
    *out = others.count ? others : missing.count ? missing : gone;
    return others.count ? WEFT_ERR_INVALID : WEFT_ERR_TIMEOUT;
}

/* ---- Calls that are kept ----------------------------------------------------------------------------------------- */

static void free_call(call *one)
{
    wfi_list_remove(&one->link);
    wfi_peer_unref(one->from);
    free(one);
}

/* False: there is no room. */
static bool keep_call(weft_agent *agent, wfi_peer *from, uint64_t attempt, uint64_t name_hash, uint64_t what)
{
    size_t count = 0;
    WFI_FOR_LIST (const call, one, &wfi_groups_of(agent)->calls, link)
        count += one->from == from;
    call *made = count < CALLS_EACH ? malloc(sizeof(*made)) : NULL;
    if (!made)
        return false;
    *made = (call){.from = wfi_peer_ref(from), .attempt = attempt, .name_hash = name_hash, .what = what};
    wfi_list_init(&made->link);
    wfi_list_push_back(&wfi_groups_of(agent)->calls, &made->link);
    return true;
}

void wfi_making_forget(weft_agent *agent, const wfi_peer *from)
{
    WFI_FOR_LIST_TAKING (call, one, next, &wfi_groups_of(agent)->calls, link)
        if (!from || one->from == from)
            free_call(one);
}

static void count_call(wfi_making *making, wfi_group_member *member, uint64_t attempt, uint64_t what)
{
    making->missing -= !member->attempt;
    member->attempt = attempt;
    member->what = what;
}

/* The gatherer has called. */
static void take_calls(wfi_making *making)
{
    weft_group *group = making->group;
    WFI_FOR_LIST_TAKING (call, one, next, &wfi_groups_of(group->agent)->calls, link) {
        wfi_group_member *member = wfi_group_member_of(group, one->from);
        if (!member || one->name_hash != group->name_hash)
            continue;
        count_call(making, member, one->attempt, one->what);
        free_call(one);
    }
}

/* The gatherer knows of a death, and may call again without the dead one: keeps the calls that may then succeed, and
 * answers the others. */
static void give_calls_back(const wfi_making *making)
{
    weft_group *group = making->group;
    int gone = weft_error_worker(group->over);
    for (size_t i = 0; i < group->size; i++) {
        const wfi_group_member *member = &group->members[i];
        if (!member->peer || !member->attempt)
            continue;
        if (making->may_differ || member->what != making->what)
            (void)!keep_call(group->agent, member->peer, member->attempt, group->name_hash, member->what);
        else
            wfi_answer_failed(group->agent, member->peer, member->attempt, weft_error_code(group->over), &gone, 1);
    }
}

/* At the gatherer: its failure is that of all who have called. */
static void refuse_all(const wfi_making *making)
{
    weft_group *group = making->group;
    weft_status status = weft_error_code(group->over);
    culprits whose = {.count = 1, .ranks = {weft_error_worker(group->over)}};
    if (status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_INVALID)
        (void)find_culprits(making, NULL, &whose);
    for (size_t i = 0; i < group->size; i++)
        if (group->members[i].peer && group->members[i].attempt)
            wfi_answer_failed(group->agent, group->members[i].peer, group->members[i].attempt, status, whose.ranks,
                              whose.count);
}

/* The time has passed. */
static void give_up(const wfi_making *making)
{
    const weft_group *group = making->group;
    size_t awaited = making->stage == WFI_MAKING_SHARES ? group->share.who[0] : making->gatherer;
    culprits whose = {.count = 1, .ranks = {group->members[awaited].rank}};
    bool knows_all = gathers(making) && making->stage != WFI_MAKING_SHARES;
    fail(making, knows_all ? find_culprits(making, NULL, &whose) : WEFT_ERR_TIMEOUT, &whose);
}

/* ---- Its stages -------------------------------------------------------------------------------------------------- */

/* Before the group is made, the members wait only for the gatherer. */
static void depend(const wfi_making *making, int change)
{
    weft_group *group = making->group;
    if (making->stage != WFI_MAKING_GATHERS || gathers(making))
        wfi_group_depend(group, change);
    else if (group->members[making->gatherer].peer)
        wfi_peer_depend(group->members[making->gatherer].peer, change, 0);
}

/* This member has the group: messages of it are taken from now on. False: it is over, because there is no memory. */
static bool enter(wfi_making *making)
{
    weft_group *group = making->group;
    int me = wfi_agent_rank(group->agent);
    weft_status status = wfi_sharing_init(group);
    if (!status)
        status = wfi_map_put(&wfi_groups_of(group->agent)->open, wfi_group_id(group->agent, &group->key), group);
    if (status)
        fail(making, status, &(culprits){1, {me}});
    group->told = status != WEFT_OK;
    return !status;
}

/* All members have the group. */
static void share(wfi_making *making)
{
    making->stage = WFI_MAKING_SHARES;
    making->group->complete = true;
    wfi_sharing_begin(making->group);
    wfi_group_wake(making->group);
}

/*
 * At the gatherer: all have called. If some gave other members, then perhaps because a member has died: they, or this
 * worker, may not have heard of it. So they have some time to call again.
 */
static void number(wfi_making *making)
{
    weft_group *group = making->group;
    wfi_groups *groups = wfi_groups_of(group->agent);
    culprits others;
    if (find_culprits(making, NULL, &others) == WEFT_ERR_INVALID) {
        uint64_t soon_ns = wfi_deadline(wfi_net_clock(group->agent->net), WFI_GROUP_ANSWER_MS);
        making->until_ns = soon_ns < making->limit_ns ? soon_ns : making->limit_ns;
        wfi_group_wake(group);
        return;
    }
    group->key = (wfi_group_key){++groups->last_number, group->members[group->index].incarnation};
    if (!enter(making))
        return;
    making->stage = WFI_MAKING_MADE;
    making->missing = group->size - 1;
    for (size_t i = 0; i < group->size; i++)
        if ((int)i != group->index)
            wfi_say_made(group, i);
    if (!making->missing)
        share(making);
}

/* The index of the member with the lowest rank. */
static size_t find_gatherer(const weft_group *group)
{
    size_t lowest = 0;
    for (size_t i = 1; i < group->size; i++)
        lowest = group->members[i].rank < group->members[lowest].rank ? i : lowest;
    return lowest;
}

/* Takes the list of the gatherer. WEFT_ERR_PROTOCOL: this worker is not in it, or another one would gather it. */
static weft_status replace_members(wfi_making *making, wfi_reader list, size_t count)
{
    weft_group *group = making->group;
    int gatherer = group->members[making->gatherer].rank;
    depend(making, -1);
    wfi_group_interest(group, -1);
    wfi_group_clear(group);
    weft_status status = wfi_group_reserve(group, count);
    for (size_t i = 0; i < count && !status; i++) {
        status = wfi_group_add(group, (int)wfi_read_u32(&list));
        (void)wfi_read_u32(&list);
    }
    making->gatherer = find_gatherer(group);
    if (!status && (group->index < 0 || group->members[making->gatherer].rank != gatherer))
        status = WEFT_ERR_PROTOCOL;
    wfi_group_interest(group, 1);
    making->stage = WFI_MAKING_MADE;
    depend(making, 1);
    if (making->until_ns < making->limit_ns) { /* it had left because of a death, not because of the time */
        making->until_ns = making->limit_ns;
        making->has_left = false;
    }
    return status;
}

/* Whether this worker has heard of all workers in the list. If there is a later one of a rank, it ends the group. */
static bool knows(const wfi_making *making, wfi_reader list, size_t count)
{
    weft_group *group = making->group;
    const wfi_net *net = group->agent->net;
    for (size_t i = 0; i < count; i++) {
        uint32_t rank = wfi_read_u32(&list), incarnation = wfi_read_u32(&list);
        const wfi_member *known = rank < (uint32_t)wfi_net_world_size(net) ? wfi_net_member(net, (int)rank) : NULL;
        if (!known || known->incarnation < incarnation)
            return false;
        if (known->incarnation > incarnation)
            wfi_group_break(group, wfi_group_end_of(group, WEFT_ERR_PEER_DEAD, (int)rank), false);
    }
    return !group->over;
}

static void end_for_gone(weft_group *group)
{
    for (size_t i = 0; i < group->size; i++) {
        wfi_group_member *member = &group->members[i];
        weft_status gone = member->peer ? wfi_peer_status(member->peer) : WEFT_OK;
        if (gone)
            wfi_group_lacks(group, member, gone);
    }
}

/* MADE has come: makes the group as soon as this worker knows its members. */
static void take_list(wfi_making *making)
{
    weft_group *group = making->group;
    wfi_peer *gatherer = group->members[making->gatherer].peer;
    size_t count = making->list_bytes / 8;
    wfi_reader list;
    wfi_reader_init(&list, making->list, making->list_bytes);
    if (making->stage != WFI_MAKING_GATHERS || group->over || !knows(making, list, count))
        return;
    weft_status status = replace_members(making, list, count);
    if (status)
        fail(making, status, &(culprits){1, {wfi_agent_rank(group->agent)}});
    if (!status && enter(making))
        wfi_say_bare(group, making->gatherer, WFI_READY);
    else if (gatherer) /* the group may lack its members, so it does not tell them */
        wfi_answer_over(group->agent, gatherer, &group->key, WEFT_ERR_TIMEOUT);
    end_for_gone(group);
}

/* ---- What the others say ----------------------------------------------------------------------------------------- */

/* The call of this worker for which that peer gathers; NULL: it is over. */
static wfi_making *find_making(const weft_agent *agent, const wfi_peer *from, uint64_t attempt)
{
    WFI_FOR_LIST (wfi_making, making, &wfi_groups_of(agent)->makings, link) {
        const weft_group *group = making->group;
        if (making->attempt == attempt && making->stage == WFI_MAKING_GATHERS && !group->over && !gathers(making) &&
            group->members[making->gatherer].peer == from)
            return making;
    }
    return NULL;
}

/* The member that peer is in a group of that name which this worker gathers. NULL: there is none. */
static wfi_group_member *find_gathered(const weft_agent *agent, const wfi_peer *from, uint64_t name_hash,
                                       wfi_making **out)
{
    WFI_FOR_LIST (wfi_making, making, &wfi_groups_of(agent)->makings, link) {
        weft_group *group = making->group;
        if (is_gathering(making) && group->name_hash == name_hash) {
            *out = making;
            return wfi_group_member_of(group, from);
        }
    }
    return NULL;
}

static void hear_join(weft_agent *agent, wfi_peer *from, uint64_t attempt, uint64_t name_hash, uint64_t what)
{
    wfi_making *making;
    wfi_group_member *member = find_gathered(agent, from, name_hash, &making);
    if (!member && !keep_call(agent, from, attempt, name_hash, what))
        wfi_answer_failed(agent, from, attempt, WEFT_ERR_BUSY, &(int){wfi_agent_rank(agent)}, 1);
    if (!member)
        return;
    count_call(making, member, attempt, what);
    if (!making->missing)
        number(making);
}

/* Whether this worker has, or opens, another group of that name. */
static bool has_other(const weft_agent *agent, const call *one)
{
    WFI_FOR_LIST (const weft_group, group, &wfi_groups_of(agent)->all, link)
        if (group->name_hash == one->name_hash && group->what != one->what && !group->over)
            return true;
    return false;
}

static void hear_leave(weft_agent *agent, wfi_peer *from, uint64_t attempt)
{
    WFI_FOR_LIST (wfi_making, making, &wfi_groups_of(agent)->makings, link) {
        wfi_group_member *member = wfi_group_member_of(making->group, from);
        if (!is_gathering(making) || !member || member->attempt != attempt)
            continue;
        culprits whose;
        weft_status status = find_culprits(making, member->what == making->what ? member : NULL, &whose);
        wfi_answer_failed(agent, from, attempt, status, whose.ranks, whose.count);
        member->attempt = 0;
        member->has_left = true;
        making->missing++;
        return;
    }
    WFI_FOR_LIST_TAKING (call, one, next, &wfi_groups_of(agent)->calls, link) {
        if (one->from != from || one->attempt != attempt)
            continue;
        wfi_answer_failed(agent, from, attempt, has_other(agent, one) ? WEFT_ERR_INVALID : WEFT_ERR_TIMEOUT,
                          &(int){wfi_agent_rank(agent)}, 1);
        free_call(one);
    }
}

static bool hear_failed(const weft_agent *agent, const wfi_peer *from, uint64_t attempt, wfi_reader *reader)
{
    culprits whose = {0};
    weft_status status = (weft_status)(int32_t)wfi_read_u32(reader);
    whose.count = wfi_read_u32(reader);
    for (size_t i = 0; i < whose.count && i < WFI_FAILED_RANKS; i++)
        whose.ranks[i] = (int)wfi_read_u32(reader);
    wfi_making *making = find_making(agent, from, attempt);
    if (reader->failed || !whose.count || (int)status >= 0 || !wfi_status_is_known(status))
        return false;
    if (making && !making->list)
        fail(making, status, &whose);
    return true;
}

static bool hear_made(weft_agent *agent, wfi_peer *from, uint64_t attempt, wfi_reader *reader)
{
    wfi_group_key key = {.number = wfi_read_u64(reader)};
    key.incarnation = wfi_read_u32(reader);
    size_t bytes = wfi_reader_left(reader);
    const uint8_t *list = wfi_read_bytes(reader, bytes);
    wfi_making *making = find_making(agent, from, attempt);
    if (reader->failed || !key.number || key.incarnation != wfi_peer_incarnation(from) || !bytes || bytes % 8 ||
        bytes / 8 > (size_t)wfi_net_world_size(agent->net) || (making && making->list))
        return false;
    if (making)
        making->list = malloc(bytes);
    if (!making || !making->list) {
        wfi_answer_over(agent, from, &key, WEFT_ERR_TIMEOUT);
        return true;
    }
    memcpy(making->list, list, bytes);
    making->list_bytes = bytes;
    making->group->key = key;
    take_list(making);
    return true;
}

bool wfi_making_hear(weft_agent *agent, wfi_peer *from, unsigned word, wfi_reader *reader)
{
    uint64_t attempt = wfi_read_u64(reader);
    if (reader->failed || !attempt)
        return false;
    if (word == WFI_FAILED)
        return hear_failed(agent, from, attempt, reader);
    if (word == WFI_MADE)
        return hear_made(agent, from, attempt, reader);
    if (word == WFI_LEAVE) {
        hear_leave(agent, from, attempt);
        return true;
    }
    uint64_t name_hash = wfi_read_u64(reader), what = wfi_read_u64(reader);
    if (word != WFI_JOIN || reader->failed)
        return false;
    hear_join(agent, from, attempt, name_hash, what);
    return true;
}

/* The call in which that group is made; NULL: it is made. */
static wfi_making *making_of(const weft_group *group)
{
    WFI_FOR_LIST (wfi_making, making, &wfi_groups_of(group->agent)->makings, link)
        if (making->group == group && making->stage == WFI_MAKING_MADE)
            return making;
    return NULL;
}

void wfi_making_hear_ready(weft_group *group, wfi_group_member *from)
{
    wfi_making *making = making_of(group);
    if (!making || !gathers(making) || from->has_made)
        return;
    from->has_made = true;
    if (--making->missing)
        return;
    for (size_t i = 0; i < group->size; i++)
        if ((int)i != group->index)
            wfi_say_bare(group, i, WFI_GO);
    share(making);
}

void wfi_making_hear_go(weft_group *group, const wfi_group_member *from)
{
    wfi_making *making = making_of(group);
    if (making && from == &group->members[making->gatherer] && !gathers(making))
        share(making);
}

void wfi_making_news(weft_agent *agent)
{
    WFI_FOR_LIST (wfi_making, making, &wfi_groups_of(agent)->makings, link) {
        if (making->list)
            take_list(making);
        wfi_group_wake(making->group);
    }
}

void wfi_making_end(weft_agent *agent)
{
    wfi_list *link;
    wfi_making_forget(agent, NULL);
    while ((link = wfi_list_pop_front(&wfi_groups_of(agent)->makings)))
        wfi_group_wake(wfi_container_of(link, wfi_making, link)->group);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

weft_status wfi_making_begin(wfi_making *making, weft_group *group, const char *function, int64_t timeout_ms,
                             uint64_t limit_ns)
{
    weft_agent *agent = group->agent;
    *making = (wfi_making){.group = group, .function = function, .inside = wfi_agent_enter_locked(agent)};
    wfi_list_init(&making->link);
    if (!making->inside)
        return WEFT_ERR_CLOSED;
    making->timeout_ms = timeout_ms ? timeout_ms : agent->call_timeout_ms;
    making->limit_ns = limit_ns ? limit_ns : wfi_deadline(wfi_net_clock(agent->net), making->timeout_ms);
    making->until_ns = making->limit_ns;
    return WEFT_OK;
}

static bool is_over(const wfi_making *making)
{
    return making->group->over || (making->stage == WFI_MAKING_SHARES && wfi_sharing_is_over(making->group));
}

/* Takes the call back, if there is no group yet, and will wait for the answer. */
static void leave(wfi_making *making)
{
    weft_group *group = making->group;
    making->has_left = true;
    making->until_ns = wfi_deadline(wfi_net_clock(group->agent->net), WFI_GROUP_ANSWER_MS);
    if (making->stage == WFI_MAKING_GATHERS)
        wfi_say_leave(group, making->gatherer, making->attempt);
}

bool wfi_making_lacks(const weft_group *group, const wfi_group_member *member, weft_status why)
{
    WFI_FOR_LIST (wfi_making, making, &wfi_groups_of(group->agent)->makings, link) {
        if (making->group != group || group->over || making->stage != WFI_MAKING_GATHERS || gathers(making) ||
            member == &group->members[making->gatherer])
            continue;
        making->gone = why;
        making->gone_rank = member->rank;
        if (!making->has_left)
            leave(making);
        wfi_group_wake(group);
        return true;
    }
    return false;
}

/* The time has passed. WEFT_ERR_TIMEOUT: it has failed. */
static weft_status be_late(wfi_making *making)
{
    bool waits =
        making->stage == WFI_MAKING_SHARES || !gathers(making); /* for who knows the members that are missing */
    bool is_limit = wfi_now(wfi_net_clock(making->group->agent->net)) >= making->limit_ns;
    if (is_gathering(making) && making->missing && !is_limit) { /* those with other members have called again */
        making->until_ns = making->limit_ns;
        return WEFT_OK;
    }
    wfi_sharing_hurry(making->group);
    if (is_over(making))
        return WEFT_OK;
    if (waits && !making->has_left) {
        leave(making);
        return WEFT_OK;
    }
    give_up(making);
    return WEFT_ERR_TIMEOUT;
}

/* It has failed here. */
static weft_status give_back(const wfi_making *making, weft_status status)
{
    weft_group *group = making->group;
    int me = wfi_agent_rank(group->agent);
    if (!group->over)
        fail(making, status, &(culprits){1, {me}});
    status = weft_error_code(group->over);
    bool is_end = status == WEFT_ERR_PEER_DEAD || status == WEFT_ERR_PEER_LEFT;
    if (making->stage != WFI_MAKING_GATHERS || wfi_agent_usable(group->agent))
        return status; /* the others are told, or learn that this worker has left */
    if (!gathers(making) && making->list)
        wfi_answer_over(group->agent, group->members[making->gatherer].peer, &group->key, WEFT_ERR_TIMEOUT);
    else if (!gathers(making) && !making->has_left)
        wfi_say_leave(group, making->gatherer, making->attempt);
    else if (gathers(making) && is_end)
        give_calls_back(making);
    else if (gathers(making))
        refuse_all(making);
    return status;
}

/* The first word: this worker has called. */
static void call_in(wfi_making *making)
{
    weft_group *group = making->group;
    making->missing = group->size - 1;
    if (!gathers(making)) {
        wfi_say_join(group, making->gatherer, making->attempt, making->what);
        return;
    }
    take_calls(making);
    if (!making->missing)
        number(making);
}

weft_status wfi_making_meet(wfi_making *making, uint64_t what, bool may_differ)
{
    weft_group *group = making->group;
    weft_status status = WEFT_OK;
    making->attempt = ++wfi_groups_of(group->agent)->last_attempt;
    making->what = group->what = what;
    making->may_differ = may_differ;
    making->gatherer = find_gatherer(group);
    depend(making, 1);
    end_for_gone(group);
    if (!group->over)
        call_in(making);
    while (!status && !is_over(making)) {
        status = sleep_a_while(making);
        if (status == WEFT_ERR_TIMEOUT)
            status = is_over(making) ? WEFT_OK : be_late(making);
        if (!status)
            status = may_make(group->agent);
    }
    if (making->inside && (status || !group->complete))
        status = give_back(making, status);
    if (making->inside)
        depend(making, -1);
    free(making->list);
    return status;
}
