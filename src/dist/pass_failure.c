/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_failure.c - a pass that fails. It has the texts of its errors, the gradients that it drops, "weft:abort",
 * and the events of passes whose context or peer has ended. pass_calls.c has the failures that other workers
 * report.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "dist/pass_impl.h"
#include "rpc/client/client.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- Texts of errors --------------------------------------------------------------------------------------------- */

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
static void add_awaited_tensor(const wfi_pass *pass, int rank, char *text, size_t room)
{
    size_t i = 0;
    while (i < pass->send_count && (pass->sends[i].answered || pass->sends[i].send.to != rank))
        i++;
    if (i == pass->send_count)
        return;
    const wfi_node *made = pass->sends[i].send.node->inputs[0].node;
    if (made->leaf)
        add_text(text, room, "a leaf");
    else if (made->type->is_boundary)
        add_text(text, room, "what came from another worker");
    else
        add_text(text, room, "what operator %s made", made->type->name);
    if (pass->peers[rank].awaited > 1)
        add_text(text, room, ", and %zu more", pass->peers[rank].awaited - 1);
}

/* Names the workers that the pass waits for, three at most. Returns the first of them, or -1. */
static int add_awaited_workers(const wfi_pass *pass, char *text, size_t room)
{
    char who[WFI_PASS_WHO_MAX];
    int first = -1, count = 0;
    for (int rank = 0; pass->begun && rank < pass->agent->options.values.world_size; rank++) {
        const wfi_pass_peer *peer = &pass->peers[rank];
        if ((!peer->awaited && !peer->calls) || !peer->sent || count++ >= 3)
            continue;
        first = first < 0 ? rank : first;
        add_text(text, room, "; %s %s", wfi_pass_who(pass, rank, who),
                 peer->awaited ? "owes the gradient of " : "has not ended its part");
        if (peer->awaited)
            add_awaited_tensor(pass, rank, text, room);
    }
    if (count > 3)
        add_text(text, room, "; and %d more workers", count - 3);
    return first;
}

/* Adds this worker's name, and the operator after which the pass stopped here. */
static void add_place(const wfi_pass *pass, char *text, size_t room)
{
    const char *operator= pass->engine.last_operator;
    char who[WFI_PASS_WHO_MAX];
    add_text(text, room, "on %s", wfi_pass_who(pass, wfi_agent_rank(pass->agent), who));
    if (operator)
        add_text(text, room, ", behind operator %s", operator);
}

/* The error with another text. `worker`: the one at fault, if the error names none. */
static weft_error *copy_error(const weft_error *error, int worker, const char *text)
{
    int cause = weft_error_worker(error);
    wfi_error_detail detail = {.code = weft_error_code(error),
                               .remote_code = wfi_error_remote_code(error),
                               .function = weft_error_function(error),
                               .worker = cause >= 0 ? cause : worker};
    return wfi_error_create(&detail, "%s", text);
}

weft_error *wfi_pass_error_here(const wfi_pass *pass, weft_error *error)
{
    char text[WFI_ERROR_MESSAGE_MAX] = "";
    add_place(pass, text, sizeof(text));
    add_text(text, sizeof(text), ": %s", weft_error_message(error));
    int awaited = add_awaited_workers(pass, text, sizeof(text));
    weft_error *located = copy_error(error, awaited >= 0 ? awaited : wfi_agent_rank(pass->agent), text);
    weft_error_unref(error);
    return located;
}

weft_error *wfi_pass_error_from_elsewhere(const wfi_pass *pass, const weft_error *error)
{
    char text[WFI_ERROR_MESSAGE_MAX] = "";
    add_text(text, sizeof(text), "%s; here, ", weft_error_message(error));
    add_place(pass, text, sizeof(text));
    return copy_error(error, -1, text);
}

