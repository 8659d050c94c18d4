/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group_gather.c - the gathering member's side of groups (group.h): parts come, operations end.
 *
 * Everything here runs with the agent's lock held, but what tells those who wait (answers, futures) and what frees values: that
 * is deferred until the lock is let go.
 */
#include "rpc/group.h"

#include "base/error.h"
#include "rpc/serve.h"
#include "rpc/values.h"

#include <stdlib.h>
#include <string.h>

#define NAMED_MISSING_MAX 8

WEFT_PRINTF(4, 5)
static weft_error *problem(const weft_group *group, weft_status code, int worker, const char *format, ...)
{
    wfi_error_detail detail = {.code = code, .function = group->key.name, .worker = worker};
    va_list args;
    va_start(args, format);
    weft_error *error = wfi_error_create_v(&detail, format, args);
    va_end(args);
    return error;
}

/* ---- Telling those who wait -------------------------------------------------------------------------------------- */

/* A failure travels as three values, which no good answer looks like: those are lists. */
static void answer_call(const wfi_gather_wait *wait)
{
    weft_call *call = wait->call;
    if (wait->error) {
        weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_error_code(wait->error)),
                                         weft_of_i64(weft_error_worker(wait->error)),
                                         weft_of_string(weft_error_message(wait->error))));
    } else {
        weft_values_unref(call->results);
        call->results = weft_values_ref(wait->results); /* one copy for all who wait */
    }
    weft_call_finish(call, WEFT_OK);
}

/* Not locked. */
static void tell(wfi_gather_wait *wait)
{
    weft_status st = WEFT_OK;
    if (wait->call)
        answer_call(wait);
    else if (wait->error)
        st = weft_future_fail(wait->future, wait->error);
    else
        st = weft_future_complete(wait->future, weft_values_ref(wait->results), wfi_values_drop);
    (void)st; /* unless the user cancelled it */
    weft_future_unref(wait->future);
    weft_values_unref(wait->results);
    weft_error_unref(wait->error);
    free(wait);
}

static void tell_task(wfi_task *task)
{
    tell(wfi_container_of(task, wfi_gather_wait, task));
}

/* The share's part stays; whoever brought it waits no more. */
static void fail_wait(wfi_share *share, const weft_error *error)
{
    wfi_gather_wait *wait = share->wait;
    wfi_net *net = share->group->agent->net;
    if (!wait)
        return;
    share->wait = NULL;
    wfi_net_timer_clear(net, &wait->timer);
    wait->error = weft_error_ref(error);
    wait->task.run = tell_task;
    wfi_net_defer(net, &wait->task, WFI_DEFER_RELEASE);
}

static void free_share(wfi_share *share)
{
    if (!share)
        return;
    weft_values_unref(share->values);
    free(share);
}

static void free_share_task(wfi_task *task)
{
    free_share(wfi_container_of(task, wfi_share, release));
}

/* Tells it, and forgets what it brought. Takes over `error`. */
static void refuse(wfi_share *share, weft_error *error)
{
    fail_wait(share, error);
    weft_error_unref(error);
    share->release.run = free_share_task;
    wfi_net_defer(share->group->agent->net, &share->release, WFI_DEFER_RELEASE);
}

/* ---- Records and groups -------------------------------------------------------------------------------------------- */

weft_group *wfi_group_find(weft_agent *agent, const wfi_group_key *key, bool opened)
{
    for (wfi_list *link = agent->groups.next; link != &agent->groups; link = link->next) {
        weft_group *group = wfi_container_of(link, weft_group, link);
        if (group->opened == opened && group->key.members_hash == key->members_hash &&
            group->key.generation == key->generation && strcmp(group->key.name, key->name) == 0)
            return group;
    }
    return NULL;
}

