/* SPDX-License-Identifier: Apache-2.0 */
/* contexts.c - the contexts of an agent: their table, opening and closing, and the agent's component. */

#include "dist/contexts.h"

#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/text/json_writer.h"
#include "base/text/refuse.h"
#include "base/text/sized.h"
#include "dist/pass_impl.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <stdlib.h>

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static weft_status open_context(weft_agent *agent, weft_context **out)
{
    if (agent->forked)
        return WEFT_ERR_STATE;
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    wfi_contexts *all = wfi_contexts_of(agent);
    uint32_t rank = (uint32_t)wfi_agent_rank(agent);
    wfi_net_lock(agent->net);
    weft_status status = wfi_agent_usable(agent);
    weft_context_id id = {rank, wfi_net_member(agent->net, (int)rank)->incarnation, all->last_number + 1};
    wfi_net_unlock(agent->net);
    weft_context *context = status ? NULL : wfi_context_create(agent, id);
    if (!status && !context)
        status = WEFT_ERR_MEMORY;
    wfi_net_lock(agent->net);
    if (!status) {
        context->id.number = all->last_number + 1; /* others may have opened some meanwhile */
        status = wfi_contexts_add(all, context);
    }
    if (!status) {
        all->last_number++;
        wfi_list_push_back(&all->opened, &context->link);
        wfi_context_ref(context); /* the reference of the list, until all holders know that it is over */
        *out = wfi_context_ref(context);
    }
    wfi_net_unlock(agent->net);
    if (status)
        wfi_context_unref(context);
    wfi_agent_leave(agent);
    return status;
}

weft_status weft_context_open(weft_agent *agent, weft_context **out, weft_error **error)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent || !out)
        return wfi_refuse_null_to(error, "weft_context_open", agent ? "out" : "the agent");
    weft_status status = open_context(agent, out);
    return status ? wfi_refuse_to(error, status, "weft_context_open: %s", weft_status_text(status)) : WEFT_OK;
}

/*
 * Closes a context on its opener; on other workers it only drops the reference. With a future the holders are notified
 * at once, otherwise by the next calls or by notify_timer.
 */
void weft_context_close(weft_context *context, weft_future **out)
{
    WFI_CHECK_HANDLE(context);
    if (out)
        *out = NULL;
    if (!context)
        return;
    weft_agent *agent = context->agent;
    bool ours = (int)context->id.rank == wfi_agent_rank(agent);
    if (wfi_agent_enter_locked(agent)) {
        wfi_contexts *all = wfi_contexts_of(agent);
        if (!context->over && ours)
            wfi_contexts_end(all, context, WEFT_ERR_CANCELLED, "its context was closed");
        if (out && ours && !wfi_list_empty(&context->link)) /* some holder has not released it */
            *out = wfi_contexts_end_future(context);
        else if (out)
            *out = weft_future_when_all(NULL, 0);
        wfi_contexts_drop_released(all);
        if (!out)
            wfi_contexts_notify_soon(all);
        wfi_net_unlock(agent->net);
        for (int rank = 0; out && ours && rank < agent->options.values.world_size; rank++) {
            wfi_net_lock(agent->net);
            bool holds = context->holders[rank] == WFI_HOLDER_PRESENT;
            wfi_net_unlock(agent->net);
            if (holds)
                wfi_contexts_send_close(agent, rank, 0);
        }
        wfi_agent_leave(agent);
    } else if (out) {
        *out = weft_future_when_all(NULL, 0);
    }
    wfi_context_unref(context);
}

/* Of a tape that has its context to itself, and closes. */
static void close_with_tape(void *context)
{
    wfi_context_unref(context);
    weft_context_close(context, NULL);
}

weft_tape *weft_dist_tape_open_sized(weft_agent *agent, const weft_tape_options *given, size_t size)
{
    WFI_CHECK_HANDLE(agent);
    weft_tape_options own;
    weft_context *context = NULL;
    weft_error *why = NULL;
    const weft_tape_options *options = WFI_SIZED(given, size, &own);
    weft_status status = options ? weft_context_open(agent, &context, &why) : WEFT_ERR_INVALID;
    if (status) {
        weft_tape *failed = weft_tape_open(NULL);
        if (!options)
            weft_tape_fail(failed, status, "dist_tape_open: " WFI_NEWER, "weft_tape_options");
        else
            weft_tape_fail(failed, status, "dist_tape_open: %s",
                           why ? weft_error_message(why) : weft_status_text(status));
        weft_error_unref(why);
        return failed;
    }
    weft_tape *tape = weft_context_tape(context, options);
    if (tape)
        tape->owner_drop = close_with_tape;
    else
        weft_context_close(context, NULL);
    return tape;
}

size_t weft_agent_contexts(weft_agent *agent, size_t *passes)
{
    WFI_CHECK_HANDLE(agent);
    size_t count = 0;
    if (passes)
        *passes = 0;
    if (!agent || !wfi_agent_enter_locked(agent))
        return 0;
    const wfi_contexts *all = wfi_contexts_of(agent);
    count = all->count;
    if (passes)
        *passes = all->passes;
    wfi_agent_leave_locked(agent);
    return count;
}

/* ---- The end of workers, and of the agent ------------------------------------------------------------------------ */

/* Ends all contexts that end with a worker, or with this agent. */
static void end_all(wfi_contexts *all, int rank, weft_status why, const char *text)
{
    weft_context *found;
    do {
        size_t cursor = 0;
        found = wfi_map_next(&all->table, &cursor, NULL);
        while (rank >= 0 && found && (int)found->id.rank != rank)
            found = found->next_same ? found->next_same : wfi_map_next(&all->table, &cursor, NULL);
        if (found)
            wfi_contexts_end(all, found, why, text);
    } while (found);
}

