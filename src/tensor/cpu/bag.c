/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bag.c - rows of a table summed, averaged or compared in bags (torch.nn.EmbeddingBag), and their gradients. With i the
 * places in the index that belong to bag b, without those of `padding`, and |b| their number:
 *
 *   SUM, MEAN   y[b] = sum of factor[i] table[index[i]], in the order of i; factor: scale[i], 1 / |b|, or 1;
 *               dtable[r] = sum of factor[i] dy[b of i] over all i with index[i] = r, in the order of i;
 *               dscale[i] = dot(dy[b of i], table[index[i]]); 0 for padding;
 *   MAX         y[b][d] = the first largest table[index[i]][d], picked[b][d] its row;
 *               dtable[picked[b][d]][d] += dy[b][d];
 *
 * Sums are in the table's dtype. A row of the result, or for MAX a column, is computed by one thread.
 */
#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/embedding.h"
#include "tensor/cpu/row_scatter.h"
#include "tensor/cpu/row_sum.h"
#include "tensor/parallel.h"
#include "tensor/tasks.h"

#include <string.h>

int64_t wfi_bags_count(const wfi_bags *bags)
{
    return bags->offsets ? bags->offsets->numel : bags->index->shape.dims[0];
}

bool wfi_bags_offsets_fit(const wfi_bags *bags)
{
    if (!bags->offsets || wfi_tensor_is_on_gpu(bags->offsets))
        return true;
    const int64_t *offsets = wfi_tensor_address(bags->offsets);
    int64_t before = 0;
    for (int64_t b = 0; b < bags->offsets->numel; b++) {
        if (offsets[b] < before || offsets[b] > bags->index->numel || (b == 0 && offsets[b] != 0))
            return false;
        before = offsets[b];
    }
    return true;
}

/* --- What a loop over bags needs of them. --- */

typedef struct bag_args {
    const void *table; /* [V, width] */
    const void *scale; /* [n], or NULL */
    const int64_t *index, *offsets;
    int64_t bags, count, length; /* B; n; of a bag where there are no offsets */
    int64_t width, padding;
    wfi_bag_mode mode;
    const void *dy;
    void *out;       /* what the loop writes: y, dweight, the values of rows, dscale, or the factors of a mean */
    int64_t *picked; /* MAX: or NULL. On a GPU for SUM and MEAN: the bag of each place in the index */
} bag_args;

static int64_t bag_begin(const bag_args *args, int64_t bag)
{
    if (!args->offsets)
        return bag * args->length;
    return bag < args->bags ? args->offsets[bag] : args->count;
}

static bag_args args_of(const wfi_bags *bags, int64_t width)
{
    return (bag_args){.scale = !bags->scale ? NULL : wfi_tensor_address(bags->scale),
                      .index = wfi_tensor_address(bags->index),
                      .offsets = !bags->offsets ? NULL : wfi_tensor_address(bags->offsets),
                      .bags = wfi_bags_count(bags),
                      .count = bags->index->numel,
                      .length = !bags->offsets ? bags->index->shape.dims[1] : 0,
                      .width = width,
                      .padding = bags->padding,
                      .mode = bags->mode};
}

static weft_status run_on_gpu(wfi_gpu_kind kind, const bag_args *args, const weft_tensor *like, int64_t count)
{
    wfi_bag_task task = {WFI_GPU_TASK(like, like->dtype, count),
                         .table = args->table,
                         .scale = args->scale,
                         .dy = args->dy,
                         .index = args->index,
                         .offsets = args->offsets,
                         .bags = args->bags,
                         .n = args->count,
                         .length = args->length,
                         .width = args->width,
                         .padding = args->padding,
                         .mean = args->mode == WFI_BAG_MEAN,
                         .y = args->out,
                         .picked = args->picked};
    return WFI_GPU_RUN(kind, task);
}

/* The fewest bags of one piece of work. */
static int64_t grain(const bag_args *args)
{
    int64_t work = (1 + args->count / (args->bags > 0 ? args->bags : 1)) * (args->width + 1);
    return 1 + WFI_GRAIN / work;
}