weft_group *wfi_group_make(weft_agent *agent, const wfi_group_key *key)
{
    weft_group *group = calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->agent = wfi_agent_ref(agent);
    group->key = *key;
    wfi_list_init(&group->early);
    wfi_list_init(&group->ops);
    wfi_list_init(&group->rounds);
    wfi_map_init(&group->places);
    wfi_list_push_back(&agent->groups, &group->link);
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

uint64_t wfi_group_generation(weft_agent *agent, const wfi_group_key *key)
{
    return (uint64_t)(uintptr_t)wfi_map_get(&agent->group_generations, generation_key(key));
}

weft_status wfi_group_next_generation(weft_agent *agent, const wfi_group_key *key)
{
    uint64_t generation = wfi_group_generation(agent, key);
    wfi_map_take(&agent->group_generations, generation_key(key));
    return wfi_map_put(&agent->group_generations, generation_key(key), (void *)(uintptr_t)(generation + 1));
}

/* ---- Operations ---------------------------------------------------------------------------------------------------- */

static void lean(weft_group *group)
{
    bool needed = group->round_count > 0;
    if (needed == group->leaning)
        return;
    group->leaning = needed;
    for (size_t i = 0; i < group->size; i++)
        if (group->members[i].peer)
            wfi_peer_lean(group->members[i].peer, needed ? 1 : -1);
}

/* Everybody's values, as lists in the group's order. Not locked. */
static weft_status collect(const wfi_round *round, weft_values **out)
{
    if (round->shares[0]->kind == WFI_GATHER_BARRIER)
        return weft_values_create(WEFT_NO_VALUES, out);
    weft_value *lists = calloc(round->size, sizeof *lists);
    if (!lists)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < round->size; i++)
        lists[i] = weft_of_list(weft_values_args(round->shares[i]->values));
    weft_status st = weft_values_create((weft_args){lists, round->size}, out);
    free(lists);
    return st;
}

/* Not locked. */
static void end_round(wfi_task *task)
{
    wfi_round *round = wfi_container_of(task, wfi_round, task);
    weft_values *results = NULL;
    weft_status st = round->failure ? WEFT_OK : collect(round, &results);
    if (st) {
        wfi_error_detail detail = {.code = st, .function = round->group_name, .worker = -1};
        round->failure = wfi_error_create(
            &detail, "what was gathered in group \"%s\" is over a limit, or memory is out", round->group_name);
    }
    for (size_t i = 0; i < round->size; i++) {
        wfi_gather_wait *wait = round->shares[i] ? round->shares[i]->wait : NULL;
        if (wait) {
            wait->error = round->failure ? weft_error_ref(round->failure) : NULL;
            wait->results = weft_values_ref(results);
            tell(wait);
        }
        free_share(round->shares[i]);
    }
    weft_values_unref(results);
    weft_error_unref(round->failure);
    free(round);
}

/* The operation is over: well if all parts have come and nothing failed it. */
static void close_round(weft_group *group, wfi_round *round)
{
    wfi_net *net = group->agent->net;
    wfi_list_remove(&round->link);
    group->round_count--;
    for (size_t i = 0; i < round->size; i++)
        if (round->shares[i] && round->shares[i]->wait)
            wfi_net_timer_clear(net, &round->shares[i]->wait->timer);
    round->task.run = end_round;
    wfi_net_defer(net, &round->task, WFI_DEFER_RELEASE);
    lean(group);
}

static wfi_round *open_round(weft_group *group)
{
    wfi_round *round = calloc(1, sizeof *round + group->size * sizeof *round->shares);
    if (!round)
        return NULL;
    memcpy(round->group_name, group->key.name, sizeof round->group_name);
    round->size = group->size;
    round->number = group->opened_below++;
    group->round_count++;
    wfi_list_push_back(&group->rounds, &round->link);
    lean(group);
    return round;
}

/* Opens it, and all before it whose parts are slower. */
static weft_status find_round(weft_group *group, uint64_t number, wfi_round **out)
{
    if (number >= group->opened_below && number - group->opened_below >= WFI_ROUNDS_MAX - group->round_count)
        return WEFT_ERR_BUSY;
    while (number >= group->opened_below)
        if (!open_round(group))
            return WEFT_ERR_MEMORY;
    for (wfi_list *link = group->rounds.next; link != &group->rounds; link = link->next) {
        *out = wfi_container_of(link, wfi_round, link);
        if ((*out)->number == number)
            return WEFT_OK;
    }
    return WEFT_ERR_UNKNOWN;
}

static void fail_round(wfi_round *round, weft_error *error)
{
    if (!round->failure)
        round->failure = weft_error_ref(error);
    for (size_t i = 0; i < round->size; i++)
        if (round->shares[i])
            fail_wait(round->shares[i], error);
    weft_error_unref(error);
}

void wfi_gather_fail_all(weft_group *group, const weft_error *error)
{
    while (!wfi_list_empty(&group->rounds)) {
        wfi_round *round = wfi_container_of(group->rounds.next, wfi_round, link);
        fail_round(round, weft_error_ref(error));
        close_round(group, round);
    }
}

void wfi_gather_fail_own(weft_group *group, const weft_error *error)
{
    for (wfi_list *link = group->rounds.next; link != &group->rounds; link = link->next) {
        wfi_share *own = wfi_container_of(link, wfi_round, link)->shares[group->index];
        if (own)
            fail_wait(own, error);
    }
}

