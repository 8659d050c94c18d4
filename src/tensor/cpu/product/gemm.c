/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.c - the matrix product of the CPU, which all other products use: by OpenBLAS, or by oneDNN (gemm_onednn.c). */
#include "tensor/cpu/product/gemm.h"

#include "tensor/cpu/product/gemm_onednn.h"
#include "tensor/cpu/product/libraries.h"
#include "tensor/check.h"

#include <string.h>

static int at_least_one(int64_t size)
{
    return size > 0 ? (int)size : 1; /* BLAS refuses a leading dimension of 0 */
}

weft_status wfi_gemm(weft_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                     const void *a, const void *b, double beta, void *c)
{
    if (m == 0 || n == 0)
        return WEFT_OK;
    if (k == 0) {
        if (beta == 0)
            memset(c, 0, (size_t)(m * n) * weft_dtype_size(dtype));
        return WEFT_OK;
    }
    const wfi_openblas *blas = wfi_openblas_find();
    if (!blas)
        return WEFT_ERR_UNSUPPORTED;
    CBLAS_TRANSPOSE op_a = transpose_a ? CblasTrans : CblasNoTrans, op_b = transpose_b ? CblasTrans : CblasNoTrans;
    int lda = at_least_one(transpose_a ? m : k), ldb = at_least_one(transpose_b ? k : n), ldc = at_least_one(n);
    wfi_libraries host;
    (void)wfi_libraries_enter(&host);
    wfi_sgemm single = {transpose_a, transpose_b, m, n, k, a, b, (float)beta, c};
    if (wfi_dtype_is_f32(dtype) && !wfi_sgemm_onednn(&single))
        blas->sgemm(CblasRowMajor, op_a, op_b, (int)m, (int)n, (int)k, 1.0f, a, lda, b, ldb, (float)beta, c, ldc);
    else if (!wfi_dtype_is_f32(dtype))
        blas->dgemm(CblasRowMajor, op_a, op_b, (int)m, (int)n, (int)k, 1.0, a, lda, b, ldb, beta, c, ldc);
    wfi_libraries_leave(&host);
    return WEFT_OK;
}
