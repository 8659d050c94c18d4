/* SPDX-License-Identifier: Apache-2.0 */
/* open.c - opening and closing groups, news of members, and src/coll as a component of the agent. */
#include "coll/making.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "job/protocol/protocol.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define STOP_GRACE_MS 500 /* before this worker stops, for its last messages to arrive */

/* ---- Making one -------------------------------------------------------------------------------------------------- */

static bool is_group_name(const char *name)
{
    static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_:";
    return name && name[0] && strlen(name) <= WFI_GROUP_NAME_MAX && strspn(name, legal) == strlen(name);
}

static bool name_is_taken(const weft_agent *agent, const char *name)
{
    WFI_FOR_LIST (const weft_group, group, &wfi_groups_of(agent)->all, link)
        if (group->open && !group->over && !strcmp(group->name, name))
            return true;
    return false;
}

/* The detail goes to *error, or to the log if `error` is NULL. */
WEFT_PRINTF(4, 5)
static weft_status refuse_group(const weft_agent *agent, weft_error **error, weft_status status, const char *format,
                                ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(text, sizeof(text), format, args);
    va_end(args);
    if (error)
        return wfi_error_fail(error, status, "weft_group_open: %s", text);
    wfi_log_agent(agent, WEFT_LOG_WARN, 0, "weft_group_open: %s", text);
    if (wfi_log_wants(WEFT_LOG_WARN))
        wfi_status_said(status);
    return status;
}

static weft_status add_member(weft_group *group, int rank, weft_error **error)
{
    weft_agent *agent = group->agent;
    int world_size = wfi_net_world_size(agent->net);
    if (rank < 0 || rank >= world_size)
        return refuse_group(agent, error, WEFT_ERR_NOT_FOUND, "ranks[%zu] of \"%s\" is %d, where the world size is %d",
                            group->size, group->name, rank, world_size);
    const wfi_member *known = wfi_net_member(agent->net, rank);
    if (!known || !known->incarnation)
        return refuse_group(agent, error, WEFT_ERR_NOT_FOUND, "ranks[%zu] of \"%s\" is %d: " WFI_UNHEARD_TEXT,
                            group->size, group->name, rank, agent->options.name);
    wfi_group_member *member = &group->members[group->size];
    *member = (wfi_group_member){.rank = rank, .incarnation = known->incarnation};
    wfi_list_init(&member->early);
    if (rank == wfi_agent_rank(agent))
        group->index = (int)group->size;
    else
        member->peer = wfi_net_peer(agent->net, rank);
    weft_status status = wfi_map_put(&group->places, (uint64_t)rank + 1, member);
    if (status == WEFT_ERR_EXISTS)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "ranks[%zu] of \"%s\" is %d, for the second time",
                            group->size, group->name, rank);
    group->size++;
    return status;
}

static weft_status add_members(weft_group *group, const int *ranks, size_t count, weft_error **error)
{
    weft_agent *agent = group->agent;
    weft_status status = WEFT_OK;
    size_t members = ranks ? count : (size_t)wfi_net_world_size(agent->net);
    group->index = -1;
    group->members = wfi_calloc(members, sizeof(*group->members));
    if (!group->members)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < members && !status; i++) {
        /*
         * NULL: in a static job all ranks, even dead ones, so that all members have the same list; in an elastic job
         * the living ones.
         */
        bool is_meant = ranks || !agent->options.values.elastic || wfi_agent_lists(agent, (int)i) ||
                        (int)i == wfi_agent_rank(agent);
        if (is_meant)
            status = add_member(group, ranks ? ranks[i] : (int)i, error);
    }
    if (!status && group->index < 0)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "the %zu ranks of \"%s\" are without this worker's own, %d",
                            group->size, group->name, wfi_agent_rank(agent));
    return status;
}

/* Finds which members share a host. All members get the same result, because it follows from what members publish. */
static weft_status find_hosts(weft_group *group)
{
    const wfi_net *net = group->agent->net;
    size_t hosts = 0;
    group->hosts = wfi_calloc(group->size, sizeof(*group->hosts));
    if (!group->hosts)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < group->size; i++) {
        size_t first = 0;
        while (first < i && (group->hosts[first] != first ||
                             !wfi_net_same_host(net, group->members[first].rank, group->members[i].rank)))
            first++;
        group->hosts[i] = first;
        hosts += first == i;
    }
    group->spans_hosts = hosts > 1;
    group->has_levels = hosts > 1 && hosts < group->size;
    return WEFT_OK;
}

