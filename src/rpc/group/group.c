/* SPDX-License-Identifier: Apache-2.0 */
/* group.c - groups as the user sees them, and a member's own operations (group.h; what comes from others: gather.c). */
#include "rpc/group/group.h"
#include "rpc/payload/explain.h"

#include "base/alloc.h"
#include "base/error.h"
#include "rpc/client/client.h"
#include "value/value.h"

#include <stdlib.h>
#include <string.h>

#define STOP_GRACE_MS 500  /* before this worker stops, for answers of operations that are over to arrive */
#define DEATH_GRACE_MS 500 /* after a member's end, for the gathering member to say how the operation ended */

/* ---- Making one -------------------------------------------------------------------------------------------------- */

static bool is_group_name(const char *name)
{
    static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_:";
    return name && name[0] && strlen(name) <= WFI_GROUP_NAME_MAX && strspn(name, legal) == strlen(name);
}

/* Only the code goes back: what was at fault stands in the log. */
WEFT_PRINTF(3, 4)
static weft_status refuse_group(const weft_agent *agent, weft_status status, const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    wfi_log_agent(agent, WEFT_LOG_WARN, 0, "weft_group_create: %s", text);
    return status;
}

static weft_status add_member(weft_group *group, int rank)
{
    weft_agent *agent = group->agent;
    int world_size = wfi_net_world_size(agent->net);
    if (rank < 0 || rank >= world_size)
        return refuse_group(agent, WEFT_ERR_NOT_FOUND, "ranks[%zu] of \"%s\" is %d, where the world size is %d",
                            group->size, group->key.name, rank, world_size);
    const wfi_member *known = wfi_net_member(agent->net, rank);
    if (!known || !known->incarnation)
        return refuse_group(agent, WEFT_ERR_NOT_FOUND, "ranks[%zu] of \"%s\" is %d: nobody ever held that", group->size,
                            group->key.name, rank);
    wfi_group_member *member = &group->members[group->size];
    *member = (wfi_group_member){.rank = rank, .index = (int)group->size, .incarnation = known->incarnation};
    if (rank == wfi_agent_rank(agent))
        group->index = member->index;
    else
        member->peer = wfi_net_peer(agent->net, rank);
    weft_status st = wfi_map_put(&group->places, (uint64_t)rank + 1, member);
    if (st == WEFT_ERR_EXISTS)
        return refuse_group(agent, WEFT_ERR_INVALID, "ranks[%zu] of \"%s\" is %d, for the second time", group->size,
                            group->key.name, rank);
    group->size++;
    return st;
}

static weft_status add_members(weft_group *group, const int *ranks, size_t count)
{
    weft_agent *agent = group->agent;
    weft_status st = WEFT_OK;
    size_t members = ranks ? count : (size_t)wfi_net_world_size(agent->net);
    group->index = -1;
    group->members = wfi_calloc(members + 1, sizeof *group->members);
    if (!group->members)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < members && !st; i++) {
        /* NULL: in a static job everybody, dead or not, so that all members name the same; else who lives. */
        bool is_meant = ranks || !agent->options.values.elastic || wfi_agent_knows_alive(agent, (int)i) ||
                        (int)i == wfi_agent_rank(agent);
        if (is_meant)
            st = add_member(group, ranks ? ranks[i] : (int)i);
    }
    if (!st && group->index < 0)
        return refuse_group(agent, WEFT_ERR_INVALID, "the %zu ranks of \"%s\" are without this worker's own, %d",
                            group->size, group->key.name, wfi_agent_rank(agent));
    return st;
}

