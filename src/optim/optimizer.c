/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer.c - what all optimizers share: parameters, gradient accumulators of their own, and the way to a step.
 *
 * No lock: one thread at a time uses an optimizer; the reference count alone is atomic.
 */
#include "optim/optim.h"

#include "base/alloc.h"
#include "autograd/autograd.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text/log.h"
#include "tensor/copy.h"

#include <math.h>
#include <stdlib.h>

#define PIN_TIMEOUT_MS 60000

bool wfi_is_rate(double lr)
{
    return lr > 0 && isfinite(lr);
}

static bool is_parameter(const weft_tensor *p)
{
    return p != NULL && wfi_dtype_is_float(p->dtype) && weft_tensor_is_contiguous(p);
}

static bool are_parameters(weft_tensors parameters)
{
    for (size_t i = 0; i < parameters.count; i++)
        if (!is_parameter(parameters.items[i]))
            return false;
    return parameters.count > 0;
}

weft_optimizer *wfi_optimizer_create(const wfi_optimizer_rule *rule, weft_tensors parameters, double lr, bool average,
                                     int64_t pin_timeout_ms)
{
    if (!wfi_is_rate(lr) || pin_timeout_ms < WEFT_FOREVER || !are_parameters(parameters)) {
        wfi_log(WEFT_LOG_DEBUG, "no %s: bad options, or parameters that are not contiguous floats", rule->name);
        return NULL;
    }
    weft_optimizer *optimizer = wfi_calloc(1, rule->size);
    if (optimizer == NULL)
        return NULL;
    atomic_init(&optimizer->refs, 1);
    optimizer->rule = rule;
    optimizer->lr = lr;
    optimizer->average = average;
    optimizer->pin_timeout_ms = pin_timeout_ms == 0 ? PIN_TIMEOUT_MS : pin_timeout_ms;
    optimizer->parameters = wfi_calloc(parameters.count, sizeof(weft_tensor *));
    optimizer->accumulators = wfi_calloc(parameters.count, sizeof(weft_tensor *));
    optimizer->slots = wfi_calloc(parameters.count, sizeof(*optimizer->slots));
    optimizer->steps = wfi_calloc(parameters.count, sizeof(uint64_t));
    if (!optimizer->parameters || !optimizer->accumulators || !optimizer->slots || !optimizer->steps) {
        weft_optimizer_unref(optimizer);
        return NULL;
    }
    optimizer->count = parameters.count;
    for (size_t i = 0; i < parameters.count; i++)
        optimizer->parameters[i] = weft_tensor_ref(parameters.items[i]);
    return optimizer;
}

weft_optimizer *weft_optimizer_ref(weft_optimizer *optimizer)
{
    if (optimizer != NULL)
        atomic_fetch_add_explicit(&optimizer->refs, 1, memory_order_relaxed);
    return optimizer;
}

