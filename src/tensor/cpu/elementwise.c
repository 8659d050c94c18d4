/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c - the CPU's kernels of tensor/elementwise.h: any strides, and quick loops where they are plain. */
#include "tensor/kernels.h"
#include "tensor/parallel.h"
#include "tensor/clones.h"
#include "tensor/cpu/vector_math.h"

#include <math.h>

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

static void run_rows(const wfi_strided *walk, wfi_strided_row row)
{
    if (walk->ndim > 1) {
        wfi_strided_walk(walk, row, NULL);
        return;
    }
    flat_args flat = {row, {walk->data[0], walk->data[1], walk->data[2]}, {0}};
    for (int k = 0; k < 3; k++)
        flat.step[k] = walk->strides[k][0];
    wfi_parallel(walk->dims[0], WFI_GRAIN, flat_piece, &flat);
}

/* The two common cases, both contiguous and one a scalar, are loops that the compiler turns into vector code. */
#define BINARY_ROW(name, T, EXPRESSION)                                                                                \
    static bool name##_row(char *const *at, const int64_t *step, int64_t count, void *arg)                             \
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
    }                                                                                                                  \
    static weft_status name(const wfi_strided *walk)                                                                   \
    {                                                                                                                  \
        run_rows(walk, name##_row);                                                                                    \
        return WEFT_OK;                                                                                                \
    }

/* Integers wrap around; the arithmetic is done unsigned, where that is defined. */
#define BINARY_SET(tag, T, U)                                                                                          \
    BINARY_ROW(tag##_add, T, (U)u + (U)v)                                                                              \
    BINARY_ROW(tag##_sub, T, (U)u - (U)v)                                                                              \
    BINARY_ROW(tag##_mul, T, (U)u *(U)v)

#define DIVIDE_INTEGER(name, T, MINIMUM)                                                                               \
    static bool name##_row(char *const *at, const int64_t *step, int64_t count, void *arg)                             \
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
    }                                                                                                                  \
    static weft_status name(const wfi_strided *walk)                                                                   \
    {                                                                                                                  \
        return wfi_strided_walk(walk, name##_row, NULL) ? WEFT_OK : WEFT_ERR_INVALID;                                  \
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

#define MAP_PIECE(name, T, EXPRESSION)                                                                                 \
    static void name##_piece(void *arg, int64_t begin, int64_t end)                                                    \
    {                                                                                                                  \
        const wfi_map_args *map = arg;                                                                                 \
        const T *x = map->x, *z = map->z;                                                                              \
        T *y = map->y, factor = (T)map->factor;                                                                        \
        (void)z;                                                                                                       \
        (void)factor;                                                                                                  \
        for (int64_t i = begin; i < end; i++)                                                                          \
            y[i] = (EXPRESSION);                                                                                       \
    }                                                                                                                  \
    static weft_status name(const wfi_map_args *map)                                                                   \
    {                                                                                                                  \
        wfi_parallel(map->count, WFI_GRAIN, name##_piece, (void *)map);                                                \
        return WEFT_OK;                                                                                                \
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
MAP_PIECE(add_f32, float, x[i] + factor)
MAP_PIECE(add_f64, double, x[i] + factor)
MAP_PIECE(exp_f32, float, expf(x[i]))
MAP_PIECE(exp_f64, double, exp(x[i]))
MAP_PIECE(ln_f32, float, logf(x[i]))
MAP_PIECE(ln_f64, double, log(x[i]))
MAP_PIECE(relu_f32, float, x[i] <= 0 ? 0 : x[i]) /* a NaN stays one */
MAP_PIECE(relu_f64, double, x[i] <= 0 ? 0 : x[i])
/* A select needs both its arms: read x in any case, or there is a branch for each element. */
MAP_PIECE(relu_back_f32, float, select_f32(!(z[i] <= 0), x[i]))
MAP_PIECE(relu_back_f64, double, select_f64(!(z[i] <= 0), x[i]))

#define MAP_CLONES(name, T, EXPRESSION) WFI_CLONES MAP_PIECE(name, T, EXPRESSION)
MAP_CLONES(sigmoid_f32, float, wfi_vector_sigmoid_f32(x[i]))
MAP_CLONES(sigmoid_f64, double, wfi_vector_sigmoid_f64(x[i]))
MAP_CLONES(tanh_f32, float, wfi_vector_tanh_f32(x[i]))
MAP_CLONES(tanh_f64, double, wfi_vector_tanh_f64(x[i]))
/* z is y here. */
MAP_CLONES(sigmoid_back_f32, float, x[i] * (z[i] * (1 - z[i])))
MAP_CLONES(sigmoid_back_f64, double, x[i] * (z[i] * (1 - z[i])))
MAP_CLONES(tanh_back_f32, float, x[i] * (1 - z[i] * z[i]))
MAP_CLONES(tanh_back_f64, double, x[i] * (1 - z[i] * z[i]))

#define BINARY_LINE(tag)                                                                                               \
    {                                                                                                                  \
        tag##_add, tag##_sub, tag##_mul, tag##_div                                                                     \
    }
#define MAP_LINE(tag)                                                                                                  \
    {                                                                                                                  \
        [WFI_SCALE] = scale_##tag, [WFI_ADD_SCALAR] = add_##tag, [WFI_EXP] = exp_##tag, [WFI_LN] = ln_##tag,           \
        [WFI_RELU] = relu_##tag, [WFI_RELU_BACKWARD] = relu_back_##tag, [WFI_SIGMOID] = sigmoid_##tag,                 \
        [WFI_SIGMOID_BACKWARD] = sigmoid_back_##tag, [WFI_TANH] = tanh_##tag, [WFI_TANH_BACKWARD] = tanh_back_##tag    \
    }
const wfi_elementwise_kernels wfi_elementwise_cpu[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = {BINARY_LINE(f32), MAP_LINE(f32)}, [WEFT_DTYPE_FLOAT64] = {BINARY_LINE(f64), MAP_LINE(f64)},
    [WEFT_DTYPE_INT64] = {BINARY_LINE(i64), {NULL}},          [WEFT_DTYPE_INT32] = {BINARY_LINE(i32), {NULL}},
    [WEFT_DTYPE_UINT8] = {BINARY_LINE(u8), {NULL}},
};
