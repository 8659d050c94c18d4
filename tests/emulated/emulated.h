/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emulated.h - controls the emulated GPU. For tests, and for the stand-in of cuBLAS.
 *
 * The emulated GPU is a stand-in for libcuda.so.1. A program finds it through the library path, and runs the same code
 * as on a GPU. The emulated GPU has two devices. Tests find the functions below with dlsym, because a real driver does
 * not have them.
 *
 * WHAT IT CHECKS. The host cannot read or write device memory. A kernel can only use the memory of its own device, and
 * pinned memory. Each allocation ends at an inaccessible page, except for up to 255 bytes of alignment. These bytes
 * have a pattern, which is checked. New memory has all bits set: NaN as a float, -1 as an integer. Freed memory is
 * inaccessible, and its address is not used again. Work on a stream runs as late as CUDA's rules allow, so a missing
 * synchronisation shows. Blocks, warps and threads run in an order that depends on EMULATED_GPU_SEED. A fault of the
 * program ends the process with a message that begins with "emulated GPU:". A copy from or to memory that is not
 * page-locked uses the host's bytes at once or as late as possible, as the seed chooses: NVIDIA promises neither. A
 * call of the driver that fails is a fault, unless memory is out or the test asked for the failure.
 *
 * HOST FUNCTIONS run on a thread of their own, some time after the work before them, as the seed chooses. What they
 * follow then runs too. A call of the driver in a host function is a fault. A query of an event that is not ready
 * runs its work after some more questions. With EMULATED_GPU_HOST=polled there is no thread: each query of an event
 * is a step, in which the seed chooses what runs, host functions too. Then a simulation with fibers is
 * deterministic.
 *
 * RACES. Two kernels or copies on different streams that use the same bytes, of which one writes, need an order: by an
 * event, by the legacy stream, or because the host waited for the first before it queued the second. Without one, the
 * second to run is reported, with both names, streams and ranges of bytes (race.c). Work that nothing waits for runs
 * when the process ends. What a kernel writes is found by comparing memory before and after it runs, so a kernel that
 * writes the bytes that were there before counts as a reader. All threads of the host count as one.
 *
 * WHAT IT CANNOT SHOW. Speed, generated code, the weak order of memory, and what NVIDIA's libraries do.
 */
#ifndef EMULATED_H
#define EMULATED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMULATED_DEVICES 2

typedef enum emulated_call { EMULATED_ALLOCATION, EMULATED_COPY, EMULATED_LAUNCH, EMULATED_CALLS } emulated_call;

typedef struct emulated_counts {
    uint64_t calls[EMULATED_CALLS]; /* allocations; copies of all kinds; launches */
    uint64_t pageable;              /* copies from or to memory of the host that is not page-locked */
    uint64_t through_host;          /* copies between devices that may not use each other's memory */
    uint64_t stream_waits, event_waits, context_waits; /* cuStreamSynchronize, cuEventSynchronize, cuCtxSynchronize */
    uint64_t pageable_waits;             /* copies from or to memory that is not page-locked, which waited */
    uint64_t host_functions;             /* that were called */
    uint64_t device_bytes, pinned_bytes; /* of the allocations that are not freed */
    uint64_t synchronisations; /* calls that waited for a device: copies to the host, waits for streams and events */
    uint64_t pending;          /* work that is queued and has not run */
    uint64_t live;             /* allocations that are not freed, of all devices; pinned ones too */
    uint64_t contexts;         /* depth of the calling thread's context stack */
} emulated_counts;

void emulated_gpu_counts(emulated_counts *out);
/* The next `after` calls of this kind succeed, then `times` fail. */
void emulated_gpu_fail(emulated_call call, uint64_t after, uint64_t times);
/* Of the waits of streams for events, the next `after` work. Then `times` do nothing, as if they had been forgotten. */
void emulated_gpu_forget_waits(uint64_t after, uint64_t times);
/* Sets the order of threads, warps and blocks, and when copies use memory that is not page-locked. */
void emulated_gpu_seed(uint64_t seed);
/* The device gets an error that stays, as of an access outside of all allocations. Its queued work and host
 * functions never run, and each call returns CUDA_ERROR_ILLEGAL_ADDRESS. Memory can be freed.
 * emulated_gpu_mend_device ends that, for the next test: no GPU can do so. */
void emulated_gpu_fail_device(int device);
void emulated_gpu_mend_device(int device);
/* After emulated_gpu_expect_fault the next fault does not end the process. emulated_gpu_fault ends this mode, and
 * returns the text of the fault, or NULL if there was none. */
void emulated_gpu_expect_fault(void);
const char *emulated_gpu_fault(void);

/* For stand-ins of libraries: queues run(args) on a stream of the device that is current. `args` are copied. */
int emulated_gpu_enqueue(void *stream, const char *name, void (*run)(const void *args), const void *args, size_t size);

#ifdef __cplusplus
}
#endif
#endif
