/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c - arithmetic and comparison with broadcasting, and the quick paths on equal shapes. */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/strided.h"
#include "tensor/cpu/cpu.h"

#include <math.h>

weft_status wfi_broadcast_shape(const weft_shape *a, const weft_shape *b, weft_shape *out)
{
    weft_shape shape = {a->ndim > b->ndim ? a->ndim : b->ndim, {0}};
    for (int d = 1; d <= shape.ndim; d++) {
        int64_t left = d <= a->ndim ? a->dims[a->ndim - d] : 1;
        int64_t right = d <= b->ndim ? b->dims[b->ndim - d] : 1;
        if (left != right && left != 1 && right != 1)
            return WEFT_ERR_SHAPE;
        shape.dims[shape.ndim - d] = left == 1 ? right : left;
    }
    *out = shape;
    return WEFT_OK;
}

/* The two common cases, both contiguous and one a scalar, are loops that the compiler turns into vector code. */
#define BINARY_ROW(name, T, EXPRESSION)                                                                                \
    static bool name(char *const *at, const int64_t *step, int64_t count, void *arg)                                   \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        const T *a = (const T *)at[0], *b = (const T *)at[1];                                                          \
        T *y = (T *)at[2];                                                                                             \
        int64_t size = sizeof(T), sa = step[0] / size, sb = step[1] / size, sy = step[2] / size;                       \
        if (sa == 1 && sb == 1 && sy == 1) {                                                                           \
            for (int64_t i = 0; i < count; i++) {                                                                      \
                T u = a[i], v = b[i];                                                                                  \
                y[i] = (T)(EXPRESSION);                                                                                \
            }                                                                                                          \
        } else if (sa == 1 && sb == 0 && sy == 1) {                                                                    \
            T v = *b;                                                                                                  \
            for (int64_t i = 0; i < count; i++) {                                                                      \
                T u = a[i];                                                                                            \
                y[i] = (T)(EXPRESSION);                                                                                \
            }                                                                                                          \
        } else {                                                                                                       \
            for (int64_t i = 0; i < count; i++) {                                                                      \
                T u = a[i * sa], v = b[i * sb];                                                                        \
                y[i * sy] = (T)(EXPRESSION);                                                                           \
            }                                                                                                          \
        }                                                                                                              \
        return true;                                                                                                   \
    }

