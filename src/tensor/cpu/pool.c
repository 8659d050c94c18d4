/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - max pooling and adaptive average pooling of x [N, C, H, W], as PyTorch's. A plane of one image and channel
 * is one piece of work, so one thread adds up what an element of dx gets, in row-major order of dy.
 *
 *   max       y[i][j] = the largest x in the window that begins at (i, j) stride - padding, as far as it is inside;
 *             dx[indices[i][j]] += dy[i][j];
 *   average   y[i][j] = the mean of x over its cell (cell_range), summed in double and in row-major order;
 *             dx += dy[i][j] / size of the cell, over the cell;
 */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/copy.h"
#include "tensor/tasks.h"
#include "tensor/cpu/cpu.h"

#include <math.h>
#include <string.h>

typedef struct plane_args {
    const void *in;                  /* x; backward: dy */
    void *out;                       /* y; backward: dx */
    int32_t *indices;                /* max: of the pooled plane's size */
    int64_t in_size[2], out_size[2]; /* height, width of `in` and `out` */
    const wfi_pool2d *how;
} plane_args;

weft_status wfi_pool2d_shape(const weft_shape *x, const wfi_pool2d *how, weft_shape *y)
{
    if (x->ndim != 4)
        return WEFT_ERR_SHAPE;
    weft_shape shape = *x;
    for (int d = 0; d < 2; d++) {
        if (how->kernel[d] < 1 || how->stride[d] < 1 || how->padding[d] < 0 || how->padding[d] > how->kernel[d] / 2)
            return WEFT_ERR_INVALID;
        int64_t room = x->dims[2 + d] + (2 * how->padding[d] - how->kernel[d]); /* no overflow: <= 0 */
        if (x->dims[2 + d] < 1 || x->dims[2 + d] > INT32_MAX || room < 0)
            return WEFT_ERR_SHAPE;
        shape.dims[2 + d] = room / how->stride[d] + 1;
    }
    if (x->dims[2] * x->dims[3] > INT32_MAX) /* indices are int32 */
        return WEFT_ERR_TOO_LARGE;
    *y = shape;
    return WEFT_OK;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/*
 * Along dimension d: the outputs whose window has its place `offset` inside the plane. Mostly all, without a division.
 */
static void cells_inside(const plane_args *args, int d, int64_t offset, int64_t *begin, int64_t *end)
{
    int64_t stride = args->how->stride[d], shift = args->how->padding[d] - offset, outputs = args->out_size[d];
    int64_t room = args->in_size[d] - 1 + shift; /* output i is inside up to i * stride == room */
    *begin = shift > 0 ? (shift + stride - 1) / stride : 0;
    if (room < 0)
        *end = 0;
    else
        *end = (outputs - 1) * stride <= room ? outputs : room / stride + 1;
}

/*
 * y[i] = the larger of y[i] and x[i STEP], and indices[i] its place: x is at place `at`. By masks, because branches
 * would be mispredicted.
 */
#define TAKE_LARGER(name, T, BITS, STEP)                                                                               \
    static void name(const T *restrict x, int64_t stride, int64_t count, int32_t at, T *restrict y,                    \
                     int32_t *restrict indices)                                                                        \
    {                                                                                                                  \
        (void)stride;                                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            union {                                                                                                    \
                T value;                                                                                               \
                BITS bits;                                                                                             \
            } new = {x[i * (STEP)]}, best = {y[i]};                                                                    \
            BITS larger = -(BITS)((new.value > best.value) | (new.value != new.value));                                \
            int32_t here = at + (int32_t)(i * (STEP));                                                                 \
            indices[i] = (here & (int32_t)larger) | (indices[i] & ~(int32_t)larger);                                   \
            best.bits = (new.bits &larger) | (best.bits & ~larger);                                                    \
            y[i] = best.value;                                                                                         \
        }                                                                                                              \
    }

/*
 * A row of outputs at a time, one place of the window after another, so that all outputs are compared side by side. The
 * first of the largest wins; a NaN wins over all, as in PyTorch.
 */
