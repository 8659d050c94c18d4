/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elementwise.h - arithmetic element by element. The conventions are those of tensor/cpu/cpu.h, except for devices: the
 * operands may be on any device. If they are not all on the same one: WEFT_ERR_UNSUPPORTED.
 */
#ifndef WFI_ELEMENTWISE_H
#define WFI_ELEMENTWISE_H

#include "tensor/kernels.h"

/* NumPy's rule. WEFT_ERR_SHAPE. */
weft_status wfi_broadcast_shape(const weft_shape *a, const weft_shape *b, weft_shape *out);
/* y = a op b, with broadcasting and any strides. All three have one dtype, for which wfi_has_binary is true. y may be a
 * or b. Integer division by 0: WEFT_ERR_INVALID. */
weft_status wfi_binary(wfi_binary_op op, const weft_tensor *a, const weft_tensor *b, weft_tensor *y);
bool wfi_has_binary(const weft_tensor *tensor);                 /* on the CPU: float32, float64, int64, int32, uint8 */
weft_status wfi_add_into(const weft_tensor *x, weft_tensor *y); /* y += x, same shape */

/* float32 and float64, contiguous, of one shape; in place allowed */
weft_status wfi_scale(const weft_tensor *x, double factor, weft_tensor *y);
weft_status wfi_relu(const weft_tensor *x, weft_tensor *y);
weft_status wfi_relu_backward(const weft_tensor *dy, const weft_tensor *y, weft_tensor *dx); /* dx may be dy */
weft_status wfi_sigmoid(const weft_tensor *x, weft_tensor *y);                               /* 1 / (1 + e^-x) */
weft_status wfi_sigmoid_backward(const weft_tensor *dy, const weft_tensor *y, weft_tensor *dx);
weft_status wfi_tanh(const weft_tensor *x, weft_tensor *y);
weft_status wfi_tanh_backward(const weft_tensor *dy, const weft_tensor *y, weft_tensor *dx);
weft_status wfi_exp(const weft_tensor *x, weft_tensor *y);
weft_status wfi_ln(const weft_tensor *x, weft_tensor *y); /* not named wfi_log: that writes log lines */
weft_status wfi_add_scalar(const weft_tensor *x, double value, weft_tensor *y); /* y = x + value */

#endif
