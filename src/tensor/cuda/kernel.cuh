/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.cuh - what the kernels share. A kernel has one parameter, a struct of tensor/tasks.h or args.h, and a name
 * that is in kernel_list.h. Blocks have at most 256 threads (launch.h: WFI_BLOCK_THREADS).
 *
 * nvcc compiles the .cu files for GPUs. For the emulated GPU of the tests the host's compiler does: then
 * emulated_kernel.h of tests/emulated stands in for CUDA. Products and sums are not fused, so that they have the CPU's
 * bits.
 */
#ifndef WFI_KERNEL_CUH
#define WFI_KERNEL_CUH

#include "tensor/cuda/args.h"

#if defined(__CUDACC__)
#define WFI_KERNEL(name, args_type)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) weft_##name(const __grid_constant__ args_type args)
#define WFI_SHARED(type, name, count) __shared__ type name[count]
#else
#include <emulated_kernel.h>
#endif

/* Two kernels, name_f32 and name_f64, of a function template of namespace wfi. */
#define WFI_FLOAT_KERNELS(name, args_type)                                                                             \
    WFI_KERNEL(name##_f32, args_type)                                                                                  \
    {                                                                                                                  \
        wfi::name<float>(args);                                                                                        \
    }                                                                                                                  \
    WFI_KERNEL(name##_f64, args_type)                                                                                  \
    {                                                                                                                  \
        wfi::name<double>(args);                                                                                       \
    }
#define WFI_NUMBER_KERNELS(name, args_type)                                                                            \
    WFI_FLOAT_KERNELS(name, args_type)                                                                                 \
    WFI_KERNEL(name##_i64, args_type)                                                                                  \
    {                                                                                                                  \
        wfi::name<int64_t>(args);                                                                                      \
    }                                                                                                                  \
    WFI_KERNEL(name##_i32, args_type)                                                                                  \
    {                                                                                                                  \
        wfi::name<int32_t>(args);                                                                                      \
    }                                                                                                                  \
    WFI_KERNEL(name##_u8, args_type)                                                                                   \
    {                                                                                                                  \
        wfi::name<uint8_t>(args);                                                                                      \
    }
#define WFI_VALUE_KERNELS(name, args_type)                                                                             \
    WFI_NUMBER_KERNELS(name, args_type)                                                                                \
    WFI_KERNEL(name##_bool8, args_type)                                                                                \
    {                                                                                                                  \
        wfi::name<wfi::truth>(args);                                                                                   \
    }
/* Of functions that move elements as they are: by their size. */
#define WFI_SIZE_KERNELS(name, args_type)                                                                              \
    WFI_KERNEL(name##_1, args_type)                                                                                    \
    {                                                                                                                  \
        wfi::name<uint8_t>(args);                                                                                      \
    }                                                                                                                  \
    WFI_KERNEL(name##_2, args_type)                                                                                    \
    {                                                                                                                  \
        wfi::name<uint16_t>(args);                                                                                     \
    }                                                                                                                  \
    WFI_KERNEL(name##_4, args_type)                                                                                    \
    {                                                                                                                  \
        wfi::name<uint32_t>(args);                                                                                     \
    }                                                                                                                  \
    WFI_KERNEL(name##_8, args_type)                                                                                    \
    {                                                                                                                  \
        wfi::name<uint64_t>(args);                                                                                     \
    }                                                                                                                  \
    WFI_KERNEL(name##_16, args_type)                                                                                   \
    {                                                                                                                  \
        wfi::name<wfi::bits_16>(args);                                                                                 \
    }

namespace wfi
{

/* An element of dtype bool, read as a number: wfi_bool_of (tensor/dtype.h), for device code. */
struct truth {
    uint8_t byte;
    __device__ inline operator uint8_t() const
    {
        return byte != 0;
    }
};

/* The number of this thread among all, and how many there are: for loops over elements. */
__device__ inline int64_t first_of_all()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ inline int64_t step_of_all()
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* The sum over the threads of a block, the same in all of them. The order of additions is fixed. */
template <typename T> __device__ inline T block_sum(T value)
{
    WFI_SHARED(T, partial, 8); /* of each warp */
    for (int lane = 16; lane > 0; lane /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, lane);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = partial[0];
    for (unsigned warp = 1; warp < blockDim.x / 32; warp++)
        value += partial[warp];
    __syncthreads(); /* the next sum writes where this one was read */
    return value;
}

/* The sum, or the largest, over the threads of a warp. */
template <typename T> __device__ inline T warp_sum(T value)
{
    for (int lane = 16; lane > 0; lane /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, lane);
    return value;
}
template <typename T> __device__ inline T warp_largest(T value)
{
    for (int lane = 16; lane > 0; lane /= 2) {
        T other = __shfl_xor_sync(0xffffffffu, value, lane);
        value = other > value ? other : value;
    }
    return value;
}

__device__ inline float exponential(float x)
{
    return expf(x);
}
__device__ inline double exponential(double x)
{
    return exp(x);
}
__device__ inline float logarithm(float x)
{
    return logf(x);
}
__device__ inline double logarithm(double x)
{
    return log(x);
}
__device__ inline float hyperbolic_tangent(float x)
{
    return tanhf(x);
}
__device__ inline double hyperbolic_tangent(double x)
{
    return tanh(x);
}
__device__ inline float square_root(float x)
{
    return sqrtf(x);
}
__device__ inline double square_root(double x)
{
    return sqrt(x);
}
template <typename T> __device__ inline T sigmoid(T x)
{
    return 1 / (1 + exponential(-x));
}

struct bits_16 {
    uint64_t half[2];
};

} // namespace wfi
#endif
