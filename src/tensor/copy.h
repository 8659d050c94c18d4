/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - copies, conversions and fills, of any strides and dtypes.
 *
 * No function takes a lock; any thread may call. The tensors may be on any device; WEFT_ERR_TYPE (on the CPU) or
 * WEFT_ERR_UNSUPPORTED (elsewhere): no kernel for these dtypes there.
 */
#ifndef WFI_COPY_H
#define WFI_COPY_H

#include "tensor/tensor.h"

/* A filled, contiguous tensor on the device of `tensor`. NULL: no memory, or no kernel on the device. */
weft_tensor *wfi_tensor_full_like(const weft_tensor *tensor, weft_shape shape, weft_dtype dtype, double value);
weft_status wfi_copy(const weft_tensor *x, weft_tensor *y); /* same shape; converts as weft_tensor_to does */
weft_status wfi_fill(weft_tensor *y, double value); /* any strides; complex: the real part. On the CPU: WEFT_OK */
weft_status wfi_expand(const weft_tensor *x,
                       weft_tensor *y); /* y = x broadcast to y's shape, on one device; converts too */
/* One element, in host memory, converted. False: these two dtypes do not convert (complex and others). */
bool wfi_convert_one(weft_dtype from, const void *x, weft_dtype to, void *y);

#endif
