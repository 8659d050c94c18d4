/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c - the properties of each element type. */
#include "tensor/tensor.h"

static const struct {
    const char *name;
    size_t size, align;
    wfi_dtype_class class;
} dtypes[] = {
    [WEFT_DTYPE_FLOAT32] = {"float32", 4, 4, WFI_CLASS_FLOAT},
    [WEFT_DTYPE_FLOAT64] = {"float64", 8, 8, WFI_CLASS_FLOAT},
    [WEFT_DTYPE_INT64] = {"int64", 8, 8, WFI_CLASS_INTEGER},
    [WEFT_DTYPE_INT32] = {"int32", 4, 4, WFI_CLASS_INTEGER},
    [WEFT_DTYPE_UINT8] = {"uint8", 1, 1, WFI_CLASS_INTEGER},
    [WEFT_DTYPE_BOOL] = {"bool", 1, 1, WFI_CLASS_BOOL},
    [WEFT_DTYPE_FLOAT16] = {"float16", 2, 2, WFI_CLASS_FLOAT},
    [WEFT_DTYPE_BFLOAT16] = {"bfloat16", 2, 2, WFI_CLASS_FLOAT},
    [WEFT_DTYPE_INT8] = {"int8", 1, 1, WFI_CLASS_INTEGER},
    [WEFT_DTYPE_INT16] = {"int16", 2, 2, WFI_CLASS_INTEGER},
    [WEFT_DTYPE_COMPLEX64] = {"complex64", 8, 4, WFI_CLASS_COMPLEX},
    [WEFT_DTYPE_COMPLEX128] = {"complex128", 16, 8, WFI_CLASS_COMPLEX},
};
_Static_assert(sizeof(dtypes) / sizeof(dtypes[0]) == WFI_DTYPES, "each dtype has its line");
_Static_assert(WFI_DTYPES <= 0x80, "on the wire, the top bit of a dtype's byte is kept for a flag");

bool wfi_dtype_is_valid(weft_dtype dtype)
{
    return (unsigned)dtype < WFI_DTYPES;
}

bool wfi_dtype_is_float(weft_dtype dtype)
{
    return dtype == WEFT_DTYPE_FLOAT32 || dtype == WEFT_DTYPE_FLOAT64;
}

wfi_dtype_class wfi_dtype_class_of(weft_dtype dtype)
{
    return dtypes[dtype].class;
}

size_t wfi_dtype_align(weft_dtype dtype)
{
    return dtypes[dtype].align;
}

weft_dtype wfi_dtype_real(weft_dtype dtype)
{
    return dtype == WEFT_DTYPE_COMPLEX64    ? WEFT_DTYPE_FLOAT32
           : dtype == WEFT_DTYPE_COMPLEX128 ? WEFT_DTYPE_FLOAT64
                                            : dtype;
}

size_t weft_dtype_size(weft_dtype dtype)
{
    return wfi_dtype_is_valid(dtype) ? dtypes[dtype].size : 0;
}

const char *weft_dtype_name(weft_dtype dtype)
{
    return wfi_dtype_is_valid(dtype) ? dtypes[dtype].name : "no dtype";
}
