/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cancel.c - cancels a served call: its caller cancelled it or is gone, or its deadline has passed.
 *
 * Handlers learn it from weft_call_cancelled or weft_call_cancellation. The call's children (nested.c) are cancelled.
 */
#include "rpc/server/server.h"

static void fail_cancellation(weft_call *call, weft_status why, const char *text)
{
    if (!call->cancellation)
        return;
    weft_error *error = wfi_call_error(call, why, "%s", text);
    wfi_complete_future(call->cancellation, NULL, error);
    weft_error_unref(error);
}

void wfi_serve_cancel(weft_call *call, weft_status why, const char *text)
{
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (call->stage == WFI_SERVE_ANSWERING || atomic_load(&call->cancel_reason))
        return;
    atomic_store(&call->cancel_reason, why);
    call->agent->stats.calls_cancelled++;
    wfi_net_timer_clear(call->agent->net, &call->timer);
    fail_cancellation(call, why, text);
    wfi_children_cancel(call, why, text);
    wfi_order_skip(call);
    if (call->queued && call->stage == WFI_SERVE_SERVING) {
        wfi_runner_of(call->function)->ops->leave(call);
        wfi_serve_withdraw(call, wfi_call_error(call, why, "%s while it waited for its batch: it did not run", text));
    }
    if (call->unmade && call->stage == WFI_SERVE_TAKING)
        wfi_serve_refuse(call, wfi_call_error(call, why, "%s while it waited for a reference: it did not run", text));
}

static void deadline_passed(wfi_timer *timer)
{
    wfi_serve_cancel(wfi_container_of(timer, weft_call, timer), WEFT_ERR_TIMEOUT, "the call's time ran out");
}

void wfi_serve_watch_deadline(weft_call *call)
{
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (call->deadline_ns == WFI_NEVER || call->timer.heap_index || atomic_load(&call->cancel_reason))
        return;
    call->timer.fire = deadline_passed;
    if (wfi_net_timer_set(call->agent->net, &call->timer, call->deadline_ns))
        wfi_agent_log(call->agent, WEFT_LOG_WARN, call->id,
                      "no memory for a timer: \"%s\" will not be told when its time runs out", call->function->name);
}

void wfi_serve_end_watch(weft_call *call)
{
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    wfi_net_timer_clear(call->agent->net, &call->timer);
    if (call->cancellation && !atomic_load(&call->cancel_reason))
        wfi_complete_future(call->cancellation, NULL, NULL);
}

/* ---- The handler's functions ------------------------------------------------------------------------------------- */

bool weft_call_cancelled(const weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    if (!call || atomic_load(&call->cancel_reason))
        return true;
    if (call->deadline_ns == WFI_NEVER)
        return false;
    if (!wfi_agent_enter(call->agent))
        return true;
    bool late = wfi_now(wfi_net_clock(call->agent->net)) >= call->deadline_ns;
    wfi_agent_leave(call->agent);
    return late;
}

weft_future *weft_call_cancellation(weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    if (!call)
        return NULL;
    weft_agent *agent = call->agent;
    if (!wfi_agent_enter_locked(agent)) {
        weft_error *closed = wfi_call_error(call, WEFT_ERR_CLOSED, "the agent is closed");
        weft_future *ended = wfi_failed_future(NULL, closed);
        weft_error_unref(closed);
        return ended;
    }
    if (!call->cancellation) {
        call->cancellation = wfi_agent_future(agent);
        weft_status why = (weft_status)atomic_load(&call->cancel_reason);
        if (why)
            fail_cancellation(call, why, weft_status_text(why));
        else if (call->cancellation)
            wfi_serve_watch_deadline(call);
    }
    weft_future *future = weft_future_ref(call->cancellation);
    wfi_agent_leave_locked(agent);
    return future;
}
