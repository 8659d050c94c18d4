/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opening.c - see opening.h.
 *
 * NEWS. In an elastic job a worker may learn of a rank from another worker before the store's news of it arrive. So
 * the opening of a group waits for ranks of which this worker has not received. A rank that is dead, has left, or is
 * leaving here may have been taken again by a new worker. To find out, the opening of a group waits for a sync, a
 * round trip to the store: its answer arrives after all news that the store had. A rank that is still gone then was
 * not taken again.
 */
#include "coll/opening.h"

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
    uint64_t attempt, name_hash, members_hash;
} call;

static bool is_coordinator(const wfi_opening *opening)
{
    return (size_t)opening->group->index == opening->coordinator;
}

/* At the coordinator: whether it still waits for calls of members. */
static bool is_collecting_calls(const wfi_opening *opening)
{
    return opening->attempt && opening->stage == WFI_OPENING_CALLED && !opening->group->over && is_coordinator(opening);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

void wfi_opening_wake(weft_agent *agent)
{
    WFI_FOR_LIST (const wfi_opening, opening, &wfi_groups_of(agent)->openings, link)
        wfi_group_wake(opening->group);
}

/*
 * Waits until it is woken, or until its time has passed. Releases the agent's lock and the agent meanwhile, so that
 * the agent can close.
 */
static weft_status wait_for_wake(wfi_opening *opening)
{
    weft_group *group = opening->group;
    weft_agent *agent = group->agent;
    weft_future *woken = group->woken = wfi_agent_future(agent);
    if (!woken)
        return WEFT_ERR_MEMORY;
    wfi_list_push_back(&wfi_groups_of(agent)->openings, &opening->link);
    wfi_agent_leave_locked(agent);
    weft_status status = wfi_future_wait_until(woken, opening->until_ns);
    opening->is_entered = wfi_agent_enter_locked(agent);
    if (opening->is_entered) {
        wfi_list_remove(&opening->link);
        group->woken = NULL;
    }
    weft_future_unref(woken);
    return opening->is_entered ? status : WEFT_ERR_CLOSED;
}

static weft_status may_open(const weft_agent *agent)
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

weft_status wfi_opening_await_news(wfi_opening *opening, const int *ranks, size_t count)
{
    weft_agent *agent = opening->group->agent;
    uint64_t sync = 0;
    weft_status status = may_open(agent);
    while (!status && ranks && agent->options.values.elastic && lacks_news(agent, ranks, count, &sync)) {
        status = wait_for_wake(opening);
        if (status == WEFT_ERR_TIMEOUT)
            return WEFT_OK; /* the rank is refused */
        if (!status)
            status = may_open(agent);
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

/* Ends the group, with an error that names them; or the member whose end kept the coordinator from its answer. */
static void fail(const wfi_opening *opening, weft_status status, const culprits *whose)
{
    weft_group *group = opening->group;
    char text[200] = "";
    size_t used = 0, named = whose->count < WFI_FAILED_RANKS ? whose->count : WFI_FAILED_RANKS;
    for (size_t i = 0; i < named; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%srank %d", i ? ", " : "", whose->ranks[i]);
    if (named < whose->count)
        snprintf(text + used, sizeof(text) - used, " and %zu more", whose->count - named);
    int first = named ? whose->ranks[0] : -1;
    bool waits = opening->stage == WFI_OPENING_CALLED && !is_coordinator(opening);
    if (waits && opening->gone)
        wfi_group_break(group, wfi_group_end_of(group, opening->gone, opening->gone_rank), false);
    else if (status == WEFT_ERR_INVALID)
        wfi_group_break_for(group, status, first, "%s: %s gave other members for that name", opening->function, text);
    else if (status != WEFT_ERR_TIMEOUT)
        wfi_group_break_for(group, status, first, "%s: %s: %s", opening->function, text, weft_status_text(status));
    else if (waits && !opening->has_left)
        wfi_group_break_for(group, status, first, "%s: rank %d has given up: missing is %s", opening->function,
                            group->members[opening->coordinator].rank, text);
    else
        wfi_group_break_for(group, status, first, "%s was not complete within %lld ms: missing is %s",
                            opening->function, (long long)opening->timeout_ms, text);
}

/*
 * At the coordinator. WEFT_ERR_INVALID, with the members that gave other lists; or WEFT_ERR_TIMEOUT, with those that
 * have not called, or not sent READY, or, if there are none, with those that have taken their calls back.
 */
static weft_status find_culprits(const wfi_opening *opening, culprits *out)
{
    const weft_group *group = opening->group;
    culprits others = {0}, missing = {0}, gone = {0};
    for (size_t i = 0; i < group->size; i++) {
        const wfi_group_member *member = &group->members[i];
        if ((int)i == group->index)
            continue;
        if (opening->stage == WFI_OPENING_CREATED ? !member->has_created : !member->attempt)
            add_culprit(member->has_left ? &gone : &missing, member->rank);
        else if (member->members_hash != opening->members_hash)
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
static bool keep_call(weft_agent *agent, wfi_peer *from, uint64_t attempt, uint64_t name_hash, uint64_t members_hash)
{
    size_t count = 0;
    WFI_FOR_LIST (const call, one, &wfi_groups_of(agent)->calls, link)
        count += one->from == from;
    call *made = count < CALLS_EACH ? malloc(sizeof(*made)) : NULL;
    if (!made)
        return false;
    *made =
        (call){.from = wfi_peer_ref(from), .attempt = attempt, .name_hash = name_hash, .members_hash = members_hash};
    wfi_list_init(&made->link);
    wfi_list_push_back(&wfi_groups_of(agent)->calls, &made->link);
    return true;
}

void wfi_opening_forget(weft_agent *agent, const wfi_peer *from)
{
    WFI_FOR_LIST_TAKING (call, one, next, &wfi_groups_of(agent)->calls, link)
        if (!from || one->from == from)
            free_call(one);
}

static void count_call(wfi_opening *opening, wfi_group_member *member, uint64_t attempt, uint64_t members_hash)
{
    opening->missing -= !member->attempt;
    member->attempt = attempt;
    member->members_hash = members_hash;
}

/*
 * At the coordinator, which knows of a death and may call again without the dead member: keeps the calls that may
 * then succeed, and answers the others.
 */
static void keep_or_fail_calls(const wfi_opening *opening)
{
    weft_group *group = opening->group;
    int gone = weft_error_worker(group->over);
    for (size_t i = 0; i < group->size; i++) {
        const wfi_group_member *member = &group->members[i];
        if (!member->peer || !member->attempt)
            continue;
        if (opening->may_differ || member->members_hash != opening->members_hash)
            (void)!keep_call(group->agent, member->peer, member->attempt, group->name_hash, member->members_hash);
        else
            wfi_group_answer_failed(group->agent, member->peer, member->attempt, weft_error_code(group->over), &gone,
                                    1);
    }
}

/* At the coordinator: its failure is that of all who have called. */
static void fail_calls(const wfi_opening *opening)
{
    weft_group *group = opening->group;
    weft_status status = weft_error_code(group->over);
    culprits whose = {.count = 1, .ranks = {weft_error_worker(group->over)}};
    if (status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_INVALID)
        (void)find_culprits(opening, &whose);
    for (size_t i = 0; i < group->size; i++)
        if (group->members[i].peer && group->members[i].attempt)
            wfi_group_answer_failed(group->agent, group->members[i].peer, group->members[i].attempt, status,
                                    whose.ranks, whose.count);
}

/* The time has passed. */
static void give_up(const wfi_opening *opening)
{
    const weft_group *group = opening->group;
    size_t awaited = opening->stage == WFI_OPENING_SHARING ? group->share.by_place[0] : opening->coordinator;
    culprits whose = {.count = 1, .ranks = {group->members[awaited].rank}};
    bool knows_all = is_coordinator(opening) && opening->stage != WFI_OPENING_SHARING;
    fail(opening, knows_all ? find_culprits(opening, &whose) : WEFT_ERR_TIMEOUT, &whose);
}

/* ---- Its stages -------------------------------------------------------------------------------------------------- */

/* Before the group is created, the members wait only for the coordinator. */
static void depend(const wfi_opening *opening, int change)
{
    weft_group *group = opening->group;
    if (opening->stage != WFI_OPENING_CALLED || is_coordinator(opening))
        wfi_group_depend(group, change);
    else if (group->members[opening->coordinator].peer)
        wfi_peer_depend(group->members[opening->coordinator].peer, change, 0);
}

/* From now on messages of the group are received here. False: there is no memory, and the group is over. */
static bool register_group(wfi_opening *opening)
{
    weft_group *group = opening->group;
    int me = wfi_agent_rank(group->agent);
    weft_status status = wfi_sharing_init(group);
    if (!status)
        status = wfi_map_put(&wfi_groups_of(group->agent)->open, wfi_group_id(group->agent, &group->key), group);
    if (status)
        fail(opening, status, &(culprits){1, {me}});
    group->told = status != WEFT_OK;
    return !status;
}

/* All members have the group. */
static void begin_sharing(wfi_opening *opening)
{
    opening->stage = WFI_OPENING_SHARING;
    opening->group->complete = true;
    wfi_sharing_begin(opening->group);
    wfi_group_wake(opening->group);
}

/*
 * At the coordinator: all have called. Numbers the group, and tells the members (CREATED). If some gave other
 * members, perhaps a member has died, and they, or this worker, have not heard of it: they have some time to call
 * again.
 */
static void create(wfi_opening *opening)
{
    weft_group *group = opening->group;
    wfi_groups *groups = wfi_groups_of(group->agent);
    culprits others;
    if (find_culprits(opening, &others) == WEFT_ERR_INVALID) {
        uint64_t soon_ns = wfi_deadline(wfi_net_clock(group->agent->net), WFI_GROUP_ANSWER_MS);
        opening->until_ns = soon_ns < opening->limit_ns ? soon_ns : opening->limit_ns;
        wfi_group_wake(group);
        return;
    }
    group->key = (wfi_group_key){++groups->last_number, group->members[group->index].incarnation};
    if (!register_group(opening))
        return;
    opening->stage = WFI_OPENING_CREATED;
    opening->missing = group->size - 1;
    for (size_t i = 0; i < group->size; i++)
        if ((int)i != group->index)
            wfi_group_send_created(group, i);
    if (!opening->missing)
        begin_sharing(opening);
}

/* The coordinator itself has called: counts the calls that came before. */
static void take_calls(wfi_opening *opening)
{
    weft_group *group = opening->group;
    WFI_FOR_LIST_TAKING (call, one, next, &wfi_groups_of(group->agent)->calls, link) {
        wfi_group_member *member = wfi_group_member_of(group, one->from);
        if (!member || one->name_hash != group->name_hash)
            continue;
        count_call(opening, member, one->attempt, one->members_hash);
        free_call(one);
    }
    if (!opening->missing)
        create(opening);
}

/* The index of the member with the lowest rank. */
static size_t find_coordinator(const weft_group *group)
{
    size_t lowest = 0;
    for (size_t i = 1; i < group->size; i++)
        lowest = group->members[i].rank < group->members[lowest].rank ? i : lowest;
    return lowest;
}

/* Takes the list of the coordinator. WEFT_ERR_PROTOCOL: this worker is not in it, or its coordinator differs. */
static weft_status replace_members(wfi_opening *opening, wfi_reader list, size_t count)
{
    weft_group *group = opening->group;
    int coordinator = group->members[opening->coordinator].rank;
    depend(opening, -1);
    wfi_group_interest(group, -1);
    wfi_group_clear(group);
    weft_status status = wfi_group_reserve(group, count);
    for (size_t i = 0; i < count && !status; i++) {
        status = wfi_group_add(group, (int)wfi_read_u32(&list));
        (void)wfi_read_u32(&list);
    }
    opening->coordinator = find_coordinator(group);
    if (!status && (group->index < 0 || group->members[opening->coordinator].rank != coordinator))
        status = WEFT_ERR_PROTOCOL;
    wfi_group_interest(group, 1);
    opening->stage = WFI_OPENING_CREATED;
    depend(opening, 1);
    if (opening->until_ns < opening->limit_ns) { /* it had left because of a death, not because of the time */
        opening->until_ns = opening->limit_ns;
        opening->has_left = false;
    }
    return status;
}

/* Whether this worker has heard of all workers in the list. If there is a later one of a rank, it ends the group. */
static bool knows(const wfi_opening *opening, wfi_reader list, size_t count)
{
    weft_group *group = opening->group;
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

static void end_if_member_gone(weft_group *group)
{
    for (size_t i = 0; i < group->size; i++) {
        wfi_group_member *member = &group->members[i];
        weft_status gone = member->peer ? wfi_peer_status(member->peer) : WEFT_OK;
        if (gone)
            wfi_group_lacks(group, member, gone);
    }
}

/* CREATED has come: creates the group here as soon as this worker knows its members. */
static void take_list(wfi_opening *opening)
{
    weft_group *group = opening->group;
    wfi_peer *coordinator = group->members[opening->coordinator].peer;
    size_t count = opening->list_bytes / 8;
    wfi_reader list;
    wfi_reader_init(&list, opening->list, opening->list_bytes);
    if (opening->stage != WFI_OPENING_CALLED || group->over || !knows(opening, list, count))
        return;
    weft_status status = replace_members(opening, list, count);
    if (status)
        fail(opening, status, &(culprits){1, {wfi_agent_rank(group->agent)}});
    if (!status && register_group(opening))
        wfi_group_send_bare(group, opening->coordinator, WFI_READY);
    else if (coordinator) /* the group may lack its members, so it does not tell them */
        wfi_group_answer_over(group->agent, coordinator, &group->key, WEFT_ERR_TIMEOUT);
    end_if_member_gone(group);
}

/* ---- Messages of the others -------------------------------------------------------------------------------------- */

/* The call of this worker of which that peer is the coordinator; NULL: it is over. */
static wfi_opening *find_opening(const weft_agent *agent, const wfi_peer *from, uint64_t attempt)
{
    WFI_FOR_LIST (wfi_opening, opening, &wfi_groups_of(agent)->openings, link) {
        const weft_group *group = opening->group;
        if (opening->attempt == attempt && opening->stage == WFI_OPENING_CALLED && !group->over &&
            !is_coordinator(opening) && group->members[opening->coordinator].peer == from)
            return opening;
    }
    return NULL;
}

/* The member that peer is in a group of that name of which this worker collects the calls. NULL: there is none. */
static wfi_group_member *find_collecting(const weft_agent *agent, const wfi_peer *from, uint64_t name_hash,
                                         wfi_opening **out)
{
    WFI_FOR_LIST (wfi_opening, opening, &wfi_groups_of(agent)->openings, link) {
        weft_group *group = opening->group;
        if (is_collecting_calls(opening) && group->name_hash == name_hash) {
            *out = opening;
            return wfi_group_member_of(group, from);
        }
    }
    return NULL;
}

static void on_join(weft_agent *agent, wfi_peer *from, uint64_t attempt, uint64_t name_hash, uint64_t members_hash)
{
    wfi_opening *opening;
    wfi_group_member *member = find_collecting(agent, from, name_hash, &opening);
    if (!member && !keep_call(agent, from, attempt, name_hash, members_hash))
        wfi_group_answer_failed(agent, from, attempt, WEFT_ERR_BUSY, &(int){wfi_agent_rank(agent)}, 1);
    if (!member)
        return;
    count_call(opening, member, attempt, members_hash);
    if (!opening->missing)
        create(opening);
}

/* Whether this worker has, or opens, another group of that name. */
static bool has_other(const weft_agent *agent, const call *one)
{
    WFI_FOR_LIST (const weft_group, group, &wfi_groups_of(agent)->all, link)
        if (group->name_hash == one->name_hash && group->members_hash != one->members_hash && !group->over)
            return true;
    return false;
}

/* A member takes its call back. The answer names who is missing, or gave another list: perhaps that member itself. */
static void on_leave(weft_agent *agent, wfi_peer *from, uint64_t attempt)
{
    WFI_FOR_LIST (wfi_opening, opening, &wfi_groups_of(agent)->openings, link) {
        wfi_group_member *member = wfi_group_member_of(opening->group, from);
        if (!is_collecting_calls(opening) || !member || member->attempt != attempt)
            continue;
        culprits whose;
        weft_status status = find_culprits(opening, &whose);
        wfi_group_answer_failed(agent, from, attempt, status, whose.ranks, whose.count);
        member->attempt = 0;
        member->has_left = true;
        opening->missing++;
        return;
    }
    WFI_FOR_LIST_TAKING (call, one, next, &wfi_groups_of(agent)->calls, link) {
        if (one->from != from || one->attempt != attempt)
            continue;
        wfi_group_answer_failed(agent, from, attempt, has_other(agent, one) ? WEFT_ERR_INVALID : WEFT_ERR_TIMEOUT,
                                &(int){wfi_agent_rank(agent)}, 1);
        free_call(one);
    }
}

static bool on_failed(const weft_agent *agent, const wfi_peer *from, uint64_t attempt, wfi_reader *reader)
{
    culprits whose = {0};
    weft_status status = (weft_status)(int32_t)wfi_read_u32(reader);
    whose.count = wfi_read_u32(reader);
    for (size_t i = 0; i < whose.count && i < WFI_FAILED_RANKS; i++)
        whose.ranks[i] = (int)wfi_read_u32(reader);
    wfi_opening *opening = find_opening(agent, from, attempt);
    if (reader->failed || !whose.count || (int)status >= 0 || !wfi_status_is_known(status))
        return false;
    if (opening && !opening->list)
        fail(opening, status, &whose);
    return true;
}

static bool on_created(weft_agent *agent, wfi_peer *from, uint64_t attempt, wfi_reader *reader)
{
    wfi_group_key key = {.number = wfi_read_u64(reader)};
    key.incarnation = wfi_read_u32(reader);
    size_t bytes = wfi_reader_left(reader);
    const uint8_t *list = wfi_read_bytes(reader, bytes);
    wfi_opening *opening = find_opening(agent, from, attempt);
    if (reader->failed || !key.number || key.incarnation != wfi_peer_incarnation(from) || !bytes || bytes % 8 ||
        bytes / 8 > (size_t)wfi_net_world_size(agent->net) || (opening && opening->list))
        return false;
    if (opening)
        opening->list = malloc(bytes);
    if (!opening || !opening->list) {
        wfi_group_answer_over(agent, from, &key, WEFT_ERR_TIMEOUT);
        return true;
    }
    memcpy(opening->list, list, bytes);
    opening->list_bytes = bytes;
    opening->group->key = key;
    take_list(opening);
    return true;
}

bool wfi_opening_on_message(weft_agent *agent, wfi_peer *from, unsigned type, wfi_reader *reader)
{
    uint64_t attempt = wfi_read_u64(reader);
    if (reader->failed || !attempt)
        return false;
    if (type == WFI_FAILED)
        return on_failed(agent, from, attempt, reader);
    if (type == WFI_CREATED)
        return on_created(agent, from, attempt, reader);
    if (type == WFI_LEAVE) {
        on_leave(agent, from, attempt);
        return true;
    }
    uint64_t name_hash = wfi_read_u64(reader), members_hash = wfi_read_u64(reader);
    if (type != WFI_JOIN || reader->failed)
        return false;
    on_join(agent, from, attempt, name_hash, members_hash);
    return true;
}

/* The call that opens that group; NULL: it is over. */
static wfi_opening *opening_of(const weft_group *group)
{
    WFI_FOR_LIST (wfi_opening, opening, &wfi_groups_of(group->agent)->openings, link)
        if (opening->group == group && opening->stage == WFI_OPENING_CREATED)
            return opening;
    return NULL;
}

void wfi_opening_on_ready(weft_group *group, wfi_group_member *from)
{
    wfi_opening *opening = opening_of(group);
    if (!opening || !is_coordinator(opening) || from->has_created)
        return;
    from->has_created = true;
    if (--opening->missing)
        return;
    for (size_t i = 0; i < group->size; i++)
        if ((int)i != group->index)
            wfi_group_send_bare(group, i, WFI_GO);
    begin_sharing(opening);
}

void wfi_opening_on_go(weft_group *group, const wfi_group_member *from)
{
    wfi_opening *opening = opening_of(group);
    if (opening && from == &group->members[opening->coordinator] && !is_coordinator(opening))
        begin_sharing(opening);
}

void wfi_opening_news(weft_agent *agent)
{
    WFI_FOR_LIST (wfi_opening, opening, &wfi_groups_of(agent)->openings, link) {
        if (opening->list)
            take_list(opening);
        wfi_group_wake(opening->group);
    }
}

void wfi_opening_end(weft_agent *agent)
{
    wfi_list *link;
    wfi_opening_forget(agent, NULL);
    while ((link = wfi_list_pop_front(&wfi_groups_of(agent)->openings)))
        wfi_group_wake(wfi_container_of(link, wfi_opening, link)->group);
}

/* ---- The call itself --------------------------------------------------------------------------------------------- */

weft_status wfi_opening_begin(wfi_opening *opening, weft_group *group, const char *function, int64_t timeout_ms,
                              uint64_t limit_ns)
{
    weft_agent *agent = group->agent;
    *opening = (wfi_opening){.group = group, .function = function, .is_entered = wfi_agent_enter_locked(agent)};
    wfi_list_init(&opening->link);
    if (!opening->is_entered)
        return WEFT_ERR_CLOSED;
    opening->timeout_ms = timeout_ms ? timeout_ms : agent->call_timeout_ms;
    opening->limit_ns = limit_ns ? limit_ns : wfi_deadline(wfi_net_clock(agent->net), opening->timeout_ms);
    opening->until_ns = opening->limit_ns;
    return WEFT_OK;
}

static bool is_over(const wfi_opening *opening)
{
    return opening->group->over || (opening->stage == WFI_OPENING_SHARING && wfi_sharing_is_over(opening->group));
}

/* Takes the call back, if there is no group yet. The thread then waits WFI_GROUP_ANSWER_MS for the answer. */
static void leave(wfi_opening *opening)
{
    weft_group *group = opening->group;
    opening->has_left = true;
    opening->until_ns = wfi_deadline(wfi_net_clock(group->agent->net), WFI_GROUP_ANSWER_MS);
    if (opening->stage == WFI_OPENING_CALLED)
        wfi_group_send_leave(group, opening->coordinator, opening->attempt);
}

bool wfi_opening_lacks(const weft_group *group, const wfi_group_member *member, weft_status why)
{
    WFI_FOR_LIST (wfi_opening, opening, &wfi_groups_of(group->agent)->openings, link) {
        if (opening->group != group || group->over || opening->stage != WFI_OPENING_CALLED || is_coordinator(opening) ||
            member == &group->members[opening->coordinator])
            continue;
        opening->gone = why;
        opening->gone_rank = member->rank;
        if (!opening->has_left)
            leave(opening);
        wfi_group_wake(group);
        return true;
    }
    return false;
}

/*
 * The thread has waited until `until_ns`. WEFT_ERR_TIMEOUT: the call has failed. WEFT_OK: it waits on, for the
 * answer to its LEAVE, or at the coordinator for members that call again.
 */
static weft_status on_time_limit(wfi_opening *opening)
{
    /* for another member, which knows who is missing */
    bool waits = opening->stage == WFI_OPENING_SHARING || !is_coordinator(opening);
    bool is_limit = wfi_now(wfi_net_clock(opening->group->agent->net)) >= opening->limit_ns;
    if (is_collecting_calls(opening) && opening->missing && !is_limit) {
        /* members that gave another list have called again */
        opening->until_ns = opening->limit_ns;
        return WEFT_OK;
    }
    wfi_sharing_hurry(opening->group);
    if (is_over(opening))
        return WEFT_OK;
    if (waits && !opening->has_left) {
        leave(opening);
        return WEFT_OK;
    }
    give_up(opening);
    return WEFT_ERR_TIMEOUT;
}

/* The call fails here: ends the group, and answers the members that have called, or takes back this call. */
static weft_status fail_here(const wfi_opening *opening, weft_status status)
{
    weft_group *group = opening->group;
    int me = wfi_agent_rank(group->agent);
    if (!group->over)
        fail(opening, status, &(culprits){1, {me}});
    status = weft_error_code(group->over);
    bool is_end = status == WEFT_ERR_PEER_DEAD || status == WEFT_ERR_PEER_LEFT;
    if (opening->stage != WFI_OPENING_CALLED || wfi_agent_usable(group->agent))
        return status; /* the others are told, or learn that this worker has left */
    if (!is_coordinator(opening) && opening->list)
        wfi_group_answer_over(group->agent, group->members[opening->coordinator].peer, &group->key, WEFT_ERR_TIMEOUT);
    else if (!is_coordinator(opening) && !opening->has_left)
        wfi_group_send_leave(group, opening->coordinator, opening->attempt);
    else if (is_coordinator(opening) && is_end)
        keep_or_fail_calls(opening);
    else if (is_coordinator(opening))
        fail_calls(opening);
    return status;
}

/*
 * This thread only waits, without the lock, until the group is open or over, or the time limit passes. The messages
 * of the other members (on_join, on_created ...) open the group, or end it, and wake this thread.
 */
weft_status wfi_opening_run(wfi_opening *opening, uint64_t members_hash, bool may_differ)
{
    weft_group *group = opening->group;
    weft_status status = WEFT_OK;
    opening->attempt = ++wfi_groups_of(group->agent)->last_attempt;
    opening->members_hash = group->members_hash = members_hash;
    opening->may_differ = may_differ;
    opening->coordinator = find_coordinator(group);
    depend(opening, 1);
    end_if_member_gone(group);
    opening->missing = group->size - 1;
    if (!group->over && !is_coordinator(opening))
        wfi_group_send_join(group, opening->coordinator, opening->attempt, opening->members_hash);
    else if (!group->over)
        take_calls(opening);
    while (!status && !is_over(opening)) {
        status = wait_for_wake(opening);
        if (status == WEFT_ERR_TIMEOUT)
            status = is_over(opening) ? WEFT_OK : on_time_limit(opening);
        if (!status)
            status = may_open(group->agent);
    }
    if (opening->is_entered && (status || !group->complete))
        status = fail_here(opening, status);
    if (opening->is_entered)
        depend(opening, -1);
    free(opening->list);
    return status;
}