static weft_status make_key(weft_group *group)
{
    wfi_writer writer;
    wfi_writer_init_growing(&writer);
    for (size_t i = 0; i < group->size; i++)
        wfi_write_u32(&writer, (uint32_t)group->members[i].rank);
    if (!writer.failed)
        group->key.ranks_hash = wfi_hash_bytes(writer.data, writer.size);
    for (size_t i = 0; i < group->size; i++)
        wfi_write_u32(&writer, group->members[i].incarnation);
    if (!writer.failed)
        group->key.members_hash = wfi_hash_bytes(writer.data, writer.size);
    weft_status st = writer.failed ? WEFT_ERR_MEMORY : WEFT_OK;
    wfi_writer_fini(&writer);
    return st;
}

static bool name_is_taken(const weft_group *except)
{
    WFI_FOR_LIST (const weft_group, group, &wfi_groups_of(except->agent)->all, link)
        if (group != except && group->opened && strcmp(group->key.name, except->key.name) == 0)
            return true;
    return false;
}

static void set_broken(weft_group *group, int rank, weft_status why)
{
    wfi_error_detail detail = {.code = why, .function = group->key.name, .worker = rank};
    if (!group->broken)
        group->broken = wfi_error_create(&detail, "rank %d, a member of group \"%s\", %s", rank, group->key.name,
                                         why == WEFT_ERR_PEER_DEAD   ? "is dead"
                                         : why == WEFT_ERR_PEER_LEFT ? "has left"
                                                                     : weft_status_text(why));
    wfi_group_remember_broken(group);
}

static weft_status open_group(weft_group *group, const int *ranks, size_t count)
{
    weft_agent *agent = group->agent;
    bool leaving = agent->closing && agent->options.values.elastic;
    weft_status st = leaving ? WEFT_ERR_CLOSED : wfi_agent_usable(agent);
    if (!st)
        st = add_members(group, ranks, count);
    if (!st)
        st = make_key(group);
    if (!st && name_is_taken(group))
        st = refuse_group(agent, WEFT_ERR_EXISTS, "name is \"%s\", as that of an open group", group->key.name);
    if (st)
        return st;
    group->key.generation = wfi_group_generation(agent, &group->key);
    weft_group *record = wfi_group_find(agent, &group->key, false);
    st = wfi_group_next_generation(group);
    if (st)
        return st;
    group->opened = true;
    for (size_t i = 0; i < group->size; i++) {
        wfi_group_member *member = &group->members[i];
        if (!member->peer || !wfi_peer_status(member->peer))
            continue;
        set_broken(group, member->rank, wfi_peer_status(member->peer));
        member->peer = NULL;
    }
    wfi_gather_adopt(group, record == group ? NULL : record);
    return WEFT_OK;
}

weft_status weft_group_create(weft_agent *agent, const char *name, const int *ranks, size_t count, weft_group **out)
{
    wfi_group_key key = {0};
    if (!agent)
        return WEFT_ERR_INVALID;
    if (!out)
        return refuse_group(agent, WEFT_ERR_INVALID, "out is NULL");
    if (!is_group_name(name))
        return refuse_group(agent, WEFT_ERR_INVALID, "name is \"%.80s\": 1 to %d bytes of [A-Za-z0-9-_:]",
                            name ? name : "(NULL)", WFI_GROUP_NAME_MAX);
    if (ranks && !count)
        return refuse_group(agent, WEFT_ERR_INVALID, "count is 0 with the ranks of \"%s\"", name);
    if (agent->forked)
        return refuse_group(agent, WEFT_ERR_STATE, "%s", WFI_FORKED_TEXT);
    snprintf(key.name, sizeof key.name, "%s", name);
    wfi_net_lock(agent->net);
    weft_group *group = wfi_group_make(agent, &key);
    weft_status st = group ? open_group(group, ranks, count) : WEFT_ERR_MEMORY;
    if (st && group) {
        wfi_list_remove(&group->link);
        wfi_group_free(group);
    }
    wfi_net_unlock(agent->net);
    if (!st)
        *out = group;
    return st;
}

size_t weft_group_size(const weft_group *group)
{
    return group->size;
}

int weft_group_index(const weft_group *group)
{
    return group->index;
}

