/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - queues a call whose arguments have arrived, and runs its handler. */
#include "rpc/server/server.h"

#include "base/thread.h"
#include "rpc/agent/budget.h"

/* The handler has deferred its call and returned. Other threads may have finished the call meanwhile. The hold of the
 * handler task (wfi_serve_run) keeps the call's memory. While `deferred` is set no other thread uses the arguments
 * before that hold is dropped below. */
static void leave_deferred_call(weft_call *call)
{
    wfi_net *net = call->agent->net;
    if (!call->keep_arguments) {
        weft_values_unref(call->args);
        call->args = NULL;
    }
    wfi_net_lock(net);
    if (!call->keep_arguments)
        wfi_budget_release_arguments(&call->charge);
    if (call->stage == WFI_SERVE_SERVING && !call->cancelled)
        wfi_serve_interest(call, true);
    call->has_returned = true;
    wfi_order_leave(call);
    call->responder->returned(call);
    wfi_serve_drop_hold(call);
    wfi_net_unlock(net);
}

/* The handler has returned, or will not run: the caller's next call may begin. Not locked. */
static void end_turn(weft_call *call)
{
    if (!call->line)
        return;
    wfi_net_lock(call->agent->net);
    wfi_order_leave(call);
    wfi_net_unlock(call->agent->net);
}

static void run_wanted(weft_call *call)
{
    wfi_observe_running(call->agent, &call->span);
    call->ran = true;
    weft_status status = call->function->run(call, call->function->user);
    if (!call->deferred)
        end_turn(call);
    if (status != WEFT_DEFERRED && !call->deferred) {
        wfi_call_finish(call, status);
    } else if (!call->deferred) {
        weft_call_fail(call, WEFT_ERR_STATE, "the handler returned WEFT_DEFERRED without weft_call_defer");
        wfi_call_finish(call, WEFT_ERR_STATE);
    } else {
        if (status != WEFT_DEFERRED)
            wfi_agent_log(call->agent, WEFT_LOG_WARN, call->id,
                          "\"%s\" deferred its call and returned %s: weft_call_finish must still be called",
                          call->function->name, weft_status_name(status));
        leave_deferred_call(call);
    }
}

weft_status wfi_serve_begin(weft_call *call)
{
    wfi_net *net = call->agent->net;
    weft_status why = (weft_status)atomic_load(&call->cancel_reason);
    if (why)
        return why;
    bool late = call->deadline_ns != WFI_NEVER && wfi_now(wfi_net_clock(net)) >= call->deadline_ns;
    if (call->peer && !late)
        return WEFT_OK;
    wfi_net_lock(net);
    if (late)
        wfi_serve_cancel(call, WEFT_ERR_TIMEOUT, "the call's time ran out");
    why = (weft_status)atomic_load(&call->cancel_reason);
    call->begun = !why; /* if this worker made the call, it waits from here on for the handler (client/local.c) */
    wfi_net_unlock(net);
    return why;
}

void wfi_serve_handler_task(wfi_task *task)
{
    weft_call *call = wfi_container_of(task, weft_call, task);
    weft_status why = wfi_serve_begin(call);
    if (why)
        call->error = wfi_call_error(call, why, "it did not run: its answer was no longer needed when its turn came");
    else if (call->function->land && (!call->peer || call->function->flags & WEFT_FUNCTION_LAND_ADD))
        call->error = wfi_land_when_run(call);
    if (call->error) {
        end_turn(call);
        call->responder->respond(call);
    } else {
        run_wanted(call);
    }
}

wfi_urgency wfi_serve_urgency(const weft_function *function)
{
    if (function->flags & WEFT_FUNCTION_URGENT)
        return WFI_URGENT;
    return function->flags & WEFT_FUNCTION_LAZY ? WFI_LAZY : WFI_NORMAL;
}

/* An error if no thread of the agent can be started. An inline handler may need one too (WFI_DEFER_INLINE). */
static weft_error *lacks_thread(weft_call *call)
{
    char text[WFI_THREAD_STRERROR];
    int errnum = call->function->flags & WFI_AT_ONCE ? 0 : wfi_executor_need_worker(call->agent->executor);
    return errnum ? wfi_call_error(call, WEFT_ERR_BUSY, "it did not run: no thread for handlers could be started: %s",
                                   wfi_thread_strerror(errnum, text))
                  : NULL;
}

void wfi_serve_run(weft_call *call)
{
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    const wfi_runner *runner = wfi_runner_of(call->function);
    weft_error *error = lacks_thread(call);
    if (error) {
        call->agent->stats.calls_refused++;
        if (call->queued)
            runner->ops->leave(call);
        wfi_serve_refuse(call, error);
        return;
    }
    if (runner) {
        runner->ops->ready(call);
        return;
    }
    call->stage = WFI_SERVE_SERVING;
    call->span.ready_ns = wfi_net_now(call->agent->net);
    call->holds += 2; /* the user's, until weft_call_finish, and the handler task's */
    call->task.run = wfi_serve_handler_task;
    call->task.urgency = wfi_serve_urgency(call->function);
    wfi_order_run(call);
}
