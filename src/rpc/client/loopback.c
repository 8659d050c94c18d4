/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loopback.c - a call to ourselves: by reference, no wire. The handler sees the caller's own tensors, or the places that its function
 * lets them land in (accumulate.c).
 *
 * So the call's future must not complete while its handler may look at them: a call that is late or cancelled has its `failure` at
 * once, which the handler can learn of, and fails with that when the handler lets the arguments go (is_read). One whose handler has
 * not begun fails at once; then the handler does not begin any more (wfi_local_begin).
 */
#include "base/alloc.h"
#include "rpc/server/server.h"

#include "base/error.h"
#include "rpc/batch/batch.h"
#include "rpc/server/stream.h"
#include "value/values.h"
#include "tensor/tensor.h"

#include <stdlib.h>

void wfi_local_complete(weft_call *call, weft_error *error)
{
    if (!call->local_future)
        return;
    weft_stats *stats = &call->agent->stats;
    stats->calls_finished++;
    stats->calls_failed += error != NULL;
    WFI_TELL_HOOKS(settled_here, call, weft_error_code(error));
    wfi_child_end(&call->child, call->is_attempt ? NULL : error);
    wfi_call_settle(call->local_future, call->is_attempt ? NULL : call->local_rref, error ? NULL : call->results,
                    error); /* a handler that goes on may yet give */
    weft_future_unref(call->local_future);
    call->local_future = NULL;
    wfi_net_timer_clear(call->agent->net, &call->timer);
}

/* Completes the future if that has not been done. `stop`: its parts are not waited for. [agent lock] */
static void settle(weft_call *call, weft_error *error, bool stop)
{
    if (!call->local_future || call->landing)
        return; /* completed before, or about to be */
    if (!call->local_parts || !wfi_parts_in_wait(call->local_parts, NULL, error, false, stop))
        wfi_local_complete(call, error);
}

/* Whether the handler may yet look at the arguments, or whoever keeps them for it. While the agent closes nobody waits for those who
 * keep them: they may never finish the call. [agent lock] */
static bool is_read(const weft_call *call)
{
    const weft_agent *agent = call->agent;
    const weft_batch *batch = call->runs_in;
    if (!call->begun || call->stage == WFI_SERVE_ANSWERING)
        return false;
    bool keeps = call->keep_arguments || batch, has_left = call->has_left || (batch && batch->has_left);
    return !has_left || (keeps && !agent->closing && !agent->stopped);
}

/* [agent lock] */
static void fail_unless_read(weft_call *call)
{
    if (call->failure && !is_read(call))
        settle(call, call->failure, true);
}

/*
 * Nobody wants the answer any more, and the future fails as soon as the arguments are let go: the call need not be finished before
 * the agent can close, its handler may see that it is in vain, and so are the calls made within it. [agent lock]
 */
static void give_up(weft_call *call, weft_status why, const char *text)
{
    if (!call->local_future || call->landing || call->failure)
        return;
    wfi_error_detail detail = {.code = why,
                               .remote_code = call->begun ? WEFT_ERR_UNKNOWN : WEFT_OK,
                               .function = call->function ? call->function->name : NULL,
                               .worker = call->from};
    call->failure = wfi_error_create(&detail, "%s", text);
    call->cancelled = true;
    fail_unless_read(call);
    wfi_serve_uncount(call);
    wfi_serve_unwanted(call, why, text);
}

weft_status wfi_local_begin(weft_call *call)
{
    wfi_net_lock(call->agent->net);
    weft_status why = (weft_status)atomic_load(&call->unwanted);
    call->begun = !why;
    wfi_net_unlock(call->agent->net);
    return why;
}

void wfi_local_left(weft_call *call)
{
    call->has_left = true;
    fail_unless_read(call);
}

void wfi_local_settle_left(weft_agent *agent)
{
    for (wfi_list *link = agent->local_calls.next; link != &agent->local_calls; link = link->next)
        fail_unless_read(wfi_container_of(link, weft_call, local_link));
}

static void timer_fired(wfi_timer *timer)
{
    weft_call *call = wfi_container_of(timer, weft_call, timer);
    give_up(call, WEFT_ERR_TIMEOUT, wfi_late_text(call->is_attempt));
}

static void parent_over(wfi_child *child, weft_status why, const char *text)
{
    if (why)
        give_up(wfi_container_of(child, weft_call, child), why, text);
}

/* The call lives at least until it has completed its future. */
static void hold_call(void *owner)
{
    weft_call *call = owner;
    atomic_fetch_add(&call->holds, 1);
}

static void cancel_local(void *owner, uint64_t id)
{
    weft_call *call = owner;
    weft_agent *agent = call->agent;
    (void)id;
    if (!wfi_agent_enter(agent)) {
        wfi_serve_finish_late(call);
        return;
    }
    wfi_net_lock(agent->net);
    give_up(call, WEFT_ERR_CANCELLED, "the caller cancelled it");
    wfi_serve_drop_hold(call);
    wfi_net_unlock(agent->net);
    wfi_agent_leave(agent);
}

