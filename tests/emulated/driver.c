/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - the driver's functions that weft (mem/cuda_driver.h) or a test uses, and a few more; see gpu.h. */
#include "gpu.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CONTEXTS_MOST 64

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    UNAVAILABLE = 46,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ALREADY_ENABLED = 704,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_FAILED = 719,
};

pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_started;
static bool failed[EMULATED_DEVICES];          /* with an error that stays */
static int retained[EMULATED_DEVICES];         /* primary contexts */
static int devices[EMULATED_DEVICES] = {0, 1}; /* the address of one is the handle of its primary context */
static __thread struct current {
    int *contexts[CONTEXTS_MOST];
    int depth;
} current;
static bool peers[EMULATED_DEVICES][EMULATED_DEVICES]; /* the first may use the memory of the second */
emulated_counts gpu_counts;
static uint64_t fail_after[EMULATED_CALLS];
static uint64_t fail_times[EMULATED_CALLS];
static uint64_t waits_before, forgotten_waits;
static bool expects_fault;
static char *fault_text;

void gpu_fault(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (expects_fault) {
        if (!fault_text)
            fault_text = strdup(text);
        return;
    }
    fprintf(stderr, "emulated GPU: %s\n", text);
    abort();
}

bool gpu_fails_now(emulated_call call)
{
    gpu_counts.calls[call]++;
    if (fail_times[call] == 0)
        return false;
    if (fail_after[call] > 0) {
        fail_after[call]--;
        return false;
    }
    fail_times[call]--;
    return true;
}

static void enter(void)
{
    pthread_mutex_lock(&gpu_lock);
    if (gpu_host_is_inside())
        gpu_fault("a call of the driver in a host function");
}

static bool any_has_failed(void)
{
    bool any = false;
    for (int device = 0; device < EMULATED_DEVICES; device++)
        any = any || failed[device];
    return any;
}

/* An error that the program could have avoided is a fault. Without memory, or if a test wants a failure, it is not. */
static int leave_with(const char *function, int result)
{
    bool is_wanted = result == ILLEGAL_ADDRESS && any_has_failed();
    if (result != SUCCESS && !is_wanted && result != NOT_READY && result != OUT_OF_MEMORY && result != LAUNCH_FAILED &&
        result != LAUNCH_OUT_OF_RESOURCES)
        gpu_fault("%s returned %d", function, result);
    pthread_mutex_unlock(&gpu_lock);
    return result;
}
#define leave(result) leave_with(__func__, result)

/* The device of the context that is current; -1: none is. */
static int device_now(void)
{
    return current.depth == 0 ? -1 : *current.contexts[current.depth - 1];
}

/* Enters if a context is current, and its device works. Otherwise returns the error of the call. */
static int enter_device(int *device)
{
    *device = device_now();
    enter();
    if (*device >= 0 && !failed[*device])
        return SUCCESS;
    if (*device < 0)
        gpu_fault("a call of the driver without a current context");
    pthread_mutex_unlock(&gpu_lock);
    return *device < 0 ? INVALID_CONTEXT : ILLEGAL_ADDRESS;
}

/* ---- Start, devices, contexts ---- */

EXPORT int cuInit(unsigned flags)
{
    enter();
    if (!is_started) {
        const char *seed = getenv("EMULATED_GPU_SEED");
        if (seed)
            gpu_launch_seed(strtoull(seed, NULL, 10));
        gpu_memory_catch();
        gpu_host_start();
        gpu_host_seed(seed ? strtoull(seed, NULL, 10) : 0);
        is_started = true;
    }
    return leave(flags == 0 ? SUCCESS : INVALID_VALUE);
}

EXPORT int cuDriverGetVersion(int *version)
{
    *version = 12000;
    return SUCCESS;
}

EXPORT int cuDeviceGetCount(int *count)
{
    *count = EMULATED_DEVICES;
    return is_started ? SUCCESS : NOT_INITIALIZED;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= EMULATED_DEVICES)
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

EXPORT int cuDeviceGetName(char *name, int length, int device)
{
    snprintf(name, (size_t)length, "emulated GPU %d (no hardware)", device);
    return SUCCESS;
}

