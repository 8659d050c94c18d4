/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c - sums of squares in float64: by pieces whose bounds do not depend on the threads, and the pieces in order. */
#include "tensor/check.h"
#include "tensor/clones.h"
#include "tensor/parallel.h"
#include "tensor/tasks.h"
#include "tensor/cpu/optim/update.h"

#include "base/alloc.h"

#include <stdlib.h>

/* LANES partial sums let the compiler use vectors without changing the order of additions. */
#define LANES 16

#define SQUARES(name, T)                                                                                               \
    WFI_CLONES static double name(const void *data, int64_t count)                                                     \
    {                                                                                                                  \
        const T *x = data;                                                                                             \
        double lanes[LANES] = {0}, sum = 0;                                                                            \
        int64_t whole = count - count % LANES;                                                                         \
        for (int64_t i = 0; i < whole; i += LANES)                                                                     \
            for (int k = 0; k < LANES; k++)                                                                            \
                lanes[k] += (double)x[i + k] * (double)x[i + k];                                                       \
        for (int64_t i = whole; i < count; i++)                                                                        \
            lanes[i - whole] += (double)x[i] * (double)x[i];                                                           \
        for (int k = 0; k < LANES; k++)                                                                                \
            sum += lanes[k];                                                                                           \
        return sum;                                                                                                    \
    }
SQUARES(squares_f32, float)
SQUARES(squares_f64, double)

typedef struct squares {
    double (*of)(const void *data, int64_t count);
    const char *data; /* of a dense one */
    size_t size;
    const wfi_sparse_rows *rows; /* NULL: dense */
    int64_t grain;
    double *sums; /* of the pieces */
} squares;

static void piece(void *arg, int64_t begin, int64_t end)
{
    const squares *s = arg;
    double sum = 0;
    if (!s->rows)
        sum = s->of(s->data + (size_t)begin * s->size, end - begin);
    else
        for (int64_t i = begin; i < end; i++)
            sum += s->of(s->rows->at[i], s->rows->width);
    s->sums[begin / s->grain] = sum;
}

static weft_status run(squares *s, int64_t count, double *sum)
{
    int64_t pieces = (count + s->grain - 1) / s->grain;
    s->sums = wfi_calloc((size_t)pieces + 1, sizeof(double));
    if (!s->sums)
        return WEFT_ERR_MEMORY;
    wfi_parallel(count, s->grain, piece, s);
    double total = 0;
    for (int64_t i = 0; i < pieces; i++)
        total += s->sums[i];
    free(s->sums);
    *sum = total;
    return WEFT_OK;
}

int64_t wfi_squares_count(const weft_tensor *x, const wfi_sparse_rows *rows)
{
    enum { PART_ELEMENTS = 4096, PARTS_MOST = 1024 };
    int64_t parts = (x ? x : rows->values)->numel / PART_ELEMENTS + 1;
    return parts < PARTS_MOST ? parts : PARTS_MOST;
}

weft_status wfi_squares_parts(wfi_steps *steps, const weft_tensor *x, const wfi_sparse_rows *rows, weft_tensor *partial,
                              int64_t first)
{
    const weft_tensor *values = x ? x : rows->values;
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(values);
    if (status == WEFT_OK && !x)
        status = wfi_check_beside(rows->order, values);
    if (status != WEFT_OK)
        return status;
    wfi_steps_item item = {.kind = WFI_GPU_SQUARES,
                           .gradient = values,
                           .rows = !x ? rows : NULL,
                           .row_count = 0, /* the kernel needs no place in a parameter: a row may be any number */
                           .to = (double *)wfi_tensor_address(partial) + first,
                           .pieces = wfi_squares_count(x, rows)};
    item.written = (size_t)item.pieces * sizeof(double);
    return item.pieces == 0 ? WEFT_OK : wfi_steps_add(steps, &item);
}

weft_status wfi_squares_clip(const weft_tensor *partial, double factor, double max_norm, double room, weft_tensor *out)
{
    wfi_clip_task task = {WFI_GPU_TASK(partial, WEFT_DTYPE_FLOAT64, 1),
                          .partial = wfi_tensor_address(partial),
                          .n = partial->numel,
                          .out = wfi_tensor_address(out),
                          .factor = factor,
                          .max_norm = max_norm,
                          .room = room};
    return WFI_GPU_RUN(WFI_GPU_CLIP, task);
}

weft_status wfi_squares(const weft_tensor *x, double *sum)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(x);
    if (status != WEFT_OK)
        return status;
    if (wfi_tensor_is_on_gpu(x))
        return WEFT_ERR_UNSUPPORTED;
    squares s = {.of = WFI_BY_FLOAT(x->dtype, squares_f32, squares_f64),
                 .data = wfi_tensor_address(x),
                 .size = weft_dtype_size(x->dtype),
                 .grain = WFI_GRAIN};
    return run(&s, x->numel, sum);
}

weft_status wfi_squares_of_rows(const wfi_sparse_rows *x, double *sum)
{
    if (x->order)
        return WEFT_ERR_UNSUPPORTED;
    squares s = {.of = WFI_BY_FLOAT(x->dtype, squares_f32, squares_f64),
                 .rows = x,
                 .grain = x->width > 0 ? 1 + WFI_GRAIN / x->width : WFI_GRAIN};
    return run(&s, x->count, sum);
}