/* ---- A part comes -------------------------------------------------------------------------------------------------- */

static const char *kind_name(wfi_gather_kind kind)
{
    return kind == WFI_GATHER_BARRIER ? "a barrier" : "an all-gather";
}

static const wfi_share *any_share(const wfi_round *round)
{
    for (size_t i = 0; i < round->size; i++)
        if (round->shares[i])
            return round->shares[i];
    return NULL;
}

/* It was sent again, because the answer was lost: who waits now is the newer one. */
static void take_place_of(wfi_share *share, wfi_share *before)
{
    weft_error *error = problem(share->group, WEFT_ERR_CANCELLED, -1, "it was sent again");
    fail_wait(before, error);
    weft_error_unref(error);
    before->wait = share->wait;
    before->wait->share = before;
    share->wait = NULL;
    share->release.run = free_share_task;
    wfi_net_defer(share->group->agent->net, &share->release, WFI_DEFER_RELEASE);
}

static void put_in_round(weft_group *group, wfi_round *round, wfi_share *share, int index)
{
    const wfi_share *other = any_share(round);
    share->round = round;
    if (round->shares[index]) {
        take_place_of(share, round->shares[index]);
        share = round->shares[index];
    } else {
        round->shares[index] = share;
        round->come++;
    }
    if (other && other->kind != share->kind && !round->failure)
        fail_round(round, problem(group, WEFT_ERR_STATE, share->from,
                                  "operation %llu of group \"%s\" is %s on rank %d and %s on rank %d",
                                  (unsigned long long)round->number, group->key.name, kind_name(other->kind),
                                  other->from, kind_name(share->kind), share->from));
    if (round->failure)
        fail_wait(share, round->failure);
    if (round->come == round->size)
        close_round(group, round);
}

/* A part for a group that is open here. */
static void admit(weft_group *group, wfi_share *share)
{
    wfi_round *round;
    const wfi_group_member *member = wfi_map_get(&group->places, (uint64_t)share->from + 1);
    share->group = group;
    if (!member || member->incarnation != share->incarnation || group->index != 0) {
        refuse(share,
               problem(group, WEFT_ERR_INVALID, -1, "rank %d is no member of group \"%s\", or does not gather there",
                       share->from, group->key.name));
        return;
    }
    if (group->broken) {
        refuse(share, weft_error_ref(group->broken));
        return;
    }
    weft_status st = find_round(group, share->number, &round);
    if (st)
        refuse(share, problem(group, st, -1, "operation %llu of group \"%s\": %s", (unsigned long long)share->number,
                              group->key.name,
                              st == WEFT_ERR_BUSY      ? "too many operations are under way"
                              : st == WEFT_ERR_UNKNOWN ? "it is over"
                                                       : weft_status_text(st)));
    else
        put_in_round(group, round, share, member->index);
}

/* ---- Early parts ----------------------------------------------------------------------------------------------------- */

static void leave_record(wfi_share *share)
{
    wfi_list_remove(&share->link);
    share->group->agent->early_parts--;
    share->group->agent->peers[share->from].early_parts--;
}

static void forget_if_empty(weft_group *record)
{
    if (record->opened || !wfi_list_empty(&record->early))
        return;
    wfi_list_remove(&record->link);
    wfi_group_free(record); /* the agent lives: its lock is held */
}

/* Takes over `error`. */
static void refuse_early(wfi_share *share, weft_error *error)
{
    leave_record(share);
    refuse(share, error);
}

static wfi_round *round_without(weft_group *group, int index)
{
    for (wfi_list *link = group->rounds.next; link != &group->rounds; link = link->next) {
        wfi_round *round = wfi_container_of(link, wfi_round, link);
        if (round->shares[0] && round->shares[0]->wait && !round->shares[index])
            return round;
    }
    return NULL;
}

/*
 * A part for another list of members under the name of a group that waits, here, for that very worker: the lists differ by
 * mistake. If nothing waits for it, it may belong to a group that this worker is about to make.
 */
static bool is_mistaken(weft_group *group, wfi_share *share)
{
    const wfi_group_member *member = wfi_map_get(&group->places, (uint64_t)share->from + 1);
    wfi_round *round = member ? round_without(group, member->index) : NULL;
    if (!round)
        return false;
    weft_error *error =
        problem(group, WEFT_ERR_INVALID, share->from, "rank %d made group \"%s\" with other members than rank %d",
                share->from, group->key.name, wfi_agent_rank(group->agent));
    fail_round(round, weft_error_ref(error));
    refuse_early(share, error);
    return true;
}