/* EMULATED_GPU_PCI has the addresses of all devices, separated by commas. */
EXPORT int cuDeviceGetPCIBusId(char *address, int length, int device)
{
    const char *from = getenv("EMULATED_GPU_PCI");
    for (int i = 0; i < device && from; i++) {
        const char *comma = strchr(from, ',');
        from = !comma ? NULL : comma + 1;
    }
    if (!from)
        snprintf(address, (size_t)length, "0000:%02X:00.0", 0x17 + device);
    else
        snprintf(address, (size_t)length, "%.*s", (int)strcspn(from, ","), from);
    return SUCCESS;
}

/* EMULATED_GPU_UUIDS has those of all devices, 32 hexadecimal digits each, separated by commas. */
EXPORT int cuDeviceGetUuid(uint8_t uuid[16], int device)
{
    const char *from = getenv("EMULATED_GPU_UUIDS");
    char digits[3] = "";
    for (int i = 0; i < 16; i++) {
        const char *at = !from ? NULL : from + device * 33 + 2 * i;
        memcpy(digits, at ? at : device == 0 ? "e0" : "e1", 2);
        uuid[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(size_t *total, int device)
{
    size_t unused;
    enter();
    gpu_memory_info(device, &unused, total);
    return leave(SUCCESS);
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76 };
    (void)device;
    *value = attribute == MULTIPROCESSORS ? 4 : attribute == MAJOR ? 8 : 0;
    return attribute == MULTIPROCESSORS || attribute == MAJOR || attribute == MINOR ? SUCCESS : INVALID_VALUE;
}

/* EMULATED_GPU_BUSY has the number of a device that another process has for itself. */
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    const char *busy = getenv("EMULATED_GPU_BUSY");
    if (busy && strtol(busy, NULL, 10) == device)
        return UNAVAILABLE;
    enter();
    retained[device]++;
    *context = &devices[device];
    return leave(SUCCESS);
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    enter();
    return leave(retained[device]-- > 0 ? SUCCESS : INVALID_CONTEXT);
}

EXPORT int cuCtxPushCurrent_v2(void *context)
{
    if (gpu_host_is_inside())
        gpu_fault("a call of the driver in a host function");
    if (!context || current.depth == CONTEXTS_MOST)
        return INVALID_CONTEXT;
    current.contexts[current.depth++] = context;
    return SUCCESS;
}

EXPORT int cuCtxPopCurrent_v2(void **context)
{
    if (current.depth == 0)
        return INVALID_CONTEXT;
    current.depth--;
    if (context)
        *context = current.contexts[current.depth];
    return SUCCESS;
}

EXPORT int cuCtxGetCurrent(void **context)
{
    *context = current.depth == 0 ? NULL : current.contexts[current.depth - 1];
    return SUCCESS;
}

EXPORT int cuCtxSetCurrent(void *context)
{
    if (current.depth > 0)
        current.depth--;
    return !context ? SUCCESS : cuCtxPushCurrent_v2(context);
}

EXPORT int cuCtxSynchronize(void)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    gpu_counts.synchronisations++;
    gpu_counts.context_waits++;
    gpu_stream_wait_device(device);
    return leave(SUCCESS);
}

EXPORT int cuGetErrorString(int error, const char **text)
{
    *text = error == SUCCESS                   ? "no error"
            : error == OUT_OF_MEMORY           ? "out of memory"
            : error == UNAVAILABLE             ? "CUDA-capable device(s) is/are busy or unavailable"
            : error == INVALID_DEVICE          ? "invalid device ordinal"
            : error == INVALID_CONTEXT         ? "invalid device context"
            : error == NOT_FOUND               ? "named symbol not found"
            : error == ILLEGAL_ADDRESS         ? "an illegal memory access was encountered"
            : error == LAUNCH_OUT_OF_RESOURCES ? "too many resources requested for launch"
            : error == LAUNCH_FAILED           ? "unspecified launch failure"
                                               : "an error";
    return SUCCESS;
}

/* ---- Memory ---- */

EXPORT int cuMemAlloc_v2(uint64_t *at, size_t size)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    if (size == 0)
        return leave(INVALID_VALUE);
    void *taken = gpu_fails_now(EMULATED_ALLOCATION) ? NULL : gpu_memory_take(device, size);
    *at = (uint64_t)(uintptr_t)taken;
    return leave(!taken ? OUT_OF_MEMORY : SUCCESS);
}

