/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - the parts of the emulated GPU: memory.c, clock.c (the order of work), race.c, stream.c (queued work),
 * launch.c (blocks and threads), host.c (host functions), driver.c (the driver's functions).
 *
 * LOCK. One lock guards everything. The driver's functions take it; the functions below are called with it held. It
 * is released while a host function runs, so the functions that run work may find other work queued when they
 * return.
 */
#ifndef EMULATED_GPU_H
#define EMULATED_GPU_H

#include "emulated.h"

#include <pthread.h>
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
extern pthread_mutex_t gpu_lock;
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
void gpu_memory_info(int device, size_t *free_bytes, size_t *total);
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

/* ---- clock.c ---- */
typedef struct gpu_clock { /* of an item; free() releases it */
    int count;             /* later timelines have the tick 0 */
    uint32_t ticks[];      /* by timeline: the last tick that comes before the item, or is its own */
} gpu_clock;
/* Opens a timeline for a new stream; -1: there are too many. Timeline D is that of the legacy stream of device D. */
int gpu_timeline_open(int device, bool blocking);
void gpu_timeline_shut(int timeline);
bool gpu_timeline_is_alone(void);           /* no stream was ever created: all work is in order */
unsigned gpu_timeline_stream(int timeline); /* the number of its stream, for messages; 0: the legacy stream */
gpu_clock *gpu_clock_next(int timeline);    /* makes the clock of an item that is queued now */
/* Later items of the timeline, or of all timelines, come after the item with this clock. NULL: does nothing. */
void gpu_clock_follow(int timeline, const gpu_clock *clock);
void gpu_clock_host_waited(const gpu_clock *clock);
void gpu_clock_host_waited_for(int device, int timeline); /* for all items so far; -1: of all timelines of the device */
bool gpu_clock_host_knows(int timeline, uint32_t tick);   /* all later items come after this one */

/* ---- race.c ---- */
typedef enum gpu_use { GPU_READS, GPU_WRITES, GPU_USES } gpu_use; /* USES: a kernel, which may do both */
typedef struct gpu_operand {
    const char *at;
    size_t size; /* of USES: 0 */
    gpu_use use;
} gpu_operand;
typedef struct gpu_item { /* queued work, as race.c sees it */
    const char *name;
    uint64_t number; /* in the order in which work is queued */
    int device, timeline;
    gpu_clock *clock;
    gpu_operand *operands;
    size_t operand_count;
} gpu_item;
/* Around the run of an item, whose device's memory is open: compare the memory, and report races with former items. */
void gpu_race_before(const gpu_item *item);
void gpu_race_after(const gpu_item *item);
void gpu_race_forget(const char *piece); /* the allocation is freed */
void gpu_race_settle(void);              /* nothing is queued: forgets items that come before all later ones */

/* ---- stream.c ---- */
typedef struct gpu_stream gpu_stream;
typedef struct gpu_event gpu_event;
enum { GPU_WORK_ARGS = 4096 };
typedef struct gpu_work {
    const char *name;
    void (*run)(const void *args);
    const void *args; /* copied */
    size_t size;
    const gpu_operand *operands; /* copied */
    size_t operand_count;
} gpu_work;
/* Queues run(args) on a stream; NULL: the legacy stream of the device. */
void gpu_stream_add(int device, gpu_stream *stream, const gpu_work *what);
void gpu_stream_wait(int device, gpu_stream *stream); /* runs all work of the stream, and what it depends on */
void gpu_stream_wait_device(int device);              /* runs all work of the device */
gpu_stream *gpu_stream_open(int device, bool blocking);
void gpu_stream_shut(gpu_stream *stream); /* runs its work; the host does not count as having waited */
int gpu_stream_device(const gpu_stream *stream);
bool gpu_stream_is_idle(int device, gpu_stream *stream);
gpu_event *gpu_event_open(int device);
void gpu_event_shut(gpu_event *event);
void gpu_event_record(int device, gpu_event *event, gpu_stream *stream);
void gpu_event_block(int device, gpu_stream *stream, gpu_event *event); /* later work of the stream waits for it */
void gpu_event_wait(gpu_event *event);
/* Asked several times, it runs what the event waits for: with a thread after the number of questions that the seed
 * chooses; otherwise each question runs what the seed chooses. */
bool gpu_event_is_done(gpu_event *event);
int gpu_event_device(const gpu_event *event);
/* Queues a host function, which runs on the thread of host.c. */
void gpu_stream_add_host(int device, gpu_stream *stream, void (*function)(void *argument), void *argument);
/* How many host functions wait to be called; whether something waits for one of them. */
unsigned gpu_stream_host_functions(bool *is_needed);
void gpu_stream_run_host_function(unsigned which); /* and what it follows; `which` too large: only what is needed */
void gpu_stream_drop(int device);                  /* the device has failed: forgets its work */

/* ---- host.c ---- */
void gpu_host_start(void);
void gpu_host_seed(uint64_t seed);
unsigned gpu_host_draw(unsigned end); /* its own random numbers: the thread does not change those of kernels */
bool gpu_host_is_polled(void);        /* there is no thread */
bool gpu_host_is_inside(void);        /* this thread is in a host function */
void gpu_host_end(void);              /* the process ends: no host function is called any more */
bool gpu_host_is_ending(void);
void gpu_host_changed(void); /* the queue has: wakes the thread, and those who wait for it */
bool gpu_host_calls(void);   /* this thread calls host functions itself */
void gpu_host_call(void (*function)(void *argument), void *argument); /* without the lock */
void gpu_host_wait(void);                                             /* until the thread has called one */

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
unsigned gpu_launch_draw(unsigned end); /* a random number below `end` */
const char *gpu_launch_where(void);     /* describes the thread that runs; NULL: none runs */

#endif
