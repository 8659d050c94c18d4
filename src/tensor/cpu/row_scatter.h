/* SPDX-License-Identifier: Apache-2.0 */
/* row_scatter.h - adds rows to the rows that an index names: the dense gradient of an embedding. */
#ifndef WFI_ROW_SCATTER_H
#define WFI_ROW_SCATTER_H

#include "tensor/tensor.h"

typedef struct wfi_row_scatter {
    const int64_t *index; /* [count]: the row of `to` that each is added to; in range */
    const int64_t *from;  /* [count]: which row of `table`; NULL: row i */
    const void *factors;  /* [count]: the factor of each; NULL: 1 */
    const void *table;    /* rows as wide as those of `to` */
    int64_t count;
    int64_t skip; /* a row of `to` that stays 0; -1: none */
} wfi_row_scatter;

/* Overwrites `to` [V, D]: the sums in the order of `index`, 0 where there are none. Floats. WEFT_ERR_MEMORY. */
weft_status wfi_row_scatter_run(const wfi_row_scatter *scatter, weft_tensor *to);

#endif
