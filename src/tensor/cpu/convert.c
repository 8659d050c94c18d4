/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c - the CPU's copies, conversions and fills, over any strides. */
#include "tensor/half.h"
#include "tensor/kernels.h"

#include <math.h>
#include <string.h>

/* Saturating, NaN becomes 0: what C leaves undefined is decided here. */
static int64_t float_to_i64(double value)
{
    if (isnan(value))
        return 0;
    if (value >= 9223372036854775807.0)
        return INT64_MAX;
    return value <= -9223372036854775808.0 ? INT64_MIN : (int64_t)value;
}

#define SATURATE(name, T, MINIMUM, MAXIMUM)                                                                            \
    static T name(double value)                                                                                        \
    {                                                                                                                  \
        int64_t wide = float_to_i64(value);                                                                            \
        return wide > (MAXIMUM) ? (MAXIMUM) : wide < (MINIMUM) ? (MINIMUM) : (T)wide;                                  \
    }
SATURATE(float_to_i32, int32_t, INT32_MIN, INT32_MAX)
SATURATE(float_to_i16, int16_t, INT16_MIN, INT16_MAX)
SATURATE(float_to_i8, int8_t, INT8_MIN, INT8_MAX)
SATURATE(float_to_u8, uint8_t, 0, UINT8_MAX)

