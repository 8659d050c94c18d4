/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_scatter.c - see row_scatter.h. A counting sort, which keeps the order, first brings together the rows that are
 * added to one row. Then one thread writes each row once, so the bits do not depend on the number of threads.
 */
#include "tensor/cpu/row_scatter.h"

#include "tensor/check.h"
#include "tensor/cpu/row_sum.h"
#include "tensor/parallel.h"

#include <string.h>

typedef struct sorted_rows {
    const int64_t *end;  /* [V + 1]: what goes to row r has the places from end[r] to end[r + 1] */
    const char *factors; /* [count], or NULL */
    char *to;
    int64_t skip;
    wfi_row_sum sum; /* of a row; `rows` is [count] */
} sorted_rows;

/*
 * Counting sort by row, stable. `end`: V + 1 zeros. While it places the values, end[r + 1] is where the next one of row
 * r goes, so at the end it is where row r ends.
 */
static void sort(const wfi_row_scatter *scatter, size_t size, int64_t rows, int64_t *end, int64_t *from, char *factors)
{
    int64_t before = 0;
    for (int64_t i = 0; i < scatter->count; i++)
        end[scatter->index[i] + 1]++;
    for (int64_t r = 0; r < rows; r++) {
        int64_t count = end[r + 1];
        end[r + 1] = before;
        before += count;
    }
    for (int64_t i = 0; i < scatter->count; i++) {
        int64_t place = end[scatter->index[i] + 1]++;
        from[place] = scatter->from ? scatter->from[i] : i;
        if (factors)
            memcpy(factors + (size_t)place * size, (const char *)scatter->factors + (size_t)i * size, size);
    }
}

#define SUM_PIECE(tag, T)                                                                                              \
    static void tag##_piece(void *arg, int64_t begin, int64_t end)                                                     \
    {                                                                                                                  \
        const sorted_rows *sorted = arg;                                                                               \
        wfi_row_sum sum = sorted->sum;                                                                                 \
        for (int64_t r = begin; r < end; r++) {                                                                        \
            int64_t first = sorted->end[r];                                                                            \
            T *to = (T *)sorted->to + r * sum.width;                                                                   \
            sum.rows = sorted->sum.rows + first;                                                                       \
            sum.factors = sorted->factors ? (const T *)sorted->factors + first : NULL;                                 \
            sum.count = sorted->end[r + 1] - first;                                                                    \
            sum.beyond = sorted->end[end] - first - sum.count;                                                         \
            if (sum.count == 0 || r == sorted->skip)                                                                   \
                memset(to, 0, (size_t)sum.width * sizeof(T));                                                          \
            else                                                                                                       \
                wfi_row_sum_##tag(&sum, to);                                                                           \
        }                                                                                                              \
    }
SUM_PIECE(f32, float)
SUM_PIECE(f64, double)

/* Sorts the rows that are added by the row of `to`, then sums: a piece of work is some rows of `to`. */
weft_status wfi_row_scatter_run(const wfi_row_scatter *scatter, weft_tensor *to)
{
    int64_t rows = to->shape.dims[0], width = to->shape.dims[1], count = scatter->count;
    if (to->numel == 0)
        return WEFT_OK;
    /* Tensors, because their memory is recycled. */
    weft_tensor *end = wfi_tensor_zeros(WEFT_SHAPE(rows + 1), WEFT_DTYPE_INT64, NULL);
    weft_tensor *from = wfi_tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_INT64, NULL);
    weft_tensor *factors = !scatter->factors ? NULL : wfi_tensor_empty(WEFT_SHAPE(count), to->dtype, NULL);
    bool room = end && from && (!scatter->factors || factors);
    if (room) {
        sorted_rows sorted = {.end = wfi_tensor_address(end),
                              .factors = !factors ? NULL : wfi_tensor_address(factors),
                              .to = wfi_tensor_address(to),
                              .skip = scatter->skip,
                              .sum = {scatter->table, width, wfi_tensor_address(from), .skip = -1}};
        sort(scatter, weft_dtype_size(to->dtype), rows, wfi_tensor_address(end), wfi_tensor_address(from),
             !factors ? NULL : wfi_tensor_address(factors));
        int64_t work = 1 + (count + rows) / rows * width; /* of a row, about */
        wfi_parallel(rows, 1 + WFI_GRAIN / work, WFI_BY_FLOAT(to->dtype, f32_piece, f64_piece), &sorted);
    }
    weft_tensor_unref(factors);
    weft_tensor_unref(from);
    weft_tensor_unref(end);
    return room ? WEFT_OK : WEFT_ERR_MEMORY;
}
