/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idx.h - IDX files of unsigned bytes, the format of the MNIST family, plain or gzipped
 * (in one member or several).
 *
 * Big-endian: two zero bytes, the type (8: unsigned byte), the number of dimensions, the size of each, then the bytes and
 * nothing else. Everything is checked before it is believed; files of any origin are safe to try.
 */
#ifndef EXAMPLES_IDX_H
#define EXAMPLES_IDX_H

#include <weft/status.h>

#define IDX_MAX_DIMS 3

typedef struct idx_array {
    int ndim;
    size_t dims[IDX_MAX_DIMS];
    size_t size; /* bytes: the product of the dimensions */
    uint8_t *data;
} idx_array;

/* What the caller can use: the number of dimensions, and the size of each, or 0 for any from 1 up. */
typedef struct idx_shape {
    int ndim;
    size_t dims[IDX_MAX_DIMS];
} idx_shape;

/*
 * Reads `path`; gzip is told by its first bytes. WEFT_ERR_NOT_FOUND, WEFT_ERR_IO, WEFT_ERR_FORMAT (malformed, or not of
 * the shape asked for), WEFT_ERR_MEMORY. `error` receives one line with the file's name, what was expected and what was
 * found; you release it.
 */
WEFT_NODISCARD weft_status idx_read(const char *path, idx_shape expected, idx_array *out, weft_error **error);
void idx_fini(idx_array *array);

#endif
