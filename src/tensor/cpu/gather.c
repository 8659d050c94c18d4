/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather.c - elements of x, picked along one dimension by an index (torch.gather), and the sum back (scatter_add). A
 * *row* is one of the index's last dimension. In the index's order, row after row:
 *
 *   gather       y[.., i, ..] = x[.., index[.., i, ..], ..];
 *   scatter_add  y[.., index[.., i, ..], ..] += source[.., i, ..]; with dy as source: the gradient of a gather;
 */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/copy.h"
#include "tensor/tasks.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/embedding.h"

#include <assert.h>

typedef struct gather_args {
    const void *from; /* x; or dy */
    void *to;         /* y; or dx */
    const int64_t *index;
    int64_t length;                 /* of a row: the index's last dimension */
    int64_t step, stride;           /* in x: from one element of a row to the next; along `dim` */
    int outer;                      /* dimensions of the index before the last */
    int64_t dims[WEFT_MAX_DIMS];    /* their sizes */
    int64_t strides[WEFT_MAX_DIMS]; /* theirs in x; 0 for `dim` */
} gather_args;

/* Where row `row` of the index begins in x, with an index of 0. */
static int64_t row_start(const gather_args *args, int64_t row)
{
    int64_t at = 0;
    for (int d = args->outer - 1; d >= 0; d--) {
        assert(args->dims[d] > 0); /* there is a row */
        at += row % args->dims[d] * args->strides[d];
        row /= args->dims[d];
    }
    return at;
}

#define GATHER_PIECE(name, T)                                                                                          \
    static void name(void *arg, int64_t begin, int64_t end)                                                            \
    {                                                                                                                  \
        const gather_args *args = arg;                                                                                 \
        for (int64_t row = begin; row < end; row++) {                                                                  \
            const T *x = (const T *)args->from + row_start(args, row);                                                 \
            const int64_t *index = args->index + row * args->length;                                                   \
            T *y = (T *)args->to + row * args->length;                                                                 \
            for (int64_t i = 0; i < args->length; i++)                                                                 \
                y[i] = x[i * args->step + index[i] * args->stride];                                                    \
        }                                                                                                              \
    }
typedef struct sixteen {
    uint64_t half[2];
} sixteen;
GATHER_PIECE(gather_1, uint8_t)
GATHER_PIECE(gather_2, uint16_t)
GATHER_PIECE(gather_4, uint32_t)
GATHER_PIECE(gather_8, uint64_t)
GATHER_PIECE(gather_16, sixteen)

/* By the size of an element: it is moved as it is. */
static void (*gather_piece(size_t size))(void *arg, int64_t begin, int64_t end)
{
    if (size <= 2)
        return size == 1 ? gather_1 : gather_2;
    return size == 4 ? gather_4 : size == 8 ? gather_8 : gather_16;
}

/* dx += dy. One thread: several rows may add to one element, and the sum must always have the same bits. */
#define SCATTER(name, T)                                                                                               \
    static void name(const gather_args *args, int64_t rows)                                                            \
    {                                                                                                                  \
        for (int64_t row = 0; row < rows; row++) {                                                                     \
            T *dx = (T *)args->to + row_start(args, row);                                                              \
            const int64_t *index = args->index + row * args->length;                                                   \
            const T *dy = (const T *)args->from + row * args->length;                                                  \
            for (int64_t i = 0; i < args->length; i++)                                                                 \
                dx[i * args->step + index[i] * args->stride] += dy[i];                                                 \
        }                                                                                                              \
    }
SCATTER(scatter_f32, float)
SCATTER(scatter_f64, double)

bool wfi_gather_fits(const weft_shape *x, int dim, const weft_shape *index)
{
    for (int d = 0; d < x->ndim && x->ndim == index->ndim; d++)
        if (d != dim && index->dims[d] > x->dims[d])
            return false;
    return x->ndim == index->ndim && dim < x->ndim;
}

int64_t wfi_index_outside(const weft_tensor *index, int64_t size)
{
    const int64_t *at = wfi_tensor_address(index);
    for (int64_t i = 0; i < index->numel; i++)
        if (at[i] < 0 || at[i] >= size)
            return i;
    return -1;
}

bool wfi_index_is_inside(const weft_tensor *index, int64_t size)
{
    return wfi_tensor_is_on_gpu(index) || wfi_index_outside(index, size) < 0;
}

int64_t wfi_index_at(const weft_tensor *index, int64_t i)
{
    int64_t value = 0;
    weft_tensor *here = wfi_tensor_empty(WEFT_SCALAR, WEFT_DTYPE_INT64, NULL);
    if (here && wfi_memory_copy(here->storage, 0, index->storage, (size_t)(index->offset + i) * sizeof(value),
                                sizeof(value)) == WEFT_OK)
        value = *(int64_t *)wfi_tensor_address(here);
    weft_tensor_unref(here);
    return value;
}

int64_t wfi_index_rows(const weft_tensor *index, int64_t padding)
{
    if (padding < 0 || wfi_tensor_is_on_gpu(index))
        return index->numel;
    const int64_t *at = wfi_tensor_address(index);
    int64_t count = 0;
    for (int64_t i = 0; i < index->numel; i++)
        count += at[i] != padding;
    return count;
}

