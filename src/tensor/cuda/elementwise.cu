/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.cu - arithmetic, comparisons and functions; see tensor/kernels.h. exp and ln may differ from the CPU's in
 * the last bit. */
#include "tensor/cuda/walk.cuh"

namespace wfi
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

template <typename T> __device__ inline T quotient(T a, T b)
{
    return a / b;
}
/* The least integer divided by -1 wraps around. */
__device__ inline int64_t quotient(int64_t a, int64_t b)
{
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}
__device__ inline int32_t quotient(int32_t a, int32_t b)
{
    return b == -1 ? (int32_t)(0 - (uint32_t)a) : a / b;
}

template <typename T, typename Op> __device__ inline void binary_loop(const wfi_walk_args &args, Op op)
{
    using U = typename unsigned_of<T>::type;
    over_walk(args,
              [op](const char *a, const char *b, char *y) { *(T *)y = (T)op((U) * (const T *)a, (U) * (const T *)b); });
}

template <typename T> __device__ inline void binary(const wfi_walk_args &args)
{
    using U = typename unsigned_of<T>::type;
    if (args.op == WFI_ADD)
        binary_loop<T>(args, [](U u, U v) { return u + v; });
    else if (args.op == WFI_SUB)
        binary_loop<T>(args, [](U u, U v) { return u - v; });
    else if (args.op == WFI_MUL)
        binary_loop<T>(args, [](U u, U v) { return u * v; });
    else
        over_walk(args,
                  [](const char *a, const char *b, char *y) { *(T *)y = quotient(*(const T *)a, *(const T *)b); });
}

/* Replaces each 0 of the divisor by 1, and reports that there was one (autograd/op_checks.c). */
template <typename T> __device__ inline void divisor(const wfi_divisor_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        if (((T *)args.divisor)[i] != 0)
            continue;
        ((T *)args.divisor)[i] = 1;
        if (args.report->slots[0].check == 0)
            args.report->slots[0].check = args.check; /* all threads write the same number */
    }
}

/* z is null for functions of one operand. The former y is not read: it may be poisoned. */
template <typename T, typename Op> __device__ inline void map_loop(const wfi_map_kernel_args &args, Op op)
{
    const T *x = (const T *)args.map.x, *z = (const T *)args.map.z;
    T *y = (T *)args.map.y;
    for (int64_t i = first_of_all(); i < args.map.count; i += step_of_all())
        y[i] = op(x[i], z == nullptr ? T(0) : z[i]);
}

template <typename T> __device__ inline void map(const wfi_map_kernel_args &args)
{
    T factor = (T)args.map.factor;
    switch (args.op) {
    case WFI_SCALE:
        return map_loop<T>(args, [factor](T x, T) { return x * factor; });
    case WFI_ADD_SCALAR:
        return map_loop<T>(args, [factor](T x, T) { return x + factor; });
    case WFI_EXP:
        return map_loop<T>(args, [](T x, T) { return exponential(x); });
    case WFI_LN:
        return map_loop<T>(args, [](T x, T) { return logarithm(x); });
    case WFI_RELU:
        return map_loop<T>(args, [](T x, T) { return x <= 0 ? T(0) : x; }); /* a NaN stays one */
    case WFI_RELU_BACKWARD:
        return map_loop<T>(args, [](T x, T z) { return z <= 0 ? T(0) : x; });
    case WFI_SIGMOID:
        return map_loop<T>(args, [](T x, T) { return sigmoid(x); });
    case WFI_SIGMOID_BACKWARD:
        return map_loop<T>(args, [](T x, T z) { return x * (z * (1 - z)); });
    case WFI_TANH:
        return map_loop<T>(args, [](T x, T) { return hyperbolic_tangent(x); });
    default:
        return map_loop<T>(args, [](T x, T z) { return x * (1 - z * z); });
    }
}

} // namespace wfi

WFI_NUMBER_KERNELS(binary, wfi_walk_args)
WFI_KERNEL(divisor_i64, wfi_divisor_task)
{
    wfi::divisor<int64_t>(args);
}
WFI_KERNEL(divisor_i32, wfi_divisor_task)
{
    wfi::divisor<int32_t>(args);
}
WFI_KERNEL(divisor_u8, wfi_divisor_task)
{
    wfi::divisor<uint8_t>(args);
}
WFI_FLOAT_KERNELS(map, wfi_map_kernel_args)
