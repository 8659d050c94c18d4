/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embedding.c - rows of a table picked one by one (torch.nn.Embedding): y[i] = weight[index[i]]; and their gradients,
 * dense (row_scatter.h) or by rows.
 */
#include "tensor/cpu/embedding.h"

#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/row_scatter.h"
#include "tensor/parallel.h"
#include "tensor/tasks.h"

#include <string.h>

typedef struct pick_args {
    const char *table; /* [V, bytes] */
    const int64_t *index;
    char *to;
    size_t bytes; /* of a row */
} pick_args;

static void pick_piece(void *arg, int64_t begin, int64_t end)
{
    const pick_args *args = arg;
    for (int64_t i = begin; i < end; i++)
        memcpy(args->to + (size_t)i * args->bytes, args->table + (size_t)args->index[i] * args->bytes, args->bytes);
}

/* `picked` is y or dy. */
static weft_status check(const weft_tensor *weight, const weft_tensor *index, const weft_tensor *picked)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(weight, picked);
    if (status == WEFT_OK)
        status = index->dtype == WEFT_DTYPE_INT64 ? wfi_check_beside(index, weight) : WEFT_ERR_TYPE;
    if (status != WEFT_OK)
        return status;
    bool fits = weight->shape.ndim == 2 && picked->shape.ndim >= 1 &&
                picked->shape.dims[picked->shape.ndim - 1] == weight->shape.dims[1] &&
                picked->numel == index->numel * weight->shape.dims[1];
    if (!fits)
        return WEFT_ERR_SHAPE;
    return wfi_index_is_inside(index, weight->shape.dims[0]) ? WEFT_OK : WEFT_ERR_INVALID;
}

weft_status wfi_embedding(const weft_tensor *weight, const weft_tensor *index, weft_tensor *y)
{
    weft_status status = check(weight, index, y);
    if (status != WEFT_OK || y->numel == 0)
        return status;
    int64_t width = weight->shape.dims[1];
    if (wfi_tensor_is_on_gpu(weight)) {
        wfi_rows_task task = {WFI_GPU_TASK(weight, weight->dtype, y->numel),
                              .from = wfi_tensor_address(weight),
                              .to = wfi_tensor_address(y),
                              .index = wfi_tensor_address(index),
                              .n = index->numel,
                              .size = weight->shape.dims[0],
                              .inner = width};
        return WFI_GPU_RUN(WFI_GPU_SELECT, task);
    }
    pick_args args = {wfi_tensor_address(weight), wfi_tensor_address(index), wfi_tensor_address(y),
                      (size_t)width * weft_dtype_size(weight->dtype)};
    wfi_parallel(index->numel, 1 + WFI_GRAIN / width, pick_piece, &args);
    return WEFT_OK;
}

/* to [.., size, inner] += the rows of `from`, in the index's order, without those of `skip`. */
static weft_status add_rows_on_gpu(const weft_tensor *from, const weft_tensor *index, int64_t skip, weft_tensor *to)
{
    int64_t size = to->shape.dims[0], inner = size > 0 ? to->numel / size : 0;
    wfi_rows_task task = {WFI_GPU_TASK(to, to->dtype, inner),
                          .from = wfi_tensor_address(from),
                          .to = wfi_tensor_address(to),
                          .index = wfi_tensor_address(index),
                          .n = index->numel,
                          .size = size,
                          .inner = inner,
                          .skip = skip};
    return WFI_GPU_RUN(WFI_GPU_ADD_ROWS, task);
}

weft_status wfi_embedding_backward(const weft_tensor *dy, const weft_tensor *index, int64_t padding,
                                   weft_tensor *dweight)
{
    weft_status status = check(dweight, index, dy);
    if (status != WEFT_OK)
        return status;
    if (wfi_tensor_is_on_gpu(dweight)) {
        status = wfi_fill(dweight, 0);
        return status == WEFT_OK ? add_rows_on_gpu(dy, index, padding, dweight) : status;
    }
    wfi_row_scatter scatter = {
        .index = wfi_tensor_address(index), .table = wfi_tensor_address(dy), .count = index->numel, .skip = padding};
    return wfi_row_scatter_run(&scatter, dweight);
}