/* `picked` is y or dy: of the index's shape, x's dtype. */
static weft_status check(const weft_tensor *x, int dim, const weft_tensor *index, const weft_tensor *picked)
{
    if (index->dtype != WEFT_DTYPE_INT64 || x->dtype != picked->dtype)
        return WEFT_ERR_TYPE;
    if (wfi_check_beside(x, x) != WEFT_OK || wfi_check_beside(index, x) != WEFT_OK ||
        wfi_check_beside(picked, x) != WEFT_OK)
        return WEFT_ERR_UNSUPPORTED;
    if (!wfi_gather_fits(&x->shape, dim, &index->shape) || !weft_tensor_same_shape(index, picked))
        return WEFT_ERR_SHAPE;
    return wfi_index_is_inside(index, x->shape.dims[dim]) ? WEFT_OK : WEFT_ERR_INVALID;
}

/* The strides of the loops; the caller sets `from` and `to`. */
static gather_args plan(const weft_tensor *x, int dim, const weft_tensor *index)
{
    int last = index->shape.ndim - 1;
    gather_args args = {.index = wfi_tensor_address(index),
                        .length = index->shape.dims[last],
                        .step = dim == last ? 0 : 1,
                        .stride = x->strides[dim],
                        .outer = last};
    for (int d = 0; d < last; d++) {
        args.dims[d] = index->shape.dims[d];
        args.strides[d] = d == dim ? 0 : x->strides[d];
    }
    return args;
}

static weft_status gather_on_gpu(const weft_tensor *x, int dim, const weft_tensor *index, weft_tensor *y)
{
    wfi_gather_task task = {
        WFI_GPU_TASK(x, x->dtype, index->numel), .from = wfi_tensor_address(x), .to = wfi_tensor_address(y),
        .index = wfi_tensor_address(index),      .ndim = index->shape.ndim,     .stride = x->strides[dim]};
    for (int d = 0; d < task.ndim; d++) {
        task.dims[d] = index->shape.dims[d];
        if (d != dim)
            task.strides[d] = x->strides[d];
    }
    return WFI_GPU_RUN(WFI_GPU_GATHER, task);
}

/* A piece is a line of the index along `dim`. */
static weft_status scatter_on_gpu(const weft_tensor *source, int dim, const weft_tensor *index, weft_tensor *y)
{
    wfi_gather_task task = {WFI_GPU_TASK(y, y->dtype, index->numel / index->shape.dims[dim]),
                            .from = wfi_tensor_address(source),
                            .to = wfi_tensor_address(y),
                            .index = wfi_tensor_address(index),
                            .stride = y->strides[dim],
                            .length = index->shape.dims[dim],
                            .index_stride = index->strides[dim]};
    for (int d = 0; d < index->shape.ndim; d++) {
        if (d == dim)
            continue;
        task.dims[task.ndim] = index->shape.dims[d];
        task.strides[task.ndim] = y->strides[d];
        task.index_strides[task.ndim++] = index->strides[d];
    }
    return WFI_GPU_RUN(WFI_GPU_SCATTER_ADD, task);
}

weft_status wfi_gather(const weft_tensor *x, int dim, const weft_tensor *index, weft_tensor *y)
{
    weft_status status = check(x, dim, index, y);
    if (status != WEFT_OK || index->numel == 0)
        return status;
    if (wfi_tensor_is_on_gpu(x))
        return gather_on_gpu(x, dim, index, y);
    gather_args args = plan(x, dim, index);
    args.from = wfi_tensor_address(x);
    args.to = wfi_tensor_address(y);
    wfi_parallel(index->numel / args.length, 1 + WFI_GRAIN / args.length, gather_piece(weft_dtype_size(x->dtype)),
                 &args);
    return WEFT_OK;
}

weft_status wfi_scatter_add(const weft_tensor *source, int dim, const weft_tensor *index, weft_tensor *y)
{
    weft_status status = wfi_dtype_is_float(y->dtype) ? check(y, dim, index, source) : WEFT_ERR_TYPE;
    if (status != WEFT_OK || index->numel == 0)
        return status;
    if (wfi_tensor_is_on_gpu(y)) {
        status = wfi_tensor_use(y, true);
        return status == WEFT_OK ? scatter_on_gpu(source, dim, index, y) : status;
    }
    gather_args args = plan(y, dim, index);
    args.from = wfi_tensor_address(source);
    args.to = wfi_tensor_address(y);
    WFI_BY_FLOAT(y->dtype, scatter_f32, scatter_f64)(&args, index->numel / args.length);
    return WEFT_OK;
}

weft_status wfi_gather_backward(const weft_tensor *dy, int dim, const weft_tensor *index, weft_tensor *dx)
{
    weft_status status = wfi_dtype_is_float(dx->dtype) ? check(dx, dim, index, dy) : WEFT_ERR_TYPE;
    if (status != WEFT_OK)
        return status;
    status = wfi_fill(dx, 0);
    return status == WEFT_OK ? wfi_scatter_add(dy, dim, index, dx) : status;
}
