/* SPDX-License-Identifier: Apache-2.0 */
/* pass_life.c - creates and frees passes, and delivers events to the thread that runs a pass. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "dist/pass_impl.h"
#include "rpc/refs/refs.h"

#include <stdarg.h>
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
    if (pass->counted_bytes && wfi_agent_enter_locked(pass->agent)) {
        wfi_budget_keep_item(pass->agent, -(int64_t)pass->counted_bytes);
        wfi_agent_leave_locked(pass->agent);
    }
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
    wfi_list *next = &pass->context->passes; /* the first pass after this one: gradients are added up in this order */
    WFI_FOR_LIST (const wfi_pass_record, other, &pass->context->passes, link) {
        if (other->root > root || (other->root == root && other->number > number)) {
            next = (wfi_list *)&other->link;
            break;
        }
    }
    wfi_list_push_back(next, &wfi_dist_pass_ref(pass)->record.link);
}

void wfi_dist_pass_stillborn(wfi_dist_pass *pass, const weft_error *error)
{
    weft_context *context = pass->context;
    pass->record.error = weft_error_ref((weft_error *)error);
    pass->over = true;
    pass->context = NULL;
    atomic_fetch_sub(&wfi_contexts_of(pass->agent)->passes, 1);
    wfi_context_unref(context);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static wfi_pass_step_fn *step_parts; /* set before an agent is opened */

void wfi_pass_register_step(wfi_pass_step_fn *step)
{
    step_parts = step;
}

weft_status wfi_pass_copy_step_names(wfi_dist_pass *pass, const void *names, size_t size)
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

weft_status wfi_pass_write_optimizer(const weft_agent *agent, const weft_dist_optimizer *optimizer, wfi_writer *names,
                                     int *owner)
{
    *owner = -1;
    if (optimizer->agent != agent)
        return WEFT_ERR_INVALID;
    for (size_t i = 0; i < optimizer->count; i++) {
        wfi_rref_name name;
        weft_status st = wfi_rref_pass(optimizer->parts[i], &name);
        *owner = weft_rref_owner(optimizer->parts[i]);
        if (st)
            return st;
        wfi_write_rref_name(names, &name);
    }
    return names->failed ? WEFT_ERR_MEMORY : WEFT_OK;
}

void wfi_pass_step(wfi_dist_pass *pass)
{
    if (!pass->step_names)
        return;
    size_t stepped = 0;
    weft_error *error = NULL;
    uint64_t began_ns = wfi_pass_observe_now(pass);
    weft_status st = step_parts
                         ? step_parts(pass->agent, pass->step_names, pass->step_size, &pass->record, &stepped, &error)
                         : WEFT_ERR_UNSUPPORTED;
    if (stepped)
        wfi_pass_observe_steps(pass, stepped, began_ns);
    if (st)
        wfi_engine_fail(&pass->engine, st, "the step that the pass takes along: %s",
                        error ? weft_error_message(error) : weft_status_text(st));
    weft_error_unref(error);
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

/* ---- The memory budget ------------------------------------------------------------------------------------------- */

void wfi_pass_hold(wfi_dist_pass *pass, weft_call *call, weft_tensors gradients)
{
    size_t bytes = 0;
    for (size_t i = 0; i < gradients.count; i++)
        bytes += sizeof *gradients.items[i] + weft_tensor_nbytes(gradients.items[i]);
    wfi_net_lock(pass->agent->net);
    pass->held_bytes += wfi_budget_take_over(&call->charge, bytes);
    wfi_net_unlock(pass->agent->net);
}

void wfi_pass_let_go(wfi_dist_pass *pass)
{
    if (!wfi_agent_enter_locked(pass->agent))
        return;
    wfi_budget_release_reserved(pass->agent, pass->held_bytes);
    pass->held_bytes = 0;
    wfi_agent_leave_locked(pass->agent);
}

/* The snapshot of `sends` and `recvs` tensors. */
static size_t bytes_of_snapshot(size_t sends, size_t recvs)
{
    return (sends + 1) * sizeof(wfi_pass_send) + (recvs + 1) * sizeof(wfi_pass_recv) + wfi_map_most_bytes(recvs);
}

/* The most memory that a pass over the context allocates for itself. With the context's lock. */
static size_t bytes_of_work(const weft_context *context)
{
    return bytes_of_snapshot(context->send_count, context->recv_count) +
           wfi_engine_most_bytes(wfi_graph_slots(context->graph));
}

weft_status wfi_pass_may_work(const weft_context *context, char *problem, size_t room)
{
    size_t bytes = bytes_of_work(context);
    weft_status st = wfi_budget_admit_work(context->agent, bytes, !context->working_passes, problem, room);
    if (!st)
        wfi_budget_release_work(context->agent, bytes);
    return st;
}

weft_status wfi_pass_count_work(wfi_dist_pass *pass, char *problem, size_t room)
{
    weft_context *context = pass->context;
    weft_status st = WEFT_OK;
    wfi_net_lock(pass->agent->net);
    wfi_mutex_lock(&context->lock);
    size_t bytes = bytes_of_work(context), before = pass->work_bytes;
    bool alone = context->working_passes == (before ? 1 : 0);
    if (bytes > before)
        st = wfi_budget_admit_work(pass->agent, bytes - before, alone, problem, room);
    if (!st && bytes > before) {
        context->working_passes += !before;
        pass->work_bytes = bytes;
    }
    wfi_mutex_unlock(&context->lock);
    wfi_net_unlock(pass->agent->net);
    return st;
}

bool wfi_pass_work_grew(const wfi_dist_pass *pass)
{
    return bytes_of_work(pass->context) > pass->work_bytes;
}

void wfi_pass_trim_work(wfi_dist_pass *pass)
{
    size_t bytes = bytes_of_snapshot(pass->send_count, pass->recv_count) + wfi_engine_bytes(&pass->engine);
    if (bytes >= pass->work_bytes)
        return;
    wfi_net_lock(pass->agent->net);
    wfi_budget_release_work(pass->agent, pass->work_bytes - bytes);
    pass->work_bytes = bytes;
    wfi_net_unlock(pass->agent->net);
}

void wfi_pass_end_work(wfi_dist_pass *pass)
{
    if (!pass->work_bytes || !wfi_agent_enter_locked(pass->agent)) /* only the thread that runs the pass changes it */
        return;
    wfi_budget_release_work(pass->agent, pass->work_bytes);
    pass->context->working_passes--;
    pass->work_bytes = 0;
    wfi_agent_leave_locked(pass->agent);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

void wfi_pass_free_event(wfi_pass_event *event)
{
    weft_error_unref(event->error);
    if (!event->is_spare)
        free(event);
}

/*
 * If memory is out, returns the spare event, which ends the pass. NULL: the spare event is in use, so the pass ends
 * already. Without memory an event that might not end the pass is replaced: then the pass ends with WEFT_ERR_MEMORY.
 */
static wfi_pass_event *make_spare(wfi_dist_pass *pass, int *kind, weft_error **error)
{
    wfi_mutex_lock(&pass->lock);
    bool used = pass->spare.is_spare;
    pass->spare.is_spare = true;
    wfi_mutex_unlock(&pass->lock);
    if (used)
        return NULL;
    if (*kind != WFI_EVENT_END && *kind != WFI_EVENT_FAIL) {
        wfi_error_detail detail = {
            .code = WEFT_ERR_MEMORY, .function = "backward", .worker = wfi_agent_rank(pass->agent)};
        weft_error_unref(*error);
        *error = wfi_error_create(&detail, "out of memory");
        *kind = WFI_EVENT_END;
    }
    return &pass->spare;
}

/* A call has arrived at a pass that is over. */
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
    if (!event)
        event = make_spare(pass, &kind, &error);
    if (!event) {
        weft_error_unref(error);
        return;
    }
    event->kind = kind;
    event->rank = rank;
    event->error = error;
    wfi_pass_post(pass, event, runner);
}

/* ---- Hooks ------------------------------------------------------------------------------------------------------- */

/* An operation that a hook started; it may write to sums that the pass holds, and to the leaf, which the hooks hold. */
typedef struct hook_wait {
    wfi_dist_pass *pass; /* referenced */
    weft_hooks *hooks;   /* referenced */
} hook_wait;

static void hook_complete(weft_future *future, void *arg)
{
    const hook_wait *wait = arg;
    weft_agent *agent = wait->pass->agent;
    const weft_error *why = weft_future_error(future);
    int worker = why && weft_error_worker(why) >= 0 ? weft_error_worker(why) : wfi_agent_rank(agent);
    wfi_error_detail detail = {.code = weft_error_code(why), .function = "backward", .worker = worker};
    if (!wfi_agent_enter(agent))
        return;
    wfi_pass_post_failure(wait->pass, WFI_EVENT_HOOK, 0,
                          why ? wfi_error_create(&detail, "on rank %d (%s): what a hook had begun failed: %s",
                                                 wfi_agent_rank(agent), agent->options.name, weft_error_message(why))
                              : NULL,
                          WFI_RUN_LATER);
    wfi_agent_leave(agent);
}

static void free_hook_wait(void *arg)
{
    hook_wait *wait = arg;
    weft_hooks_unref(wait->hooks);
    wfi_dist_pass_unref(wait->pass);
    free(wait);
}

static bool follow_hook(wfi_dist_pass *pass, weft_future *future)
{
    hook_wait *wait = weft_future_done(future) ? NULL : wfi_calloc(1, sizeof *wait);
    if (!wait)
        return false;
    *wait = (hook_wait){wfi_dist_pass_ref(pass), weft_hooks_ref(pass->engine.hooks)};
    pass->calls++;
    pass->hooks++;
    if (weft_future_add_done_callback(future, hook_complete, wait, free_hook_wait) == WEFT_OK)
        return true;
    pass->calls--;
    pass->hooks--;
    return false;
}

void wfi_pass_follow_hooks(wfi_dist_pass *pass)
{
    wfi_pointers waits = pass->engine.waits;
    size_t left = 0;
    for (size_t i = 0; i < waits.count; i++) {
        weft_future *future = waits.items[i];
        if (follow_hook(pass, future))
            weft_future_unref(future);
        else
            waits.items[left++] = future;
    }
    pass->engine.waits = waits;
    pass->engine.waits.count = left;
    wfi_engine_await_hooks(
        &pass->engine); /* waits for complete ones, and for those that there is no memory to follow */
}

static void undo(wfi_pass_record *record, const weft_error *error)
{
    wfi_gradients_clear(&record->gradients);
    wfi_pass_observe_undone(wfi_container_of(record, wfi_dist_pass, record));
    record->ended_well = false;
    record->is_final = false;
    record->error = weft_error_ref((weft_error *)error);
}

bool wfi_pass_undo(weft_context *context, wfi_pass_record *record, const weft_error *error)
{
    if (!record->ended_well)
        return false;
    WFI_FOR_LIST (wfi_pass_record, other, &context->passes, link)
        if (record->is_final && other != record && other->root == record->root && other->is_final)
            undo(other, error);
    undo(record, error);
    return true;
}

/* ---- What errors say --------------------------------------------------------------------------------------------- */

const char *wfi_pass_who(const wfi_dist_pass *pass, int rank, char out[WFI_PASS_WHO_MAX])
{
    const char *name = weft_agent_name(pass->agent, rank);
    snprintf(out, WFI_PASS_WHO_MAX, "rank %d (%s)", rank, name ? name : "unknown");
    return out;
}

/* Appends to a text, as far as there is room. */
static void add_text(char *text, size_t room, const char *format, ...) WEFT_PRINTF(3, 4);
static void add_text(char *text, size_t room, const char *format, ...)
{
    size_t length = strlen(text);
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(text + length, room - length, format, args);
    va_end(args);
}

/* Names the first send to `rank` that is not answered. */
static void add_owed(const wfi_dist_pass *pass, int rank, char *text, size_t room)
{
    size_t i = 0;
    while (i < pass->send_count && (pass->sends[i].answered || pass->sends[i].send.to != rank))
        i++;
    if (i == pass->send_count)
        return;
    const wfi_node *made = pass->sends[i].send.node->inputs[0].node;
    if (made->leaf)
        add_text(text, room, "a leaf");
    else if (made->type->is_end)
        add_text(text, room, "what came from another worker");
    else
        add_text(text, room, "what operator %s made", made->type->name);
    if (pass->peers[rank].owed > 1)
        add_text(text, room, ", and %zu more", pass->peers[rank].owed - 1);
}

/* Names the workers that the pass waits for, three at most. Returns the first of them, or -1. */
static int add_awaited(const wfi_dist_pass *pass, char *text, size_t room)
{
    char who[WFI_PASS_WHO_MAX];
    int first = -1, count = 0;
    for (int rank = 0; pass->begun && rank < pass->agent->options.values.world_size; rank++) {
        const wfi_pass_peer *peer = &pass->peers[rank];
        if ((!peer->owed && !peer->calls) || !peer->wrote || count++ >= 3)
            continue;
        first = first < 0 ? rank : first;
        add_text(text, room, "; %s %s", wfi_pass_who(pass, rank, who),
                 peer->owed ? "owes the gradient of " : "has not ended its part");
        if (peer->owed)
            add_owed(pass, rank, text, room);
    }
    if (count > 3)
        add_text(text, room, "; and %d more workers", count - 3);
    return first;
}

/* Adds this worker's name, and the operator after which the pass stopped here. */
static void add_place(const wfi_dist_pass *pass, char *text, size_t room)
{
    const char *operator= pass->engine.last_operator;
    char who[WFI_PASS_WHO_MAX];
    add_text(text, room, "on %s", wfi_pass_who(pass, wfi_agent_rank(pass->agent), who));
    if (operator)
        add_text(text, room, ", behind operator %s", operator);
}

static weft_error *say_again(const weft_error *error, int worker, const char *text)
{
    int cause = weft_error_worker(error);
    wfi_error_detail detail = {.code = weft_error_code(error),
                               .remote_code = weft_error_remote_code(error),
                               .function = weft_error_function(error),
                               .worker = cause >= 0 ? cause : worker};
    return wfi_error_create(&detail, "%s", text);
}

weft_error *wfi_pass_located(const wfi_dist_pass *pass, weft_error *error)
{
    char text[WFI_ERROR_MESSAGE_MAX] = "";
    add_place(pass, text, sizeof text);
    add_text(text, sizeof text, ": %s", weft_error_message(error));
    int awaited = add_awaited(pass, text, sizeof text);
    weft_error *located = say_again(error, awaited >= 0 ? awaited : wfi_agent_rank(pass->agent), text);
    weft_error_unref(error);
    return located;
}

weft_error *wfi_pass_told(const wfi_dist_pass *pass, const weft_error *error)
{
    char text[WFI_ERROR_MESSAGE_MAX] = "";
    add_text(text, sizeof text, "%s; here, ", weft_error_message(error));
    add_place(pass, text, sizeof text);
    return say_again(error, -1, text);
}

weft_error *wfi_pass_named(const wfi_dist_pass *pass)
{
    const weft_error *error = pass->engine.error;
    int cause = weft_error_worker(error);
    wfi_error_detail detail = {.code = weft_error_code(error),
                               .function = "backward",
                               .worker = cause >= 0 ? cause : wfi_agent_rank(pass->agent)};
    return wfi_error_create(&detail, "on rank %d (%s): %s", wfi_agent_rank(pass->agent), pass->agent->options.name,
                            weft_error_message(error));
}

/* ---- The ends of others ------------------------------------------------------------------------------------------ */

static const char *name_of(const weft_context *context, int rank)
{
    const wfi_member *member = wfi_net_member(context->agent->net, rank);
    return member ? member->name : "unknown";
}

void wfi_passes_cancel(weft_context *context, weft_status why, const char *text)
{
    int opener = (int)context->id.rank;
    bool by_agent = why <= WEFT_ERR_CLOSED; /* this worker has ended, or leaves the job */
    wfi_error_detail detail = {
        .code = why, .function = "backward", .worker = by_agent ? wfi_agent_rank(context->agent) : opener};
    wfi_mutex_lock(&context->lock);
    WFI_FOR_LIST (wfi_dist_pass, pass, &context->passes, record.link) {
        weft_error *error =
            wfi_error_create(&detail, "%s; the context is of rank %d (%s)", text, opener, name_of(context, opener));
        wfi_pass_post_failure(pass, WFI_EVENT_END, 0, error, WFI_RUN_LOCKED);
    }
    wfi_mutex_unlock(&context->lock);
}

void wfi_passes_peer_gone(weft_context *context, int rank, weft_status why, const char *text)
{
    wfi_error_detail detail = {.code = why, .function = "backward", .worker = rank};
    const char *what = why == WEFT_ERR_PEER_LEFT ? "has left" : "is dead";
    wfi_mutex_lock(&context->lock);
    WFI_FOR_LIST (wfi_dist_pass, pass, &context->passes, record.link) {
        weft_error *error = wfi_error_create(&detail, "rank %d (%s) %s: %s", rank, name_of(context, rank), what, text);
        if (pass->record.root == rank)
            wfi_pass_undo(context, &pass->record, error); /* it is not known any longer whether it ended well */
        wfi_pass_post_failure(pass, WFI_EVENT_GONE, rank, error, WFI_RUN_LOCKED);
    }
    wfi_mutex_unlock(&context->lock);
}
