/* SPDX-License-Identifier: Apache-2.0 */
/* step.c - sums of gradients, and steps: all that may fail or wait comes before the first parameter changes. */
#include "optim/optim.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text/log.h"
#include "base/text/refuse.h"
#include "mem/stream.h"
#include "tensor/cell.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where there is none yet; a call that fails for memory finds some there the next time. */
static weft_status make_sums(const weft_optimizer *optimizer, weft_tensors gradients)
{
    for (size_t i = 0; i < optimizer->count; i++) {
        const weft_tensor *p = optimizer->parameters[i];
        wfi_kept *kept = &optimizer->kept[i];
        if (gradients.items[i] != NULL && kept->sum == NULL)
            kept->sum = wfi_tensor_empty_like(p, p->shape, p->dtype);
        if (gradients.items[i] != NULL && kept->sum == NULL)
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

static weft_status add(wfi_kept *kept, const weft_tensor *gradient)
{
    weft_status status = kept->is_summed ? wfi_add_into(gradient, kept->sum) : wfi_copy(gradient, kept->sum);
    kept->is_summed = kept->is_summed || status == WEFT_OK;
    return status;
}

weft_status weft_optimizer_accumulate(weft_optimizer *optimizer, weft_tensors gradients)
{
    WFI_LIVE(optimizer);
    if (optimizer == NULL)
        return wfi_refuse_null("weft_optimizer_accumulate", "the optimizer");
    weft_error *error = NULL;
    weft_status status = weft_optimizer_check(optimizer, gradients, &error);
    if (status != WEFT_OK)
        wfi_log(WEFT_LOG_DEBUG, "weft_optimizer_accumulate: %s", weft_error_message(error));
    weft_error_unref(error);
    if (status == WEFT_OK)
        status = make_sums(optimizer, gradients);
    for (size_t i = 0; status == WEFT_OK && i < gradients.count; i++)
        if (gradients.items[i] != NULL)
            status = add(&optimizer->kept[i], gradients.items[i]);
    if (status == WEFT_OK)
        optimizer->accumulated++;
    return status;
}

size_t weft_optimizer_accumulated(const weft_optimizer *optimizer)
{
    WFI_LIVE(optimizer);
    return optimizer == NULL ? 0 : optimizer->accumulated;
}

void weft_optimizer_zero(weft_optimizer *optimizer)
{
    WFI_LIVE(optimizer);
    if (optimizer == NULL)
        return;
    optimizer->accumulated = 0;
    for (size_t i = 0; i < optimizer->count; i++)
        optimizer->kept[i].is_summed = false; /* the next accumulation overwrites */
}

/* Whether the parameter's value is replaced if it has other references. */
static bool is_replaced(const weft_optimizer *optimizer, size_t i)
{
    weft_update update = wfi_optimizer_common(optimizer)->update;
    return update == WEFT_UPDATE_BESIDE || (update == WEFT_UPDATE_DEFAULT && optimizer->parameters[i]->cell != NULL);
}

/* In place: nobody reads it. Else a slab to write, unless nobody else holds the value; WEFT_UPDATE_BESIDE takes one for
 * each dense step, so that no reader waits. */
static weft_status make_room(const weft_optimizer *optimizer, size_t i, wfi_ready *ready, uint64_t deadline)
{
    weft_tensor *parameter = optimizer->parameters[i];
    bool always = wfi_optimizer_common(optimizer)->update == WEFT_UPDATE_BESIDE && ready->dense != NULL;
    if (is_replaced(optimizer, i))
        return always || wfi_cell_is_seen(parameter) ? wfi_cell_reserve(parameter, &ready->slab) : WEFT_OK;
    weft_tensor *now = wfi_tensor_read(parameter);
    bool unread = wfi_storage_wait_unread(now->storage, deadline);
    weft_tensor_unref(now);
    return unread ? WEFT_OK : WEFT_ERR_TIMEOUT;
}

/* The slots of what will be stepped, and room for it. */
static weft_status make_way(const weft_optimizer *optimizer, wfi_ready *ready)
{
    uint64_t deadline = wfi_deadline(&wfi_clock_real, wfi_optimizer_common(optimizer)->pin_timeout_ms);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++)
        if (!wfi_ready_is_none(&ready[i]))
            status = wfi_optimizer_make_slots(optimizer, i);
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++)
        if (!wfi_ready_is_none(&ready[i]))
            status = make_room(optimizer, i, &ready[i], deadline);
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

/*
 * Only here, and in the kernels, a parameter is read and written. Memory may run out as late as here, if a thread
 * began to read the parameter after make_way; then the parameters before it have been stepped.
 */
static weft_status step_one(const weft_optimizer *optimizer, size_t i, wfi_ready *gradient, step_factor factor)
{
    wfi_kept *kept = &optimizer->kept[i];
    const weft_optimizer_spec *spec = &optimizer->groups[kept->group].spec;
    bool sparse = gradient->dense == NULL;
    wfi_write_how how = !is_replaced(optimizer, i) ? WFI_WRITE_IN_PLACE
                        : sparse                   ? WFI_WRITE_PART
                        : gradient->slab != NULL   ? WFI_WRITE_BESIDE
                                                   : WFI_WRITE_WHOLE;
    wfi_write write;
    weft_status status = wfi_write_begin(&write, optimizer->parameters[i], how, gradient->slab);
    gradient->slab = NULL;
    if (status != WEFT_OK)
        return status;
    weft_optimizer_update update = {.from = sparse ? write.to : write.from,
                                    .to = write.to,
                                    .gradient = gradient->dense,
                                    .factor = spec->maximize ? -factor.by : factor.by,
                                    .lr = spec->lr,
                                    .options = wfi_spec_get_options(spec),
                                    .step = kept->steps + 1};
    memcpy(update.slots, kept->slots, sizeof(update.slots));
    const wfi_gpu_update on_gpu = {factor.scale, sparse ? &gradient->rows : NULL};
    if (weft_tensor_device(write.to).kind != WEFT_DEVICE_CPU)
        update.gpu = &on_gpu;
    if (sparse) {
        update.row_count = gradient->rows.count;
        update.row_size = gradient->rows.width;
        update.rows = gradient->rows.rows;
        update.row_values = gradient->rows.at;
    }
    status = optimizer->type->step(&update);
    if (status > WEFT_OK)
        status = WEFT_ERR_INVALID; /* a status is 0 or negative: the step of a user's type returned something else */
    wfi_write_end(&write, status == WEFT_OK || write.to == write.from);
    if (status == WEFT_OK)
        kept->steps++;
    else
        wfi_log(WEFT_LOG_WARN,
                "%s: the step of parameter %zu of %zu failed: %s; the parameters before it have been stepped",
                optimizer->type->name, i, optimizer->count, weft_status_text(status));
    return status;
}

static weft_status refuse_norm(double norm)
{
    wfi_log(WEFT_LOG_WARN, "no step: the norm of the gradients is %g, and error_if_nonfinite is set", norm);
    return WEFT_ERR_INVALID;
}

/* The norm of the gradients times factor->by, if an option needs it; the factor then also clips. On a GPU nobody waits
 * for the norm, except for error_if_nonfinite. */
static weft_status clip(weft_optimizer *optimizer, const wfi_ready *ready, step_factor *factor)
{
    const weft_optimizer_spec *how = wfi_optimizer_common(optimizer);
    double norm = 0;
    if (how->max_norm == 0 && !how->error_if_nonfinite)
        return WEFT_OK;
    weft_tensor *on_gpu = NULL;
    weft_status status = wfi_ready_clip(ready, optimizer->count, factor->by, how->max_norm, &on_gpu);
    if (status == WEFT_OK && on_gpu == NULL)
        status = wfi_ready_norm(ready, optimizer->count, &norm);
    if (status != WEFT_OK)
        return status;
    weft_tensor_unref(optimizer->norm_on_gpu);
    optimizer->norm_on_gpu = on_gpu;
    optimizer->norm = factor->by * norm;
    if (how->error_if_nonfinite && !isfinite(weft_optimizer_norm(optimizer)))
        return refuse_norm(weft_optimizer_norm(optimizer));
    if (how->max_norm > 0 && on_gpu != NULL)
        factor->scale = (const double *)wfi_tensor_address(on_gpu) + 1;
    else if (how->max_norm > 0)
        factor->by *= wfi_clip_factor(optimizer->norm, how->max_norm);
    return WEFT_OK;
}

/* `factor`: the gradients are first multiplied by it */
static weft_status try_step(weft_optimizer *optimizer, wfi_ready *ready, double factor)
{
    step_factor all = {factor, NULL};
    weft_status status = clip(optimizer, ready, &all);
    if (status == WEFT_OK)
        status = make_way(optimizer, ready);
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++)
        if (!wfi_ready_is_none(&ready[i]))
            status = step_one(optimizer, i, &ready[i], all);
    return status;
}

