/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member.c - contributions to operations that another member gathers (group.h): the call that brings one, its answer,
 * and how the gathering member is told that a contribution will not come.
 */
#include "base/alloc.h"
#include "future/future_impl.h" /* wfi_future_observe: no hop over the executor, which may be full of those who wait */

#include "rpc/group/group.h"

#include "base/error.h"
#include "rpc/client/client.h"

#include <limits.h>
#include <stdlib.h>

#define ANSWER_GRACE_MS 1000 /* after the time limit, for the gathering member to say who is missing */

/* An operation of ours that another member gathers; or an absence (WFI_GATHER_ABSENT), which is in no list. */
typedef struct group_op {
    wfi_list link;
    wfi_observer observer;
    wfi_task release;
    weft_agent *agent;
    wfi_errand errand;
    weft_future *call;
    weft_future *future; /* the user's; NULL: an absence */
} group_op;

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

/* All that are under way, and forgets them. [agent lock] */
void wfi_group_calls_fail(weft_group *group, const weft_error *error)
{
    for (wfi_list *link; (link = wfi_list_pop_front(&group->ops));) {
        group_op *op = wfi_container_of(link, group_op, link);
        cancellation *one = malloc(sizeof *one);
        wfi_future_settle(op->future, NULL, error); /* unless it ended well this moment */
        if (!one)
            continue; /* then the call ends by itself, by its time limit */
        *one = (cancellation){.task.run = cancel_task, .call = weft_future_ref(op->call)};
        wfi_net_defer(op->agent->net, &one->task, WFI_DEFER_RELEASE);
    }
}

static weft_status call_gatherer(weft_agent *agent, const wfi_errand *what, wfi_gather_kind kind, weft_args mine,
                                 weft_future **out)
{
    const wfi_group_key *key = &what->key;
    bool never = what->timeout_ms < 0 || what->timeout_ms > INT64_MAX / 4000000;
    weft_rpc_options how = {.timeout_ms = never ? WEFT_FOREVER : what->timeout_ms + ANSWER_GRACE_MS,
                            .retry = {.attempts = 1000, .pause_ms = 20, .pause_most_ms = 1000}};
    weft_args arguments = WEFT_VALUES(weft_of_string(key->name), weft_of_i64((int64_t)key->ranks_hash),
                                      weft_of_i64((int64_t)key->members_hash), weft_of_i64((int64_t)key->generation),
                                      weft_of_i64((int64_t)what->number), weft_of_i64(kind),
                                      weft_of_i64(never ? WEFT_FOREVER : what->timeout_ms), weft_of_list(mine));
    weft_error *error = NULL;
    wfi_call_spec spec = {.to = weft_to_worker(what->to),
                          .function = wfi_gather_function.name,
                          .arguments = arguments,
                          .options = &how,
                          .exempt = kind == WFI_GATHER_ABSENT,
                          .parent = &how.parent};
    weft_status st = wfi_rpc_start(agent, &spec, out, &error);
    weft_error_unref(error);
    return st;
}

/* Why a call to the gathering member failed: the status that its handler gave, if it ran. */
static weft_status cause_of(const weft_error *failed)
{
    weft_status st = weft_error_code(failed);
    return st == WEFT_ERR_REMOTE ? weft_error_remote_code(failed) : st;
}

/* See group.h. */
bool wfi_group_missed_by(weft_status st)
{
    switch (st) {
    case WEFT_ERR_CLOSED:
    case WEFT_ERR_EVICTED:
    case WEFT_ERR_STORE_LOST:
    case WEFT_ERR_PEER_DEAD:
    case WEFT_ERR_PEER_LEFT:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_TIMEOUT:
    case WEFT_ERR_CANCELLED:
    case WEFT_ERR_UNKNOWN: /* it was there */
        return false;
    default:
        return true;
    }
}

/* Our contribution was sent and refused: see wfi_group_tell_absence. */
static void look_for_absence(const group_op *op)
{
    const weft_error *failed = weft_future_error(op->call);
    if (!failed || !wfi_group_missed_by(weft_error_code(failed)))
        return;
    weft_status st = wfi_group_tell_absence(op->agent, &op->errand, failed);
    if (st)
        wfi_log_agent(op->agent, WEFT_LOG_WARN, 0, "operation %llu of group \"%s\": %s; nor could that be said: %s",
                      (unsigned long long)op->errand.number, op->errand.key.name, weft_error_message(failed),
                      weft_status_text(st));
}

