/* SPDX-License-Identifier: Apache-2.0 */
/* conv.h - a convolution's sizes, and the two ways to compute it: oneDNN, and products over unfolded images. */
#ifndef WFI_CONV_H
#define WFI_CONV_H

#include "tensor/tensor.h"

typedef enum wfi_conv_pass { WFI_CONV_FORWARD, WFI_CONV_BACKWARD_DATA, WFI_CONV_BACKWARD_WEIGHT } wfi_conv_pass;

typedef struct wfi_conv_sizes {
    int64_t batch, groups, in, out; /* in, out: channels of one group */
    int64_t image[2], kernel[2], result[2];
    int64_t stride[2], padding[2], dilation[2];
} wfi_conv_sizes;

/* The arrays of a pass; it writes x (backward data), y (forward), or weight and bias (backward weight). */
typedef struct wfi_conv_data {
    void *x, *weight, *bias, *y; /* bias may be NULL */
} wfi_conv_data;

/* float32 only. WEFT_ERR_UNSUPPORTED: oneDNN does not support these sizes, or its version computes them wrongly. */
weft_status wfi_conv_onednn(wfi_conv_pass pass, const wfi_conv_sizes *sizes, const wfi_conv_data *data);
/* On a GPU; the arrays are there. */
weft_status wfi_conv_gpu(weft_device device, weft_dtype dtype, wfi_conv_pass pass, const wfi_conv_sizes *sizes,
                         const wfi_conv_data *data);
weft_status wfi_conv_gemm(weft_dtype dtype, wfi_conv_pass pass, const wfi_conv_sizes *sizes, const wfi_conv_data *data);

#endif