/* As the driver does, this waits for all work of the device. If the device has failed, the memory is gone. */
EXPORT int cuMemFree_v2(uint64_t at)
{
    int device, error = enter_device(&device);
    if (error == ILLEGAL_ADDRESS) {
        enter();
        (void)gpu_memory_give((void *)(uintptr_t)at, device);
        return leave(ILLEGAL_ADDRESS);
    }
    if (error != SUCCESS)
        return error;
    const gpu_piece *piece = gpu_memory_find((void *)(uintptr_t)at, 1);
    if (at != 0 && (!piece || piece->device < 0)) {
        gpu_fault("cuMemFree of %p, which is no allocation", (void *)(uintptr_t)at);
        return leave(INVALID_VALUE);
    }
    if (at != 0) {
        gpu_counts.synchronisations++;
        gpu_stream_wait_device(piece->device);
    }
    bool given = at == 0 || gpu_memory_give((void *)(uintptr_t)at, device);
    return leave(given ? SUCCESS : INVALID_VALUE);
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    gpu_memory_info(device, free_bytes, total);
    return leave(SUCCESS);
}

EXPORT int cuMemHostAlloc(void **at, size_t size, unsigned flags)
{
    int device;
    (void)flags;
    int error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    *at = gpu_fails_now(EMULATED_ALLOCATION) ? NULL : gpu_memory_take(-1, size);
    return leave(!*at ? OUT_OF_MEMORY : SUCCESS);
}

EXPORT int cuMemFreeHost(void *at)
{
    int device, error = enter_device(&device);
    if (error == INVALID_CONTEXT)
        return error;
    if (error == ILLEGAL_ADDRESS)
        enter();
    gpu_counts.synchronisations++;
    for (int d = 0; d < EMULATED_DEVICES; d++)
        gpu_stream_wait_device(d);
    bool is_given = gpu_memory_give(at, -1);
    return leave(!is_given ? INVALID_VALUE : error);
}

/* ---- Copies ---- */

typedef struct copy_args {
    void *to;
    const void *from; /* NULL: the bytes follow */
    size_t size;
} copy_args;

static void run_copy(const void *at)
{
    const copy_args *args = at;
    memcpy(args->to, args->from ? args->from : args + 1, args->size);
}

static bool on_device(const void *at, size_t size)
{
    const gpu_piece *piece = gpu_memory_find(at, size);
    if (piece && piece->device >= 0)
        return true;
    gpu_fault("a copy of %zu bytes at %p, which are not within an allocation of a device", size, at);
    return false;
}

/* Queues a copy. `staged`: the source may change as soon as this returns. */
static void add_copy(int device, void *stream, const char *name, void *to, const void *from, size_t size, bool staged)
{
    copy_args *args = malloc(sizeof(*args) + (staged ? size : 0));
    if (!args)
        abort();
    *args = (copy_args){to, staged ? NULL : from, size};
    if (staged)
        memcpy(args + 1, from, size);
    const gpu_operand operands[] = {{to, size, GPU_WRITES}, {from, size, GPU_READS}};
    gpu_stream_add(device, stream,
                   &(gpu_work){.name = name,
                               .run = run_copy,
                               .args = args,
                               .size = sizeof(*args) + (staged ? size : 0),
                               .operands = operands,
                               .operand_count = staged ? 1 : 2});
    free(args);
}

static bool is_pinned(const void *at, size_t size)
{
    const gpu_piece *piece = gpu_memory_find(at, size);
    return piece && piece->device < 0;
}

/* What a copy from or to memory that is not page-locked does is not specified: the seed chooses. It may use the host's
 * bytes before it returns (from the host: it stages them), or when the stream comes to it. */
typedef enum pageable { AT_ONCE, WITH_A_WAIT, LATE, PAGEABLE_KINDS } pageable;

/* `to_host`, `from_host`: which side is the host's. `waits`: the host's bytes are ready when it returns. */
static int copy(void *to, bool to_host, const void *from, bool from_host, size_t size, void *stream, bool waits)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    if (gpu_fails_now(EMULATED_COPY))
        return leave(LAUNCH_FAILED);
    if (size == 0)
        return leave(SUCCESS);
    if ((!to_host && !on_device(to, size)) || (!from_host && !on_device(from, size)))
        return leave(INVALID_VALUE);
    bool is_pageable = (from_host && !is_pinned(from, size)) || (to_host && !is_pinned(to, size));
    pageable kind = waits ? WITH_A_WAIT : is_pageable ? (pageable)gpu_launch_draw(PAGEABLE_KINDS) : LATE;
    gpu_counts.pageable += is_pageable;
    const char *name = from_host ? "a copy to the device" : to_host ? "a copy to the host" : "a copy on the device";
    add_copy(device, stream, name, to, from, size, from_host && kind == AT_ONCE);
    if (kind == WITH_A_WAIT || (to_host && kind == AT_ONCE)) {
        gpu_counts.synchronisations++;
        gpu_counts.pageable_waits += is_pageable;
        gpu_stream_wait(device, stream);
    }
    return leave(SUCCESS);
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size)
{
    return copy((void *)(uintptr_t)to, false, from, true, size, NULL, true);
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size)
{
    return copy(to, true, (void *)(uintptr_t)from, false, size, NULL, true);
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream)
{
    return copy((void *)(uintptr_t)to, false, from, true, size, stream, false);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream)
{
    return copy(to, true, (void *)(uintptr_t)from, false, size, stream, false);
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream)
{
    return copy((void *)(uintptr_t)to, false, (void *)(uintptr_t)from, false, size, stream, false);
}

