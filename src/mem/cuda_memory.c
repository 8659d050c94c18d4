/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.c - device memory and page-locked memory, by the CUDA driver. Without a driver or a device the functions
 * fail with WEFT_ERR_UNSUPPORTED. They do not change the calling thread's context.
 */
#include "mem/backend.h"
#include "mem/cuda.h"

#define PINNED_FOR_ALL_CONTEXTS 1 /* CU_MEMHOSTALLOC_PORTABLE */

weft_status wfi_cuda_map(wfi_memory_kind kind, int device, size_t size, void **data)
{
    weft_status status = wfi_cuda_enter(device);
    if (status != WEFT_OK)
        return status;
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    uint64_t at = 0;
    int error = kind == WFI_MEMORY_PINNED ? driver->pinned_alloc(data, size, PINNED_FOR_ALL_CONTEXTS)
                                          : driver->memory_alloc(&at, size);
    if (error == 0 && kind != WFI_MEMORY_PINNED)
        *data = (void *)(uintptr_t)at;
    if (error == WFI_CUDA_OUT_OF_MEMORY) /* the caller frees idle memory and tries again: it logs the failure */
        status = WEFT_ERR_MEMORY;
    else
        status = wfi_cuda_status(error, kind == WFI_MEMORY_PINNED ? "page-locking memory" : "allocating device memory");
    wfi_cuda_leave();
    return status;
}

bool wfi_cuda_memory_info(int device, size_t *free, size_t *total)
{
    if (wfi_cuda_enter(device) != WEFT_OK)
        return false;
    bool known = wfi_cuda_driver_get()->memory_info(free, total) == 0;
    wfi_cuda_leave();
    return known;
}

void wfi_cuda_unmap(wfi_memory_kind kind, int device, void *data)
{
    if (wfi_cuda_enter(device) != WEFT_OK)
        return; /* the process is ending, and the driver has been unloaded */
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    int error = kind == WFI_MEMORY_PINNED ? driver->pinned_free(data) : driver->memory_free((uint64_t)(uintptr_t)data);
    if (error != WFI_CUDA_DEINITIALIZED)
        (void)wfi_cuda_status(error, "freeing device memory");
    wfi_cuda_leave();
}
