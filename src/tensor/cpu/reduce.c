/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.c - sums and means over some or all dimensions, and argmax.
 *
 * ORDER OF SUMS. One thread adds in the order of wfi_strided_walk (strided.h): floats in double, and the sum is rounded
 * once; integers in uint64, which wraps around. A contiguous row that is summed to one element has LANES sums side by
 * side, which are added last. So the bits are the same for any number of threads.
 */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/strided.h"
#include "tensor/copy.h"
#include "tensor/tasks.h"
#include "tensor/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

weft_shape wfi_reduce_shape(const weft_shape *x, uint32_t dims, bool keep)
{
    weft_shape shape = {0, {0}};
    for (int d = 0; d < x->ndim; d++) {
        if ((dims >> d & 1) == 0)
            shape.dims[shape.ndim++] = x->dims[d];
        else if (keep)
            shape.dims[shape.ndim++] = 1;
    }
    return shape;
}

/* A view of y as if every reduced dimension had been kept with size 1. */
static weft_status view_kept(const weft_tensor *y, const weft_shape *x, uint32_t dims, weft_tensor **view)
{
    weft_shape kept = wfi_reduce_shape(x, dims, true), dropped = wfi_reduce_shape(x, dims, false);
    if (!wfi_shape_equal(&y->shape, &kept) && !wfi_shape_equal(&y->shape, &dropped))
        return WEFT_ERR_SHAPE;
    return wfi_tensor_over(y->storage, y->offset, kept, y->dtype, view);
}

