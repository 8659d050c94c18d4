/* SPDX-License-Identifier: Apache-2.0 */
/* index_select.c - whole slices of x, picked along one dimension by an index; backward adds their gradients up. */
#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/parallel.h"
#include "tensor/tasks.h"

#include <string.h>

/* x is [outer, size, inner] and y [outer, count, inner]. */
typedef struct select_args {
    const char *from;
    char *to;
    const int64_t *index;
    int64_t size, count, inner;
    size_t slice; /* bytes of `inner` elements */
} select_args;

static weft_status check(const weft_tensor *x, int dim, const weft_tensor *index, const weft_tensor *y)
{
    if (index->dtype != WEFT_DTYPE_INT64 || x->dtype != y->dtype)
        return WEFT_ERR_TYPE;
    if (wfi_check_beside(x, x) != WEFT_OK || wfi_check_beside(index, x) != WEFT_OK || wfi_check_beside(y, x) != WEFT_OK)
        return WEFT_ERR_UNSUPPORTED;
    weft_shape wanted = x->shape;
    if (index->shape.ndim != 1 || dim >= x->shape.ndim)
        return WEFT_ERR_SHAPE;
    wanted.dims[dim] = index->numel;
    if (!wfi_shape_equal(&wanted, &y->shape))
        return WEFT_ERR_SHAPE;
    return wfi_index_is_inside(index, x->shape.dims[dim]) ? WEFT_OK : WEFT_ERR_INVALID;
}

static select_args plan(const weft_tensor *x, int dim, const weft_tensor *index)
{
    select_args args = {
        .index = wfi_tensor_address(index), .size = x->shape.dims[dim], .count = index->numel, .inner = 1};
    for (int d = dim + 1; d < x->shape.ndim; d++)
        args.inner *= x->shape.dims[d];
    args.slice = (size_t)args.inner * weft_dtype_size(x->dtype);
    return args;
}

/* Slices of y, over all of `outer`. */
static void copy_slices(void *arg, int64_t begin, int64_t end)
{
    const select_args *args = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t from = i / args->count * args->size + args->index[i % args->count];
        memcpy(args->to + (size_t)i * args->slice, args->from + (size_t)from * args->slice, args->slice);
    }
}

static weft_status run_on_gpu(wfi_gpu_kind kind, const select_args *args, const weft_tensor *x, int64_t count)
{
    wfi_rows_task task = {WFI_GPU_TASK(x, x->dtype, count),
                          .from = args->from,
                          .to = args->to,
                          .index = args->index,
                          .n = args->count,
                          .size = args->size,
                          .inner = args->inner,
                          .skip = -1};
    return WFI_GPU_RUN(kind, task);
}

weft_status wfi_index_select(const weft_tensor *x, int dim, const weft_tensor *index, weft_tensor *y)
{
    weft_status status = check(x, dim, index, y);
    if (status != WEFT_OK || y->numel == 0)
        return status;
    select_args args = plan(x, dim, index);
    args.from = wfi_tensor_address(x);
    args.to = wfi_tensor_address(y);
    if (wfi_tensor_is_on_gpu(x))
        return run_on_gpu(WFI_GPU_SELECT, &args, x, y->numel);
    wfi_parallel(y->numel / args.inner, 1 + WFI_GRAIN / args.inner, copy_slices, &args);
    return WEFT_OK;
}

#define ADD_SLICES(name, T)                                                                                            \
    static void name(void *arg, int64_t begin, int64_t end)                                                            \
    {                                                                                                                  \
        const select_args *args = arg;                                                                                 \
        for (int64_t i = begin * args->count; i < end * args->count; i++) {                                            \
            const T *dy = (const T *)args->from + i * args->inner;                                                     \
            T *dx = (T *)args->to + (i / args->count * args->size + args->index[i % args->count]) * args->inner;       \
            for (int64_t k = 0; k < args->inner; k++)                                                                  \
                dx[k] += dy[k];                                                                                        \
        }                                                                                                              \
    }
ADD_SLICES(add_slices_f32, float)
ADD_SLICES(add_slices_f64, double)

/* Shared among threads along `outer` only: so each sum is made in the index's order. */
weft_status wfi_index_select_backward(const weft_tensor *dy, int dim, const weft_tensor *index, weft_tensor *dx)
{
    weft_status status = wfi_dtype_is_float(dx->dtype) ? check(dx, dim, index, dy) : WEFT_ERR_TYPE;
    if (status != WEFT_OK)
        return status;
    status = wfi_fill(dx, 0);
    if (status != WEFT_OK || dy->numel == 0)
        return status;
    select_args args = plan(dx, dim, index);
    args.from = wfi_tensor_address(dy);
    args.to = wfi_tensor_address(dx);
    if (wfi_tensor_is_on_gpu(dx))
        return run_on_gpu(WFI_GPU_ADD_ROWS, &args, dx, dx->numel / args.size);
    int64_t of_one = args.count * args.inner;
    wfi_parallel(dy->numel / of_one, 1 + WFI_GRAIN / of_one, WFI_BY_FLOAT(dx->dtype, add_slices_f32, add_slices_f64),
                 &args);
    return WEFT_OK;
}
