/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h - what is known of each element type, beside its size and name (weft/tensor.h). For C++ too. */
#ifndef WFI_DTYPE_H
#define WFI_DTYPE_H

#include <weft/tensor.h>

WEFT_BEGIN_C

#define WFI_DTYPES 12 /* they are numbered from 0 on */

typedef enum wfi_dtype_class { WFI_CLASS_BOOL, WFI_CLASS_INTEGER, WFI_CLASS_FLOAT, WFI_CLASS_COMPLEX } wfi_dtype_class;

bool wfi_dtype_is_valid(weft_dtype dtype);
/* float32 or float64: what floating kernels compute in. float16 and bfloat16 are of the class, but not of these. */
bool wfi_dtype_is_float(weft_dtype dtype);
wfi_dtype_class wfi_dtype_class_of(weft_dtype dtype); /* these three: of a valid one */
size_t wfi_dtype_align(weft_dtype dtype);
weft_dtype wfi_dtype_real(weft_dtype dtype); /* of a complex number's parts; else itself */

WEFT_END_C
#endif
