/* SPDX-License-Identifier: Apache-2.0 */
/* copy.c - copies, conversions and fills over any strides. */
#include "tensor/copy.h"

#include "tensor/half.h"
#include "tensor/parallel.h"
#include "tensor/strided.h"

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
    static bool name(char *const *at, const int64_t *step, int64_t count, void *arg)                                   \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            FROM raw = *(const FROM *)(at[0] + i * step[0]);                                                           \
            VALUE v = READ(raw);                                                                                       \
            *(TO *)(at[1] + i * step[1]) = (EXPRESSION);                                                               \
        }                                                                                                              \
        return true;                                                                                                   \
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

#define CONVERT_FROM_INTEGER(tag, FROM, NARROW)                                                                        \
    CONVERT_TO_FLOATS(tag, FROM, FROM, AS_IT_IS, NARROW)                                                               \
    CONVERT_ROW(tag##_to_i64, FROM, FROM, AS_IT_IS, int64_t, (int64_t)v)                                               \
    CONVERT_ROW(tag##_to_i32, FROM, FROM, AS_IT_IS, int32_t, (int32_t)v)                                               \
    CONVERT_ROW(tag##_to_i16, FROM, FROM, AS_IT_IS, int16_t, (int16_t)v)                                               \
    CONVERT_ROW(tag##_to_i8, FROM, FROM, AS_IT_IS, int8_t, (int8_t)v)                                                  \
    CONVERT_ROW(tag##_to_u8, FROM, FROM, AS_IT_IS, uint8_t, (uint8_t)v)

#define AS_IT_IS(v) (v)
#define AS_FLOAT(v) ((float)(v)) /* exact */
CONVERT_FROM_FLOAT(f32, float, float, AS_IT_IS, AS_IT_IS)
CONVERT_FROM_FLOAT(f64, double, double, AS_IT_IS, wfi_float_odd_of_f64)
CONVERT_FROM_FLOAT(f16, uint16_t, float, wfi_float_of_f16, AS_IT_IS)
CONVERT_FROM_FLOAT(bf16, uint16_t, float, wfi_float_of_bf16, AS_IT_IS)
CONVERT_FROM_INTEGER(i64, int64_t, wfi_float_odd_of_i64)
CONVERT_FROM_INTEGER(i32, int32_t, wfi_float_odd_of_i64)
CONVERT_FROM_INTEGER(i16, int16_t, AS_FLOAT)
CONVERT_FROM_INTEGER(i8, int8_t, AS_FLOAT)
CONVERT_FROM_INTEGER(u8, uint8_t, AS_FLOAT)

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

#define CONVERT_LINE(tag)                                                                                              \
    {                                                                                                                  \
        [WEFT_FLOAT32] = tag##_to_f32, [WEFT_FLOAT64] = tag##_to_f64, [WEFT_FLOAT16] = tag##_to_f16,                   \
        [WEFT_BFLOAT16] = tag##_to_bf16, [WEFT_INT64] = tag##_to_i64, [WEFT_INT32] = tag##_to_i32,                     \
        [WEFT_INT16] = tag##_to_i16, [WEFT_INT8] = tag##_to_i8, [WEFT_UINT8] = tag##_to_u8,                            \
        [WEFT_BOOL_DTYPE] = tag##_to_bool,                                                                             \
    }
/* [from][to]; a bool reads as the uint8 that it is; NULL: these two do not convert. */
static const wfi_strided_row converters[WFI_DTYPES][WFI_DTYPES] = {
    [WEFT_FLOAT32] = CONVERT_LINE(f32),
    [WEFT_FLOAT64] = CONVERT_LINE(f64),
    [WEFT_FLOAT16] = CONVERT_LINE(f16),
    [WEFT_BFLOAT16] = CONVERT_LINE(bf16),
    [WEFT_INT64] = CONVERT_LINE(i64),
    [WEFT_INT32] = CONVERT_LINE(i32),
    [WEFT_INT16] = CONVERT_LINE(i16),
    [WEFT_INT8] = CONVERT_LINE(i8),
    [WEFT_UINT8] = CONVERT_LINE(u8),
    [WEFT_BOOL_DTYPE] = CONVERT_LINE(u8),
    [WEFT_COMPLEX64] = {[WEFT_COMPLEX128] = c64_to_c128},
    [WEFT_COMPLEX128] = {[WEFT_COMPLEX64] = c128_to_c64},
};

/* By the size of an element. */
static wfi_strided_row copier(size_t size)
{
    return size == 1 ? copy_1 : size == 2 ? copy_2 : size == 4 ? copy_4 : size == 8 ? copy_8 : copy_16;
}

static wfi_strided_row converter(weft_dtype from, weft_dtype to)
{
    return from == to ? copier(weft_dtype_size(from)) : converters[from][to];
}

bool wfi_convert_one(weft_dtype from, const void *x, weft_dtype to, void *y)
{
    char *at[2] = {(char *)x, y};
    wfi_strided_row row = converter(from, to);
    return row != NULL && row(at, (int64_t[2]){0, 0}, 1, NULL);
}

typedef struct copy_args {
    char *to;
    const char *from;
} copy_args;

static void copy_piece(void *arg, int64_t begin, int64_t end)
{
    copy_args *copy = arg;
    memcpy(copy->to + begin, copy->from + begin, (size_t)(end - begin));
}

weft_status wfi_copy(const weft_tensor *x, weft_tensor *y)
{
    if (!weft_tensor_same_shape(x, y))
        return WEFT_ERR_SHAPE;
    bool plain = x->dtype == y->dtype && weft_tensor_is_contiguous(x) && weft_tensor_is_contiguous(y);
    bool device = wfi_tensor_kind(x) == WFI_MEMORY_CUDA || wfi_tensor_kind(y) == WFI_MEMORY_CUDA;
    size_t size = weft_dtype_size(x->dtype);
    if (plain && device)
        return wfi_memory_copy(y->storage, (size_t)y->offset * size, x->storage, (size_t)x->offset * size,
                               weft_tensor_nbytes(x));
    if (plain && x->storage != y->storage) {
        copy_args copy = {wfi_tensor_address(y), wfi_tensor_address(x)};
        wfi_parallel((int64_t)weft_tensor_nbytes(x), (int64_t)1 << 20, copy_piece, &copy);
        return WEFT_OK;
    }
    return wfi_expand(x, y);
}

weft_status wfi_expand(const weft_tensor *x, weft_tensor *y)
{
    wfi_strided walk;
    wfi_strided_row row = converter(x->dtype, y->dtype);
    if (row == NULL)
        return WEFT_ERR_TYPE;
    weft_status status = wfi_strided_init(&walk, &y->shape, 2, (const weft_tensor *[]){x, y});
    if (status == WEFT_OK)
        wfi_strided_walk(&walk, row, NULL);
    return status;
}

/* One element, as bits. */
typedef struct fill_args {
    size_t size;
    bits_16 bits;
} fill_args;

#define FILL_ROW(name, T)                                                                                              \
    static void name(char *to, int64_t step, const fill_args *fill, int64_t count)                                     \
    {                                                                                                                  \
        T value;                                                                                                       \
        memcpy(&value, &fill->bits, sizeof(value));                                                                    \
        if (step == sizeof(T)) {                                                                                       \
            for (int64_t i = 0; i < count; i++)                                                                        \
                ((T *)to)[i] = value;                                                                                  \
        } else {                                                                                                       \
            for (int64_t i = 0; i < count; i++)                                                                        \
                *(T *)(to + i * step) = value;                                                                         \
        }                                                                                                              \
    }
FILL_ROW(fill_1, uint8_t)
FILL_ROW(fill_2, uint16_t)
FILL_ROW(fill_4, uint32_t)
FILL_ROW(fill_8, uint64_t)
FILL_ROW(fill_16, bits_16)

static bool fill_row(char *const *at, const int64_t *step, int64_t count, void *arg)
{
    const fill_args *fill = arg;
    if (step[0] == (int64_t)fill->size && fill->bits.half[0] == 0 && fill->bits.half[1] == 0)
        memset(at[0], 0, (size_t)count * fill->size);
    else if (fill->size == 1)
        fill_1(at[0], step[0], fill, count);
    else if (fill->size == 2)
        fill_2(at[0], step[0], fill, count);
    else if (fill->size == 4)
        fill_4(at[0], step[0], fill, count);
    else if (fill->size == 8)
        fill_8(at[0], step[0], fill, count);
    else
        fill_16(at[0], step[0], fill, count);
    return true;
}

/* One element of y's dtype, converted, becomes all of them; needs no memory, so it cannot fail on a host tensor. */
void wfi_fill(weft_tensor *y, double value)
{
    fill_args fill = {weft_dtype_size(y->dtype), {{0, 0}}};
    (void)wfi_convert_one(WEFT_FLOAT64, &value, wfi_dtype_real(y->dtype),
                          &fill.bits); /* all dtypes that are not complex */
    wfi_strided walk;
    if (wfi_strided_init(&walk, &y->shape, 1, (const weft_tensor *[]){y}) != WEFT_OK)
        return; /* device memory: filled by its own kernels */
    wfi_strided_walk(&walk, fill_row, &fill);
}
