/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - sparse gradients, added up by row. The places of the values are sorted by row, stably, so the values of a
 * row are added in the order of their places. Only rows that occur several times are copied, into `sums`.
 */
#include "tensor/check.h"
#include "tensor/clones.h"
#include "tensor/parallel.h"
#include "tensor/tasks.h"
#include "tensor/cpu/optim/optim.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#define DIGIT_BITS 11
#define DIGITS ((size_t)1 << DIGIT_BITS)

static bool is_ascending(const int64_t *rows, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (rows[i - 1] >= rows[i])
            return false;
    return true;
}

static int64_t place_outside(const int64_t *rows, int64_t count, int64_t row_count)
{
    for (int64_t i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= row_count)
            return i;
    return -1;
}

/* One round of a radix sort, which keeps the order of equal ones: by the digit that begins at bit `shift`. */
static void sort_by_digit(const int64_t *rows, int64_t count, int shift, const int64_t *places, int64_t *sorted)
{
    int64_t begin[DIGITS] = {0}, sum = 0;
    for (int64_t i = 0; i < count; i++)
        begin[(size_t)(rows[i] >> shift) % DIGITS]++;
    for (size_t d = 0; d < DIGITS; d++) {
        int64_t here = begin[d];
        begin[d] = sum;
        sum += here;
    }
    for (int64_t i = 0; i < count; i++)
        sorted[begin[(size_t)(rows[places[i]] >> shift) % DIGITS]++] = places[i];
}

/* The places 0 .. count - 1, sorted by row, stably. The caller frees them. NULL: no memory. */
static int64_t *places_by_row(const int64_t *rows, int64_t count)
{
    int64_t highest = 0, *places = wfi_calloc((size_t)count, sizeof(int64_t)),
            *spare = wfi_calloc((size_t)count, sizeof(int64_t));
    for (int64_t i = 0; places && spare && i < count; i++) {
        places[i] = i;
        highest = rows[i] > highest ? rows[i] : highest;
    }
    for (int shift = 0; places && spare && shift < 63 && highest >> shift != 0; shift += DIGIT_BITS) {
        sort_by_digit(rows, count, shift, places, spare);
        int64_t *other = places;
        places = spare;
        spare = other;
    }
    if (!spare) {
        free(places);
        return NULL;
    }
    free(spare);
    return places;
}

/* The values of different row i are at places[first[i]] to places[first[i + 1] - 1]. If there are several, at[i] gets
 * their sum; otherwise it is the value itself. */
typedef struct adding {
    wfi_sparse_rows *rows;
    const int64_t *places, *first;
} adding;

