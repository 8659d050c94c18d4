/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - returns the device of a tensor, and creates tensors on a given device. */
#include "tensor/tensor.h"

#include "base/error.h"

#include <stdio.h>

weft_device weft_tensor_device(const weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    if (tensor && wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA)
        return (weft_device){WEFT_DEVICE_CUDA, wfi_storage_device(wfi_tensor_storage(tensor))};
    return (weft_device){WEFT_DEVICE_CPU, 0};
}

const char *wfi_device_text(weft_device device, char text[WFI_DEVICE_TEXT])
{
    if (device.kind == WEFT_DEVICE_CPU)
        snprintf(text, WFI_DEVICE_TEXT, "the CPU");
    else
        snprintf(text, WFI_DEVICE_TEXT, "cuda:%d", device.index);
    return text;
}

weft_status weft_device_check(weft_device device, weft_error **error)
{
    if (device.kind == WEFT_DEVICE_CUDA)
        return wfi_memory_check_cuda(device.index, error);
    if (device.kind != WEFT_DEVICE_CPU)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "%d is no kind of device: %d is the CPU, %d a CUDA device",
                              (int)device.kind, WEFT_DEVICE_CPU, WEFT_DEVICE_CUDA);
    if (device.index != 0)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "the CPU has number 0, not %d", device.index);
    return WEFT_OK;
}

static weft_tensor *empty(weft_device device, wfi_memory_kind kind, weft_shape shape, weft_dtype dtype,
                          weft_error **why)
{
    if (device.kind == WEFT_DEVICE_CPU && device.index == 0)
        return wfi_tensor_empty(shape, dtype, why);
    char text[WFI_WANTED_TEXT], fault[WFI_NO_TENSOR_TEXT];
    weft_error *error = NULL;
    weft_tensor *tensor = NULL;
    weft_status status = weft_device_check(device, &error);
    if (status == WEFT_OK)
        status = wfi_tensor_create(shape, dtype, kind, device.index, &tensor);
    if (status != WEFT_OK)
        (void)wfi_error_fail(why, status, "no new tensor %s: %s", wfi_tensor_wanted(&shape, dtype, text),
                             error ? weft_error_message(error) : wfi_tensor_fault(&shape, dtype, status, fault));
    weft_error_unref(error);
    return tensor;
}

weft_tensor *wfi_tensor_empty_on(weft_device device, weft_shape shape, weft_dtype dtype, weft_error **why)
{
    return empty(device, WFI_MEMORY_CUDA, shape, dtype, why);
}

weft_tensor *wfi_tensor_empty_pinned(weft_device device, weft_shape shape, weft_dtype dtype, weft_error **why)
{
    return empty(device, WFI_MEMORY_PINNED, shape, dtype, why);
}

weft_tensor *wfi_tensor_empty_like(const weft_tensor *tensor, weft_shape shape, weft_dtype dtype)
{
    return wfi_tensor_empty_on(weft_tensor_device(tensor), shape, dtype, NULL);
}
