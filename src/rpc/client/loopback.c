/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loopback.c - calls of a worker to itself: by reference, without messages.
 *
 * The handler gets the caller's own tensors, or the places that `land` of its function names (server/accumulate.c). So
 * the call's future must not complete while the handler may read the caller's tensors. If the call is cancelled or its
 * deadline passes, `failure` is set at once, and weft_call_cancelled tells the handler. The future fails when the
 * handler no longer reads the arguments (is_read). If the handler has not begun, the future fails at once, and the
 * handler never begins (begin_local).
 */
#include "base/alloc.h"
#include "rpc/client/loopback.h"

#include "base/error.h"
#include "rpc/server/stream.h"
#include "value/value.h"
#include "tensor/check.h"

#include <stdlib.h>

/* Completes the future, unless it is complete. [agent lock] */
static void complete_local(wfi_loopback *loop, weft_error *error)
{
    weft_agent *agent = loop->call.agent;
    if (!loop->future)
        return;
    agent->stats.calls_finished++;
    agent->stats.calls_failed += error != NULL;
    WFI_TELL_HOOKS(settled_here, &loop->call, weft_error_code(error));
    wfi_child_end(&loop->child, loop->is_attempt ? NULL : error);
    /* Uses no results if there is an error: the handler may still be running and give results. */
    wfi_call_settle(loop->future, loop->is_attempt ? NULL : loop->rref, error ? NULL : loop->call.results, error);
    weft_future_unref(loop->future);
    loop->future = NULL;
    wfi_net_timer_clear(agent->net, &loop->call.timer);
}

/* The same, but after on_item has returned from the last item. `stop`: drops the remaining items. [agent lock] */
static void settle_local(wfi_loopback *loop, weft_error *error, bool stop)
{
    if (!loop->future || loop->landing)
        return; /* complete, or respond_locally will complete it */
    if (!loop->items || !wfi_items_in_wait(loop->items, NULL, error, false, stop))
        complete_local(loop, error);
}

/* Whether the handler, or the code that finishes its deferred call, may still read the arguments. While the agent
 * closes only a running handler counts: a deferred call that keeps its arguments may never be finished. [agent lock] */
static bool is_read(const wfi_loopback *loop)
{
    const weft_call *call = &loop->call;
    const weft_agent *agent = call->agent;
    if (!loop->begun || call->stage == WFI_SERVE_ANSWERING)
        return false;
    if (!call->has_left && !(call->batch_left && *call->batch_left))
        return true; /* the handler runs; only it may write the fields that are read below */
    return (call->keep_arguments || call->batch_left) && !agent->closing && !agent->stopped;
}

/* [agent lock] */
static void fail_unless_read(wfi_loopback *loop)
{
    if (loop->failure && !is_read(loop))
        settle_local(loop, loop->failure, true);
}

/*
 * The answer is no longer needed. The handler can learn that, the call's children are cancelled, and closing the agent
 * does not wait for the call. The future fails when the arguments are no longer read. [agent lock]
 */
static void give_up_local(wfi_loopback *loop, weft_status why, const char *text)
{
    weft_call *call = &loop->call;
    if (!loop->future || loop->landing || loop->failure)
        return;
    wfi_error_detail detail = {.code = why,
                               .remote_code = loop->begun ? WEFT_ERR_UNKNOWN : WEFT_OK,
                               .function = call->function ? call->function->name : NULL,
                               .worker = call->from};
    loop->failure = wfi_error_create(&detail, "%s", text);
    call->cancelled = true;
    fail_unless_read(loop);
    wfi_serve_uncount(call);
    wfi_serve_cancel(call, why, text);
}

void wfi_local_settle_left(weft_agent *agent)
{
    WFI_FOR_LIST (wfi_loopback, loop, &agent->local_calls, link)
        fail_unless_read(loop);
}

static void local_late(wfi_timer *timer)
{
    wfi_loopback *loop = wfi_container_of(timer, wfi_loopback, call.timer);
    char text[128];
    wfi_late_text(text, sizeof text, "this worker itself", loop->is_attempt, timer->deadline_ns - loop->launched_ns);
    give_up_local(loop, WEFT_ERR_TIMEOUT, text);
}

