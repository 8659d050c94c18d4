/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.c - what the thread that runs a pass does. wfi_pass_run takes the queued events one by one (process_event),
 * then lets the engine run the nodes that are ready, and writes messages (advance). It repeats this until no events
 * are left, or the pass ends. The sections follow a pass: it joins, gets answers for its sends, runs hooks and
 * optimizers, and ends.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "dist/pass_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static void run_task(wfi_task *task);
static void drop_work(wfi_pass *pass);
static weft_error *end_pass(wfi_pass *pass, const weft_error *error);
static weft_status keep_leaf_gradient(void *arg, uint64_t leaf, weft_gradient *sum);
static void keep_recv_gradient(void *arg, wfi_node *node, weft_tensor *gradient);

wfi_pass *wfi_pass_create(weft_context *context, unsigned flags)
{
    weft_agent *agent = context->agent;
    wfi_pass *pass = wfi_calloc(1, sizeof(*pass));
    wfi_pass_peer *peers = pass ? wfi_calloc((size_t)agent->options.values.world_size, sizeof(*peers)) : NULL;
    if (!peers) {
        free(pass);
        return NULL;
    }
    atomic_init(&pass->refs, 1);
    pass->agent = wfi_agent_ref(agent);
    pass->context = wfi_context_ref(context);
    pass->context_id = context->id;
    pass->flags = flags;
    pass->peers = peers;
    pass->task.run = run_task;
    pass->task.urgency = WFI_URGENT; /* a pass releases what its forward pass holds, so it goes first */
    pass->engine = (wfi_engine){.retain = flags & WFI_PASS_RETAINS,
                                .ordered = !(flags & WFI_PASS_UNORDERED),
                                .give = keep_leaf_gradient,
                                .give_boundary = keep_recv_gradient,
                                .arg = pass};
    wfi_mutex_init(&pass->lock);
    wfi_mutex_bar_devices(&pass->lock);
    wfi_list_init(&pass->result.link);
    wfi_list_init(&pass->unnotified);
    wfi_list_init(&pass->events);
    wfi_map_init(&pass->recv_of);
    wfi_map_init(&pass->result.gradients);
    wfi_map_init(&pass->result.undone);
    atomic_fetch_add(&wfi_contexts_of(agent)->passes, 1);
    return pass;
}

void wfi_pass_discard(wfi_pass *pass)
{
    if (!pass)
        return;
    wfi_engine_fail(&pass->engine, WEFT_ERR_CANCELLED, "it never ran");
    drop_work(pass);
    if (pass->context)
        weft_error_unref(end_pass(pass, NULL));
    wfi_pass_unref(pass);
}

/* ---- Results of the engine --------------------------------------------------------------------------------------- */

/* The engine has the gradient of a leaf of this worker. */
static weft_status keep_leaf_gradient(void *arg, uint64_t leaf, weft_gradient *sum)
{
    wfi_pass *pass = arg;
    weft_gradient *kept = wfi_calloc(1, sizeof(*kept));
    if (!kept || wfi_map_put(&pass->result.gradients, leaf, kept)) {
        free(kept);
        wfi_gradient_clear(sum);
        return WEFT_ERR_MEMORY;
    }
    *kept = *sum;
    return WEFT_OK;
}

/* A gradient would have to go to `rank`, which has ended. */
static void fail_for_gone(wfi_pass *pass, int rank, weft_status why)
{
    wfi_error_detail detail = {.code = why, .function = "backward", .worker = rank};
    char who[WFI_PASS_WHO_MAX];
    if (!pass->engine.error)
        pass->engine.error =
            wfi_error_create(&detail, "the gradient of a tensor of %s cannot go there: it %s",
                             wfi_pass_who(pass, rank, who), why == WEFT_ERR_PEER_LEFT ? "has left" : "is dead");
}