static weft_status make_key(weft_group *group)
{
    wfi_writer writer;
    wfi_writer_init_growing(&writer);
    for (size_t i = 0; i < group->size; i++) {
        wfi_write_u32(&writer, (uint32_t)group->members[i].rank);
        wfi_write_u32(&writer, group->members[i].incarnation);
    }
    weft_status status = writer.failed ? WEFT_ERR_MEMORY : WEFT_OK;
    if (!status) {
        group->key.name_hash = wfi_hash_bytes(group->name, strlen(group->name));
        group->key.members_hash = wfi_hash_bytes(writer.data, writer.size);
        group->key.generation = (uint32_t)wfi_group_past(group->agent, &group->key);
    }
    wfi_writer_fini(&writer);
    return status;
}

static void member_is_gone(weft_group *group, wfi_group_member *member, weft_status why)
{
    wfi_group_break(group,
                    wfi_group_problem(group, why, member->rank, "rank %d %s", member->rank,
                                      why == WEFT_ERR_PEER_LEFT ? "has left the job" : "is dead"),
                    false); /* the store tells the others */
}

static void have_interest(weft_group *group, int change)
{
    for (size_t i = 0; i < group->size; i++)
        if (group->members[i].peer)
            wfi_peer_interest(group->members[i].peer, change);
}

/* Processes the messages that came before the group was open. */
static void hear_early(weft_group *group)
{
    uint8_t *bytes;
    wfi_peer *from;
    size_t size;
    group->opening = true;
    while ((bytes = wfi_record_take(group->agent, &group->key, &from, &size))) {
        wfi_reader reader;
        wfi_reader_init(&reader, bytes, size);
        if (!wfi_peer_status(from))
            wfi_group_hear(group->agent, from, WFI_RPC_GROUP, &reader);
        wfi_peer_unref(from);
        free(bytes);
    }
    group->opening = false;
    weft_status refused = wfi_record_refused(group->agent, &group->key);
    if (refused)
        wfi_group_break_for(group, refused, wfi_agent_rank(group->agent), "rank %d " WFI_GROUP_NO_MEMORY,
                            wfi_agent_rank(group->agent));
}

/* [agent lock] */
static weft_status open_group(weft_group *group, weft_error **error)
{
    weft_agent *agent = group->agent;
    weft_status status = WEFT_OK;
    if (name_is_taken(agent, group->name))
        status = refuse_group(agent, error, WEFT_ERR_EXISTS, "name is \"%s\", as that of an open group", group->name);
    if (!status)
        status = wfi_map_put(&wfi_groups_of(agent)->open, wfi_group_id(agent, &group->key), group);
    if (status)
        return status;
    status = wfi_group_remember(group);
    if (status) {
        (void)wfi_map_take(&wfi_groups_of(agent)->open, wfi_group_id(agent, &group->key));
        return status;
    }
    group->open = true;
    wfi_list_push_back(&wfi_groups_of(agent)->all, &group->link);
    for (size_t i = 0; i < group->size; i++) {
        wfi_group_member *member = &group->members[i];
        bool is_replaced = !member->peer && member->rank != wfi_agent_rank(agent);
        weft_status gone = is_replaced ? WEFT_ERR_PEER_DEAD : member->peer ? wfi_peer_status(member->peer) : WEFT_OK;
        if (gone) {
            member->peer = NULL;
            member_is_gone(group, member, gone);
        }
    }
    have_interest(group, 1);
    hear_early(group);
    return WEFT_OK;
}