/* Integers wrap around; the arithmetic is done unsigned, where that is defined. */
#define BINARY_SET(tag, T, U)                                                                                          \
    BINARY_ROW(tag##_add, T, (U)u + (U)v)                                                                              \
    BINARY_ROW(tag##_sub, T, (U)u - (U)v)                                                                              \
    BINARY_ROW(tag##_mul, T, (U)u *(U)v)

#define DIVIDE_INTEGER(name, T, MINIMUM)                                                                               \
    static bool name(char *const *at, const int64_t *step, int64_t count, void *arg)                                   \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            T u = *(const T *)(at[0] + i * step[0]), v = *(const T *)(at[1] + i * step[1]);                            \
            if (v == 0)                                                                                                \
                return false;                                                                                          \
            bool overflows = (MINIMUM) != 0 && u == (T)(MINIMUM) && v == (T)-1;                                        \
            *(T *)(at[2] + i * step[2]) = overflows ? u : (T)(u / v);                                                  \
        }                                                                                                              \
        return true;                                                                                                   \
    }

BINARY_SET(f32, float, float)
BINARY_SET(f64, double, double)
BINARY_SET(i64, int64_t, uint64_t)
BINARY_SET(i32, int32_t, uint32_t)
BINARY_SET(u8, uint8_t, uint32_t)
BINARY_ROW(f32_div, float, u / v)
BINARY_ROW(f64_div, double, u / v)
DIVIDE_INTEGER(i64_div, int64_t, INT64_MIN)
DIVIDE_INTEGER(i32_div, int32_t, INT32_MIN)
DIVIDE_INTEGER(u8_div, uint8_t, 0)

#define BINARY_LINE(tag)                                                                                               \
    {                                                                                                                  \
        tag##_add, tag##_sub, tag##_mul, tag##_div                                                                     \
    }
static const wfi_strided_row binary_rows[WFI_DTYPES][4] = {[WEFT_FLOAT32] = BINARY_LINE(f32),
                                                           [WEFT_FLOAT64] = BINARY_LINE(f64),
                                                           [WEFT_INT64] = BINARY_LINE(i64),
                                                           [WEFT_INT32] = BINARY_LINE(i32),
                                                           [WEFT_UINT8] = BINARY_LINE(u8)};

bool wfi_has_binary(weft_dtype dtype)
{
    return binary_rows[dtype][WFI_ADD] != NULL;
}

typedef struct flat_args {
    wfi_strided_row row;
    char *data[3];
    int64_t step[3];
} flat_args;

static void flat_piece(void *arg, int64_t begin, int64_t end)
{
    const flat_args *flat = arg;
    char *at[3];
    for (int k = 0; k < 3; k++)
        at[k] = flat->data[k] + begin * flat->step[k];
    flat->row(at, flat->step, end - begin, NULL);
}

static bool run_rows(const wfi_strided *walk, wfi_strided_row row, bool can_fail)
{
    if (walk->ndim > 1 || can_fail)
        return wfi_strided_walk(walk, row, NULL);
    flat_args flat = {row, {walk->data[0], walk->data[1], walk->data[2]}, {0}};
    for (int k = 0; k < 3; k++)
        flat.step[k] = walk->strides[k][0];
    wfi_parallel(walk->dims[0], WFI_GRAIN, flat_piece, &flat);
    return true;
}

static weft_status walk_three(wfi_strided *walk, const weft_tensor *a, const weft_tensor *b, weft_tensor *y)
{
    weft_shape shape;
    if (wfi_broadcast_shape(&a->shape, &b->shape, &shape) != WEFT_OK || !wfi_shape_equal(&shape, &y->shape))
        return WEFT_ERR_SHAPE;
    return wfi_strided_init(walk, &shape, 3, (const weft_tensor *[]){a, b, y});
}

weft_status wfi_binary(wfi_binary_op op, const weft_tensor *a, const weft_tensor *b, weft_tensor *y)
{
    wfi_strided walk;
    if (a->dtype != b->dtype || a->dtype != y->dtype || !wfi_has_binary(a->dtype))
        return WEFT_ERR_TYPE;
    if ((unsigned)op > WFI_DIV)
        return WEFT_ERR_INVALID;
    weft_status status = walk_three(&walk, a, b, y);
    if (status != WEFT_OK)
        return status;
    bool can_fail = op == WFI_DIV && !wfi_dtype_is_float(a->dtype);
    return run_rows(&walk, binary_rows[a->dtype][op], can_fail) ? WEFT_OK : WEFT_ERR_INVALID;
}

#define COMPARE_ROW(name, T, OPERATOR)                                                                                 \
    static bool name(char *const *at, const int64_t *step, int64_t count, void *arg)                                   \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            T u = *(const T *)(at[0] + i * step[0]), v = *(const T *)(at[1] + i * step[1]);                            \
            *(uint8_t *)(at[2] + i * step[2]) = u OPERATOR v;                                                          \
        }                                                                                                              \
        return true;                                                                                                   \
    }
