/* SPDX-License-Identifier: Apache-2.0 */
/* open.c - opening and closing groups, news of members, and src/coll as a component of the agent. */
#include "coll/opening.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "job/protocol/protocol.h"
#include "rpc/client/client.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define STOP_GRACE_MS 500 /* before this worker stops, for its last messages to arrive */

/* ---- Opening one ------------------------------------------------------------------------------------------------- */

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
    wfi_agent_log(agent, WEFT_LOG_WARN, 0, "weft_group_open: %s", text);
    if (wfi_log_wants(WEFT_LOG_WARN))
        wfi_status_logged(status);
    return status;
}

/* The arguments of weft_group_open, or of the group that weft_group_shrink opens. */
typedef struct open_args {
    const char *function, *name;
    const int *ranks; /* NULL: none were given */
    size_t count;
    const weft_group *from; /* weft_group_shrink: its living members; else NULL */
    int64_t timeout_ms;
    uint64_t limit_ns; /* 0: not yet known */
} open_args;

/*
 * Whether a rank is a member if no list is given. In a static job all are, even dead ones, so that all members have the
 * same list. In an elastic job the living ones are.
 */
static bool is_default_member(const weft_agent *agent, int rank)
{
    return !agent->options.values.elastic || wfi_agent_lists(agent, rank) || rank == wfi_agent_rank(agent);
}

static bool lives(const weft_group *group, size_t index)
{
    const wfi_peer *peer = group->members[index].peer;
    return (int)index == group->index || (peer && !wfi_peer_status(peer));
}

static weft_status add_member(weft_group *group, int rank, weft_error **error)
{
    weft_agent *agent = group->agent;
    int world_size = wfi_net_world_size(agent->net);
    if (rank < 0 || rank >= world_size)
        return refuse_group(agent, error, WEFT_ERR_NOT_FOUND, "ranks[%zu] of \"%s\" is %d, where the world size is %d",
                            group->size, group->name, rank, world_size);
    weft_status status = wfi_group_add(group, rank);
    if (status == WEFT_ERR_NOT_FOUND)
        return refuse_group(agent, error, status, "ranks[%zu] of \"%s\" is %d: " WFI_UNKNOWN_RANK_TEXT, group->size,
                            group->name, rank, agent->options.name);
    if (status == WEFT_ERR_EXISTS)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "ranks[%zu] of \"%s\" is %d, for the second time",
                            group->size, group->name, rank);
    return status;
}

static weft_status add_members(weft_group *group, const open_args *args, weft_error **error)
{
    weft_agent *agent = group->agent;
    const weft_group *from = args->from;
    size_t count = args->ranks ? args->count : from ? from->size : (size_t)wfi_net_world_size(agent->net);
    weft_status status = wfi_group_reserve(group, count);
    for (size_t i = 0; i < count && !status; i++) {
        int rank = args->ranks ? args->ranks[i] : from ? from->members[i].rank : (int)i;
        if (args->ranks || (from ? lives(from, i) : is_default_member(agent, rank)))
            status = add_member(group, rank, error);
    }
    if (!status && group->index < 0)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "the %zu ranks of \"%s\" are without this worker's own, %d",
                            group->size, group->name, wfi_agent_rank(agent));
    return status;
}

/* It has its members: from now on they may end it. */
static weft_status enter(weft_group *group, weft_error **error)
{
    weft_agent *agent = group->agent;
    if (name_is_taken(agent, group->name))
        return refuse_group(agent, error, WEFT_ERR_EXISTS, "name is \"%s\", as that of an open group", group->name);
    group->open = true;
    wfi_list_push_back(&wfi_groups_of(agent)->all, &group->link);
    wfi_group_interest(group, 1);
    return WEFT_OK;
}

/* Whether members may have different lists, of which the coordinator's is taken. */
static bool may_differ(const weft_agent *agent, const open_args *args)
{
    return args->from || (!args->ranks && agent->options.values.elastic);
}

/* Equal on all members that open the same group. */
static uint64_t hash_members(const weft_group *group, const open_args *args)
{
    uint64_t hash = 0;
    if (args->from)
        return args->from->origin;
    for (size_t i = 0; !may_differ(group->agent, args) && i < group->size; i++) {
        uint64_t words[] = {hash, (uint64_t)group->members[i].rank};
        hash = wfi_hash_bytes(words, sizeof(words));
    }
    return hash;
}

static void close_group(weft_group *group, weft_status why, const char *text);

