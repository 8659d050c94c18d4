/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_read.c - reads a file of tensors. It never seeks, so the file may be a pipe. */
#include "file/safetensors.h"

#include "base/codec.h"
#include "base/text/refuse.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are read as they lie in memory: little-endian"
#endif

#define CHUNK ((size_t)1 << 20)
#define SUM_BYTES crypto_generichash_BYTES

weft_status wfi_file_read(FILE *stream, const char *path, void *into, size_t size, weft_error **error)
{
    if (size == 0 || fread(into, 1, size, stream) == size)
        return WEFT_OK;
    if (ferror(stream))
        return wfi_refuse_to(error, WEFT_ERR_IO, "cannot read \"%s\": %s", path, strerror(errno));
    return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\" ends too early", path);
}

weft_status wfi_file_open(const char *path, FILE **stream, uint8_t head[WFI_SAFETENSORS_HEAD], weft_error **error)
{
    FILE *opened = fopen(path, "rb");
    if (!opened)
        return wfi_refuse_to(error, errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_IO, "cannot open \"%s\": %s", path,
                             strerror(errno));
    weft_status status = wfi_file_read(opened, path, head, WFI_SAFETENSORS_HEAD, error);
    if (status == WEFT_OK)
        *stream = opened;
    else
        fclose(opened);
    return status;
}

/* The size of a regular file. False: the stream is not one. */
static bool plain_size(FILE *stream, uint64_t *size)
{
    struct stat found;
    if (fstat(fileno(stream), &found) != 0 || !S_ISREG(found.st_mode))
        return false;
    *size = (uint64_t)found.st_size;
    return true;
}

/* Returns the text of the header, with a NUL after it. Memory is allocated as the bytes arrive, not for the length that
 * the file claims. Failure: NULL, and *status is set. */
static char *read_text(const wfi_safetensors *file, size_t size, weft_status *status, weft_error **error)
{
    char *text = NULL;
    for (size_t got = 0, next; got < size; got = next) {
        next = got + CHUNK < size ? got + CHUNK : size;
        char *more = realloc(text, next + 1);
        *status = !more ? wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", file->path)
                        : wfi_file_read(file->stream, file->path, more + got, next - got, error);
        text = more ? more : text;
        if (*status != WEFT_OK || !text) {
            free(text);
            return NULL;
        }
    }
    if (text)
        text[size] = 0;
    return text;
}

weft_status wfi_safetensors_open(wfi_safetensors *file, FILE *stream, const char *path,
                                 const uint8_t head[WFI_SAFETENSORS_HEAD], weft_error **error)
{
    wfi_reader r;
    uint64_t size, there = 0;
    weft_status status = WEFT_OK;
    *file = (wfi_safetensors){.stream = stream, .path = path};
    wfi_reader_init(&r, head, WFI_SAFETENSORS_HEAD);
    size = wfi_read_u64(&r);
    if (size < 2 || size > WFI_SAFETENSORS_HEADER_MAX)
        return wfi_refuse_to(error, WEFT_ERR_FORMAT,
                             "\"%s\" is no safetensors file: its header would have %llu bytes, not 2 to 100,000,000",
                             path, (unsigned long long)size);
    bool is_plain = plain_size(stream, &there);
    if (is_plain && there < WFI_SAFETENSORS_HEAD + size)
        return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\" ends too early: it has %llu bytes, its header alone %llu",
                             path, (unsigned long long)there, (unsigned long long)size);
    char *text = read_text(file, size, &status, error);
    if (!text)
        return status;
    status = wfi_safetensors_parse(file, text, size, error);
    free(text);
    if (status == WEFT_OK && is_plain && there - WFI_SAFETENSORS_HEAD - size != file->size)
        return wfi_refuse_to(
            error, WEFT_ERR_FORMAT, "\"%s\" %s: it has %llu bytes of elements, its header says %llu", path,
            there - WFI_SAFETENSORS_HEAD - size < file->size ? "ends too early" : "goes on after its end",
            (unsigned long long)(there - WFI_SAFETENSORS_HEAD - size), (unsigned long long)file->size);
    return status;
}

/* The format has only 0 and 1 as bools, which the writer makes of any other byte. Another byte is damage. */
static weft_status check_bools(const wfi_safetensors *file, const wfi_safetensors_entry *e, weft_error **error)
{
    char name[WFI_SHOWN];
    const uint8_t *data = weft_tensor_data(e->tensor);
    for (uint64_t i = 0; e->dtype == WEFT_DTYPE_BOOL && i < e->size; i++)
        if (data[i] > 1)
            return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\": element %llu of tensor \"%s\" is %d, no bool",
                                 file->path, (unsigned long long)i, wfi_shown(e->name, name), data[i]);
    return WEFT_OK;
}

static weft_status read_tensor(const wfi_safetensors *file, wfi_safetensors_entry *e, crypto_generichash_state *sum,
                               weft_error **error)
{
    char name[WFI_SHOWN];
    e->tensor = wfi_tensor_empty(e->shape, e->dtype, NULL);
    if (!e->tensor)
        return wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while reading \"%s\": tensor \"%s\" has %llu bytes",
                             file->path, wfi_shown(e->name, name), (unsigned long long)e->size);
    if (e->size == 0)
        return WEFT_OK;
    weft_status status = wfi_file_read(file->stream, file->path, weft_tensor_data(e->tensor), e->size, error);
    if (status != WEFT_OK)
        return status;
    if (sum)
        crypto_generichash_update(sum, weft_tensor_data(e->tensor), e->size);
    return check_bools(file, e, error);
}

static weft_status check_sum(const wfi_safetensors *file, crypto_generichash_state *sum, const char *wanted,
                             weft_error **error)
{
    uint8_t bytes[SUM_BYTES];
    char text[2 * SUM_BYTES + 1];
    crypto_generichash_final(sum, bytes, sizeof(bytes));
    sodium_bin2hex(text, sizeof(text), bytes, sizeof(bytes));
    if (strcmp(text, wanted) == 0)
        return WEFT_OK;
    return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\" is damaged: its checksum does not match", file->path);
}

weft_status wfi_safetensors_read(wfi_safetensors *file, weft_error **error)
{
    weft_status status = WEFT_OK;
    crypto_generichash_state sum;
    const char *wanted = wfi_safetensors_text(file, WFI_SAFETENSORS_SUM_KEY);
    crypto_generichash_init(&sum, NULL, 0, SUM_BYTES);
    for (size_t i = 0; i < file->count && status == WEFT_OK; i++)
        status = read_tensor(file, &file->entries[i], wanted ? &sum : NULL, error);
    if (status == WEFT_OK && wanted)
        status = check_sum(file, &sum, wanted, error);
    if (status == WEFT_OK && fgetc(file->stream) != EOF)
        status = wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\" goes on after its end", file->path);
    return status;
}
