/* SPDX-License-Identifier: Apache-2.0 */
/* faults.cu - kernels with the faults that the emulated GPU must notice, and correct ones beside them. For
 * test_emulated_gpu.c. */
#include "faults.h"
#include "tensor/cuda/kernel.cuh"

/* The sum of x [256] in one block. Without the barrier most threads read what has not been written. */
template <bool has_barrier> static void block_total(const faults_args &args)
{
    WFI_SHARED(int64_t, all, 256);
    all[threadIdx.x] = args.from[threadIdx.x];
    if (has_barrier)
        __syncthreads();
    if (threadIdx.x == 0) {
        int64_t total = 0;
        for (int i = 0; i < 256; i++)
            total += all[i];
        *args.to = total;
    }
}
WFI_KERNEL(faults_total, faults_args)
{
    block_total<true>(args);
}
WFI_KERNEL(faults_no_barrier, faults_args)
{
    block_total<false>(args);
}

/* Half of the threads wait at a barrier, the others at another one. */
WFI_KERNEL(faults_two_barriers, faults_args)
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncwarp();
    *args.to = 0;
}

/* to[i] = number, for i in [first, first + count). */
WFI_KERNEL(faults_write, faults_args)
{
    for (int64_t i = wfi::first_of_all(); i < args.count; i += wfi::step_of_all())
        args.to[args.first + i] = args.number;
}

/* to[i] = from[i], for i in [first, first + count). */
WFI_KERNEL(faults_copy, faults_args)
{
    for (int64_t i = wfi::first_of_all(); i < args.count; i += wfi::step_of_all())
        args.to[args.first + i] = args.from[args.first + i];
}

/* The number of the thread that ran last. */
WFI_KERNEL(faults_last, faults_args)
{
    *args.to = threadIdx.x;
}
