/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.cuh - one thread an element, over any strides or over contiguous memory.
 *
 * Everything is queued on the legacy default stream of its device: what is queued later, and copies to the host (mem/cuda_memory.c), see
 * its results. So memory may be given back and handed out again without waiting. Errors of a launch are returned; those of a kernel
 * that runs show at the next call that waits.
 */
#ifndef WFI_LAUNCH_CUH
#define WFI_LAUNCH_CUH

#include "mem/cuda.h"
#include "tensor/kernels.h"

namespace wfi
{

constexpr int threads_a_block = 256;
constexpr int64_t blocks_most = 1 << 16; /* threads take several elements beyond that */

/* body(a, b, c): addresses of the operands of one element; those that the walk does not have are null. */
template <typename Body> __global__ void over_walk(wfi_strided walk, int64_t count, Body body)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        char *at[WFI_STRIDED_OPERANDS_MAX] = {walk.data[0], walk.data[1], walk.data[2]};
        int64_t rest = i;
        for (int d = walk.ndim - 1; d >= 0; d--) {
            int64_t index = rest % walk.dims[d];
            rest /= walk.dims[d];
            for (int k = 0; k < WFI_STRIDED_OPERANDS_MAX; k++)
                at[k] += index * walk.strides[k][d];
        }
        body(at[0], at[1], at[2]);
    }
}

template <typename Body> __global__ void over_count(int64_t count, Body body)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        body(i);
}

inline unsigned blocks_for(int64_t count)
{
    int64_t blocks = (count + threads_a_block - 1) / threads_a_block;
    return (unsigned)(blocks < blocks_most ? blocks : blocks_most);
}

/* Runs launch() on that device. */
template <typename Launch> weft_status on_device(weft_device device, const char *what, Launch launch)
{
    int before = 0;
    weft_status status = wfi_cuda_enter(device.index, &before);
    if (status != WEFT_OK)
        return status;
    launch();
    status = wfi_cuda_status(cudaGetLastError(), what);
    wfi_cuda_leave(device.index, before);
    return status;
}

template <typename Body> weft_status run_walk(const wfi_strided *walk, const char *what, Body body)
{
    int64_t count = 1;
    for (int d = 0; d < walk->ndim; d++)
        count = walk->dims[d] == 0 || count == 0 ? 0 : count * walk->dims[d];
    if (count == 0)
        return WEFT_OK;
    return on_device(walk->device, what,
                     [&] { over_walk<<<blocks_for(count), threads_a_block>>>(*walk, count, body); });
}

template <typename Body> weft_status run_count(weft_device device, int64_t count, const char *what, Body body)
{
    if (count == 0)
        return WEFT_OK;
    return on_device(device, what, [&] { over_count<<<blocks_for(count), threads_a_block>>>(count, body); });
}

} // namespace wfi
#endif
