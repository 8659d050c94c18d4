/* SPDX-License-Identifier: Apache-2.0 */
/*
 * softmax.c - softmax and its logarithm along one dimension. A *line* has the elements along it, which are `inner`
 * apart. With top the largest x of a line, which keeps exp finite, and S = sum of exp(x - top):
 *
 *   softmax      y = exp(x - top) / S;      dx = y (dy - sum of dy y);
 *   logsoftmax   y = x - top - log(S);      dx = dy - exp(y) sum of dy;
 *
 * One thread has a whole line. It computes in double, sums in the order of the line, and rounds each result once.
 */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/tasks.h"
#include "tensor/cpu/cpu.h"

#include <math.h>

typedef struct softmax_args {
    const void *in, *y; /* forward: x, and y is not used; backward: dy and y */
    void *out;
    int64_t length, inner;
} softmax_args;

/* `EACH` is run for each of the lines along the dimension, with `at` the offset of its first element. */
#define SOFTMAX_PIECE(name, T, EACH)                                                                                   \
    static void name(void *arg, int64_t begin, int64_t end)                                                            \
    {                                                                                                                  \
        const softmax_args *args = arg;                                                                                \
        int64_t length = args->length, step = args->inner;                                                             \
        for (int64_t line = begin; line < end; line++) {                                                               \
            int64_t at = line / step * step * length + line % step;                                                    \
            EACH((const T *)args->in + at, (const T *)args->y + at, (T *)args->out + at, length, step);                \
        }                                                                                                              \
    }

#define SOFTMAX_LINES(tag, T)                                                                                          \
    static double tag##_shifted_sum(const T *x, int64_t length, int64_t step, T *largest)                              \
    {                                                                                                                  \
        T top = x[0];                                                                                                  \
        for (int64_t i = 1; i < length; i++)                                                                           \
            top = x[i * step] > top ? x[i * step] : top;                                                               \
        double sum = 0;                                                                                                \
        for (int64_t i = 0; i < length; i++)                                                                           \
            sum += exp((double)x[i * step] - (double)top);                                                             \
        *largest = top;                                                                                                \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static void tag##_softmax(const T *x, const T *unused, T *y, int64_t length, int64_t step)                         \
    {                                                                                                                  \
        T top;                                                                                                         \
        double sum = tag##_shifted_sum(x, length, step, &top);                                                         \
        (void)unused;                                                                                                  \
        for (int64_t i = 0; i < length; i++)                                                                           \
            y[i * step] = (T)(exp((double)x[i * step] - (double)top) / sum);                                           \
    }                                                                                                                  \
    static void tag##_log_softmax(const T *x, const T *unused, T *y, int64_t length, int64_t step)                     \
    {                                                                                                                  \
        T top;                                                                                                         \
        double sum = log(tag##_shifted_sum(x, length, step, &top));                                                    \
        (void)unused;                                                                                                  \
        for (int64_t i = 0; i < length; i++)                                                                           \
            y[i * step] = (T)((double)x[i * step] - (double)top - sum);                                                \
    }                                                                                                                  \
    static void tag##_softmax_back(const T *dy, const T *y, T *dx, int64_t length, int64_t step)                       \
    {                                                                                                                  \
        double dot = 0;                                                                                                \
        for (int64_t i = 0; i < length; i++)                                                                           \
            dot += (double)dy[i * step] * (double)y[i * step];                                                         \
        for (int64_t i = 0; i < length; i++)                                                                           \
            dx[i * step] = (T)((double)y[i * step] * ((double)dy[i * step] - dot));                                    \
    }                                                                                                                  \
    static void tag##_log_softmax_back(const T *dy, const T *y, T *dx, int64_t length, int64_t step)                   \
    {                                                                                                                  \
        double sum = 0;                                                                                                \
        for (int64_t i = 0; i < length; i++)                                                                           \
            sum += (double)dy[i * step];                                                                               \
        for (int64_t i = 0; i < length; i++)                                                                           \
            dx[i * step] = (T)((double)dy[i * step] - exp((double)y[i * step]) * sum);                                 \
    }                                                                                                                  \
    SOFTMAX_PIECE(tag##_softmax_piece, T, tag##_softmax)                                                               \
    SOFTMAX_PIECE(tag##_log_softmax_piece, T, tag##_log_softmax)                                                       \
    SOFTMAX_PIECE(tag##_softmax_back_piece, T, tag##_softmax_back)                                                     \
    SOFTMAX_PIECE(tag##_log_softmax_back_piece, T, tag##_log_softmax_back)

SOFTMAX_LINES(f32, float)
SOFTMAX_LINES(f64, double)

typedef void (*softmax_piece)(void *arg, int64_t begin, int64_t end);

static weft_status run_on_gpu(wfi_gpu_kind kind, const softmax_args *args, const weft_tensor *in)
{
    int64_t lines = in->numel / args->length;
    wfi_softmax_task task = {
        WFI_GPU_TASK(in, in->dtype, 32 * lines), args->in, args->y, args->out, args->length, args->inner, lines};
    return WFI_GPU_RUN(kind, task);
}

static weft_status run(wfi_gpu_kind kind, const weft_tensor *in, const weft_tensor *y, int dim, weft_tensor *out,
                       softmax_piece f32, softmax_piece f64)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(in, y, out);
    if (status != WEFT_OK)
        return status;
    if (!weft_tensor_same_shape(in, out) || !weft_tensor_same_shape(in, y) || dim < 0 || dim >= in->shape.ndim)
        return WEFT_ERR_SHAPE;
    if (in->numel == 0)
        return WEFT_OK;
    softmax_args args = {wfi_tensor_address(in), wfi_tensor_address(y), wfi_tensor_address(out), in->shape.dims[dim],
                         1};
    for (int d = dim + 1; d < in->shape.ndim; d++)
        args.inner *= in->shape.dims[d];
    if (wfi_tensor_is_on_gpu(in))
        return run_on_gpu(kind, &args, in);
    int64_t lines = in->numel / args.length, grain = WFI_GRAIN / 16 / args.length;
    wfi_parallel(lines, grain > 0 ? grain : 1, WFI_BY_FLOAT(in->dtype, f32, f64), &args);
    return WEFT_OK;
}

weft_status wfi_softmax(const weft_tensor *x, int dim, weft_tensor *y)
{
    return run(WFI_GPU_SOFTMAX, x, x, dim, y, f32_softmax_piece, f64_softmax_piece);
}

weft_status wfi_softmax_backward(const weft_tensor *dy, const weft_tensor *y, int dim, weft_tensor *dx)
{
    return run(WFI_GPU_SOFTMAX_BACKWARD, dy, y, dim, dx, f32_softmax_back_piece, f64_softmax_back_piece);
}

weft_status wfi_logsoftmax(const weft_tensor *x, int dim, weft_tensor *y)
{
    return run(WFI_GPU_LOG_SOFTMAX, x, x, dim, y, f32_log_softmax_piece, f64_log_softmax_piece);
}

weft_status wfi_logsoftmax_backward(const weft_tensor *dy, const weft_tensor *y, int dim, weft_tensor *dx)
{
    return run(WFI_GPU_LOG_SOFTMAX_BACKWARD, dy, y, dim, dx, f32_log_softmax_back_piece, f64_log_softmax_back_piece);
}