static void local_parent_over(wfi_child *child, weft_status why, const char *text)
{
    if (why)
        give_up_local(wfi_container_of(child, wfi_loopback, child), why, text);
}

/* The call exists at least until its future is complete. */
static void hold_local(void *owner)
{
    atomic_fetch_add(&((wfi_loopback *)owner)->call.holds, 1);
}

static void cancel_local(void *owner, uint64_t id)
{
    wfi_loopback *loop = owner;
    weft_agent *agent = loop->call.agent;
    (void)id;
    if (!wfi_agent_enter_locked(agent)) {
        wfi_serve_finish_late(&loop->call);
        return;
    }
    give_up_local(loop, WEFT_ERR_CANCELLED, "the caller cancelled it");
    wfi_serve_drop_hold(&loop->call);
    wfi_agent_leave_locked(agent);
}

static const wfi_canceller local_canceller = {.hold = hold_local, .cancel = cancel_local};

/* ---- Items of its results ---------------------------------------------------------------------------------------- */

static void drop_local(void *owner)
{
    wfi_serve_drop_hold(&((wfi_loopback *)owner)->call);
}

static void end_local(void *owner, const weft_values *values, weft_error *error, bool quiet)
{
    (void)values; /* loop->call.results has them */
    (void)quiet;
    complete_local(owner, error);
}

/* Never called: no item is received. */
static void fail_local(void *owner, weft_error *error)
{
    (void)owner;
    weft_error_unref(error);
}

static const wfi_stream_owner_ops stream_owner = {
    .hold = hold_local, .drop = drop_local, .end = end_local, .fail = fail_local};

static weft_status give_item(weft_call *call, weft_args item)
{
    wfi_loopback *loop = wfi_loopback_of(call);
    weft_values *values;
    weft_status st = loop->items ? wfi_values_create(item, &values) : WEFT_ERR_STATE;
    if (st)
        return st;
    wfi_net_lock(call->agent->net);
    st = wfi_items_may_send(call);
    if (!st)
        st = wfi_items_in_give(loop->items, values);
    wfi_net_unlock(call->agent->net);
    if (st)
        weft_values_unref(values);
    return st;
}

/* ---- The answer -------------------------------------------------------------------------------------------------- */

/* Writes the types of the result and of its place to `problem`. */
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
 * Copies the results to the caller's landing places. `landing` is set meanwhile, so that no timeout completes the
 * future during the copy.
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

static void land_if_wanted(wfi_loopback *loop)
{
    weft_call *call = &loop->call;
    weft_agent *agent = call->agent;
    weft_tensors land;
    uint64_t copied = 0;
    if (call->error || wfi_values_get(loop->land, 0, WEFT_TYPE_TENSORS, &land, sizeof land))
        return;
    wfi_net_lock(agent->net);
    loop->landing = loop->future && !loop->failure; /* not after a timeout */
    wfi_net_unlock(agent->net);
    if (!loop->landing)
        return;
    char problem[320];
    weft_status st = land_results(weft_values_args(call->results), land, &copied, problem, sizeof problem);
    wfi_results_unpin(call); /* before the places replace them */
    if (st)
        call->error = wfi_call_error(call, st, "%s", problem);
    else
        wfi_values_replace_tensors(call->results, land.items); /* as after a call to another worker */
    wfi_net_lock(agent->net);
    agent->stats.bytes_copied += copied;
    loop->landing = false;
    wfi_net_unlock(agent->net);
}

static weft_status begin_local(weft_call *call)
{
    wfi_loopback *loop = wfi_loopback_of(call);
    wfi_net_lock(call->agent->net);
    weft_status why = (weft_status)atomic_load(&call->cancel_reason);
    loop->begun = !why;
    wfi_net_unlock(call->agent->net);
    return why;
}

static void local_left(weft_call *call)
{
    fail_unless_read(wfi_loopback_of(call));
}