typedef struct peer_args {
    void *to;
    const void *from;
    size_t size;
    int to_device, from_device;
} peer_args;

static void run_peer(const void *at)
{
    const peer_args *args = at;
    gpu_memory_open(args->to_device);
    gpu_memory_open(args->from_device);
    memcpy(args->to, args->from, args->size);
    gpu_memory_close(args->from_device);
    gpu_memory_close(args->to_device);
}

EXPORT int cuMemcpyPeerAsync(uint64_t to_at, void *to_context, uint64_t from_at, void *from_context, size_t size,
                             void *stream)
{
    int device;
    void *to = (void *)(uintptr_t)to_at, *from = (void *)(uintptr_t)from_at;
    int error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    if (gpu_fails_now(EMULATED_COPY))
        return leave(LAUNCH_FAILED);
    if (!to_context || !from_context || !on_device(to, size) || !on_device(from, size))
        return leave(INVALID_VALUE);
    const peer_args args = {to, from, size, *(int *)to_context, *(int *)from_context};
    const gpu_operand operands[] = {{to, size, GPU_WRITES}, {from, size, GPU_READS}};
    gpu_counts.through_host += !peers[args.to_device][args.from_device];
    gpu_stream_add(stream ? gpu_stream_device(stream) : device, stream,
                   &(gpu_work){.name = "a copy between devices",
                               .run = run_peer,
                               .args = &args,
                               .size = sizeof(args),
                               .operands = operands,
                               .operand_count = 2});
    return leave(SUCCESS);
}

EXPORT int cuDeviceCanAccessPeer(int *possible, int device, int peer)
{
    enter();
    *possible = device != peer;
    return leave(SUCCESS);
}

EXPORT int cuCtxEnablePeerAccess(void *peer_context, unsigned flags)
{
    int device, peer = *(int *)peer_context;
    int error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    if (peer == device || flags != 0)
        return leave(INVALID_VALUE);
    if (peers[device][peer])
        return leave(PEER_ALREADY_ENABLED);
    peers[device][peer] = true;
    return leave(SUCCESS);
}

/* ---- Streams and events ---- */

EXPORT int cuStreamCreate(void **stream, unsigned flags)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    *stream = gpu_stream_open(device, flags == 0);
    return leave(!*stream ? OUT_OF_MEMORY : SUCCESS);
}

EXPORT int cuStreamDestroy_v2(void *stream)
{
    enter();
    gpu_stream_shut(stream);
    return leave(SUCCESS);
}

EXPORT int cuStreamSynchronize(void *stream)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    gpu_counts.synchronisations++;
    gpu_counts.stream_waits++;
    gpu_stream_wait(!stream ? device : gpu_stream_device(stream), stream);
    return leave(SUCCESS);
}

EXPORT int cuStreamGetCtx(void *stream, void **context)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    *context = &devices[stream ? gpu_stream_device(stream) : device];
    return leave(SUCCESS);
}

EXPORT int cuStreamQuery(void *stream)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    return leave(gpu_stream_is_idle(device, stream) ? SUCCESS : NOT_READY);
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    int device;
    (void)flags;
    int error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    if (waits_before == 0 && forgotten_waits > 0) {
        forgotten_waits--;
    } else {
        waits_before -= waits_before > 0;
        gpu_event_block(!stream ? device : gpu_stream_device(stream), stream, event);
    }
    return leave(SUCCESS);
}

EXPORT int cuEventCreate(void **event, unsigned flags)
{
    int device;
    (void)flags;
    int error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    *event = gpu_event_open(device);
    return leave(!*event ? OUT_OF_MEMORY : SUCCESS);
}

