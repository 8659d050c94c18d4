/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - an operation that has begun: its steps begin when they may, and the last one ends it. */
#include "coll/group.h"

#include "base/alloc.h"
#include "base/error.h"
#include "coll/carrier.h"
#include "tensor/combine.h"

#include <stdlib.h>
#include <string.h>

#define INLINE_BYTES 16384 /* combined or copied with the lock held: a few microseconds */

/* Data that is moved for a step: of a send, while the receiver may read it; or of a recv. */
typedef struct bulk {
    wfi_peer *peer; /* referenced, for a send: even a dead peer's exposures must be withdrawn */
    wfi_exposure exposure;
    wfi_registration *registration; /* the data are being registered, and are not exposed yet; otherwise NULL */
    wfi_transfer transfer;
    wfi_segment segment;
    wfi_operation *operation;
    wfi_step_id step;
    wfi_data data;
} bulk;

/* A step that computes for longer than the lock should be held. */
typedef struct computation {
    wfi_task task;
    wfi_operation *operation;
    wfi_step_id step;
} computation;

static void advance(wfi_operation *operation);
static void drop_carrying(wfi_operation *operation);

/* Whether no more steps may begin: the group is over, and wfi_run_fail has been called or will be. */
static bool is_over(const wfi_operation *operation)
{
    return operation->group->over && !operation->completes_locally;
}

static weft_agent *agent_of(const wfi_operation *operation)
{
    return operation->group->agent;
}

/* ---- Its end ----------------------------------------------------------------------------------------------------- */

void wfi_operation_free(wfi_operation *operation)
{
    wfi_schedule_fini(&operation->schedule);
    for (int i = 0; i < WFI_BUFFERS; i++)
        wfi_storage_unref(operation->memory[i].storage);
    weft_tensor_unref(operation->tensors[0]);
    weft_tensor_unref(operation->tensors[1]);
    weft_values_unref(operation->values);
    weft_error_unref(operation->failure);
    weft_future_unref(operation->future);
    if (operation->free_own)
        operation->free_own(operation->own);
    if (operation->group)
        wfi_group_unref(operation->group);
    free(operation);
}

static weft_error *no_results(const wfi_operation *operation, weft_status status)
{
    int me = wfi_agent_rank(agent_of(operation));
    if (operation->failure)
        return weft_error_ref(operation->failure);
    return wfi_group_problem(operation->group, status, me, "rank %d: the results of %s: %s", me,
                             wfi_operation_names[operation->collective.kind], weft_status_text(status));
}

/* This member lacks the data that the others have: they must not continue without it. Not locked. */
static void end_group(const wfi_operation *operation, weft_status status)
{
    if (status == WEFT_ERR_TOO_LARGE) /* it is too large for all of them */
        return;
    weft_agent *agent = agent_of(operation);
    wfi_net_lock(agent->net);
    wfi_group_break(operation->group, no_results(operation, status), true);
    wfi_net_unlock(agent->net);
}

/* Without the lock. */
static void end_operation(wfi_task *task)
{
    wfi_operation *operation = wfi_container_of(task, wfi_operation, end);
    weft_agent *agent = wfi_agent_ref(agent_of(operation));
    weft_status status = WEFT_OK;
    if (operation->finish && !operation->failing)
        status = operation->finish(operation);
    if (status)
        end_group(operation, status);
    if (operation->finish && !operation->failing) {
        wfi_net_lock(agent->net);
        wfi_operation_count(operation, status != WEFT_OK);
        wfi_net_unlock(agent->net);
    }
    wfi_operation_observe_end(operation,
                              operation->failing ? weft_error_code(weft_future_error(operation->future)) : status);
    if (!weft_future_done(operation->future)) {
        weft_error *error = status ? no_results(operation, status) : NULL;
        wfi_complete_future(operation->future, operation->values, error);
        weft_error_unref(error);
    }
    wfi_operation_free(operation);
    wfi_net_lock(agent->net);
    wfi_groups_of(agent)->under_way--;
    wfi_net_unlock(agent->net);
    wfi_agent_unref(agent);
}

