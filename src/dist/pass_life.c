/* SPDX-License-Identifier: Apache-2.0 */
/* pass_life.c - the life of a pass, and how what happens to it gets to whoever runs it. */
#include "base/alloc.h"
#include "base/error.h"
#include "dist/pass_impl.h"

#include <stdlib.h>
#include <string.h>

wfi_dist_pass *wfi_dist_pass_ref(wfi_dist_pass *pass)
{
    atomic_fetch_add_explicit(&pass->refs, 1, memory_order_relaxed);
    return pass;
}

void wfi_dist_pass_unref(wfi_dist_pass *pass)
{
    if (!pass || atomic_fetch_sub_explicit(&pass->refs, 1, memory_order_acq_rel) != 1)
        return;
    wfi_gradients_clear(&pass->record.gradients);
    weft_error_unref(pass->record.error);
    weft_future_unref(pass->future);
    free(pass->peers);
    free(pass->step_names);
    wfi_mutex_fini(&pass->lock);
    wfi_agent_unref(pass->agent);
    free(pass);
}

static void unref_record(wfi_pass_record *record)
{
    wfi_dist_pass_unref(wfi_container_of(record, wfi_dist_pass, record));
}

void wfi_dist_pass_enlist(wfi_dist_pass *pass, int root, uint64_t number)
{
    pass->record.root = root;
    pass->record.number = number;
    pass->record.unref = unref_record;
    wfi_list_push_back(&pass->context->passes, &wfi_dist_pass_ref(pass)->record.link);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static const wfi_pass_steps *steps; /* set before there is an agent */

void wfi_pass_steps_set(const wfi_pass_steps *all)
{
    steps = all;
}

weft_status wfi_pass_set_steps(wfi_dist_pass *pass, const void *names, size_t size)
{
    if (!size)
        return WEFT_OK;
    pass->step_names = wfi_calloc(size, 1);
    if (!pass->step_names)
        return WEFT_ERR_MEMORY;
    memcpy(pass->step_names, names, size);
    pass->step_size = size;
    return WEFT_OK;
}

weft_status wfi_pass_write_optimizer(const weft_agent *agent, const struct weft_dist_optimizer *optimizer,
                                     wfi_writer *names)
{
    return steps ? steps->write(optimizer, agent, names) : WEFT_ERR_UNSUPPORTED;
}

weft_status wfi_pass_step(wfi_dist_pass *pass)
{
    if (!pass->step_names)
        return WEFT_OK;
    size_t stepped = 0;
    uint64_t began_ns = wfi_pass_observe_now(pass);
    weft_status st = steps ? steps->run(pass->agent, pass->step_names, pass->step_size, &pass->record, &stepped)
                           : WEFT_ERR_UNSUPPORTED;
    if (stepped)
        wfi_pass_observe_steps(pass, stepped, began_ns);
    return st;
}

/* ---- Answering calls --------------------------------------------------------------------------------------------- */

/* Takes over the error. */
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
    free(event);
}

/* A call comes to a pass that is over. */
void wfi_pass_answer_late(wfi_dist_pass *pass, wfi_pass_event *event)
{
    if (event->call && pass->record.error)
        wfi_pass_refuse(event->call, weft_error_ref(pass->record.error));
    else if (event->call)
        wfi_pass_answer_call(event->call, true);
    wfi_pass_free_event(event);
}

void wfi_pass_post(wfi_dist_pass *pass, wfi_pass_event *event, wfi_pass_runner runner)
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
    wfi_dist_pass_ref(pass); /* the task's */
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

void wfi_pass_post_failure(wfi_dist_pass *pass, int kind, int rank, weft_error *error, wfi_pass_runner runner)
{
    wfi_pass_event *event = wfi_calloc(1, sizeof *event);
    if (!event) {
        weft_error_unref(error);
        return;
    }
    event->kind = kind;
    event->rank = rank;
    event->error = error;
    wfi_pass_post(pass, event, runner);
}

bool wfi_pass_undo(wfi_pass_record *record, const weft_error *error)
{
    if (!record->ended_well)
        return false;
    wfi_gradients_clear(&record->gradients);
    wfi_pass_observe_undone(wfi_container_of(record, wfi_dist_pass, record));
    record->ended_well = false;
    record->error = weft_error_ref((weft_error *)error);
    return true;
}

/* ---- The ends of others ------------------------------------------------------------------------------------------ */

static void post_to_all(weft_context *context, int kind, int rank, weft_status why, const char *text)
{
    wfi_error_detail detail = {.code = why, .function = "backward", .worker = rank};
    wfi_mutex_lock(&context->lock);
    WFI_FOR_LIST (wfi_dist_pass, pass, &context->passes, record.link) {
        weft_error *error = wfi_error_create(&detail, "%s", text);
        if (kind == WFI_EVENT_GONE && pass->record.root == rank)
            wfi_pass_undo(&pass->record, error); /* nobody knows any more whether it ended well */
        wfi_pass_post_failure(pass, kind, rank < 0 ? 0 : rank, error, WFI_RUN_LOCKED);
    }
    wfi_mutex_unlock(&context->lock);
}

void wfi_passes_cancel(weft_context *context, weft_status why, const char *text)
{
    post_to_all(context, WFI_EVENT_FAIL, -1, why, text);
}

void wfi_passes_peer_gone(weft_context *context, int rank, weft_status why, const char *text)
{
    post_to_all(context, WFI_EVENT_GONE, rank, why, text);
}
