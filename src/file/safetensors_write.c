/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write.c - writes a file of tensors in one pass. At the end it writes the checksum into the header. */
#include "file/safetensors.h"

#include "base/alloc.h"
#include "base/codec.h"
#include "base/nosignal.h"
#include "base/text/json.h"
#include "base/text/json_writer.h"
#include "base/text/output.h"
#include "base/text/refuse.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are written as they lie in memory: little-endian"
#endif

#define SUM_BYTES crypto_generichash_BYTES
#define SUM_DIGITS ((size_t)2 * SUM_BYTES)

typedef struct writing {
    const char *path;
    const wfi_file_tensors *tensors;
    const wfi_file_tensor **order; /* the tensors in the order of the file */
    wfi_output out;
    char *header;
    size_t header_size;
    size_t sum_at; /* offset of the checksum's digits in the header; 0: no checksum */
    crypto_generichash_state sum;
    weft_error **error;
} writing;

static weft_status no_memory(const writing *w)
{
    return wfi_refuse_to(w->error, WEFT_ERR_MEMORY, "out of memory while writing \"%s\"", w->path);
}

/* The order of the file: wide dtypes first; tensors of one width keep the order in which they were given. */
static int by_width(const void *a, const void *b)
{
    const wfi_file_tensor *x = *(const wfi_file_tensor *const *)a, *y = *(const wfi_file_tensor *const *)b;
    size_t wide_x = weft_dtype_size(x->tensor->dtype), wide_y = weft_dtype_size(y->tensor->dtype);
    if (wide_x != wide_y)
        return wide_x > wide_y ? -1 : 1;
    return x < y ? -1 : x > y;
}

static weft_status check_tensor(const writing *w, const wfi_file_tensor *item)
{
    char name[WFI_SHOWN];
    size_t step;
    for (const char *at = item->name; *at != 0; at += step) {
        step = wfi_utf8_size(at);
        if (step == 0)
            return wfi_refuse_to(w->error, WEFT_ERR_INVALID, "cannot write \"%s\": the name \"%s\" is not UTF-8",
                                 w->path, wfi_shown(item->name, name));
    }
    if (strcmp(item->name, "__metadata__") == 0)
        return wfi_refuse_to(w->error, WEFT_ERR_INVALID,
                             "cannot write \"%s\": no tensor may be called \"__metadata__\"", w->path);
    if (!wfi_safetensors_dtype(item->tensor->dtype))
        return wfi_refuse_to(w->error, WEFT_ERR_UNSUPPORTED, "cannot write \"%s\": safetensors has no %s, as \"%s\" is",
                             w->path, weft_dtype_name(item->tensor->dtype), wfi_shown(item->name, name));
    return WEFT_OK;
}

static weft_status put_in_order(writing *w)
{
    size_t count = w->tensors->count;
    weft_status status = WEFT_OK;
    w->order = wfi_calloc(count, sizeof(const wfi_file_tensor *));
    if (!w->order)
        return no_memory(w);
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        w->order[i] = &w->tensors->items[i];
        status = check_tensor(w, w->order[i]);
    }
    if (status == WEFT_OK)
        qsort(w->order, count, sizeof(const wfi_file_tensor *), by_width);
    return status;
}

static void put_tensor(wfi_json *j, const wfi_file_tensor *item, uint64_t *at)
{
    const weft_tensor *tensor = item->tensor;
    wfi_json_open(j, item->name, '{');
    wfi_json_put_text(j, "dtype", wfi_safetensors_dtype(tensor->dtype));
    wfi_json_open(j, "shape", '[');
    for (int i = 0; i < tensor->shape.ndim; i++)
        wfi_json_put_number(j, NULL, (uint64_t)tensor->shape.dims[i]);
    wfi_json_close(j, ']');
    wfi_json_open(j, "data_offsets", '[');
    wfi_json_put_number(j, NULL, *at);
    *at += weft_tensor_nbytes(tensor);
    wfi_json_put_number(j, NULL, *at);
    wfi_json_close(j, ']');
    wfi_json_close(j, '}');
}

