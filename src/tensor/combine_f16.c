/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_f16.c - combines float16: converts to float32, computes, and converts back.
 *
 * Compilers do not vectorize the conversions that processors offer. So the vector code is written by hand: for AVX-512,
 * for F16C (which came with AVX2 but is no part of it), and for NEON. On other processors, and for the elements that do
 * not fill a vector, the functions of half.h convert. All conversions round to nearest, ties to even.
 */
#include "tensor/combine_f16.h"

#include "tensor/clones.h"
#include "tensor/combine_float.h"

#include <stdbool.h>

#ifndef WFI_F16_LANES
#define WFI_F16_LANES 16 /* the longest vectors that may be used; tests set it */
#endif

typedef size_t (*vectors_fn)(uint16_t *y, const uint16_t *x, const uint16_t *z, size_t count);

/* Kernels that compute only whole vectors. Each returns how many elements it has computed. */
typedef struct vectors {
    vectors_fn sum, min, max, prod;
    size_t (*divide)(uint16_t *x, float by, size_t count);
} vectors;

/* The compiler keeps a and b in registers. */
#define VECTORS(how, WITH, LANES)                                                                                      \
    WITH static size_t how##_##LANES(uint16_t *y, const uint16_t *x, const uint16_t *z, size_t count)                  \
    {                                                                                                                  \
        size_t i = 0;                                                                                                  \
        for (; count - i >= (LANES); i += (LANES)) {                                                                   \
            float a[LANES], b[LANES];                                                                                  \
            widen_##LANES(a, x + i);                                                                                   \
            widen_##LANES(b, z + i);                                                                                   \
            for (int k = 0; k < (LANES); k++)                                                                          \
                a[k] = f32_##how##_of(a[k], b[k]);                                                                     \
            narrow_##LANES(y + i, a);                                                                                  \
        }                                                                                                              \
        return i;                                                                                                      \
    }

#define ALL_VECTORS(WITH, LANES)                                                                                       \
    VECTORS(sum, WITH, LANES)                                                                                          \
    VECTORS(min, WITH, LANES)                                                                                          \
    VECTORS(max, WITH, LANES)                                                                                          \
    VECTORS(prod, WITH, LANES)                                                                                         \
    WITH static size_t divide_##LANES(uint16_t *x, float by, size_t count)                                             \
    {                                                                                                                  \
        size_t i = 0;                                                                                                  \
        for (; count - i >= (LANES); i += (LANES)) {                                                                   \
            float a[LANES];                                                                                            \
            widen_##LANES(a, x + i);                                                                                   \
            for (int k = 0; k < (LANES); k++)                                                                          \
                a[k] = f32_quotient_of(a[k], by);                                                                      \
            narrow_##LANES(x + i, a);                                                                                  \
        }                                                                                                              \
        return i;                                                                                                      \
    }                                                                                                                  \
    static const vectors by_##LANES = {sum_##LANES, min_##LANES, max_##LANES, prod_##LANES, divide_##LANES};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define WITH_F16C __attribute__((target("avx,f16c")))
#define WITH_AVX512 __attribute__((target("avx512f")))
#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

WITH_F16C static inline void widen_8(float *out, const uint16_t *in)
{
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)in)));
}

WITH_F16C static inline void narrow_8(uint16_t *out, const float *in)
{
    _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph(_mm256_loadu_ps(in), TO_NEAREST));
}

WITH_AVX512 static inline void widen_16(float *out, const uint16_t *in)
{
    _mm512_storeu_ps(out, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)in)));
}

WITH_AVX512 static inline void narrow_16(uint16_t *out, const float *in)
{
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtps_ph(_mm512_loadu_ps(in), TO_NEAREST));
}

ALL_VECTORS(WITH_F16C, 8)
ALL_VECTORS(WITH_AVX512, 16)

static const vectors *vectors_here(void)
{
    if (WFI_F16_LANES >= 16 && __builtin_cpu_supports("avx512f"))
        return &by_16;
    bool has_f16c = __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx");
    return WFI_F16_LANES >= 8 && has_f16c ? &by_8 : NULL;
}
#elif defined(__aarch64__)
#include <arm_neon.h>

static inline void widen_4(float *out, const uint16_t *in)
{
    vst1q_f32(out, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(in))));
}

static inline void narrow_4(uint16_t *out, const float *in)
{
    vst1_u16(out, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(in))));
}

ALL_VECTORS(, 4)

static const vectors *vectors_here(void)
{
    return WFI_F16_LANES >= 4 ? &by_4 : NULL;
}
#else
static const vectors *vectors_here(void)
{
    return NULL;
}
#endif

#define COMBINE_F16(how)                                                                                               \
    WFI_CLONES static void how##_rest(uint16_t *y, const uint16_t *x, const uint16_t *z, size_t first, size_t count)   \
    {                                                                                                                  \
        WFI_NO_STEP_NEEDS_ANOTHER                                                                                      \
        for (size_t i = first; i < count; i++)                                                                         \
            y[i] = wfi_f16_of_float(f32_##how##_of(wfi_float_of_f16(x[i]), wfi_float_of_f16(z[i])));                   \
    }                                                                                                                  \
    void wfi_f16_##how(void *out, const void *left, const void *right, size_t count)                                   \
    {                                                                                                                  \
        const vectors *here = vectors_here();                                                                          \
        how##_rest(out, left, right, here ? here->how(out, left, right, count) : 0, count);                            \
    }
COMBINE_F16(sum)
COMBINE_F16(min)
COMBINE_F16(max)
COMBINE_F16(prod)

WFI_CLONES static void divide_rest(uint16_t *x, float by, size_t first, size_t count)
{
    for (size_t i = first; i < count; i++)
        x[i] = wfi_f16_of_float(f32_quotient_of(wfi_float_of_f16(x[i]), by));
}

void wfi_f16_divide(void *data, size_t count, size_t divisor)
{
    const vectors *here = vectors_here();
    float by = (float)divisor;
    divide_rest(data, by, here ? here->divide(data, by, count) : 0, count);
}