/* `awaits_news`: first waits for what the store knows about `ranks`. */
static weft_status create(weft_agent *agent, const char *name, const int *ranks, size_t count, bool awaits_news,
                          weft_group **out, weft_error **error)
{
    weft_group *group = wfi_group_make(agent, name, wfi_group_ended, wfi_sharing_due);
    if (!group)
        return WEFT_ERR_MEMORY;
    wfi_making making = {.group = group};
    weft_status status = wfi_rules_of_environment(agent, &group->rules, error);
    if (!status)
        making.inside = wfi_agent_enter_locked(agent);
    if (!status)
        status = making.inside ? wfi_making_await_news(&making, awaits_news ? ranks : NULL, count) : WEFT_ERR_CLOSED;
    if (!status)
        status = add_members(group, ranks, count, error);
    if (!status)
        status = find_hosts(group);
    if (!status)
        status = wfi_sharing_init(group);
    if (!status)
        status = make_key(group);
    if (!status)
        status = wfi_making_agree(&making);
    if (!status)
        status = open_group(group, error);
    if (making.inside)
        wfi_agent_leave_locked(agent);
    if (status)
        wfi_group_unref(group);
    else
        *out = group;
    return status;
}

static weft_status open_checked(weft_agent *agent, const char *name, const int *ranks, size_t count, weft_group **out,
                                weft_error **error)
{
    if (!agent)
        return wfi_refuse_null_to(error, "weft_group_open", "agent");
    if (!out)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "out is NULL");
    if (!is_group_name(name))
        return refuse_group(agent, error, WEFT_ERR_INVALID, "name is \"%.*s\": 1 to %d bytes of [A-Za-z0-9-_:]",
                            wfi_utf8_fit(name ? name : "(NULL)", 80), name ? name : "(NULL)", WFI_GROUP_NAME_MAX);
    if (ranks && !count)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "count is 0 with the ranks of \"%s\"", name);
    if (ranks && count > WFI_STORE_WORKERS_MAX)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "count is %zu with the ranks of \"%s\": at most %d", count,
                            name, WFI_STORE_WORKERS_MAX);
    if (agent->forked)
        return refuse_group(agent, error, WEFT_ERR_STATE, "%s", WFI_FORKED_TEXT);
    return create(agent, name, ranks, count, true, out, error);
}

weft_status weft_group_open(weft_agent *agent, const char *name, const int *ranks, size_t count, weft_group **out,
                            weft_error **error)
{
    WFI_LIVE(agent);
    weft_error *why = NULL;
    weft_status status = open_checked(agent, name, ranks, count, out, error ? &why : NULL);
    if (status && error)
        *error = why ? why : weft_error_create(status, "weft_group_open: \"%s\": %s", name, weft_status_text(status));
    return status;
}

weft_status wfi_group_of_living(weft_group *group, weft_group **out, weft_error **error)
{
    weft_agent *agent = group->agent;
    size_t count = 0;
    int *ranks = wfi_calloc(group->size, sizeof(*ranks));
    if (!ranks)
        return WEFT_ERR_MEMORY;
    wfi_net_lock(agent->net);
    for (size_t i = 0; i < group->size; i++) {
        const wfi_group_member *member = &group->members[i];
        if ((int)i == group->index || (member->peer && !wfi_peer_status(member->peer)))
            ranks[count++] = member->rank;
    }
    wfi_net_unlock(agent->net);
    weft_status status = agent->forked ? WEFT_ERR_STATE : create(agent, group->name, ranks, count, false, out, error);
    free(ranks);
    return status;
}

/* ---- Its life ---------------------------------------------------------------------------------------------------- */

/* [agent lock] */
static void close_group(weft_group *group, weft_status why, const char *text)
{
    weft_agent *agent = group->agent;
    int me = wfi_agent_rank(agent);
    if (!group->open)
        return;
    group->open = false;
    if (wfi_group_is_busy(group))
        wfi_group_break_for(group, why, me, "rank %d %s", me, text);
    /*
     * Also passes on errors of other members, which may not have arrived everywhere: later messages get a less
     * detailed answer.
     */
    if (group->over)
        wfi_group_tell(group);
    wfi_early_forget(group);
    wfi_missing_unwatch(group);
    wfi_share_end(group);
    have_interest(group, -1);
    if (!wfi_list_empty(&group->operations))
        wfi_group_depend(group, -1);
    /* nothing more is sent to them, and this group is no longer told when they end */
    for (size_t i = 0; i < group->size; i++)
        group->members[i].peer = NULL;
    (void)wfi_map_take(&wfi_groups_of(agent)->open, wfi_group_id(agent, &group->key));
    wfi_list_remove(&group->link);
}