/* One attempt. The agent is not entered. */
static weft_status try_to_open(weft_agent *agent, open_args *args, weft_group **out, weft_error **error)
{
    wfi_opening opening;
    weft_group *group = wfi_group_make(agent, args->name, wfi_group_ended);
    if (!group)
        return WEFT_ERR_MEMORY;
    weft_status status = wfi_group_environment_rules(agent, &group->rules, error);
    if (!status)
        status = wfi_opening_begin(&opening, group, args->function, args->timeout_ms, args->limit_ns);
    if (status) {
        wfi_group_unref(group);
        return status;
    }
    args->limit_ns = opening.limit_ns;
    status = wfi_opening_await_news(&opening, args->ranks, args->count);
    if (!status)
        status = add_members(group, args, error);
    if (!status)
        status = enter(group, error);
    if (!status)
        status = wfi_opening_run(&opening, hash_members(group, args), may_differ(agent, args));
    uint64_t words[] = {group->key.number, group->key.incarnation};
    group->origin = args->from ? args->from->origin : wfi_hash_bytes(words, sizeof(words));
    if (status && group->over)
        *error = weft_error_ref(group->over);
    if (status && opening.is_entered)
        close_group(group, status, "has not opened it");
    if (opening.is_entered)
        wfi_agent_leave_locked(agent);
    if (status)
        wfi_group_unref(group);
    else
        *out = group;
    return status;
}

static weft_status open_group(weft_agent *agent, open_args *args, weft_group **out, weft_error **error)
{
    for (;;) {
        weft_error *why = NULL;
        weft_status status = try_to_open(agent, args, out, &why);
        bool is_gone = status == WEFT_ERR_PEER_DEAD || status == WEFT_ERR_PEER_LEFT;
        if (is_gone && may_differ(agent, args) && wfi_now(wfi_net_clock(agent->net)) < args->limit_ns) {
            weft_error_unref(why); /* without that member */
            continue;
        }
        if (status && !why)
            why = weft_error_create(status, "%s: \"%s\": %s", args->function, args->name, weft_status_text(status));
        if (status && error) {
            *error = why;
        } else if (status) {
            wfi_agent_log(agent, WEFT_LOG_WARN, 0, "%s", weft_error_message(why));
            weft_error_unref(why);
        }
        return status;
    }
}

static weft_status check(const weft_agent *agent, const open_args *args, weft_group **out, weft_error **error)
{
    if (!agent)
        return wfi_refuse_null_to(error, args->function, "agent");
    if (!out)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "out is NULL");
    if (!is_group_name(args->name))
        return refuse_group(agent, error, WEFT_ERR_INVALID, "name is \"%.*s\": 1 to %d bytes of [A-Za-z0-9-_:]",
                            wfi_utf8_fit(args->name ? args->name : "(NULL)", 80), args->name ? args->name : "(NULL)",
                            WFI_GROUP_NAME_MAX);
    if (args->ranks && !args->count)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "count is 0 with the ranks of \"%s\"", args->name);
    if (args->ranks && args->count > WFI_STORE_WORKERS_MAX)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "count is %zu with the ranks of \"%s\": at most %d",
                            args->count, args->name, WFI_STORE_WORKERS_MAX);
    if (args->timeout_ms < WEFT_FOREVER)
        return refuse_group(agent, error, WEFT_ERR_INVALID, "timeout_ms is %lld: 0, more, or WEFT_FOREVER",
                            (long long)args->timeout_ms);
    if (agent->forked)
        return refuse_group(agent, error, WEFT_ERR_STATE, "%s", WFI_FORKED_TEXT);
    return WEFT_OK;
}

/* Whether this thread may wait. */
static weft_status may_wait(weft_agent *agent, const char *function, weft_error **error)
{
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    weft_status status = wfi_rpc_may_wait(agent, function, &(weft_rpc_options){.error = error});
    wfi_agent_leave(agent);
    return status;
}

weft_status weft_group_open(weft_agent *agent, const char *name, const int *ranks, size_t count, int64_t timeout_ms,
                            weft_group **out, weft_error **error)
{
    WFI_CHECK_HANDLE(agent);
    open_args args = {
        .function = __func__, .name = name, .ranks = ranks, .count = ranks ? count : 0, .timeout_ms = timeout_ms};
    weft_error *why = NULL;
    weft_status status = check(agent, &args, out, error ? &why : NULL);
    if (!status)
        status = may_wait(agent, args.function, error ? &why : NULL);
    if (!status)
        return open_group(agent, &args, out, error);
    if (error)
        *error = why ? why : weft_error_create(status, "weft_group_open: \"%s\": %s", name, weft_status_text(status));
    return status;
}