/* The engine has the gradient of a tensor that another worker sent; NULL: there is none. Takes over the reference. */
static void keep_recv_gradient(void *arg, wfi_node *node, weft_tensor *gradient)
{
    wfi_pass *pass = arg;
    wfi_pass_recv *recv = wfi_map_get(&pass->recv_of, node->slot + 1);
    if (!recv) { /* it came after this pass began, so no node of the pass leads to it */
        weft_tensor_unref(gradient);
        return;
    }
    wfi_pass_peer *origin = &pass->peers[recv->pair.from];
    recv->state = gradient ? WFI_RECV_READY : origin->has_pending_list ? WFI_RECV_ABSENT : WFI_RECV_ANSWERED;
    recv->gradient = gradient;
    if (recv->state != WFI_RECV_ANSWERED) {
        *(origin->unsent ? &origin->last_unsent->next_unsent : &origin->unsent) = recv;
        origin->last_unsent = recv;
        ++*(gradient ? &origin->unsent_gradients : &origin->unsent_absent);
    }
    if (gradient && (origin->gone || origin->incarnation != recv->pair.incarnation))
        fail_for_gone(pass, recv->pair.from, origin->gone ? origin->gone : WEFT_ERR_PEER_DEAD);
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/*
 * Takes the context's lock. If another worker began the pass, charges its allocations first: they depend on the size of
 * the context, which may grow until the lock is taken. On failure the lock is not held.
 */
static weft_status lock_charged(wfi_pass *pass)
{
    char problem[WFI_ERROR_MESSAGE_MAX];
    for (;;) {
        weft_status status = pass->for_peer ? wfi_pass_charge_work(pass, problem, sizeof(problem)) : WEFT_OK;
        if (status) {
            wfi_engine_fail(&pass->engine, status, "backward: %s", problem);
            return status;
        }
        wfi_mutex_lock(&pass->context->lock);
        if (!pass->for_peer || !wfi_pass_work_grew(pass))
            return WEFT_OK;
        wfi_mutex_unlock(&pass->context->lock);
    }
}

/* Copies the context's present sends and recvs: the pass concerns no later ones. Nodes are referenced. */
static weft_status snapshot(wfi_pass *pass)
{
    weft_context *context = pass->context;
    weft_status status = lock_charged(pass);
    if (status)
        return status;
    if (!pass->engine.hooks)
        pass->engine.hooks = weft_hooks_ref(context->hooks);
    pass->sends = wfi_calloc(context->send_count, sizeof(*pass->sends));
    pass->recvs = wfi_calloc(context->recv_count, sizeof(*pass->recvs));
    bool whole = pass->sends && pass->recvs;
    for (size_t i = 0; whole && i < context->send_count; i++) {
        pass->sends[i] = (wfi_pass_send){.send = context->sends[i]};
        wfi_node_ref(context->sends[i].node);
    }
    pass->send_count = whole ? context->send_count : 0;
    for (size_t i = 0; whole && i < context->recv_count; i++) {
        pass->recvs[i] = (wfi_pass_recv){.pair = context->recvs[i]};
        wfi_node_ref(context->recvs[i].node);
    }
    pass->recv_count = whole ? context->recv_count : 0;
    wfi_mutex_unlock(&context->lock);
    return whole ? WEFT_OK : WEFT_ERR_MEMORY;
}

/* Makes the lists of sends and recvs of each peer, in their order. */
static void sort_by_peer(wfi_pass *pass)
{
    for (size_t i = pass->send_count; i-- > 0;) {
        wfi_pass_peer *peer = &pass->peers[pass->sends[i].send.to];
        pass->sends[i].next = peer->sends;
        peer->sends = &pass->sends[i];
    }
    for (size_t i = pass->recv_count; i-- > 0;) {
        wfi_pass_peer *peer = &pass->peers[pass->recvs[i].pair.from];
        pass->recvs[i].next = peer->recvs;
        peer->recvs = &pass->recvs[i];
    }
}

/* Marks the sends that the message answers by a gradient, or lists as pending. */
static void mark_listed(wfi_pass *pass, const wfi_pass_message *message)
{
    pass->marks++;
    for (size_t i = 0; i < message->pending_count + message->number_count; i++) {
        uint64_t number = i < message->pending_count ? wfi_pass_number(message->pending, i)
                                                     : wfi_pass_number(message->numbers, i - message->pending_count);
        if (number >= 1 && number <= pass->send_count)
            pass->sends[number - 1].mark = pass->marks;
    }
}

/* Waits for an answer to each send that may get one. `first`: the message of `rank` with its pending list, which rules
 * out some; or NULL. */
static void await_sends(wfi_pass *pass, int rank, const wfi_pass_message *first)
{
    if (first)
        mark_listed(pass, first);
    for (size_t i = 0; i < pass->send_count; i++) {
        wfi_pass_send *send = &pass->sends[i];
        wfi_pass_peer *peer = &pass->peers[send->send.to];
        send->answered = peer->gone || peer->incarnation != send->send.incarnation ||
                         (first && send->send.to == rank && send->mark != pass->marks);
        if (send->answered)
            continue;
        peer->awaited++;
        pass->awaited++;
        wfi_engine_await(&pass->engine, send->send.node);
    }
}

static void drop_snapshot(wfi_pass *pass)
{
    for (size_t i = 0; i < pass->send_count; i++)
        wfi_node_unref(pass->sends[i].send.node);
    for (size_t i = 0; i < pass->recv_count; i++) {
        wfi_node_unref(pass->recvs[i].pair.node);
        weft_tensor_unref(pass->recvs[i].gradient);
    }
    free(pass->sends);
    free(pass->recvs);
    pass->sends = NULL;
    pass->recvs = NULL;
    pass->send_count = pass->recv_count = 0;
    for (int rank = 0; rank < pass->agent->options.values.world_size; rank++) {
        pass->peers[rank].sends = NULL;
        pass->peers[rank].recvs = pass->peers[rank].unsent = NULL;
    }
}

/* After snapshot(): awaits the answers, and starts the engine. `first`: the message of `rank` by which this worker
 * joins; NULL: it is the root. */
static weft_status start_engine(wfi_pass *pass, int rank, const wfi_pass_message *first)
{
    weft_status status = WEFT_OK;
    pass->begun = true;
    wfi_pass_observe_begin(pass);
    if (first)
        status = wfi_pass_copy_step_names(pass, first->step_names, first->step_size);
    if (status)
        return status;
    weft_agent *agent = pass->agent;
    wfi_net_lock(agent->net);
    for (int peer = 0; peer < agent->options.values.world_size; peer++) {
        const wfi_member *member = wfi_net_member(agent->net, peer);
        pass->peers[peer].incarnation = member ? member->incarnation : 0;
        if (peer != wfi_agent_rank(agent))
            pass->peers[peer].gone = wfi_agent_peer_status(agent, peer);
    }
    wfi_net_unlock(agent->net);
    for (size_t i = 0; i < pass->recv_count && !status; i++)
        status = wfi_map_put(&pass->recv_of, pass->recvs[i].pair.node->slot + 1, &pass->recvs[i]);
    if (status)
        return status;
    sort_by_peer(pass);
    await_sends(pass, rank, first && first->head.flags & WFI_PASS_LISTS_PENDING ? first : NULL);
    wfi_engine_begin(&pass->engine);
    for (size_t i = 0; i < pass->recv_count; i++)
        if (!wfi_engine_meets(&pass->engine, pass->recvs[i].pair.node))
            pass->recvs[i].state = WFI_RECV_ANSWERED; /* no node of this pass uses it: it is not in the pending list */
    wfi_pass_trim_work(pass);
    return WEFT_OK;
}

/* ---- Answers for sends ------------------------------------------------------------------------------------------- */

/* `gradient`: borrowed; NULL: none. */
static void answer_send(wfi_pass *pass, wfi_pass_send *send, weft_tensor *gradient)
{
    send->answered = true;
    pass->peers[send->send.to].awaited--;
    pass->awaited--;
    wfi_engine_answer(&pass->engine, send->send.node, weft_tensor_ref(gradient));
}

/* The send of that number, if it went to `rank` and is not answered. */
static wfi_pass_send *pending_send(const wfi_pass *pass, int rank, uint64_t number)
{
    wfi_pass_send *send = number >= 1 && number <= pass->send_count ? &pass->sends[number - 1] : NULL;
    return send && send->send.to == rank && !send->answered ? send : NULL;
}

/* Checks the message of `rank` before it is processed. Returns its fault, or NULL. */
static weft_error *fault_of(wfi_pass *pass, int rank, const wfi_pass_message *message)
{
    pass->marks++;
    for (size_t i = 0; i < message->number_count; i++) {
        uint64_t number = wfi_pass_number(message->numbers, i);
        wfi_pass_send *send = pending_send(pass, rank, number);
        const weft_tensor *gradient = message->gradients.items[i];
        if (!send)
            return weft_error_create(WEFT_ERR_INVALID, "rank %d has no gradient to give for number %llu", rank,
                                     (unsigned long long)number);
        const wfi_result *sent = &send->send.node->results[0];
        if (gradient->dtype != sent->dtype || !wfi_shape_equal(&gradient->shape, &sent->shape))
            return weft_error_create(WEFT_ERR_SHAPE,
                                     "the gradient of rank %d for number %llu is not of the shape of what was sent",
                                     rank, (unsigned long long)number);
        if (send->mark == pass->marks)
            return weft_error_create(WEFT_ERR_INVALID, "rank %d gives number %llu twice", rank,
                                     (unsigned long long)number);
        send->mark = pass->marks;
    }
    return NULL;
}

/* Takes the answers of `rank`. If the message has a pending list, sends that are not in it get no gradient. */
static void process_answers(wfi_pass *pass, int rank, const wfi_pass_message *message)
{
    for (size_t i = 0; i < message->number_count; i++)
        answer_send(pass, pending_send(pass, rank, wfi_pass_number(message->numbers, i)), message->gradients.items[i]);
    for (size_t i = 0; i < message->absent_count; i++) {
        wfi_pass_send *send = pending_send(pass, rank, wfi_pass_number(message->absent, i));
        if (send)
            answer_send(pass, send, NULL);
    }
    if (!(message->head.flags & WFI_PASS_LISTS_PENDING))
        return;
    mark_listed(pass, message);
    for (wfi_pass_send *send = pass->peers[rank].sends; send; send = send->next)
        if (!send->answered && send->mark != pass->marks)
            answer_send(pass, send, NULL);
}

/* ---- Hooks and optimizers ---------------------------------------------------------------------------------------- */

/* An operation that a hook started. It may write to sums, held by the pass, and to the leaf, held by the hooks. */
typedef struct hook_wait {
    wfi_pass *pass;    /* referenced */
    weft_hooks *hooks; /* referenced */
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
    wfi_pass_post_failure(wait->pass, WFI_PASS_EVENT_HOOK, 0,
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
    wfi_pass_unref(wait->pass);
    free(wait);
}

/* Counts the operation as a call of the pass, until it is complete. False: it is complete, or there is no memory. */
static bool follow_hook(wfi_pass *pass, weft_future *future)
{
    hook_wait *wait = weft_future_done(future) ? NULL : wfi_calloc(1, sizeof(*wait));
    if (!wait)
        return false;
    *wait = (hook_wait){wfi_pass_ref(pass), weft_hooks_ref(pass->engine.hooks)};
    pass->calls++;
    pass->hooks++;
    if (weft_future_add_done_callback(future, hook_complete, wait, free_hook_wait) == WEFT_OK)
        return true;
    pass->calls--;
    pass->hooks--;
    return false;
}

/* Waits for the operations that hooks have started, as the pass waits for its own calls. */
static void follow_hooks(wfi_pass *pass)
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
    wfi_engine_await_hooks(&pass->engine); /* blocks for those that are not followed */
}

static wfi_pass_step_fn *step_parts; /* of src/remote, which is above this folder; set before an agent is opened */

void wfi_pass_register_step(wfi_pass_step_fn *step)
{
    step_parts = step;
}

weft_status wfi_pass_copy_step_names(wfi_pass *pass, const void *names, size_t size)
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

/* The pass has ended well here: steps the optimizers that its messages name, if they are on this worker. */
static void step_optimizers(wfi_pass *pass)
{
    if (!pass->step_names)
        return;
    size_t stepped = 0;
    weft_error *error = NULL;
    uint64_t began_ns = wfi_pass_observe_now(pass);
    weft_status status =
        step_parts ? step_parts(pass->agent, pass->step_names, pass->step_size, &pass->result, &stepped, &error)
                   : WEFT_ERR_UNSUPPORTED;
    if (stepped)
        wfi_pass_observe_steps(pass, stepped, began_ns);
    if (status)
        wfi_engine_fail(&pass->engine, status, "the optimizer step at the end of the pass: %s",
                        error ? weft_error_message(error) : weft_status_text(status));
    weft_error_unref(error);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

static void drop_work(wfi_pass *pass)
{
    drop_snapshot(pass);
    wfi_map_fini(&pass->recv_of);
    wfi_map_init(&pass->recv_of);
    weft_hooks_unref(pass->engine.hooks);
    wfi_engine_end(&pass->engine);
    pass->engine = (wfi_engine){0};
    for (size_t i = 0; i < pass->futures.count; i++)
        weft_future_unref(pass->futures.items[i]);
    free(pass->futures.items);
    free(pass->unanswered.items);
    pass->futures = pass->unanswered = (wfi_pointers){0};
    if (pass->gradient_bytes) /* only the thread that runs the pass adds to it */
        wfi_pass_release_gradients(pass);
    wfi_pass_release_work(pass);
}

/* Whether the event makes a pass fail that has ended well here. */
static bool is_failure(const wfi_pass *pass, const wfi_pass_event *event)
{
    return event->kind == WFI_PASS_EVENT_FAIL || event->kind == WFI_PASS_EVENT_END ||
           (event->kind == WFI_PASS_EVENT_GONE && event->rank == pass->result.root);
}

/*
 * Ends the pass, well (`error` NULL) or not: from now on no event is added. A failure that is still queued counts, so
 * that no worker learns that the pass ended well. Returns the failure of the pass, with a reference.
 */
static weft_error *end_pass(wfi_pass *pass, const weft_error *error)
{
    weft_context *context = pass->context;
    wfi_map dropped;
    wfi_map_init(&dropped);
    wfi_mutex_lock(&context->lock);
    wfi_mutex_lock(&pass->lock);
    pass->over = true;
    if (!error && !pass->result.error)
        WFI_FOR_LIST (wfi_pass_event, event, &pass->events, link)
            error = !error && is_failure(pass, event) ? event->error : error;
    wfi_mutex_unlock(&pass->lock);
    if (error) {
        weft_error_unref(pass->result.error);
        pass->result.error = weft_error_ref(error);
    }
    weft_error *failure = weft_error_ref(pass->result.error);
    weft_status status = weft_error_code(failure);
    pass->result.ended_well = !failure;
    if (pass->future)
        wfi_context_mark_own_final(context);
    if (failure && !pass->hooks) { /* otherwise hooks may still write to them, and they are freed with the pass */
        dropped = pass->result.gradients;
        wfi_map_init(&pass->result.gradients);
    }
    wfi_mutex_unlock(&context->lock);
    wfi_gradients_clear(&dropped);
    wfi_pass_observe_end(pass, status);
    atomic_fetch_sub(&wfi_contexts_of(pass->agent)->passes, 1);
    if (pass->future && wfi_agent_enter_locked(pass->agent)) {
        wfi_net_timer_clear(pass->agent->net, &pass->timer);
        wfi_agent_leave_locked(pass->agent);
    }
    pass->context = NULL;
    wfi_context_unref(context);
    return failure;
}

/* Answers the calls of other workers, and the one by which this worker joined. */
static void answer_all(const wfi_pointers *unanswered, weft_call *joined_by, const weft_error *failure)
{
    for (size_t i = 0; i < unanswered->count + (joined_by != NULL); i++) {
        weft_call *call = i < unanswered->count ? unanswered->items[i] : joined_by;
        if (failure)
            wfi_pass_refuse(call, weft_error_ref(failure));
        else
            wfi_pass_answer_call(call, true);
    }
}

/* The pass has ended well here; it may still fail elsewhere. */
static void end_well(wfi_pass *pass)
{
    wfi_pointers unanswered = pass->unanswered;
    pass->unanswered = (wfi_pointers){0};
    drop_work(pass);
    weft_error *failure = end_pass(pass, NULL);
    answer_all(&unanswered, pass->joined_by, failure);
    free(unanswered.items);
    if (pass->future)
        wfi_complete_future(pass->future, NULL, failure);
    weft_error_unref(failure);
}

/* The pass has failed. Takes over the error. */
static void fail(wfi_pass *pass, weft_error *error)
{
    wfi_pointers unanswered = pass->unanswered, futures = pass->futures;
    pass->unanswered = pass->futures = (wfi_pointers){0};
    weft_error *here =
        pass->reported && !pass->future ? wfi_pass_error_from_elsewhere(pass, error) : weft_error_ref(error);
    if (!pass->engine.error)
        pass->engine.error = weft_error_ref(error); /* drops its sums */
    wfi_engine_end_hooks(&pass->engine);
    follow_hooks(pass);
    drop_work(pass);
    weft_error_unref(end_pass(pass, here));
    weft_error_unref(here);
    for (size_t i = 0; i < futures.count; i++) {
        weft_status status = weft_future_cancel(futures.items[i]);
        (void)status; /* it may have been answered */
        weft_future_unref(futures.items[i]);
    }
    free(futures.items);
    answer_all(&unanswered, pass->joined_by, error);
    free(unanswered.items);
    wfi_pass_abort(pass, error);
    if (pass->future)
        wfi_complete_future(pass->future, NULL, error);
    weft_error_unref(error);
}

/* ---- Processing events ------------------------------------------------------------------------------------------- */

/* Joins by the message of `from`. *fault: the message is invalid, and the pass has not begun. */
static weft_status join(wfi_pass *pass, int from, const wfi_pass_message *message, weft_error **fault)
{
    weft_status status = snapshot(pass);
    if (!status)
        *fault = fault_of(pass, from, message);
    if (!status && !*fault)
        return start_engine(pass, from, message);
    drop_snapshot(pass);
    wfi_pass_release_work(pass);
    return status;
}

/* A call of "weft:pass" has arrived. */
static void process_call(wfi_pass *pass, weft_call *call)
{
    wfi_pass_message message;
    int from = call->from;
    if (!wfi_pass_read(call, &message)) {
        wfi_pass_refuse(call, weft_error_create(WEFT_ERR_PROTOCOL, "malformed message of a backward pass"));
        return;
    }
    if (!pass->begun)
        wfi_pass_observe_within(pass, call);
    weft_error *fault = NULL;
    weft_status status = pass->begun ? WEFT_OK : join(pass, from, &message, &fault);
    if (!status && !fault)
        fault = fault_of(pass, from, &message);
    if (fault) {
        wfi_pass_refuse(call, fault);
        return;
    }
    wfi_pass_observe_message(pass, WFI_PASS_RECEIVED, message.gradients);
    if (message.head.final) {
        wfi_mutex_lock(&pass->context->lock);
        wfi_context_mark_final(pass->context, pass->result.root, message.head.final);
        wfi_mutex_unlock(&pass->context->lock);
    }
    if (message.number_count)
        wfi_pass_charge_gradients(pass, call, message.gradients);
    if (!pass->joined_by && !pass->future)
        pass->joined_by = call;
    else if (!wfi_pointers_push(&pass->unanswered, call))
        wfi_pass_answer_call(call, false);
    pass->peers[from].received = true;
    pass->peers[from].wants_pending_list = pass->peers[from].wants_pending_list || message.head.flags & WFI_PASS_ASKS;
    if (!status)
        process_answers(pass, from, &message);
    else
        wfi_engine_fail(&pass->engine, status, "backward: %s", weft_status_text(status));
}

/* This worker's call to event->rank has ended. Returns its failure, or NULL. */
static weft_error *process_end_of_call(wfi_pass *pass, const wfi_pass_event *event)
{
    const wfi_pass_peer *peer = &pass->peers[event->rank];
    char who[WFI_PASS_WHO_MAX];
    pass->calls--;
    pass->peers[event->rank].calls--;
    if (!event->error && event->all_answered) /* there: the sends to it without an answer get no gradient */
        for (wfi_pass_send *send = peer->sends; send && peer->awaited; send = send->next)
            if (!send->answered)
                answer_send(pass, send, NULL);
    if (!event->error)
        return NULL;
    pass->reported = strcmp(weft_error_function(event->error), WFI_PASS_FUNCTION) != 0;
    if (pass->reported)
        return weft_error_ref(event->error);
    weft_status code = weft_error_code(event->error);
    if (code == WEFT_ERR_REMOTE) /* the function is weft's own: its failure fails the pass */
        code = wfi_error_remote_code(event->error);
    wfi_error_detail detail = {.code = code, .function = "backward", .worker = event->rank};
    return wfi_pass_error_here(pass, wfi_error_create(&detail, "the message of the backward pass to %s: %s",
                                                      wfi_pass_who(pass, event->rank, who),
                                                      weft_error_message(event->error)));
}

/* Processes an event. Returns the failure that it reports; NULL: none. */
static weft_error *process_event(wfi_pass *pass, wfi_pass_event *event)
{
    wfi_pass_peer *peer = &pass->peers[event->rank];
    switch (event->kind) {
    case WFI_PASS_EVENT_CALL:
        process_call(pass, event->call);
        return NULL;
    case WFI_PASS_EVENT_ANSWER:
        return process_end_of_call(pass, event);
    case WFI_PASS_EVENT_GONE: /* the pass fails if it needs that worker */
        peer->gone = weft_error_code(event->error);
        if (!peer->awaited && pass->result.root != event->rank &&
            !(pass->joined_by && pass->joined_by->from == event->rank))
            return NULL;
        return wfi_pass_error_here(pass, weft_error_ref(event->error));
    case WFI_PASS_EVENT_END:
        return wfi_pass_error_here(pass, weft_error_ref(event->error));
    case WFI_PASS_EVENT_FAIL:
        pass->reported = true;
        break;
    case WFI_PASS_EVENT_HOOK:
        pass->calls--;
        pass->hooks--;
        break;
    }
    return weft_error_ref(event->error);
}

/* Whether an event that ends the pass is queued. */
static bool end_is_queued(wfi_pass *pass)
{
    bool found = false;
    wfi_mutex_lock(&pass->lock);
    WFI_FOR_LIST (const wfi_pass_event, event, &pass->events, link)
        found = found || event->kind == WFI_PASS_EVENT_END || event->kind == WFI_PASS_EVENT_FAIL;
    wfi_mutex_unlock(&pass->lock);
    return found;
}

/* Whether nothing has failed, all sends are answered, and all of this worker's calls. */
static bool is_complete(const wfi_pass *pass)
{
    return !pass->engine.error && !pass->awaited && !pass->calls;
}

/* Sends the gradients that the engine has computed. If that was all, waits for the operations of hooks, and steps the
 * optimizers. Failures are set in the engine. */
static void send_gradients(wfi_pass *pass)
{
    weft_status status = wfi_pass_write(pass);
    if (status)
        wfi_engine_fail(&pass->engine, status, "backward: %s", weft_status_text(status));
    if (is_complete(pass)) {
        wfi_engine_end_hooks(&pass->engine);
        follow_hooks(pass); /* counts them as calls */
    }
    if (is_complete(pass))
        wfi_engine_give_absent(&pass->engine);
    if (is_complete(pass))
        step_optimizers(pass);
}

/*
 * After the queued events, the first failure of which is `failure` (taken over; NULL: none): runs the nodes that are
 * ready, and sends their gradients. Returns true if the pass has ended: it has failed or is complete.
 */
static bool advance(wfi_pass *pass, weft_error *failure)
{
    if (!failure && !pass->begun && pass->future) { /* it is the root, which no message makes begin */
        weft_status status = snapshot(pass);
        if (!status)
            status = start_engine(pass, -1, NULL);
        if (status)
            wfi_engine_fail(&pass->engine, status, "backward: %s", weft_status_text(status));
    }
    if (!failure && !pass->begun && !pass->engine.error)
        return false; /* it has only got messages that were refused */
    if (!failure)
        wfi_engine_work(&pass->engine);
    if (!failure && !pass->engine.error && end_is_queued(pass))
        return false; /* it fails with the next event, so no message is needed */
    if (!failure && !pass->engine.error)
        send_gradients(pass);
    if (!failure && pass->engine.error)
        failure = wfi_pass_error_of_engine(pass);
    if (failure) {
        fail(pass, failure);
        return true;
    }
    if (is_complete(pass)) {
        end_well(pass);
        return true;
    }
    for (size_t i = 0; i < pass->unanswered.count; i++)
        wfi_pass_answer_call(pass->unanswered.items[i], false);
    pass->unanswered.count = 0;
    return false;
}

/*
 * The pass is over: answers the calls that are still queued. It also sends "weft:abort" for the failures that are
 * queued; end_pass has counted them for this worker's result.
 */
static void end_queued(wfi_pass *pass)
{
    for (wfi_list *link; (link = wfi_list_pop_front(&pass->events));) {
        wfi_pass_event *event = wfi_container_of(link, wfi_pass_event, link);
        if (is_failure(pass, event))
            wfi_pass_abort(pass, event->error);
        wfi_pass_answer_late(pass, event);
    }
}

/*
 * A pass of this root is over. If others of its passes run, sends which passes are final: until the other workers know,
 * they hold a set of gradients for each pass. Otherwise the messages of the next pass carry it.
 */
static void announce_final(wfi_pass *pass, weft_context *context)
{
    int me = wfi_agent_rank(pass->agent);
    bool more = false;
    wfi_mutex_lock(&context->lock);
    WFI_FOR_LIST (const wfi_pass_result, other, &context->passes, link)
        more = more || (other->root == me && !other->ended_well && !other->error);
    uint64_t number = more && pass->result.is_final ? wfi_context_last_final(context, me) : 0;
    wfi_mutex_unlock(&context->lock);
    if (number)
        wfi_pass_send_final(pass, number, -1);
}

void wfi_pass_run(wfi_pass *pass)
{
    weft_context *context = wfi_context_ref(pass->context); /* the end of the pass drops its own reference */
    for (;;) {
        weft_error *failure = NULL;
        wfi_mutex_lock(&pass->lock);
        wfi_list *link = wfi_list_pop_front(&pass->events);
        wfi_mutex_unlock(&pass->lock);
        while (link) {
            wfi_pass_event *event = wfi_container_of(link, wfi_pass_event, link);
            weft_error *error = process_event(pass, event);
            if (failure)
                weft_error_unref(error);
            else
                failure = error;
            wfi_pass_free_event(event);
            wfi_mutex_lock(&pass->lock);
            link = wfi_list_pop_front(&pass->events);
            wfi_mutex_unlock(&pass->lock);
        }
        if (advance(pass, failure))
            break;
        wfi_mutex_lock(&pass->lock);
        bool more = !wfi_list_empty(&pass->events);
        pass->running = more;
        wfi_mutex_unlock(&pass->lock);
        if (!more) {
            wfi_context_unref(context);
            return;
        }
    }
    end_queued(pass);
    if (pass->future)
        announce_final(pass, context);
    wfi_context_sum_final(context); /* of this root, and of others that announced it */
    wfi_context_unref(context);
}

static void run_task(wfi_task *task)
{
    wfi_pass *pass = wfi_container_of(task, wfi_pass, task);
    wfi_pass_run(pass);
    wfi_pass_unref(pass);
}