/* No step is in progress: it leaves the group, and completes. */
static void finish(wfi_operation *operation)
{
    weft_group *group = operation->group;
    wfi_groups *groups = wfi_groups_of(group->agent);
    wfi_missing_forget(operation);
    wfi_net_timer_clear(group->agent->net, &operation->timer);
    wfi_list_remove(&operation->link);
    (void)wfi_map_take(&groups->operations, operation->id);
    if (wfi_list_empty(&group->operations))
        wfi_group_depend(group, -1);
    if (operation->memory[WFI_OUTPUT].storage)
        wfi_storage_wrote(operation->memory[WFI_OUTPUT].storage);
    if (operation->failing || !operation->finish)
        wfi_operation_count(operation, operation->failing);
    if (operation->failing)
        wfi_complete_future(operation->future, NULL, group->over);
    else if (!operation->finish)
        wfi_complete_future(operation->future, operation->values, NULL);
    operation->end.run = end_operation;
    wfi_net_defer(group->agent->net, &operation->end, WFI_DEFER_RELEASE);
}

/* `is_acked`: the receiver has the data. */
static void end_send(wfi_step *step, bool is_acked)
{
    bulk *moved = step->bulk;
    step->bulk = NULL;
    wfi_peer_withdraw(moved->peer, &moved->exposure, 1, is_acked || wfi_peer_status(moved->peer) != WEFT_OK);
    wfi_peer_unref(moved->peer);
    free(moved);
}

static void drop_bulk(wfi_step *step)
{
    bulk *moved = step->bulk;
    if (moved && step->kind == WFI_STEP_RECV)
        wfi_transfer_cancel(&moved->transfer); /* its `done` frees it, at once or soon */
    else if (moved && !moved->registration)    /* otherwise send_registered frees it soon */
        end_send(step, false);
}

/* Returns whether all data are here, so that this member can compute the rest alone. */
static bool has_all(const wfi_operation *operation)
{
    const wfi_schedule *schedule = &operation->schedule;
    for (size_t i = 0; i < schedule->step_count; i++) {
        const wfi_step *step = &schedule->steps[i];
        const wfi_early *arrival = step->arrival;
        bool is_here = step->done || (step->kind == WFI_STEP_RECV && arrival && arrival->data.is_eager) ||
                       (step->kind == WFI_STEP_SHARE && wfi_share_has_all(operation, (wfi_step_id)i));
        bool is_apart = step->kind == WFI_STEP_COMBINE || step->kind == WFI_STEP_COPY || step->kind == WFI_STEP_DIVIDE;
        if (!is_here && !is_apart)
            return false;
    }
    return operation->begun && !operation->more;
}

void wfi_run_fail(wfi_operation *operation)
{
    if (operation->failing || operation->completes_locally)
        return;
    if (wfi_group_delivers(operation->group) && has_all(operation)) {
        operation->completes_locally = true;
        operation->busy++; /* so that only `advance` below ends it */
        wfi_share_finish(operation);
        operation->busy--;
        advance(operation);
        return;
    }
    operation->failing = true;
    operation->busy++;
    for (size_t i = 0; i < operation->schedule.step_count; i++) {
        wfi_step *step = &operation->schedule.steps[i];
        wfi_early *arrival = step->arrival;
        step->arrival = NULL;
        if (arrival)
            wfi_early_free(arrival);
        drop_bulk(step);
    }
    drop_carrying(operation);
    wfi_share_drop(operation);
    if (!--operation->busy)
        finish(operation);
}

/* ---- Steps that compute ------------------------------------------------------------------------------------------ */