/* Makes the header, with its length before it. The checksum is zeros until put_sum. */
static weft_status make_header(writing *w, bool has_sum)
{
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    _Static_assert(sizeof(zeros) == SUM_DIGITS + 1, "as long as a checksum");
    uint64_t at = 0;
    FILE *stream = open_memstream(&w->header, &w->header_size);
    if (!stream)
        return no_memory(w);
    wfi_json j = {.to = stream, .separated = true};
    fwrite("\0\0\0\0\0\0\0", 1, WFI_SAFETENSORS_HEAD, stream);
    wfi_json_open(&j, NULL, '{');
    wfi_json_open(&j, "__metadata__", '{');
    for (size_t i = 0; i < w->tensors->text_count; i++)
        wfi_json_put_text(&j, w->tensors->texts[i].key, w->tensors->texts[i].value);
    if (has_sum) {
        wfi_json_put_text(&j, WFI_SAFETENSORS_SUM_KEY, zeros);
        w->sum_at = (size_t)ftell(stream) - 1 - SUM_DIGITS;
    }
    wfi_json_close(&j, '}');
    for (size_t i = 0; i < w->tensors->count; i++)
        put_tensor(&j, w->order[i], &at);
    wfi_json_close(&j, '}');
    while (ftell(stream) % 8 != 0) /* the elements begin at a multiple of 8 */
        fputc(' ', stream);
    if (fclose(stream) != 0)
        return no_memory(w);
    uint64_t size = w->header_size - WFI_SAFETENSORS_HEAD;
    memcpy(w->header, &size, sizeof(size));
    return size <= WFI_SAFETENSORS_HEADER_MAX
               ? WEFT_OK
               : wfi_refuse_to(w->error, WEFT_ERR_UNSUPPORTED,
                               "cannot write \"%s\": names and shapes take %llu bytes, over 100,000,000", w->path,
                               (unsigned long long)size);
}

static weft_status cannot_write(const writing *w, int errnum)
{
    return wfi_refuse_to(w->error, WEFT_ERR_IO, "cannot write \"%s\": %s", w->path, wfi_nosignal_strerror(errnum));
}

static weft_status put(const writing *w, const void *data, size_t size)
{
    int errnum = wfi_output_write(&w->out, data, size);
    return errnum ? cannot_write(w, errnum) : WEFT_OK;
}

static weft_status put_elements(writing *w, weft_tensor *tensor)
{
    weft_tensor *here = wfi_tensor_to_device(tensor, (weft_device){WEFT_DEVICE_CPU, 0}, NULL);
    /* A bool of another library may have any byte. The format has 0 and 1, as the uint8 has that it converts to. */
    weft_tensor *packed = tensor->dtype == WEFT_DTYPE_BOOL ? wfi_tensor_to(here, WEFT_DTYPE_UINT8, NULL)
                                                           : wfi_tensor_contiguous(here, NULL);
    weft_tensor_unref(here);
    if (!packed)
        return no_memory(w);
    size_t size = weft_tensor_nbytes(packed);
    if (size > 0 && w->sum_at > 0)
        crypto_generichash_update(&w->sum, weft_tensor_data(packed), size);
    weft_status status = put(w, weft_tensor_data(packed), size);
    weft_tensor_unref(packed);
    return status;
}

static weft_status put_sum(writing *w)
{
    uint8_t sum[SUM_BYTES];
    char digits[SUM_DIGITS + 1];
    if (w->sum_at == 0)
        return WEFT_OK;
    crypto_generichash_final(&w->sum, sum, sizeof(sum));
    sodium_bin2hex(digits, sizeof(digits), sum, sizeof(sum));
    int errnum = wfi_output_go_to(&w->out, w->sum_at);
    return errnum ? cannot_write(w, errnum) : put(w, digits, SUM_DIGITS);
}

static weft_status put_all(writing *w)
{
    /* A path that is written directly, such as a pipe, may not be seekable, so it gets no checksum. */
    weft_status status = make_header(w, w->out.beside != NULL);
    if (status == WEFT_OK)
        status = put(w, w->header, w->header_size);
    crypto_generichash_init(&w->sum, NULL, 0, SUM_BYTES);
    for (size_t i = 0; i < w->tensors->count && status == WEFT_OK; i++)
        status = put_elements(w, w->order[i]->tensor);
    return status == WEFT_OK ? put_sum(w) : status;
}

weft_status wfi_safetensors_save(const char *path, const wfi_file_tensors *tensors, weft_error **error)
{
    writing w = {.path = path, .tensors = tensors, .error = error};
    weft_status status = put_in_order(&w);
    int errnum = status == WEFT_OK ? wfi_output_open(&w.out, path) : 0;
    if (errnum)
        status = wfi_refuse_to(error, errnum == ENOMEM ? WEFT_ERR_MEMORY : WEFT_ERR_IO, "cannot write \"%s\": %s", path,
                               wfi_nosignal_strerror(errnum));
    if (status == WEFT_OK) {
        status = put_all(&w);
        errnum = wfi_output_close(&w.out, status == WEFT_OK);
        if (errnum && status == WEFT_OK)
            status = cannot_write(&w, errnum);
    }
    free(w.header);
    free(w.order);
    return status;
}
