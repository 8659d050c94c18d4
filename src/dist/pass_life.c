/* SPDX-License-Identifier: Apache-2.0 */
/* pass_life.c - the life of a pass, and how what happens to it gets to whoever runs it. */
#include "base/alloc.h"
#include "base/error.h"
#include "dist/pass_impl.h"

#include <stdlib.h>

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

void wfi_pass_post(wfi_dist_pass *pass, wfi_pass_event *event, bool locked)
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
    wfi_dist_pass_ref(pass); /* the task's */
    if (!locked)
        wfi_net_lock(agent->net);
    wfi_net_defer(agent->net, &pass->task, WFI_DEFER_WORKER);
    if (!locked)
        wfi_net_unlock(agent->net);
}

void wfi_pass_post_failure(wfi_dist_pass *pass, int kind, int rank, weft_error *error, bool locked)
{
    wfi_pass_event *event = wfi_calloc(1, sizeof *event);
    if (!event) {
        weft_error_unref(error);
        return;
    }
    event->kind = kind;
    event->rank = rank;
    event->error = error;
    wfi_pass_post(pass, event, locked);
}

/* ---- The ends of others ------------------------------------------------------------------------------------------ */

static void post_to_all(weft_context *context, int kind, int rank, weft_status why, const char *text)
{
    wfi_error_detail detail = {.code = why, .function = "backward", .worker = rank};
    wfi_mutex_lock(&context->lock);
    WFI_FOR_LIST (wfi_dist_pass, pass, &context->passes, record.link) {
        if (kind == WFI_EVENT_GONE && pass->record.ended_well && pass->record.root == rank) {
            wfi_gradients_clear(&pass->record.gradients); /* nobody knows any more whether it ended well */
            pass->record.ended_well = false;
            pass->record.error = wfi_error_create(&detail, "%s", text);
        }
        wfi_pass_post_failure(pass, kind, rank < 0 ? 0 : rank, wfi_error_create(&detail, "%s", text), true);
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