static bool may_be_mistaken(const weft_group *group, const weft_group *record)
{
    return group->opened && !record->opened && group->index == 0 && strcmp(group->key.name, record->key.name) == 0 &&
           group->key.ranks_hash != record->key.ranks_hash;
}

static void look_for_mistakes_in(weft_group *group, weft_group *record)
{
    wfi_list *next;
    if (!may_be_mistaken(group, record))
        return;
    for (wfi_list *link = record->early.next; link != &record->early; link = next) {
        next = link->next;
        (void)is_mistaken(group, wfi_container_of(link, wfi_share, link));
    }
}

/* Of a record that got a part: every open group. */
static void look_among_groups(weft_agent *agent, weft_group *record)
{
    for (wfi_list *link = agent->groups.next; link != &agent->groups; link = link->next)
        look_for_mistakes_in(wfi_container_of(link, weft_group, link), record);
}

/* Of a group that got our own part: every record. */
static void look_among_records(weft_agent *agent, weft_group *group)
{
    wfi_list *next;
    for (wfi_list *link = agent->groups.next; link != &agent->groups; link = next) {
        weft_group *record = wfi_container_of(link, weft_group, link);
        next = link->next;
        look_for_mistakes_in(group, record);
        forget_if_empty(record);
    }
}

static void keep_early(weft_agent *agent, const wfi_group_key *key, wfi_share *share)
{
    weft_group *record = wfi_group_find(agent, key, false);
    if (!record)
        record = wfi_group_make(agent, key);
    if (!record) {
        refuse(share, problem(share->group, WEFT_ERR_MEMORY, wfi_agent_rank(agent), "out of memory"));
        return;
    }
    share->group = record;
    wfi_list_push_back(&record->early, &share->link);
    agent->early_parts++;
    agent->peers[share->from].early_parts++;
    look_among_groups(agent, record);
    forget_if_empty(record);
}

void wfi_gather_adopt(weft_group *group, weft_group *record)
{
    while (record && !wfi_list_empty(&record->early)) {
        wfi_share *share = wfi_container_of(record->early.next, wfi_share, link);
        leave_record(share);
        admit(group, share);
    }
    if (record)
        forget_if_empty(record);
}

/* ---- Time limits ------------------------------------------------------------------------------------------------------ */

static void name_missing(const weft_group *group, const wfi_round *round, char *out, size_t room)
{
    size_t missing = round->size - round->come, named = 0;
    size_t size = (size_t)snprintf(out, room, missing == 1 ? "rank" : "ranks");
    for (size_t i = 0; i < round->size && named < NAMED_MISSING_MAX; i++) {
        if (!round->shares[i])
            size += (size_t)snprintf(out + size, room - size, "%s %d", named++ ? "," : "", group->members[i].rank);
    }
    if (missing > named)
        snprintf(out + size, room - size, " and %zu more", missing - named);
}

static void timer_fired(wfi_timer *timer)
{
    wfi_share *share = wfi_container_of(timer, wfi_gather_wait, timer)->share;
    weft_group *group = share->group;
    char missing[160];
    if (!share->round) {
        refuse_early(share, problem(group, WEFT_ERR_TIMEOUT, wfi_agent_rank(group->agent),
                                    "rank %d has not made group \"%s\" with these members",
                                    wfi_agent_rank(group->agent), group->key.name));
        forget_if_empty(group);
        return;
    }
    name_missing(group, share->round, missing, sizeof missing);
    weft_error *error = problem(group, WEFT_ERR_TIMEOUT, -1, "%s of group \"%s\": %s did not come",
                                kind_name(share->kind), group->key.name, missing);
    fail_wait(share, error);
    weft_error_unref(error);
}

static weft_status set_timer(weft_agent *agent, wfi_share *share, int64_t timeout_ms)
{
    share->wait->timer.fire = timer_fired;
    if (timeout_ms < 0)
        return WEFT_OK;
    return wfi_net_timer_set(agent->net, &share->wait->timer, wfi_deadline(wfi_net_clock(agent->net), timeout_ms));
}

/* ---- Our own part ------------------------------------------------------------------------------------------------------ */

/* Takes over nothing. */
static wfi_share *make_share(int from, uint32_t incarnation, uint64_t number, wfi_gather_kind kind)
{
    wfi_share *share = calloc(1, sizeof *share);
    wfi_gather_wait *wait = calloc(1, sizeof *wait);
    if (!share || !wait) {
        free(share);
        free(wait);
        return NULL;
    }
    share->from = from;
    share->incarnation = incarnation;
    share->number = number;
    share->kind = kind;
    share->wait = wait;
    wait->share = share;
    wfi_list_init(&share->link);
    return share;
}

