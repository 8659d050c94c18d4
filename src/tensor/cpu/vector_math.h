/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vector_math.h - exp, the logistic function and tanh for loops that the compiler turns into vector code: no calls, no
 * branches. In float they are within 3 units in the last place of the true value, also where that is subnormal (the
 * polynomials are those of Moshier's Cephes); double takes libm's, a call for each element.
 */
#ifndef WFI_VECTOR_MATH_H
#define WFI_VECTOR_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define WFI_LANE static inline __attribute__((always_inline))

/* exp(x) for x up to 64; above that, exp(64). Below -87.3 it is a subnormal number, and 0 in the end. NaN stays. */
WFI_LANE float wfi_vector_exp_f32(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: what is added to it loses its fraction */
    const uint32_t lift = 32;        /* the power of two is this much larger at first, so that it is a normal number */
    float in = x < -104.0f ? -104.0f : x; /* exp(-104) rounds to 0 */
    in = in > 64.0f ? 64.0f : in;
    float shifted = in * 1.44269504f + round, n = shifted - round;
    float r = in - n * 0.693359375f + n * 2.12194440e-4f; /* in - n ln 2, in two parts */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t exponent, bits;
    memcpy(&exponent, &shifted, sizeof(exponent));
    memcpy(&bits, &p, sizeof(bits));
    bits += (exponent + lift) << 23; /* the low bits of `shifted` are n, from -150 to 92; those of `round` are 0 */
    memcpy(&p, &bits, sizeof(p));
    p *= 0x1p-32f;
    return x == x ? p : x;
}

/* 1 / (1 + exp(-x)). The argument of exp is never positive, so that a small result keeps its digits. */
WFI_LANE float wfi_vector_sigmoid_f32(float x)
{
    float e = wfi_vector_exp_f32(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

WFI_LANE float wfi_vector_tanh_f32(float x)
{
    float size = fabsf(x), z = x * x;
    float large = 1.0f - 2.0f / (wfi_vector_exp_f32(2.0f * size) + 1.0f);
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float small = p * z * x + x;
    return size < 0.625f ? small : copysignf(large, x);
}

WFI_LANE double wfi_vector_sigmoid_f64(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

WFI_LANE double wfi_vector_tanh_f64(double x)
{
    return tanh(x);
}

#endif