int weft_group_member(const weft_group *group, size_t index)
{
    return index < group->size ? group->members[index].rank : -1;
}

/* ---- Starting one ------------------------------------------------------------------------------------------------ */

static weft_status start_here(weft_group *group, const wfi_errand *what, wfi_gather_kind kind, weft_args mine,
                              weft_future *future)
{
    char problem[200];
    weft_values *values;
    weft_status st = wfi_encode_fits(mine, problem, sizeof problem); /* as where it is a call's argument */
    if (!st)
        st = weft_values_create(mine, &values);
    if (st)
        return st;
    wfi_net_lock(group->agent->net);
    st = wfi_gather_own(group, what->number, kind, values, what->timeout_ms, future);
    wfi_net_unlock(group->agent->net);
    weft_values_unref(values);
    return st;
}

static weft_status take_part(weft_group *group, const wfi_errand *what, wfi_gather_kind kind, weft_args mine,
                             weft_future **out)
{
    if (what->timeout_ms < WEFT_FOREVER || !wfi_args_are_readable(mine))
        return WEFT_ERR_INVALID;
    weft_future *future = wfi_agent_future(group->agent);
    if (!future)
        return WEFT_ERR_MEMORY;
    weft_status st = group->index == 0 ? start_here(group, what, kind, mine, future)
                                       : wfi_group_call_start(group, what, kind, mine, future);
    if (st)
        weft_future_unref(future);
    else
        *out = future;
    return st;
}

/* The others could not be told that this operation fails here, so this member would fall out of step. [agent lock] */
static void break_group(weft_group *group, const wfi_errand *what)
{
    int me = wfi_agent_rank(group->agent);
    if (!group->broken)
        group->broken = wfi_group_problem(
            group, WEFT_ERR_STATE, me, "rank %d could neither take part in operation %llu of group \"%s\" nor say so",
            me, (unsigned long long)what->number, group->key.name);
    wfi_gather_fail_all(group, group->broken);
    wfi_log_agent(group->agent, WEFT_LOG_ERROR, 0, "%s: the group is broken", weft_error_message(group->broken));
}

/* An operation took its number and could not start: tells all members why. */
static void tell_missing(weft_group *group, const wfi_errand *what, weft_args mine, weft_status st)
{
    weft_agent *agent = group->agent;
    weft_error *why = what->timeout_ms < WEFT_FOREVER
                          ? wfi_group_problem(group, st, -1, "timeout_ms is %lld: 0, more, or WEFT_FOREVER",
                                              (long long)what->timeout_ms)
                          : wfi_values_explain(agent, mine, st);
    wfi_errand telling = *what;
    telling.timeout_ms = what->timeout_ms < WEFT_FOREVER ? 0 : what->timeout_ms;
    wfi_log_agent(agent, WEFT_LOG_WARN, 0, "operation %llu of group \"%s\" could not be started: %s",
                  (unsigned long long)what->number, group->key.name, weft_error_message(why));
    st = group->index == 0 ? WEFT_OK : wfi_group_tell_absence(agent, &telling, why);
    wfi_net_lock(agent->net);
    if (group->index == 0)
        st = group->broken ? WEFT_OK : wfi_gather_miss(group, what->number, why);
    if (st && st != WEFT_ERR_BUSY && wfi_group_missed_by(st)) /* busy: this operation fails for all already */
        break_group(group, what);
    wfi_net_unlock(agent->net);
    weft_error_unref(why);
}