#define LANES 8 /* sums side by side: one alone waits for itself at every addition */
#define AS_IT_IS(v) (v)
#define SUM_ROW(name, T, READ, ACC)                                                                                    \
    static ACC name##_packed(const T *x, int64_t count)                                                                \
    {                                                                                                                  \
        ACC lane[LANES] = {0}, sum = 0;                                                                                \
        int64_t i = 0;                                                                                                 \
        for (; i + LANES <= count; i += LANES) {                                                                       \
            for (int k = 0; k < LANES; k++)                                                                            \
                lane[k] += (ACC)READ(x[i + k]);                                                                        \
        }                                                                                                              \
        for (; i < count; i++)                                                                                         \
            sum += (ACC)READ(x[i]);                                                                                    \
        for (int k = 0; k < LANES; k++)                                                                                \
            sum += lane[k];                                                                                            \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static bool name(char *const *at, const int64_t *step, int64_t count, void *arg)                                   \
    {                                                                                                                  \
        const T *x = (const T *)at[0];                                                                                 \
        ACC *y = (ACC *)at[1];                                                                                         \
        (void)arg;                                                                                                     \
        if (step[1] == 0 && step[0] == sizeof(T)) {                                                                    \
            *y += name##_packed(x, count);                                                                             \
        } else if (step[1] == sizeof(ACC) && step[0] == sizeof(T)) {                                                   \
            for (int64_t i = 0; i < count; i++)                                                                        \
                y[i] += (ACC)READ(x[i]);                                                                               \
        } else {                                                                                                       \
            for (int64_t i = 0; i < count; i++)                                                                        \
                *(ACC *)(at[1] + i * step[1]) += (ACC)READ(*(const T *)(at[0] + i * step[0]));                         \
        }                                                                                                              \
        return true;                                                                                                   \
    }

SUM_ROW(sum_f32, float, AS_IT_IS, double)
SUM_ROW(sum_f64, double, AS_IT_IS, double)
SUM_ROW(sum_i64, int64_t, AS_IT_IS, uint64_t)
SUM_ROW(sum_i32, int32_t, AS_IT_IS, uint64_t)
SUM_ROW(sum_u8, uint8_t, AS_IT_IS, uint64_t)
SUM_ROW(sum_bool, uint8_t, wfi_bool_of, uint64_t)

static const wfi_strided_row sum_rows[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = sum_f32, [WEFT_DTYPE_FLOAT64] = sum_f64, [WEFT_DTYPE_INT64] = sum_i64,
    [WEFT_DTYPE_INT32] = sum_i32,   [WEFT_DTYPE_UINT8] = sum_u8,    [WEFT_DTYPE_BOOL] = sum_bool,
};

/* ---- On GPUs ---- */

/* Of x [length, columns], contiguous, over its rows; otherwise false. */
static bool is_sum_of_columns(const wfi_sum_task *task)
{
    return task->kept == 1 && task->reduced == 1 && task->kept_strides[0] == 1 &&
           task->reduced_strides[0] == task->kept_dims[0] && task->chunks == 0;
}

/* Few long sums are made in chunks, so that all of the GPU works on them. */
static weft_status sum_in_chunks(wfi_sum_task *task, const weft_tensor *y)
{
    enum { CHUNK_ELEMENTS = 4096, CHUNKS_MOST = 512 };
    int64_t outputs = task->head.count, chunks = task->length / CHUNK_ELEMENTS;
    task->chunks = chunks < CHUNKS_MOST ? chunks : CHUNKS_MOST;
    weft_tensor *partial = wfi_tensor_empty_like(y, WEFT_SHAPE(outputs, task->chunks), WEFT_DTYPE_FLOAT64);
    if (!partial)
        return WEFT_ERR_MEMORY;
    task->partial = wfi_tensor_address(partial);
    task->head.count = outputs * task->chunks;
    weft_status status = WFI_GPU_RUN(WFI_GPU_SUM, *task);
    task->head.count = outputs;
    if (status == WEFT_OK)
        status = WFI_GPU_RUN(WFI_GPU_SUM_PARTIAL, *task);
    weft_tensor_unref(partial);
    return status;
}

/* y is contiguous, and broadcasts to x's shape. */
static weft_status sum_on_gpu(const weft_tensor *x, double factor, weft_tensor *y)
{
    enum { CHUNKED_OUTPUTS_MOST = 64, CHUNKED_LENGTH_MIN = 1 << 15 };
    wfi_strided walk;
    weft_status status = wfi_strided_init(&walk, &x->shape, 2, (const weft_tensor *[]){x, y});
    if (status != WEFT_OK)
        return status;
    int64_t size = (int64_t)weft_dtype_size(x->dtype);
    wfi_sum_task task = {WFI_GPU_TASK(x, x->dtype, y->numel), .x = walk.data[0], .y = wfi_tensor_address(y),
                         .length = x->numel == 0 ? 0 : x->numel / y->numel, .factor = factor};
    for (int d = 0; d < walk.ndim && x->numel > 0; d++) {
        if (walk.strides[1][d] != 0) {
            task.kept_dims[task.kept] = walk.dims[d];
            task.kept_strides[task.kept++] = walk.strides[0][d] / size;
        } else {
            task.reduced_dims[task.reduced] = walk.dims[d];
            task.reduced_strides[task.reduced++] = walk.strides[0][d] / size;
        }
    }
    if (!wfi_dtype_is_float(x->dtype))
        return WFI_GPU_RUN(WFI_GPU_SUM, task);
    if (is_sum_of_columns(&task)) {
        task.head.count = (task.kept_dims[0] + 31) / 32;
        return WFI_GPU_RUN(WFI_GPU_SUM_COLUMNS, task);
    }
    if (y->numel <= CHUNKED_OUTPUTS_MOST && task.length >= CHUNKED_LENGTH_MIN)
        return sum_in_chunks(&task, y);
    return WFI_GPU_RUN(WFI_GPU_SUM, task);
}

/* y (which broadcasts to x's shape) = factor * sums of x. Adds up in float64 or int64, then converts. */
static weft_status sum_onto(const weft_tensor *x, double factor, weft_tensor *y)
{
    if (wfi_tensor_is_on_gpu(x))
        return sum_on_gpu(x, factor, y);
    bool is_float = wfi_dtype_is_float(x->dtype);
    weft_tensor *sums = wfi_tensor_zeros(y->shape, is_float ? WEFT_DTYPE_FLOAT64 : WEFT_DTYPE_INT64, NULL);
    if (!sums)
        return WEFT_ERR_MEMORY;
    wfi_strided walk;
    weft_status status = wfi_strided_init(&walk, &x->shape, 2, (const weft_tensor *[]){x, sums});
    if (status == WEFT_OK)
        wfi_strided_walk(&walk, sum_rows[x->dtype], NULL);
    if (status == WEFT_OK && factor != 1)
        status = wfi_scale(sums, factor, sums);
    if (status == WEFT_OK)
        status = wfi_copy(sums, y);
    weft_tensor_unref(sums);
    return status;
}

weft_status wfi_sum_to_shape(const weft_tensor *x, weft_tensor *y)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(x, y);
    return status == WEFT_OK ? sum_onto(x, 1, y) : status;
}

