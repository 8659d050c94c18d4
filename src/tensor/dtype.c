/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c - what is known of each element type. */
#include "tensor/tensor.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [WEFT_FLOAT32] = {"float32", 4}, [WEFT_FLOAT64] = {"float64", 8}, [WEFT_INT64] = {"int64", 8},
    [WEFT_INT32] = {"int32", 4},     [WEFT_UINT8] = {"uint8", 1},     [WEFT_BOOL_DTYPE] = {"bool", 1},
};

bool wfi_dtype_is_valid(weft_dtype dtype)
{
    return (unsigned)dtype < sizeof(dtypes) / sizeof(dtypes[0]);
}

bool wfi_dtype_is_float(weft_dtype dtype)
{
    return dtype == WEFT_FLOAT32 || dtype == WEFT_FLOAT64;
}

size_t weft_dtype_size(weft_dtype dtype)
{
    return wfi_dtype_is_valid(dtype) ? dtypes[dtype].size : 0;
}

const char *weft_dtype_name(weft_dtype dtype)
{
    return wfi_dtype_is_valid(dtype) ? dtypes[dtype].name : "no dtype";
}
