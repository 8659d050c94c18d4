/* SPDX-License-Identifier: Apache-2.0 */
/*
 * product.h - matrix products, the linear layer and convolutions: the kernels that OpenBLAS and oneDNN compute. They
 * have this folder of their own, so that programs without them do not need those libraries.
 *
 * The conventions are those of tensor/cpu/cpu.h. Any thread may call. A call sets the number of threads of OpenBLAS
 * and OpenMP and then restores the program's (libraries.h); conv_onednn.c caches its primitives by shape, under its
 * own lock.
 */
#ifndef WFI_PRODUCT_H
#define WFI_PRODUCT_H

#include "tensor/tensor.h"

/* y [M, L] = op(a) [M, K] op(b) [K, L]; op transposes if requested: then a is [K, M], b [L, K]. */
weft_status wfi_matmul(const weft_tensor *a, bool transpose_a, const weft_tensor *b, bool transpose_b, weft_tensor *y);
/* y [N, O] = x [N, I] weight [O, I]^T + bias [O] */
weft_status wfi_linear(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias, weft_tensor *y);
weft_status wfi_linear_backward(const weft_tensor *dy, const weft_tensor *x, const weft_tensor *weight, weft_tensor *dx,
                                weft_tensor *dweight, weft_tensor *dbias);

/* --- convolution; x [N, C, H, W], weight [O, C / groups, KH, KW], bias [O], y [N, O, OH, OW] --- */
typedef struct wfi_conv2d {
    int64_t stride[2], padding[2], dilation[2]; /* height, width */
    int64_t groups;
} wfi_conv2d;
weft_status wfi_conv2d_shape(const weft_shape *x, const weft_shape *weight, const wfi_conv2d *how, weft_shape *y);
weft_status wfi_conv2d_forward(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias,
                               const wfi_conv2d *how, weft_tensor *y);
weft_status wfi_conv2d_backward_data(const weft_tensor *dy, const weft_tensor *weight, const wfi_conv2d *how,
                                     weft_tensor *dx);
weft_status wfi_conv2d_backward_weight(const weft_tensor *dy, const weft_tensor *x, const wfi_conv2d *how,
                                       weft_tensor *dweight, weft_tensor *dbias);

#endif
