/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - accumulates gradients, and steps. A step first does all that may fail or wait. It clips the gradients
 * (clip), makes the state and the memory for new values (prepare_step), and checks rows on GPUs (check_rows). Then
 * step_parameters changes the parameters, one after the other on the CPU. On a GPU it collects them for launches of
 * many.
 */
#include "optim/optim.h"

#include "base/alloc.h"
#include "base/parker.h"
#include "base/text/log.h"
#include "base/text/refuse.h"
#include "mem/stream.h"
#include "tensor/cell.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Makes the sums that parameters with a gradient lack. If memory is out, those that were made stay. */
static weft_status make_sums(const weft_optimizer *optimizer, weft_tensors gradients)
{
    for (size_t i = 0; i < optimizer->count; i++) {
        const weft_tensor *p = optimizer->parameters[i];
        wfi_kept *kept = &optimizer->kept[i];
        if (gradients.items[i] && !kept->sum)
            kept->sum = wfi_tensor_empty_like(p, p->shape, p->dtype);
        if (gradients.items[i] && !kept->sum)
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

weft_status weft_optimizer_accumulate(weft_optimizer *optimizer, weft_tensors gradients)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer)
        return wfi_refuse_null("weft_optimizer_accumulate", "the optimizer");
    weft_status status = weft_optimizer_check(optimizer, gradients, NULL);
    if (status == WEFT_OK)
        status = make_sums(optimizer, gradients);
    for (size_t i = 0; status == WEFT_OK && i < gradients.count; i++) {
        wfi_kept *kept = &optimizer->kept[i];
        const weft_tensor *gradient = gradients.items[i];
        if (!gradient)
            continue;
        status = kept->is_summed ? wfi_add_into(gradient, kept->sum) : wfi_copy(gradient, kept->sum);
        kept->is_summed = kept->is_summed || status == WEFT_OK;
    }
    if (status == WEFT_OK)
        optimizer->accumulated++;
    return status;
}

size_t weft_optimizer_accumulated(const weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    return !optimizer ? 0 : optimizer->accumulated;
}

void weft_optimizer_zero(weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer)
        return;
    optimizer->accumulated = 0;
    for (size_t i = 0; i < optimizer->count; i++)
        optimizer->kept[i].is_summed = false; /* the next accumulation overwrites */
}

static bool is_on_gpu(const weft_tensor *parameter)
{
    return wfi_tensor_kind(parameter) == WFI_MEMORY_CUDA;
}

/* Whether the parameter's value is replaced if it has other references. */
static bool is_replaced(const weft_optimizer *optimizer, size_t i)
{
    weft_update update = wfi_optimizer_common(optimizer)->update;
    return update == WEFT_UPDATE_BESIDE || (update == WEFT_UPDATE_DEFAULT && optimizer->parameters[i]->cell);
}

/*
 * Before a step in place: waits until nobody reads the parameter. Before a step that replaces the value: reserves a
 * slab for the new value, unless nobody else holds the old one. WEFT_UPDATE_BESIDE takes a slab for each dense
 * step, so that no reader waits.
 */
static weft_status reserve_slab(const weft_optimizer *optimizer, size_t i, wfi_ready *ready, uint64_t deadline)
{
    weft_tensor *parameter = optimizer->parameters[i];
    bool always = wfi_optimizer_common(optimizer)->update == WEFT_UPDATE_BESIDE && ready->dense;
    if (is_replaced(optimizer, i))
        return always || wfi_cell_is_seen(parameter) ? wfi_cell_reserve(parameter, &ready->slab) : WEFT_OK;
    weft_tensor *now = wfi_tensor_read(parameter);
    bool unread = wfi_storage_wait_unread(now->storage, deadline);
    weft_tensor_unref(now);
    return unread ? WEFT_OK : WEFT_ERR_TIMEOUT;
}

