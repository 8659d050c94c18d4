/* SPDX-License-Identifier: Apache-2.0 */
/*
 * half.h - float16 (IEEE 754 binary16) and bfloat16 from and to wider floats: rounded once, to nearest, ties to
 * even.
 *
 * The functions have no branches, so that the compiler vectorizes loops over them. Their arithmetic has no subnormal
 * operands, so that a program that flushes subnormals to zero gets the same numbers. A NaN becomes a quiet NaN of
 * the same sign, with as many bits of its payload as fit. Kernels use these functions too. A GPU's conversion of a
 * double NaN to float does not keep the payload, so its NaN has other bits. The two tricks with a float's exponent
 * are Fabian Giesen's ("half_float", public domain).
 */
#ifndef WFI_HALF_H
#define WFI_HALF_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define WFI_HALF_FN __host__ __device__ static inline
#else
#define WFI_HALF_FN static inline
#endif

WFI_HALF_FN uint32_t wfi_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

WFI_HALF_FN float wfi_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

#define WFI_EXPONENT(e) ((uint32_t)(e) << 23) /* the bits of a float32's exponent; `e` contains the bias of 127 */
#define WFI_FLOAT_INFINITY WFI_EXPONENT(255)

WFI_HALF_FN float wfi_float_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, bits = (uint32_t)(half & 0x7fff) << 13;
    uint32_t exponent = bits & UINT32_C(0x0f800000);
    uint32_t normal = bits + WFI_EXPONENT(127 - 15);
    uint32_t special = (bits + WFI_EXPONENT(255 - 31)) | ((bits & 0x7fffff) != 0 ? UINT32_C(0x400000) : 0);
    /* (2^-14 + fraction) - 2^-14: the subtraction finds the exponent of the fraction. */
    uint32_t subnormal =
        wfi_bits_of_float(wfi_float_of_bits(normal + WFI_EXPONENT(1)) - wfi_float_of_bits(WFI_EXPONENT(113)));
    uint32_t finite = exponent == 0 ? subnormal : normal;
    return wfi_float_of_bits(sign | (exponent == UINT32_C(0x0f800000) ? special : finite));
}

WFI_HALF_FN uint16_t wfi_f16_of_float(float value)
{
    uint32_t bits = wfi_bits_of_float(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    uint32_t special = size > WFI_FLOAT_INFINITY ? 0x7e00 | (size >> 13 & 0x3ff) : 0x7c00;
    /* The last bit of the float32 0.5 has the value of a float16 subnormal's last bit. The addition rounds to it. */
    uint32_t magic = WFI_EXPONENT(127 - 1);
    uint32_t subnormal = wfi_bits_of_float(wfi_float_of_bits(size) + wfi_float_of_bits(magic)) - magic;
    uint32_t odd = size >> 13 & 1;
    uint32_t normal = (size - WFI_EXPONENT(127 - 15) + 0xfff + odd) >> 13; /* from 65520 on: the bits of infinity */
    uint32_t finite = size < WFI_EXPONENT(113) ? subnormal : normal;
    return (uint16_t)(sign | (size >= WFI_EXPONENT(127 + 16) ? special : finite));
}

WFI_HALF_FN float wfi_float_of_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    uint32_t quiet = (bits & 0x7fffffff) > WFI_FLOAT_INFINITY ? UINT32_C(0x400000) : 0;
    return wfi_float_of_bits(bits | quiet);
}

WFI_HALF_FN uint16_t wfi_bf16_of_float(float value)
{
    uint32_t bits = wfi_bits_of_float(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > WFI_FLOAT_INFINITY ? nan : rounded);
}

/*
 * The value itself if a float can hold it, otherwise that one of its two neighbouring floats whose last bit is 1.
 * Rounding the result to fewer bits gives the same as rounding `value`. If both roundings were to nearest, the
 * result could be wrong in its last bit.
 */
WFI_HALF_FN float wfi_float_odd_of_f64(double value)
{
    float near = (float)value;
    double back = (double)near;
    uint32_t bits = wfi_bits_of_float(near);
    uint32_t beyond = (back < 0 ? -back : back) > (value < 0 ? -value : value);
    return wfi_float_of_bits(back == value || value != value ? bits : (bits - beyond) | 1);
}

WFI_HALF_FN float wfi_float_odd_of_i64(int64_t value)
{
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    uint64_t lost = size & 0x7ff; /* the bits below the 53 that a double holds */
    if (size >> 53 != 0 && lost != 0)
        size = (size - lost) | 0x800;
    double exact = (double)size;
    return wfi_float_odd_of_f64(value < 0 ? -exact : exact);
}

#endif
