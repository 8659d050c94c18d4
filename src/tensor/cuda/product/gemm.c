/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.c - matrix products by cuBLAS, queued on the stream of this thread, as kernels are (tensor/cuda/launch.h). */
#include "mem/cuda.h"
#include "tensor/cuda/product/cublas.h"
#include "tensor/kernels.h"

static int at_least_one(int64_t size)
{
    return size > 0 ? (int)size : 1;
}

/* Matrices of cuBLAS are column-major. So it is asked for c^T = op(b)^T op(a)^T, which is c in row-major order. */
static int multiply(const wfi_cublas *cublas, void *handle, const wfi_gemm_args *g, bool single)
{
    int op_a = g->transpose_a ? WFI_CUBLAS_TRANSPOSED : WFI_CUBLAS_NOT_TRANSPOSED;
    int op_b = g->transpose_b ? WFI_CUBLAS_TRANSPOSED : WFI_CUBLAS_NOT_TRANSPOSED;
    int m = (int)g->m, n = (int)g->n, k = (int)g->k, batch = at_least_one(g->batch);
    int lda = at_least_one(g->transpose_a ? m : k), ldb = at_least_one(g->transpose_b ? k : n);
    const float one_f32 = 1, beta_f32 = (float)g->beta;
    const double one_f64 = 1;
    if (single)
        return cublas->sgemm(handle, op_b, op_a, n, m, k, &one_f32, g->b, ldb, g->step_b, g->a, lda, g->step_a,
                             &beta_f32, g->c, n, g->step_c, batch);
    return cublas->dgemm(handle, op_b, op_a, n, m, k, &one_f64, g->b, ldb, g->step_b, g->a, lda, g->step_a, &g->beta,
                         g->c, n, g->step_c, batch);
}

static weft_status gemm(const wfi_gemm_args *args, bool single)
{
    if (args->m == 0 || args->n == 0)
        return WEFT_OK;
    weft_status status = wfi_cuda_enter(args->device.index);
    if (status != WEFT_OK)
        return status;
    const wfi_cublas *cublas;
    void *handle;
    status = wfi_cublas_lock(args->device.index, &cublas, &handle);
    if (status == WEFT_OK) {
        status = wfi_cublas_status(multiply(cublas, handle, args, single), "a matrix product");
        wfi_cublas_unlock();
    }
    wfi_cuda_leave();
    return status;
}

static weft_status gemm_f32(const wfi_gemm_args *args)
{
    return gemm(args, true);
}

static weft_status gemm_f64(const wfi_gemm_args *args)
{
    return gemm(args, false);
}

const wfi_product_kernels wfi_product_cuda[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = {gemm_f32}, [WEFT_DTYPE_FLOAT64] = {gemm_f64}};