/* The stream that made the gradients, with a reference; NULL: the common one, or the CPU. */
static weft_stream *stream_of(const wfi_ready *ready, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const weft_tensor *tensor = ready[i].dense != NULL ? ready[i].dense : ready[i].rows.values;
        if (tensor != NULL)
            return wfi_storage_writer(tensor->storage);
    }
    return NULL;
}

/* On the stream that made the gradients: so a loop on one stream has no events. */
static weft_status step_all(weft_optimizer *optimizer, wfi_ready *ready, double factor)
{
    weft_stream *stream = stream_of(ready, optimizer->count), *before = wfi_stream_set(stream);
    weft_status status = try_step(optimizer, ready, factor);
    drop_slabs(ready, optimizer->count);
    (void)wfi_stream_set(before);
    weft_stream_unref(stream);
    return status;
}

weft_status weft_optimizer_step(weft_optimizer *optimizer)
{
    WFI_LIVE(optimizer);
    if (optimizer == NULL)
        return wfi_refuse_null("weft_optimizer_step", "the optimizer");
    if (optimizer->accumulated == 0)
        return wfi_refuse(WEFT_ERR_STATE, "weft_optimizer_step: no gradients: call weft_optimizer_accumulate first");
    wfi_ready *ready = wfi_calloc(optimizer->count, sizeof(*ready)); /* the sums, borrowed */
    if (ready == NULL)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < optimizer->count; i++)
        ready[i].dense = optimizer->kept[i].is_summed ? optimizer->kept[i].sum : NULL;
    weft_status status =
        step_all(optimizer, ready, wfi_optimizer_common(optimizer)->average ? 1.0 / (double)optimizer->accumulated : 1);
    free(ready);
    if (status == WEFT_OK)
        weft_optimizer_zero(optimizer);
    return status;
}