weft_status wfi_gather_own(weft_group *group, uint64_t number, wfi_gather_kind kind, weft_values *values,
                           int64_t timeout_ms, weft_future *future)
{
    weft_agent *agent = group->agent;
    const wfi_group_member *self = &group->members[group->index];
    wfi_share *share = make_share(self->rank, self->incarnation, number, kind);
    weft_status st = share ? set_timer(agent, share, timeout_ms) : WEFT_ERR_MEMORY;
    if (st) {
        if (share)
            free(share->wait);
        free(share);
        return st;
    }
    share->values = weft_values_ref(values);
    share->wait->future = weft_future_ref(future);
    admit(group, share);
    look_among_records(agent, group);
    return WEFT_OK;
}

/* ---- The parts of others ------------------------------------------------------------------------------------------------ */

static void take_in(weft_agent *agent, const wfi_group_key *key, wfi_share *share, int64_t timeout_ms)
{
    const wfi_rpc_peer *peer = &agent->peers[share->from];
    weft_group *group = wfi_group_find(agent, key, true);
    weft_group nobody = {.agent = agent, .key = *key}; /* to refuse in the name of */
    int me = wfi_agent_rank(agent);
    weft_status st = set_timer(agent, share, timeout_ms);
    share->group = &nobody;
    if (st)
        refuse(share, problem(&nobody, st, me, "%s", weft_status_text(st)));
    else if (group)
        admit(group, share);
    else if (key->generation < wfi_group_generation(agent, key))
        refuse(share, problem(&nobody, WEFT_ERR_CANCELLED, me, "rank %d has destroyed group \"%s\"", me, key->name));
    else if (agent->closing || agent->stopped)
        refuse(share, problem(&nobody, WEFT_ERR_PEER_LEFT, me, "rank %d closes, and has not made group \"%s\"", me,
                              key->name));
    else if (agent->early_parts >= WFI_EARLY_MAX || peer->early_parts >= WFI_EARLY_PEER_MAX)
        refuse(share, problem(&nobody, WEFT_ERR_BUSY, me,
                              "too many operations wait for groups that rank %d has not made", me));
    else
        keep_early(agent, key, share);
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

static weft_status run_gather(weft_call *call, void *user)
{
    weft_agent *agent = call->agent;
    wfi_group_key key = {0};
    int64_t kind = weft_call_i64(call, 5);
    (void)user;
    if (!call->peer || !read_key(call, &key) || (kind != WFI_GATHER_BARRIER && kind != WFI_GATHER_VALUES))
        return WEFT_ERR_INVALID;
    wfi_share *share = make_share(call->from, wfi_peer_incarnation(call->peer), (uint64_t)weft_call_i64(call, 4),
                                  (wfi_gather_kind)kind);
    weft_status st = share ? weft_values_create(weft_call_list(call, 7), &share->values) : WEFT_ERR_MEMORY;
    if (st) {
        if (share)
            free(share->wait);
        free(share);
        return st;
    }
    int64_t timeout_ms = weft_call_i64(call, 6);
    share->wait->call = weft_call_defer(call);
    wfi_net_lock(agent->net);
    take_in(agent, &key, share, timeout_ms);
    wfi_net_unlock(agent->net);
    return WEFT_DEFERRED;
}

const weft_function wfi_gather_function = {
    .name = "weft:gather",
    .takes = {WEFT_STRING, WEFT_I64, WEFT_I64, WEFT_I64, WEFT_I64, WEFT_I64, WEFT_I64, WEFT_LIST},
    .gives = {WEFT_REST},
    .run = run_gather,
    .flags = WFI_AT_ONCE};

/* ---- Ends of others and our own ----------------------------------------------------------------------------------------- */

static void refuse_record(weft_agent *agent, weft_group *record, int from, weft_status why)
{
    wfi_list *next;
    int me = wfi_agent_rank(agent);
    for (wfi_list *link = record->early.next; link != &record->early; link = next) {
        wfi_share *share = wfi_container_of(link, wfi_share, link);
        next = link->next;
        if (from < 0 || share->from == from)
            refuse_early(
                share, problem(record, why, me, "rank %d closes, and has not made group \"%s\"", me, record->key.name));
    }
    forget_if_empty(record);
}

void wfi_gather_refuse_early(weft_agent *agent, int from, weft_status why)
{
    wfi_list *next;
    for (wfi_list *link = agent->groups.next; link != &agent->groups; link = next) {
        weft_group *record = wfi_container_of(link, weft_group, link);
        next = link->next;
        if (!record->opened)
            refuse_record(agent, record, from, why);
    }
}
