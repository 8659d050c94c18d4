/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - the parts of the emulated GPU: memory.c, stream.c (queued work), launch.c (blocks and threads), driver.c (the
 * driver's functions).
 *
 * LOCK. One lock guards everything. The driver's functions take it; the functions below are called with it held.
 */
#ifndef EMULATED_GPU_H
#define EMULATED_GPU_H

#include "emulated.h"

#include <stdbool.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATED_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATED_ASAN 1
#endif
#endif
#ifndef EMULATED_ASAN
#define EMULATED_ASAN 0
#endif

/* ---- driver.c ---- */
extern emulated_counts gpu_counts;
/* Ends the process with "emulated GPU: ..." unless a test expects a fault. */
void gpu_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Counts the call. Returns true if emulated_gpu_fail has told this call to fail. */
bool gpu_fails_now(emulated_call call);

/* ---- memory.c ---- */
typedef struct gpu_piece {
    char *at;
    size_t size;
    char *pages;
    size_t pages_size;
    int device; /* -1: pinned memory of the host */
} gpu_piece;

/* NULL: no memory. `device` -1: pinned. */
void *gpu_memory_take(int device, size_t size);
bool gpu_memory_give(void *at, int device_or_pinned); /* false: `at` is no such allocation */
/* The allocation that has [at, at + size), or NULL. */
const gpu_piece *gpu_memory_find(const void *at, size_t size);
bool gpu_memory_is_device(const void *at); /* whether `at` is, or was, in device memory */
/* gpu_memory_open makes a device's memory accessible, gpu_memory_close inaccessible again. Pairs nest. */
void gpu_memory_open(int device);
void gpu_memory_close(int device);
/* Checks the patterns around allocations. `after` names the work that ran last, for the message. */
void gpu_memory_check(const char *after);
/* Installs the SIGSEGV handler, which reports an access outside of an allocation as a fault. */
void gpu_memory_catch(void);

/* ---- stream.c ---- */
typedef struct gpu_stream gpu_stream;
typedef struct gpu_event gpu_event;
enum { GPU_WORK_ARGS = 4096 };
/* Queues run(args) on a stream; NULL: the legacy stream of the device. */
void gpu_stream_add(int device, gpu_stream *stream, const char *name, void (*run)(const void *), const void *args,
                    size_t size);
void gpu_stream_wait(int device, gpu_stream *stream); /* runs all work of the stream, and what it depends on */
void gpu_stream_wait_device(int device);              /* runs all work of the device */
gpu_stream *gpu_stream_open(int device, bool blocking);
void gpu_stream_shut(gpu_stream *stream);
int gpu_stream_device(const gpu_stream *stream);
bool gpu_stream_is_idle(int device, gpu_stream *stream);
gpu_event *gpu_event_open(void);
void gpu_event_shut(gpu_event *event);
void gpu_event_record(int device, gpu_event *event, gpu_stream *stream);
void gpu_event_block(int device, gpu_stream *stream, gpu_event *event); /* later work of the stream waits for it */
void gpu_event_wait(gpu_event *event);
bool gpu_event_is_done(const gpu_event *event);

/* ---- launch.c ---- */
typedef struct gpu_kernel {
    const char *name;
    size_t args_size;
    void (*run)(const void *args); /* one thread */
    struct gpu_kernel *next;
} gpu_kernel;

const gpu_kernel *gpu_kernel_find(const char *name);
void gpu_launch_run(const gpu_kernel *kernel, const unsigned grid[3], const unsigned block[3], const void *args);
void gpu_launch_seed(uint64_t seed);
const char *gpu_launch_where(void); /* describes the thread that runs; NULL: none runs */

#endif
