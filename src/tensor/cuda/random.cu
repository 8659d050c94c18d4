/* SPDX-License-Identifier: Apache-2.0 */
/* random.cu - random numbers: those of tensor/random.c, by the same counters. Uniform numbers and masks have the CPU's
 * bits. Normal numbers may differ in the last bit. */
#include "tensor/cuda/kernel.cuh"

namespace wfi
{

/* Philox4x32-10 of the counter (index, stream), with the seed as key. */
struct two {
    uint64_t first, second;
};
__device__ inline two philox(wfi_random random, uint64_t index)
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)random.stream, c3 = (uint32_t)(random.stream >> 32);
    uint32_t k0 = (uint32_t)random.seed, k1 = (uint32_t)(random.seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {c0 | (uint64_t)c1 << 32, c2 | (uint64_t)c3 << 32};
}

__device__ inline double unit(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

__device__ inline float uniform_of(uint64_t bits, float low, float width)
{
    return low + (float)(int32_t)(bits >> 40) * 0x1p-24f * width; /* 24 bits: rounding a double could reach 1 */
}
__device__ inline double uniform_of(uint64_t bits, double low, double width)
{
    return low + unit(bits) * width;
}

template <typename T> __device__ inline void uniform(const wfi_random_task &args)
{
    T low = (T)args.a, width = (T)(args.b - args.a);
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all())
        ((T *)args.data)[i] = uniform_of(philox(args.random, (uint64_t)i).first, low, width);
}

template <typename T> __device__ inline void normal(const wfi_random_task &args)
{
    const double pi = 3.14159265358979323846;
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        two bits = philox(args.random, (uint64_t)i);
        double radius = sqrt(-2 * log(1 - unit(bits.first)));
        ((T *)args.data)[i] = (T)(args.a + args.b * (radius * cos(2 * pi * unit(bits.second))));
    }
}

template <typename T> __device__ inline void mask(const wfi_random_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all())
        ((T *)args.data)[i] = philox(args.random, (uint64_t)i).first >> 11 < args.end ? (T)args.b : (T)0;
}

/* -1: a weight is negative or not finite. */
template <typename T> __device__ inline double weight_sum(const T *weights, int64_t classes, double factor)
{
    double sum = 0;
    for (int64_t i = 0; i < classes; i++) {
        if (!(weights[i] >= 0) || isinf(weights[i]))
            return -1;
        sum += factor * (double)weights[i];
    }
    return sum;
}

/* See tensor/cpu/categorical.c. */
template <typename T> __device__ inline void categorical(const wfi_random_task &args)
{
    for (int64_t row = first_of_all(); row < args.head.count; row += step_of_all()) {
        const T *weights = (const T *)args.weights + row * args.classes;
        double factor = 1, sum = weight_sum(weights, args.classes, 1), passed = 0;
        if (isinf(sum)) {
            factor = 0x1p-64;
            sum = weight_sum(weights, args.classes, factor);
        }
        double bound = unit(philox(args.random, (uint64_t)row).first) * sum;
        int64_t drawn = -1;
        for (int64_t i = 0; i < args.classes && sum > 0; i++) {
            passed += factor * (double)weights[i];
            drawn = weights[i] > 0 || passed > bound ? i : drawn;
            if (passed > bound)
                break;
        }
        ((int64_t *)args.data)[row] = drawn;
    }
}

} // namespace wfi

WFI_FLOAT_KERNELS(uniform, wfi_random_task)
WFI_FLOAT_KERNELS(normal, wfi_random_task)
WFI_FLOAT_KERNELS(mask, wfi_random_task)
WFI_FLOAT_KERNELS(categorical, wfi_random_task)