static weft_status start_operation(weft_group *group, wfi_gather_kind kind, weft_args mine, int64_t timeout_ms,
                                   weft_future **out)
{
    wfi_errand what = {0};
    if (!group || !out)
        return WEFT_ERR_INVALID;
    weft_agent *agent = group->agent;
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    wfi_net_lock(agent->net);
    weft_status st = wfi_agent_usable(agent);
    if (!st && group->broken)
        st = weft_error_code(group->broken);
    if (!st) /* it gets its number, which it keeps whatever becomes of it */
        what = (wfi_errand){.key = group->key,
                            .to = {group->members[0].rank, group->members[0].incarnation},
                            .number = group->next_number++,
                            .timeout_ms = timeout_ms ? timeout_ms : agent->call_timeout_ms};
    wfi_net_unlock(agent->net);
    if (!st) {
        st = take_part(group, &what, kind, mine, out);
        if (st && wfi_group_missed_by(st))
            tell_missing(group, &what, mine, st);
    }
    wfi_agent_leave(agent);
    return st;
}

weft_status weft_group_barrier_async(weft_group *group, int64_t timeout_ms, weft_future **out)
{
    return start_operation(group, WFI_GATHER_BARRIER, WEFT_NO_VALUES, timeout_ms, out);
}

weft_status weft_group_all_gather_async(weft_group *group, weft_args mine, int64_t timeout_ms, weft_future **out)
{
    return start_operation(group, WFI_GATHER_VALUES, mine, timeout_ms, out);
}

/* A thread that cannot wait contributes nothing. The group may be destroyed while we wait: it is not touched once the
 * operation has begun. */
static weft_status start_and_wait(weft_group *group, wfi_gather_kind kind, weft_args mine, int64_t timeout_ms,
                                  weft_values **out)
{
    weft_future *future;
    weft_status st = WEFT_OK;
    if (group && wfi_agent_enter(group->agent)) {
        const char *what = kind == WFI_GATHER_BARRIER ? "weft_group_barrier" : "weft_group_all_gather";
        st = wfi_rpc_may_wait(group->agent, what, NULL);
        wfi_agent_leave(group->agent);
    }
    if (!st)
        st = start_operation(group, kind, mine, timeout_ms, &future);
    return st ? st : wfi_rpc_await(NULL, future, NULL, out);
}

weft_status weft_group_barrier(weft_group *group, int64_t timeout_ms)
{
    return start_and_wait(group, WFI_GATHER_BARRIER, WEFT_NO_VALUES, timeout_ms, NULL);
}

weft_status weft_group_all_gather(weft_group *group, weft_args mine, int64_t timeout_ms, weft_values **out)
{
    return start_and_wait(group, WFI_GATHER_VALUES, mine, timeout_ms, out);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

static weft_error *group_error(const weft_group *group, weft_status code, const char *what)
{
    wfi_error_detail detail = {.code = code, .function = group->key.name, .worker = wfi_agent_rank(group->agent)};
    return wfi_error_create(&detail, "rank %d %s group \"%s\"", detail.worker, what, group->key.name);
}

/* [agent lock] */
static void end_group(weft_group *group, weft_status others)
{
    weft_error *own = group_error(group, WEFT_ERR_CLOSED, "has closed");
    weft_error *told = group_error(group, others, "has destroyed");
    wfi_net_timer_clear(group->agent->net, &group->broken_timer);
    wfi_group_calls_fail(group, own);
    wfi_gather_fail_own(group, own);
    wfi_gather_fail_all(group, told);
    wfi_list_remove(&group->link);
    weft_error_unref(own);
    weft_error_unref(told);
}

void weft_group_destroy(weft_group *group)
{
    if (!group)
        return;
    if (wfi_agent_enter_locked(group->agent)) {
        end_group(group, WEFT_ERR_CANCELLED);
        wfi_agent_leave_locked(group->agent);
    }
    wfi_group_free(group);
}

static void broken_for_long(wfi_timer *timer)
{
    weft_group *group = wfi_container_of(timer, weft_group, broken_timer);
    wfi_group_calls_fail(group, group->broken);
}

static void member_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    (void)text;
    int rank = wfi_peer_rank(peer);
    WFI_FOR_LIST (weft_group, group, &wfi_groups_of(agent)->all, link) {
        wfi_group_member *member = group->opened ? wfi_map_get(&group->places, (uint64_t)rank + 1) : NULL;
        if (!member || member->peer != peer)
            continue;
        member->peer = NULL;
        set_broken(group, rank, why);
        wfi_gather_fail_all(group, group->broken);
        group->broken_timer.fire = broken_for_long;
        uint64_t soon = wfi_deadline(wfi_net_clock(agent->net), DEATH_GRACE_MS);
        if (!wfi_list_empty(&group->ops) && wfi_net_timer_set(agent->net, &group->broken_timer, soon))
            wfi_group_calls_fail(group, group->broken);
    }
    wfi_gather_refuse_early(agent, rank, why);
}

