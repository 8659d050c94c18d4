/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.c - the way of a call to this worker itself: arguments, items and answer go by reference, without messages.
 *
 * The call has the same two halves as any other: a wfi_request, which the caller waits for, and a weft_call, which is
 * served. They point to each other until the call is answered or the request is complete. Some things differ:
 *   - The handler gets the caller's own tensors, or the places that `land` of its function names (server/accumulate.c).
 *   - So the future must not complete while the handler may read them. If the call is cancelled or late, `failure` is
 *     set at once, and weft_call_cancelled tells the handler. The future fails when the handler has let the arguments
 *     go (end.c). If the handler has not begun, the future fails at once, and the handler never begins.
 *   - Neither the queue's limit nor the memory budget counts it.
 *   - Results are copied to the caller's landing places. A call on a tape has none.
 */
#include "rpc/client/client.h"

#include "base/error.h"
#include "rpc/client/stream.h"
#include "rpc/server/stream.h"
#include "tensor/check.h"
#include "value/value.h"

#include <stdlib.h>

/* ---- The answer -------------------------------------------------------------------------------------------------- */

/* Writes the types of the result and of its place to `problem`. */
static bool fits_place(const weft_tensor *result, const weft_tensor *place, size_t index, char *problem, size_t room)
{
    char comes[WFI_TENSOR_TEXT], waits[WFI_TENSOR_TEXT];
    weft_shape have = weft_tensor_shape(result), want = weft_tensor_shape(place);
    snprintf(problem, room, "tensor %zu of the results is %s, its landing place is %s", index,
             wfi_value_tensor_type_text(comes, weft_tensor_dtype(result), have),
             wfi_value_tensor_type_text(waits, weft_tensor_dtype(place), want));
    return weft_tensor_dtype(result) == weft_tensor_dtype(place) && wfi_shape_equal(&have, &want);
}

/* Copies the results to the caller's landing places. */
static weft_status copy_results(weft_args results, const wfi_request *request, uint64_t *copied, char *problem,
                                size_t room)
{
    size_t count = wfi_values_tensors(results, NULL, 0);
    snprintf(problem, room, "%zu tensors in the results for %zu landing places", count, request->land_count);
    if (count != request->land_count)
        return WEFT_ERR_SHAPE;
    weft_tensor **tensors = malloc(count * sizeof(*tensors) + 1);
    if (!tensors)
        return WEFT_ERR_MEMORY;
    wfi_values_tensors(results, tensors, count);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && !status; i++) {
        bool fits = fits_place(tensors[i], request->land[i], i, problem, room);
        status = fits ? weft_tensor_assign(request->land[i], tensors[i]) : WEFT_ERR_SHAPE;
        *copied += wfi_copied(weft_tensor_nbytes(tensors[i]));
    }
    free(tensors);
    return status;
}

/* `landing` keeps the request from completing while its places are written. */
static void land_if_wanted(weft_call *call)
{
    weft_agent *agent = call->agent;
    wfi_net_lock(agent->net);
    wfi_request *request = call->caller;
    bool lands = request && request->land_count && !request->failure && !call->error;
    if (lands)
        request->landing = true;
    wfi_net_unlock(agent->net);
    if (!lands)
        return;
    char problem[320];
    uint64_t copied = 0;
    weft_status status = copy_results(weft_values_args(call->results), request, &copied, problem, sizeof(problem));
    wfi_results_unpin(call); /* before the places replace them */
    if (status)
        call->error = wfi_call_error(call, status, "%s", problem);
    else
        wfi_values_replace_tensors(call->results, request->land); /* as after a call to another worker */
    wfi_net_lock(agent->net);
    agent->stats.bytes_copied += copied;
    wfi_net_unlock(agent->net);
}

/* [agent lock] */
static void answer(weft_call *call)
{
    wfi_request *request = call->caller;
    if (!request)
        return;
    call->caller = NULL;
    request->local = NULL;
    request->landing = false;
    if (!call->error && call->results)
        request->results.values = weft_values_ref(call->results); /* items may be waited for */
    if (request->items)
        wfi_items_in_expect_given(request->items);
    wfi_observe_replied(call->agent, &request->span);
    const weft_error *error = request->failure ? request->failure : call->error;
    wfi_call_complete(request, error ? NULL : request->results.values, error, true);
}