weft_status weft_optimizer_apply(weft_optimizer *optimizer, weft_gradients gradients)
{
    WFI_LIVE(optimizer);
    if (optimizer == NULL)
        return wfi_refuse_null("weft_optimizer_apply", "the optimizer");
    wfi_ready *ready = NULL;
    weft_error *error = NULL;
    weft_status status = weft_optimizer_check_gradients(optimizer, gradients, &error);
    if (status != WEFT_OK)
        wfi_log(WEFT_LOG_DEBUG, "weft_optimizer_apply: %s", weft_error_message(error));
    weft_error_unref(error);
    if (status != WEFT_OK)
        return status;
    status = wfi_ready_gradients(gradients, &ready);
    if (status == WEFT_OK)
        status = step_all(optimizer, ready, 1);
    wfi_ready_drop(ready, gradients.count);
    return status;
}

double weft_optimizer_norm(const weft_optimizer *optimizer)
{
    WFI_LIVE(optimizer);
    if (optimizer == NULL || optimizer->norm_on_gpu == NULL)
        return optimizer == NULL ? 0 : optimizer->norm;
    weft_tensor *here = weft_tensor_to_device(optimizer->norm_on_gpu, (weft_device){WEFT_DEVICE_CPU, 0});
    double norm = here == NULL ? NAN : weft_tensor_get_f64(here, 0);
    weft_tensor_unref(here);
    return norm;
}
