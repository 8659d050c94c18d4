/* SPDX-License-Identifier: Apache-2.0 */
/* view.c - tensors over the storage of another, and packed or converted copies. */
#include "tensor/cell.h"
#include "tensor/copy.h"

#include "base/text/log.h"

#include <string.h>

static weft_tensor *no_view(const char *why)
{
    wfi_log(WEFT_LOG_DEBUG, "no view: %s", why);
    return NULL;
}

static const char there_is_none[] = "the tensor is NULL";

static weft_tensor *view(const weft_tensor *tensor, const weft_shape *shape, const int64_t *strides, int64_t offset)
{
    weft_tensor *out = NULL;
    weft_status status = wfi_tensor_view(tensor, *shape, strides, offset, &out);
    return status == WEFT_OK ? out : no_view(weft_status_text(status));
}

weft_tensor *weft_tensor_reshape(weft_tensor *tensor, weft_shape shape)
{
    WFI_LIVE(tensor);
    int64_t strides[WEFT_MAX_DIMS];
    if (tensor == NULL)
        return no_view(there_is_none);
    if (!weft_tensor_is_contiguous(tensor))
        return no_view("only a contiguous tensor can be reshaped");
    if (wfi_shape_infer(tensor->numel, &shape) != WEFT_OK)
        return no_view("the new shape has another number of elements");
    wfi_shape_strides(&shape, strides);
    return view(tensor, &shape, strides, tensor->offset);
}

weft_tensor *weft_tensor_transpose(weft_tensor *tensor, int dim0, int dim1)
{
    WFI_LIVE(tensor);
    if (tensor == NULL)
        return no_view(there_is_none);
    weft_shape shape = tensor->shape;
    int64_t strides[WEFT_MAX_DIMS];
    if (!wfi_dim_wrap(shape.ndim, &dim0) || !wfi_dim_wrap(shape.ndim, &dim1))
        return no_view("no such dimension");
    memcpy(strides, tensor->strides, sizeof(strides));
    shape.dims[dim0] = tensor->shape.dims[dim1];
    shape.dims[dim1] = tensor->shape.dims[dim0];
    strides[dim0] = tensor->strides[dim1];
    strides[dim1] = tensor->strides[dim0];
    return view(tensor, &shape, strides, tensor->offset);
}

weft_tensor *weft_tensor_narrow(weft_tensor *tensor, int dim, int64_t start, int64_t length)
{
    WFI_LIVE(tensor);
    if (tensor == NULL)
        return no_view(there_is_none);
    weft_shape shape = tensor->shape;
    if (!wfi_dim_wrap(shape.ndim, &dim))
        return no_view("no such dimension");
    if (start < 0 || length < 0 || start > shape.dims[dim] || length > shape.dims[dim] - start)
        return no_view("the range lies outside the dimension");
    shape.dims[dim] = length;
    int64_t skipped = length > 0 && tensor->numel > 0 ? start * tensor->strides[dim] : 0;
    return view(tensor, &shape, tensor->strides, tensor->offset + skipped);
}

weft_tensor *weft_tensor_select(weft_tensor *tensor, int dim, int64_t index)
{
    WFI_LIVE(tensor);
    if (tensor == NULL)
        return no_view(there_is_none);
    weft_shape shape = tensor->shape;
    int64_t strides[WEFT_MAX_DIMS] = {0};
    if (!wfi_dim_wrap(shape.ndim, &dim))
        return no_view("no such dimension");
    if (index < 0)
        index += shape.dims[dim];
    if (index < 0 || index >= shape.dims[dim])
        return no_view("the index lies outside the dimension");
    shape.ndim--;
    for (int d = 0; d < shape.ndim; d++) {
        shape.dims[d] = tensor->shape.dims[d + (d >= dim)];
        strides[d] = tensor->strides[d + (d >= dim)];
    }
    int64_t skipped = tensor->numel > 0 ? index * tensor->strides[dim] : 0;
    return view(tensor, &shape, strides, tensor->offset + skipped);
}

static weft_tensor *copied(const weft_tensor *tensor, weft_dtype dtype)
{
    if (tensor == NULL) {
        wfi_log(WEFT_LOG_DEBUG, "no copy: %s", there_is_none);
        return NULL;
    }
    weft_tensor *copy = wfi_tensor_empty_like(tensor, tensor->shape, dtype), *from = wfi_tensor_read(tensor);
    weft_status status = copy == NULL ? WEFT_OK : wfi_copy(from, copy);
    weft_tensor_unref(from);
    if (status == WEFT_OK)
        return copy;
    wfi_log(WEFT_LOG_DEBUG, "no copy of a %s tensor as %s: %s", weft_dtype_name(tensor->dtype), weft_dtype_name(dtype),
            weft_status_text(status));
    weft_tensor_unref(copy);
    return NULL;
}

weft_tensor *weft_tensor_contiguous(weft_tensor *tensor)
{
    WFI_LIVE(tensor);
    return weft_tensor_is_contiguous(tensor) ? wfi_tensor_read(tensor) : copied(tensor, weft_tensor_dtype(tensor));
}

weft_tensor *weft_tensor_clone(const weft_tensor *tensor)
{
    WFI_LIVE(tensor);
    return copied(tensor, weft_tensor_dtype(tensor));
}

weft_tensor *weft_tensor_to(weft_tensor *tensor, weft_dtype dtype)
{
    WFI_LIVE(tensor);
    return copied(tensor, dtype);
}

weft_tensor *weft_tensor_to_device(weft_tensor *tensor, weft_device device)
{
    WFI_LIVE(tensor);
    weft_device now = weft_tensor_device(tensor);
    if (now.kind == device.kind && now.index == device.index)
        return weft_tensor_ref(tensor);
    if (tensor == NULL)
        return NULL;
    weft_tensor *copy = weft_tensor_empty_on(device, tensor->shape, tensor->dtype), *from = wfi_tensor_read(tensor);
    weft_status status = copy == NULL ? WEFT_OK : wfi_copy(from, copy);
    weft_tensor_unref(from);
    if (status == WEFT_OK)
        return copy;
    wfi_log(WEFT_LOG_DEBUG, "no copy to another device: %s", weft_status_text(status));
    weft_tensor_unref(copy);
    return NULL;
}

weft_status weft_tensor_assign(weft_tensor *target, const weft_tensor *source)
{
    WFI_LIVE(target, source);
    if (target == NULL || source == NULL)
        return WEFT_ERR_INVALID;
    wfi_write write;
    weft_tensor *from = wfi_tensor_read(source);
    weft_status status = wfi_write_begin(&write, target, WFI_WRITE_WHOLE, NULL);
    if (status == WEFT_OK) {
        status = wfi_copy(from, write.to);
        wfi_write_end(&write, status == WEFT_OK);
    }
    weft_tensor_unref(from);
    return status;
}

void weft_tensor_fill(weft_tensor *target, double value)
{
    WFI_LIVE(target);
    if (target == NULL)
        return;
    wfi_write write;
    weft_status status = wfi_write_begin(&write, target, WFI_WRITE_WHOLE, NULL);
    if (status == WEFT_OK) {
        status = wfi_fill(write.to, value);
        wfi_write_end(&write, status == WEFT_OK);
    }
    if (status != WEFT_OK)
        wfi_log(WEFT_LOG_ERROR, "a tensor was not filled: %s", weft_status_text(status));
}
