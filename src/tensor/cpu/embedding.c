/* SPDX-License-Identifier: Apache-2.0 */
/* embedding.c - rows of a table picked one by one, and their gradients. */
#include "tensor/cpu/embedding.h"

#include "tensor/check.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/row_scatter.h"
#include "tensor/parallel.h"

#include <string.h>

typedef struct pick_args {
    const char *table;
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
    weft_status status = WFI_CHECK_FLOATS(weight, picked);
    if (status == WEFT_OK)
        status = index->dtype == WEFT_DTYPE_INT64 ? wfi_check_plain(index) : WEFT_ERR_TYPE;
    if (status != WEFT_OK)
        return status;
    bool fits = weight->shape.ndim == 2 && picked->shape.ndim >= 1 &&
                picked->shape.dims[picked->shape.ndim - 1] == weight->shape.dims[1] &&
                picked->numel == index->numel * weight->shape.dims[1];
    if (!fits)
        return WEFT_ERR_SHAPE;
    return wfi_index_outside(index, weight->shape.dims[0]) < 0 ? WEFT_OK : WEFT_ERR_INVALID;
}

weft_status wfi_embedding(const weft_tensor *weight, const weft_tensor *index, weft_tensor *y)
{
    weft_status status = check(weight, index, y);
    if (status != WEFT_OK || y->numel == 0)
        return status;
    int64_t width = weight->shape.dims[1];
    pick_args args = {wfi_tensor_address(weight), wfi_tensor_address(index), wfi_tensor_address(y),
                      (size_t)width * weft_dtype_size(weight->dtype)};
    wfi_parallel(index->numel, 1 + WFI_GRAIN / width, pick_piece, &args);
    return WEFT_OK;
}

weft_status wfi_embedding_backward(const weft_tensor *dy, const weft_tensor *index, int64_t padding,
                                   weft_tensor *dweight)
{
    weft_status status = check(dweight, index, dy);
    if (status != WEFT_OK)
        return status;
    wfi_row_scatter scatter = {
        .index = wfi_tensor_address(index), .table = wfi_tensor_address(dy), .count = index->numel, .skip = padding};
    return wfi_row_scatter_run(&scatter, dweight);
}

int64_t wfi_index_count_other(const weft_tensor *index, int64_t padding)
{
    const int64_t *at = wfi_tensor_address(index);
    int64_t count = 0;
    for (int64_t i = 0; i < index->numel; i++)
        count += at[i] != padding;
    return count;
}

weft_status wfi_embedding_backward_rows(const weft_tensor *dy, const weft_tensor *index, int64_t padding,
                                        weft_tensor *rows, weft_tensor *values)
{
    weft_status status = WFI_CHECK_FLOATS(dy, values);
    if (status == WEFT_OK && (index->dtype != WEFT_DTYPE_INT64 || rows->dtype != WEFT_DTYPE_INT64))
        status = WEFT_ERR_TYPE;
    if (status == WEFT_OK && (wfi_check_plain(index) != WEFT_OK || wfi_check_plain(rows) != WEFT_OK))
        status = WEFT_ERR_UNSUPPORTED;
    if (status != WEFT_OK)
        return status;
    int64_t count = wfi_index_count_other(index, padding);
    if (values->shape.ndim != 2 || !wfi_is_vector(rows, count) || values->shape.dims[0] != count ||
        dy->numel != index->numel * values->shape.dims[1])
        return WEFT_ERR_SHAPE;
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
    weft_status status = WFI_CHECK_FLOATS(values, to);
    if (status == WEFT_OK)
        status = rows->dtype == WEFT_DTYPE_INT64 ? wfi_check_plain(rows) : WEFT_ERR_TYPE;
    if (status != WEFT_OK)
        return status;
    int64_t count = rows->numel;
    bool fits = wfi_is_vector(rows, count) && values->shape.ndim == to->shape.ndim && to->shape.ndim >= 1 &&
                values->shape.dims[0] == count;
    for (int d = 1; d < to->shape.ndim && fits; d++)
        fits = values->shape.dims[d] == to->shape.dims[d];
    if (!fits)
        return WEFT_ERR_SHAPE;
    if (wfi_index_outside(rows, to->shape.dims[0]) >= 0)
        return WEFT_ERR_INVALID;
    int64_t width = count > 0 ? values->numel / count : 0;
    if (wfi_is_f32(to->dtype))
        rows_add_f32(wfi_tensor_address(values), wfi_tensor_address(rows), count, width, wfi_tensor_address(to));
    else
        rows_add_f64(wfi_tensor_address(values), wfi_tensor_address(rows), count, width, wfi_tensor_address(to));
    return WEFT_OK;
}
