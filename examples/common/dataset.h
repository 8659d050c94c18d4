/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.h - images of digits with their labels: from IDX files, or drawn. */
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
 * Reads a part of a data set of the MNIST family: train-images-idx3-ubyte and train-labels-idx1-ubyte in `folder`, or
 * t10k-... of the held-out part, each plain or with .gz. Errors as idx_read's; besides WEFT_ERR_FORMAT where a label is out
 * of range, or where there are not as many labels as images.
 */
WEFT_NODISCARD weft_status dataset_read(const char *folder, dataset_part part, dataset *out, weft_error **error);

/* Draws one (digits.h): the same seed, part and count are the same images. WEFT_ERR_MEMORY. */
WEFT_NODISCARD weft_status dataset_draw(uint64_t seed, dataset_part part, size_t count, dataset *out,
                                        weft_error **error);

void dataset_fini(dataset *data);

#endif
