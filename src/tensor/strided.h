/* SPDX-License-Identifier: Apache-2.0 */
/* strided.h - walking up to three tensors of one logical shape, each with its own strides. */
#ifndef WFI_STRIDED_H
#define WFI_STRIDED_H

#include "tensor/tensor.h"

#define WFI_STRIDED_OPERANDS_MAX 3

typedef struct wfi_strided {
    int operands, ndim;                                       /* ndim >= 1 */
    int64_t dims[WEFT_MAX_DIMS];                              /* neighbours that join are joined */
    int64_t strides[WFI_STRIDED_OPERANDS_MAX][WEFT_MAX_DIMS]; /* in bytes; 0 where broadcast */
    char *data[WFI_STRIDED_OPERANDS_MAX];
} wfi_strided;

/* Each tensor must broadcast to `shape` (else WEFT_ERR_SHAPE) and be in host memory (else WEFT_ERR_UNSUPPORTED). */
weft_status wfi_strided_init(wfi_strided *walk, const weft_shape *shape, int operands,
                             const weft_tensor *const *tensors);

/* One run along the innermost dimension: `at` the addresses, `step` the byte steps. A false return ends the walk. */
typedef bool (*wfi_strided_row)(char *const *at, const int64_t *step, int64_t count, void *arg);
bool wfi_strided_walk(const wfi_strided *walk, wfi_strided_row row, void *arg);

#endif