weft_status wfi_group_of_living(weft_group *group, int64_t timeout_ms, weft_group **out, weft_error **error)
{
    open_args args = {.function = "weft_group_shrink", .name = group->name, .from = group, .timeout_ms = timeout_ms};
    weft_agent *agent = group->agent;
    int me = wfi_agent_rank(agent);
    weft_status status = agent->forked ? WEFT_ERR_STATE : may_wait(agent, args.function, error);
    if (status || !wfi_agent_enter_locked(agent))
        return status ? status : WEFT_ERR_CLOSED;
    wfi_group_break_for(group, WEFT_ERR_CANCELLED, me, "rank %d has shrunk it", me);
    wfi_agent_leave_locked(agent);
    return open_group(agent, &args, out, error);
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
    wfi_group_interest(group, -1);
    if (!wfi_list_empty(&group->operations))
        wfi_group_depend(group, -1);
    /* nothing more is sent to them, and this group is no longer told when they end */
    for (size_t i = 0; i < group->size; i++)
        group->members[i].peer = NULL;
    if (wfi_map_get(&wfi_groups_of(agent)->open, wfi_group_id(agent, &group->key)) == group)
        (void)wfi_map_take(&wfi_groups_of(agent)->open, wfi_group_id(agent, &group->key));
    wfi_list_remove(&group->link);
}

void weft_group_close(weft_group *group)
{
    WFI_CHECK_HANDLE(group);
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
    WFI_CHECK_HANDLE(group, why);
    if (!group || !wfi_agent_enter_locked(group->agent))
        return;
    int me = wfi_agent_rank(group->agent);
    wfi_group_break_for(group, why ? weft_error_code(why) : WEFT_ERR_CANCELLED, me, "rank %d ended it: %s", me,
                        why ? weft_error_message(why) : "no reason given");
    wfi_agent_leave_locked(group->agent);
}

size_t weft_group_size(const weft_group *group)
{
    WFI_CHECK_HANDLE(group);
    return group ? group->size : 0;
}

int weft_group_index(const weft_group *group)
{
    WFI_CHECK_HANDLE(group);
    return group ? group->index : -1;
}

int weft_group_member(const weft_group *group, size_t index)
{
    WFI_CHECK_HANDLE(group);
    return group && index < group->size ? group->members[index].rank : -1;
}

const weft_error *weft_group_error(const weft_group *group)
{
    WFI_CHECK_HANDLE(group);
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
    wfi_opening_wake(agent);
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
        if (is_its_end && !wfi_opening_lacks(group, member, why))
            wfi_group_lacks(group, member, why);
        else if (!is_its_end)
            fail(group, why, text);
        member->peer = NULL;
    }
    wfi_opening_forget(agent, peer);
}

static void peer_joined(weft_agent *agent, wfi_peer *peer)
{
    (void)peer;
    wfi_opening_news(agent);
}

static void unreachable(weft_agent *agent, wfi_peer *peer, const char *text)
{
    WFI_FOR_LIST (weft_group, group, &wfi_groups_of(agent)->all, link) {
        const wfi_group_member *member = wfi_group_member_of(group, peer);
        if (member && (wfi_group_is_busy(group) || group->woken))
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
    wfi_list_init(&groups->openings);
    wfi_list_init(&groups->calls);
    wfi_map_init(&groups->open);
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
                       wfi_operation_names[first->collective.kind], group->name);
        return;
    }
    wfi_awaits_add(out, "operations of groups: %zu", groups->under_way);
}

/* Waits, at most STOP_GRACE_MS, until this worker's messages have arrived: the others may need them. */
static void flush_messages(weft_agent *agent)
{
    wfi_groups *groups = wfi_groups_of(agent);
    weft_future *drained = NULL;
    wfi_net_lock(agent->net);
    if (groups->messages && !agent->gone)
        drained = groups->drained = wfi_agent_future(agent);
    uint64_t until = wfi_deadline(wfi_net_clock(agent->net), STOP_GRACE_MS);
    wfi_net_unlock(agent->net);
    if (!drained)
        return;
    while (agent->options.values.no_threads && !weft_future_done(drained) && wfi_now(wfi_net_clock(agent->net)) < until)
        wfi_agent_progress(agent, 1);
    weft_status status = agent->options.values.no_threads ? WEFT_OK : wfi_future_wait_until(drained, until);
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
        wfi_agent_log(agent, WEFT_LOG_INFO, 0, "%zu groups are still open, of which the first is \"%s\"", count,
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
    wfi_opening_end(agent);
}

static void close_groups(weft_agent *agent)
{
    wfi_groups *groups = wfi_groups_of(agent);
    if (!groups)
        return;
    weft_future_unref(groups->drained);
    wfi_map_fini(&groups->open);
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
    .message = wfi_group_on_message,
    .peer_gone = peer_gone,
    .peer_joined = peer_joined,
    .passed = wfi_sharing_passed,
    .synced = wfi_opening_news,
    .unreachable = unreachable,
    .self_gone = fail_all,
    .busy = is_busy,
    .awaits = tell_of_operations,
    .closing = wfi_opening_wake,
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