static void compute(const wfi_operation *operation, const wfi_step *step)
{
    void *to = wfi_operation_address(operation, step->to);
    const void *a = wfi_operation_address(operation, step->a), *b = wfi_operation_address(operation, step->b);
    size_t count = step->size / operation->collective.element;
    if (step->kind == WFI_STEP_COMBINE)
        wfi_combine(operation->dtype, operation->how, to, a, b, count);
    else if (step->kind == WFI_STEP_DIVIDE)
        wfi_combine_divide(operation->dtype, to, count, operation->collective.members);
    else if (to != a)
        memcpy(to, a, step->size);
}

static void step_done(wfi_operation *operation, wfi_step_id id);

static void run_computation(wfi_task *task)
{
    computation *one = wfi_container_of(task, computation, task);
    wfi_operation *operation = one->operation;
    weft_agent *agent = agent_of(operation);
    compute(operation, &operation->schedule.steps[one->step]);
    wfi_net_lock(agent->net); /* the operation is busy, so it exists and its agent is open */
    operation->busy--;
    step_done(operation, one->step);
    advance(operation);
    wfi_net_unlock(agent->net);
    free(one);
}

static void begin_computation(wfi_operation *operation, wfi_step_id id)
{
    const wfi_step *step = &operation->schedule.steps[id];
    computation *one = step->size > INLINE_BYTES ? malloc(sizeof(*one)) : NULL;
    if (!one) { /* small, or no memory: done now */
        compute(operation, step);
        step_done(operation, id);
        return;
    }
    *one = (computation){.task.run = run_computation, .operation = operation, .step = id};
    operation->busy++;
    wfi_net_defer(agent_of(operation)->net, &one->task, WFI_DEFER_RELEASE);
}

/* On the executor. */
static void run_carrier(wfi_task *task)
{
    computation *one = wfi_container_of(task, computation, task);
    wfi_operation *operation = one->operation;
    weft_group *group = operation->group;
    weft_agent *agent = group->agent;
    wfi_net_lock(agent->net);
    bool over = is_over(operation); /* if so, the other members may not start it */
    wfi_carrier_enter(group->carrier);
    wfi_net_unlock(agent->net);
    wfi_executor_block_begin(); /* it waits for other members, whose own work may need this thread */
    weft_status status = over ? WEFT_ERR_CANCELLED : wfi_carrier_run(group->carrier, operation);
    wfi_executor_block_end();
    wfi_net_lock(agent->net);
    operation->busy--;
    operation->carrying = NULL;
    wfi_carrier_next(group->carrier, agent);
    if (status)
        wfi_group_break_for(group, status, wfi_agent_rank(agent), "rank %d: the carrier's %s: %s",
                            wfi_agent_rank(agent), wfi_operation_names[operation->collective.kind],
                            weft_status_text(status));
    else
        step_done(operation, one->step);
    advance(operation);
    wfi_net_unlock(agent->net);
    free(one);
}

/* The carrier's function has not been called for this operation, and will not be called. */
static void drop_carrying(wfi_operation *operation)
{
    wfi_task *task = operation->carrying;
    if (!task || !wfi_carrier_withdraw(operation->group->carrier, task))
        return;
    operation->carrying = NULL;
    operation->busy--;
    free(wfi_container_of(task, computation, task));
}

static void begin_carrying(wfi_operation *operation, wfi_step_id id)
{
    weft_group *group = operation->group;
    computation *one = malloc(sizeof(*one));
    if (!one) {
        wfi_group_break_for(group, WEFT_ERR_MEMORY, wfi_agent_rank(group->agent),
                            "rank %d has no memory for the carrier's %s", wfi_agent_rank(group->agent),
                            wfi_operation_names[operation->collective.kind]);
        return;
    }
    *one = (computation){.task.run = run_carrier, .operation = operation, .step = id};
    operation->busy++;
    operation->carrying = &one->task;
    wfi_carrier_queue(group->carrier, group->agent, &one->task);
}

/* ---- Sends ------------------------------------------------------------------------------------------------------- */

