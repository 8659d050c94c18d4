/* SPDX-License-Identifier: Apache-2.0 */
/* copy.cu - copies, conversions and fills, over any strides. Floats of all sizes are converted to each other. */
#include "tensor/cuda/walk.cuh"
#include "tensor/half.h"

namespace wfi
{

template <typename T> __device__ inline void copy(const wfi_walk_args &args)
{
    over_walk(args, [](const char *x, char *y, const char *) { *(T *)y = *(const T *)x; });
}

template <typename T> __device__ inline void fill(const wfi_walk_args &args)
{
    T value;
    memcpy(&value, args.element, sizeof(value));
    over_walk(args, [value](char *y, const char *, const char *) { *(T *)y = value; });
}

/* The two halves as they lie in memory. */
struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

__device__ inline float read(const f16 *x)
{
    return wfi_float_of_f16(x->bits);
}
__device__ inline float read(const bf16 *x)
{
    return wfi_float_of_bf16(x->bits);
}
__device__ inline void write(f16 *y, float value)
{
    y->bits = wfi_f16_of_float(value);
}
__device__ inline void write(f16 *y, double value)
{
    y->bits = wfi_f16_of_float(wfi_float_odd_of_f64(value));
}
__device__ inline void write(bf16 *y, float value)
{
    y->bits = wfi_bf16_of_float(value);
}
__device__ inline void write(bf16 *y, double value)
{
    y->bits = wfi_bf16_of_float(wfi_float_odd_of_f64(value));
}

__device__ inline float read(const float *x)
{
    return *x;
}
__device__ inline double read(const double *x)
{
    return *x;
}
template <typename From> __device__ inline void write(float *y, From value)
{
    *y = (float)value;
}
template <typename From> __device__ inline void write(double *y, From value)
{
    *y = (double)value;
}

/* Rounded once. */
template <typename From, typename To> __device__ inline void convert_to(const wfi_walk_args &args)
{
    over_walk(args, [](const char *x, char *y, const char *) { write((To *)y, read((const From *)x)); });
}

template <typename From> __device__ inline void convert(const wfi_walk_args &args)
{
    if (args.op == WEFT_DTYPE_FLOAT32)
        convert_to<From, float>(args);
    else if (args.op == WEFT_DTYPE_FLOAT64)
        convert_to<From, double>(args);
    else if (args.op == WEFT_DTYPE_FLOAT16)
        convert_to<From, f16>(args);
    else
        convert_to<From, bf16>(args);
}

} // namespace wfi

WFI_SIZE_KERNELS(copy, wfi_walk_args)
WFI_SIZE_KERNELS(fill, wfi_walk_args)
WFI_FLOAT_KERNELS(convert, wfi_walk_args)

WFI_KERNEL(convert_f16, wfi_walk_args)
{
    wfi::convert<wfi::f16>(args);
}
WFI_KERNEL(convert_bf16, wfi_walk_args)
{
    wfi::convert<wfi::bf16>(args);
}
