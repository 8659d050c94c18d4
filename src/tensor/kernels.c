/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c - the tables by device; see kernels.h. */
#include "tensor/kernels.h"

#include "tensor/tasks.h"
#include "tensor/tensor.h"

static const wfi_copy_kernels *const copies[WFI_DEVICE_KINDS] = {
    [WEFT_DEVICE_CPU] = wfi_copy_cpu,
    [WEFT_DEVICE_CUDA] = wfi_copy_cuda,
};
static const wfi_elementwise_kernels *const elementwise[WFI_DEVICE_KINDS] = {
    [WEFT_DEVICE_CPU] = wfi_elementwise_cpu,
    [WEFT_DEVICE_CUDA] = wfi_elementwise_cuda,
};

static const wfi_gpu_runner *const runners[WFI_DEVICE_KINDS] = {[WEFT_DEVICE_CUDA] = &wfi_gpu_runner_cuda};

const wfi_copy_kernels *wfi_copy_kernels_of(const weft_tensor *tensor)
{
    static const wfi_copy_kernels none;
    const wfi_copy_kernels *by_dtype = copies[weft_tensor_device(tensor).kind];
    return by_dtype ? &by_dtype[tensor->dtype] : &none;
}

const wfi_elementwise_kernels *wfi_elementwise_kernels_of(const weft_tensor *tensor)
{
    static const wfi_elementwise_kernels none;
    const wfi_elementwise_kernels *by_dtype = elementwise[weft_tensor_device(tensor).kind];
    return by_dtype ? &by_dtype[tensor->dtype] : &none;
}

weft_status wfi_gpu_run(wfi_gpu_kind kind, const wfi_gpu_task *task, size_t size)
{
    if (task->count == 0)
        return WEFT_OK;
    const wfi_gpu_runner *runner = runners[task->device.kind];
    return runner ? (*runner)(kind, task, size) : WEFT_ERR_UNSUPPORTED;
}

weft_status wfi_no_kernel(const weft_tensor *tensor)
{
    return weft_tensor_device(tensor).kind == WEFT_DEVICE_CPU ? WEFT_ERR_TYPE : WEFT_ERR_UNSUPPORTED;
}