static const wfi_canceller local_canceller = {.hold = hold_call, .cancel = cancel_local};

/* Says what does not fit. */
static bool fits_place(const weft_tensor *result, const weft_tensor *place, size_t index, char *problem, size_t room)
{
    char comes[WFI_TENSOR_TEXT], waits[WFI_TENSOR_TEXT];
    weft_shape have = weft_tensor_shape(result), want = weft_tensor_shape(place);
    snprintf(problem, room, "tensor %zu of the results is %s, its landing place is %s", index,
             wfi_tensor_type_text(comes, weft_tensor_dtype(result), have),
             wfi_tensor_type_text(waits, weft_tensor_dtype(place), want));
    return weft_tensor_dtype(result) == weft_tensor_dtype(place) && wfi_shape_equal(&have, &want);
}

/*
 * Results that the caller wanted in places of its own are copied there: here they are not on a wire anyway. `landing` is set
 * meanwhile, so that no time-out completes the future under the copy.
 */
static weft_status land_results(weft_args results, weft_tensors land, uint64_t *copied, char *problem, size_t room)
{
    size_t count = wfi_values_tensors(results, NULL, 0);
    snprintf(problem, room, "%zu tensors in the results for %zu landing places", count, land.count);
    if (count != land.count)
        return WEFT_ERR_SHAPE;
    weft_tensor **tensors = malloc(count * sizeof *tensors + 1);
    if (!tensors)
        return WEFT_ERR_MEMORY;
    wfi_values_tensors(results, tensors, count);
    weft_status st = WEFT_OK;
    for (size_t i = 0; i < count && !st; i++) {
        bool fits = fits_place(tensors[i], land.items[i], i, problem, room);
        st = fits ? weft_tensor_assign(land.items[i], tensors[i]) : WEFT_ERR_SHAPE;
        *copied += wfi_copied(weft_tensor_nbytes(tensors[i]));
    }
    free(tensors);
    return st;
}

static void land_if_wanted(weft_call *call)
{
    weft_agent *agent = call->agent;
    weft_tensors land;
    uint64_t copied = 0;
    if (call->error || weft_values_get_tensors(call->local_land, 0, &land))
        return;
    wfi_net_lock(agent->net);
    call->landing = call->local_future && !call->failure; /* not once it has timed out */
    wfi_net_unlock(agent->net);
    if (!call->landing)
        return;
    char problem[320];
    weft_status st = land_results(weft_values_args(call->results), land, &copied, problem, sizeof problem);
    if (st)
        call->error = wfi_call_error(call, st, "%s", problem);
    else
        wfi_values_replace_tensors(call->results, land.items); /* as after a call to another worker */
    wfi_net_lock(agent->net);
    agent->stats.bytes_copied += copied;
    call->landing = false;
    wfi_net_unlock(agent->net);
}

void wfi_answer_local(weft_call *call)
{
    weft_agent *agent = call->agent;
    wfi_net *net = agent->net;
    land_if_wanted(call);
    wfi_serve_release_work(call);
    wfi_net_lock(net);
    bool was_deferred = call->deferred;
    wfi_serve_end_watch(call);
    call->stage = WFI_SERVE_ANSWERING;
    wfi_serve_uncount(call);
    wfi_calls_forget_within(call);
    agent->stats.calls_served++;
    WFI_TELL_HOOKS(answered, call);
    if (call->owned)
        wfi_owned_finish(call->owned, call);
    if (call->local_parts)
        wfi_parts_in_expect_given(call->local_parts);
    settle(call, call->failure ? call->failure : call->error, call->failure != NULL);
    wfi_list_remove(&call->local_link);
    wfi_serve_drop_hold(call); /* the list's */
    wfi_serve_drop_hold(call); /* the user's */
    if (!was_deferred)
        wfi_serve_drop_hold(call);
    wfi_net_unlock(net);
}

/* Fails the futures of calls to ourselves that nobody will finish in time. [agent lock] */
void wfi_local_fail_all(weft_agent *agent, weft_status why, const char *text)
{
    for (wfi_list *link = agent->local_calls.next; link != &agent->local_calls; link = link->next)
        give_up(wfi_container_of(link, weft_call, local_link), why, text);
    wfi_local_settle_left(agent);
}