static void respond_locally(weft_call *call)
{
    wfi_loopback *loop = wfi_loopback_of(call);
    weft_agent *agent = call->agent;
    wfi_net *net = agent->net;
    land_if_wanted(loop);
    wfi_results_unpin(call); /* they belong to the caller now */
    wfi_serve_release_work(call);
    wfi_net_lock(net);
    bool was_deferred = call->deferred;
    wfi_serve_end_watch(call);
    call->stage = WFI_SERVE_ANSWERING;
    wfi_serve_uncount(call);
    wfi_children_forget(call);
    agent->answered++;
    agent->stats.calls_served += call->ran;
    WFI_TELL_HOOKS(answered, call);
    wfi_serve_settle_owned(call);
    if (loop->items)
        wfi_items_in_expect_given(loop->items);
    settle_local(loop, loop->failure ? loop->failure : call->error, loop->failure != NULL);
    wfi_list_remove(&loop->link);
    wfi_serve_drop_hold(call); /* the list's */
    wfi_serve_drop_hold(call); /* the user's */
    if (!was_deferred)
        wfi_serve_drop_hold(call);
    wfi_net_unlock(net);
}

static void fini_local(weft_call *call)
{
    wfi_loopback *loop = wfi_loopback_of(call);
    weft_error_unref(loop->failure);
    weft_future_unref(loop->future);
    wfi_items_in_free(loop->items);
    weft_rref_unref(loop->rref);
    weft_values_unref(loop->land);
}

static const wfi_responder_ops responder = {
    .begin = begin_local, .left = local_left, .respond = respond_locally, .send_item = give_item, .fini = fini_local};

/* ---- The end of the agent ---------------------------------------------------------------------------------------- */

void wfi_local_fail_all(weft_agent *agent, weft_status why, const char *text)
{
    WFI_FOR_LIST (wfi_loopback, loop, &agent->local_calls, link)
        give_up_local(loop, why, text);
    wfi_local_settle_left(agent);
}

void wfi_local_orphan_all(weft_agent *agent)
{
    for (wfi_list *link; (link = wfi_list_pop_front(&agent->local_calls));)
        wfi_serve_finish_late(&wfi_container_of(link, wfi_loopback, link)->call);
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

/* [agent lock] */
static weft_status launch_local(wfi_loopback *loop, wfi_call_spec *spec)
{
    weft_call *call = &loop->call;
    weft_agent *agent = call->agent;
    uint32_t us = wfi_net_member(agent->net, call->from)->incarnation;
    uint64_t now = wfi_now(wfi_net_clock(agent->net));
    weft_status st = wfi_agent_usable(agent);
    loop->launched_ns = now;
    if (!st && spec->to.incarnation && spec->to.incarnation != us)
        st = spec->to.incarnation < us ? WEFT_ERR_PEER_DEAD : WEFT_ERR_UNREACHABLE;
    if (!st)
        st = wfi_call_limit(agent, spec, now, &call->deadline_ns);
    call->timer.fire = local_late;
    if (!st && call->deadline_ns != WFI_NEVER)
        st = wfi_net_timer_set(agent->net, &call->timer, call->deadline_ns);
    if (st)
        return st;
    if (loop->rref) {
        call->owned = loop->rref->home;
        wfi_owned_begin(call->owned);
    }
    wfi_child_join(&loop->child, (weft_call *)*spec->parent);
    wfi_future_set_canceller(loop->future, &local_canceller, loop, 0);
    call->id = wfi_call_next_id(agent);
    call->incarnation = us;
    WFI_BEGIN(call);
    call->holds = 1;
    wfi_list_push_back(&agent->local_calls, &loop->link);
    call->counted = true;
    agent->serving++;
    agent->stats.calls_started++;
    call->span.begun_ns = wfi_net_now(agent->net);
    WFI_TELL_HOOKS(arrived, call);
    return WEFT_OK;
}

/* The values of the references among its arguments were made, or will never be. [agent lock] */
static void run_or_refuse(wfi_loopback *loop)
{
    weft_call *call = &loop->call;
    weft_error *error = loop->starved ? wfi_call_error(call, WEFT_ERR_MEMORY, "no memory to wait for its references")
                                      : wfi_rrefs_failed(weft_values_args(call->args), call->function->name);
    if (error)
        wfi_serve_refuse(call, error);
    else
        wfi_serve_run(call);
}

static void reference_made(weft_future *made, void *arg)
{
    wfi_loopback *loop = arg;
    weft_agent *agent = loop->call.agent;
    (void)made;
    if (!wfi_agent_enter_locked(agent))
        return; /* wfi_local_orphan_all drops the call */
    if (--loop->unconfirmed == 0)
        run_or_refuse(loop);
    wfi_agent_leave_locked(agent);
}

/* As in a call to another worker, the handler gets only references that their owners have confirmed. */
static void start_local(wfi_loopback *loop, const char *function)
{
    weft_call *call = &loop->call;
    weft_args args = weft_values_args(call->args);
    char problem[128];
    if (!call->function)
        wfi_serve_refuse(call, wfi_function_unknown(call->agent, function));
    else if (!wfi_signature_fits(call->function->takes, args, problem, sizeof problem))
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_TYPE, "%s", problem));
    else if (wfi_order_join(call))
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_MEMORY, "no memory for its place in the order"));
    else if ((loop->unconfirmed = wfi_rrefs_await(args, reference_made, loop, &loop->starved)) == 0)
        run_or_refuse(loop);
}