#define MAX_POOL(tag, T, BITS)                                                                                         \
    TAKE_LARGER(tag##_take_each, T, BITS, 1)                                                                           \
    TAKE_LARGER(tag##_take_second, T, BITS, 2)                                                                         \
    TAKE_LARGER(tag##_take_strided, T, BITS, stride)                                                                   \
    static void tag##_max_row(const plane_args *args, const T *x, int64_t row, T *y, int32_t *indices)                 \
    {                                                                                                                  \
        const wfi_pool2d *how = args->how;                                                                             \
        void (*take)(const T *, int64_t, int64_t, int32_t, T *, int32_t *) = tag##_take_strided;                       \
        if (how->stride[1] <= 2)                                                                                       \
            take = how->stride[1] == 1 ? tag##_take_each : tag##_take_second;                                          \
        int64_t start = row * how->stride[0] - how->padding[0], width = args->in_size[1], begin, end;                  \
        int64_t top = clamp(start, 0, args->in_size[0]), bottom = clamp(start + how->kernel[0], 0, args->in_size[0]);  \
        for (int64_t i = 0; i < args->out_size[1]; i++) {                                                              \
            y[i] = -(T)INFINITY;                                                                                       \
            int32_t left = (int32_t)(i * how->stride[1] - how->padding[1]);                                            \
            indices[i] = (int32_t)(top * width) + (left & ~(left >> 31)); /* the first place inside */                 \
        }                                                                                                              \
        for (int64_t h = top; h < bottom; h++) {                                                                       \
            for (int64_t w = 0; w < how->kernel[1]; w++) {                                                             \
                cells_inside(args, 1, w, &begin, &end);                                                                \
                int64_t at = h * width + begin * how->stride[1] - how->padding[1] + w;                                 \
                if (end <= begin)                                                                                      \
                    continue;                                                                                          \
                take(x + at, how->stride[1], end - begin, (int32_t)at, y + begin, indices + begin);                    \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_max_piece(void *arg, int64_t begin, int64_t end)                                                 \
    {                                                                                                                  \
        const plane_args *args = arg;                                                                                  \
        int64_t in = args->in_size[0] * args->in_size[1], out = args->out_size[0] * args->out_size[1];                 \
        for (int64_t p = begin; p < end; p++) {                                                                        \
            for (int64_t row = 0; row < args->out_size[0]; row++)                                                      \
                tag##_max_row(args, (const T *)args->in + p * in, row,                                                 \
                              (T *)args->out + p * out + row * args->out_size[1],                                      \
                              args->indices + p * out + row * args->out_size[1]);                                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_max_back_piece(void *arg, int64_t begin, int64_t end)                                            \
    {                                                                                                                  \
        const plane_args *args = arg;                                                                                  \
        int64_t in = args->in_size[0] * args->in_size[1], out = args->out_size[0] * args->out_size[1];                 \
        for (int64_t p = begin; p < end; p++) {                                                                        \
            const T *dy = (const T *)args->in + p * in;                                                                \
            const int32_t *indices = args->indices + p * in;                                                           \
            T *dx = (T *)args->out + p * out;                                                                          \
            for (int64_t i = 0; i < in; i++)                                                                           \
                dx[indices[i]] += dy[i];                                                                               \
        }                                                                                                              \
    }

/* Rows or columns that cell i of `out` covers, of `in`: floor(i in / out) to ceil((i + 1) in / out). */
static void cell_range(int64_t i, int64_t in, int64_t out, int64_t *begin, int64_t *end)
{
    if (out == 1) { /* the common case; a division takes longer than the rest of a small plane */
        *begin = 0;
        *end = in;
        return;
    }
    *begin = i * in / out;
    *end = ((i + 1) * in + out - 1) / out;
}

#define AVERAGE_POOL(tag, T)                                                                                           \
    static T tag##_average(const T *x, int64_t width, const int64_t begin[2], const int64_t end[2])                    \
    {                                                                                                                  \
        double sum = 0;                                                                                                \
        for (int64_t h = begin[0]; h < end[0]; h++) {                                                                  \
            for (int64_t w = begin[1]; w < end[1]; w++)                                                                \
                sum += (double)x[h * width + w];                                                                       \
        }                                                                                                              \
        return (T)(sum / (double)((end[0] - begin[0]) * (end[1] - begin[1])));                                         \
    }                                                                                                                  \
    static void tag##_spread_cell(T *x, int64_t width, const int64_t begin[2], const int64_t end[2], T value)          \
    {                                                                                                                  \
        T share = value / (T)((end[0] - begin[0]) * (end[1] - begin[1]));                                              \
        for (int64_t h = begin[0]; h < end[0]; h++) {                                                                  \
            for (int64_t w = begin[1]; w < end[1]; w++)                                                                \
                x[h * width + w] += share;                                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_average_piece(void *arg, int64_t plane, int64_t last)                                            \
    {                                                                                                                  \
        const plane_args *args = arg;                                                                                  \
        T *y = (T *)args->out + plane * args->out_size[0] * args->out_size[1];                                         \
        for (; plane < last; plane++) {                                                                                \
            const T *x = (const T *)args->in + plane * args->in_size[0] * args->in_size[1];                            \
            for (int64_t h = 0; h < args->out_size[0]; h++) {                                                          \
                int64_t begin[2], end[2];                                                                              \
                cell_range(h, args->in_size[0], args->out_size[0], &begin[0], &end[0]);                                \
                for (int64_t w = 0; w < args->out_size[1]; w++) {                                                      \
                    cell_range(w, args->in_size[1], args->out_size[1], &begin[1], &end[1]);                            \
                    *y++ = tag##_average(x, args->in_size[1], begin, end);                                             \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_average_back_piece(void *arg, int64_t plane, int64_t last)                                       \
    {                                                                                                                  \
        const plane_args *args = arg;                                                                                  \
        const T *dy = (const T *)args->in + plane * args->in_size[0] * args->in_size[1];                               \
        for (; plane < last; plane++) {                                                                                \
            T *dx = (T *)args->out + plane * args->out_size[0] * args->out_size[1];                                    \
            for (int64_t h = 0; h < args->in_size[0]; h++) {                                                           \
                int64_t begin[2], end[2];                                                                              \
                cell_range(h, args->out_size[0], args->in_size[0], &begin[0], &end[0]);                                \
                for (int64_t w = 0; w < args->in_size[1]; w++) {                                                       \
                    cell_range(w, args->out_size[1], args->in_size[1], &begin[1], &end[1]);                            \
                    tag##_spread_cell(dx, args->out_size[1], begin, end, *dy++);                                       \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

MAX_POOL(f32, float, int32_t)
MAX_POOL(f64, double, int64_t)
AVERAGE_POOL(f32, float)
AVERAGE_POOL(f64, double)

static weft_status planes_init(plane_args *args, const weft_tensor *in, weft_tensor *out)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(in, out);
    if (status != WEFT_OK)
        return status;
    if (in->shape.ndim != 4 || out->shape.ndim != 4 || in->shape.dims[0] != out->shape.dims[0] ||
        in->shape.dims[1] != out->shape.dims[1])
        return WEFT_ERR_SHAPE;
    memset(args, 0, sizeof(*args));
    args->in = wfi_tensor_address(in);
    args->out = wfi_tensor_address(out);
    memcpy(args->in_size, in->shape.dims + 2, sizeof(args->in_size));
    memcpy(args->out_size, out->shape.dims + 2, sizeof(args->out_size));
    return WEFT_OK;
}

static int64_t planes_of(const weft_tensor *x)
{
    return x->shape.dims[0] * x->shape.dims[1];
}

static weft_status check_indices(const weft_tensor *indices, const weft_tensor *pooled)
{
    if (indices->dtype != WEFT_DTYPE_INT32)
        return WEFT_ERR_TYPE;
    return weft_tensor_same_shape(indices, pooled) ? wfi_check_beside(indices, pooled) : WEFT_ERR_SHAPE;
}

/* `count`: elements of the result, or planes. */
static weft_status run_on_gpu(wfi_gpu_kind kind, const plane_args *args, const weft_tensor *in, int64_t count)
{
    wfi_pool_task task = {WFI_GPU_TASK(in, in->dtype, count), .in = args->in, .out = args->out,
                          .indices = args->indices};
    for (int d = 0; d < 2; d++) {
        task.in_size[d] = args->in_size[d];
        task.out_size[d] = args->out_size[d];
        task.kernel[d] = args->how ? args->how->kernel[d] : 0;
        task.stride[d] = args->how ? args->how->stride[d] : 0;
        task.padding[d] = args->how ? args->how->padding[d] : 0;
    }
    return WFI_GPU_RUN(kind, task);
}

weft_status wfi_max_pool2d(const weft_tensor *x, const wfi_pool2d *how, weft_tensor *y, weft_tensor *indices)
{
    plane_args args;
    weft_shape shape;
    weft_status status = wfi_pool2d_shape(&x->shape, how, &shape);
    if (status == WEFT_OK && !wfi_shape_equal(&shape, &y->shape))
        status = WEFT_ERR_SHAPE;
    if (status == WEFT_OK)
        status = planes_init(&args, x, y);
    if (status == WEFT_OK)
        status = check_indices(indices, y);
    if (status != WEFT_OK)
        return status;
    args.indices = wfi_tensor_address(indices);
    args.how = how;
    if (wfi_tensor_is_on_gpu(x))
        return run_on_gpu(WFI_GPU_MAX_POOL, &args, x, y->numel);
    wfi_parallel(planes_of(x), 8, WFI_BY_FLOAT(x->dtype, f32_max_piece, f64_max_piece), &args);
    return WEFT_OK;
}

weft_status wfi_max_pool2d_backward(const weft_tensor *dy, const weft_tensor *indices, weft_tensor *dx)
{
    plane_args args;
    weft_status status = planes_init(&args, dy, dx);
    if (status == WEFT_OK)
        status = check_indices(indices, dy);
    if (status != WEFT_OK)
        return status;
    args.indices = wfi_tensor_address(indices);
    status = wfi_fill(dx, 0);
    if (wfi_tensor_is_on_gpu(dx))
        return status == WEFT_OK ? run_on_gpu(WFI_GPU_MAX_POOL_BACKWARD, &args, dy, planes_of(dy)) : status;
    wfi_parallel(planes_of(dy), 8, WFI_BY_FLOAT(dy->dtype, f32_max_back_piece, f64_max_back_piece), &args);
    return WEFT_OK;
}

weft_status wfi_adaptive_avg_pool2d(const weft_tensor *x, weft_tensor *y)
{
    plane_args args;
    weft_status status = planes_init(&args, x, y);
    if (status != WEFT_OK)
        return status;
    if (y->numel > 0 && x->numel == 0)
        return WEFT_ERR_SHAPE;
    if (wfi_tensor_is_on_gpu(x))
        return run_on_gpu(WFI_GPU_AVERAGE_POOL, &args, x, y->numel);
    wfi_parallel(planes_of(x), 8, WFI_BY_FLOAT(x->dtype, f32_average_piece, f64_average_piece), &args);
    return WEFT_OK;
}

weft_status wfi_adaptive_avg_pool2d_backward(const weft_tensor *dy, weft_tensor *dx)
{
    plane_args args;
    weft_status status = planes_init(&args, dy, dx);
    if (status != WEFT_OK)
        return status;
    if (dy->numel > 0 && dx->numel == 0)
        return WEFT_ERR_SHAPE;
    if (wfi_tensor_is_on_gpu(dx))
        return run_on_gpu(WFI_GPU_AVERAGE_POOL_BACKWARD, &args, dy, dx->numel);
    wfi_fill(dx, 0);
    wfi_parallel(planes_of(dy), 8, WFI_BY_FLOAT(dy->dtype, f32_average_back_piece, f64_average_back_piece), &args);
    return WEFT_OK;
}