/* In an elastic job what waits here for this worker is told that it leaves. */
static void on_closing(weft_agent *agent)
{
    if (!agent->options.values.elastic)
        return; /* a static job's workers serve each other until all close */
    WFI_FOR_LIST (weft_group, group, &wfi_groups_of(agent)->all, link)
        wfi_gather_leaving(group);
    wfi_gather_refuse_early(agent, -1, WEFT_ERR_PEER_LEFT);
}

/* ---- Before the agent stops -------------------------------------------------------------------------------------- */

/* Waits, at most STOP_GRACE_MS, until the answers of operations that are over have arrived. */
static void flush_answers(weft_agent *agent)
{
    weft_future *settled = NULL;
    wfi_net_lock(agent->net);
    if (wfi_groups_of(agent)->owed_answers && !agent->gone)
        settled = wfi_groups_of(agent)->answers_settled = wfi_agent_future(agent);
    uint64_t until = wfi_deadline(wfi_net_clock(agent->net), STOP_GRACE_MS);
    wfi_net_unlock(agent->net);
    if (!settled)
        return;
    while (agent->options.values.no_threads && !weft_future_done(settled) && wfi_now(wfi_net_clock(agent->net)) < until)
        weft_agent_progress(agent, 1);
    weft_status st = agent->options.values.no_threads ? WEFT_OK : weft_future_wait_until(settled, until);
    (void)st; /* else whoever did not take it in time hears that we have left */
}

/* Nothing of groups waits any more. */
static void end_groups(weft_agent *agent)
{
    wfi_gather_refuse_early(agent, -1, WEFT_ERR_CLOSED);
    while (!wfi_list_empty(&wfi_groups_of(agent)->all)) /* opened ones are freed by their users */
        end_group(wfi_container_of(wfi_groups_of(agent)->all.next, weft_group, link), WEFT_ERR_CLOSED);
}

/* ---- A component of the agent ------------------------------------------------------------------------------------ */

static weft_status open_groups(weft_agent *agent, weft_error **error)
{
    wfi_groups *groups = wfi_calloc(1, sizeof *groups);
    (void)error;
    if (!groups)
        return WEFT_ERR_MEMORY;
    agent->state[WFI_STATE_GROUPS] = groups;
    wfi_list_init(&groups->all);
    wfi_list_init(&groups->pasts_over);
    wfi_map_init(&groups->pasts);
    groups->early_by_rank = wfi_calloc((size_t)agent->options.values.world_size, sizeof *groups->early_by_rank);
    return groups->early_by_rank ? wfi_function_register(agent, &wfi_gather_function, error) : WEFT_ERR_MEMORY;
}

static void close_groups(weft_agent *agent)
{
    wfi_groups *groups = wfi_groups_of(agent);
    if (groups)
        weft_future_unref(groups->answers_settled);
}

static void free_groups(weft_agent *agent)
{
    wfi_groups *groups = wfi_groups_of(agent);
    if (!groups)
        return;
    wfi_group_pasts_fini(agent);
    free(groups->early_by_rank);
    free(groups);
}

const wfi_component wfi_group_component = {
    .open = open_groups,
    .peer_gone = member_gone,
    .peer_joined = wfi_groups_peer_joined,
    .closing = on_closing,
    .flush = flush_answers,
    .end = end_groups,
    .close = close_groups,
    .free = free_groups,
};