/* Stores the landing places as one list. */
static weft_status keep_places(weft_tensors places, weft_values **out)
{
    for (size_t i = 0; i < places.count; i++)
        if (!places.items[i] || wfi_check_plain(places.items[i]))
            return WEFT_ERR_INVALID;
    return places.count ? wfi_values_create(WEFT_VALUES(weft_of_tensors(places)), out) : WEFT_OK;
}

/* Does not add it to the agent's list. Even on failure *out may be set, and the caller frees it. */
static weft_status make_local(weft_agent *agent, const wfi_call_spec *spec, wfi_loopback **out)
{
    wfi_loopback *loop = *out = wfi_calloc(1, sizeof *loop);
    if (!loop)
        return WEFT_ERR_MEMORY;
    loop->call = (weft_call){.agent = agent,
                             .responder = &responder,
                             .from = wfi_agent_rank(agent),
                             .function = wfi_function_find(agent, spec->function)};
    loop->is_attempt = spec->is_attempt;
    loop->child.parent_over = local_parent_over;
    wfi_list_init(&loop->call.children);
    wfi_list_init(&loop->child.link);
    weft_status st = wfi_values_create(spec->arguments, &loop->call.args);
    if (!st)
        st = keep_places(spec->options->land, &loop->land);
    loop->rref = weft_rref_ref(spec->remote);
    loop->future = wfi_agent_future(agent);
    if (!st && !loop->future)
        st = WEFT_ERR_MEMORY;
    if (!st && spec->source)
        st = wfi_links_get()->here(spec->source, &loop->call.link);
    if (!st && spec->options->on_item) {
        loop->items = wfi_items_in_create(agent, spec->options, loop, &stream_owner, NULL);
        st = loop->items ? WEFT_OK : WEFT_ERR_MEMORY;
    }
    return st;
}

weft_status wfi_call_start_local(weft_agent *agent, wfi_call_spec *spec, weft_future **out)
{
    wfi_loopback *loop = NULL;
    bool loses_records = spec->source && spec->options->land.count; /* landing copies, and no tape records that */
    weft_status st = loses_records ? WEFT_ERR_UNSUPPORTED : make_local(agent, spec, &loop);
    if (!st) {
        wfi_net_lock(agent->net);
        st = launch_local(loop, spec);
        if (!st) {
            wfi_agent_ref(agent);
            *out = weft_future_ref(loop->future);
            start_local(loop, spec->function);
        }
        wfi_net_unlock(agent->net);
    }
    if (st && loop) {
        fini_local(&loop->call);
        if (loop->call.link)
            wfi_links_get()->free(loop->call.link);
        weft_values_unref(loop->call.args);
        free(loop);
    }
    return st;
}
