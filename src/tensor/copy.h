/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - copies, conversions and fills, of any strides and dtypes.
 *
 * No function takes a lock; any thread may call. The tensors may be on any device. If the device has no kernel for the
 * dtypes, a function fails with WEFT_ERR_TYPE (the CPU) or WEFT_ERR_UNSUPPORTED (other devices).
 */
#ifndef WFI_COPY_H
#define WFI_COPY_H

#include "tensor/tensor.h"

/* A filled, contiguous tensor on the device of `tensor`. NULL: no memory, or no kernel on the device. */
weft_tensor *wfi_tensor_full_like(const weft_tensor *tensor, weft_shape shape, weft_dtype dtype, double value);
weft_status wfi_copy(const weft_tensor *x, weft_tensor *y); /* same shape; converts as weft_tensor_to does */
weft_status wfi_fill(weft_tensor *y, double value); /* complex: the real part, imaginary 0; never fails on the CPU */
weft_status wfi_expand(const weft_tensor *x,
                       weft_tensor *y); /* y = x broadcast to y's shape, on one device; converts too */
/* One element, in host memory, converted. False: these two dtypes do not convert (complex and others). */
bool wfi_convert_one(weft_dtype from, const void *x, weft_dtype to, void *y);

#endif