/* `transfer`: the one that failed, or NULL. */
static void fail_for(wfi_operation *operation, weft_status status, size_t peer, const char *what,
                     const wfi_transfer *transfer)
{
    char why[384] = "";
    weft_group *group = operation->group;
    int rank = group->members[peer].rank, me = wfi_agent_rank(group->agent);
    /* The store tells the others of these. */
    bool tells = status != WEFT_ERR_EVICTED && status != WEFT_ERR_STORE_LOST && status != WEFT_ERR_JOB_ENDED;
    bool is_ours =
        status == WEFT_ERR_MEMORY || status == WEFT_ERR_SYSTEM || !tells || (transfer && transfer->is_bad_here);
    if (group->members[peer].peer)
        wfi_transfer_problem(transfer, group->members[peer].peer, status, why, sizeof(why));
    wfi_group_break(group,
                    wfi_group_problem(group, status, is_ours ? me : rank, "rank %d: %s rank %d: %s%s%s", me, what, rank,
                                      weft_status_text(status), *why ? ": " : "", why),
                    tells);
}

static void fail_for_protocol(wfi_operation *operation, size_t from, const char *what)
{
    weft_group *group = operation->group;
    wfi_group_break_for(group, WEFT_ERR_PROTOCOL, group->members[from].rank, "rank %d sent %s",
                        group->members[from].rank, what);
}

/* Counts a long message to a member that is not known to have begun the operation. Returns false if it would hold
 * too many bytes. */
static bool count_ahead(const wfi_operation *operation, wfi_group_member *member, size_t size)
{
    uint64_t *number = &member->spaces[operation->space].ahead_number;
    size_t *bytes = &member->spaces[operation->space].ahead_bytes;
    if (*number != operation->number) {
        *number = operation->number;
        *bytes = 0;
    }
    if (*bytes + size > WFI_GROUP_LONG_MOST)
        return false;
    *bytes += size;
    return true;
}

/*
 * Whether data of that size can be part of a message to that member; if not, the member is asked for what is lacking.
 */
static bool may_be_eager(const wfi_operation *operation, size_t to, size_t size)
{
    wfi_group_member *member = &operation->group->members[to];
    uint64_t begun = member->spaces[operation->space].begun;
    if (size <= WFI_GROUP_EAGER || size > WFI_GROUP_LONG || !member->peer)
        return size <= WFI_GROUP_EAGER;
    wfi_peer_ask_long(member->peer, WFI_LONG_MESSAGE_MAX);
    if (wfi_peer_message_max(member->peer) < WFI_GROUP_HEAD + size || operation->number > begun + WFI_GROUP_LONG_AHEAD)
        return false;
    return operation->number <= begun || count_ahead(operation, member, size);
}

static void free_send(wfi_step *step)
{
    bulk *moved = step->bulk;
    step->bulk = NULL;
    wfi_peer_unref(moved->peer);
    free(moved);
}

/* Exposes the data, which have been registered if they must be, and tells the receiver. */
static void expose_send(wfi_operation *operation, wfi_step *step)
{
    bulk *moved = step->bulk;
    size_t to = (size_t)step->peer;
    weft_status status = wfi_peer_expose(moved->peer, operation->memory[step->a.buffer].storage,
                                         (void *)moved->data.bytes, step->size, WFI_REMOTE_READ, &moved->exposure);
    if (status) {
        free_send(step);
        fail_for(operation, status, to, "a send to", NULL);
        return;
    }
    moved->data.remote = moved->exposure.remote;
    wfi_group_send_data(operation->group, to, &moved->data);
}

static void send_registered(wfi_registration *registration)
{
    bulk *moved = registration->owner;
    wfi_operation *operation = moved->operation;
    wfi_step *step = &operation->schedule.steps[moved->step];
    moved->registration = NULL;
    operation->busy--;
    if (operation->failing || is_over(operation))
        free_send(step);
    else
        expose_send(operation, step);
    advance(operation);
}

