/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c - elements of x picked along one dimension by an index, and their gradients added up where they came from. */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"

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

/* One thread, in the index's order: several rows may add to one element, and the sum must have the same bits always. */
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

/* `picked` is y or dy: of the index's shape, x's dtype. */
static weft_status check(const weft_tensor *x, int dim, const weft_tensor *index, const weft_tensor *picked)
{
    if (index->dtype != WEFT_DTYPE_INT64 || x->dtype != picked->dtype)
        return WEFT_ERR_TYPE;
    if (wfi_check_plain(x) != WEFT_OK || wfi_check_plain(index) != WEFT_OK || wfi_check_plain(picked) != WEFT_OK)
        return WEFT_ERR_UNSUPPORTED;
    if (!wfi_gather_fits(&x->shape, dim, &index->shape) || !weft_tensor_same_shape(index, picked))
        return WEFT_ERR_SHAPE;
    return wfi_index_outside(index, x->shape.dims[dim]) < 0 ? WEFT_OK : WEFT_ERR_INVALID;
}

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

weft_status wfi_gather(const weft_tensor *x, int dim, const weft_tensor *index, weft_tensor *y)
{
    weft_status status = check(x, dim, index, y);
    if (status != WEFT_OK || index->numel == 0)
        return status;
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
    wfi_fill(dx, 0);
    return wfi_scatter_add(dy, dim, index, dx);
}