#define COMPARE_SET(tag, T)                                                                                            \
    COMPARE_ROW(tag##_eq, T, ==)                                                                                       \
    COMPARE_ROW(tag##_ne, T, !=)                                                                                       \
    COMPARE_ROW(tag##_lt, T, <) COMPARE_ROW(tag##_le, T, <=) COMPARE_ROW(tag##_gt, T, >) COMPARE_ROW(tag##_ge, T, >=)
#define COMPARE_LINE(tag)                                                                                              \
    {                                                                                                                  \
        tag##_eq, tag##_ne, tag##_lt, tag##_le, tag##_gt, tag##_ge                                                     \
    }

COMPARE_SET(f32, float)
COMPARE_SET(f64, double)
COMPARE_SET(i64, int64_t)
COMPARE_SET(i32, int32_t)
COMPARE_SET(u8, uint8_t)

static const wfi_strided_row compare_rows[WFI_DTYPES][6] = {
    [WEFT_FLOAT32] = COMPARE_LINE(f32), [WEFT_FLOAT64] = COMPARE_LINE(f64), [WEFT_INT64] = COMPARE_LINE(i64),
    [WEFT_INT32] = COMPARE_LINE(i32),   [WEFT_UINT8] = COMPARE_LINE(u8),    [WEFT_BOOL_DTYPE] = COMPARE_LINE(u8)};

weft_status wfi_compare(wfi_compare_op op, const weft_tensor *a, const weft_tensor *b, weft_tensor *y)
{
    wfi_strided walk;
    if (a->dtype != b->dtype || y->dtype != WEFT_BOOL_DTYPE)
        return WEFT_ERR_TYPE;
    if ((unsigned)op > WFI_GE)
        return WEFT_ERR_INVALID;
    if (compare_rows[a->dtype][op] == NULL)
        return WEFT_ERR_TYPE;
    weft_status status = walk_three(&walk, a, b, y);
    if (status == WEFT_OK)
        run_rows(&walk, compare_rows[a->dtype][op], false);
    return status;
}

typedef struct map_args {
    const void *x, *z;
    void *y;
    double factor;
} map_args;

#define MAP_PIECE(name, T, EXPRESSION)                                                                                 \
    static void name(void *arg, int64_t begin, int64_t end)                                                            \
    {                                                                                                                  \
        const map_args *map = arg;                                                                                     \
        const T *x = map->x, *z = map->z;                                                                              \
        T *y = map->y, factor = (T)map->factor;                                                                        \
        (void)z;                                                                                                       \
        (void)factor;                                                                                                  \
        for (int64_t i = begin; i < end; i++)                                                                          \
            y[i] = (EXPRESSION);                                                                                       \
    }

static inline float select_f32(bool condition, float value)
{
    return condition ? value : 0;
}

static inline double select_f64(bool condition, double value)
{
    return condition ? value : 0;
}

MAP_PIECE(scale_f32, float, x[i] * factor)
MAP_PIECE(scale_f64, double, x[i] * factor)
MAP_PIECE(axpy_f32, float, y[i] + factor * x[i])
MAP_PIECE(axpy_f64, double, y[i] + factor * x[i])
MAP_PIECE(add_f32, float, x[i] + factor)
MAP_PIECE(add_f64, double, x[i] + factor)
MAP_PIECE(exp_f32, float, expf(x[i]))
MAP_PIECE(exp_f64, double, exp(x[i]))
MAP_PIECE(ln_f32, float, logf(x[i]))
MAP_PIECE(ln_f64, double, log(x[i]))
MAP_PIECE(relu_f32, float, x[i] <= 0 ? 0 : x[i]) /* a NaN stays one */
MAP_PIECE(relu_f64, double, x[i] <= 0 ? 0 : x[i])
/* A select needs both its arms: read x in any case, or there is a branch for each element. */
MAP_PIECE(relu_back_f32, float, select_f32(z[i] > 0, x[i]))
MAP_PIECE(relu_back_f64, double, select_f64(z[i] > 0, x[i]))

typedef void (*map_piece)(void *arg, int64_t begin, int64_t end);

static weft_status map(const weft_tensor *x, const weft_tensor *z, double factor, weft_tensor *y, map_piece f32,
                       map_piece f64)
{
    weft_status status = WFI_CHECK_FLOATS(x, z, y);
    if (status != WEFT_OK)
        return status;
    if (!weft_tensor_same_shape(x, y) || (z != NULL && !weft_tensor_same_shape(x, z)))
        return WEFT_ERR_SHAPE;
    map_args args = {wfi_tensor_address(x), z != NULL ? wfi_tensor_address(z) : NULL, wfi_tensor_address(y), factor};
    wfi_parallel(x->numel, WFI_GRAIN, WFI_BY_FLOAT(x->dtype, f32, f64), &args);
    return WEFT_OK;
}

weft_status wfi_scale(const weft_tensor *x, double factor, weft_tensor *y)
{
    return map(x, NULL, factor, y, scale_f32, scale_f64);
}

weft_status wfi_axpy(double factor, const weft_tensor *x, weft_tensor *y)
{
    return map(x, NULL, factor, y, axpy_f32, axpy_f64);
}

weft_status wfi_add_into(const weft_tensor *x, weft_tensor *y)
{
    return weft_tensor_same_shape(x, y) ? wfi_binary(WFI_ADD, y, x, y) : WEFT_ERR_SHAPE;
}

weft_status wfi_relu(const weft_tensor *x, weft_tensor *y)
{
    return map(x, NULL, 0, y, relu_f32, relu_f64);
}

weft_status wfi_relu_backward(const weft_tensor *dy, const weft_tensor *y, weft_tensor *dx)
{
    return map(dy, y, 0, dx, relu_back_f32, relu_back_f64);
}

weft_status wfi_exp(const weft_tensor *x, weft_tensor *y)
{
    return map(x, NULL, 0, y, exp_f32, exp_f64);
}

weft_status wfi_ln(const weft_tensor *x, weft_tensor *y)
{
    return map(x, NULL, 0, y, ln_f32, ln_f64);
}

weft_status wfi_add_scalar(const weft_tensor *x, double value, weft_tensor *y)
{
    return map(x, NULL, value, y, add_f32, add_f64);
}
