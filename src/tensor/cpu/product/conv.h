/* SPDX-License-Identifier: Apache-2.0 */
/* conv.h - the two ways to compute a convolution on the CPU: by oneDNN, and by products over unfolded images. */
#ifndef WFI_CONV_H
#define WFI_CONV_H

#include "tensor/kernels.h"
#include "tensor/tensor.h"

/* float32 only. WEFT_ERR_UNSUPPORTED: oneDNN does not support these sizes, or its version computes them wrongly. */
weft_status wfi_conv_onednn(wfi_conv_kind kind, const wfi_conv_sizes *sizes, const wfi_conv_data *data);
weft_status wfi_conv_gemm(weft_dtype dtype, wfi_conv_kind kind, const wfi_conv_sizes *sizes, const wfi_conv_data *data);

#endif