/* Makes what the step needs: slots, slabs, and the collection of steps on a GPU. */
static weft_status prepare_step(weft_optimizer *optimizer, wfi_ready *ready)
{
    uint64_t deadline = wfi_deadline(wfi_park_clock(), wfi_optimizer_common(optimizer)->pin_timeout_ms);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++)
        if (!wfi_ready_is_none(&ready[i]))
            status = wfi_optimizer_make_slots(optimizer, i);
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++)
        if (!wfi_ready_is_none(&ready[i]))
            status = reserve_slab(optimizer, i, &ready[i], deadline);
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK && !optimizer->steps; i++)
        if (is_on_gpu(optimizer->parameters[i])) {
            optimizer->steps = wfi_steps_create();
            status = !optimizer->steps ? WEFT_ERR_MEMORY : WEFT_OK;
        }
    return status;
}

static void drop_slabs(wfi_ready *ready, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        weft_tensor_unref(ready[i].slab);
        ready[i].slab = NULL;
    }
}

typedef struct step_factor {
    double by;
    const double *scale; /* a further factor, in memory of the GPU; NULL: 1 */
} step_factor;

static wfi_write_how how_to_write(const weft_optimizer *optimizer, size_t i, const wfi_ready *gradient)
{
    return !is_replaced(optimizer, i) ? WFI_WRITE_IN_PLACE
           : !gradient->dense         ? WFI_WRITE_PART
           : gradient->slab           ? WFI_WRITE_BESIDE
                                      : WFI_WRITE_WHOLE;
}

/* Runs the step of the type, or on a GPU collects it. The write has begun. */
static weft_status run_step(const weft_optimizer *optimizer, size_t i, const wfi_ready *gradient, step_factor factor)
{
    const wfi_kept *kept = &optimizer->kept[i];
    const weft_optimizer_spec *spec = &optimizer->groups[kept->group].spec;
    const wfi_write *write = &gradient->write;
    bool sparse = !gradient->dense;
    double options[WEFT_OPTIMIZER_OPTIONS];
    wfi_optimizer_spec_get_options(spec, options);
    weft_optimizer_update update = {.from = sparse ? write->to : write->from,
                                    .to = write->to,
                                    .gradient = gradient->dense,
                                    .factor = spec->maximize ? -factor.by : factor.by,
                                    .lr = spec->lr,
                                    .options = options,
                                    .step = kept->steps + 1};
    memcpy(update.slots, kept->slots, sizeof(update.slots));
    const wfi_gpu_update on_gpu = {factor.scale, sparse ? &gradient->rows : NULL, optimizer->steps};
    if (weft_tensor_device(write->to).kind != WEFT_DEVICE_CPU)
        update.gpu = &on_gpu;
    if (sparse) {
        update.row_count = gradient->rows.count;
        update.row_size = gradient->rows.width;
        update.rows = gradient->rows.rows;
        update.row_values = gradient->rows.at;
    }
    weft_status status = optimizer->type->step(&update);
    return status > WEFT_OK ? WEFT_ERR_INVALID : status; /* the step of a user's type returned something else */
}

/* Ends the write of a step that was run, or queued, with this status. */
static void end_step(weft_optimizer *optimizer, size_t i, wfi_ready *gradient, weft_status status)
{
    wfi_cell_write_end(&gradient->write, status == WEFT_OK || gradient->write.to == gradient->write.from);
    if (status == WEFT_OK)
        optimizer->kept[i].steps++;
}

/* Logs the failure of a step. Returns `status`. */
static weft_status log_failure(const weft_optimizer *optimizer, size_t i, weft_status status)
{
    if (status != WEFT_OK)
        wfi_log(WEFT_LOG_WARN,
                "%s: the step of parameter %zu of %zu failed: %s; the parameters before it have been stepped",
                optimizer->type->name, i, optimizer->count, weft_status_text(status));
    return status;
}

/*
 * Steps one parameter. Memory may run out as late as here, if a thread began to read the parameter after prepare_step:
 * then the parameters before it have been stepped.
 */
