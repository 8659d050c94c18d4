/* SPDX-License-Identifier: Apache-2.0 */
/* print.c - single elements, and tensors as text. */
#include "tensor/tensor.h"

#include <inttypes.h>

#define PRINTED_MAX 1000 /* elements; more are abridged */
#define EDGE 3           /* shown at each end of an abridged dimension */

/* The address of the element with that row-major index; NULL outside, in device memory, or without a tensor. */
static const void *element(const weft_tensor *tensor, int64_t index)
{
    if (tensor == NULL || index < 0 || index >= tensor->numel || wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA)
        return NULL;
    int64_t at = 0;
    for (int d = tensor->shape.ndim - 1; d >= 0; d--) {
        at += index % tensor->shape.dims[d] * tensor->strides[d];
        index /= tensor->shape.dims[d];
    }
    return (const char *)wfi_tensor_address(tensor) + at * (int64_t)weft_dtype_size(tensor->dtype);
}

static weft_tensor *one_as(const void *data, weft_dtype from, weft_dtype to)
{
    weft_tensor *one = weft_tensor_copy_of(WEFT_SCALAR, from, data);
    weft_tensor *converted = one != NULL ? weft_tensor_to(one, to) : NULL;
    weft_tensor_unref(one);
    return converted;
}

double weft_tensor_get_f64(const weft_tensor *tensor, int64_t index)
{
    const void *data = element(tensor, index);
    if (data == NULL)
        return 0;
    switch (tensor->dtype) {
    case WEFT_FLOAT32:
        return (double)*(const float *)data;
    case WEFT_FLOAT64:
        return *(const double *)data;
    case WEFT_INT64:
        return (double)*(const int64_t *)data;
    case WEFT_INT32:
        return (double)*(const int32_t *)data;
    case WEFT_UINT8:
    case WEFT_BOOL_DTYPE:
        return (double)*(const uint8_t *)data;
    }
    return 0;
}

int64_t weft_tensor_get_i64(const weft_tensor *tensor, int64_t index)
{
    const void *data = element(tensor, index);
    if (data == NULL)
        return 0;
    switch (tensor->dtype) {
    case WEFT_INT64:
        return *(const int64_t *)data;
    case WEFT_INT32:
        return *(const int32_t *)data;
    case WEFT_UINT8:
    case WEFT_BOOL_DTYPE:
        return *(const uint8_t *)data;
    case WEFT_FLOAT32:
    case WEFT_FLOAT64:
        break;
    }
    weft_tensor *converted = one_as(data, tensor->dtype, WEFT_INT64); /* the one place that knows how floats saturate */
    int64_t value = converted != NULL ? *(const int64_t *)wfi_tensor_address(converted) : 0;
    weft_tensor_unref(converted);
    return value;
}

static void print_element(const weft_tensor *tensor, int64_t index, FILE *to)
{
    if (wfi_dtype_is_float(tensor->dtype))
        fprintf(to, "%.6g", weft_tensor_get_f64(tensor, index));
    else if (tensor->dtype == WEFT_BOOL_DTYPE)
        fputs(weft_tensor_get_i64(tensor, index) ? "true" : "false", to);
    else
        fprintf(to, "%" PRId64, weft_tensor_get_i64(tensor, index));
}

/* Dimension `dim` of the block that starts at row-major `index`; at most WEFT_MAX_DIMS deep. */
static void print_block(const weft_tensor *tensor, int dim, int64_t index, FILE *to)
{
    if (dim == tensor->shape.ndim) {
        print_element(tensor, index, to);
        return;
    }
    int64_t length = tensor->shape.dims[dim], inner = 1;
    bool abridged = tensor->numel > PRINTED_MAX && length > (int64_t)2 * EDGE;
    for (int d = dim + 1; d < tensor->shape.ndim; d++)
        inner *= tensor->shape.dims[d];
    fputc('[', to);
    for (int64_t i = 0; i < length; i++) {
        if (i > 0)
            fputs(", ", to);
        if (abridged && i == EDGE) {
            fputs("..., ", to);
            i = length - EDGE;
        }
        print_block(tensor, dim + 1, index + i * inner, to);
    }
    fputc(']', to);
}

void weft_tensor_print(const weft_tensor *tensor, FILE *to)
{
    if (to == NULL)
        return;
    if (tensor == NULL) {
        fputs("no tensor\n", to);
        return;
    }
    fprintf(to, "%s [", weft_dtype_name(tensor->dtype));
    for (int d = 0; d < tensor->shape.ndim; d++)
        fprintf(to, "%s%" PRId64, d > 0 ? ", " : "", tensor->shape.dims[d]);
    fputs("] ", to);
    if (wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA)
        fprintf(to, "on cuda device %d", wfi_storage_device(tensor->storage));
    else if (tensor->numel == 0)
        fputs("[]", to);
    else
        print_block(tensor, 0, 0, to);
    fputc('\n', to);
}
