/* SPDX-License-Identifier: Apache-2.0 */
/* shape.c - arithmetic on shapes, checked for overflow; shapes as text. */
#include "tensor/print.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

weft_status wfi_shape_check(const weft_shape *shape, int64_t *numel)
{
    if (shape->ndim < 0 || shape->ndim > WEFT_MAX_DIMS)
        return WEFT_ERR_SHAPE;
    int64_t product = 1;
    bool empty = false;
    for (int d = 0; d < shape->ndim; d++)
        if (shape->dims[d] < 0)
            return WEFT_ERR_SHAPE;
    for (int d = 0; d < shape->ndim; d++) {
        /* Sizes beside a 0 are multiplied too, because the strides must fit. */
        if (shape->dims[d] == 0)
            empty = true;
        else if (__builtin_mul_overflow(product, shape->dims[d], &product))
            return WEFT_ERR_TOO_LARGE;
    }
    *numel = empty ? 0 : product;
    return WEFT_OK;
}

bool wfi_shape_numel(const weft_shape *shape, int64_t *numel)
{
    return wfi_shape_check(shape, numel) == WEFT_OK;
}

bool wfi_shape_equal(const weft_shape *a, const weft_shape *b)
{
    return a->ndim == b->ndim && memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof(a->dims[0])) == 0;
}

void wfi_shape_strides(const weft_shape *shape, int64_t strides[WEFT_MAX_DIMS])
{
    int64_t step = 1;
    for (int d = shape->ndim - 1; d >= 0; d--) {
        strides[d] = step;
        step *= shape->dims[d] > 0 ? shape->dims[d] : 1;
    }
}

weft_status wfi_shape_infer(int64_t numel, weft_shape *shape)
{
    if (shape->ndim < 0 || shape->ndim > WEFT_MAX_DIMS)
        return WEFT_ERR_SHAPE;
    weft_shape known = *shape;
    int unknown = -1;
    for (int d = 0; d < shape->ndim; d++) {
        if (shape->dims[d] != -1)
            continue;
        if (unknown >= 0)
            return WEFT_ERR_SHAPE;
        unknown = d;
        known.dims[d] = 1;
    }
    int64_t product;
    if (!wfi_shape_numel(&known, &product))
        return WEFT_ERR_SHAPE;
    if (unknown < 0)
        return product == numel ? WEFT_OK : WEFT_ERR_SHAPE;
    if (product == 0 || numel % product != 0)
        return WEFT_ERR_SHAPE;
    shape->dims[unknown] = numel / product;
    return WEFT_OK;
}

bool wfi_dim_wrap(int ndim, int *dim)
{
    int wrapped = *dim < 0 ? *dim + ndim : *dim;
    if (wrapped < 0 || wrapped >= ndim)
        return false;
    *dim = wrapped;
    return true;
}

const char *wfi_shape_text(const weft_shape *shape, char text[WFI_SHAPE_TEXT])
{
    if (shape->ndim < 0 || shape->ndim > WEFT_MAX_DIMS) {
        snprintf(text, WFI_SHAPE_TEXT, "a shape of %d dimensions (0 to %d)", shape->ndim, WEFT_MAX_DIMS);
        return text;
    }
    size_t at = (size_t)snprintf(text, WFI_SHAPE_TEXT, "[");
    for (int i = 0; i < shape->ndim && at < WFI_SHAPE_TEXT; i++)
        at += (size_t)snprintf(text + at, WFI_SHAPE_TEXT - at, "%s%lld", i ? ", " : "", (long long)shape->dims[i]);
    if (at < WFI_SHAPE_TEXT)
        snprintf(text + at, WFI_SHAPE_TEXT - at, "]");
    return text;
}
