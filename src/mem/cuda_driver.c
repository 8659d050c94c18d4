/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_driver.c - loads the driver, and keeps one primary context for each device that is used. */
#include "mem/cuda.h"

#include "base/error.h"
#include "base/mutex.h"
#include "base/text/log.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"
#define REASON_TEXT 256

/* `once` guards all fields except the contexts, which are set under `lock` and read without it. They are retained until
 * the process ends. */
static struct driver {
    pthread_once_t once;
    bool is_found, works;
    wfi_cuda_driver functions;
    int devices;
    char reason[REASON_TEXT]; /* why it does not work */
    pthread_mutex_t lock;
    _Atomic(void *) contexts[WFI_CUDA_DEVICES_MAX];
} driver = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

/* The names are those that the driver exports for the calls of CUDA 12. */
static bool find_functions(void *library)
{
    wfi_cuda_driver *f = &driver.functions;
    const struct {
        void *place;
        const char *name;
    } wanted[] = {
        {&f->init, "cuInit"},
        {&f->device_count, "cuDeviceGetCount"},
        {&f->device_get, "cuDeviceGet"},
        {&f->device_name, "cuDeviceGetName"},
        {&f->device_address, "cuDeviceGetPCIBusId"},
        {&f->device_memory, "cuDeviceTotalMem_v2"},
        {&f->device_uuid, "cuDeviceGetUuid"},
        {&f->primary_context, "cuDevicePrimaryCtxRetain"},
        {&f->context_push, "cuCtxPushCurrent_v2"},
        {&f->context_pop, "cuCtxPopCurrent_v2"},
        {&f->error_text, "cuGetErrorString"},
        {&f->memory_alloc, "cuMemAlloc_v2"},
        {&f->memory_free, "cuMemFree_v2"},
        {&f->memory_info, "cuMemGetInfo_v2"},
        {&f->pinned_alloc, "cuMemHostAlloc"},
        {&f->pinned_free, "cuMemFreeHost"},
        {&f->copy_to_device, "cuMemcpyHtoDAsync_v2"},
        {&f->copy_to_host, "cuMemcpyDtoHAsync_v2"},
        {&f->copy_within, "cuMemcpyDtoDAsync_v2"},
        {&f->copy_peer, "cuMemcpyPeerAsync"},
        {&f->peer_possible, "cuDeviceCanAccessPeer"},
        {&f->peer_enable, "cuCtxEnablePeerAccess"},
        {&f->stream_create, "cuStreamCreate"},
        {&f->stream_destroy, "cuStreamDestroy_v2"},
        {&f->stream_query, "cuStreamQuery"},
        {&f->stream_wait, "cuStreamSynchronize"},
        {&f->stream_context, "cuStreamGetCtx"},
        {&f->stream_wait_event, "cuStreamWaitEvent"},
        {&f->event_create, "cuEventCreate"},
        {&f->event_destroy, "cuEventDestroy_v2"},
        {&f->event_record, "cuEventRecord"},
        {&f->event_query, "cuEventQuery"},
        {&f->event_wait, "cuEventSynchronize"},
        {&f->launch_host, "cuLaunchHostFunc"},
        {&f->module_load, "cuModuleLoadData"},
        {&f->module_function, "cuModuleGetFunction"},
        {&f->launch, "cuLaunchKernel"},
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found) {
            snprintf(driver.reason, sizeof(driver.reason), "%s has no %s: it is too old", LIBRARY, wanted[i].name);
            return false;
        }
        memcpy(wanted[i].place, &found, sizeof(found));
    }
    return true;
}

static const char *error_text(int error)
{
    const char *text = NULL;
    return driver.functions.error_text(error, &text) == 0 && text ? text : "an unknown error";
}

/* A driver that was initialized before fork(2) fails in the child, whatever is asked. */
static void in_child(void)
{
    driver.works = false;
    snprintf(driver.reason, sizeof(driver.reason), "CUDA was begun before this process was forked: begin it with exec");
}

static void load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(driver.reason, sizeof(driver.reason), "%s", dlerror());
        return;
    }
    driver.is_found = true;
    if (!find_functions(library))
        return;
    int error = driver.functions.init(0);
    if (error == 0)
        error = driver.functions.device_count(&driver.devices);
    if (error != 0)
        snprintf(driver.reason, sizeof(driver.reason), "%s", error_text(error));
    else if (driver.devices == 0)
        snprintf(driver.reason, sizeof(driver.reason), "this machine shows no GPU");
    driver.works = error == 0 && driver.devices > 0;
    if (driver.works)
        (void)pthread_atfork(NULL, NULL, in_child);
    if (driver.devices > WFI_CUDA_DEVICES_MAX)
        driver.devices = WFI_CUDA_DEVICES_MAX;
}