static weft_status step_one(weft_optimizer *optimizer, size_t i, wfi_ready *gradient, step_factor factor)
{
    wfi_write_how how = how_to_write(optimizer, i, gradient);
    weft_status status = wfi_cell_write_begin(&gradient->write, optimizer->parameters[i], how, gradient->slab);
    gradient->slab = NULL;
    if (status != WEFT_OK)
        return status;
    status = run_step(optimizer, i, gradient, factor);
    if (status == WEFT_OK && is_on_gpu(optimizer->parameters[i]))
        status = wfi_steps_run(optimizer->steps);
    end_step(optimizer, i, gradient, status);
    return log_failure(optimizer, i, status);
}

/* ---- On a GPU: the steps are collected, for launches of many parameters ---- */

/* Queues the steps that are collected, of parameters before `end`. */
static weft_status queue_steps(weft_optimizer *optimizer, wfi_ready *ready, size_t end)
{
    weft_status status = wfi_steps_run(optimizer->steps);
    size_t count = 0;
    for (size_t i = 0; i < end; i++)
        if (ready[i].is_collected) {
            ready[i].is_collected = false;
            end_step(optimizer, i, &ready[i], status);
            count++;
        }
    if (status != WEFT_OK && count > 0)
        wfi_log(WEFT_LOG_WARN, "%s: queueing the steps of %zu parameters on a GPU failed: %s; some may be stepped",
                optimizer->type->name, count, weft_status_text(status));
    return status;
}

/* The parameter stays locked until the step is queued. If another thread uses it now, it is stepped by itself: a thread
 * that has locked parameters does not wait for others. */
static weft_status collect_step(weft_optimizer *optimizer, size_t i, wfi_ready *ready, step_factor factor)
{
    wfi_ready *gradient = &ready[i];
    wfi_write_how how = how_to_write(optimizer, i, gradient);
    weft_status status = wfi_cell_write_try(&gradient->write, optimizer->parameters[i], how, &gradient->slab);
    if (status == WEFT_ERR_TIMEOUT) {
        status = queue_steps(optimizer, ready, i);
        return status == WEFT_OK ? step_one(optimizer, i, gradient, factor) : status;
    }
    if (status != WEFT_OK)
        return status;
    status = run_step(optimizer, i, gradient, factor);
    gradient->is_collected = status == WEFT_OK;
    if (status != WEFT_OK)
        end_step(optimizer, i, gradient, status);
    return log_failure(optimizer, i, status);
}

/* Steps all parameters that have a gradient. */
static weft_status step_parameters(weft_optimizer *optimizer, wfi_ready *ready, step_factor factor)
{
    weft_status status = WEFT_OK, queued = WEFT_OK;
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++) {
        if (wfi_ready_is_none(&ready[i]))
            continue;
        if (is_on_gpu(optimizer->parameters[i])) {
            status = collect_step(optimizer, i, ready, factor);
            continue;
        }
        if (optimizer->steps) /* a step on the CPU may wait for a parameter */
            status = queue_steps(optimizer, ready, i);
        if (status == WEFT_OK)
            status = step_one(optimizer, i, &ready[i], factor);
    }
    if (optimizer->steps)
        queued = queue_steps(optimizer, ready, optimizer->count);
    return status == WEFT_OK ? queued : status;
}

/* Queues a check of the rows of gradients on GPUs. */
static weft_status check_rows(weft_optimizer *optimizer, const wfi_ready *ready)
{
    weft_status status = WEFT_OK;
    optimizer->round++;
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++) {
        const wfi_sparse_rows *rows = &ready[i].rows;
        if (!rows->order || rows->count == 0)
            continue;
        int64_t size = optimizer->parameters[i]->shape.dims[0], number = 0;
        weft_stream *stream = wfi_stream_now(weft_tensor_device(rows->ids).index);
        const wfi_check check = {.size = size, .error = wfi_optimizer_row_error, .gradient = (int64_t)i};
        wfi_checks *checks = wfi_checks_repeat(&optimizer->checks, stream, &check, optimizer->round, &number);
        if (!checks)
            return WEFT_ERR_MEMORY;
        status = wfi_sparse_rows_check(rows, size, checks->report, number);
        checks->mark = wfi_stream_mark_now(stream);
    }
    return status;
}

