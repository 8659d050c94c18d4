/* SPDX-License-Identifier: Apache-2.0 */
/* create.c - creates tensors with given contents. */
#include "tensor/copy.h"

#include "base/text/log.h"

#include <string.h>

weft_tensor *weft_tensor_zeros(weft_shape shape, weft_dtype dtype)
{
    return weft_tensor_full(shape, dtype, 0);
}

/* Fills `tensor` and returns it. Takes over the caller's reference. NULL: `tensor` is NULL, or cannot be filled. */
static weft_tensor *filled(weft_tensor *tensor, double value)
{
    if (!tensor || wfi_fill(tensor, value) == WEFT_OK)
        return tensor;
    weft_tensor_unref(tensor);
    return NULL;
}

weft_tensor *weft_tensor_full(weft_shape shape, weft_dtype dtype, double value)
{
    return filled(weft_tensor_empty(shape, dtype), value);
}

weft_tensor *wfi_tensor_full_like(const weft_tensor *tensor, weft_shape shape, weft_dtype dtype, double value)
{
    return filled(wfi_tensor_empty_like(tensor, shape, dtype), value);
}

weft_tensor *weft_tensor_arange(int64_t count, weft_dtype dtype)
{
    weft_tensor *counted = weft_tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_INT64);
    if (!counted)
        return NULL;
    int64_t *data = wfi_tensor_address(counted);
    for (int64_t i = 0; i < count; i++)
        data[i] = i;
    if (dtype == WEFT_DTYPE_INT64)
        return counted;
    weft_tensor *tensor = weft_tensor_to(counted, dtype);
    weft_tensor_unref(counted);
    return tensor;
}

weft_tensor *weft_tensor_copy_of(weft_shape shape, weft_dtype dtype, const void *data)
{
    weft_tensor *tensor = weft_tensor_empty(shape, dtype);
    if (!tensor || tensor->numel == 0)
        return tensor;
    if (!data) {
        weft_tensor_unref(tensor);
        wfi_log(WEFT_LOG_DEBUG, "no copy of a NULL pointer");
        return NULL;
    }
    memcpy(wfi_tensor_address(tensor), data, weft_tensor_nbytes(tensor));
    return tensor;
}