EXPORT int cuEventDestroy_v2(void *event)
{
    enter();
    gpu_event_shut(event);
    return leave(SUCCESS);
}

EXPORT int cuEventRecord(void *event, void *stream)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    int of_stream = !stream ? device : gpu_stream_device(stream);
    if (gpu_event_device(event) != of_stream)
        return leave(INVALID_HANDLE);
    gpu_event_record(of_stream, event, stream);
    return leave(SUCCESS);
}

EXPORT int cuEventSynchronize(void *event)
{
    enter();
    if (failed[gpu_event_device(event)])
        return leave(ILLEGAL_ADDRESS);
    gpu_counts.synchronisations++;
    gpu_counts.event_waits++;
    gpu_event_wait(event);
    return leave(failed[gpu_event_device(event)] ? ILLEGAL_ADDRESS : SUCCESS);
}

EXPORT int cuEventQuery(void *event)
{
    enter();
    bool is_done = !failed[gpu_event_device(event)] && gpu_event_is_done(event);
    return leave(failed[gpu_event_device(event)] ? ILLEGAL_ADDRESS : is_done ? SUCCESS : NOT_READY);
}

EXPORT int cuLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    gpu_stream_add_host(!stream ? device : gpu_stream_device(stream), stream, function, argument);
    return leave(SUCCESS);
}

/* ---- Kernels ---- */

/* Any image gives the kernels that this library was built with. */
EXPORT int cuModuleLoadData(void **module, const void *image)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    *module = !image ? NULL : &devices[device];
    return leave(!image ? INVALID_VALUE : SUCCESS);
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    enter();
    const gpu_kernel *kernel = !module ? NULL : gpu_kernel_find(name);
    if (kernel)
        *function = (void *)kernel;
    return leave(kernel ? SUCCESS : NOT_FOUND);
}

typedef struct launch_args {
    const gpu_kernel *kernel;
    unsigned grid[3], block[3];
    uint64_t args[GPU_WORK_ARGS / 8];
} launch_args;

static void run_launch(const void *at)
{
    const launch_args *args = at;
    gpu_launch_run(args->kernel, args->grid, args->block, args->args);
}

/* Whether the address can be read in this process: asks the kernel, which does not fault. */
static bool is_mapped(const void *at)
{
    int pipe_fds[2];
    static int ready, write_end, read_end;
    if (!ready) {
        if (pipe(pipe_fds) != 0)
            return false;
        read_end = pipe_fds[0];
        write_end = pipe_fds[1];
        ready = 1;
    }
    char byte;
    bool mapped = write(write_end, at, 1) == 1;
    if (mapped)
        (void)!read(read_end, &byte, 1);
    return mapped;
}

/* Finds the addresses of allocations among the arguments. Returns false if there is an address that a kernel on this
 * device could not use. */
static bool find_operands(const char *name, int device, const void *args, size_t size, gpu_work *work)
{
    static gpu_operand found[GPU_WORK_ARGS / 8];
    const uint64_t lowest = UINT64_C(5) << 44; /* below are no addresses of programs, but pairs of small integers */
    for (size_t i = 0; i < size / 8; i++) {
        uint64_t word;
        memcpy(&word, (const char *)args + 8 * i, 8);
        const void *at = (const void *)(uintptr_t)word;
        if (word < lowest || word >> 47 != 0)
            continue;
        const gpu_piece *piece = gpu_memory_find(at, 0);
        const char *wrong = NULL;
        if (piece) {
            wrong = piece->device >= 0 && piece->device != device ? "memory of another device" : NULL;
            found[work->operand_count++] = (gpu_operand){at, 0, GPU_USES};
        } else if (gpu_memory_is_device(at)) {
            wrong = "device memory that is freed";
        } else if (is_mapped(at)) {
            wrong = "memory of the host that is not pinned";
        }
        if (wrong) {
            gpu_fault("kernel %s on device %d gets %p in word %zu of its arguments: %s", name, device, at, i, wrong);
            return false;
        }
    }
    work->operands = found;
    return true;
}

