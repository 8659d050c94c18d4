/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_events.c - the life of a pass, and the delivery of events to the thread that runs it. Any thread may post an
 * event. If no thread runs the pass, the first event makes one run it (wfi_pass_runner).
 */
#include "base/alloc.h"
#include "base/error.h"
#include "dist/pass_impl.h"

#include <stdlib.h>

wfi_pass *wfi_pass_ref(wfi_pass *pass)
{
    atomic_fetch_add_explicit(&pass->refs, 1, memory_order_relaxed);
    return pass;
}

void wfi_pass_unref(wfi_pass *pass)
{
    if (!pass || atomic_fetch_sub_explicit(&pass->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (pass->counted_bytes && wfi_agent_enter_locked(pass->agent)) {
        wfi_budget_keep_item(pass->agent, -(int64_t)pass->counted_bytes);
        wfi_agent_leave_locked(pass->agent);
    }
    wfi_gradients_clear(&pass->result.gradients);
    wfi_gradients_clear(&pass->result.undone);
    weft_error_unref(pass->result.error);
    weft_future_unref(pass->future);
    free(pass->peers);
    free(pass->step_names);
    wfi_mutex_fini(&pass->lock);
    wfi_agent_unref(pass->agent);
    free(pass);
}

static void unref_result(wfi_pass_result *result)
{
    wfi_pass_unref(wfi_container_of(result, wfi_pass, result));
}

void wfi_pass_enlist(wfi_pass *pass, int root, uint64_t number)
{
    pass->result.root = root;
    pass->result.number = number;
    pass->result.unref = unref_result;
    wfi_list *next = &pass->context->passes; /* the first pass after this one: gradients are added up in this order */
    WFI_FOR_LIST (const wfi_pass_result, other, &pass->context->passes, link) {
        if (other->root > root || (other->root == root && other->number > number)) {
            next = (wfi_list *)&other->link;
            break;
        }
    }
    wfi_list_push_back(next, &wfi_pass_ref(pass)->result.link);
}

const char *wfi_pass_who(const wfi_pass *pass, int rank, char out[WFI_PASS_WHO_MAX])
{
    const char *name = weft_agent_name(pass->agent, rank);
    snprintf(out, WFI_PASS_WHO_MAX, "rank %d (%s)", rank, name ? name : "unknown");
    return out;
}

/* ---- Answering calls --------------------------------------------------------------------------------------------- */

void wfi_pass_refuse(weft_call *call, weft_error *error)
{
    call->error = wfi_error_with_hop(error, wfi_agent_rank(call->agent));
    weft_error_unref(error);
    weft_call_finish(call, WEFT_OK);
}

void wfi_pass_answer_call(weft_call *call, bool all_answered)
{
    weft_call_give(call, WEFT_VALUES(weft_of_bool(all_answered)));
    weft_call_finish(call, WEFT_OK);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

void wfi_pass_free_event(wfi_pass_event *event)
{
    weft_error_unref(event->error);
    if (!event->is_spare)
        free(event);
}

/*
 * There is no memory for an event: returns the spare one, which ends the pass. An event of another kind becomes an END
 * with WEFT_ERR_MEMORY. NULL: the spare event is in use, so the pass ends already.
 */
static wfi_pass_event *use_spare(wfi_pass *pass, wfi_pass_event_kind *kind, weft_error **error)
{
    wfi_mutex_lock(&pass->lock);
    bool used = pass->spare.is_spare;
    pass->spare.is_spare = true;
    wfi_mutex_unlock(&pass->lock);
    if (used)
        return NULL;
    if (*kind != WFI_PASS_EVENT_END && *kind != WFI_PASS_EVENT_FAIL) {
        wfi_error_detail detail = {
            .code = WEFT_ERR_MEMORY, .function = "backward", .worker = wfi_agent_rank(pass->agent)};
        weft_error_unref(*error);
        *error = wfi_error_create(&detail, "out of memory");
        *kind = WFI_PASS_EVENT_END;
    }
    return &pass->spare;
}

void wfi_pass_answer_late(wfi_pass *pass, wfi_pass_event *event)
{
    if (event->call && pass->result.error)
        wfi_pass_refuse(event->call, weft_error_ref(pass->result.error));
    else if (event->call)
        wfi_pass_answer_call(event->call, true);
    wfi_pass_free_event(event);
}

void wfi_pass_post(wfi_pass *pass, wfi_pass_event *event, wfi_pass_runner runner)
{
    weft_agent *agent = pass->agent;
    wfi_mutex_lock(&pass->lock);
    bool over = pass->over, start = !over && !pass->running;
    if (!over)
        wfi_list_push_back(&pass->events, &event->link);
    pass->running = pass->running || start;
    wfi_mutex_unlock(&pass->lock);
    if (over)
        wfi_pass_answer_late(pass, event);
    if (!start)
        return;
    pass->waiter_runs = runner == WFI_RUN_WAITER;
    wfi_pass_ref(pass); /* the task's */
    if (runner == WFI_RUN_WAITER || runner == WFI_RUN_HERE) {
        pass->task.run(&pass->task);
        return;
    }
    if (runner == WFI_RUN_LATER)
        wfi_net_lock(agent->net);
    wfi_net_defer(agent->net, &pass->task, WFI_DEFER_WORKER);
    if (runner == WFI_RUN_LATER)
        wfi_net_unlock(agent->net);
}

void wfi_pass_post_failure(wfi_pass *pass, wfi_pass_event_kind kind, int rank, weft_error *error,
                           wfi_pass_runner runner)
{
    wfi_pass_event *event = wfi_calloc(1, sizeof(*event));
    if (!event)
        event = use_spare(pass, &kind, &error);
    if (!event) {
        weft_error_unref(error);
        return;
    }
    event->kind = kind;
    event->rank = rank;
    event->error = error;
    wfi_pass_post(pass, event, runner);
}