/* Exposes the data at once, or when another thread has registered them. */
static weft_status register_and_expose(wfi_operation *operation, wfi_step *step)
{
    bulk *moved = step->bulk;
    wfi_prepared prepared = {0};
    weft_status status = WEFT_OK;
    wfi_prepared_begin(&prepared, moved->peer);
    wfi_prepared_want(&prepared, operation->memory[step->a.buffer].storage, WFI_REMOTE_READ);
    if (wfi_prepared_take(&prepared)) {
        expose_send(operation, step);
        wfi_prepared_put(&prepared);
    } else {
        moved->registration = wfi_registration_start(moved->peer->transport, &prepared, send_registered, moved);
        status = moved->registration ? WEFT_OK : WEFT_ERR_MEMORY;
        operation->busy += !status;
    }
    wfi_prepared_fini(&prepared); /* the operation has references too */
    return status;
}

static void begin_send(wfi_operation *operation, wfi_step_id id)
{
    weft_group *group = operation->group;
    wfi_step *step = &operation->schedule.steps[id];
    size_t to = (size_t)step->peer;
    wfi_data data = {.space = operation->space,
                     .number = operation->number,
                     .signature = wfi_operation_signature(operation),
                     .slot = step->slot,
                     .token = id,
                     .is_eager = may_be_eager(operation, to, step->size),
                     .size = step->size,
                     .bytes = wfi_operation_address(operation, step->a)};
    if (data.is_eager) {
        wfi_group_send_data(group, to, &data);
        step_done(operation, id);
        return;
    }
    bulk *moved = wfi_calloc(1, sizeof(*moved));
    wfi_peer *peer = group->members[to].peer;
    weft_status status = !moved ? WEFT_ERR_MEMORY : !peer ? WEFT_ERR_PEER_DEAD : WEFT_OK;
    if (!status) {
        *moved = (bulk){.peer = wfi_peer_ref(peer), .operation = operation, .step = id, .data = data};
        step->bulk = moved;
        status = register_and_expose(operation, step);
    }
    if (status) {
        if (step->bulk)
            free_send(step);
        fail_for(operation, status, to, "a send to", NULL);
    }
}

void wfi_run_on_ack(wfi_operation *operation, size_t from, uint32_t token)
{
    wfi_step *step = token < operation->schedule.step_count ? &operation->schedule.steps[token] : NULL;
    if (is_over(operation))
        return;
    if (!step || step->kind != WFI_STEP_SEND || step->peer != (int)from) {
        fail_for_protocol(operation, from, "word that it took what was not sent to it");
        return;
    }
    bulk *moved = step->bulk;
    if (moved && moved->registration) {
        fail_for_protocol(operation, from, "word that it took what was not sent to it");
        return;
    }
    if (!moved)
        return; /* it was withdrawn, or the peer reports it a second time */
    end_send(step, true);
    step_done(operation, token);
    advance(operation);
}

/* ---- Recvs ------------------------------------------------------------------------------------------------------- */

/*
 * A member has withdrawn exposed data. As a rule its group is over, perhaps by a death of which this worker does not
 * know yet: its answer says so, or that it is not (receive.c). The step stays undone.
 */
static void ask_why(wfi_operation *operation, size_t from)
{
    operation->group->members[from].has_withdrawn = true;
    wfi_group_send_query(operation->group, from, operation->space, !operation->sends, operation->number);
}

static void pulled(wfi_transfer *transfer, weft_status status)
{
    bulk *moved = wfi_container_of(transfer, bulk, transfer);
    wfi_operation *operation = moved->operation;
    wfi_step *step = &operation->schedule.steps[moved->step];
    size_t from = (size_t)step->peer;
    step->bulk = NULL;
    operation->busy--;
    if (status == WEFT_ERR_PROTOCOL && !is_over(operation))
        ask_why(operation, from);
    else if (status && !operation->failing) /* else it was cancelled */
        fail_for(operation, status, from, "a transfer from", transfer);
    if (!status && !is_over(operation))
        wfi_group_send_ack(operation->group, from, &moved->data);
    if (!status)
        step_done(operation, moved->step);
    advance(operation);
    free(moved);
}

