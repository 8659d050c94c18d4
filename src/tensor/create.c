/* SPDX-License-Identifier: Apache-2.0 */
/* create.c - creates tensors with given contents. */
#include "tensor/copy.h"

#include "base/error.h"

#include <string.h>

weft_tensor *wfi_tensor_zeros(weft_shape shape, weft_dtype dtype, weft_error **why)
{
    return wfi_tensor_full(shape, dtype, 0, why);
}

/* Fills `tensor` and returns it. Takes over the caller's reference. NULL: `tensor` is NULL, or cannot be filled. */
static weft_tensor *filled(weft_tensor *tensor, double value, weft_error **why)
{
    weft_status status = tensor ? wfi_fill(tensor, value) : WEFT_OK;
    if (status == WEFT_OK)
        return tensor;
    (void)wfi_error_fail(why, status, "no tensor filled with %g: %s", value, weft_status_text(status));
    weft_tensor_unref(tensor);
    return NULL;
}

weft_tensor *wfi_tensor_full(weft_shape shape, weft_dtype dtype, double value, weft_error **why)
{
    return filled(wfi_tensor_empty(shape, dtype, why), value, why);
}

weft_tensor *wfi_tensor_full_like(const weft_tensor *tensor, weft_shape shape, weft_dtype dtype, double value)
{
    return filled(wfi_tensor_empty_like(tensor, shape, dtype), value, NULL);
}

weft_tensor *wfi_tensor_arange(int64_t count, weft_dtype dtype, weft_error **why)
{
    weft_tensor *counted = wfi_tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_INT64, why);
    if (!counted)
        return NULL;
    int64_t *data = wfi_tensor_address(counted);
    for (int64_t i = 0; i < count; i++)
        data[i] = i;
    if (dtype == WEFT_DTYPE_INT64)
        return counted;
    weft_tensor *tensor = wfi_tensor_to(counted, dtype, why);
    weft_tensor_unref(counted);
    return tensor;
}

weft_tensor *wfi_tensor_copy_of(weft_shape shape, weft_dtype dtype, const void *data, weft_error **why)
{
    weft_tensor *tensor = wfi_tensor_empty(shape, dtype, why);
    if (!tensor || tensor->numel == 0)
        return tensor;
    if (!data) {
        weft_tensor_unref(tensor);
        (void)wfi_error_fail(why, WEFT_ERR_INVALID, "no copy of a NULL pointer");
        return NULL;
    }
    memcpy(wfi_tensor_address(tensor), data, weft_tensor_nbytes(tensor));
    return tensor;
}