void weft_group_close(weft_group *group)
{
    WFI_LIVE(group);
    if (!group)
        return;
    if (atomic_exchange_explicit(&group->closed, true, memory_order_relaxed))
        wfi_handle_refuse(group, __func__, NULL);
    if (wfi_agent_enter_locked(group->agent)) {
        close_group(group, WEFT_ERR_CANCELLED, "has closed it");
        wfi_agent_leave_locked(group->agent);
    }
    wfi_group_unuse(group);
}

void weft_group_abort(weft_group *group, const weft_error *why)
{
    WFI_LIVE(group, why);
    if (!group || !wfi_agent_enter_locked(group->agent))
        return;
    int me = wfi_agent_rank(group->agent);
    wfi_group_break_for(group, why ? weft_error_code(why) : WEFT_ERR_CANCELLED, me, "rank %d ended it: %s", me,
                        why ? weft_error_message(why) : "no reason given");
    wfi_agent_leave_locked(group->agent);
}

size_t weft_group_size(const weft_group *group)
{
    WFI_LIVE(group);
    return group ? group->size : 0;
}

int weft_group_index(const weft_group *group)
{
    WFI_LIVE(group);
    return group ? group->index : -1;
}

int weft_group_member(const weft_group *group, size_t index)
{
    WFI_LIVE(group);
    return group && index < group->size ? group->members[index].rank : -1;
}

const weft_error *weft_group_error(const weft_group *group)
{
    WFI_LIVE(group);
    if (!group)
        return NULL;
    weft_agent *agent = group->agent;
    if (!wfi_agent_enter_locked(agent))
        return group->over; /* it does not change after this */
    const weft_error *error = group->over;
    wfi_agent_leave_locked(agent);
    return error;
}

/* ---- News -------------------------------------------------------------------------------------------------------- */

/* For groups that end because this worker has ended. */
static void fail(weft_group *group, weft_status why, const char *text)
{
    wfi_group_break(group, wfi_group_problem(group, why, wfi_agent_rank(group->agent), "%s", text), false);
}

static void fail_all(weft_agent *agent, weft_status why, const char *text)
{
    wfi_making_wake(agent);
    WFI_FOR_LIST (weft_group, group, &wfi_groups_of(agent)->all, link)
        fail(group, why, text);
}

/*
 * If the reason is not the peer's own end, all peers go because this worker is gone: the first of them is not at
 * fault.
 */
static void peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    bool is_its_end = why == WEFT_ERR_PEER_DEAD || why == WEFT_ERR_PEER_LEFT;
    WFI_FOR_LIST (weft_group, group, &wfi_groups_of(agent)->all, link) {
        wfi_group_member *member = wfi_group_member_of(group, peer);
        if (!member)
            continue;
        member->peer = NULL;
        if (is_its_end)
            member_is_gone(group, member, why);
        else
            fail(group, why, text);
    }
    wfi_records_forget(agent, peer);
    wfi_making_gone(agent, peer);
}

static void peer_joined(weft_agent *agent, wfi_peer *peer)
{
    wfi_pasts_joined(agent, peer);
    wfi_making_news(agent);
}

static void unreachable(weft_agent *agent, wfi_peer *peer, const char *text)
{
    WFI_FOR_LIST (weft_group, group, &wfi_groups_of(agent)->all, link) {
        const wfi_group_member *member = wfi_group_member_of(group, peer);
        if (member && wfi_group_is_busy(group))
            wfi_group_break_for(group, WEFT_ERR_UNREACHABLE, member->rank, "rank %d cannot reach rank %d: %s",
                                wfi_agent_rank(agent), member->rank, text);
    }
}

/* ---- A component of the agent ------------------------------------------------------------------------------------ */

static weft_status open_groups(weft_agent *agent, weft_error **error)
{
    (void)error;
    wfi_groups *groups = wfi_calloc(1, sizeof(*groups));
    if (!groups)
        return WEFT_ERR_MEMORY;
    agent->state[WFI_STATE_GROUPS] = groups;
    wfi_list_init(&groups->all);
    wfi_list_init(&groups->pasts_over);
    wfi_map_init(&groups->open);
    wfi_map_init(&groups->records);
    wfi_list_init(&groups->overs);
    wfi_list_init(&groups->waiters);
    wfi_map_init(&groups->pasts);
    wfi_map_init(&groups->operations);
    return WEFT_OK;
}

static bool is_busy(weft_agent *agent)
{
    return wfi_groups_of(agent)->under_way > 0;
}

