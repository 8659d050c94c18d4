/* SPDX-License-Identifier: Apache-2.0 */
/* call.c - the lifetime of a served call: its holds, its entry in the map of its caller's calls, and freeing. */
#include "rpc/server/server.h"

#include "base/error.h"
#include "rpc/agent/budget.h"
#include "rpc/agent/notify.h"
#include "rpc/server/stream.h"

#include <stdlib.h>

weft_error *wfi_call_error(const weft_call *call, weft_status code, const char *format, ...)
{
    wfi_error_detail detail = {.code = code, .worker = wfi_agent_rank(call->agent)};
    detail.function = call->function ? call->function->name : NULL;
    detail.remote_code = call->ran ? WEFT_ERR_UNKNOWN : WEFT_OK; /* tells the caller whether a retry is safe */
    va_list args;
    va_start(args, format);
    weft_error *error = wfi_error_create_v(&detail, format, args);
    va_end(args);
    return error;
}

bool wfi_serve_signature_fits(const weft_type *types, weft_args values, char *problem, size_t room)
{
    size_t i = 0;
    for (; i < WEFT_MAX_SIGNATURE && types[i] != WEFT_TYPE_NONE; i++) {
        if (types[i] == WEFT_TYPE_REST)
            return true;
        if (i >= values.count) {
            snprintf(problem, room, "%zu values where a value of type %s should follow", values.count,
                     weft_type_name(types[i]));
            return false;
        }
        if (types[i] != WEFT_TYPE_ANY && types[i] != values.items[i].type) {
            snprintf(problem, room, "value %zu has the type %s where the signature says %s", i,
                     weft_type_name(values.items[i].type), weft_type_name(types[i]));
            return false;
        }
    }
    if (i < values.count)
        snprintf(problem, room, "%zu values where the signature (takes, gives) ends after %zu", values.count, i);
    return i >= values.count;
}

/* ---- Freeing ----------------------------------------------------------------------------------------------------- */

void wfi_serve_release_work(weft_call *call)
{
    if (call->slot.drop)
        call->slot.drop(call->slot.value);
    call->slot = (wfi_call_slot){0};
    if (call->deferred)
        return; /* its handler may still be running; leave_deferred_call frees the arguments */
    weft_values_unref(call->args);
    call->args = NULL;
    if (call->arguments)
        wfi_inbound_fini(call->arguments);
}

static void free_task(wfi_task *task)
{
    weft_call *call = wfi_container_of(task, weft_call, release);
    atomic_store_explicit(&call->deferred, false, memory_order_relaxed);
    wfi_serve_release_work(call);
    wfi_results_unpin(call);
    if (call->in_line) /* the agent has ended, so its turn never came */
        wfi_list_remove(&call->line_link);
    wfi_outbound_fini(&call->outbound);
    wfi_writer_fini(&call->header);
    free(call->pushes);
    wfi_items_out_free(call->items);
    free(call->arguments);
    if (call->recording)
        wfi_recording_ops_get()->free(call->recording);
    weft_values_unref(call->results);
    wfi_object_drop(call->object);
    weft_error_unref(call->error);
    weft_error_unref(call->inner);
    weft_future_unref(call->cancellation);
    weft_future_unref(call->unread);
    wfi_agent_unref(call->agent);
    wfi_handle_free(call);
}

void wfi_serve_drop_hold(weft_call *call)
{
    if (--call->holds)
        return;
    wfi_results_unread(call);
    wfi_budget_release(&call->charge);
    wfi_peer_unref(call->peer);
    wfi_notifications_release(call->agent, &call->notifications);
    call->release.run = free_task;
    wfi_net_defer(call->agent->net, &call->release, WFI_DEFER_RELEASE);
}

/* ---- In the table ------------------------------------------------------------------------------------------------ */

void wfi_serve_leave_table(weft_call *call)
{
    wfi_serve_interest(call, false);
    if (!call->in_table)
        return;
    call->in_table = false;
    if (call->in_map)
        wfi_map_take(&call->agent->peers[call->from].serving, call->id);
    call->in_map = false;
    wfi_serve_drop_hold(call);
}

void wfi_serve_leave_if_ended(weft_call *call)
{
    if (call->replied && !call->awaiting_done && !wfi_items_out_busy(call))
        wfi_serve_leave_table(call);
}

void wfi_serve_interest(weft_call *call, bool interested)
{
    if (call->peer && call->interested != interested)
        wfi_peer_interest(call->peer, interested ? 1 : -1);
    call->interested = interested;
}

void wfi_serve_uncount(weft_call *call)
{
    call->agent->serving -= call->counted;
    call->counted = false;
}

/* ---- After the agent --------------------------------------------------------------------------------------------- */

void wfi_serve_finish_late(weft_call *call)
{
    wfi_results_unread(call);
    if (--call->holds == 0) /* the handler task dropped its hold before the executor ended */
        free_task(&call->release);
}
