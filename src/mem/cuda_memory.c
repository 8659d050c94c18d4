/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.c - device and page-locked memory by the CUDA runtime. Only in builds with CUDA. On a machine without a
 * driver or device the functions fail with WEFT_ERR_UNSUPPORTED. They do not change the calling thread's device.
 */
#include "mem/backend.h"
#include "mem/cuda.h"

#include "base/error.h"
#include "base/text/log.h"

#include <cuda_runtime_api.h>

weft_status wfi_cuda_status(int code, const char *what)
{
    cudaError_t error = (cudaError_t)code;
    if (error == cudaSuccess)
        return WEFT_OK;
    (void)cudaGetLastError(); /* clears it: otherwise the next caller would get it */
    wfi_log(WEFT_LOG_ERROR, "%s failed: %s", what, cudaGetErrorString(error));
    if (error == cudaErrorMemoryAllocation)
        return WEFT_ERR_MEMORY;
    bool absent = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary;
    return absent ? WEFT_ERR_UNSUPPORTED : WEFT_ERR_SYSTEM;
}

weft_status wfi_cuda_check(int device, weft_error **error)
{
    int count = 0;
    cudaError_t failure = cudaGetDeviceCount(&count);
    if (failure != cudaSuccess) {
        (void)cudaGetLastError();
        return wfi_error_fail(error, WEFT_ERR_UNSUPPORTED, "no cuda:%d here: %s", device, cudaGetErrorString(failure));
    }
    if (count == 0)
        return wfi_error_fail(error, WEFT_ERR_UNSUPPORTED, "no cuda:%d here: this machine shows no GPU", device);
    if (device < 0 || device >= count)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "no cuda:%d here: the GPUs are cuda:0 to cuda:%d", device,
                              count - 1);
    return WEFT_OK;
}

weft_status wfi_cuda_enter(int device, int *before)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return wfi_cuda_status(error, "looking for CUDA devices");
    if (device < 0 || device >= count)
        return WEFT_ERR_INVALID;
    error = cudaGetDevice(before);
    if (error == cudaSuccess && *before != device)
        error = cudaSetDevice(device);
    return wfi_cuda_status(error, "choosing a CUDA device");
}

void wfi_cuda_leave(int device, int before)
{
    if (before != device)
        (void)cudaSetDevice(before);
}

weft_status wfi_cuda_map(wfi_memory_kind kind, int device, size_t size, void **data)
{
    int before = 0;
    weft_status status = wfi_cuda_enter(device, &before);
    if (status != WEFT_OK)
        return status;
    if (kind == WFI_MEMORY_PINNED)
        status = wfi_cuda_status(cudaHostAlloc(data, size, cudaHostAllocPortable), "page-locking memory");
    else
        status = wfi_cuda_status(cudaMalloc(data, size), "allocating device memory");
    wfi_cuda_leave(device, before);
    return status;
}

void wfi_cuda_unmap(wfi_memory_kind kind, int device, void *data)
{
    int before = 0;
    if (wfi_cuda_enter(device, &before) != WEFT_OK)
        return; /* the process is ending, and the runtime has been unloaded */
    cudaError_t error = kind == WFI_MEMORY_PINNED ? cudaFreeHost(data) : cudaFree(data);
    if (error != cudaSuccess && error != cudaErrorCudartUnloading)
        (void)wfi_cuda_status(error, "freeing device memory");
    wfi_cuda_leave(device, before);
}

weft_status wfi_cuda_copy(int to_device, void *to, int from_device, const void *from, size_t size)
{
    int device = to_device >= 0 ? to_device : from_device;
    int before = 0;
    weft_status status = wfi_cuda_enter(device, &before);
    if (status != WEFT_OK)
        return status;
    cudaError_t error;
    if (to_device >= 0 && from_device >= 0 && to_device != from_device)
        error = cudaMemcpyPeer(to, to_device, from, from_device, size);
    else
        error = cudaMemcpy(to, from, size, cudaMemcpyDefault);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(cudaStreamLegacy); /* a copy from device to device is asynchronous */
    status = wfi_cuda_status(error, "copying device memory");
    wfi_cuda_leave(device, before);
    return status;
}
