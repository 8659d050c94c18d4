/* SPDX-License-Identifier: Apache-2.0 */
/* combine.c - see combine.h. The compiler turns plain loops into vector code, once for each version of clones.h. */
#include "tensor/combine.h"

#include "tensor/clones.h"
#include "tensor/combine_f16.h"
#include "tensor/combine_float.h"
#include "tensor/dtype.h"

#include <assert.h>

typedef void (*combine_kernel)(void *out, const void *left, const void *right, size_t count);

#define COMBINE(name, T, EXPRESSION)                                                                                   \
    WFI_CLONES static void name(void *out, const void *left, const void *right, size_t count)                          \
    {                                                                                                                  \
        const T *x = left, *z = right;                                                                                 \
        T *y = out;                                                                                                    \
        WFI_NO_STEP_NEEDS_ANOTHER                                                                                      \
        for (size_t i = 0; i < count; i++) {                                                                           \
            T a = x[i], b = z[i];                                                                                      \
            y[i] = (T)(EXPRESSION);                                                                                    \
        }                                                                                                              \
    }

/* ---- Integers, computed as unsigned numbers of at least int's width, where overflow is defined ------------------- */

#define COMBINE_WRAPPING(tag, U, WIDE)                                                                                 \
    COMBINE(tag##_sum, U, (WIDE)a + (WIDE)b)                                                                           \
    COMBINE(tag##_prod, U, (WIDE)a *(WIDE)b)
#define COMBINE_ORDERED(tag, T)                                                                                        \
    COMBINE(tag##_min, T, a < b ? a : b)                                                                               \
    COMBINE(tag##_max, T, a < b ? b : a)

COMBINE_WRAPPING(int8, uint8_t, uint32_t)
COMBINE_WRAPPING(int16, uint16_t, uint32_t)
COMBINE_WRAPPING(int32, uint32_t, uint32_t)
COMBINE_WRAPPING(int64, uint64_t, uint64_t)
COMBINE_ORDERED(u8, uint8_t)
COMBINE_ORDERED(i8, int8_t)
COMBINE_ORDERED(i16, int16_t)
COMBINE_ORDERED(i32, int32_t)
COMBINE_ORDERED(i64, int64_t)
COMBINE(bool_or, uint8_t, wfi_bool_of(a | b))
COMBINE(bool_and, uint8_t, wfi_bool_of(a) & wfi_bool_of(b))

/* ---- Floats ------------------------------------------------------------------------------------------------------ */

#define COMBINE_FLOATS(tag, T)                                                                                         \
    COMBINE(tag##_sum, T, tag##_sum_of(a, b))                                                                          \
    COMBINE(tag##_min, T, tag##_min_of(a, b))                                                                          \
    COMBINE(tag##_max, T, tag##_max_of(a, b))                                                                          \
    COMBINE(tag##_prod, T, tag##_prod_of(a, b))
COMBINE_FLOATS(f32, float)
COMBINE_FLOATS(f64, double)

/* ---- bfloat16: two in each word of 32 bits; a shift makes one of them a float, a mask the other ------------------ */

/* Bits whose upper half is the bfloat16 nearest to `value`. For the NaN of combine_float.h it is bfloat16's NaN. */
static inline uint32_t bf16_above(float value)
{
    uint32_t bits = wfi_bits_of_float(value);
    return bits + 0x7fff + (bits >> 16 & 1);
}

#define BF16_HIGH UINT32_C(0xffff0000)
#define BF16_PAIR(low, high) (bf16_above(low) >> 16 | (bf16_above(high) & BF16_HIGH))
#define COMBINE_BF16(name, FUNCTION)                                                                                   \
    static inline uint32_t name##_of(uint32_t a, uint32_t b)                                                           \
    {                                                                                                                  \
        float low = FUNCTION(wfi_float_of_bits(a << 16), wfi_float_of_bits(b << 16));                                  \
        float high = FUNCTION(wfi_float_of_bits(a & BF16_HIGH), wfi_float_of_bits(b & BF16_HIGH));                     \
        return BF16_PAIR(low, high);                                                                                   \
    }                                                                                                                  \
    WFI_CLONES static void name(void *out, const void *left, const void *right, size_t count)                          \
    {                                                                                                                  \
        const uint16_t *x = left, *z = right;                                                                          \
        uint16_t *y = out;                                                                                             \
        WFI_NO_STEP_NEEDS_ANOTHER                                                                                      \
        for (size_t i = 0; i < count / 2; i++) {                                                                       \
            uint32_t a, b;                                                                                             \
            memcpy(&a, x + 2 * i, sizeof(a));                                                                          \
            memcpy(&b, z + 2 * i, sizeof(b));                                                                          \
            uint32_t pair = name##_of(a, b);                                                                           \
            memcpy(y + 2 * i, &pair, sizeof(pair));                                                                    \
        }                                                                                                              \
        if (count % 2 != 0)                                                                                            \
            y[count - 1] = (uint16_t)name##_of(x[count - 1], z[count - 1]);                                            \
    }
COMBINE_BF16(bf16_sum, f32_sum_of)
COMBINE_BF16(bf16_min, f32_min_of)
COMBINE_BF16(bf16_max, f32_max_of)
COMBINE_BF16(bf16_prod, f32_prod_of)

/* ---- Complex numbers: two floats; sums and quotients are computed on each of them -------------------------------- */

typedef struct complex_f32 {
    float real, imaginary;
} complex_f32;
typedef struct complex_f64 {
    double real, imaginary;
} complex_f64;

/*
 * The NaN of each product is replaced before the products are added. So the operand of the addition is no product, and
 * the compiler cannot fuse the two. Otherwise gcc 12 fuses them for AVX-512 if real and imaginary parts alternate in
 * memory, whatever -ffp-contract says.
 */
#define COMBINE_COMPLEX(tag, real_tag, T)                                                                              \
    static void tag##_sum(void *out, const void *left, const void *right, size_t count)                                \
    {                                                                                                                  \
        real_tag##_sum(out, left, right, 2 * count);                                                                   \
    }                                                                                                                  \
    static inline T tag##_prod_of(T a, T b)                                                                            \
    {                                                                                                                  \
        return (T){                                                                                                    \
            real_tag##_sum_of(real_tag##_prod_of(a.real, b.real), -real_tag##_prod_of(a.imaginary, b.imaginary)),      \
            real_tag##_sum_of(real_tag##_prod_of(a.real, b.imaginary), real_tag##_prod_of(a.imaginary, b.real))};      \
    }                                                                                                                  \
    COMBINE(tag##_prod, T, tag##_prod_of(a, b))
COMBINE_COMPLEX(c64, f32, complex_f32)
COMBINE_COMPLEX(c128, f64, complex_f64)

/* ---- Quotients --------------------------------------------------------------------------------------------------- */

#define DIVIDE(tag, T)                                                                                                 \
    WFI_CLONES static void tag##_divide(void *data, size_t count, size_t divisor)                                      \
    {                                                                                                                  \
        T *x = data, by = (T)divisor;                                                                                  \
        for (size_t i = 0; i < count; i++)                                                                             \
            x[i] = tag##_quotient_of(x[i], by);                                                                        \
    }
DIVIDE(f32, float)
DIVIDE(f64, double)

static inline uint32_t bf16_quotients(uint32_t pair, float by)
{
    float low = f32_quotient_of(wfi_float_of_bits(pair << 16), by);
    float high = f32_quotient_of(wfi_float_of_bits(pair & BF16_HIGH), by);
    return BF16_PAIR(low, high);
}

WFI_CLONES static void bf16_divide(void *data, size_t count, size_t divisor)
{
    uint16_t *x = data;
    float by = (float)divisor;
    for (size_t i = 0; i < count / 2; i++) {
        uint32_t pair;
        memcpy(&pair, x + 2 * i, sizeof(pair));
        pair = bf16_quotients(pair, by);
        memcpy(x + 2 * i, &pair, sizeof(pair));
    }
    if (count % 2 != 0)
        x[count - 1] = (uint16_t)bf16_quotients(x[count - 1], by);
}

static void c64_divide(void *data, size_t count, size_t divisor)
{
    f32_divide(data, 2 * count, divisor);
}

static void c128_divide(void *data, size_t count, size_t divisor)
{
    f64_divide(data, 2 * count, divisor);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

enum { REDUCES = WEFT_OP_PROD + 1 };

typedef struct combine_kernels {
    combine_kernel by[REDUCES]; /* NULL: the dtype cannot be combined in this way */
    void (*divide)(void *data, size_t count, size_t divisor);
} combine_kernels;

#define FLOATS(tag)                                                                                                    \
    {                                                                                                                  \
        {tag##_sum, tag##_sum, tag##_min, tag##_max, tag##_prod}, tag##_divide                                         \
    }
#define INTEGERS(size_tag, tag)                                                                                        \
    {                                                                                                                  \
        {size_tag##_sum, NULL, tag##_min, tag##_max, size_tag##_prod}, NULL                                            \
    }
#define COMPLEX(tag)                                                                                                   \
    {                                                                                                                  \
        {tag##_sum, tag##_sum, NULL, NULL, tag##_prod}, tag##_divide                                                   \
    }
static const combine_kernels kernels[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = FLOATS(f32),        [WEFT_DTYPE_FLOAT64] = FLOATS(f64),
    [WEFT_DTYPE_FLOAT16] = FLOATS(wfi_f16),    [WEFT_DTYPE_BFLOAT16] = FLOATS(bf16),
    [WEFT_DTYPE_INT64] = INTEGERS(int64, i64), [WEFT_DTYPE_INT32] = INTEGERS(int32, i32),
    [WEFT_DTYPE_INT16] = INTEGERS(int16, i16), [WEFT_DTYPE_INT8] = INTEGERS(int8, i8),
    [WEFT_DTYPE_UINT8] = INTEGERS(int8, u8),   [WEFT_DTYPE_BOOL] = {{bool_or, NULL, bool_and, bool_or, bool_and}, NULL},
    [WEFT_DTYPE_COMPLEX64] = COMPLEX(c64),     [WEFT_DTYPE_COMPLEX128] = COMPLEX(c128),
};

bool wfi_can_combine(weft_dtype dtype, weft_op how)
{
    return wfi_dtype_is_valid(dtype) && (unsigned)how < REDUCES && kernels[dtype].by[how];
}

void wfi_combine(weft_dtype dtype, weft_op how, void *out, const void *a, const void *b, size_t count)
{
    assert(wfi_can_combine(dtype, how));
    kernels[dtype].by[how](out, a, b, count);
}

void wfi_combine_divide(weft_dtype dtype, void *data, size_t count, size_t divisor)
{
    assert(wfi_can_combine(dtype, WEFT_OP_AVG) && divisor > 0);
    kernels[dtype].divide(data, count, divisor);
}
