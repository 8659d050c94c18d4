/* SPDX-License-Identifier: Apache-2.0 */
/* gradients.c - gradients before a step: whether they fit, made contiguous or added up by row, and their norm. */
#include "optim/optim.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text/refuse.h"
#include "tensor/copy.h"

#include <math.h>
#include <stdlib.h>

static weft_error *dense_mismatch(const weft_tensor *p, const weft_tensor *g, size_t i)
{
    char wanted[WFI_SHAPE_TEXT], got[WFI_SHAPE_TEXT];
    if (g->dtype != p->dtype)
        return weft_error_create(WEFT_ERR_TYPE, "gradient %zu is %s, its parameter %s", i, weft_dtype_name(g->dtype),
                                 weft_dtype_name(p->dtype));
    if (!wfi_shape_equal(&g->shape, &p->shape))
        return weft_error_create(WEFT_ERR_SHAPE, "gradient %zu is %s, its parameter %s", i,
                                 wfi_shape_text(&g->shape, got), wfi_shape_text(&p->shape, wanted));
    return NULL;
}

static bool is_on_device(const weft_tensor *tensor)
{
    return tensor && wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA;
}

weft_error *wfi_optimizer_row_error(int64_t gradient, int64_t row_count, const wfi_report_slot *found)
{
    return weft_error_create(WEFT_ERR_INVALID, "gradient %lld: rows[%lld] is %lld, its parameter has %lld rows",
                             (long long)gradient, (long long)found->place, (long long)found->value,
                             (long long)row_count);
}

/* Rows on a GPU are not looked at: that would need a wait. A step checks them (step.c). */
static weft_error *rows_outside(const weft_tensor *p, weft_tensor *rows, size_t i)
{
    if (is_on_device(rows))
        return NULL;
    weft_tensor *packed = wfi_tensor_contiguous(rows, NULL);
    if (!packed)
        return weft_error_create(WEFT_ERR_MEMORY, "no memory for the rows of gradient %zu", i);
    const int64_t *at = wfi_tensor_address(packed);
    weft_error *error = NULL;
    for (int64_t k = 0; k < packed->numel && !error; k++)
        if (at[k] < 0 || at[k] >= p->shape.dims[0])
            error = wfi_optimizer_row_error((int64_t)i, p->shape.dims[0], &(const wfi_report_slot){1, k, at[k], 0});
    weft_tensor_unref(packed);
    return error;
}

static weft_error *sparse_mismatch(const weft_tensor *p, weft_gradient gradient, size_t i)
{
    char wanted[WFI_SHAPE_TEXT], got[WFI_SHAPE_TEXT];
    const weft_tensor *values = gradient.values, *rows = gradient.rows;
    if (rows->dtype != WEFT_DTYPE_INT64)
        return weft_error_create(WEFT_ERR_TYPE, "gradient %zu: its rows are %s, not int64", i,
                                 weft_dtype_name(rows->dtype));
    if (values->dtype != p->dtype)
        return weft_error_create(WEFT_ERR_TYPE, "gradient %zu is %s, its parameter %s", i,
                                 weft_dtype_name(values->dtype), weft_dtype_name(p->dtype));
    if (rows->shape.ndim != 1)
        return weft_error_create(WEFT_ERR_SHAPE, "gradient %zu: its rows are %s, not a vector", i,
                                 wfi_shape_text(&rows->shape, got));
    if (p->shape.ndim == 0)
        return weft_error_create(WEFT_ERR_SHAPE, "gradient %zu is sparse, its parameter a scalar", i);
    weft_shape shape = p->shape;
    shape.dims[0] = rows->numel;
    if (!wfi_shape_equal(&values->shape, &shape))
        return weft_error_create(WEFT_ERR_SHAPE, "gradient %zu: its values are %s; for these rows they must be %s", i,
                                 wfi_shape_text(&values->shape, got), wfi_shape_text(&shape, wanted));
    return NULL;
}

static weft_error *device_mismatch(const weft_tensor *p, weft_gradient gradient, size_t i)
{
    char here[WFI_DEVICE_TEXT], there[WFI_DEVICE_TEXT];
    weft_device wanted = weft_tensor_device(p), got = weft_tensor_device(gradient.values);
    if (!wfi_device_equal(got, wanted))
        return weft_error_create(WEFT_ERR_UNSUPPORTED, "gradient %zu is on %s, its parameter on %s", i,
                                 wfi_device_text(got, there), wfi_device_text(wanted, here));
    weft_device rows = !gradient.rows ? got : weft_tensor_device(gradient.rows);
    if (!wfi_device_equal(rows, got))
        return weft_error_create(WEFT_ERR_UNSUPPORTED, "gradient %zu: its rows are on %s, its values on %s", i,
                                 wfi_device_text(rows, here), wfi_device_text(got, there));
    return NULL;
}

