/* SPDX-License-Identifier: Apache-2.0 */
/* view.c - tensors over the storage of another, and packed or converted copies. */
#include "tensor/cell.h"
#include "tensor/copy.h"
#include "tensor/print.h"

#include "base/error.h"
#include "base/text/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

WEFT_PRINTF(4, 5)
static weft_tensor *no_view(weft_error **error, weft_status status, const weft_tensor *of, const char *format, ...)
{
    char shape[WFI_SHAPE_TEXT], why[160];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    (void)wfi_error_fail(error, status, "no view of %s: %s", wfi_shape_text(&of->shape, shape), why);
    return NULL;
}

static weft_tensor *no_view_of_null(weft_error **why)
{
    (void)wfi_error_fail(why, WEFT_ERR_INVALID, "no view: the tensor is NULL");
    return NULL;
}

static weft_tensor *view(const weft_tensor *tensor, const weft_shape *shape, const int64_t *strides, int64_t offset,
                         weft_error **why)
{
    weft_tensor *out = NULL;
    weft_status status = wfi_tensor_view(tensor, *shape, strides, offset, &out);
    return status == WEFT_OK ? out : no_view(why, status, tensor, "%s", weft_status_text(status));
}

weft_tensor *wfi_tensor_reshape(weft_tensor *tensor, weft_shape shape, weft_error **why)
{
    int64_t strides[WEFT_MAX_DIMS];
    char text[WFI_SHAPE_TEXT];
    if (!tensor)
        return no_view_of_null(why);
    if (!weft_tensor_is_contiguous(tensor))
        return no_view(why, WEFT_ERR_UNSUPPORTED, tensor, "it is not contiguous: reshape weft_tensor_contiguous of it");
    weft_shape wanted = shape;
    if (wfi_shape_infer(tensor->numel, &shape) != WEFT_OK)
        return no_view(why, WEFT_ERR_SHAPE, tensor,
                       "%s has another number of elements, or other sizes than 0, more, and at most one -1",
                       wfi_shape_text(&wanted, text));
    wfi_shape_strides(&shape, strides);
    return view(tensor, &shape, strides, tensor->offset, why);
}

weft_tensor *wfi_tensor_transpose(weft_tensor *tensor, int dim0, int dim1, weft_error **why)
{
    if (!tensor)
        return no_view_of_null(why);
    weft_shape shape = tensor->shape;
    int64_t strides[WEFT_MAX_DIMS];
    if (!wfi_dim_wrap(shape.ndim, &dim0) || !wfi_dim_wrap(shape.ndim, &dim1))
        return no_view(why, WEFT_ERR_INVALID, tensor, "it has no dimensions %d and %d", dim0, dim1);
    memcpy(strides, tensor->strides, sizeof(strides));
    shape.dims[dim0] = tensor->shape.dims[dim1];
    shape.dims[dim1] = tensor->shape.dims[dim0];
    strides[dim0] = tensor->strides[dim1];
    strides[dim1] = tensor->strides[dim0];
    return view(tensor, &shape, strides, tensor->offset, why);
}

weft_tensor *wfi_tensor_narrow(weft_tensor *tensor, int dim, int64_t start, int64_t length, weft_error **why)
{
    if (!tensor)
        return no_view_of_null(why);
    weft_shape shape = tensor->shape;
    if (!wfi_dim_wrap(shape.ndim, &dim))
        return no_view(why, WEFT_ERR_INVALID, tensor, "it has no dimension %d", dim);
    if (start < 0 || length < 0 || start > shape.dims[dim] || length > shape.dims[dim] - start)
        return no_view(why, WEFT_ERR_INVALID, tensor, "%lld elements from %lld on lie outside dimension %d",
                       (long long)length, (long long)start, dim);
    shape.dims[dim] = length;
    int64_t skipped = length > 0 && tensor->numel > 0 ? start * tensor->strides[dim] : 0;
    return view(tensor, &shape, tensor->strides, tensor->offset + skipped, why);
}

weft_tensor *wfi_tensor_select(weft_tensor *tensor, int dim, int64_t index, weft_error **why)
{
    if (!tensor)
        return no_view_of_null(why);
    weft_shape shape = tensor->shape;
    int64_t strides[WEFT_MAX_DIMS] = {0};
    if (!wfi_dim_wrap(shape.ndim, &dim))
        return no_view(why, WEFT_ERR_INVALID, tensor, "it has no dimension %d", dim);
    int64_t asked = index;
    if (index < 0)
        index += shape.dims[dim];
    if (index < 0 || index >= shape.dims[dim])
        return no_view(why, WEFT_ERR_INVALID, tensor, "index %lld lies outside dimension %d", (long long)asked, dim);
    shape.ndim--;
    for (int d = 0; d < shape.ndim; d++) {
        shape.dims[d] = tensor->shape.dims[d + (d >= dim)];
        strides[d] = tensor->strides[d + (d >= dim)];
    }
    int64_t skipped = tensor->numel > 0 ? index * tensor->strides[dim] : 0;
    return view(tensor, &shape, strides, tensor->offset + skipped, why);
}

static weft_tensor *no_copy_of_null(weft_error **why)
{
    (void)wfi_error_fail(why, WEFT_ERR_INVALID, "no copy: the tensor is NULL");
    return NULL;
}