/* `raw` is the element as it is stored, VALUE the type that it is read as. */
#define CONVERT_ROW(name, FROM, VALUE, READ, TO, EXPRESSION)                                                           \
    static bool name##_row(char *const *at, const int64_t *step, int64_t count, void *arg)                             \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        const FROM *from = (const FROM *)at[0];                                                                        \
        TO *to = (TO *)at[1];                                                                                          \
        bool packed = step[0] == sizeof(FROM) && step[1] == sizeof(TO); /* vector code */                              \
        for (int64_t i = 0; packed && i < count; i++) {                                                                \
            FROM raw = from[i];                                                                                        \
            VALUE v = READ(raw);                                                                                       \
            to[i] = (EXPRESSION);                                                                                      \
        }                                                                                                              \
        for (int64_t i = 0; !packed && i < count; i++) {                                                               \
            FROM raw = *(const FROM *)(at[0] + i * step[0]);                                                           \
            VALUE v = READ(raw);                                                                                       \
            *(TO *)(at[1] + i * step[1]) = (EXPRESSION);                                                               \
        }                                                                                                              \
        return true;                                                                                                   \
    }                                                                                                                  \
    static weft_status name(const wfi_strided *walk)                                                                   \
    {                                                                                                                  \
        wfi_strided_walk(walk, name##_row, NULL);                                                                      \
        return WEFT_OK;                                                                                                \
    }

/* NARROW: v as a float that float16 and bfloat16 are rounded from. */
#define CONVERT_TO_FLOATS(tag, FROM, VALUE, READ, NARROW)                                                              \
    CONVERT_ROW(tag##_to_f32, FROM, VALUE, READ, float, (float)v)                                                      \
    CONVERT_ROW(tag##_to_f64, FROM, VALUE, READ, double, (double)v)                                                    \
    CONVERT_ROW(tag##_to_f16, FROM, VALUE, READ, uint16_t, wfi_f16_of_float(NARROW(v)))                                \
    CONVERT_ROW(tag##_to_bf16, FROM, VALUE, READ, uint16_t, wfi_bf16_of_float(NARROW(v)))                              \
    CONVERT_ROW(tag##_to_bool, FROM, VALUE, READ, uint8_t, v != 0)

#define CONVERT_FROM_FLOAT(tag, FROM, VALUE, READ, NARROW)                                                             \
    CONVERT_TO_FLOATS(tag, FROM, VALUE, READ, NARROW)                                                                  \
    CONVERT_ROW(tag##_to_i64, FROM, VALUE, READ, int64_t, float_to_i64((double)v))                                     \
    CONVERT_ROW(tag##_to_i32, FROM, VALUE, READ, int32_t, float_to_i32((double)v))                                     \
    CONVERT_ROW(tag##_to_i16, FROM, VALUE, READ, int16_t, float_to_i16((double)v))                                     \
    CONVERT_ROW(tag##_to_i8, FROM, VALUE, READ, int8_t, float_to_i8((double)v))                                        \
    CONVERT_ROW(tag##_to_u8, FROM, VALUE, READ, uint8_t, float_to_u8((double)v))

#define CONVERT_FROM_INTEGER(tag, FROM, READ, NARROW)                                                                  \
    CONVERT_TO_FLOATS(tag, FROM, FROM, READ, NARROW)                                                                   \
    CONVERT_ROW(tag##_to_i64, FROM, FROM, READ, int64_t, (int64_t)v)                                                   \
    CONVERT_ROW(tag##_to_i32, FROM, FROM, READ, int32_t, (int32_t)v)                                                   \
    CONVERT_ROW(tag##_to_i16, FROM, FROM, READ, int16_t, (int16_t)v)                                                   \
    CONVERT_ROW(tag##_to_i8, FROM, FROM, READ, int8_t, (int8_t)v)                                                      \
    CONVERT_ROW(tag##_to_u8, FROM, FROM, READ, uint8_t, (uint8_t)v)

#define AS_IT_IS(v) (v)
#define AS_FLOAT(v) ((float)(v)) /* exact */
CONVERT_FROM_FLOAT(f32, float, float, AS_IT_IS, AS_IT_IS)
CONVERT_FROM_FLOAT(f64, double, double, AS_IT_IS, wfi_float_odd_of_f64)
CONVERT_FROM_FLOAT(f16, uint16_t, float, wfi_float_of_f16, AS_IT_IS)
CONVERT_FROM_FLOAT(bf16, uint16_t, float, wfi_float_of_bf16, AS_IT_IS)
CONVERT_FROM_INTEGER(i64, int64_t, AS_IT_IS, wfi_float_odd_of_i64)
CONVERT_FROM_INTEGER(i32, int32_t, AS_IT_IS, wfi_float_odd_of_i64)
CONVERT_FROM_INTEGER(i16, int16_t, AS_IT_IS, AS_FLOAT)
CONVERT_FROM_INTEGER(i8, int8_t, AS_IT_IS, AS_FLOAT)
CONVERT_FROM_INTEGER(u8, uint8_t, AS_IT_IS, AS_FLOAT)
CONVERT_FROM_INTEGER(bool8, uint8_t, wfi_bool_of, AS_FLOAT)

/* Equal dtypes: the bits, whatever they mean. */
typedef struct bits_16 {
    uint64_t half[2];
} bits_16;
CONVERT_ROW(copy_1, uint8_t, uint8_t, AS_IT_IS, uint8_t, v)
CONVERT_ROW(copy_2, uint16_t, uint16_t, AS_IT_IS, uint16_t, v)
CONVERT_ROW(copy_4, uint32_t, uint32_t, AS_IT_IS, uint32_t, v)
CONVERT_ROW(copy_8, uint64_t, uint64_t, AS_IT_IS, uint64_t, v)
CONVERT_ROW(copy_16, bits_16, bits_16, AS_IT_IS, bits_16, v)

typedef struct complex_f32 {
    float real, imaginary;
} complex_f32;
typedef struct complex_f64 {
    double real, imaginary;
} complex_f64;
CONVERT_ROW(c64_to_c128, complex_f32, complex_f32, AS_IT_IS, complex_f64,
            ((complex_f64){(double)v.real, (double)v.imaginary}))
CONVERT_ROW(c128_to_c64, complex_f64, complex_f64, AS_IT_IS, complex_f32,
            ((complex_f32){(float)v.real, (float)v.imaginary}))

/* ---- Fills ------------------------------------------------------------------------------------------------------ */

#define FILL(name, T)                                                                                                  \
    static bool name##_row(char *const *at, const int64_t *step, int64_t count, void *element)                         \
    {                                                                                                                  \
        T value, zero;                                                                                                 \
        memcpy(&value, element, sizeof(value));                                                                        \
        memset(&zero, 0, sizeof(zero));                                                                                \
        bool packed = step[0] == sizeof(T);                                                                            \
        if (packed && memcmp(&value, &zero, sizeof(value)) == 0) {                                                     \
            memset(at[0], 0, (size_t)count * sizeof(T));                                                               \
        } else if (packed) {                                                                                           \
            for (int64_t i = 0; i < count; i++)                                                                        \
                ((T *)at[0])[i] = value;                                                                               \
        } else {                                                                                                       \
            for (int64_t i = 0; i < count; i++)                                                                        \
                *(T *)(at[0] + i * step[0]) = value;                                                                   \
        }                                                                                                              \
        return true;                                                                                                   \
    }                                                                                                                  \
    static weft_status name(const wfi_strided *walk, const void *element)                                              \
    {                                                                                                                  \
        wfi_strided_walk(walk, name##_row, (void *)element);                                                           \
        return WEFT_OK;                                                                                                \
    }
FILL(fill_1, uint8_t)
FILL(fill_2, uint16_t)
FILL(fill_4, uint32_t)
FILL(fill_8, uint64_t)
FILL(fill_16, bits_16)

/* ---- The table -------------------------------------------------------------------------------------------------- */

#define TO_ALL(tag)                                                                                                    \
    {                                                                                                                  \
        [WEFT_DTYPE_FLOAT32] = tag##_to_f32, [WEFT_DTYPE_FLOAT64] = tag##_to_f64, [WEFT_DTYPE_FLOAT16] = tag##_to_f16, \
        [WEFT_DTYPE_BFLOAT16] = tag##_to_bf16, [WEFT_DTYPE_INT64] = tag##_to_i64, [WEFT_DTYPE_INT32] = tag##_to_i32,   \
        [WEFT_DTYPE_INT16] = tag##_to_i16, [WEFT_DTYPE_INT8] = tag##_to_i8, [WEFT_DTYPE_UINT8] = tag##_to_u8,          \
        [WEFT_DTYPE_BOOL] = tag##_to_bool,                                                                             \
    }
const wfi_copy_kernels wfi_copy_cpu[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = {copy_4, TO_ALL(f32), fill_4},
    [WEFT_DTYPE_FLOAT64] = {copy_8, TO_ALL(f64), fill_8},
    [WEFT_DTYPE_FLOAT16] = {copy_2, TO_ALL(f16), fill_2},
    [WEFT_DTYPE_BFLOAT16] = {copy_2, TO_ALL(bf16), fill_2},
    [WEFT_DTYPE_INT64] = {copy_8, TO_ALL(i64), fill_8},
    [WEFT_DTYPE_INT32] = {copy_4, TO_ALL(i32), fill_4},
    [WEFT_DTYPE_INT16] = {copy_2, TO_ALL(i16), fill_2},
    [WEFT_DTYPE_INT8] = {copy_1, TO_ALL(i8), fill_1},
    [WEFT_DTYPE_UINT8] = {copy_1, TO_ALL(u8), fill_1},
    [WEFT_DTYPE_BOOL] = {copy_1, TO_ALL(bool8), fill_1},
    [WEFT_DTYPE_COMPLEX64] = {copy_8, {[WEFT_DTYPE_COMPLEX128] = c64_to_c128}, fill_8},
    [WEFT_DTYPE_COMPLEX128] = {copy_16, {[WEFT_DTYPE_COMPLEX64] = c128_to_c64}, fill_16},
};
