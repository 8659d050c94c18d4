/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vector_math.h - exp, the logistic function and tanh for loops that the compiler turns into vector code: no calls, no branches. In float they
 * are within 3 units in the last place of the true value (the polynomials are those of Moshier's Cephes); double takes libm's, a
 * call for each element.
 */
#ifndef WFI_VECTOR_MATH_H
#define WFI_VECTOR_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define WFI_LANE static inline __attribute__((always_inline))

/* exp(x), from -87 to 88; beyond these, its value there. NaN stays. */
WFI_LANE float wfi_exp_lane_f32(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: what is added to it loses its fraction */
    float in = x < -87.0f ? -87.0f : x;
    in = in > 88.0f ? 88.0f : in;
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
    bits += exponent << 23; /* the low bits of `shifted` are n; those of `round` are 0 */
    memcpy(&p, &bits, sizeof(p));
    return x == x ? p : x;
}

WFI_LANE float wfi_sigmoid_lane_f32(float x)
{
    return 1.0f / (1.0f + wfi_exp_lane_f32(-x));
}

WFI_LANE float wfi_tanh_lane_f32(float x)
{
    float size = fabsf(x), z = x * x;
    float large = 1.0f - 2.0f / (wfi_exp_lane_f32(2.0f * size) + 1.0f);
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float small = p * z * x + x;
    return size < 0.625f ? small : copysignf(large, x);
}

WFI_LANE double wfi_sigmoid_lane_f64(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

WFI_LANE double wfi_tanh_lane_f64(double x)
{
    return tanh(x);
}

#endif
