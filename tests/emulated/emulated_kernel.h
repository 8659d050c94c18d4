/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emulated_kernel.h - defines, for the host's compiler, the parts of CUDA that the .cu files of src/tensor/cuda use.
 * tensor/cuda/kernel.cuh includes it if the compiler is not nvcc. Also for C: the interface to launch.c.
 */
#ifndef EMULATED_KERNEL_H
#define EMULATED_KERNEL_H

#include "gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulated_dim {
    unsigned x, y, z;
} emulated_dim;

extern emulated_dim emulated_thread, emulated_block, emulated_block_size, emulated_grid_size;
void emulated_register(gpu_kernel *kernel);
void emulated_syncthreads(void);
void emulated_syncwarp(void);
uint64_t emulated_exchange(uint64_t mine, unsigned from_lane);
void emulated_shared(void *at, size_t size, uint64_t *poisoned_in);

#ifdef __cplusplus
}

#include "tensor/half.h"

#include <math.h>
#include <string.h>

#define __device__
#define __forceinline__ inline
#define threadIdx emulated_thread
#define blockIdx emulated_block
#define blockDim emulated_block_size
#define gridDim emulated_grid_size
#define __syncthreads() emulated_syncthreads()
#define __syncwarp() emulated_syncwarp()

template <typename T> static inline T emulated_shuffle(T value, unsigned from_lane)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    bits = emulated_exchange(bits, from_lane);
    memcpy(&value, &bits, sizeof(value));
    return value;
}
#define __shfl_xor_sync(mask, value, lane) emulated_shuffle((value), (emulated_thread.x % 32) ^ (unsigned)(lane))
#define __shfl_sync(mask, value, lane) emulated_shuffle((value), (unsigned)(lane))

/* Threads run one at a time, so a plain read and write is atomic. */
template <typename T> static inline T atomicMin(T *at, T value)
{
    T before = *at;
    *at = value < before ? value : before;
    return before;
}

/* A kernel has one parameter, a struct. */
#define WFI_KERNEL(name, args_type)                                                                                    \
    static void name(const args_type &args);                                                                           \
    static void name##_thread(const void *args)                                                                        \
    {                                                                                                                  \
        name(*(const args_type *)args);                                                                                \
    }                                                                                                                  \
    static struct name##_registered {                                                                                  \
        gpu_kernel kernel = {"weft_" #name, sizeof(args_type), name##_thread, nullptr};                                \
        name##_registered()                                                                                            \
        {                                                                                                              \
            emulated_register(&kernel);                                                                                \
        }                                                                                                              \
    } name##_entry;                                                                                                    \
    static void name(const args_type &args)

/* An array in shared memory, within a kernel or a function that it calls. */
#define WFI_SHARED(type, name, count)                                                                                  \
    static type name[count];                                                                                           \
    static uint64_t name##_poisoned;                                                                                   \
    emulated_shared(name, sizeof(name), &name##_poisoned)

#endif
#endif
