/* SPDX-License-Identifier: Apache-2.0 */
/* row_sum.h - sums of rows of a table: for bags forward, and embeddings backward. */
#ifndef WFI_ROW_SUM_H
#define WFI_ROW_SUM_H

#include <weft/tensor.h>

typedef struct wfi_row_sum {
    const void *table; /* rows of `width` elements */
    int64_t width;
    const int64_t *rows; /* numbers of the rows */
    const void *factors; /* of each; NULL: 1 */
    int64_t count;
    int64_t beyond; /* number of further `rows` that may be read, for prefetching */
    int64_t skip;   /* a row that is skipped; -1: none */
} wfi_row_sum;

/*
 * to[width] = the sum, in order; 0 if there are none. table, factors and `to` have the dtype. Returns how many rows
 * were summed.
 */
int64_t wfi_row_sum_f32(const wfi_row_sum *sum, float *to);
int64_t wfi_row_sum_f64(const wfi_row_sum *sum, double *to);

#endif