static void release_op(wfi_task *task)
{
    group_op *op = wfi_container_of(task, group_op, release);
    if (wfi_agent_enter(op->agent)) {
        wfi_net_lock(op->agent->net);
        wfi_list_remove(&op->link);
        wfi_net_unlock(op->agent->net);
        if (op->future)
            look_for_absence(op);
        wfi_agent_leave(op->agent);
    }
    weft_future_unref(op->call);
    weft_future_unref(op->future);
    wfi_agent_unref(op->agent);
    free(op);
}

/* The error that the gathering member answered, or why there was no answer. */
static weft_error *translate(const group_op *op, const weft_values *answer)
{
    const weft_error *failed = weft_future_error(op->call);
    const char *name = op->errand.key.name;
    wfi_error_detail detail = {.function = name};
    int64_t code, worker;
    const char *text;
    if (failed) {
        detail.code = cause_of(failed);
        detail.worker = weft_error_worker(failed);
        return wfi_error_create(&detail, "the member that gathers for group \"%s\" did not: %s", name,
                                weft_error_message(failed));
    }
    if (weft_values_count(answer) != 3 || weft_values_get_i64(answer, 0, &code) ||
        weft_values_get_i64(answer, 1, &worker) || weft_values_get_string(answer, 2, &text))
        return NULL;
    bool is_failure = code < 0 && code >= INT_MIN && wfi_status_is_known((int)code);
    detail.code = is_failure ? (weft_status)code : WEFT_ERR_PROTOCOL;
    detail.worker = worker >= 0 && worker < wfi_net_world_size(op->agent->net) ? (int)worker : -1;
    return wfi_error_create(&detail, "%s", text);
}

/* The call has ended. On whichever thread, perhaps with the agent's lock held: what it held goes later. */
static void call_ended(wfi_observer *observer)
{
    group_op *op = wfi_container_of(observer, group_op, observer);
    if (op->future) {
        const weft_values *answer = weft_future_values(op->call);
        weft_error *error = translate(op, answer);
        wfi_future_settle(op->future, answer, error); /* unless it was failed before */
        weft_error_unref(error);
    } else {
        atomic_fetch_sub(&wfi_groups_of(op->agent)->absences, 1);
    }
    wfi_future_unref_unless_last(observer->future); /* we have op->call besides */
    op->release = (wfi_task){.run = release_op};
    wfi_executor_submit(op->agent->executor, &op->release);
}

static weft_status start_op(weft_agent *agent, const wfi_errand *what, wfi_gather_kind kind, weft_args mine,
                            group_op **out)
{
    group_op *op = wfi_calloc(1, sizeof *op);
    if (!op)
        return WEFT_ERR_MEMORY;
    weft_status st = call_gatherer(agent, what, kind, mine, &op->call);
    if (st) {
        free(op);
        return st;
    }
    op->agent = wfi_agent_ref(agent);
    op->observer.completed = call_ended;
    op->errand = *what;
    wfi_list_init(&op->link);
    *out = op;
    return WEFT_OK;
}

weft_status wfi_group_tell_absence(weft_agent *agent, const wfi_errand *what, const weft_error *why)
{
    group_op *op;
    weft_args reason = WEFT_VALUES(weft_of_i64(cause_of(why)), weft_of_string(weft_error_message(why)));
    weft_status st = WEFT_ERR_AGAIN;
    if (atomic_fetch_add(&wfi_groups_of(agent)->absences, 1) < WFI_ABSENCES_MAX)
        st = start_op(agent, what, WFI_GATHER_ABSENT, reason, &op);
    if (st)
        atomic_fetch_sub(&wfi_groups_of(agent)->absences, 1);
    else
        wfi_future_observe(op->call, &op->observer);
    return st;
}

weft_status wfi_group_call_start(weft_group *group, const wfi_errand *what, wfi_gather_kind kind, weft_args mine,
                                 weft_future *future)
{
    weft_agent *agent = group->agent;
    group_op *op;
    weft_status st = start_op(agent, what, kind, mine, &op);
    if (st)
        return st;
    op->future = weft_future_ref(future);
    wfi_net_lock(agent->net);
    wfi_list_push_back(&group->ops, &op->link);
    wfi_net_unlock(agent->net);
    wfi_future_observe(op->call, &op->observer);
    return WEFT_OK;
}