/*
 * Computes the norm of the gradients times factor->by, if an option needs it, and makes the factor clip them. On a GPU
 * no thread waits for the norm, except for error_if_nonfinite.
 */
static weft_status clip(weft_optimizer *optimizer, const wfi_ready *ready, step_factor *factor)
{
    const weft_optimizer_spec *how = wfi_optimizer_common(optimizer);
    double norm = 0;
    if (how->max_norm == 0 && !how->error_if_nonfinite)
        return WEFT_OK;
    weft_tensor *on_gpu = NULL;
    weft_status status = wfi_ready_clip(ready, optimizer->count, factor->by, how->max_norm, &on_gpu);
    if (status == WEFT_OK && !on_gpu)
        status = wfi_ready_norm(ready, optimizer->count, &norm);
    if (status != WEFT_OK)
        return status;
    weft_tensor_unref(optimizer->norm_on_gpu);
    optimizer->norm_on_gpu = on_gpu;
    optimizer->norm = factor->by * norm;
    if (how->error_if_nonfinite && !isfinite(weft_optimizer_norm(optimizer))) {
        wfi_log(WEFT_LOG_WARN, "no step: the norm of the gradients is %g, and error_if_nonfinite is set",
                weft_optimizer_norm(optimizer));
        return WEFT_ERR_INVALID;
    }
    if (how->max_norm > 0 && on_gpu)
        factor->scale = (const double *)wfi_tensor_address(on_gpu) + 1;
    else if (how->max_norm > 0)
        factor->by *= wfi_clip_factor(optimizer->norm, how->max_norm);
    return WEFT_OK;
}

/* A step with the gradients times `factor`. */
static weft_status try_step(weft_optimizer *optimizer, wfi_ready *ready, double factor)
{
    step_factor all = {factor, NULL};
    weft_status status = clip(optimizer, ready, &all);
    if (status == WEFT_OK)
        status = prepare_step(optimizer, ready);
    if (status == WEFT_OK)
        status = check_rows(optimizer, ready);
    return status == WEFT_OK ? step_parameters(optimizer, ready, all) : status;
}

/* The stream of a thread while it steps. A step runs on the stream that made the first gradient: so a loop on
 * one stream has no events. */
typedef struct step_stream {
    weft_stream *now, *before; /* one reference to `now`; NULL: the common one, or the CPU */
} step_stream;

static step_stream set_stream(const weft_tensor *gradient)
{
    weft_tensor *read = !gradient ? NULL : wfi_tensor_read(gradient);
    weft_stream *now = !read ? NULL : wfi_storage_writer(read->storage);
    weft_tensor_unref(read);
    return (step_stream){now, wfi_stream_set(now)};
}

static void restore_stream(step_stream stream)
{
    (void)wfi_stream_set(stream.before);
    weft_stream_unref(stream.now);
}

/* A fault that a GPU has found since the last call becomes the optimizer's error. */
static void collect_faults(weft_optimizer *optimizer)
{
    optimizer->error = wfi_checks_join(optimizer->error, wfi_checks_collect(&optimizer->checks));
}

static weft_status earlier_error(weft_optimizer *optimizer, const char *function)
{
    collect_faults(optimizer);
    if (optimizer->error)
        wfi_log(WEFT_LOG_WARN, "%s: no step: an earlier step failed: %s; weft_optimizer_wait clears the error",
                function, weft_error_message(optimizer->error));
    return weft_error_code(optimizer->error);
}

