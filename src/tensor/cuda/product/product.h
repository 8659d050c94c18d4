/* SPDX-License-Identifier: Apache-2.0 */
/* product.h - the convolutions of a GPU, for the table in gemm.c. */
#ifndef WFI_CUDA_PRODUCT_H
#define WFI_CUDA_PRODUCT_H

#include "tensor/kernels.h"

weft_status wfi_cublas_conv(weft_device device, weft_dtype dtype, wfi_conv_kind kind, const wfi_conv_sizes *sizes,
                            const wfi_conv_data *data);

#endif
