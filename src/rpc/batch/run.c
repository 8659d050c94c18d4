/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - runs a batch's handler, and answers its calls; see batch.h.
 *
 * Calls that have ended are left out. The rows of the others form the tensors for the handler, and its results are
 * cut into rows.
 */
#include "rpc/client/client.h"
#include "rpc/batch/batch.h"

#include "value/value.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* The tensor for the handler: the rows of the slab if possible, otherwise a new tensor. */
static weft_tensor *find_rows(weft_batch *batch, size_t index, const weft_tensor *first)
{
    weft_tensor *slab = batch->in_place ? batch->slabs[index] : NULL;
    if (slab && (int64_t)batch->count <= weft_tensor_size(slab, 0))
        return wfi_tensor_narrow(slab, 0, 0, (int64_t)batch->count, NULL);
    weft_shape shape = {first->shape.ndim + 1, {(int64_t)batch->count}};
    memcpy(shape.dims + 1, first->shape.dims, (size_t)first->shape.ndim * sizeof(shape.dims[0]));
    weft_tensor *rows = wfi_tensor_empty_on(weft_tensor_device(first), shape, first->dtype, NULL);
    batch->made_bytes += rows ? weft_tensor_nbytes(rows) : 0;
    return rows;
}

static weft_status fill_row(weft_batch *batch, size_t index, size_t row, const weft_tensor *from)
{
    const char *rows = wfi_tensor_address(batch->seen[index]);
    if (wfi_tensor_address(from) == rows + row * weft_tensor_nbytes(from))
        return WEFT_OK; /* it is in its row already, like the tensors of most calls */
    weft_tensor *place = wfi_tensor_select(batch->seen[index], 0, (int64_t)row, NULL);
    weft_status status = place ? weft_tensor_assign(place, from) : WEFT_ERR_MEMORY;
    batch->copied_bytes += status ? 0 : wfi_copied(weft_tensor_nbytes(from));
    weft_tensor_unref(place);
    return status;
}