void weft_optimizer_unref(weft_optimizer *optimizer)
{
    if (optimizer == NULL || atomic_fetch_sub_explicit(&optimizer->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < optimizer->count; i++) {
        weft_tensor_unref(optimizer->parameters[i]);
        weft_tensor_unref(optimizer->accumulators[i]);
        for (int k = 0; k < optimizer->slot_count; k++)
            weft_tensor_unref(optimizer->slots[i][k]);
    }
    free(optimizer->parameters);
    free(optimizer->accumulators);
    free(optimizer->slots);
    free(optimizer->steps);
    free(optimizer);
}

/* What does not fit in gradient i, which is there; NULL if it is right. */
static weft_error *misfit(const weft_optimizer *optimizer, size_t i, weft_gradient gradient)
{
    char wanted[WFI_SHAPE_TEXT], got[WFI_SHAPE_TEXT];
    const weft_tensor *p = optimizer->parameters[i], *g = gradient.values;
    if (gradient.rows != NULL)
        return weft_error_create(WEFT_ERR_UNSUPPORTED, "gradient %zu is sparse", i);
    if (g->dtype != p->dtype)
        return weft_error_create(WEFT_ERR_TYPE, "gradient %zu is %s, its parameter %s", i, weft_dtype_name(g->dtype),
                                 weft_dtype_name(p->dtype));
    if (!wfi_shape_equal(&g->shape, &p->shape))
        return weft_error_create(WEFT_ERR_SHAPE, "gradient %zu is %s, its parameter %s", i,
                                 wfi_shape_text(&g->shape, got), wfi_shape_text(&p->shape, wanted));
    return NULL;
}

weft_status weft_optimizer_check(const weft_optimizer *optimizer, weft_tensors gradients, weft_error **error)
{
    weft_error *found = NULL;
    if (optimizer == NULL)
        found = weft_error_create(WEFT_ERR_INVALID, "the optimizer is NULL");
    else if (gradients.count != optimizer->count)
        found =
            weft_error_create(WEFT_ERR_SHAPE, "%zu gradients for %zu parameters", gradients.count, optimizer->count);
    for (size_t i = 0; found == NULL && i < gradients.count; i++)
        found = gradients.items[i] == NULL ? weft_error_create(WEFT_ERR_INVALID, "gradient %zu is NULL", i)
                                           : misfit(optimizer, i, (weft_gradient){gradients.items[i], NULL});
    weft_status status = weft_error_code(found);
    if (found != NULL)
        wfi_error_give(error, found);
    return status;
}

/* Where there is none yet; a step that fails for memory finds some there the next time. */
static weft_status make_accumulators(const weft_optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->count; i++) {
        const weft_tensor *p = optimizer->parameters[i];
        if (optimizer->accumulators[i] == NULL)
            optimizer->accumulators[i] = weft_tensor_empty(p->shape, p->dtype);
        if (optimizer->accumulators[i] == NULL)
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

static weft_status make_slots(const weft_optimizer *optimizer, size_t i)
{
    const weft_tensor *p = optimizer->parameters[i];
    for (int k = 0; k < optimizer->slot_count; k++) {
        if (optimizer->slots[i][k] == NULL)
            optimizer->slots[i][k] = weft_tensor_zeros(p->shape, p->dtype);
        if (optimizer->slots[i][k] == NULL)
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

/* Packed copies of those that are not contiguous, made before anything changes. */
static weft_status pack(weft_tensors gradients, weft_tensor ***out)
{
    weft_tensor **packed = wfi_calloc(gradients.count, sizeof(weft_tensor *));
    weft_status status = packed == NULL ? WEFT_ERR_MEMORY : WEFT_OK;
    for (size_t i = 0; i < gradients.count && status == WEFT_OK; i++) {
        if (gradients.items[i] != NULL && (packed[i] = weft_tensor_contiguous(gradients.items[i])) == NULL)
            status = WEFT_ERR_MEMORY;
    }
    *out = packed;
    return status;
}

static void drop_packed(weft_tensor **packed, size_t count)
{
    for (size_t i = 0; packed != NULL && i < count; i++)
        weft_tensor_unref(packed[i]);
    free(packed);
}

weft_status weft_optimizer_accumulate(weft_optimizer *optimizer, weft_tensors gradients)
{
    weft_tensor **packed = NULL;
    weft_status status = weft_optimizer_check(optimizer, gradients, NULL);
    if (status != WEFT_OK)
        return status;
    status = make_accumulators(optimizer);
    if (status == WEFT_OK)
        status = pack(gradients, &packed);
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++)
        status = optimizer->accumulated == 0 ? wfi_copy(packed[i], optimizer->accumulators[i])
                                             : wfi_add_into(packed[i], optimizer->accumulators[i]);
    if (status == WEFT_OK)
        optimizer->accumulated++;
    drop_packed(packed, gradients.count);
    return status;
}

size_t weft_optimizer_accumulated(const weft_optimizer *optimizer)
{
    return optimizer == NULL ? 0 : optimizer->accumulated;
}

void weft_optimizer_zero(weft_optimizer *optimizer)
{
    if (optimizer != NULL)
        optimizer->accumulated = 0; /* the next accumulation overwrites */
}

/* All that a step of the parameters with a gradient may wait for or fail in. */
static weft_status make_ready(const weft_optimizer *optimizer, weft_tensor *const *gradients)
{
    uint64_t deadline = wfi_deadline(&wfi_clock_real, optimizer->pin_timeout_ms);
    for (size_t i = 0; i < optimizer->count; i++) {
        weft_status status = gradients[i] == NULL ? WEFT_OK : make_slots(optimizer, i);
        if (status != WEFT_OK)
            return status;
    }
    for (size_t i = 0; i < optimizer->count; i++)
        if (gradients[i] != NULL && !wfi_storage_wait_unread(optimizer->parameters[i]->storage, deadline))
            return WEFT_ERR_TIMEOUT;
    return WEFT_OK;
}

/* gradients[i]: contiguous, of the parameter's shape and dtype, or NULL */
static weft_status step_all(weft_optimizer *optimizer, weft_tensor *const *gradients)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++) {
        if (gradients[i] == NULL)
            continue;
        status = optimizer->rule->step(optimizer, optimizer->parameters[i], gradients[i], optimizer->slots[i],
                                       optimizer->steps[i]);
        wfi_storage_wrote(optimizer->parameters[i]->storage);
        optimizer->steps[i]++;
    }
    return status;
}

static weft_status average(const weft_optimizer *optimizer)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < optimizer->count && status == WEFT_OK; i++)
        status =
            wfi_scale(optimizer->accumulators[i], 1.0 / (double)optimizer->accumulated, optimizer->accumulators[i]);
    return status;
}

