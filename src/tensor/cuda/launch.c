/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c - loads the kernels into a device when its first one is started, and starts them. */
#include "tensor/cuda/launch.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/text/log.h"
#include "mem/cuda.h"
#include "mem/stream.h"
#include "tensor/cuda/image.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCKS_MOST (1 << 16) /* beyond that a thread or a block has several pieces */

typedef struct device_kernels {
    bool loaded;   /* all of them */
    char why[160]; /* they are not loaded */
    void *functions[WFI_CUDA_KERNELS];
} device_kernels;

/* A device's kernels are loaded under the lock, and kept until the process ends. */
static struct kernels {
    pthread_mutex_t lock;
    _Atomic(device_kernels *) devices[WFI_CUDA_DEVICES_MAX];
} kernels = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define KERNEL_NAME(name) [WFI_KERNEL_##name] = "weft_" #name,
static const char *const names[WFI_CUDA_KERNELS] = {WFI_KERNEL_LIST(KERNEL_NAME)};

/* The context of the device is current. [lock] */
static void load(int device, device_kernels *into)
{
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    void *module = NULL;
    const char *missing = NULL;
    int error = driver->module_load(&module, wfi_cuda_image);
    for (int k = WFI_NO_KERNEL + 1; k < WFI_CUDA_KERNELS && error == 0 && !missing; k++)
        if (driver->module_function(&into->functions[k], module, names[k]) != 0)
            missing = names[k];
    into->loaded = error == 0 && !missing;
    if (into->loaded)
        return;
    bool unfit = error == WFI_CUDA_INVALID_IMAGE || error == WFI_CUDA_NO_BINARY_FOR_GPU ||
                 error == WFI_CUDA_INVALID_PTX || error == WFI_CUDA_UNSUPPORTED_PTX_VERSION;
    const char *why = unfit && !wfi_cuda_image_built
                          ? "this weft was built without them: configure it with WEFT_CUDA=ON"
                      : unfit      ? "those of this weft are for other GPUs or a newer driver"
                      : error != 0 ? "the driver cannot load them"
                                   : "this weft lacks one, build it again: ";
    snprintf(into->why, sizeof(into->why), "no kernels for cuda:%d: %s%s", device, why, missing ? missing : "");
    wfi_log(WEFT_LOG_ERROR, "%s", into->why);
    if (error != 0 && !unfit)
        (void)wfi_cuda_status(error, "loading the kernels");
}

static const device_kernels *kernels_of(int device)
{
    device_kernels *found = atomic_load_explicit(&kernels.devices[device], memory_order_acquire);
    if (found)
        return found;
    pthread_mutex_lock(&kernels.lock);
    found = atomic_load_explicit(&kernels.devices[device], memory_order_relaxed);
    if (!found) {
        found = wfi_calloc(1, sizeof(*found));
        if (found) {
            load(device, found);
            atomic_store_explicit(&kernels.devices[device], found, memory_order_release);
        }
    }
    pthread_mutex_unlock(&kernels.lock);
    return found;
}

weft_status wfi_launch_try(int device, weft_error **error)
{
    weft_status status = wfi_cuda_open(device, error);
    if (status != WEFT_OK)
        return status;
    status = wfi_cuda_enter(device);
    if (status != WEFT_OK)
        return wfi_error_fail(error, status, "entering cuda:%d failed: %s", device, weft_status_text(status));
    const device_kernels *all = kernels_of(device);
    wfi_cuda_leave();
    if (!all)
        return wfi_error_fail(error, WEFT_ERR_MEMORY, "no memory for the list of the kernels of cuda:%d", device);
    return all->loaded ? WEFT_OK : wfi_error_fail(error, WEFT_ERR_UNSUPPORTED, "%s", all->why);
}

static weft_status launch(wfi_cuda_kernel kernel, int device, int64_t blocks, const void *args, size_t size)
{
    enum { END = 0, BUFFER = 1, SIZE = 2 }; /* CU_LAUNCH_PARAM_... */
    weft_status status = wfi_cuda_enter(device);
    if (status != WEFT_OK)
        return status;
    const device_kernels *all = kernels_of(device);
    void *extra[] = {(void *)BUFFER, (void *)args, (void *)SIZE, &size, (void *)END};
    unsigned grid = (unsigned)(blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST);
    if (!all)
        status = WEFT_ERR_MEMORY;
    else if (!all->loaded)
        status = WEFT_ERR_UNSUPPORTED;
    else
        status = wfi_cuda_status(wfi_cuda_driver_get()->launch(all->functions[kernel], grid, 1, 1, WFI_BLOCK_THREADS, 1,
                                                               1, 0, wfi_stream_now(device)->driver, NULL, extra),
                                 names[kernel]);
    wfi_cuda_leave();
    return status;
}

weft_status wfi_launch_threads(wfi_cuda_kernel kernel, weft_device device, int64_t count, const void *args, size_t size)
{
    if (count == 0)
        return WEFT_OK;
    return launch(kernel, device.index, (count - 1) / WFI_BLOCK_THREADS + 1, args, size);
}

weft_status wfi_launch_blocks(wfi_cuda_kernel kernel, weft_device device, int64_t count, const void *args, size_t size)
{
    return count == 0 ? WEFT_OK : launch(kernel, device.index, count, args, size);
}