static weft_status assemble(weft_batch *batch)
{
    weft_tensor *tensors[WEFT_MAX_SIGNATURE];
    size_t count = batch->batcher->tensor_count;
    for (size_t row = 0; row < batch->count; row++) {
        wfi_values_tensors(weft_values_args(batch->calls[row]->args), tensors, count);
        for (size_t i = 0; i < count; i++) {
            if (row == 0)
                batch->seen[i] = find_rows(batch, i, tensors[i]);
            weft_status status = batch->seen[i] ? fill_row(batch, i, row, tensors[i]) : WEFT_ERR_MEMORY;
            if (status)
                return status;
        }
    }
    return WEFT_OK;
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

/* Row `row` of a result, as a value of `type`; holds a reference if it is a tensor. */
static weft_value cut(weft_type type, weft_tensor *rows, size_t row)
{
    switch (type) {
    case WEFT_TYPE_I64:
        return weft_of_i64(weft_tensor_get_i64(rows, (int64_t)row));
    case WEFT_TYPE_F64:
        return weft_of_f64(weft_tensor_get_f64(rows, (int64_t)row));
    case WEFT_TYPE_BOOL:
        return weft_of_bool(weft_tensor_get_f64(rows, (int64_t)row) != 0);
    default:
        return weft_of_tensor(wfi_tensor_select(rows, 0, (int64_t)row, NULL));
    }
}

/* The number of results that were given before the first missing one. If a later one was given too, fails the call. */
static size_t count_given(const weft_batch *batch, weft_call *call)
{
    size_t count = 0, last = WEFT_MAX_SIGNATURE;
    while (count < WEFT_MAX_SIGNATURE && batch->given[count])
        count++;
    while (last > count && !batch->given[last - 1])
        last--;
    if (last > count)
        weft_call_fail(call, WEFT_ERR_STATE, "the handler gave result %zu and no result %zu", last - 1, count);
    return count;
}

static void give_row(weft_batch *batch, size_t row)
{
    const weft_type *gives = batch->batcher->function->gives;
    weft_value values[WEFT_MAX_SIGNATURE];
    weft_call *call = batch->calls[row];
    size_t count = count_given(batch, call);
    bool short_of_memory = false;
    if (call->error)
        return;
    for (size_t i = 0; i < count; i++) {
        values[i] = cut(gives[i], batch->given[i], row);
        short_of_memory |= values[i].type == WEFT_TYPE_TENSOR && !values[i].as.tensor;
    }
    if (short_of_memory)
        weft_call_fail(call, WEFT_ERR_MEMORY, "the results: no memory for row %zu of a batch", row);
    else if (count)
        weft_call_give(call, (weft_args){values, count});
    for (size_t i = 0; i < count; i++)
        if (values[i].type == WEFT_TYPE_TENSOR)
            weft_tensor_unref(values[i].as.tensor);
}

/* Results of weft_rpc_remote are copied if they are views: a view would keep the memory of all rows as long as the
 * reference exists. */
static void keep_copies(weft_batch *batch, weft_call *call)
{
    weft_args results = weft_values_args(call->results);
    size_t count = wfi_values_tensors(results, NULL, 0), made = 0;
    weft_tensor **tensors = malloc(count * sizeof(*tensors) + 1);
    if (tensors)
        wfi_values_tensors(results, tensors, count);
    for (; tensors && made < count; made++) {
        weft_tensor *result = tensors[made];
        bool is_view = wfi_storage_size(wfi_tensor_storage(result)) > weft_tensor_nbytes(result);
        tensors[made] = is_view ? wfi_tensor_clone(result, NULL) : weft_tensor_ref(result);
        if (!tensors[made])
            break;
        if (is_view)
            batch->copied_bytes += wfi_copied(weft_tensor_nbytes(result));
    }
    wfi_results_unpin(call); /* before they are replaced */
    if (tensors && made == count)
        wfi_values_replace_tensors(call->results, tensors);
    else
        weft_call_fail(call, WEFT_ERR_MEMORY, "the results: no memory for a copy that stays behind a reference");
    for (size_t i = 0; i < made; i++)
        weft_tensor_unref(tensors[i]);
    free(tensors);
}

static void take_tape_error(weft_batch *batch)
{
    weft_error *kept = batch->slot.error && !batch->error ? batch->slot.error(batch->slot.value) : NULL;
    if (!kept)
        return;
    const char *operator_name = weft_error_function(kept);
    weft_batch_fail(batch, weft_error_code(kept), "%s%s%s", operator_name, operator_name[0] ? ": " : "",
                    weft_error_message(kept));
    weft_error_unref(kept);
}

static void answer_all(weft_batch *batch, weft_status status)
{
    for (size_t i = 0; i < batch->count; i++) {
        weft_call *call = batch->calls[i];
        if (batch->error && !call->error)
            call->error = weft_error_ref(batch->error);
        if (!call->error && !status && !call->results && !call->object)
            give_row(batch, i);
        if (!call->error && !status && call->results && call->owned)
            keep_copies(batch, call);
        weft_values_unref(call->args); /* a row keeps all of them, until this caller has its answer */
        call->args = NULL;
        weft_call_finish(call, status);
    }
    batch->count = 0;
}

/* The handler's thread and the code that finishes the batch each have a hold. */
static void let_go_of(weft_batch *batch, int holds)
{
    weft_agent *agent = wfi_agent_ref(batch->agent);
    bool open = wfi_agent_enter_locked(agent);
    batch->holds -= holds;
    wfi_batch_free_if_ended(batch);
    if (open)
        wfi_agent_leave_locked(agent);
    wfi_agent_unref(agent);
}

/* [agent lock] */
static void note_copied(weft_batch *batch)
{
    batch->batcher->stats.copied_bytes += batch->copied_bytes;
    batch->agent->stats.bytes_copied += batch->copied_bytes;
    batch->copied_bytes = 0;
}

static void run_the_next(weft_batch *batch)
{
    wfi_batcher *batcher = batch->batcher;
    weft_agent *agent = batch->agent;
    if (!wfi_agent_enter_locked(agent))
        return;
    note_copied(batch);
    batcher->running--;
    wfi_batcher_pump(batcher);
    wfi_agent_leave_locked(agent);
}

static void finish_batch(weft_batch *batch, weft_status status, int holds)
{
    take_tape_error(batch);
    answer_all(batch, status);
    WFI_HANDLE_END(batch);
    run_the_next(batch);
    if (batch->slot.drop)
        batch->slot.drop(batch->slot.value);
    for (size_t i = 0; i < WEFT_MAX_SIGNATURE; i++) {
        weft_tensor_unref(batch->seen[i]);
        weft_tensor_unref(batch->given[i]);
    }
    weft_error_unref(batch->error);
    let_go_of(batch, holds);
}

void weft_batch_finish(weft_batch *batch, weft_status status)
{
    WFI_CHECK_HANDLE(batch);
    if (!batch)
        return;
    if (!batch->deferred)
        wfi_handle_refuse(
            batch, __func__,
            "a batch that was not deferred: the return of its handler finishes it; to finish it later, call "
            "weft_batch_defer in the handler and return WEFT_DEFERRED");
    finish_batch(batch, status, 1);
}

/* ---- Before the handler ------------------------------------------------------------------------------------------ */

/* Leaves out the calls that have ended; the last calls of the batch take their rows. */
static void leave_out_cancelled(weft_batch *batch)
{
    size_t row = 0;
    while (row < batch->count) {
        weft_call *call = batch->calls[row];
        weft_status why = wfi_serve_begin(call);
        if (!why) {
            row++;
            continue;
        }
        batch->calls[row] = batch->calls[--batch->count];
        call->error = wfi_call_error(call, why, "it did not run: its answer was no longer needed when its batch began");
        call->responder->respond(call);
    }
}

/* From here on the calls belong to the handler, like deferred ones. */
static void defer_calls(weft_batch *batch, size_t left_out, bool runs)
{
    wfi_batcher *batcher = batch->batcher;
    wfi_net_lock(batch->agent->net);
    for (size_t i = 0; i < batch->count; i++) {
        weft_call *call = batch->calls[i];
        atomic_store_explicit(&call->deferred, true, memory_order_relaxed);
        call->batch_returned = &batch->has_returned;
        if (call->stage == WFI_SERVE_SERVING && !call->cancelled)
            wfi_serve_interest(call, true);
        wfi_serve_drop_hold(call); /* the batch's; the user's remains */
    }
    batch->spare_bytes += batch->made_bytes; /* until the batch is over */
    batch->agent->held_bytes += batch->made_bytes;
    if (batch->count && runs)
        wfi_batch_count(batch, wfi_now(wfi_net_clock(batch->agent->net)));
    batcher->stats.left_out += left_out;
    note_copied(batch);
    wfi_net_unlock(batch->agent->net);
}

void wfi_batch_task(wfi_task *task)
{
    weft_batch *batch = wfi_container_of(task, weft_batch, task);
    const weft_function *function = batch->batcher->function;
    size_t before = batch->count;
    leave_out_cancelled(batch);
    weft_status status = assemble(batch);
    defer_calls(batch, before - batch->count, !status);
    if (status || !batch->count) {
        for (size_t i = 0; i < batch->count; i++)
            batch->calls[i]->error =
                wfi_call_error(batch->calls[i], status, "no memory for a batch of %zu", batch->count);
        finish_batch(batch, status, 2);
        return;
    }
    for (size_t i = 0; i < batch->count; i++) {
        wfi_observe_running(batch->agent, &batch->calls[i]->span);
        batch->calls[i]->ran = true;
    }
    status = function->run_batch(batch, function->user);
    if (batch->deferred) {
        if (status != WEFT_DEFERRED)
            wfi_agent_log(batch->agent, WEFT_LOG_WARN, 0,
                          "\"%s\" deferred a batch and returned %s: weft_batch_finish must still be called",
                          function->name, weft_status_name(status));
        wfi_net_lock(batch->agent->net);
        batch->has_returned = true; /* other threads may have finished the batch meanwhile */
        if (batch->agent->closing || batch->agent->stopped)
            wfi_local_complete_returned(batch->agent);
        wfi_net_unlock(batch->agent->net);
        let_go_of(batch, 1);
        return;
    }
    if (status == WEFT_DEFERRED)
        weft_batch_fail(batch, WEFT_ERR_STATE, "the handler returned WEFT_DEFERRED without weft_batch_defer");
    finish_batch(batch, status == WEFT_DEFERRED ? WEFT_ERR_STATE : status, 2);
}

size_t wfi_batches_refuse_queued(weft_agent *agent)
{
    size_t count = 0;
    for (wfi_task *task; (task = wfi_executor_withdraw(agent->executor, wfi_batch_task));) {
        weft_batch *batch = wfi_container_of(task, weft_batch, task);
        count += batch->count;
        for (size_t i = 0; i < batch->count; i++)
            wfi_serve_refuse_queued(batch->calls[i]);
        batch->batcher->running--;
        batch->holds = 0;
        wfi_batch_free_if_ended(batch);
    }
    wfi_batchers_pump(agent); /* batches that waited for the end of these may begin */
    return count;
}
