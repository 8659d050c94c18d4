/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h - named tensors in a file that others read too: the format safetensors, by Hugging Face.
 *
 *     u64 bytes of the header, little-endian, at most 100,000,000
 *     the header, JSON in UTF-8, filled up with spaces:
 *         {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
 *     the elements, row-major, little-endian, without holes; offsets count from where they begin
 *
 * Ours put the widest dtypes first, so that each tensor lies at a multiple of its element's size, and have the BLAKE2b-256 of the
 * elements among the texts, where they are written to a plain file.
 *
 * Reading trusts nothing: what is wrong is WEFT_ERR_FORMAT, with the path, the tensor and the value.
 */
#ifndef WFI_SAFETENSORS_H
#define WFI_SAFETENSORS_H

#include <weft/tensor.h>

#include <stdio.h>

#define WFI_SAFETENSORS_HEAD 8                 /* bytes before the header */
#define WFI_SAFETENSORS_HEADER_MAX 100000000   /* as in the reference implementation */
#define WFI_SAFETENSORS_SUM_KEY "weft.blake2b" /* the text that has the checksum, in hexadecimal digits */

typedef struct wfi_file_tensor {
    const char *name; /* UTF-8, unique in its file, and not "__metadata__" */
    weft_tensor *tensor;
} wfi_file_tensor;

typedef struct wfi_file_text {
    const char *key, *value;
} wfi_file_text;

typedef struct wfi_file_tensors {
    const wfi_file_tensor *items;
    size_t count;
    const wfi_file_text *texts;
    size_t text_count;
} wfi_file_tensors;

/* Any strides. The file is there as a whole or not at all (base/text/output.h). WEFT_ERR_IO, _MEMORY, _UNSUPPORTED (complex128, which
 * the format does not have), _INVALID (a name that is not UTF-8). */
weft_status wfi_safetensors_save(const char *path, const wfi_file_tensors *tensors, weft_error **error);

typedef struct wfi_safetensors_entry {
    const char *name;
    weft_dtype dtype;
    weft_shape shape;
    uint64_t begin, size; /* in bytes, from the first element of the file */
    weft_tensor *tensor;  /* one reference; NULL before wfi_safetensors_read */
} wfi_safetensors_entry;

typedef struct wfi_safetensors {
    FILE *stream; /* borrowed */
    const char *path;
    wfi_safetensors_entry *entries; /* by `begin` */
    size_t count;
    uint64_t size; /* of all elements, in bytes */
    void *json;    /* names and texts are in it */
} wfi_safetensors;

/*
 * Reads the header from a stream positioned after the first eight bytes, which are `head`; it may be a pipe. `path`
 * is for messages and must outlive the file. After any result, wfi_safetensors_fini may be called. WEFT_ERR_FORMAT,
 * _TYPE (a dtype that weft does not have), _IO, _MEMORY.
 */
weft_status wfi_safetensors_open(wfi_safetensors *file, FILE *stream, const char *path,
                                 const uint8_t head[WFI_SAFETENSORS_HEAD], weft_error **error);
/* The header's text alone. */
weft_status wfi_safetensors_parse(wfi_safetensors *file, const char *text, size_t size, weft_error **error);
/* Reads all tensors, and checks them. It makes tensors of the sizes that the header says: look at those first, if the stream may
 * be a pipe; of a plain file they are no more than its size. */
weft_status wfi_safetensors_read(wfi_safetensors *file, weft_error **error);
const char *wfi_safetensors_text(const wfi_safetensors *file, const char *key); /* NULL: there is none */
void wfi_safetensors_fini(wfi_safetensors *file);

/* Opens a file and reads its first bytes. On failure nothing is open: WEFT_ERR_NOT_FOUND, _IO, _FORMAT (it has no eight bytes). */
weft_status wfi_file_open(const char *path, FILE **stream, uint8_t head[WFI_SAFETENSORS_HEAD], weft_error **error);
/* Reads exactly `size` bytes: WEFT_ERR_FORMAT if the file ends before, WEFT_ERR_IO. */
weft_status wfi_file_read(FILE *stream, const char *path, void *into, size_t size, weft_error **error);

/* A dtype's name in the format, such as "F32"; NULL: it has none. */
const char *wfi_safetensors_dtype(weft_dtype dtype);

#define WFI_SHOWN 80
/* A name from a file as a message may have it: cut, without control characters. Returns `text`. */
const char *wfi_shown(const char *name, char text[WFI_SHOWN]);

#endif
