/* SPDX-License-Identifier: Apache-2.0 */
/* copy.cu - CUDA's copies, conversions and fills, over any strides. Converted are floats of all sizes, to each other. */
#include "tensor/cuda/launch.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string.h>

namespace
{

struct bits_16 {
    uint64_t half[2];
};

template <typename T> struct copy_body {
    __device__ void operator()(const char *x, char *y, const char *) const
    {
        *(T *)y = *(const T *)x;
    }
};

template <typename T> struct fill_body {
    T value;
    __device__ void operator()(char *y, const char *, const char *) const
    {
        *(T *)y = value;
    }
};

/* To each dtype from what holds a float of any size, rounded once. */
template <typename To, typename From> __device__ To rounded(From value)
{
    return (To)value;
}
template <> __device__ __half rounded<__half, float>(float value)
{
    return __float2half_rn(value);
}
template <> __device__ __half rounded<__half, double>(double value)
{
    return __double2half(value);
}
template <> __device__ __nv_bfloat16 rounded<__nv_bfloat16, float>(float value)
{
    return __float2bfloat16_rn(value);
}
template <> __device__ __nv_bfloat16 rounded<__nv_bfloat16, double>(double value)
{
    return __double2bfloat16(value);
}

/* The halves are read as float, which holds them. */
__device__ inline float read(const float *x)
{
    return *x;
}
__device__ inline double read(const double *x)
{
    return *x;
}
__device__ inline float read(const __half *x)
{
    return __half2float(*x);
}
__device__ inline float read(const __nv_bfloat16 *x)
{
    return __bfloat162float(*x);
}

template <typename From, typename To> struct convert_body {
    __device__ void operator()(const char *x, char *y, const char *) const
    {
        *(To *)y = rounded<To>(read((const From *)x));
    }
};

template <typename T> weft_status copy(const wfi_strided *walk)
{
    return wfi::run_walk(walk, "a copy", copy_body<T>{});
}

template <typename From, typename To> weft_status convert(const wfi_strided *walk)
{
    return wfi::run_walk(walk, "a conversion", convert_body<From, To>{});
}

template <typename T> weft_status fill(const wfi_strided *walk, const void *element)
{
    fill_body<T> body;
    memcpy(&body.value, element, sizeof(body.value));
    return wfi::run_walk(walk, "a fill", body);
}

/* Bits: what is moved as one element. */
template <typename Bits> constexpr wfi_copy_kernels moves()
{
    return {copy<Bits>, {}, fill<Bits>};
}

template <typename Bits, typename From> constexpr wfi_copy_kernels floats()
{
    wfi_copy_kernels kernels = moves<Bits>();
    kernels.to[WEFT_DTYPE_FLOAT32] = convert<From, float>;
    kernels.to[WEFT_DTYPE_FLOAT64] = convert<From, double>;
    kernels.to[WEFT_DTYPE_FLOAT16] = convert<From, __half>;
    kernels.to[WEFT_DTYPE_BFLOAT16] = convert<From, __nv_bfloat16>;
    return kernels;
}

} // namespace

/* In the order of weft_dtype. */
extern "C" constexpr wfi_copy_kernels wfi_copy_cuda[WFI_DTYPES] = {
    floats<uint32_t, float>(),  floats<uint64_t, double>(),
    moves<uint64_t>(),          moves<uint32_t>(),
    moves<uint8_t>(),           moves<uint8_t>(),
    floats<uint16_t, __half>(), floats<uint16_t, __nv_bfloat16>(),
    moves<uint8_t>(),           moves<uint16_t>(),
    moves<uint64_t>(),          moves<bits_16>(),
};