/* values[i] = dy[i], and rows[i] = index[i]; values of padding are 0. */
static weft_status pick_rows_on_gpu(const weft_tensor *dy, const weft_tensor *index, int64_t padding, weft_tensor *rows,
                                    weft_tensor *values)
{
    wfi_rows_task pick = {WFI_GPU_TASK(dy, dy->dtype, dy->numel),
                          .from = wfi_tensor_address(dy),
                          .to = wfi_tensor_address(values),
                          .index = wfi_tensor_address(index),
                          .picked = wfi_tensor_address(rows),
                          .inner = values->shape.dims[1],
                          .skip = padding};
    return WFI_GPU_RUN(WFI_GPU_PICK_ROWS, pick);
}

weft_status wfi_embedding_backward_rows(const weft_tensor *dy, const weft_tensor *index, int64_t padding,
                                        weft_tensor *rows, weft_tensor *values)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(dy, values);
    if (status == WEFT_OK && (index->dtype != WEFT_DTYPE_INT64 || rows->dtype != WEFT_DTYPE_INT64))
        status = WEFT_ERR_TYPE;
    if (status == WEFT_OK && (wfi_check_beside(index, dy) != WEFT_OK || wfi_check_beside(rows, dy) != WEFT_OK))
        status = WEFT_ERR_UNSUPPORTED;
    if (status != WEFT_OK)
        return status;
    int64_t count = wfi_index_rows(index, padding);
    if (values->shape.ndim != 2 || !wfi_tensor_is_vector(rows, count) || values->shape.dims[0] != count ||
        dy->numel != index->numel * values->shape.dims[1])
        return WEFT_ERR_SHAPE;
    if (wfi_tensor_is_on_gpu(dy))
        return pick_rows_on_gpu(dy, index, padding, rows, values);
    size_t bytes = (size_t)values->shape.dims[1] * weft_dtype_size(dy->dtype);
    const int64_t *from = wfi_tensor_address(index);
    const char *gradient = wfi_tensor_address(dy);
    int64_t *row = wfi_tensor_address(rows);
    char *value = wfi_tensor_address(values);
    for (int64_t i = 0; i < index->numel; i++) {
        if (from[i] == padding)
            continue;
        *row++ = from[i];
        memcpy(value, gradient + (size_t)i * bytes, bytes);
        value += bytes;
    }
    return WEFT_OK;
}

/* One thread, in the order of `rows`, because a row may occur several times. */
#define ROWS_ADD(name, T)                                                                                              \
    static void name(const T *values, const int64_t *rows, int64_t count, int64_t width, T *to)                        \
    {                                                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            T *row = to + rows[i] * width;                                                                             \
            for (int64_t d = 0; d < width; d++)                                                                        \
                row[d] += values[i * width + d];                                                                       \
        }                                                                                                              \
    }
ROWS_ADD(rows_add_f32, float)
ROWS_ADD(rows_add_f64, double)

weft_status wfi_rows_add(const weft_tensor *values, const weft_tensor *rows, weft_tensor *to)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(values, to);
    if (status == WEFT_OK)
        status = rows->dtype == WEFT_DTYPE_INT64 ? wfi_check_beside(rows, to) : WEFT_ERR_TYPE;
    if (status != WEFT_OK)
        return status;
    int64_t count = rows->numel;
    bool fits = wfi_tensor_is_vector(rows, count) && values->shape.ndim == to->shape.ndim && to->shape.ndim >= 1 &&
                values->shape.dims[0] == count;
    for (int d = 1; d < to->shape.ndim && fits; d++)
        fits = values->shape.dims[d] == to->shape.dims[d];
    if (!fits)
        return WEFT_ERR_SHAPE;
    if (!wfi_index_is_inside(rows, to->shape.dims[0]))
        return WEFT_ERR_INVALID;
    if (wfi_tensor_is_on_gpu(to)) {
        status = wfi_tensor_use(to, true);
        return status == WEFT_OK ? add_rows_on_gpu(values, rows, -1, to) : status;
    }
    int64_t width = count > 0 ? values->numel / count : 0;
    if (wfi_dtype_is_f32(to->dtype))
        rows_add_f32(wfi_tensor_address(values), wfi_tensor_address(rows), count, width, wfi_tensor_address(to));
    else
        rows_add_f64(wfi_tensor_address(values), wfi_tensor_address(rows), count, width, wfi_tensor_address(to));
    return WEFT_OK;
}