static void tell_of_operations(weft_agent *agent, wfi_awaits *out)
{
    const wfi_groups *groups = wfi_groups_of(agent);
    if (!groups->under_way)
        return;
    WFI_FOR_LIST (const weft_group, group, &groups->all, link) {
        if (wfi_list_empty(&group->operations))
            continue;
        const wfi_operation *first = wfi_container_of(group->operations.next, wfi_operation, link);
        wfi_awaits_add(out, "operations of groups: %zu, one of them: %s of group \"%s\"", groups->under_way,
                       wfi_operation_names[first->what.kind], group->name);
        return;
    }
    wfi_awaits_add(out, "operations of groups: %zu", groups->under_way);
}

/* Waits, at most STOP_GRACE_MS, until this worker's messages have arrived: the others may need them. */
static void flush_messages(weft_agent *agent)
{
    wfi_groups *groups = wfi_groups_of(agent);
    weft_future *settled = NULL;
    wfi_net_lock(agent->net);
    if (groups->messages && !agent->gone)
        settled = groups->settled = wfi_agent_future(agent);
    uint64_t until = wfi_deadline(wfi_net_clock(agent->net), STOP_GRACE_MS);
    wfi_net_unlock(agent->net);
    if (!settled)
        return;
    while (agent->options.values.no_threads && !weft_future_done(settled) && wfi_now(wfi_net_clock(agent->net)) < until)
        wfi_agent_progress(agent, 1);
    weft_status status = agent->options.values.no_threads ? WEFT_OK : wfi_future_wait_until(settled, until);
    (void)status; /* otherwise members that did not receive them learn that this worker has left */
}

/* Not an error: they may be closed later. */
static void log_open(const weft_agent *agent)
{
    const weft_group *first = NULL;
    size_t count = 0;
    WFI_FOR_LIST (const weft_group, group, &wfi_groups_of(agent)->all, link) {
        first = first ? first : group;
        count++;
    }
    if (first)
        wfi_log_agent(agent, WEFT_LOG_INFO, 0, "%zu groups are still open, of which the first is \"%s\"", count,
                      first->name);
}

/* The user still owns the groups, and closes them. */
static void end_groups(weft_agent *agent)
{
    log_open(agent);
    while (!wfi_list_empty(&wfi_groups_of(agent)->all)) {
        weft_group *group = wfi_container_of(wfi_groups_of(agent)->all.next, weft_group, link);
        wfi_group_break(group,
                        wfi_group_problem(group, WEFT_ERR_CLOSED, wfi_agent_rank(agent), "rank %d has closed",
                                          wfi_agent_rank(agent)),
                        false);
        group->told = true; /* the others learn from the store that this worker has left */
        close_group(group, WEFT_ERR_CLOSED, "has closed");
    }
    wfi_records_forget(agent, NULL);
    wfi_making_end(agent);
}

static void close_groups(weft_agent *agent)
{
    wfi_groups *groups = wfi_groups_of(agent);
    if (!groups)
        return;
    weft_future_unref(groups->settled);
    wfi_map_fini(&groups->open);
    wfi_map_fini(&groups->records);
    wfi_pasts_free(agent);
    wfi_map_fini(&groups->operations);
}

static void free_groups(weft_agent *agent)
{
    if (wfi_groups_of(agent))
        wfi_group_metrics_free(wfi_groups_of(agent));
    free(wfi_groups_of(agent));
}

const wfi_component wfi_group_component = {
    .messages = WFI_TAKES(WFI_RPC_GROUP),
    .open = open_groups,
    .message = wfi_group_hear,
    .peer_gone = peer_gone,
    .peer_joined = peer_joined,
    .passed = wfi_sharing_passed,
    .synced = wfi_making_news,
    .unreachable = unreachable,
    .self_gone = fail_all,
    .busy = is_busy,
    .awaits = tell_of_operations,
    .closing = wfi_making_wake,
    .dump = wfi_groups_dump,
    .metrics = wfi_groups_write_metrics,
    .flush = flush_messages,
    .end = end_groups,
    .close = close_groups,
    .free = free_groups,
};

/* A program that uses groups links this file, so the component is present. */
__attribute__((constructor(WFI_JOIN_GROUPS))) static void join_agents(void)
{
    wfi_component_add(&wfi_group_component);
}
