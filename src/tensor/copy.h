/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - copies, conversions and fills, of any strides and dtypes. They take no lock; any thread may call. Device memory is copied
 * only whole and contiguous, without a conversion.
 */
#ifndef WFI_COPY_H
#define WFI_COPY_H

#include "tensor/tensor.h"

weft_status wfi_copy(const weft_tensor *x, weft_tensor *y);   /* same shape; converts as weft_tensor_to says */
void wfi_fill(weft_tensor *y, double value);                  /* any dtype and strides; complex: the real part */
weft_status wfi_expand(const weft_tensor *x, weft_tensor *y); /* y = x broadcast to y's shape; converts too */
/* One element, in host memory, converted. False: these two dtypes do not convert (complex and others). */
bool wfi_convert_one(weft_dtype from, const void *x, weft_dtype to, void *y);

#endif
