/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elementwise.cu - CUDA's kernels of tensor/elementwise.h. Built without fused multiply-add, so that sums and products have the CPU's bits;
 * exp and ln may differ in the last.
 */
#include "tensor/cuda/launch.cuh"

namespace
{

/* Integers wrap around: the arithmetic is done unsigned. */
template <typename T> struct unsigned_of {
    using type = T;
};
template <> struct unsigned_of<int64_t> {
    using type = uint64_t;
};
template <> struct unsigned_of<int32_t> {
    using type = uint32_t;
};
template <> struct unsigned_of<uint8_t> {
    using type = uint32_t;
};

template <typename T, wfi_binary_op op> struct binary_body {
    using U = typename unsigned_of<T>::type;
    __device__ void operator()(const char *a, const char *b, char *y) const
    {
        U u = (U) * (const T *)a, v = (U) * (const T *)b;
        if constexpr (op == WFI_ADD)
            *(T *)y = (T)(u + v);
        else if constexpr (op == WFI_SUB)
            *(T *)y = (T)(u - v);
        else if constexpr (op == WFI_MUL)
            *(T *)y = (T)(u * v);
        else
            *(T *)y = (T)(u / v);
    }
};

template <typename T, wfi_compare_op op> struct compare_body {
    __device__ void operator()(const char *a, const char *b, char *y) const
    {
        T u = *(const T *)a, v = *(const T *)b;
        *(uint8_t *)y = op == WFI_EQ   ? u == v
                        : op == WFI_NE ? u != v
                        : op == WFI_LT ? u < v
                        : op == WFI_LE ? u <= v
                        : op == WFI_GT ? u > v
                                       : u >= v;
    }
};

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

template <typename T, wfi_map_op op> struct map_body {
    const T *x, *z;
    T *y, factor;
    __device__ void operator()(int64_t i) const
    {
        if constexpr (op == WFI_SCALE)
            y[i] = x[i] * factor;
        else if constexpr (op == WFI_AXPY)
            y[i] = y[i] + factor * x[i];
        else if constexpr (op == WFI_ADD_SCALAR)
            y[i] = x[i] + factor;
        else if constexpr (op == WFI_EXP)
            y[i] = exponential(x[i]);
        else if constexpr (op == WFI_LN)
            y[i] = logarithm(x[i]);
        else if constexpr (op == WFI_RELU)
            y[i] = x[i] <= 0 ? 0 : x[i]; /* a NaN stays one */
        else if constexpr (op == WFI_SIGMOID)
            y[i] = 1 / (1 + exponential(-x[i]));
        else if constexpr (op == WFI_SIGMOID_BACKWARD)
            y[i] = x[i] * (z[i] * (1 - z[i]));
        else if constexpr (op == WFI_TANH)
            y[i] = hyperbolic_tangent(x[i]);
        else if constexpr (op == WFI_TANH_BACKWARD)
            y[i] = x[i] * (1 - z[i] * z[i]);
        else
            y[i] = z[i] > 0 ? x[i] : 0;
    }
};

template <typename T, wfi_binary_op op> weft_status binary(const wfi_strided *walk)
{
    return wfi::run_walk(walk, "elementwise arithmetic", binary_body<T, op>{});
}

template <typename T, wfi_compare_op op> weft_status compare(const wfi_strided *walk)
{
    return wfi::run_walk(walk, "a comparison", compare_body<T, op>{});
}

template <typename T, wfi_map_op op> weft_status map(const wfi_map_args *args)
{
    map_body<T, op> body = {(const T *)args->x, (const T *)args->z, (T *)args->y, (T)args->factor};
    return wfi::run_count(args->device, args->count, "an elementwise function", body);
}

template <typename T> constexpr wfi_elementwise_kernels comparisons()
{
    return {{},
            {compare<T, WFI_EQ>, compare<T, WFI_NE>, compare<T, WFI_LT>, compare<T, WFI_LE>, compare<T, WFI_GT>,
             compare<T, WFI_GE>},
            {}};
}

/* Without division: a 0 among the divisors could be told only by waiting. */
template <typename T> constexpr wfi_elementwise_kernels integers()
{
    wfi_elementwise_kernels kernels = comparisons<T>();
    kernels.binary[WFI_ADD] = binary<T, WFI_ADD>;
    kernels.binary[WFI_SUB] = binary<T, WFI_SUB>;
    kernels.binary[WFI_MUL] = binary<T, WFI_MUL>;
    return kernels;
}

template <typename T> constexpr wfi_elementwise_kernels floats()
{
    wfi_elementwise_kernels kernels = integers<T>();
    kernels.binary[WFI_DIV] = binary<T, WFI_DIV>;
    kernels.map[WFI_SCALE] = map<T, WFI_SCALE>;
    kernels.map[WFI_AXPY] = map<T, WFI_AXPY>;
    kernels.map[WFI_ADD_SCALAR] = map<T, WFI_ADD_SCALAR>;
    kernels.map[WFI_EXP] = map<T, WFI_EXP>;
    kernels.map[WFI_LN] = map<T, WFI_LN>;
    kernels.map[WFI_RELU] = map<T, WFI_RELU>;
    kernels.map[WFI_RELU_BACKWARD] = map<T, WFI_RELU_BACKWARD>;
    kernels.map[WFI_SIGMOID] = map<T, WFI_SIGMOID>;
    kernels.map[WFI_SIGMOID_BACKWARD] = map<T, WFI_SIGMOID_BACKWARD>;
    kernels.map[WFI_TANH] = map<T, WFI_TANH>;
    kernels.map[WFI_TANH_BACKWARD] = map<T, WFI_TANH_BACKWARD>;
    return kernels;
}

} // namespace

/* In the order of weft_dtype; what is not named has none. */
extern "C" constexpr wfi_elementwise_kernels wfi_elementwise_cuda[WFI_DTYPES] = {
    floats<float>(),     floats<double>(),    integers<int64_t>(),
    integers<int32_t>(), integers<uint8_t>(), comparisons<uint8_t>(),
};
