/* SPDX-License-Identifier: Apache-2.0 */
/* print.c - reads single elements, and prints tensors as text. */
#include "tensor/print.h"

#include "base/nosignal.h"
#include "tensor/cell.h"
#include "tensor/copy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TENSORS_NAMED 4 /* named in a message about a longer list */

#define PRINTED_MAX 1000 /* elements; tensors with more are abridged */
#define EDGE 3           /* shown at each end of an abridged dimension */

#define ELEMENT_MAX 16 /* bytes of the largest dtype */

/* Copies the element with row-major index `index` to `out`. False: the index is outside of the tensor, or the device
 * failed. */
static bool element(const weft_tensor *tensor, int64_t index, void *out)
{
    if (index < 0 || index >= tensor->numel)
        return false;
    int64_t at = tensor->offset;
    for (int d = tensor->shape.ndim - 1; d >= 0; d--) {
        at += index % tensor->shape.dims[d] * tensor->strides[d];
        index /= tensor->shape.dims[d];
    }
    size_t size = weft_dtype_size(tensor->dtype);
    if (wfi_storage_kind(tensor->storage) == WFI_MEMORY_CUDA)
        return wfi_memory_read(tensor->storage, (size_t)at * size, out, size) == WEFT_OK;
    memcpy(out, (const char *)wfi_storage_data(tensor->storage) + (size_t)at * size, size);
    return true;
}

/* Reads one element and converts it to dtype `as`; of a complex number the real part, which is stored first. *value
 * does not change if there is no such element. */
static void get(const weft_tensor *tensor, int64_t index, weft_dtype as, void *value)
{
    if (!tensor)
        return;
    const weft_tensor *now = wfi_tensor_hold(tensor);
    _Alignas(ELEMENT_MAX) char data[ELEMENT_MAX];
    if (element(now, index, data))
        (void)wfi_convert_one(wfi_dtype_real(now->dtype), data, as, value);
    wfi_tensor_release(tensor);
}

double weft_tensor_get_f64(const weft_tensor *tensor, int64_t index)
{
    WFI_CHECK_HANDLE(tensor);
    double value = 0;
    get(tensor, index, WEFT_DTYPE_FLOAT64, &value);
    return value;
}

int64_t weft_tensor_get_i64(const weft_tensor *tensor, int64_t index)
{
    WFI_CHECK_HANDLE(tensor);
    int64_t value = 0;
    get(tensor, index, WEFT_DTYPE_INT64, &value);
    return value;
}

/* Prints as "%.6g" in the C locale. The user's locale may have another decimal point, of several bytes. */
static void print_number(double value, bool signs, FILE *to)
{
    char text[64];
    snprintf(text, sizeof(text), signs ? "%+.6g" : "%.6g", value);
    for (const char *at = text; *at;) {
        size_t kept = strspn(at, "+-0123456789abcdefghijklmnopqrstuvwxyz");
        fwrite(at, 1, kept, to);
        at += kept;
        if (*at)
            fputc('.', to);
        at += strcspn(at, "+-0123456789abcdefghijklmnopqrstuvwxyz");
    }
}

static void print_complex(weft_dtype part, const char *data, FILE *to)
{
    double real = 0, imaginary = 0;
    (void)wfi_convert_one(part, data, WEFT_DTYPE_FLOAT64, &real);
    (void)wfi_convert_one(part, data + weft_dtype_size(part), WEFT_DTYPE_FLOAT64, &imaginary);
    print_number(real, false, to);
    print_number(imaginary, true, to);
    fputc('i', to);
}

/* A device that fails has "?" for each element. */
static void print_element(const weft_tensor *tensor, int64_t index, FILE *to)
{
    _Alignas(ELEMENT_MAX) char data[ELEMENT_MAX];
    wfi_dtype_class class = wfi_dtype_class_of(tensor->dtype);
    double number = 0;
    int64_t whole = 0;
    if (!element(tensor, index, data)) {
        fputc('?', to);
    } else if (class == WFI_CLASS_COMPLEX) {
        print_complex(wfi_dtype_real(tensor->dtype), data, to);
    } else if (class == WFI_CLASS_FLOAT) {
        (void)wfi_convert_one(tensor->dtype, data, WEFT_DTYPE_FLOAT64, &number);
        print_number(number, false, to);
    } else {
        (void)wfi_convert_one(tensor->dtype, data, WEFT_DTYPE_INT64, &whole);
        if (class == WFI_CLASS_BOOL)
            fputs(whole ? "true" : "false", to);
        else
            fprintf(to, "%" PRId64, whole);
    }
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

static void print(const weft_tensor *tensor, FILE *to)
{
    fprintf(to, "%s [", weft_dtype_name(tensor->dtype));
    for (int d = 0; d < tensor->shape.ndim; d++)
        fprintf(to, "%s%" PRId64, d > 0 ? ", " : "", tensor->shape.dims[d]);
    fputs("] ", to);
    if (wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA)
        fprintf(to, "cuda:%d ", wfi_storage_device(tensor->storage));
    if (tensor->numel == 0)
        fputs("[]", to);
    else
        print_block(tensor, 0, 0, to);
    fputc('\n', to);
}

void weft_tensor_print(const weft_tensor *tensor, FILE *to)
{
    WFI_CHECK_HANDLE(tensor);
    wfi_nosignal saved;
    if (!to)
        return;
    weft_tensor *now = tensor ? wfi_tensor_read(tensor) : NULL;
    wfi_nosignal_begin(&saved);
    if (now)
        print(now, to);
    else
        fputs("no tensor\n", to);
    wfi_nosignal_end(&saved);
    weft_tensor_unref(now);
}

void wfi_tensors_text(weft_tensors tensors, char text[WFI_TENSORS_TEXT])
{
    char shape[WFI_SHAPE_TEXT];
    size_t at = 0;
    text[0] = '\0';
    size_t named = tensors.count > TENSORS_NAMED ? TENSORS_NAMED - 1 : tensors.count;
    for (size_t i = 0; i < named && at < WFI_TENSORS_TEXT; i++) {
        const weft_tensor *x = tensors.items[i];
        const char *comma = i ? ", " : "";
        if (!x)
            at += (size_t)snprintf(text + at, WFI_TENSORS_TEXT - at, "%sNULL", comma);
        else
            at += (size_t)snprintf(text + at, WFI_TENSORS_TEXT - at, "%s%s %s", comma, weft_dtype_name(x->dtype),
                                   wfi_shape_text(&x->shape, shape));
    }
    if (named < tensors.count && at < WFI_TENSORS_TEXT)
        snprintf(text + at, WFI_TENSORS_TEXT - at, ", ... %zu in all", tensors.count);
}
