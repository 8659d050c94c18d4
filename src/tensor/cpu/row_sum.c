/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_sum.c - see row_sum.h: to[d] = sum of factors[i] table[rows[i]][d] in the order of i, in the table's dtype. The
 * sums of a block of columns stay in registers while the loop runs over the rows. Rows of a large table are far apart
 * in memory, so each is prefetched some rows before its turn.
 */
#include "tensor/cpu/row_sum.h"

#include "tensor/clones.h"

#define AHEAD 8      /* rows */
#define LINE 64      /* bytes that memory gives at once */
#define LINES_MAX 16 /* of a row that are prefetched; the processor guesses the others */

static inline __attribute__((always_inline)) void prefetch(const wfi_row_sum *sum, int64_t at, int64_t size)
{
    if (at >= sum->count + sum->beyond)
        return;
    int64_t bytes = sum->width * size, lines = (bytes + LINE - 1) / LINE;
    const char *row = (const char *)sum->table + sum->rows[at] * bytes;
    for (int64_t line = 0; line < lines && line < LINES_MAX; line++)
        __builtin_prefetch(row + line * LINE);
}

#define BLOCK 8 /* vectors of 32 bytes */
#define ROW_SUM(tag, T)                                                                                                \
    typedef T tag##_vector __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));                            \
    enum { tag##_lanes = 32 / sizeof(T) };                                                                             \
    static inline __attribute__((always_inline))                                                                       \
    int64_t tag##_block(const wfi_row_sum *sum, int64_t column, T *to, const int vectors)                              \
    {                                                                                                                  \
        tag##_vector total[BLOCK] = {0};                                                                               \
        const T *table = (const T *)sum->table + column, *factors = sum->factors;                                      \
        int64_t used = 0;                                                                                              \
        for (int64_t i = 0; i < sum->count; i++) {                                                                     \
            if (column == 0)                                                                                           \
                prefetch(sum, i + AHEAD, sizeof(T));                                                                   \
            if (sum->rows[i] == sum->skip)                                                                             \
                continue;                                                                                              \
            const tag##_vector *x = (const tag##_vector *)(table + sum->rows[i] * sum->width);                         \
            used++;                                                                                                    \
            if (factors) {                                                                                             \
                for (int v = 0; v < vectors; v++)                                                                      \
                    total[v] += factors[i] * x[v];                                                                     \
            } else {                                                                                                   \
                for (int v = 0; v < vectors; v++)                                                                      \
                    total[v] += x[v];                                                                                  \
            }                                                                                                          \
        }                                                                                                              \
        for (int v = 0; v < vectors; v++)                                                                              \
            ((tag##_vector *)(to + column))[v] = total[v];                                                             \
        return used;                                                                                                   \
    }                                                                                                                  \
    WFI_CLONES int64_t wfi_row_sum_##tag(const wfi_row_sum *sum, T *to)                                                \
    {                                                                                                                  \
        const T *table = sum->table, *factors = sum->factors;                                                          \
        int64_t column = 0, used = 0;                                                                                  \
        for (; column + (int64_t)BLOCK * tag##_lanes <= sum->width; column += (int64_t)BLOCK * tag##_lanes)            \
            used = tag##_block(sum, column, to, BLOCK);                                                                \
        for (; column + (int64_t)2 * tag##_lanes <= sum->width; column += (int64_t)2 * tag##_lanes)                    \
            used = tag##_block(sum, column, to, 2);                                                                    \
        for (; column < sum->width; column++) {                                                                        \
            T total = 0;                                                                                               \
            used = 0;                                                                                                  \
            for (int64_t i = 0; i < sum->count; i++) {                                                                 \
                if (sum->rows[i] == sum->skip)                                                                         \
                    continue;                                                                                          \
                T x = table[sum->rows[i] * sum->width + column];                                                       \
                total += factors ? factors[i] * x : x;                                                                 \
                used++;                                                                                                \
            }                                                                                                          \
            to[column] = total;                                                                                        \
        }                                                                                                              \
        return used;                                                                                                   \
    }
ROW_SUM(f32, float)
ROW_SUM(f64, double)