static const wfi_transfer_ops pull_ops = {.chunk = wfi_transfer_ignore_chunk, .done = pulled};

static void pull(wfi_operation *operation, wfi_step_id id, const wfi_data *data)
{
    wfi_step *step = &operation->schedule.steps[id];
    wfi_peer *peer = operation->group->members[step->peer].peer;
    bulk *moved = wfi_calloc(1, sizeof(*moved));
    weft_status status = !moved ? WEFT_ERR_MEMORY : !peer ? WEFT_ERR_PEER_DEAD : WEFT_OK;
    if (!status) {
        moved->operation = operation;
        moved->step = id;
        moved->data = *data;
        moved->segment = (wfi_segment){.local = wfi_operation_address(operation, step->to),
                                       .storage = operation->memory[step->to.buffer].storage,
                                       .size = data->size,
                                       .remote = data->remote};
        moved->transfer = (wfi_transfer){.kind = WFI_PULL,
                                         .segments = &moved->segment,
                                         .segment_count = 1,
                                         .bulk_generation = data->bulk_generation,
                                         .ops = &pull_ops};
        status = wfi_peer_transfer(peer, &moved->transfer);
    }
    if (status) {
        free(moved);
        fail_for(operation, status, (size_t)step->peer, "a transfer from", NULL);
        return;
    }
    step->bulk = moved;
    operation->busy++;
}

/* The data of a recv that has begun are here, or can be pulled. */
static void receive(wfi_operation *operation, wfi_step_id id, const wfi_data *data)
{
    wfi_step *step = &operation->schedule.steps[id];
    if (!data->is_eager) {
        pull(operation, id, data);
        return;
    }
    if (data->size)
        memcpy(wfi_operation_address(operation, step->to), data->bytes, data->size);
    step_done(operation, id);
}

void wfi_run_on_data(wfi_operation *operation, size_t from, const wfi_data *data)
{
    wfi_schedule *schedule = &operation->schedule;
    if (is_over(operation) || !wfi_operation_check(operation, from, &data->signature))
        return;
    wfi_step_id *first = &schedule->first_recv[from], id;
    while (*first != WFI_NO_STEP && schedule->steps[*first].done)
        *first = schedule->steps[*first].next;
    for (id = *first; id != WFI_NO_STEP && schedule->steps[id].slot != data->slot; id = schedule->steps[id].next) {}
    wfi_step *step = id == WFI_NO_STEP ? NULL : &schedule->steps[id];
    if (!step && operation->more && data->slot >= schedule->recvs[from]) {
        wfi_early_keep(operation->group, from, data); /* for a step that does not exist yet */
        return;
    }
    if (!step || step->arrival || step->bulk || step->done || step->size != data->size) {
        fail_for_protocol(operation, from, "a part that this operation does not have, or has already");
        return;
    }
    if (step->begun) {
        receive(operation, id, data);
        advance(operation);
        return;
    }
    step->arrival = wfi_early_make(from, data);
    if (!step->arrival)
        fail_for(operation, WEFT_ERR_MEMORY, from, "a message of", NULL);
}

static void begin_recv(wfi_operation *operation, wfi_step_id id)
{
    wfi_step *step = &operation->schedule.steps[id];
    wfi_early *arrival = step->arrival;
    step->arrival = NULL;
    if (!arrival)
        return;
    receive(operation, id, &arrival->data);
    wfi_early_free(arrival);
}

/* ---- All steps --------------------------------------------------------------------------------------------------- */

static void make_ready(wfi_operation *operation, wfi_step_id id)
{
    wfi_step *steps = operation->schedule.steps;
    steps[id].ready = WFI_NO_STEP;
    if (operation->ready == WFI_NO_STEP)
        operation->ready = id;
    else
        steps[operation->last_ready].ready = id;
    operation->last_ready = id;
}

