/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.c - device memory and page-locked memory, by the CUDA driver. Without a driver or a device the functions
 * fail with WEFT_ERR_UNSUPPORTED. They do not change the calling thread's context.
 */
#include "mem/backend.h"
#include "mem/cuda.h"
#include "mem/stream.h"
#include "mem/upload.h"

#include <pthread.h>

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

/* Lets each of two devices use the other's memory, if the machine can. Otherwise the driver copies through the host. */
static void enable_peers(const wfi_cuda_driver *driver, int one, int other)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `tried` */
    static bool tried[WFI_CUDA_DEVICES_MAX][WFI_CUDA_DEVICES_MAX];
    const int devices[] = {one, other};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2 && !tried[one][other]; i++) {
        int handle = 0, peer = 0, possible = 0;
        if (wfi_cuda_enter(devices[i]) != WEFT_OK)
            continue;
        if (driver->device_get(&handle, devices[i]) == 0 && driver->device_get(&peer, devices[1 - i]) == 0 &&
            driver->peer_possible(&possible, handle, peer) == 0 && possible) {
            int error = driver->peer_enable(wfi_cuda_context(devices[1 - i]), 0);
            if (error != WFI_CUDA_PEER_ALREADY_ENABLED) /* by another library: as well */
                (void)wfi_cuda_status(error, "letting a GPU use the memory of another");
        }
        wfi_cuda_leave();
    }
    tried[one][other] = tried[other][one] = true;
    pthread_mutex_unlock(&lock);
}

/*
 * The source's stream copies. A storage knows only streams of its own device, and the destination counts as written by
 * its own stream: so the source's stream first waits for that one, which waits for the copy. The host waits for none.
 */
static weft_status copy_between(int to_device, void *to, int from_device, const void *from, size_t size)
{
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    weft_stream *reader = wfi_stream_now(from_device), *writer = wfi_stream_now(to_device);
    weft_status status = wfi_stream_follow_peer(reader, writer);
    if (status == WEFT_OK)
        status = wfi_cuda_enter(from_device);
    if (status != WEFT_OK)
        return status;
    enable_peers(driver, from_device, to_device);
    int error = driver->copy_peer(address_of(to), wfi_cuda_context(to_device), address_of(from),
                                  wfi_cuda_context(from_device), size, reader->driver);
    wfi_cuda_leave();
    status = wfi_cuda_status(error, "copying between devices");
    if (status == WEFT_OK)
        status = wfi_stream_follow_peer(writer, reader);
    if (status != WEFT_OK)
        (void)wfi_stream_wait(reader); /* the caller frees the destination: the copy must not run later */
    return status;
}

weft_status wfi_cuda_copy(int to_device, void *to, wfi_memory_kind from_kind, int from_device, const void *from,
                          size_t size)
{
    if (from_kind == WFI_MEMORY_CUDA && from_device != to_device)
        return copy_between(to_device, to, from_device, from, size);
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
    } else {
        error = driver->copy_within(address_of(to), address_of(from), size, stream);
    }
    status = wfi_cuda_status(error, "copying device memory");
    wfi_cuda_leave();
    return status;
}
