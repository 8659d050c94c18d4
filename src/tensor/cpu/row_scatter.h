/* SPDX-License-Identifier: Apache-2.0 */
/* row_scatter.h - rows added up where they belong: the dense gradient of an embedding. */
#ifndef WFI_ROW_SCATTER_H
#define WFI_ROW_SCATTER_H

#include "tensor/tensor.h"

typedef struct wfi_row_scatter {
    const int64_t *index; /* [count]: which row of `to` each adds to; in range */
    const int64_t *from;  /* [count]: which row of `table`; NULL: row i */
    const void *factors;  /* [count]: what it is multiplied with; NULL: 1 */
    const void *table;    /* rows as wide as those of `to` */
    int64_t count;
    int64_t skip; /* a row of `to` that gets nothing; -1: none */
} wfi_row_scatter;

/* Overwrites `to` [V, D]: the sums in the order of `index`, 0 where there are none. Floats. WEFT_ERR_MEMORY. */
weft_status wfi_row_scatter_run(const wfi_row_scatter *scatter, weft_tensor *to);

#endif