static weft_error *mismatch(const weft_optimizer *optimizer, size_t i, weft_gradient gradient)
{
    const weft_tensor *p = optimizer->parameters[i];
    const weft_optimizer_spec *spec = &optimizer->groups[optimizer->kept[i].group].spec;
    if (!gradient.values)
        return !gradient.rows ? NULL : weft_error_create(WEFT_ERR_INVALID, "gradient %zu has rows and no values", i);
    weft_error *elsewhere = device_mismatch(p, gradient, i);
    if (elsewhere)
        return elsewhere;
    if (!gradient.rows)
        return dense_mismatch(p, gradient.values, i);
    if (!optimizer->type->sparse)
        return weft_error_create(WEFT_ERR_UNSUPPORTED, "gradient %zu is sparse, and %s takes dense ones only", i,
                                 optimizer->type->name);
    const char *option = wfi_optimizer_spec_dense_only(spec);
    if (option)
        return weft_error_create(WEFT_ERR_UNSUPPORTED, "gradient %zu is sparse: %s takes these only without %s", i,
                                 optimizer->type->name, option);
    weft_error *error = sparse_mismatch(p, gradient, i);
    return error ? error : rows_outside(p, gradient.rows, i);
}

weft_error *wfi_optimizer_mismatch(const weft_optimizer *optimizer, weft_gradients gradients)
{
    weft_error *error = NULL;
    if (optimizer->error)
        return weft_error_ref(optimizer->error);
    if (gradients.count != optimizer->count)
        return weft_error_create(WEFT_ERR_SHAPE, "%zu gradients for %zu parameters", gradients.count, optimizer->count);
    if (!gradients.items)
        return weft_error_create(WEFT_ERR_INVALID, "the list of %zu gradients is NULL", gradients.count);
    for (size_t i = 0; i < gradients.count && !error; i++)
        error = mismatch(optimizer, i, gradients.items[i]);
    return error;
}

weft_status weft_optimizer_check_gradients(const weft_optimizer *optimizer, weft_gradients gradients,
                                           weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    weft_error *found = !optimizer ? weft_error_create(WEFT_ERR_INVALID, "the optimizer is NULL")
                                   : wfi_optimizer_mismatch(optimizer, gradients);
    weft_status status = weft_error_code(found);
    if (found)
        wfi_refuse_with(error, found);
    return status;
}

weft_status weft_optimizer_check(const weft_optimizer *optimizer, weft_tensors gradients, weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!gradients.items)
        return weft_optimizer_check_gradients(optimizer, (weft_gradients){NULL, gradients.count}, error);
    weft_gradient *items = wfi_calloc(gradients.count, sizeof(weft_gradient));
    if (!items)
        return wfi_refuse_to(error, WEFT_ERR_MEMORY, "no memory for %zu gradients", gradients.count);
    for (size_t i = 0; i < gradients.count; i++)
        items[i].values = gradients.items[i];
    weft_status status = weft_optimizer_check_gradients(optimizer, (weft_gradients){items, gradients.count}, error);
    free(items);
    return status;
}

static weft_status make_ready(weft_gradient gradient, wfi_ready *out)
{
    int64_t bad;
    if (gradient.rows)
        return wfi_sparse_rows_init(&out->rows, gradient.values, gradient.rows, INT64_MAX, &bad);
    if (gradient.values && !(out->dense = wfi_tensor_contiguous(gradient.values, NULL)))
        return WEFT_ERR_MEMORY;
    return WEFT_OK;
}

weft_status wfi_ready_gradients(weft_gradients gradients, wfi_ready **out)
{
    wfi_ready *ready = wfi_calloc(gradients.count, sizeof(*ready));
    weft_status status = !ready ? WEFT_ERR_MEMORY : WEFT_OK;
    for (size_t i = 0; i < gradients.count && status == WEFT_OK; i++)
        status = make_ready(gradients.items[i], &ready[i]);
    if (status == WEFT_OK)
        *out = ready;
    else
        wfi_ready_drop(ready, gradients.count);
    return status;
}

void wfi_ready_drop(wfi_ready *ready, size_t count)
{
    for (size_t i = 0; ready && i < count; i++) {
        weft_tensor_unref(ready[i].dense);
        wfi_sparse_rows_fini(&ready[i].rows);
    }
    free(ready);
}

static const weft_tensor *tensor_of(const wfi_ready *ready)
{
    return ready->dense ? ready->dense : ready->rows.values;
}

static int64_t parts_of(const wfi_ready *ready)
{
    return !tensor_of(ready) ? 0 : wfi_squares_count(ready->dense, &ready->rows);
}

/* The number of gradients from the first one on that are on its GPU, with those in between that are not there; *parts:
 * of the sums of their squares. */
static size_t count_together(const wfi_ready *ready, size_t count, int64_t *parts)
{
    size_t i = 0;
    *parts = 0;
    for (; i < count; i++) {
        const weft_tensor *first = tensor_of(&ready[0]), *tensor = tensor_of(&ready[i]);
        if (tensor && (!is_on_device(tensor) || weft_tensor_device(tensor).index != weft_tensor_device(first).index))
            break;
        *parts += parts_of(&ready[i]);
    }
    return i;
}