EXPORT int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                          void **extra)
{
    enum { SHARED_MOST = 48 << 10, THREADS_MOST = 1024 };
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    if (gpu_fails_now(EMULATED_LAUNCH))
        return leave(LAUNCH_OUT_OF_RESOURCES);
    const gpu_kernel *kernel = function;
    launch_args launch = {.kernel = kernel, .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}};
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    bool fits = grid_x > 0 && grid_x <= INT32_MAX && grid_y > 0 && grid_y <= 65535 && grid_z > 0 && grid_z <= 65535 &&
                threads > 0 && threads <= THREADS_MOST && shared <= SHARED_MOST;
    /* Of the two ways to pass arguments this one tells their size. */
    if (!fits || parameters || !extra || extra[0] != (void *)1 || extra[2] != (void *)2)
        return leave(INVALID_VALUE);
    size_t size = *(const size_t *)extra[3];
    if (size != kernel->args_size || size > sizeof(launch.args)) {
        gpu_fault("kernel %s wants %zu bytes of arguments, and gets %zu", kernel->name, kernel->args_size, size);
        return leave(INVALID_VALUE);
    }
    memcpy(launch.args, extra[1], size);
    gpu_work work = {.name = kernel->name, .run = run_launch, .args = &launch, .size = sizeof(launch)};
    if (!find_operands(kernel->name, device, launch.args, size, &work))
        return leave(ILLEGAL_ADDRESS);
    gpu_stream_add(device, stream, &work);
    return leave(SUCCESS);
}

/* ---- For tests, and for stand-ins of libraries ---- */

/* EMULATED_GPU_WAITS has a file that gets a line for each process: how often it waited for a device. A copy from or to
 * memory that is not page-locked counts, as it may wait. */
static void write_waits(const char *path)
{
    const emulated_counts *counts = &gpu_counts;
    FILE *file = fopen(path, "a");
    if (!file)
        return;
    fprintf(
        file, "%llu\n",
        (unsigned long long)(counts->stream_waits + counts->event_waits + counts->context_waits + counts->pageable));
    fclose(file);
}

/* Work that nobody waited for runs when the process ends, so that its races are reported. */
__attribute__((destructor)) static void run_the_rest(void)
{
    const char *path = getenv("EMULATED_GPU_WAITS");
    if (path && is_started)
        write_waits(path);
    if (gpu_timeline_is_alone() || pthread_mutex_trylock(&gpu_lock) != 0)
        return;
    gpu_host_end();
    for (int device = 0; device < EMULATED_DEVICES; device++)
        gpu_stream_wait_device(device);
    (void)leave(0);
}

EXPORT void emulated_gpu_counts(emulated_counts *out)
{
    enter();
    *out = gpu_counts;
    out->contexts = (uint64_t)current.depth;
    (void)leave(0);
}

EXPORT void emulated_gpu_fail(emulated_call call, uint64_t after, uint64_t times)
{
    enter();
    fail_times[call] = times;
    fail_after[call] = after;
    (void)leave(0);
}

EXPORT void emulated_gpu_forget_waits(uint64_t after, uint64_t times)
{
    enter();
    waits_before = after;
    forgotten_waits = times;
    (void)leave(0);
}

EXPORT void emulated_gpu_seed(uint64_t seed)
{
    enter();
    gpu_launch_seed(seed);
    gpu_host_seed(seed);
    (void)leave(0);
}

EXPORT void emulated_gpu_fail_device(int device)
{
    enter();
    failed[device] = true;
    gpu_stream_drop(device);
    (void)leave(0);
}

EXPORT void emulated_gpu_mend_device(int device)
{
    enter();
    failed[device] = false;
    (void)leave(0);
}

EXPORT void emulated_gpu_expect_fault(void)
{
    enter();
    free(fault_text);
    fault_text = NULL;
    expects_fault = true;
    (void)leave(0);
}

EXPORT const char *emulated_gpu_fault(void)
{
    enter();
    expects_fault = false;
    (void)leave(0);
    return fault_text;
}

EXPORT int emulated_gpu_enqueue(void *stream, const char *name, void (*run)(const void *args), const void *args,
                                size_t size)
{
    int device, error = enter_device(&device);
    if (error != SUCCESS)
        return error;
    if (gpu_fails_now(EMULATED_LAUNCH))
        return leave(LAUNCH_OUT_OF_RESOURCES);
    gpu_work work = {.name = name, .run = run, .args = args, .size = size};
    if (size > GPU_WORK_ARGS)
        return leave(INVALID_VALUE);
    if (!find_operands(name, device, args, size, &work))
        return leave(ILLEGAL_ADDRESS);
    gpu_stream_add(device, stream, &work);
    return leave(SUCCESS);
}