weft_error *wfi_pass_error_of_engine(const wfi_pass *pass)
{
    const weft_error *error = pass->engine.error;
    int cause = weft_error_worker(error);
    wfi_error_detail detail = {.code = weft_error_code(error),
                               .function = "backward",
                               .worker = cause >= 0 ? cause : wfi_agent_rank(pass->agent)};
    return wfi_error_create(&detail, "on rank %d (%s): %s", wfi_agent_rank(pass->agent), pass->agent->options.name,
                            weft_error_message(error));
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

/* A pass that has ended well here has failed elsewhere. */
static void drop_sums(wfi_pass_result *result, const weft_error *error)
{
    result->undone = result->gradients; /* until then empty: it ends well once */
    wfi_map_init(&result->gradients);
    wfi_pass_observe_undone(wfi_container_of(result, wfi_pass, result));
    result->ended_well = false;
    result->is_final = false;
    result->error = weft_error_ref((weft_error *)error);
}

bool wfi_pass_undo(weft_context *context, wfi_pass_result *result, const weft_error *error)
{
    if (!result->ended_well)
        return false;
    WFI_FOR_LIST (wfi_pass_result, other, &context->passes, link)
        if (result->is_final && other != result && other->root == result->root && other->is_final)
            drop_sums(other, error);
    drop_sums(result, error);
    return true;
}

/* ---- "weft:abort" ------------------------------------------------------------------------------------------------ */

#define ABORT_AGAIN_MS 20

/* Memory is exhausted: has "weft:abort" sent to `rank` later. Not locked. */
static void abort_later(wfi_pass *pass, int rank)
{
    weft_agent *agent = pass->agent;
    wfi_mutex_lock(&pass->lock);
    pass->peers[rank].sent = true;
    wfi_mutex_unlock(&pass->lock);
    if (!wfi_agent_enter_locked(agent))
        return;
    wfi_contexts *all = wfi_contexts_of(agent);
    if (wfi_list_empty(&pass->unnotified) && !agent->stopped)
        wfi_list_push_back(&all->unnotified, &wfi_pass_ref(pass)->unnotified);
    /* If there is no memory for the timer, the next call of this function sets it. */
    (void)!wfi_net_timer_set(agent->net, &all->abort_timer, wfi_deadline(wfi_net_clock(agent->net), ABORT_AGAIN_MS));
    wfi_agent_leave_locked(agent);
}

static void run_abort_again(wfi_task *task)
{
    wfi_pass *pass = wfi_container_of(task, wfi_pass, abort_task);
    if (pass->result.error && wfi_agent_enter(pass->agent)) {
        wfi_pass_abort(pass, pass->result.error);
        wfi_agent_leave(pass->agent);
    }
    wfi_pass_unref(pass);
}

void wfi_passes_abort_again(wfi_timer *timer)
{
    wfi_contexts *all = wfi_container_of(timer, wfi_contexts, abort_timer);
    for (wfi_list *link; (link = wfi_list_pop_front(&all->unnotified));) {
        wfi_pass *pass = wfi_container_of(link, wfi_pass, unnotified);
        pass->abort_task.run = run_abort_again;
        wfi_net_defer(all->agent->net, &pass->abort_task, WFI_DEFER_WORKER); /* takes over the list's reference */
    }
}

void wfi_passes_drop_unnotified(wfi_contexts *all)
{
    for (wfi_list *link; (link = wfi_list_pop_front(&all->unnotified));)
        wfi_pass_unref(wfi_container_of(link, wfi_pass, unnotified));
}

/* For the callback of a call of "weft:abort". */
typedef struct abort_arg {
    wfi_pass *pass; /* referenced */
    int rank;
} abort_arg;

static void abort_answered(weft_future *future, void *arg)
{
    const abort_arg *abort = arg;
    const weft_error *error = weft_future_error(future);
    weft_status code = weft_error_code(error), there = wfi_error_remote_code(error);
    if (code == WEFT_ERR_BUSY || code == WEFT_ERR_MEMORY || (code == WEFT_ERR_REMOTE && there == WEFT_ERR_MEMORY))
        abort_later(abort->pass, abort->rank);
}

static void free_abort(void *arg)
{
    abort_arg *abort = arg;
    wfi_pass_unref(abort->pass);
    free(abort);
}

/* Starts a call of "weft:abort" to that worker. WEFT_ERR_MEMORY: the caller has to try again. */
static weft_status send_abort(wfi_pass *pass, int rank, const weft_error *error)
{
    uint8_t room[WFI_PASS_HEAD_BYTES];
    wfi_writer head;
    weft_future *future = NULL;
    weft_error *unsent = NULL;
    weft_worker to = {rank, pass->peers[rank].incarnation};
    abort_arg *abort = wfi_calloc(1, sizeof(*abort));
    if (!abort)
        return WEFT_ERR_MEMORY;
    *abort = (abort_arg){wfi_pass_ref(pass), rank};
    wfi_writer_init(&head, room, sizeof(room));
    wfi_pass_write_head(pass, pass->result.number, 0, 0, &head);
    const wfi_reserved_call call = {
        .function = "weft:abort",
        .arguments = WEFT_VALUES(weft_of_bytes(room, head.size), weft_of_i64(weft_error_code(error)),
                                 weft_of_i64(weft_error_worker(error)), weft_of_string(weft_error_message(error)))};
    weft_status status = wfi_rpc_start_reserved(pass->agent, weft_to_worker(to), &call, &future, &unsent);
    if (status)
        free_abort(abort);
    else
        status = weft_future_add_done_callback(future, abort_answered, abort, free_abort);
    weft_future_unref(future); /* the call continues */
    weft_error_unref(unsent);
    return status;
}

void wfi_pass_abort(wfi_pass *pass, const weft_error *error)
{
    for (int rank = 0; rank < pass->agent->options.values.world_size; rank++) {
        /* the thread that ran the pass may do this now, and so may one that serves an abort: so with the lock, once */
        wfi_mutex_lock(&pass->lock);
        bool takes_part = pass->peers[rank].sent || pass->peers[rank].received;
        pass->peers[rank].sent = pass->peers[rank].received = false;
        wfi_mutex_unlock(&pass->lock);
        if (takes_part && send_abort(pass, rank, error) == WEFT_ERR_MEMORY)
            abort_later(pass, rank); /* other failures: that worker has ended */
    }
}

/* ---- Workers and contexts that end ------------------------------------------------------------------------------- */

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
    WFI_FOR_LIST (wfi_pass, pass, &context->passes, result.link) {
        weft_error *error =
            wfi_error_create(&detail, "%s; the context is of rank %d (%s)", text, opener, name_of(context, opener));
        wfi_pass_post_failure(pass, WFI_PASS_EVENT_END, 0, error, WFI_RUN_LOCKED);
    }
    wfi_mutex_unlock(&context->lock);
}

void wfi_passes_peer_gone(weft_context *context, int rank, weft_status why, const char *text)
{
    wfi_error_detail detail = {.code = why, .function = "backward", .worker = rank};
    const char *what = why == WEFT_ERR_PEER_LEFT ? "has left" : "is dead";
    wfi_mutex_lock(&context->lock);
    WFI_FOR_LIST (wfi_pass, pass, &context->passes, result.link) {
        weft_error *error = wfi_error_create(&detail, "rank %d (%s) %s: %s", rank, name_of(context, rank), what, text);
        if (pass->result.root == rank)
            wfi_pass_undo(context, &pass->result, error); /* it is not known any longer whether it ended well */
        wfi_pass_post_failure(pass, WFI_PASS_EVENT_GONE, rank, error, WFI_RUN_LOCKED);
    }
    wfi_mutex_unlock(&context->lock);
}
