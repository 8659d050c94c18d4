/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h - the matrix product that all other products use, row-major, in float or double, by CBLAS or oneDNN. */
#ifndef WFI_GEMM_H
#define WFI_GEMM_H

#include "tensor/kernels.h"
#include "tensor/tensor.h"

/* c [m, n] = beta c + op(a) [m, k] op(b) [k, n], all packed. Sizes must fit the library's int (wfi_blas_fits).
 * WEFT_ERR_UNSUPPORTED: OpenBLAS cannot be loaded. */
weft_status wfi_gemm(weft_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                     const void *a, const void *b, double beta, void *c);
/* The same on any device: by the kernel of args->device for the dtype. WEFT_ERR_UNSUPPORTED: there is none. */
weft_status wfi_gemm_run(weft_dtype dtype, const wfi_gemm_args *args);
/* The kernels of the tensor's device and dtype. */
const wfi_product_kernels *wfi_product_kernels_of(const weft_tensor *tensor);

#endif