/* [agent lock] */
static weft_status launch(weft_call *call, wfi_call_plan *plan)
{
    weft_agent *agent = call->agent;
    uint32_t us = wfi_net_member(agent->net, call->from)->incarnation;
    weft_status st = wfi_agent_usable(agent);
    if (!st && plan->to.incarnation && plan->to.incarnation != us)
        st = plan->to.incarnation < us ? WEFT_ERR_PEER_DEAD : WEFT_ERR_UNREACHABLE;
    if (!st)
        st = wfi_call_limit(agent, plan, wfi_now(wfi_net_clock(agent->net)), &call->deadline_ns);
    call->timer.fire = timer_fired;
    if (!st && call->deadline_ns != WFI_NEVER)
        st = wfi_net_timer_set(agent->net, &call->timer, call->deadline_ns);
    if (st)
        return st;
    if (call->local_rref) {
        call->owned = wfi_rref_home(call->local_rref);
        wfi_owned_begin(call->owned);
    }
    wfi_child_join(&call->child, (weft_call *)*plan->within);
    wfi_future_set_canceller(call->local_future, &local_canceller, call, 0);
    call->id = wfi_call_next_id(agent);
    call->life = us;
    call->holds = 1;
    wfi_list_push_back(&agent->local_calls, &call->local_link);
    call->counted = true;
    agent->serving++;
    agent->stats.calls_started++;
    call->span.begun_ns = wfi_net_now(agent->net);
    WFI_TELL_HOOKS(arrived, call);
    return WEFT_OK;
}

/* Its references are whole now, or will never be. [agent lock] */
static void run_or_refuse(weft_call *call)
{
    weft_error *error = call->starved ? wfi_call_error(call, WEFT_ERR_MEMORY, "no memory to wait for its references")
                                      : wfi_rrefs_lost(weft_values_args(call->args));
    if (error)
        wfi_serve_refuse(call, error);
    else
        wfi_serve_run(call);
}

static void reference_made(weft_future *made, void *arg)
{
    weft_call *call = arg;
    weft_agent *agent = call->agent;
    (void)made;
    if (!wfi_agent_enter(agent))
        return; /* the tables let go of the call */
    wfi_net_lock(agent->net);
    if (--call->unconfirmed == 0)
        run_or_refuse(call);
    wfi_net_unlock(agent->net);
    wfi_agent_leave(agent);
}

/* As in a call to another worker, no handler sees a reference that its owner has not confirmed. */
static void start(weft_call *call, const char *function)
{
    char problem[128];
    if (!call->function)
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_NOT_FOUND, "no function \"%s\" is registered on %s",
                                              function, call->agent->options.name));
    else if (!wfi_signature_fits(call->function->takes, weft_values_args(call->args), problem, sizeof problem))
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_TYPE, "%s", problem));
    else if ((call->unconfirmed =
                  wfi_rrefs_await(weft_values_args(call->args), reference_made, call, &call->starved)) == 0)
        run_or_refuse(call);
}

/* Landing places, kept as one list. */
static weft_status keep_places(weft_tensors places, weft_values **out)
{
    for (size_t i = 0; i < places.count; i++)
        if (!places.items[i] || !weft_tensor_is_contiguous(places.items[i]))
            return WEFT_ERR_INVALID;
    return places.count ? weft_values_create(WEFT_VALUES(weft_of_tensors(places)), out) : WEFT_OK;
}

weft_status wfi_call_start_local(weft_agent *agent, wfi_call_plan *plan, weft_future **out)
{
    weft_values *args = NULL, *land = NULL;
    weft_status st = weft_values_create(plan->arguments, &args);
    if (!st)
        st = keep_places(plan->options->land, &land);
    weft_call *call = st ? NULL : wfi_calloc(1, sizeof *call);
    weft_future *future = st ? NULL : wfi_agent_future(agent);
    if (!st && (!call || !future))
        st = WEFT_ERR_MEMORY;
    if (st)
        goto release;
    *call = (weft_call){.agent = agent,
                        .from = wfi_agent_rank(agent),
                        .function = wfi_function_find(agent, plan->function),
                        .local_rref = plan->remote,
                        .is_attempt = plan->is_attempt,
                        .args = args,
                        .local_land = land,
                        .local_future = future,
                        .child.parent_over = parent_over};
    wfi_list_init(&call->children);
    wfi_list_init(&call->child.link);
    if (plan->options->on_part)
        st = wfi_parts_in_create(agent, plan->options->on_part, plan->options->part_arg, &call->local_parts);
    if (st)
        goto release;
    if (call->local_parts)
        wfi_parts_in_of_local(call->local_parts, call);
    wfi_net_lock(agent->net);
    st = launch(call, plan);
    if (!st) {
        wfi_agent_ref(agent);
        weft_rref_ref(plan->remote);
        *out = weft_future_ref(future);
        start(call, plan->function);
    }
    wfi_net_unlock(agent->net);
    if (!st)
        return WEFT_OK;
release:
    weft_future_unref(future);
    if (call)
        wfi_parts_in_free(call->local_parts);
    free(call);
    weft_values_unref(args);
    weft_values_unref(land);
    return st;
}
