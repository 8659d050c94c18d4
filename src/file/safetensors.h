/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h - reads and writes files of named tensors, in the format safetensors of Hugging Face.
 *
 *     u64 bytes of the header, little-endian, at most 100,000,000
 *     the header, JSON in UTF-8, padded with spaces:
 *         {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
 *     the elements, row-major, little-endian, without holes; data_offsets count from the first element
 *
 * weft writes the tensors with the widest dtypes first, so that each tensor begins at a multiple of its element's size.
 * The BLAKE2b-256 of all elements is a text of "__metadata__", except in a file that is written directly, such as a
 * pipe (base/text/output.h).
 *
 * The reading functions trust nothing in a file. If something is wrong, they fail with WEFT_ERR_FORMAT, and the error
 * names the path, the tensor and the value.
 */
#ifndef WFI_SAFETENSORS_H
#define WFI_SAFETENSORS_H

#include <weft/tensor.h>

#include <stdio.h>

#define WFI_SAFETENSORS_HEAD 8                 /* bytes before the header */
#define WFI_SAFETENSORS_HEADER_MAX 100000000   /* as in the reference implementation */
#define WFI_SAFETENSORS_SUM_KEY "weft.blake2b" /* key of the checksum in "__metadata__"; hexadecimal */

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

/* Writes a file, completely or not at all (base/text/output.h). The tensors may have any strides. WEFT_ERR_IO, _MEMORY,
 * _UNSUPPORTED (complex128, which the format lacks, or a header that is too long), _INVALID (a name that is not UTF-8).
 */
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
    wfi_safetensors_entry *entries; /* ordered by `begin` */
    size_t count;
    uint64_t size; /* of the elements of all tensors, in bytes */
    void *json;    /* owns the names and texts */
} wfi_safetensors;

/*
 * Reads the header. `head` has the first eight bytes of the file, and the stream is positioned after them; it may be a
 * pipe. `path` is for messages and must outlive `file`. wfi_safetensors_fini may be called after success and failure.
 * WEFT_ERR_FORMAT, _TYPE (a dtype that weft does not have), _IO, _MEMORY.
 */
weft_status wfi_safetensors_open(wfi_safetensors *file, FILE *stream, const char *path,
                                 const uint8_t head[WFI_SAFETENSORS_HEAD], weft_error **error);
/* Parses the text of a header; wfi_safetensors_open reads it from the stream and calls this. */
weft_status wfi_safetensors_parse(wfi_safetensors *file, const char *text, size_t size, weft_error **error);
/* Reads all tensors, and checks them. It allocates tensors of the sizes in the header. If the file is a regular one,
 * these are together no larger than the file. If the stream may be a pipe, check the sizes before the call. */
weft_status wfi_safetensors_read(wfi_safetensors *file, weft_error **error);
/* The text of `key` in "__metadata__"; NULL: no such key. */
const char *wfi_safetensors_text(const wfi_safetensors *file, const char *key);
void wfi_safetensors_fini(wfi_safetensors *file);

/* Opens a file and reads its first eight bytes. After a failure nothing is open. WEFT_ERR_NOT_FOUND, _IO, _FORMAT (the
 * file has fewer bytes). */
weft_status wfi_file_open(const char *path, FILE **stream, uint8_t head[WFI_SAFETENSORS_HEAD], weft_error **error);
/* Reads exactly `size` bytes. WEFT_ERR_FORMAT if the file ends earlier, WEFT_ERR_IO. */
weft_status wfi_file_read(FILE *stream, const char *path, void *into, size_t size, weft_error **error);

/* The name of a dtype in the format, such as "F32". NULL: the format lacks the dtype. */
const char *wfi_safetensors_dtype(weft_dtype dtype);

#define WFI_SHOWN 80
/* Makes a name from a file safe for a message: shortens it, and replaces control characters. Returns `text`. */
const char *wfi_shown(const char *name, char text[WFI_SHOWN]);

#endif
