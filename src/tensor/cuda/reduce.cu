/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.cu - sums and argmax. float32 is summed in double, as on the CPU; integers as int64, with wrap-around. */
#include "tensor/cuda/kernel.cuh"

namespace wfi
{

template <typename T> struct sum_of {
    using accumulator = uint64_t;
    using result = int64_t;
};
template <> struct sum_of<float> {
    using accumulator = double;
    using result = float;
};
template <> struct sum_of<double> {
    using accumulator = double;
    using result = double;
};

__device__ inline int64_t offset_of(int64_t index, int ndim, const int64_t *dims, const int64_t *strides)
{
    int64_t at = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        at += index % dims[d] * strides[d];
        index /= dims[d];
    }
    return at;
}

__device__ inline double scaled(double sum, double factor)
{
    return sum * factor;
}
__device__ inline uint64_t scaled(uint64_t sum, double)
{
    return sum;
}

/* A block for each sum, or for each chunk of it. */
template <typename T> __device__ inline void sum(const wfi_sum_task &args)
{
    using A = typename sum_of<T>::accumulator;
    using Y = typename sum_of<T>::result;
    int64_t chunks = args.chunks > 0 ? args.chunks : 1;
    for (int64_t piece = blockIdx.x; piece < args.head.count; piece += gridDim.x) {
        int64_t output = piece / chunks, chunk = piece % chunks;
        int64_t begin = args.length * chunk / chunks, end = args.length * (chunk + 1) / chunks;
        const T *x = (const T *)args.x + offset_of(output, args.kept, args.kept_dims, args.kept_strides);
        A total = 0;
        if (args.reduced == 1)
            for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
                total += (A)x[i * args.reduced_strides[0]];
        else
            for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
                total += (A)x[offset_of(i, args.reduced, args.reduced_dims, args.reduced_strides)];
        total = block_sum(total);
        if (threadIdx.x != 0)
            continue;
        if (args.chunks > 0)
            args.partial[piece] = (double)total;
        else
            ((Y *)args.y)[output] = (Y)scaled(total, args.factor);
    }
}

/* x [length, columns]: a block has 32 columns; eight threads each take a part of the rows. */
template <typename T> __device__ inline void sum_columns(const wfi_sum_task &args)
{
    WFI_SHARED(double, partial, 256);
    int64_t columns = args.kept_dims[0];
    for (int64_t piece = blockIdx.x; piece < args.head.count; piece += gridDim.x) {
        int64_t column = piece * 32 + threadIdx.x % 32;
        double total = 0;
        if (column < columns)
            for (int64_t row = threadIdx.x / 32; row < args.length; row += 8)
                total += (double)((const T *)args.x)[row * columns + column];
        partial[threadIdx.x] = total;
        __syncthreads();
        if (threadIdx.x < 32 && column < columns) {
            for (unsigned part = 1; part < 8; part++)
                total += partial[part * 32 + threadIdx.x];
            ((T *)args.y)[column] = (T)(total * args.factor);
        }
        __syncthreads();
    }
}

template <typename T> __device__ inline void sum_partial(const wfi_sum_task &args)
{
    for (int64_t output = first_of_all(); output < args.head.count; output += step_of_all()) {
        double total = 0;
        for (int64_t chunk = 0; chunk < args.chunks; chunk++)
            total += args.partial[output * args.chunks + chunk];
        ((T *)args.y)[output] = (T)(total * args.factor);
    }
}

/* The first of the largest. A NaN counts as the largest. */
template <typename T> __device__ inline void argmax(const wfi_argmax_task &args)
{
    for (int64_t output = first_of_all(); output < args.head.count; output += step_of_all()) {
        const T *x = (const T *)args.x + output / args.inner * args.inner * args.length + output % args.inner;
        int64_t best = 0;
        for (int64_t i = 1; i < args.length; i++) {
            T u = x[i * args.inner], v = x[best * args.inner];
            if (u > v || (u != u && v == v))
                best = i;
        }
        args.y[output] = best;
    }
}

} // namespace wfi

WFI_VALUE_KERNELS(sum, wfi_sum_task)
WFI_FLOAT_KERNELS(sum_columns, wfi_sum_task)
WFI_FLOAT_KERNELS(sum_partial, wfi_sum_task)
WFI_VALUE_KERNELS(argmax, wfi_argmax_task)
