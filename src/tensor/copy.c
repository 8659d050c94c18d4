/* SPDX-License-Identifier: Apache-2.0 */
/* copy.c - copies, conversions and fills over any strides. */
#include "tensor/parallel.h"
#include "tensor/strided.h"
#include "tensor/copy.h"

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

static int32_t float_to_i32(double value)
{
    int64_t wide = float_to_i64(value);
    return wide > INT32_MAX ? INT32_MAX : wide < INT32_MIN ? INT32_MIN : (int32_t)wide;
}

static uint8_t float_to_u8(double value)
{
    int64_t wide = float_to_i64(value);
    return wide > UINT8_MAX ? UINT8_MAX : wide < 0 ? 0 : (uint8_t)wide;
}

#define CONVERT_ROW(name, FROM, TO, EXPRESSION)                                                                        \
    static bool name(char *const *at, const int64_t *step, int64_t count, void *arg)                                   \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            FROM v = *(const FROM *)(at[0] + i * step[0]);                                                             \
            *(TO *)(at[1] + i * step[1]) = (EXPRESSION);                                                               \
        }                                                                                                              \
        return true;                                                                                                   \
    }

#define CONVERT_FROM_FLOAT(tag, FROM)                                                                                  \
    CONVERT_ROW(tag##_to_f32, FROM, float, (float)v)                                                                   \
    CONVERT_ROW(tag##_to_f64, FROM, double, (double)v)                                                                 \
    CONVERT_ROW(tag##_to_i64, FROM, int64_t, float_to_i64((double)v))                                                  \
    CONVERT_ROW(tag##_to_i32, FROM, int32_t, float_to_i32((double)v))                                                  \
    CONVERT_ROW(tag##_to_u8, FROM, uint8_t, float_to_u8((double)v))                                                    \
    CONVERT_ROW(tag##_to_bool, FROM, uint8_t, v != 0)

#define CONVERT_FROM_INTEGER(tag, FROM)                                                                                \
    CONVERT_ROW(tag##_to_f32, FROM, float, (float)v)                                                                   \
    CONVERT_ROW(tag##_to_f64, FROM, double, (double)v)                                                                 \
    CONVERT_ROW(tag##_to_i64, FROM, int64_t, (int64_t)v)                                                               \
    CONVERT_ROW(tag##_to_i32, FROM, int32_t, (int32_t)v)                                                               \
    CONVERT_ROW(tag##_to_u8, FROM, uint8_t, (uint8_t)v)                                                                \
    CONVERT_ROW(tag##_to_bool, FROM, uint8_t, v != 0)

CONVERT_FROM_FLOAT(f32, float)
CONVERT_FROM_FLOAT(f64, double)
CONVERT_FROM_INTEGER(i64, int64_t)
CONVERT_FROM_INTEGER(i32, int32_t)
CONVERT_FROM_INTEGER(u8, uint8_t)

#define CONVERT_LINE(tag)                                                                                              \
    {                                                                                                                  \
        tag##_to_f32, tag##_to_f64, tag##_to_i64, tag##_to_i32, tag##_to_u8, tag##_to_bool                             \
    }
/* [from][to], in the order of weft_dtype; a bool reads as the uint8 that it is. */
static const wfi_strided_row converters[6][6] = {CONVERT_LINE(f32), CONVERT_LINE(f64), CONVERT_LINE(i64),
                                                 CONVERT_LINE(i32), CONVERT_LINE(u8),  CONVERT_LINE(u8)};

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
    weft_status status = wfi_strided_init(&walk, &y->shape, 2, (const weft_tensor *[]){x, y});
    if (status == WEFT_OK)
        wfi_strided_walk(&walk, converters[x->dtype][y->dtype], NULL);
    return status;
}

typedef struct fill_args {
    uint64_t bits; /* the element, in the low bytes */
    size_t size;
} fill_args;

static bool fill_packed(char *to, const fill_args *fill, int64_t count)
{
    if (fill->bits == 0 || fill->size == 1) {
        memset(to, (int)(fill->bits & 0xff), (size_t)count * fill->size);
    } else if (fill->size == 8) {
        for (int64_t i = 0; i < count; i++)
            ((uint64_t *)to)[i] = fill->bits;
    } else {
        for (int64_t i = 0; i < count; i++)
            ((uint32_t *)to)[i] = (uint32_t)fill->bits;
    }
    return true;
}

static bool fill_row(char *const *at, const int64_t *step, int64_t count, void *arg)
{
    const fill_args *fill = arg;
    if (step[0] == (int64_t)fill->size)
        return fill_packed(at[0], fill, count);
    if (fill->size == 8) {
        for (int64_t i = 0; i < count; i++)
            *(uint64_t *)(at[0] + i * step[0]) = fill->bits;
    } else if (fill->size == 4) {
        for (int64_t i = 0; i < count; i++)
            *(uint32_t *)(at[0] + i * step[0]) = (uint32_t)fill->bits;
    } else {
        for (int64_t i = 0; i < count; i++)
            at[0][i * step[0]] = (char)fill->bits;
    }
    return true;
}

/* One element of y's dtype, converted, becomes all of them; needs no memory, so it cannot fail on a host tensor. */
void wfi_fill(weft_tensor *y, double value)
{
    fill_args fill = {0, weft_dtype_size(y->dtype)};
    char *at[2] = {(char *)&value, (char *)&fill.bits};
    converters[WEFT_FLOAT64][y->dtype](at, (int64_t[2]){0, 0}, 1, NULL);
    wfi_strided walk;
    if (wfi_strided_init(&walk, &y->shape, 1, (const weft_tensor *[]){y}) != WEFT_OK)
        return; /* device memory: filled by its own kernels */
    wfi_strided_walk(&walk, fill_row, &fill);
}