static void step_done(wfi_operation *operation, wfi_step_id id)
{
    wfi_schedule *schedule = &operation->schedule;
    schedule->steps[id].done = true;
    operation->left--;
    for (uint32_t at = schedule->steps[id].edges; at != WFI_NO_STEP; at = schedule->edges[at].next)
        if (!--schedule->steps[schedule->edges[at].step].waits)
            make_ready(operation, schedule->edges[at].step);
}

/* Processes data that came before their step existed. */
static void take_early(wfi_operation *operation)
{
    for (wfi_early *early; !is_over(operation) && (early = wfi_early_take(operation));) {
        wfi_run_on_data(operation, early->from, &early->data);
        wfi_early_free(early);
    }
}

/* All its steps are done: adds further steps, if there are any, and processes early data for them. */
static void add_more(wfi_operation *operation)
{
    wfi_schedule *schedule = &operation->schedule;
    weft_status (*more)(wfi_operation *) = operation->more;
    size_t had = schedule->step_count;
    operation->more = NULL;
    weft_status status = more(operation);
    if (status) { /* what has more to say has broken the group already */
        weft_group *group = operation->group;
        wfi_group_break_for(group, status, wfi_agent_rank(group->agent), "rank %d: %s: %s",
                            wfi_agent_rank(group->agent), wfi_operation_names[operation->collective.kind],
                            weft_status_text(status));
        return;
    }
    operation->left = schedule->step_count - had;
    for (size_t i = had; i < schedule->step_count; i++)
        if (!schedule->steps[i].waits)
            make_ready(operation, (wfi_step_id)i);
    take_early(operation);
}

/* A step was done in shared memory; or the operation has failed. */
static void shared(wfi_operation *operation, wfi_step_id id)
{
    step_done(operation, id);
    advance(operation);
}

static void begin_steps(wfi_operation *operation)
{
    while (operation->ready != WFI_NO_STEP && !is_over(operation)) {
        wfi_step_id id = operation->ready;
        wfi_step *step = &operation->schedule.steps[id];
        operation->ready = step->ready;
        step->begun = true;
        if (step->kind == WFI_STEP_SEND)
            begin_send(operation, id);
        else if (step->kind == WFI_STEP_RECV)
            begin_recv(operation, id);
        else if (step->kind == WFI_STEP_CARRY)
            begin_carrying(operation, id);
        else if (step->kind == WFI_STEP_SHARE)
            wfi_share_begin(operation, id);
        else
            begin_computation(operation, id);
    }
}

/* Begins the steps that may begin, and ends the operation after the last step. */
static void advance(wfi_operation *operation)
{
    operation->busy++; /* so that it does not end during this function */
    begin_steps(operation);
    if (!operation->left && operation->more && !is_over(operation)) {
        add_more(operation);
        begin_steps(operation);
    }
    operation->busy--;
    if (!operation->busy && (operation->failing || (!operation->left && !is_over(operation))))
        finish(operation);
}

void wfi_run_begin(wfi_operation *operation)
{
    wfi_schedule *schedule = &operation->schedule;
    operation->begun = true;
    wfi_share_enter(operation, shared);
    for (size_t i = 0; i < schedule->step_count; i++)
        if (!schedule->steps[i].waits)
            make_ready(operation, (wfi_step_id)i);
    operation->busy++;
    take_early(operation);
    operation->busy--;
    advance(operation);
}

void wfi_run_resume(wfi_operation *operation)
{
    bool was_over = operation->group->over != NULL;
    operation->begun = true;
    operation->schedule.steps[0].begun = true;
    operation->busy++; /* so that only `advance` below ends it */
    wfi_share_resume(operation, shared);
    operation->busy--;
    if (was_over)
        wfi_run_fail(operation);
    else
        advance(operation);
}
