/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_onednn.h - the float32 products that oneDNN computes faster than CBLAS. */
#ifndef WFI_GEMM_ONEDNN_H
#define WFI_GEMM_ONEDNN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct wfi_sgemm {
    bool transpose_a, transpose_b;
    int64_t m, n, k; /* none is 0 */
    const float *a, *b;
    float beta;
    float *c;
} wfi_sgemm;

/* Whether oneDNN computes the larger products: as WEFT_PRODUCT says, or by the rule of gemm_onednn.c. A wrong value is
 * logged. */
bool wfi_products_by_onednn(void);

/*
 * As wfi_gemm (gemm.h), between wfi_libraries_enter and wfi_libraries_leave. Returns false if it did nothing, because
 * the product is small, or CBLAS computes it here.
 */
bool wfi_sgemm_onednn(const wfi_sgemm *product);

#endif
