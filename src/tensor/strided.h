/* SPDX-License-Identifier: Apache-2.0 */
/* strided.h - walking up to three tensors of one logical shape, each with its own strides. For C++ too. */
#ifndef WFI_STRIDED_H
#define WFI_STRIDED_H

#include <weft/tensor.h>

WEFT_BEGIN_C

#define WFI_STRIDED_OPERANDS_MAX 3

typedef struct wfi_strided {
    int operands, ndim;                                       /* ndim >= 1 */
    int64_t dims[WEFT_MAX_DIMS];                              /* neighbours that join are joined */
    int64_t strides[WFI_STRIDED_OPERANDS_MAX][WEFT_MAX_DIMS]; /* in bytes; 0 where broadcast */
    char *data[WFI_STRIDED_OPERANDS_MAX];
    weft_device device; /* that the data lies on */
} wfi_strided;

/* Each tensor must broadcast to `shape` (else WEFT_ERR_SHAPE) and be on the device of the first (else WEFT_ERR_UNSUPPORTED). */
weft_status wfi_strided_init(wfi_strided *walk, const weft_shape *shape, int operands,
                             const weft_tensor *const *tensors);

/* One run along the innermost dimension: `at` the addresses, `step` the byte steps. A false return ends the walk. */
typedef bool (*wfi_strided_row)(char *const *at, const int64_t *step, int64_t count, void *arg);
/* On the CPU: the data is host memory. */
bool wfi_strided_walk(const wfi_strided *walk, wfi_strided_row row, void *arg);

WEFT_END_C
#endif