static void peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    int rank = wfi_peer_rank(peer);
    size_t cursor = 0;
    end_all(all, rank, why, text);
    for (weft_context *context; (context = wfi_map_next(&all->table, &cursor, NULL));)
        for (; context; context = context->next_same) {
            wfi_passes_peer_gone(context, rank, why, text);
            wfi_contexts_report_again(context);
        }
    WFI_FOR_LIST (weft_context, context, &all->opened, link) {
        wfi_contexts_holders_unknown(context);
        context->holders[rank] = WFI_HOLDER_NONE;
    }
    wfi_contexts_drop_released(all);
}

static void fail_all(weft_agent *agent, weft_status why, const char *text)
{
    end_all(wfi_contexts_of(agent), -1, why, text);
    wfi_contexts_fail_ends(wfi_contexts_of(agent), why, text);
}

static bool are_busy(weft_agent *agent)
{
    return wfi_contexts_of(agent)->passes > 0;
}

static void name_awaited(weft_agent *agent, wfi_awaits *out)
{
    if (are_busy(agent))
        wfi_awaits_add(out, "backward passes of distributed contexts: %zu", (size_t)wfi_contexts_of(agent)->passes);
}

static size_t count_leaks(weft_agent *agent)
{
    size_t leaks = 0;
    wfi_net_lock(agent->net);
    WFI_FOR_LIST (weft_context, context, &wfi_contexts_of(agent)->opened, link)
        leaks += !context->over;
    wfi_net_unlock(agent->net);
    if (leaks)
        wfi_agent_log(agent, WEFT_LOG_WARN, 0, "%zu distributed contexts were not closed (weft_context_close)", leaks);
    return leaks;
}

static void close_contexts(weft_agent *agent)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    if (!all)
        return;
    wfi_passes_drop_unnotified(all);
    for (wfi_list *link; (link = wfi_list_pop_front(&all->opened));)
        wfi_context_unref(wfi_container_of(link, weft_context, link));
    wfi_map_fini(&all->table);
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        wfi_map_fini(&all->openers[rank].closed);
    free(all->openers);
    wfi_dist_counts_fini(&all->counts);
    free(all);
    agent->state[WFI_STATE_CONTEXTS] = NULL;
}

/* ---- weft_debug_dump --------------------------------------------------------------------------------------------- */

static void put_pass(wfi_json *j, const wfi_pass_result *pass)
{
    wfi_json_open(j, NULL, '{');
    wfi_json_put_number(j, "root", (uint64_t)pass->root);
    wfi_json_put_number(j, "number", pass->number);
    wfi_json_put_text(j, "state", pass->error ? "failed" : pass->ended_well ? "done here" : "running");
    if (pass->error)
        wfi_json_put_text(j, "error", weft_error_message(pass->error));
    wfi_json_close(j, '}');
}

static void put_context(wfi_json *j, weft_context *context)
{
    wfi_json_open(j, NULL, '{');
    wfi_json_put_number(j, "opener", context->id.rank);
    wfi_json_put_number(j, "number", context->id.number);
    wfi_mutex_lock(&context->lock);
    wfi_json_put_bool(j, "over", context->over);
    wfi_json_put_number(j, "sends", context->send_count);
    wfi_json_put_number(j, "receives", context->recv_count);
    wfi_json_open(j, "passes", '[');
    WFI_FOR_LIST (const wfi_pass_result, pass, &context->passes, link)
        put_pass(j, pass);
    wfi_json_close(j, ']');
    wfi_mutex_unlock(&context->lock);
    wfi_json_close(j, '}');
}

static void dump(weft_agent *agent, wfi_json *j)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    size_t cursor = 0;
    wfi_json_open(j, "contexts", '[');
    for (weft_context *first; (first = wfi_map_next(&all->table, &cursor, NULL));)
        for (weft_context *context = first; context; context = context->next_same)
            put_context(j, context);
    wfi_json_close(j, ']');
}

/* ---- The component ----------------------------------------------------------------------------------------------- */

static weft_status open_contexts(weft_agent *agent, weft_error **error)
{
    (void)error;
    wfi_contexts *all = wfi_calloc(1, sizeof(*all));
    wfi_opener *openers = all ? wfi_calloc((size_t)agent->options.values.world_size, sizeof(*openers)) : NULL;
    if (!openers) {
        free(all);
        return WEFT_ERR_MEMORY;
    }
    all->agent = agent;
    all->openers = openers;
    all->notify_timer.fire = wfi_contexts_notify_holders;
    all->query_timer.fire = wfi_contexts_query_openers;
    all->abort_timer.fire = wfi_passes_abort_again;
    wfi_list_init(&all->unnotified);
    wfi_dist_counts_init(&all->counts);
    wfi_map_init(&all->table);
    wfi_list_init(&all->opened);
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        wfi_map_init_keyed(&openers[rank].closed, &agent->hash_key);
    agent->state[WFI_STATE_CONTEXTS] = all;
    weft_status status = wfi_function_register(agent, &wfi_close_function, NULL);
    if (!status)
        status = wfi_function_register(agent, &wfi_joined_function, NULL);
    if (!status)
        status = wfi_passes_register(agent);
    return status ? status : wfi_backward_register(agent);
}

const wfi_component wfi_dist_component = {
    .open = open_contexts,
    .peer_gone = peer_gone,
    .busy = are_busy,
    .awaits = name_awaited,
    .dump = dump,
    .metrics = wfi_contexts_write_metrics,
    .leaks = count_leaks,
    .fail = fail_all,
    .close = close_contexts,
};
