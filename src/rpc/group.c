/* SPDX-License-Identifier: Apache-2.0 */
/* group.c - groups as the user sees them, and a member's own operations (group.h; what comes from others: group_gather.c). */
#include "future/future_impl.h" /* wfi_future_observe: no hop over the executor, which may be full of those who wait */

#include "rpc/group.h"

#include "base/error.h"
#include "rpc/values.h"

#include <stdlib.h>
#include <string.h>

#define ANSWER_GRACE_MS 1000 /* after the time limit, for the gathering member to say who is missing */
#define DEATH_GRACE_MS 500   /* after a member's end, for the gathering member to say how the operation ended */

/* An operation of ours that another member gathers. */
typedef struct group_op {
    wfi_list link;
    wfi_observer observer;
    wfi_task release;
    weft_agent *agent;
    char name[WFI_GROUP_NAME_MAX + 1];
    weft_future *call;
    weft_future *future; /* the user's */
} group_op;

/* ---- Making one ---------------------------------------------------------------------------------------------------- */

static bool is_group_name(const char *name)
{
    static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_:";
    return name && name[0] && strlen(name) <= WFI_GROUP_NAME_MAX && strspn(name, legal) == strlen(name);
}

static weft_status add_member(weft_group *group, int rank)
{
    weft_agent *agent = group->agent;
    const wfi_member *known = wfi_net_member(agent->net, rank);
    if (!known || !known->incarnation)
        return WEFT_ERR_NOT_FOUND;
    wfi_group_member *member = &group->members[group->size];
    *member = (wfi_group_member){.rank = rank, .index = (int)group->size, .incarnation = known->incarnation};
    if (rank == wfi_agent_rank(agent))
        group->index = member->index;
    else
        member->peer = wfi_net_peer(agent->net, rank);
    weft_status st = wfi_map_put(&group->places, (uint64_t)rank + 1, member);
    if (st == WEFT_ERR_EXISTS)
        return WEFT_ERR_INVALID; /* named twice */
    group->size++;
    return st;
}

/* In a static job everybody, dead or not, so that all members name the same. */
static bool is_meant(weft_agent *agent, int rank)
{
    wfi_peer *peer = wfi_net_peer(agent->net, rank);
    if (!agent->options.values.elastic || rank == wfi_agent_rank(agent))
        return true;
    return peer && !wfi_peer_status(peer);
}

static weft_status add_members(weft_group *group, const int *ranks, size_t count)
{
    weft_agent *agent = group->agent;
    weft_status st = WEFT_OK;
    size_t seats = ranks ? count : (size_t)wfi_net_world_size(agent->net);
    group->index = -1;
    group->members = calloc(seats + 1, sizeof *group->members);
    if (!group->members)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < seats && !st; i++)
        if (ranks || is_meant(agent, (int)i))
            st = add_member(group, ranks ? ranks[i] : (int)i);
    return st ? st : group->index < 0 ? WEFT_ERR_INVALID : WEFT_OK;
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
    const wfi_list *all = &except->agent->groups;
    for (const wfi_list *link = all->next; link != all; link = link->next) {
        const weft_group *group = wfi_container_of(link, weft_group, link);
        if (group != except && group->opened && strcmp(group->key.name, except->key.name) == 0)
            return true;
    }
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

static void look_for_the_dead(weft_group *group)
{
    for (size_t i = 0; i < group->size; i++) {
        wfi_group_member *member = &group->members[i];
        if (!member->peer || !wfi_peer_status(member->peer))
            continue;
        set_broken(group, member->rank, wfi_peer_status(member->peer));
        member->peer = NULL;
    }
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
        st = WEFT_ERR_EXISTS;
    if (st)
        return st;
    group->key.generation = wfi_group_generation(agent, &group->key);
    weft_group *record = wfi_group_find(agent, &group->key, false);
    st = wfi_group_next_generation(group);
    if (st)
        return st;
    group->opened = true;
    look_for_the_dead(group);
    wfi_gather_adopt(group, record == group ? NULL : record);
    return WEFT_OK;
}