/* The sums of the squares of gradients on one GPU, by parts; without a wait. */
static weft_status squares_on_gpu(const wfi_ready *ready, size_t count, weft_tensor *partial)
{
    wfi_steps *steps = wfi_steps_create();
    weft_status status = !steps ? WEFT_ERR_MEMORY : WEFT_OK;
    int64_t part = 0;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        if (tensor_of(&ready[i]))
            status = wfi_squares_parts(steps, ready[i].dense, &ready[i].rows, partial, part);
        part += parts_of(&ready[i]);
    }
    if (status == WEFT_OK)
        status = wfi_steps_run(steps);
    wfi_steps_destroy(steps);
    return status;
}

/* Adds the sums of the squares of `count` gradients on one GPU, which it waits for. */
static weft_status add_squares(const wfi_ready *ready, size_t count, int64_t parts, double *total)
{
    weft_tensor *partial = wfi_tensor_empty_like(tensor_of(&ready[0]), WEFT_SHAPE(parts), WEFT_DTYPE_FLOAT64);
    weft_tensor *here = wfi_tensor_empty(WEFT_SHAPE(parts), WEFT_DTYPE_FLOAT64, NULL);
    weft_status status = !partial || !here ? WEFT_ERR_MEMORY : squares_on_gpu(ready, count, partial);
    if (status == WEFT_OK)
        status = wfi_copy(partial, here);
    const double *at = status == WEFT_OK ? wfi_tensor_address(here) : NULL;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        double sum = 0;
        for (int64_t k = parts_of(&ready[i]); k > 0; k--)
            sum += *at++;
        *total += sum;
    }
    weft_tensor_unref(partial);
    weft_tensor_unref(here);
    return status;
}

weft_status wfi_ready_norm(const wfi_ready *ready, size_t count, double *norm)
{
    weft_status status = WEFT_OK;
    double total = 0, sum = 0;
    int64_t parts = 0;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        if (wfi_ready_is_none(&ready[i]))
            continue;
        if (is_on_device(tensor_of(&ready[i]))) {
            size_t together = count_together(&ready[i], count - i, &parts);
            status = add_squares(&ready[i], together, parts, &total);
            i += together - 1;
            continue;
        }
        status = ready[i].dense ? wfi_squares(ready[i].dense, &sum) : wfi_squares_of_rows(&ready[i].rows, &sum);
        total += status == WEFT_OK ? sum : 0;
    }
    if (status == WEFT_OK)
        *norm = sqrt(total);
    return status;
}

weft_status wfi_ready_clip(const wfi_ready *ready, size_t count, double factor, double max_norm, weft_tensor **out)
{
    size_t first = 0;
    int64_t parts = 0;
    *out = NULL;
    while (first < count && !tensor_of(&ready[first]))
        first++;
    if (first == count || !is_on_device(tensor_of(&ready[first])) ||
        count_together(&ready[first], count - first, &parts) < count - first)
        return WEFT_OK;
    const weft_tensor *like = tensor_of(&ready[first]);
    weft_tensor *partial = wfi_tensor_empty_like(like, WEFT_SHAPE(parts), WEFT_DTYPE_FLOAT64);
    weft_tensor *made = wfi_tensor_empty_like(like, WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64);
    weft_status status = !partial || !made ? WEFT_ERR_MEMORY : squares_on_gpu(ready, count, partial);
    if (status == WEFT_OK)
        status = wfi_squares_clip(partial, factor, max_norm, WFI_NORM_ROOM, made);
    weft_tensor_unref(partial);
    if (status == WEFT_OK)
        *out = made;
    else
        weft_tensor_unref(made);
    return status;
}

/* As on the CPU. Waits for a GPU; the least row is the first one of those in order. */
static weft_status find_negative_row(const wfi_ready *ready, size_t count)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        const weft_tensor *order = ready[i].rows.order;
        int64_t least = 0;
        if (order && order->numel > 0)
            status = wfi_memory_read(order->storage, 0, &least, sizeof(least));
        if (status == WEFT_OK && least < 0)
            status = WEFT_ERR_INVALID;
    }
    return status;
}

weft_status weft_gradients_norm(weft_gradients gradients, double *norm)
{
    wfi_ready *ready = NULL;
    if (!norm)
        return wfi_refuse_null("weft_gradients_norm", "norm");
    if (!gradients.items && gradients.count > 0)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_gradients_norm: the list of %zu gradients is NULL", gradients.count);
    for (size_t i = 0; i < gradients.count; i++) {
        if (!gradients.items[i].values && gradients.items[i].rows)
            return wfi_refuse(WEFT_ERR_INVALID, "weft_gradients_norm: gradient %zu has rows and no values", i);
    }
    weft_status status = wfi_ready_gradients(gradients, &ready);
    if (status == WEFT_OK)
        status = find_negative_row(ready, gradients.count);
    if (status == WEFT_OK)
        status = wfi_ready_norm(ready, gradients.count, norm);
    wfi_ready_drop(ready, gradients.count);
    return status;
}
