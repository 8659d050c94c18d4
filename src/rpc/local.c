/* SPDX-License-Identifier: Apache-2.0 */
/* local.c - a call to ourselves: by reference, no wire. The handler sees the caller's own tensors. */
#include "rpc/serve.h"

#include "base/error.h"
#include "rpc/values.h"

#include <stdlib.h>

/* Completes the future if the time limit has not. [agent lock] */
static void settle(weft_call *call, weft_error *error)
{
    if (!call->local_future || call->landing)
        return; /* completed before, or about to be */
    weft_stats *stats = &call->agent->stats;
    stats->calls_finished++;
    stats->calls_failed += error != NULL;
    wfi_observe_settled(call, weft_error_code(error));
    weft_status st;
    if (error)
        st = weft_future_fail(call->local_future, error);
    else
        st = weft_future_complete(call->local_future, weft_values_ref(call->results), wfi_values_drop);
    (void)st; /* ours alone to complete */
    if (call->local_rref)
        wfi_rref_created(call->local_rref, error);
    weft_future_unref(call->local_future);
    call->local_future = NULL;
    wfi_net_timer_clear(call->agent->net, &call->timer);
}

static void timer_fired(wfi_timer *timer)
{
    weft_call *call = wfi_container_of(timer, weft_call, timer);
    weft_error *error = wfi_call_error(call, WEFT_ERR_TIMEOUT, "no answer within the call's time limit");
    settle(call, error);
    if (!call->landing)
        wfi_serve_uncount(call); /* nobody waits for it any more: it need not be finished before the agent can close */
    weft_error_unref(error);
}

/*
 * Results that the caller wanted in places of its own are copied there: here they are not on a wire anyway. `landing` is set
 * meanwhile, so that no time-out completes the future under the copy.
 */
static weft_status land_results(weft_args results, weft_tensors land, uint64_t *copied)
{
    size_t count = wfi_values_tensors(results, NULL, 0);
    if (count != land.count)
        return WEFT_ERR_SHAPE;
    weft_tensor **tensors = malloc(count * sizeof *tensors + 1);
    if (!tensors)
        return WEFT_ERR_MEMORY;
    wfi_values_tensors(results, tensors, count);
    weft_status st = WEFT_OK;
    for (size_t i = 0; i < count && !st; i++) {
        bool fits = weft_tensor_dtype(tensors[i]) == weft_tensor_dtype(land.items[i]);
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
    call->landing = call->local_future != NULL; /* not once it has timed out */
    wfi_net_unlock(agent->net);
    if (!call->landing)
        return;
    weft_status st = land_results(weft_values_args(call->results), land, &copied);
    if (st)
        call->error = wfi_call_error(call, st, "the results do not fit the landing places");
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
    call->stage = WFI_SERVE_ANSWERING;
    wfi_serve_uncount(call);
    agent->stats.calls_served++;
    wfi_observe_finished(call);
    if (call->owned)
        wfi_owned_finish(agent, call->owned, call->results, call->error);
    settle(call, call->error);
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
    for (wfi_list *link = agent->local_calls.next; link != &agent->local_calls; link = link->next) {
        weft_call *call = wfi_container_of(link, weft_call, local_link);
        weft_error *error = wfi_call_error(call, why, "%s", text);
        settle(call, error);
        weft_error_unref(error);
    }
}

/* [agent lock] */
static weft_status launch(weft_call *call, int64_t timeout_ms)
{
    weft_agent *agent = call->agent;
    const wfi_clock *clock = wfi_net_clock(agent->net);
    weft_status st = wfi_agent_usable(agent);
    if (timeout_ms == 0)
        timeout_ms = agent->call_timeout_ms;
    call->deadline_ns = wfi_deadline(clock, timeout_ms);
    call->timer.fire = timer_fired;
    if (!st && call->deadline_ns != WFI_NEVER)
        st = wfi_net_timer_set(agent->net, &call->timer, call->deadline_ns);
    if (st)
        return st;
    if (call->local_rref) {
        call->owned = wfi_rref_home(call->local_rref);
        wfi_owned_begin(call->owned);
    }
    call->holds = 1;
    wfi_list_push_back(&agent->local_calls, &call->local_link);
    call->counted = true;
    agent->serving++;
    agent->stats.calls_started++;
    wfi_observe_arrived(call);
    return WEFT_OK;
}

static void start(weft_call *call, const char *function)
{
    char problem[128];
    if (!call->function)
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_NOT_FOUND, "no function \"%s\" is registered on %s",
                                              function, call->agent->options.name));
    else if (!wfi_signature_fits(call->function->takes, weft_values_args(call->args), problem, sizeof problem))
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_TYPE, "%s", problem));
    else
        wfi_serve_run(call);
}

weft_status wfi_call_start_local(weft_agent *agent, const char *function, weft_args arguments,
                                 const weft_rpc_options *options, weft_rref *remote, weft_future **out)
{
    weft_values *args = NULL, *land = NULL;
    weft_status st = weft_values_create(arguments, &args);
    for (size_t i = 0; i < options->land.count && !st; i++)
        st = options->land.items[i] && weft_tensor_is_contiguous(options->land.items[i]) ? WEFT_OK : WEFT_ERR_INVALID;
    if (!st && options->land.count)
        st = weft_values_create(WEFT_VALUES(weft_of_tensors(options->land)), &land);
    if (st) {
        weft_values_unref(args);
        return st;
    }
    weft_call *call = calloc(1, sizeof *call);
    weft_future *future = wfi_agent_future(agent);
    if (!call || !future) {
        st = WEFT_ERR_MEMORY;
        goto release;
    }
    call->agent = agent;
    call->from = wfi_agent_rank(agent);
    call->function = wfi_function_find(agent, function);
    call->local_rref = remote;
    call->args = args;
    call->local_land = land;
    call->local_future = future;
    wfi_net_lock(agent->net);
    st = launch(call, options->timeout_ms);
    if (!st) {
        wfi_agent_ref(agent);
        weft_rref_ref(remote);
        *out = weft_future_ref(future);
        start(call, function);
    }
    wfi_net_unlock(agent->net);
    if (!st)
        return WEFT_OK;
release:
    weft_future_unref(future);
    free(call);
    weft_values_unref(args);
    weft_values_unref(land);
    return st;
}