const wfi_cuda_driver *wfi_cuda_driver_get(void)
{
    pthread_once(&driver.once, load);
    return driver.works ? &driver.functions : NULL;
}

bool wfi_cuda_is_found(const char **why)
{
    *why = wfi_cuda_driver_get() ? NULL : driver.reason;
    return driver.is_found;
}

weft_status wfi_cuda_status(int error, const char *what)
{
    if (error == 0)
        return WEFT_OK;
    wfi_log(WEFT_LOG_ERROR, "%s failed: %s", what, error_text(error));
    if (error == WFI_CUDA_OUT_OF_MEMORY)
        return WEFT_ERR_MEMORY;
    return error == WFI_CUDA_NO_DEVICE ? WEFT_ERR_UNSUPPORTED : WEFT_ERR_SYSTEM;
}

weft_status wfi_cuda_check(int device, weft_error **error)
{
    if (!wfi_cuda_driver_get())
        return wfi_error_fail(error, WEFT_ERR_UNSUPPORTED, "no cuda:%d here: %s", device, driver.reason);
    if (device < 0 || device >= driver.devices)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "no cuda:%d here: the GPUs are cuda:0 to cuda:%d", device,
                              driver.devices - 1);
    return WEFT_OK;
}

const char *wfi_cuda_name(int device, char name[WFI_CUDA_NAME])
{
    int handle = 0;
    snprintf(name, WFI_CUDA_NAME, "none");
    if (wfi_cuda_check(device, NULL) == WEFT_OK && driver.functions.device_get(&handle, device) == 0)
        (void)driver.functions.device_name(name, WFI_CUDA_NAME, handle);
    return name;
}

size_t wfi_cuda_bytes(int device)
{
    int handle = 0;
    size_t total = 0;
    if (wfi_cuda_check(device, NULL) == WEFT_OK && driver.functions.device_get(&handle, device) == 0 &&
        driver.functions.device_memory(&total, handle) != 0)
        return 0;
    return total;
}

int wfi_cuda_count(void)
{
    return wfi_cuda_driver_get() ? driver.devices : 0;
}

const char *wfi_cuda_address(int device, char address[WFI_CUDA_ADDRESS])
{
    int handle = 0;
    address[0] = '\0';
    if (wfi_cuda_check(device, NULL) == WEFT_OK && driver.functions.device_get(&handle, device) == 0)
        (void)driver.functions.device_address(address, WFI_CUDA_ADDRESS, handle);
    return address;
}

bool wfi_cuda_uuid(int device, uint8_t uuid[WFI_CUDA_UUID])
{
    int handle = 0;
    return wfi_cuda_check(device, NULL) == WEFT_OK && driver.functions.device_get(&handle, device) == 0 &&
           driver.functions.device_uuid(uuid, handle) == 0;
}

/* Retains the context if no thread has done so. Returns an error of the driver. */
static int retain(int device, void **out)
{
    int handle = 0, error = 0;
    pthread_mutex_lock(&driver.lock);
    void *context = atomic_load_explicit(&driver.contexts[device], memory_order_relaxed);
    if (!context) {
        error = driver.functions.device_get(&handle, device);
        if (error == 0)
            error = driver.functions.primary_context(&context, handle);
        if (error == 0)
            atomic_store_explicit(&driver.contexts[device], context, memory_order_release);
    }
    pthread_mutex_unlock(&driver.lock);
    *out = context;
    return error;
}

weft_status wfi_cuda_open(int device, weft_error **error)
{
    void *context;
    weft_status status = wfi_cuda_check(device, error);
    int failed = status == WEFT_OK ? retain(device, &context) : 0;
    return failed == 0
               ? status
               : wfi_error_fail(error, WEFT_ERR_SYSTEM, "opening cuda:%d failed: %s", device, error_text(failed));
}

weft_status wfi_cuda_enter(int device)
{
    const wfi_cuda_driver *functions = wfi_cuda_driver_get();
    assert(!wfi_devices_are_barred() && "no call of the driver with an agent's lock");
    if (!functions)
        return WEFT_ERR_UNSUPPORTED;
    if (device < 0 || device >= driver.devices)
        return WEFT_ERR_INVALID;
    void *context = atomic_load_explicit(&driver.contexts[device], memory_order_acquire);
    weft_status status = context ? WEFT_OK : wfi_cuda_status(retain(device, &context), "opening a CUDA device");
    return status == WEFT_OK ? wfi_cuda_status(functions->context_push(context), "choosing a CUDA device") : status;
}

void *wfi_cuda_context(int device)
{
    return atomic_load_explicit(&driver.contexts[device], memory_order_acquire);
}

void wfi_cuda_leave(void)
{
    void *left;
    (void)driver.functions.context_pop(&left);
}