#define ADD(name, T)                                                                                                   \
    WFI_CLONES static void name(void *arg, int64_t begin, int64_t end)                                                 \
    {                                                                                                                  \
        const adding *a = arg;                                                                                         \
        int64_t width = a->rows->width;                                                                                \
        const T *values = wfi_tensor_address(a->rows->values);                                                         \
        for (int64_t row = begin; row < end; row++) {                                                                  \
            int64_t from = a->first[row], to = a->first[row + 1];                                                      \
            T *restrict sum = (T *)a->rows->at[row];                                                                   \
            if (to - from > 1)                                                                                         \
                memcpy(sum, values + a->places[from] * width, (size_t)width * sizeof(T));                              \
            for (int64_t k = from + 1; k < to; k++) {                                                                  \
                const T *restrict one = values + a->places[k] * width;                                                 \
                for (int64_t i = 0; i < width; i++)                                                                    \
                    sum[i] += one[i];                                                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }
ADD(add_f32, float)
ADD(add_f64, double)

/* Sets out->rows, out->count and first[count + 1] of the different rows. Returns how many occur several times. */
static int64_t find_rows(wfi_sparse_rows *out, const int64_t *rows, int64_t count, const int64_t *places,
                         int64_t *first)
{
    int64_t several = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = rows[places[i]];
        if (i > 0 && row == out->rows[out->count - 1]) {
            several += i - first[out->count - 1] == 1;
            continue;
        }
        first[out->count] = i;
        out->rows[out->count++] = row;
    }
    first[out->count] = count;
    return several;
}

/* Sets rows, at and sums from unsorted `rows`: each at[i] is a value, or room in `sums` that the threads fill. */
static weft_status add_up(wfi_sparse_rows *out, const int64_t *rows, int64_t count)
{
    size_t row_bytes = (size_t)out->width * weft_dtype_size(out->dtype), used = 0;
    const char *values = wfi_tensor_address(out->values);
    int64_t *first = wfi_calloc((size_t)count + 1, sizeof(int64_t)), *places = places_by_row(rows, count);
    weft_status status = !first || !places ? WEFT_ERR_MEMORY : WEFT_OK;
    if (status == WEFT_OK) {
        size_t bytes = (size_t)find_rows(out, rows, count, places, first) * row_bytes;
        out->sums = malloc(bytes > 0 ? bytes : 1);
        status = !out->sums ? WEFT_ERR_MEMORY : WEFT_OK;
    }
    for (int64_t i = 0; status == WEFT_OK && i < out->count; i++) {
        bool is_sum = first[i + 1] - first[i] > 1;
        out->at[i] = is_sum ? (char *)out->sums + used : values + (size_t)places[first[i]] * row_bytes;
        used += is_sum ? row_bytes : 0;
    }
    if (status == WEFT_OK && out->width > 0) {
        adding a = {out, places, first};
        wfi_parallel(out->count, 1 + WFI_GRAIN / out->width, WFI_BY_FLOAT(out->dtype, add_f32, add_f64), &a);
    }
    free(first);
    free(places);
    return status;
}

static weft_status check(const weft_tensor *values, const weft_tensor *rows)
{
    if (!wfi_dtype_is_float(values->dtype) || rows->dtype != WEFT_DTYPE_INT64)
        return WEFT_ERR_TYPE;
    if (rows->shape.ndim != 1 || values->shape.ndim < 1 || values->shape.dims[0] != rows->numel)
        return WEFT_ERR_SHAPE;
    weft_device device = weft_tensor_device(values), other = weft_tensor_device(rows);
    return wfi_device_equal(device, other) ? WEFT_OK : WEFT_ERR_UNSUPPORTED;
}

/* Sorts tiles, and merges them in pairs: n log(n)^2 comparisons, in a fixed order. Neither the number of different rows
 * nor that of launches depends on the values. */
static weft_status sort_on_gpu(const weft_tensor *ids, weft_tensor **sorted, weft_tensor **spare)
{
    int64_t n = ids->numel, *to = wfi_tensor_address(*sorted);
    wfi_sort_task tiles = {WFI_GPU_TASK(ids, WEFT_DTYPE_INT64, (n + WFI_SORT_TILE - 1) / WFI_SORT_TILE),
                           .keys = wfi_tensor_address(ids), .to_keys = to, .to_order = to + n, .n = n};
    weft_status status = WFI_GPU_RUN(WFI_GPU_SORT_TILES, tiles);
    for (int64_t width = WFI_SORT_TILE; width < n && status == WEFT_OK; width *= 2) {
        weft_tensor *from = *sorted;
        *sorted = *spare;
        *spare = from;
        const int64_t *keys = wfi_tensor_address(from);
        to = wfi_tensor_address(*sorted);
        wfi_sort_task merge = {WFI_GPU_TASK(ids, WEFT_DTYPE_INT64, n),
                               .keys = keys,
                               .order = keys + n,
                               .to_keys = to,
                               .to_order = to + n,
                               .n = n,
                               .width = width};
        status = WFI_GPU_RUN(WFI_GPU_SORT_MERGE, merge);
    }
    return status;
}

static weft_status order_on_gpu(wfi_sparse_rows *out)
{
    weft_status status = wfi_check_beside(out->values, out->values);
    if (status == WEFT_OK)
        status = wfi_check_beside(out->ids, out->values);
    if (status != WEFT_OK)
        return status;
    out->count = out->ids->numel;
    const weft_shape both = WEFT_SHAPE(2, out->count);
    bool merges = out->count > WFI_SORT_TILE;
    weft_tensor *spare = merges ? wfi_tensor_empty_like(out->ids, both, WEFT_DTYPE_INT64) : NULL;
    out->order = wfi_tensor_empty_like(out->ids, both, WEFT_DTYPE_INT64);
    if (!out->order || (merges && !spare))
        status = WEFT_ERR_MEMORY;
    else
        status = sort_on_gpu(out->ids, &out->order, &spare);
    weft_tensor_unref(spare);
    return status;
}

weft_status wfi_sparse_rows_check(const wfi_sparse_rows *rows, int64_t row_count, wfi_report *report, int64_t check)
{
    enum { PIECE_ELEMENTS = 2048 };
    int64_t pieces = (rows->count + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
    wfi_index_task task = {
        WFI_GPU_TASK(rows->ids, WEFT_DTYPE_INT64, pieces < WFI_REPORT_SLOTS ? pieces : WFI_REPORT_SLOTS),
        .index = wfi_tensor_address(rows->ids),
        .n = rows->count,
        .size = row_count,
        .report = report,
        .check = check};
    weft_status status = wfi_check_beside(rows->ids, rows->values);
    return status == WEFT_OK ? WFI_GPU_RUN(WFI_GPU_INDEX_CHECK, task) : status;
}

static weft_status fill(wfi_sparse_rows *out, int64_t row_count, int64_t *bad)
{
    int64_t count = out->ids->numel;
    const int64_t *rows = wfi_tensor_address(out->ids);
    const char *values = wfi_tensor_address(out->values);
    int64_t outside = place_outside(rows, count, row_count);
    if (outside >= 0) {
        *bad = outside;
        return WEFT_ERR_INVALID;
    }
    out->rows = wfi_calloc((size_t)count + 1, sizeof(int64_t));
    out->at = wfi_calloc((size_t)count + 1, sizeof(void *));
    if (!out->rows || !out->at)
        return WEFT_ERR_MEMORY;
    if (!is_ascending(rows, count))
        return add_up(out, rows, count);
    for (int64_t i = 0; i < count; i++) {
        out->rows[i] = rows[i];
        out->at[i] = values + (size_t)(i * out->width) * weft_dtype_size(out->dtype);
    }
    out->count = count;
    return WEFT_OK;
}

weft_status wfi_sparse_rows_init(wfi_sparse_rows *out, weft_tensor *values, weft_tensor *rows, int64_t row_count,
                                 int64_t *bad)
{
    weft_status status = check(values, rows);
    if (status != WEFT_OK)
        return status;
    wfi_sparse_rows made = {.width = 1, .dtype = values->dtype};
    for (int d = 1; d < values->shape.ndim; d++)
        made.width *= values->shape.dims[d];
    made.values = wfi_tensor_contiguous(values, NULL);
    made.ids = wfi_tensor_contiguous(rows, NULL);
    if (!made.values || !made.ids)
        status = WEFT_ERR_MEMORY;
    else
        status = wfi_tensor_is_on_gpu(values) ? order_on_gpu(&made) : fill(&made, row_count, bad);
    if (status == WEFT_OK)
        *out = made;
    else
        wfi_sparse_rows_fini(&made);
    return status;
}

void wfi_sparse_rows_fini(wfi_sparse_rows *rows)
{
    free(rows->rows);
    free(rows->at);
    free(rows->sums);
    weft_tensor_unref(rows->values);
    weft_tensor_unref(rows->ids);
    weft_tensor_unref(rows->order);
    *rows = (wfi_sparse_rows){0};
}
