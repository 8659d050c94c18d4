/* SPDX-License-Identifier: Apache-2.0 */
/* strided.h - visits the elements of up to three tensors of one logical shape, each with its strides. For C++ too. */
#ifndef WFI_STRIDED_H
#define WFI_STRIDED_H

#include <weft/tensor.h>

WEFT_BEGIN_C

#define WFI_STRIDED_OPERANDS_MAX 3

typedef struct wfi_strided {
    int operands, ndim;          /* ndim >= 1 */
    int64_t dims[WEFT_MAX_DIMS]; /* adjacent dimensions are joined if the strides allow it */
    int64_t strides[WFI_STRIDED_OPERANDS_MAX][WEFT_MAX_DIMS]; /* in bytes; 0 where broadcast */
    char *data[WFI_STRIDED_OPERANDS_MAX];
    weft_device device; /* the device of the data */
} wfi_strided;

/* The last tensor is the one that is written. Each tensor must broadcast to `shape` (otherwise WEFT_ERR_SHAPE) and be
 * on the device of the first one (otherwise WEFT_ERR_UNSUPPORTED). */
weft_status wfi_strided_init(wfi_strided *walk, const weft_shape *shape, int operands,
                             const weft_tensor *const *tensors);

/* The callback for each run along the innermost dimension. `at` has the address of each operand, `step` the distance of
 * its elements in bytes. Returns false to end the walk. */
typedef bool (*wfi_strided_row)(char *const *at, const int64_t *step, int64_t count, void *arg);
/* The data must be in host memory. Returns false if `row` did. */
bool wfi_strided_walk(const wfi_strided *walk, wfi_strided_row row, void *arg);

WEFT_END_C
#endif