weft_status weft_optimizer_step(weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer)
        return wfi_refuse_null("weft_optimizer_step", "the optimizer");
    if (optimizer->accumulated == 0)
        return wfi_refuse(WEFT_ERR_STATE, "weft_optimizer_step: no gradients: call weft_optimizer_accumulate first");
    weft_status status = earlier_error(optimizer, "weft_optimizer_step");
    if (status != WEFT_OK)
        return status;
    wfi_ready *ready = wfi_calloc(optimizer->count, sizeof(*ready)); /* the sums, borrowed */
    if (!ready)
        return WEFT_ERR_MEMORY;
    const weft_tensor *first = NULL;
    for (size_t i = optimizer->count; i-- > 0;) {
        ready[i].dense = optimizer->kept[i].is_summed ? optimizer->kept[i].sum : NULL;
        first = ready[i].dense ? ready[i].dense : first;
    }
    step_stream stream = set_stream(first);
    status =
        try_step(optimizer, ready, wfi_optimizer_common(optimizer)->average ? 1.0 / (double)optimizer->accumulated : 1);
    drop_slabs(ready, optimizer->count);
    restore_stream(stream);
    free(ready);
    if (status == WEFT_OK)
        weft_optimizer_zero(optimizer);
    return status;
}

static weft_status apply(weft_optimizer *optimizer, weft_gradients gradients)
{
    wfi_ready *ready = NULL;
    size_t first = 0;
    while (first + 1 < gradients.count && !gradients.items[first].values)
        first++;
    step_stream stream = set_stream(gradients.items[first].values);
    weft_status status = wfi_ready_gradients(gradients, &ready);
    if (status == WEFT_OK) {
        status = try_step(optimizer, ready, 1);
        drop_slabs(ready, gradients.count);
    }
    restore_stream(stream);
    wfi_ready_drop(ready, gradients.count);
    return status;
}

weft_status weft_optimizer_apply(weft_optimizer *optimizer, weft_gradients gradients)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer)
        return wfi_refuse_null("weft_optimizer_apply", "the optimizer");
    weft_status status = earlier_error(optimizer, "weft_optimizer_apply");
    if (status == WEFT_OK)
        status = weft_optimizer_check_gradients(optimizer, gradients, NULL);
    return status != WEFT_OK ? status : apply(optimizer, gradients);
}

/* Waits for the stream that wrote a parameter on a GPU, unless it is the one waited for before. */
static weft_status wait_for(const weft_tensor *parameter, wfi_stream_mark *before)
{
    weft_tensor *now = wfi_tensor_read(parameter);
    weft_stream *writer = wfi_storage_writer(now->storage);
    weft_stream *stream = writer ? writer : wfi_stream_common(wfi_storage_device(now->storage));
    weft_status status = stream->id == before->id ? WEFT_OK : wfi_stream_wait(stream);
    *before = wfi_stream_mark_now(stream);
    weft_stream_unref(writer);
    weft_tensor_unref(now);
    return status;
}

weft_status weft_optimizer_wait(weft_optimizer *optimizer, weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer)
        return wfi_refuse_null_to(error, "weft_optimizer_wait", "the optimizer");
    wfi_stream_mark before = {.id = 0};
    for (size_t i = 0; i < optimizer->count; i++) {
        if (!is_on_gpu(optimizer->parameters[i]))
            continue;
        weft_status status = wait_for(optimizer->parameters[i], &before);
        if (status != WEFT_OK)
            return wfi_refuse_to(error, status, "waiting for the GPU: %s", weft_status_text(status));
    }
    collect_faults(optimizer);
    weft_error *found = optimizer->error;
    weft_status status = weft_error_code(found);
    optimizer->error = NULL;
    if (found)
        wfi_refuse_with(error, found);
    return status;
}

double weft_optimizer_norm(const weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer || !optimizer->norm_on_gpu)
        return !optimizer ? 0 : optimizer->norm;
    weft_tensor *here = wfi_tensor_to_device(optimizer->norm_on_gpu, (weft_device){WEFT_DEVICE_CPU, 0}, NULL);
    double norm = !here ? NAN : weft_tensor_get_f64(here, 0);
    weft_tensor_unref(here);
    return norm;
}
