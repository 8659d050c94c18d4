/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.h - images of digits with their labels: read from IDX files, or drawn. */
#ifndef EXAMPLES_DATASET_H
#define EXAMPLES_DATASET_H

#include <weft/status.h>

#define DATASET_SIDE 28
#define DATASET_PIXELS (DATASET_SIDE * DATASET_SIDE)
#define DATASET_CLASSES 10

typedef enum dataset_part {
    DATASET_TRAIN = 0,
    DATASET_HELD_OUT = 1,
} dataset_part;

typedef struct dataset {
    size_t count;
    uint8_t *images; /* [count, DATASET_PIXELS] */
    uint8_t *labels; /* [count], below DATASET_CLASSES */
} dataset;

/*
 * Reads a part of a data set of the MNIST family from `folder`: train-images-idx3-ubyte and train-labels-idx1-ubyte, or
 * t10k-... for the held-out part, each plain or with .gz. Returns the errors of idx_read; also WEFT_ERR_FORMAT if a
 * label is out of range, or if the numbers of labels and images differ.
 */
WEFT_NODISCARD weft_status dataset_read(const char *folder, dataset_part part, dataset *out, weft_error **error);
/* Draws `count` images (digits.h). The same seed, part and count give the same images. WEFT_ERR_MEMORY. */
WEFT_NODISCARD weft_status dataset_draw(uint64_t seed, dataset_part part, size_t count, dataset *out,
                                        weft_error **error);
void dataset_fini(dataset *data);

/* ---- IDX files -------------------------------------------------------------------------------------------------- */

#define IDX_MAX_DIMS 3
#define IDX_MAX_BYTES ((size_t)1 << 30)

typedef struct idx_array {
    int ndim;
    size_t dims[IDX_MAX_DIMS];
    size_t size; /* bytes: the product of the dimensions */
    uint8_t *data;
} idx_array;

/*
 * The shape that the caller accepts: the number of dimensions, and the size of each, or 0 for any size of at least 1.
 */
typedef struct idx_shape {
    int ndim;
    size_t dims[IDX_MAX_DIMS];
} idx_shape;

/*
 * Reads an IDX file of unsigned bytes, plain or gzipped, of at most IDX_MAX_BYTES. The format is big-endian: two zero
 * bytes, the type (8: unsigned byte), the number of dimensions, the size of each dimension, then the bytes and nothing
 * else. Every field is checked before it is used, so a file from an untrusted source is safe to read.
 *
 * WEFT_ERR_NOT_FOUND, WEFT_ERR_IO, WEFT_ERR_FORMAT (malformed, or of another shape), WEFT_ERR_MEMORY. `error` receives
 * one line with the file's name, what was expected and what was found; the caller releases it.
 */
WEFT_NODISCARD weft_status idx_read(const char *path, idx_shape expected, idx_array *out, weft_error **error);
void idx_fini(idx_array *array);

#endif
