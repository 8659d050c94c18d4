/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f16.c - see f16.h. x86's instructions came with AVX2, but are no part of it: they are asked for by name, and those who lack them take
 * the arithmetic of half.h, as compilers do for which WFI_CLONES is empty.
 */
#include "tensor/f16.h"

#include "tensor/clones.h"
#include "tensor/half.h"

#include <stdbool.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && (!defined(WFI_ONE_CLONE) || defined(__F16C__))
#include <immintrin.h> /* F16C, AVX */

#define WITH_F16C __attribute__((target("avx,f16c")))
enum { LANES = 8 };

static bool has_f16c(void)
{
    return __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx");
}

/* Both do whole vectors, and return how many elements these were. */
WITH_F16C static size_t widen_vectors(float *out, const uint16_t *in, size_t count)
{
    size_t i = 0;
    for (; count - i >= LANES; i += LANES)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
    return i;
}

WITH_F16C static size_t narrow_vectors(uint16_t *out, const float *in, size_t count)
{
    size_t i = 0;
    for (; count - i >= LANES; i += LANES) {
        __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(out + i), halves);
    }
    return i;
}
#endif

/* What a whole vector does not fill, or everything. ARM's compilers have the type, and make vectors of its conversions. */
#ifdef __ARM_FP16_FORMAT_IEEE
static inline float widened(uint16_t half)
{
    __fp16 value;
    memcpy(&value, &half, sizeof(value));
    return (float)value;
}

static inline uint16_t narrowed(float value)
{
    __fp16 rounded = (__fp16)value;
    uint16_t half;
    memcpy(&half, &rounded, sizeof(half));
    return half;
}
#else
#define widened wfi_float_of_f16
#define narrowed wfi_f16_of_float
#endif

WFI_CLONES static void widen_rest(float *restrict out, const uint16_t *restrict in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = widened(in[i]);
}

WFI_CLONES static void narrow_rest(uint16_t *restrict out, const float *restrict in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = narrowed(in[i]);
}

void wfi_f16_widen(float *out, const uint16_t *in, size_t count)
{
    size_t done = 0;
#ifdef WITH_F16C
    if (has_f16c())
        done = widen_vectors(out, in, count);
#endif
    widen_rest(out + done, in + done, count - done);
}

void wfi_f16_narrow(uint16_t *out, const float *in, size_t count)
{
    size_t done = 0;
#ifdef WITH_F16C
    if (has_f16c())
        done = narrow_vectors(out, in, count);
#endif
    narrow_rest(out + done, in + done, count - done);
}
