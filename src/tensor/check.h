/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - the kernels' checks of their arguments. */
#ifndef WFI_CHECK_H
#define WFI_CHECK_H

#include "tensor/tensor.h"

#include <assert.h>

/* Contiguous, and not device memory. NULL passes. */
static inline weft_status wfi_check_plain(const weft_tensor *tensor)
{
    if (!tensor)
        return WEFT_OK;
    bool plain = wfi_tensor_kind(tensor) != WFI_MEMORY_CUDA && weft_tensor_is_contiguous(tensor);
    return plain ? WEFT_OK : WEFT_ERR_UNSUPPORTED;
}

/* Plain, of float32 or float64, and of the same dtype as `like`. NULL passes. */
static inline weft_status wfi_check_float(const weft_tensor *tensor, const weft_tensor *like)
{
    if (!tensor)
        return WEFT_OK;
    if (!wfi_dtype_is_float(tensor->dtype) || tensor->dtype != like->dtype)
        return WEFT_ERR_TYPE;
    return wfi_check_plain(tensor);
}

/* Checks all of a list of `count` tensors; the first sets the dtype. */
static inline weft_status wfi_check_floats(int count, const weft_tensor *const *tensors)
{
    for (int i = 0; i < count; i++) {
        weft_status status = wfi_check_float(tensors[i], tensors[0]);
        if (status != WEFT_OK)
            return status;
    }
    return WEFT_OK;
}
#define WFI_CHECK_FLOATS(...)                                                                                          \
    wfi_check_floats((int)(sizeof((const weft_tensor *[]){__VA_ARGS__}) / sizeof(const weft_tensor *)),                \
                     (const weft_tensor *[]){__VA_ARGS__})

/* ---- The same for functions that also run on GPUs (tasks.h) ---- */

static inline bool wfi_tensor_is_on_gpu(const weft_tensor *tensor)
{
    return wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA;
}

/* Contiguous, and on the device of `like`. NULL passes. If that is a GPU, work that is queued now may read the tensor;
 * if the tensor is not new and that work writes it, the caller also needs wfi_tensor_use. */
static inline weft_status wfi_check_beside(const weft_tensor *tensor, const weft_tensor *like)
{
    if (!tensor)
        return WEFT_OK;
    weft_device device = weft_tensor_device(tensor), other = weft_tensor_device(like);
    bool together = wfi_device_equal(device, other);
    if (!together || !weft_tensor_is_contiguous(tensor))
        return WEFT_ERR_UNSUPPORTED;
    return device.kind == WEFT_DEVICE_CPU ? WEFT_OK : wfi_tensor_use(tensor, false);
}

static inline weft_status wfi_check_float_beside(const weft_tensor *tensor, const weft_tensor *like)
{
    if (!tensor)
        return WEFT_OK;
    if (!wfi_dtype_is_float(tensor->dtype) || tensor->dtype != like->dtype)
        return WEFT_ERR_TYPE;
    return wfi_check_beside(tensor, like);
}

static inline weft_status wfi_check_floats_together(int count, const weft_tensor *const *tensors)
{
    for (int i = 0; i < count; i++) {
        weft_status status = wfi_check_float_beside(tensors[i], tensors[0]);
        if (status != WEFT_OK)
            return status;
    }
    return WEFT_OK;
}
#define WFI_CHECK_FLOATS_TOGETHER(...)                                                                                 \
    wfi_check_floats_together((int)(sizeof((const weft_tensor *[]){__VA_ARGS__}) / sizeof(const weft_tensor *)),       \
                              (const weft_tensor *[]){__VA_ARGS__})

/* A vector of `length`; NULL passes. */
static inline bool wfi_tensor_is_vector(const weft_tensor *tensor, int64_t length)
{
    return !tensor || (tensor->shape.ndim == 1 && tensor->numel == length);
}

/* True for float32, false for float64. The caller has checked that `dtype` is one of the two (wfi_check_float). */
static inline bool wfi_dtype_is_f32(weft_dtype dtype)
{
    assert(wfi_dtype_is_float(dtype));
    return dtype == WEFT_DTYPE_FLOAT32;
}
#define WFI_BY_FLOAT(dtype, f32, f64) (wfi_dtype_is_f32(dtype) ? (f32) : (f64))

#endif