static weft_status check_index(const wfi_bags *bags)
{
    const weft_tensor *index = bags->index, *offsets = bags->offsets;
    if (index->dtype != WEFT_DTYPE_INT64 || (offsets && offsets->dtype != WEFT_DTYPE_INT64))
        return WEFT_ERR_TYPE;
    if (wfi_check_beside(index, index) != WEFT_OK || wfi_check_beside(offsets, index) != WEFT_OK)
        return WEFT_ERR_UNSUPPORTED;
    bool fits = !offsets ? index->shape.ndim == 2 : index->shape.ndim == 1 && offsets->shape.ndim == 1;
    if (!fits || (bags->scale && !weft_tensor_same_shape(bags->scale, index)))
        return WEFT_ERR_SHAPE;
    if ((unsigned)bags->mode > WFI_BAG_MAX || (bags->scale && bags->mode != WFI_BAG_SUM))
        return WEFT_ERR_INVALID;
    bool placed = wfi_bags_offsets_fit(bags) && (wfi_bags_count(bags) > 0 || index->numel == 0);
    return placed ? WEFT_OK : WEFT_ERR_INVALID;
}

/* `weight` may be its gradient, and `y` that of the result. */
static weft_status check(const weft_tensor *weight, const wfi_bags *bags, const weft_tensor *y)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(weight, y, bags->scale);
    if (status == WEFT_OK)
        status = wfi_check_beside(bags->index, weight);
    if (status == WEFT_OK)
        status = check_index(bags);
    if (status != WEFT_OK)
        return status;
    bool fits = weight->shape.ndim == 2 && y->shape.ndim == 2 && y->shape.dims[0] == wfi_bags_count(bags) &&
                y->shape.dims[1] == weight->shape.dims[1];
    if (!fits)
        return WEFT_ERR_SHAPE;
    return wfi_index_is_inside(bags->index, weight->shape.dims[0]) ? WEFT_OK : WEFT_ERR_INVALID;
}

static weft_status check_picked(const weft_tensor *picked, const weft_tensor *y)
{
    if (!picked)
        return WEFT_OK;
    if (picked->dtype != WEFT_DTYPE_INT64)
        return WEFT_ERR_TYPE;
    return weft_tensor_same_shape(picked, y) ? wfi_check_beside(picked, y) : WEFT_ERR_SHAPE;
}

/* --- Forward --- */