static weft_tensor *copied(const weft_tensor *tensor, weft_dtype dtype, weft_error **why)
{
    if (!tensor)
        return no_copy_of_null(why);
    weft_tensor *copy = wfi_tensor_empty_on(weft_tensor_device(tensor), tensor->shape, dtype, why),
                *from = wfi_tensor_read(tensor);
    weft_status status = !copy ? WEFT_OK : wfi_copy(from, copy);
    weft_tensor_unref(from);
    if (status == WEFT_OK)
        return copy;
    (void)wfi_error_fail(why, status, "no copy of a tensor of dtype %s as %s: %s", weft_dtype_name(tensor->dtype),
                         weft_dtype_name(dtype), weft_status_text(status));
    weft_tensor_unref(copy);
    return NULL;
}

weft_tensor *wfi_tensor_contiguous(weft_tensor *tensor, weft_error **why)
{
    return weft_tensor_is_contiguous(tensor) ? wfi_tensor_read(tensor) : copied(tensor, weft_tensor_dtype(tensor), why);
}

weft_tensor *wfi_tensor_clone(const weft_tensor *tensor, weft_error **why)
{
    return copied(tensor, weft_tensor_dtype(tensor), why);
}

weft_tensor *wfi_tensor_to(weft_tensor *tensor, weft_dtype dtype, weft_error **why)
{
    return copied(tensor, dtype, why);
}

weft_tensor *wfi_tensor_to_device(weft_tensor *tensor, weft_device device, weft_error **why)
{
    if (!tensor)
        return no_copy_of_null(why);
    weft_device now = weft_tensor_device(tensor);
    if (wfi_device_equal(now, device))
        return weft_tensor_ref(tensor);
    weft_tensor *copy = wfi_tensor_empty_on(device, tensor->shape, tensor->dtype, why), *from = wfi_tensor_read(tensor);
    weft_status status = !copy ? WEFT_OK : wfi_copy(from, copy);
    weft_tensor_unref(from);
    if (status == WEFT_OK)
        return copy;
    char text[WFI_WANTED_TEXT], there[WFI_DEVICE_TEXT], here[WFI_DEVICE_TEXT];
    (void)wfi_error_fail(why, status, "no copy of %s on %s to %s: %s",
                         wfi_tensor_wanted(&tensor->shape, tensor->dtype, text), wfi_device_text(now, here),
                         wfi_device_text(device, there), weft_status_text(status));
    weft_tensor_unref(copy);
    return NULL;
}

weft_tensor *wfi_tensor_to_device_pinned(weft_tensor *tensor, weft_device device)
{
    weft_device now = weft_tensor_device(tensor);
    if (device.kind != WEFT_DEVICE_CPU || now.kind == WEFT_DEVICE_CPU)
        return wfi_tensor_to_device(tensor, device, NULL);
    weft_tensor *copy = wfi_tensor_empty_pinned(now, tensor->shape, tensor->dtype, NULL);
    if (!copy || weft_tensor_assign(copy, tensor) == WEFT_OK)
        return copy;
    weft_tensor_unref(copy);
    return NULL;
}

static weft_status not_assigned(const weft_tensor *target, const weft_tensor *source, weft_status status)
{
    char to[WFI_SHAPE_TEXT], from[WFI_SHAPE_TEXT];
    wfi_log(WEFT_LOG_DEBUG, "weft_tensor_assign: the source is %s %s, the target %s %s: %s",
            weft_dtype_name(source->dtype), wfi_shape_text(&source->shape, from), weft_dtype_name(target->dtype),
            wfi_shape_text(&target->shape, to), weft_status_text(status));
    return status;
}

weft_status weft_tensor_assign(weft_tensor *target, const weft_tensor *source)
{
    WFI_CHECK_HANDLE(target, source);
    if (!target || !source) {
        wfi_log(WEFT_LOG_DEBUG, "weft_tensor_assign: the %s is NULL", !target ? "target" : "source");
        return WEFT_ERR_INVALID;
    }
    wfi_write write;
    weft_tensor *from = wfi_tensor_read(source);
    weft_status status = wfi_cell_write_begin(&write, target, WFI_WRITE_WHOLE, NULL);
    if (status == WEFT_OK) {
        status = wfi_copy(from, write.to);
        wfi_cell_write_end(&write, status == WEFT_OK);
    }
    weft_tensor_unref(from);
    return status == WEFT_OK ? WEFT_OK : not_assigned(target, source, status);
}

void weft_tensor_fill(weft_tensor *target, double value)
{
    WFI_CHECK_HANDLE(target);
    if (!target)
        return;
    wfi_write write;
    weft_status status = wfi_cell_write_begin(&write, target, WFI_WRITE_WHOLE, NULL);
    if (status == WEFT_OK) {
        status = wfi_fill(write.to, value);
        wfi_cell_write_end(&write, status == WEFT_OK);
    }
    char text[WFI_WANTED_TEXT];
    if (status != WEFT_OK)
        wfi_log(WEFT_LOG_ERROR, "%s was not filled with %g: %s", wfi_tensor_wanted(&target->shape, target->dtype, text),
                value, weft_status_text(status));
}
