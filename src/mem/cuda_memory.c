/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.c - device memory and page-locked memory, by the CUDA driver. Without a driver or a device the functions
 * fail with WEFT_ERR_UNSUPPORTED. They do not change the calling thread's context.
 */
#include "mem/backend.h"
#include "mem/cuda.h"
#include "mem/stream.h"
#include "mem/upload.h"

#define PINNED_FOR_ALL_CONTEXTS 1 /* CU_MEMHOSTALLOC_PORTABLE */

static uint64_t address_of(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

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
    int error = kind == WFI_MEMORY_PINNED ? driver->pinned_free(data) : driver->memory_free(address_of(data));
    if (error != WFI_CUDA_DEINITIALIZED)
        (void)wfi_cuda_status(error, "freeing device memory");
    wfi_cuda_leave();
}

/* The driver wants both contexts as handles, so both become current for a while. That of `to` is current before and
 * afterwards. */
static int copy_between(const wfi_cuda_driver *driver, void *to, int from_device, const void *from, size_t size)
{
    void *to_context = NULL, *from_context = NULL;
    int error = driver->context_pop(&to_context);
    if (error != 0)
        return error;
    if (wfi_cuda_enter(from_device) == WEFT_OK)
        error = driver->context_pop(&from_context);
    int pushed = driver->context_push(to_context);
    if (error == 0 && pushed == 0 && from_context)
        error = driver->copy_between(address_of(to), to_context, address_of(from), from_context, size);
    return error != 0 ? error : pushed;
}

weft_status wfi_cuda_copy(int to_device, void *to, wfi_memory_kind from_kind, int from_device, const void *from,
                          size_t size)
{
    weft_status status = wfi_cuda_enter(to_device);
    if (status != WEFT_OK)
        return status;
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    void *stream = wfi_stream_now(to_device)->driver;
    int error;
    if (from_kind == WFI_MEMORY_HOST) {
        error = wfi_upload(to_device, address_of(to), from, size, stream);
    } else if (from_kind == WFI_MEMORY_PINNED) { /* the device reads it later, and the caller may change it at once */
        error = driver->copy_to_device(address_of(to), from, size, stream);
        if (error == 0)
            error = driver->stream_wait(stream);
    } else if (from_device == to_device) {
        error = driver->copy_within(address_of(to), address_of(from), size, stream);
    } else {
        error = copy_between(driver, to, from_device, from, size);
    }
    status = wfi_cuda_status(error, "copying device memory");
    wfi_cuda_leave();
    return status;
}
