/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h - the properties of each element type, except its size and name (weft/tensor.h). For C++ too. */
#ifndef WFI_DTYPE_H
#define WFI_DTYPE_H

#include <weft/tensor.h>

WEFT_BEGIN_C

#define WFI_DTYPES 12 /* they are numbered from 0 on */

typedef enum wfi_dtype_class { WFI_CLASS_BOOL, WFI_CLASS_INTEGER, WFI_CLASS_FLOAT, WFI_CLASS_COMPLEX } wfi_dtype_class;

bool wfi_dtype_is_valid(weft_dtype dtype);
/* Whether it is float32 or float64, the dtypes in which floating kernels compute. False for float16 and bfloat16,
 * although their class is WFI_CLASS_FLOAT. */
bool wfi_dtype_is_float(weft_dtype dtype);
wfi_dtype_class wfi_dtype_class_of(weft_dtype dtype); /* this and the next two: the dtype must be valid */
size_t wfi_dtype_align(weft_dtype dtype);
weft_dtype wfi_dtype_real(weft_dtype dtype); /* of a complex dtype, the dtype of its parts; otherwise `dtype` */

/*
 * The value of a bool element: 1 if its byte is not 0. weft writes 0 and 1, but memory of other libraries and workers
 * may have any byte. All code that reads a bool as a number reads it with this function. The kernels of GPUs read it as
 * wfi::truth (cuda/kernel.cuh), which has the same rule. Copies keep the byte.
 */
static inline uint8_t wfi_bool_of(uint8_t byte)
{
    return byte != 0;
}

WEFT_END_C
#endif