weft_status weft_group_create(weft_agent *agent, const char *name, const int *ranks, size_t count, weft_group **out)
{
    wfi_group_key key = {0};
    if (!agent || !out || !is_group_name(name) || (ranks && !count))
        return WEFT_ERR_INVALID;
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

/* ---- An operation gathered elsewhere --------------------------------------------------------------------------------- */

typedef struct cancellation {
    wfi_task task;
    weft_future *call;
} cancellation;

static void cancel_task(wfi_task *task)
{
    cancellation *one = wfi_container_of(task, cancellation, task);
    weft_status st = weft_future_cancel(one->call);
    (void)st; /* it may have ended by itself */
    weft_future_unref(one->call);
    free(one);
}

/* [agent lock] */
static void fail_op(group_op *op, const weft_error *error)
{
    cancellation *one = malloc(sizeof *one);
    weft_status st = weft_future_fail(op->future, error);
    (void)st; /* it may have ended well this moment */
    if (!one)
        return; /* then the call ends by itself, by its time limit */
    *one = (cancellation){.task.run = cancel_task, .call = weft_future_ref(op->call)};
    wfi_net_defer(op->agent->net, &one->task, WFI_DEFER_RELEASE);
}

/* All that are under way, and forgets them. [agent lock] */
static void fail_ops(weft_group *group, const weft_error *error)
{
    for (wfi_list *link; (link = wfi_list_pop_front(&group->ops));)
        fail_op(wfi_container_of(link, group_op, link), error);
}

static void broken_for_long(wfi_timer *timer)
{
    weft_group *group = wfi_container_of(timer, weft_group, broken_timer);
    fail_ops(group, group->broken);
}

static void release_op(wfi_task *task)
{
    group_op *op = wfi_container_of(task, group_op, release);
    if (wfi_agent_enter(op->agent)) {
        wfi_net_lock(op->agent->net);
        wfi_list_remove(&op->link);
        wfi_net_unlock(op->agent->net);
        wfi_agent_leave(op->agent);
    }
    weft_future_unref(op->call);
    weft_future_unref(op->future);
    wfi_agent_unref(op->agent);
    free(op);
}

/* What the gathering member said, or why it said nothing. */
static weft_error *translate(const group_op *op, const weft_values *answer)
{
    const weft_error *failed = weft_future_error(op->call);
    wfi_error_detail detail = {.function = op->name};
    int64_t code, worker;
    const char *text;
    if (failed) {
        bool ours = weft_error_code(failed) == WEFT_ERR_REMOTE;
        detail.code = ours ? weft_error_remote_code(failed) : weft_error_code(failed);
        detail.worker = weft_error_worker(failed);
        return wfi_error_create(&detail, "the member that gathers for group \"%s\" did not: %s", op->name,
                                weft_error_message(failed));
    }
    if (weft_values_count(answer) != 3 || weft_values_get_i64(answer, 0, &code) ||
        weft_values_get_i64(answer, 1, &worker) || weft_values_get_string(answer, 2, &text))
        return NULL;
    detail.code = (weft_status)code;
    detail.worker = (int)worker;
    return wfi_error_create(&detail, "%s", text);
}

/* The call has ended. On whichever thread, perhaps with the agent's lock held: what it held goes later. */
static void call_ended(wfi_observer *observer)
{
    group_op *op = wfi_container_of(observer, group_op, observer);
    const weft_values *answer = weft_future_values(op->call);
    weft_error *error = translate(op, answer);
    weft_status st;
    if (error)
        st = weft_future_fail(op->future, error);
    else
        st = weft_future_complete(op->future, weft_values_ref((weft_values *)answer), wfi_values_drop);
    (void)st; /* it may have been failed before */
    weft_error_unref(error);
    op->release = (wfi_task){.run = release_op};
    wfi_executor_submit(op->agent->executor, &op->release);
}

static weft_status call_gatherer(weft_group *group, uint64_t number, wfi_gather_kind kind, weft_args mine,
                                 int64_t timeout_ms, weft_future **out)
{
    const wfi_group_member *first = &group->members[0];
    const wfi_group_key *key = &group->key;
    bool never = timeout_ms < 0 || timeout_ms > INT64_MAX / 4000000;
    weft_rpc_options how = {.timeout_ms = never ? WEFT_FOREVER : timeout_ms + ANSWER_GRACE_MS,
                            .retry = {.attempts = 1000, .pause_ms = 20, .pause_most_ms = 1000}};
    weft_args arguments = WEFT_VALUES(weft_of_string(key->name), weft_of_i64((int64_t)key->ranks_hash),
                                      weft_of_i64((int64_t)key->members_hash), weft_of_i64((int64_t)key->generation),
                                      weft_of_i64((int64_t)number), weft_of_i64(kind),
                                      weft_of_i64(never ? WEFT_FOREVER : timeout_ms), weft_of_list(mine));
    weft_worker to = {first->rank, first->incarnation};
    return weft_rpc_async(group->agent, weft_to_worker(to), wfi_gather_function.name, arguments, &how, out);
}

static weft_status start_elsewhere(weft_group *group, uint64_t number, wfi_gather_kind kind, weft_args mine,
                                   int64_t timeout_ms, weft_future *future)
{
    weft_agent *agent = group->agent;
    group_op *op = calloc(1, sizeof *op);
    if (!op)
        return WEFT_ERR_MEMORY;
    weft_status st = call_gatherer(group, number, kind, mine, timeout_ms, &op->call);
    if (st) {
        free(op);
        return st;
    }
    op->agent = wfi_agent_ref(agent);
    op->future = weft_future_ref(future);
    op->observer.completed = call_ended;
    memcpy(op->name, group->key.name, sizeof op->name);
    wfi_net_lock(agent->net);
    wfi_list_push_back(&group->ops, &op->link);
    wfi_net_unlock(agent->net);
    wfi_future_observe(op->call, &op->observer);
    return WEFT_OK;
}

/* ---- Starting one ------------------------------------------------------------------------------------------------------ */

static weft_status begin(weft_group *group, int64_t *timeout_ms, uint64_t *number)
{
    weft_agent *agent = group->agent;
    weft_status st = wfi_agent_usable(agent);
    if (!st && group->broken)
        st = weft_error_code(group->broken);
    if (*timeout_ms == 0)
        *timeout_ms = agent->call_timeout_ms;
    if (!st)
        *number = group->next_number++;
    return st;
}

static weft_status start_here(weft_group *group, uint64_t number, wfi_gather_kind kind, weft_args mine,
                              int64_t timeout_ms, weft_future *future)
{
    weft_values *values;
    weft_status st = weft_values_create(mine, &values);
    if (st)
        return st;
    wfi_net_lock(group->agent->net);
    st = wfi_gather_own(group, number, kind, values, timeout_ms, future);
    wfi_net_unlock(group->agent->net);
    weft_values_unref(values);
    return st;
}

static weft_status start(weft_group *group, wfi_gather_kind kind, weft_args mine, int64_t timeout_ms, weft_future **out)
{
    weft_agent *agent = group->agent;
    uint64_t number = 0;
    if (timeout_ms < WEFT_FOREVER)
        return WEFT_ERR_INVALID;
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    weft_future *future = wfi_agent_future(agent);
    wfi_net_lock(agent->net);
    weft_status st = future ? begin(group, &timeout_ms, &number) : WEFT_ERR_MEMORY;
    wfi_net_unlock(agent->net);
    if (!st) {
        st = group->index == 0 ? start_here(group, number, kind, mine, timeout_ms, future)
                               : start_elsewhere(group, number, kind, mine, timeout_ms, future);
        wfi_net_lock(agent->net);
        if (st && group->next_number == number + 1)
            group->next_number--; /* it did not take part: the next one is this one */
        wfi_net_unlock(agent->net);
    }
    wfi_agent_leave(agent);
    if (st)
        weft_future_unref(future);
    else
        *out = future;
    return st;
}

weft_status weft_group_barrier_async(weft_group *group, int64_t timeout_ms, weft_future **out)
{
    return start(group, WFI_GATHER_BARRIER, WEFT_NO_VALUES, timeout_ms, out);
}

weft_status weft_group_all_gather_async(weft_group *group, weft_args mine, int64_t timeout_ms, weft_future **out)
{
    return start(group, WFI_GATHER_VALUES, mine, timeout_ms, out);
}

/* The group may be destroyed meanwhile: it is not looked at any more. */
static weft_status wait_for(weft_future *future, weft_values **out)
{
    weft_status st = weft_future_wait(future, WEFT_FOREVER);
    if (!st && out)
        *out = weft_values_ref((weft_values *)weft_future_values(future));
    weft_future_unref(future);
    return st;
}

weft_status weft_group_barrier(weft_group *group, int64_t timeout_ms)
{
    weft_future *future;
    weft_status st = weft_group_barrier_async(group, timeout_ms, &future);
    return st ? st : wait_for(future, NULL);
}

weft_status weft_group_all_gather(weft_group *group, weft_args mine, int64_t timeout_ms, weft_values **out)
{
    weft_future *future;
    weft_status st = weft_group_all_gather_async(group, mine, timeout_ms, &future);
    return st ? st : wait_for(future, out);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------------ */

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
    fail_ops(group, own);
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
    weft_agent *agent = group->agent;
    if (wfi_agent_enter(agent)) {
        wfi_net_lock(agent->net);
        end_group(group, WEFT_ERR_CANCELLED);
        wfi_net_unlock(agent->net);
        wfi_agent_leave(agent);
    }
    wfi_group_free(group);
}

void wfi_groups_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why)
{
    int rank = wfi_peer_rank(peer);
    for (wfi_list *link = agent->groups.next; link != &agent->groups; link = link->next) {
        weft_group *group = wfi_container_of(link, weft_group, link);
        wfi_group_member *member = group->opened ? wfi_map_get(&group->places, (uint64_t)rank + 1) : NULL;
        if (!member || member->peer != peer)
            continue;
        member->peer = NULL;
        set_broken(group, rank, why);
        wfi_gather_fail_all(group, group->broken);
        group->broken_timer.fire = broken_for_long;
        uint64_t soon = wfi_deadline(wfi_net_clock(agent->net), DEATH_GRACE_MS);
        if (!wfi_list_empty(&group->ops) && wfi_net_timer_set(agent->net, &group->broken_timer, soon))
            fail_ops(group, group->broken);
    }
    wfi_gather_refuse_early(agent, rank, why);
}

void wfi_groups_closing(weft_agent *agent)
{
    if (!agent->options.values.elastic)
        return; /* a static job's workers serve each other until all close */
    for (wfi_list *link = agent->groups.next; link != &agent->groups; link = link->next)
        wfi_gather_leaving(wfi_container_of(link, weft_group, link));
    wfi_gather_refuse_early(agent, -1, WEFT_ERR_PEER_LEFT);
}

void wfi_groups_end(weft_agent *agent)
{
    wfi_gather_refuse_early(agent, -1, WEFT_ERR_CLOSED);
    while (!wfi_list_empty(&agent->groups)) /* opened ones are freed by their users */
        end_group(wfi_container_of(agent->groups.next, weft_group, link), WEFT_ERR_CLOSED);
}