weft_status weft_optimizer_step(weft_optimizer *optimizer)
{
    if (optimizer == NULL)
        return WEFT_ERR_INVALID;
    if (optimizer->accumulated == 0)
        return WEFT_ERR_STATE;
    weft_status status = make_ready(optimizer, optimizer->accumulators);
    if (status != WEFT_OK)
        return status;
    if (optimizer->average && optimizer->accumulated > 1)
        status = average(optimizer);
    if (status == WEFT_OK)
        status = step_all(optimizer, optimizer->accumulators);
    optimizer->accumulated = 0;
    return status;
}

static weft_status check_borrowed(const weft_optimizer *optimizer, weft_gradients gradients)
{
    weft_error *found = NULL;
    if (gradients.count != optimizer->count)
        return WEFT_ERR_SHAPE;
    for (size_t i = 0; found == NULL && i < gradients.count; i++)
        if (gradients.items[i].values != NULL)
            found = misfit(optimizer, i, gradients.items[i]);
        else if (gradients.items[i].rows != NULL)
            found = weft_error_create(WEFT_ERR_INVALID, "gradient %zu has rows and no values", i);
    weft_status status = weft_error_code(found);
    if (found != NULL)
        wfi_log(WEFT_LOG_DEBUG, "%s", weft_error_message(found));
    weft_error_unref(found);
    return status;
}

weft_status weft_optimizer_apply(weft_optimizer *optimizer, weft_gradients gradients)
{
    weft_tensor **packed = NULL, **values;
    weft_status status = optimizer == NULL ? WEFT_ERR_INVALID : check_borrowed(optimizer, gradients);
    if (status != WEFT_OK)
        return status;
    values = wfi_calloc(gradients.count, sizeof(weft_tensor *));
    if (values == NULL)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < gradients.count; i++)
        values[i] = gradients.items[i].values;
    status = pack((weft_tensors){values, gradients.count}, &packed);
    if (status == WEFT_OK)
        status = make_ready(optimizer, packed);
    if (status == WEFT_OK)
        status = step_all(optimizer, packed);
    drop_packed(packed, gradients.count);
    free(values);
    return status;
}

weft_status weft_optimizer_set_lr(weft_optimizer *optimizer, double lr)
{
    if (optimizer == NULL || !wfi_is_rate(lr))
        return WEFT_ERR_INVALID;
    optimizer->lr = lr;
    return WEFT_OK;
}

double weft_optimizer_lr(const weft_optimizer *optimizer)
{
    return optimizer == NULL ? 0 : optimizer->lr;
}

weft_tensors weft_optimizer_parameters(const weft_optimizer *optimizer)
{
    return optimizer == NULL ? (weft_tensors){NULL, 0} : (weft_tensors){optimizer->parameters, optimizer->count};
}