static void respond(weft_call *call)
{
    wfi_net *net = call->agent->net;
    land_if_wanted(call);
    wfi_results_unpin(call); /* they belong to the caller now */
    wfi_serve_release_work(call);
    wfi_net_lock(net);
    bool was_deferred = call->deferred;
    wfi_serve_end(call);
    answer(call);
    wfi_observe_ended(call->agent, wfi_serve_observed(call), &call->span);
    wfi_serve_leave_table(call);
    wfi_serve_drop_hold(call); /* the user's */
    if (!was_deferred)
        wfi_serve_drop_hold(call); /* that of the handler task, which runs this */
    wfi_net_unlock(net);
}

/* [agent lock] */
static weft_status may_give(const weft_call *call)
{
    return call->caller && !call->caller->items ? WEFT_ERR_STATE : wfi_items_may_send(call);
}

static weft_status give_item(weft_call *call, weft_args item)
{
    wfi_net *net = call->agent->net;
    weft_values *values = NULL;
    wfi_net_lock(net);
    weft_status status = may_give(call); /* before anything is made */
    wfi_net_unlock(net);
    if (!status)
        status = wfi_values_create(item, &values);
    if (status)
        return status;
    wfi_net_lock(net);
    status = may_give(call);
    if (!status)
        status = call->caller ? wfi_items_in_give(call->caller->items, values) : WEFT_ERR_CANCELLED;
    wfi_net_unlock(net);
    if (status)
        weft_values_unref(values);
    return status;
}

static const wfi_responder_ops responder = {.returned = wfi_local_let_go, .respond = respond, .send_item = give_item};

/* ---- The way there ----------------------------------------------------------------------------------------------- */

weft_status wfi_local_prepare(wfi_request *request, const wfi_call_spec *spec)
{
    if (spec->source && spec->options->land.count)
        return WEFT_ERR_UNSUPPORTED; /* landing copies, and no tape records that */
    weft_call *call = request->local = wfi_serve_create(request->agent, NULL);
    if (!call)
        return WEFT_ERR_MEMORY;
    call->responder = &responder;
    call->function = wfi_function_find(request->agent, spec->function);
    weft_status status = wfi_values_create(spec->arguments, &call->args);
    return !status && spec->source ? wfi_recording_ops_get()->open(spec->source, NULL, &call->recording) : status;
}

/* The values of the references among its arguments were made, or will never be. [agent lock] */
static void run_or_refuse(weft_call *call)
{
    weft_error *error = call->starved ? wfi_call_error(call, WEFT_ERR_MEMORY, "no memory to wait for its references")
                                      : wfi_rrefs_failed(weft_values_args(call->args), call->function->name);
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
    if (!wfi_agent_enter_locked(agent)) {
        wfi_serve_finish_late(call);
        return;
    }
    if (--call->unmade == 0 && call->stage == WFI_SERVE_TAKING) /* otherwise wfi_serve_cancel has ended the call */
        run_or_refuse(call);
    wfi_serve_drop_hold(call);
    wfi_agent_leave_locked(agent);
}

/* As in a call to another worker, the handler gets only references that their owners have confirmed. */
weft_status wfi_local_send(wfi_request *request, uint64_t deadline_ns)
{
    weft_call *call = request->local;
    char problem[128];
    weft_status status = wfi_serve_enter(call, request->id);
    if (status)
        return status;
    call->caller = request;
    call->deadline_ns = deadline_ns;
    call->span = (wfi_span){.trace = request->span.trace,
                            .parent = request->span.id,
                            .begun_ns = request->span.begun_ns,
                            .left_ns = request->span.left_ns};
    if (request->remote) {
        call->owned = request->remote->home;
        wfi_owned_begin(call->owned);
    }
    wfi_observe_arrived(call->agent, &call->span);
    weft_args args = weft_values_args(call->args);
    if (!call->function)
        wfi_serve_refuse(call, wfi_function_unknown(call->agent, request->function));
    else if (!wfi_serve_signature_fits(call->function->takes, args, problem, sizeof(problem)))
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_TYPE, "%s", problem));
    else if (wfi_order_join(call))
        wfi_serve_refuse(call, wfi_call_error(call, WEFT_ERR_MEMORY, "no memory for its place in the order"));
    else if ((call->unmade = wfi_rrefs_await(args, reference_made, call, &call->starved)) == 0)
        run_or_refuse(call);
    call->holds += (int)call->unmade; /* reference_made needs the lock, so it comes later */
    return WEFT_OK;
}