static weft_status sum_dims(const weft_tensor *x, uint32_t dims, double factor, weft_tensor *y)
{
    weft_tensor *kept;
    weft_dtype expected = wfi_dtype_is_float(x->dtype) ? x->dtype : WEFT_DTYPE_INT64;
    if (!sum_rows[x->dtype] || y->dtype != expected)
        return WEFT_ERR_TYPE;
    weft_status status = wfi_check_beside(y, x);
    if (status == WEFT_OK)
        status = view_kept(y, &x->shape, dims, &kept);
    if (status != WEFT_OK)
        return status;
    status = sum_onto(x, factor, kept);
    weft_tensor_unref(kept);
    return status;
}

weft_status wfi_sum(const weft_tensor *x, uint32_t dims, weft_tensor *y)
{
    return sum_dims(x, dims, 1, y);
}

weft_status wfi_mean(const weft_tensor *x, uint32_t dims, weft_tensor *y)
{
    int64_t count = 1;
    if (!wfi_dtype_is_float(x->dtype))
        return WEFT_ERR_TYPE;
    for (int d = 0; d < x->shape.ndim; d++)
        count *= dims >> d & 1 ? x->shape.dims[d] : 1;
    return sum_dims(x, dims, count > 0 ? 1.0 / (double)count : (double)NAN, y);
}

weft_status wfi_sum_backward(const weft_tensor *dy, uint32_t dims, double factor, weft_tensor *dx)
{
    weft_tensor *kept;
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(dy, dx);
    if (status == WEFT_OK)
        status = view_kept(dy, &dx->shape, dims, &kept);
    if (status != WEFT_OK)
        return status;
    status = wfi_expand(kept, dx);
    if (status == WEFT_OK && factor != 1)
        status = wfi_scale(dx, factor, dx);
    weft_tensor_unref(kept);
    return status;
}

/* A NaN counts as the largest, as in PyTorch. */
#define ARGMAX(name, T, READ)                                                                                          \
    static int64_t name(const void *data, int64_t count, int64_t stride)                                               \
    {                                                                                                                  \
        const T *x = data;                                                                                             \
        int64_t best = 0;                                                                                              \
        for (int64_t i = 1; i < count; i++) {                                                                          \
            T u = READ(x[i * stride]), v = READ(x[best * stride]);                                                     \
            if (u > v || (u != u && v == v))                                                                           \
                best = i;                                                                                              \
        }                                                                                                              \
        return best;                                                                                                   \
    }
ARGMAX(argmax_f32, float, AS_IT_IS)
ARGMAX(argmax_f64, double, AS_IT_IS)
ARGMAX(argmax_i64, int64_t, AS_IT_IS)
ARGMAX(argmax_i32, int32_t, AS_IT_IS)
ARGMAX(argmax_u8, uint8_t, AS_IT_IS)
ARGMAX(argmax_bool, uint8_t, wfi_bool_of)

weft_status wfi_argmax(const weft_tensor *x, int dim, weft_tensor *y)
{
    static int64_t (*const finders[WFI_DTYPES])(const void *, int64_t, int64_t) = {
        [WEFT_DTYPE_FLOAT32] = argmax_f32, [WEFT_DTYPE_FLOAT64] = argmax_f64, [WEFT_DTYPE_INT64] = argmax_i64,
        [WEFT_DTYPE_INT32] = argmax_i32,   [WEFT_DTYPE_UINT8] = argmax_u8,    [WEFT_DTYPE_BOOL] = argmax_bool,
    };
    if (!finders[x->dtype] || y->dtype != WEFT_DTYPE_INT64)
        return WEFT_ERR_TYPE;
    if (dim < 0 || dim >= x->shape.ndim || x->shape.dims[dim] == 0)
        return WEFT_ERR_SHAPE;
    int64_t inner = 1, length = x->shape.dims[dim];
    for (int d = dim + 1; d < x->shape.ndim; d++)
        inner *= x->shape.dims[d];
    if (y->numel != x->numel / length)
        return WEFT_ERR_SHAPE;
    weft_status status = wfi_check_beside(x, x);
    if (status == WEFT_OK)
        status = wfi_check_beside(y, x);
    if (status != WEFT_OK)
        return status;
    if (wfi_tensor_is_on_gpu(x)) {
        wfi_argmax_task task = {WFI_GPU_TASK(x, x->dtype, y->numel), wfi_tensor_address(x), wfi_tensor_address(y),
                                length, inner};
        return WFI_GPU_RUN(WFI_GPU_ARGMAX, task);
    }
    const char *data = wfi_tensor_address(x);
    int64_t *indices = wfi_tensor_address(y), size = (int64_t)weft_dtype_size(x->dtype);
    for (int64_t i = 0; i < y->numel; i++)
        indices[i] = finders[x->dtype](data + (i / inner * inner * length + i % inner) * size, length, inner);
    return WEFT_OK;
}