#define BAG_LOOPS(tag, T)                                                                                              \
    static void tag##_sums(void *arg, int64_t begin, int64_t end)                                                      \
    {                                                                                                                  \
        const bag_args *args = arg;                                                                                    \
        wfi_row_sum sum = {.table = args->table, .width = args->width, .skip = args->padding};                         \
        for (int64_t bag = begin; bag < end; bag++) {                                                                  \
            int64_t first = bag_begin(args, bag);                                                                      \
            T *y = (T *)args->out + bag * args->width;                                                                 \
            sum.rows = args->index + first;                                                                            \
            sum.factors = args->scale ? (const T *)args->scale + first : NULL;                                         \
            sum.count = bag_begin(args, bag + 1) - first;                                                              \
            sum.beyond = args->count - first - sum.count;                                                              \
            int64_t used = wfi_row_sum_##tag(&sum, y);                                                                 \
            for (int64_t d = 0; d < args->width && args->mode == WFI_BAG_MEAN && used > 1; d++)                        \
                y[d] /= (T)used;                                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_larger(const T *x, int64_t row, bool first, int64_t width, T *y, int64_t *picked)                \
    {                                                                                                                  \
        for (int64_t d = 0; d < width; d++) {                                                                          \
            if (!first && !(x[d] > y[d]))                                                                              \
                continue;                                                                                              \
            y[d] = x[d];                                                                                               \
            if (picked)                                                                                                \
                picked[d] = row;                                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_maxima(void *arg, int64_t begin, int64_t end)                                                    \
    {                                                                                                                  \
        const bag_args *args = arg;                                                                                    \
        for (int64_t bag = begin; bag < end; bag++) {                                                                  \
            T *y = (T *)args->out + bag * args->width;                                                                 \
            int64_t *picked = args->picked ? args->picked + bag * args->width : NULL;                                  \
            bool first = true;                                                                                         \
            for (int64_t i = bag_begin(args, bag); i < bag_begin(args, bag + 1); i++) {                                \
                int64_t row = args->index[i];                                                                          \
                if (row == args->padding)                                                                              \
                    continue;                                                                                          \
                tag##_larger((const T *)args->table + row * args->width, row, first, args->width, y, picked);          \
                first = false;                                                                                         \
            }                                                                                                          \
            for (int64_t d = 0; d < args->width && first; d++) {                                                       \
                y[d] = 0;                                                                                              \
                if (picked)                                                                                            \
                    picked[d] = -1;                                                                                    \
            }                                                                                                          \
        }                                                                                                              \
    }
BAG_LOOPS(f32, float)
BAG_LOOPS(f64, double)

weft_status wfi_bag(const weft_tensor *weight, const wfi_bags *bags, weft_tensor *y, weft_tensor *picked)
{
    weft_status status = check(weight, bags, y);
    if (status == WEFT_OK)
        status = check_picked(picked, y);
    if (status != WEFT_OK || y->numel == 0)
        return status;
    bag_args args = args_of(bags, weight->shape.dims[1]);
    args.table = wfi_tensor_address(weight);
    args.out = wfi_tensor_address(y);
    args.picked = !picked ? NULL : wfi_tensor_address(picked);
    if (wfi_tensor_is_on_gpu(weight))
        return run_on_gpu(bags->mode == WFI_BAG_MAX ? WFI_GPU_BAG_MAX : WFI_GPU_BAG, &args, weight, y->numel);
    wfi_parallel(args.bags, grain(&args),
                 bags->mode == WFI_BAG_MAX ? WFI_BY_FLOAT(weight->dtype, f32_maxima, f64_maxima)
                                           : WFI_BY_FLOAT(weight->dtype, f32_sums, f64_sums),
                 &args);
    return WEFT_OK;
}

/* --- Backward: each index has the gradient of its bag, times a factor. --- */

/* |b|: how many indices of a bag are not padding. */
static int64_t bag_used(const bag_args *args, int64_t bag)
{
    int64_t end = bag_begin(args, bag + 1), used = 0;
    for (int64_t i = bag_begin(args, bag); i < end; i++)
        used += args->index[i] != args->padding;
    return used;
}

/* from[n]: the bag of each index; factors[n] (may be NULL): what a mean multiplies its gradient with. */
#define SPREAD(tag, T)                                                                                                 \
    static void tag##_spread(const bag_args *args, int64_t *from, T *factors)                                          \
    {                                                                                                                  \
        for (int64_t bag = 0; bag < args->bags; bag++) {                                                               \
            int64_t end = bag_begin(args, bag + 1);                                                                    \
            T factor = factors ? (T)1 / (T)bag_used(args, bag) : 1;                                                    \
            for (int64_t i = bag_begin(args, bag); i < end; i++) {                                                     \
                from[i] = bag;                                                                                         \
                if (factors)                                                                                           \
                    factors[i] = factor;                                                                               \
            }                                                                                                          \
        }                                                                                                              \
    }
SPREAD(f32, float)
SPREAD(f64, double)

/* For the backward passes of sums and means on a GPU: the bag of each index, and the factors of a mean. */
typedef struct spread_bags {
    weft_tensor *from, *factors; /* `factors`: NULL unless it is a mean */
} spread_bags;

static void spread_drop(spread_bags *spread)
{
    weft_tensor_unref(spread->from);
    weft_tensor_unref(spread->factors);
}

static weft_status spread_on_gpu(bag_args args, const weft_tensor *dy, spread_bags *out)
{
    bool mean = args.mode == WFI_BAG_MEAN;
    *out = (spread_bags){wfi_tensor_empty_like(dy, WEFT_SHAPE(args.count), WEFT_DTYPE_INT64),
                         mean ? wfi_tensor_empty_like(dy, WEFT_SHAPE(args.count), dy->dtype) : NULL};
    weft_status status = !out->from || (mean && !out->factors) ? WEFT_ERR_MEMORY : WEFT_OK;
    if (status == WEFT_OK) {
        args.picked = wfi_tensor_address(out->from);
        args.out = mean ? wfi_tensor_address(out->factors) : NULL;
        status = run_on_gpu(WFI_GPU_BAG_SPREAD, &args, dy, args.bags);
    }
    if (status != WEFT_OK) {
        spread_drop(out);
        *out = (spread_bags){NULL, NULL};
    }
    return status;
}

/* The rows of dy times their factors, as the tasks ADD_ROWS and PICK_ROWS take them. */
static wfi_rows_task rows_of_dy(const bag_args *args, const spread_bags *spread, const weft_tensor *dy)
{
    return (wfi_rows_task){WFI_GPU_TASK(dy, dy->dtype, args->width),
                           .from = wfi_tensor_address(dy),
                           .index = args->index,
                           .rows = wfi_tensor_address(spread->from),
                           .factors = spread->factors ? wfi_tensor_address(spread->factors) : args->scale,
                           .n = args->count,
                           .inner = args->width,
                           .skip = args->padding};
}

static weft_status backward_sums_on_gpu(const weft_tensor *dy, const wfi_bags *bags, weft_tensor *dweight)
{
    bag_args args = args_of(bags, dweight->shape.dims[1]);
    spread_bags spread;
    weft_status status = wfi_fill(dweight, 0);
    if (status == WEFT_OK)
        status = spread_on_gpu(args, dy, &spread);
    if (status != WEFT_OK)
        return status;
    wfi_rows_task task = rows_of_dy(&args, &spread, dy);
    task.to = wfi_tensor_address(dweight);
    task.size = dweight->shape.dims[0];
    status = WFI_GPU_RUN(WFI_GPU_ADD_ROWS, task);
    spread_drop(&spread);
    return status;
}

static weft_status backward_sums(const weft_tensor *dy, const wfi_bags *bags, weft_tensor *dweight)
{
    bag_args args = args_of(bags, dweight->shape.dims[1]);
    bool mean = bags->mode == WFI_BAG_MEAN;
    weft_tensor *from = wfi_tensor_empty(WEFT_SHAPE(args.count), WEFT_DTYPE_INT64, NULL);
    weft_tensor *factors = mean ? wfi_tensor_empty(WEFT_SHAPE(args.count), dy->dtype, NULL) : NULL;
    weft_status status = WEFT_ERR_MEMORY;
    if (from && (!mean || factors)) {
        int64_t *source = wfi_tensor_address(from);
        void *factor = mean ? wfi_tensor_address(factors) : NULL;
        if (wfi_dtype_is_f32(dy->dtype))
            f32_spread(&args, source, factor);
        else
            f64_spread(&args, source, factor);
        wfi_row_scatter scatter = {.index = args.index,
                                   .from = source,
                                   .factors = mean ? factor : args.scale,
                                   .table = wfi_tensor_address(dy),
                                   .count = args.count,
                                   .skip = args.padding};
        status = wfi_row_scatter_run(&scatter, dweight);
    }
    weft_tensor_unref(from);
    weft_tensor_unref(factors);
    return status;
}

/* Columns begin to end: one thread has all that is added to them, in order. */
#define MAX_BACK(tag, T)                                                                                               \
    static void tag##_max_back(void *arg, int64_t begin, int64_t end)                                                  \
    {                                                                                                                  \
        const bag_args *args = arg;                                                                                    \
        T *to = args->out;                                                                                             \
        const T *dy = args->dy;                                                                                        \
        for (int64_t bag = 0; bag < args->bags; bag++) {                                                               \
            const int64_t *picked = args->picked + bag * args->width;                                                  \
            for (int64_t d = begin; d < end; d++)                                                                      \
                if (picked[d] >= 0)                                                                                    \
                    to[picked[d] * args->width + d] += dy[bag * args->width + d];                                      \
        }                                                                                                              \
    }
MAX_BACK(f32, float)
MAX_BACK(f64, double)

static bool picked_inside(const weft_tensor *picked, int64_t rows)
{
    if (wfi_tensor_is_on_gpu(picked))
        return true; /* by the forward pass */
    const int64_t *at = wfi_tensor_address(picked);
    for (int64_t i = 0; i < picked->numel; i++)
        if (at[i] < -1 || at[i] >= rows)
            return false;
    return true;
}

static weft_status backward_max(const weft_tensor *dy, const wfi_bags *bags, const weft_tensor *picked,
                                weft_tensor *dweight)
{
    weft_status status = !picked ? WEFT_ERR_INVALID : check_picked(picked, dy);
    if (status == WEFT_OK && !picked_inside(picked, dweight->shape.dims[0]))
        status = WEFT_ERR_INVALID;
    if (status != WEFT_OK)
        return status;
    bag_args args = args_of(bags, dweight->shape.dims[1]);
    args.dy = wfi_tensor_address(dy);
    args.out = wfi_tensor_address(dweight);
    args.picked = wfi_tensor_address(picked);
    status = wfi_fill(dweight, 0);
    if (wfi_tensor_is_on_gpu(dy))
        return status == WEFT_OK ? run_on_gpu(WFI_GPU_BAG_MAX_BACKWARD, &args, dy, args.width) : status;
    int64_t columns = 16 + WFI_GRAIN / (1 + args.bags); /* whole lines of memory, so that threads do not share many */
    wfi_parallel(args.width, columns / 16 * 16, WFI_BY_FLOAT(dy->dtype, f32_max_back, f64_max_back), &args);
    return WEFT_OK;
}

weft_status wfi_bag_backward(const weft_tensor *dy, const wfi_bags *bags, const weft_tensor *picked,
                             weft_tensor *dweight)
{
    weft_status status = check(dweight, bags, dy);
    if (status != WEFT_OK)
        return status;
    if (bags->mode == WFI_BAG_MAX)
        return backward_max(dy, bags, picked, dweight);
    return wfi_tensor_is_on_gpu(dy) ? backward_sums_on_gpu(dy, bags, dweight) : backward_sums(dy, bags, dweight);
}

#define ROWS_BACK(tag, T)                                                                                              \
    static void tag##_rows_back(const bag_args *args, int64_t *rows)                                                   \
    {                                                                                                                  \
        T *to = args->out;                                                                                             \
        for (int64_t bag = 0; bag < args->bags; bag++) {                                                               \
            const T *dy = (const T *)args->dy + bag * args->width;                                                     \
            int64_t end = bag_begin(args, bag + 1);                                                                    \
            T mean = args->mode == WFI_BAG_MEAN ? (T)1 / (T)bag_used(args, bag) : 1;                                   \
            for (int64_t i = bag_begin(args, bag); i < end; i++) {                                                     \
                if (args->index[i] == args->padding)                                                                   \
                    continue;                                                                                          \
                T factor = args->scale ? ((const T *)args->scale)[i] : mean;                                           \
                for (int64_t d = 0; d < args->width; d++)                                                              \
                    to[d] = factor * dy[d];                                                                            \
                to += args->width;                                                                                     \
                *rows++ = args->index[i];                                                                              \
            }                                                                                                          \
        }                                                                                                              \
    }
ROWS_BACK(f32, float)
ROWS_BACK(f64, double)

static weft_status backward_rows_on_gpu(const weft_tensor *dy, const wfi_bags *bags, weft_tensor *rows,
                                        weft_tensor *values)
{
    bag_args args = args_of(bags, dy->shape.dims[1]);
    spread_bags spread;
    weft_status status = spread_on_gpu(args, dy, &spread);
    if (status != WEFT_OK)
        return status;
    wfi_rows_task task = rows_of_dy(&args, &spread, dy);
    task.head.count = args.count * args.width;
    task.to = wfi_tensor_address(values);
    task.picked = wfi_tensor_address(rows);
    status = WFI_GPU_RUN(WFI_GPU_PICK_ROWS, task);
    spread_drop(&spread);
    return status;
}

weft_status wfi_bag_backward_rows(const weft_tensor *dy, const wfi_bags *bags, weft_tensor *rows, weft_tensor *values)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(dy, values, bags->scale);
    if (status == WEFT_OK)
        status = rows->dtype == WEFT_DTYPE_INT64 ? wfi_check_beside(rows, dy) : WEFT_ERR_TYPE;
    if (status == WEFT_OK)
        status = wfi_check_beside(bags->index, dy);
    if (status == WEFT_OK)
        status = check_index(bags);
    if (status != WEFT_OK)
        return status;
    if (bags->mode == WFI_BAG_MAX)
        return WEFT_ERR_UNSUPPORTED;
    int64_t count = wfi_index_rows(bags->index, bags->padding);
    bool fits = dy->shape.ndim == 2 && values->shape.ndim == 2 && dy->shape.dims[0] == wfi_bags_count(bags) &&
                dy->shape.dims[1] == values->shape.dims[1] && values->shape.dims[0] == count &&
                wfi_tensor_is_vector(rows, count);
    if (!fits)
        return WEFT_ERR_SHAPE;
    if (wfi_tensor_is_on_gpu(dy))
        return backward_rows_on_gpu(dy, bags, rows, values);
    bag_args args = args_of(bags, dy->shape.dims[1]);
    args.dy = wfi_tensor_address(dy);
    args.out = wfi_tensor_address(values);
    WFI_BY_FLOAT(dy->dtype, f32_rows_back, f64_rows_back)(&args, wfi_tensor_address(rows));
    return WEFT_OK;
}

/* LANES sums side by side: one alone waits for itself at every addition. */
#define LANES 8
#define SCALE_BACK(tag, T)                                                                                             \
    static T tag##_dot(const T *a, const T *b, int64_t count)                                                          \
    {                                                                                                                  \
        T lane[LANES] = {0}, sum = 0;                                                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i + LANES <= count; i += LANES)                                                                         \
            for (int k = 0; k < LANES; k++)                                                                            \
                lane[k] += a[i + k] * b[i + k];                                                                        \
        for (; i < count; i++)                                                                                         \
            sum += a[i] * b[i];                                                                                        \
        for (int k = 0; k < LANES; k++)                                                                                \
            sum += lane[k];                                                                                            \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static void tag##_scale_back(void *arg, int64_t begin, int64_t end)                                                \
    {                                                                                                                  \
        const bag_args *args = arg;                                                                                    \
        const T *dy = args->dy, *table = args->table;                                                                  \
        T *to = args->out;                                                                                             \
        for (int64_t bag = begin; bag < end; bag++) {                                                                  \
            for (int64_t i = bag_begin(args, bag); i < bag_begin(args, bag + 1); i++) {                                \
                int64_t row = args->index[i];                                                                          \
                to[i] = row == args->padding                                                                           \
                            ? 0                                                                                        \
                            : tag##_dot(dy + bag * args->width, table + row * args->width, args->width);               \
            }                                                                                                          \
        }                                                                                                              \
    }
SCALE_BACK(f32, float)
SCALE_BACK(f64, double)

weft_status wfi_bag_backward_scale(const weft_tensor *dy, const wfi_bags *bags, const weft_tensor *weight,
                                   weft_tensor *dscale)
{
    weft_status status = check(weight, bags, dy);
    if (status == WEFT_OK)
        status = wfi_check_float_beside(dscale, dy);
    if (status == WEFT_OK && !weft_tensor_same_shape(dscale, bags->index))
        status = WEFT_ERR_SHAPE;
    if (status != WEFT_OK)
        return status;
    bag_args args = args_of(bags, weight->shape.dims[1]);
    args.table = wfi_tensor_address(weight);
    args.dy = wfi_tensor_address(dy);
    args.out = wfi_tensor_address(dscale);
    if (wfi_tensor_is_on_gpu(dy)) {
        spread_bags spread;
        status = spread_on_gpu(args, dy, &spread);
        if (status != WEFT_OK)
            return status;
        args.picked = wfi_tensor_address(spread.from);
        status = run_on_gpu(WFI_GPU_BAG_SCALE_BACKWARD, &args, dy, args.count);
        spread_drop(&spread);
        return status;
    }
    wfi_parallel(args.bags, grain(&args), WFI_BY_FLOAT(dy->dtype, f32_scale_back, f64_scale_back), &args);
    return WEFT_OK;
}
