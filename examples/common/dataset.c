/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.c - images of digits with their labels. */
#include "dataset.h"

#include "digits.h"
#include "idx.h"
#include "random_stream.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const prefixes[] = {[DATASET_TRAIN] = "train", [DATASET_HELD_OUT] = "t10k"};

/* The plain file if there is one, else the compressed one. */
static weft_status find_file(const char *folder, dataset_part part, const char *kind, char path[PATH_MAX],
                             weft_error **error)
{
    static const char *const endings[] = {"", ".gz"};
    for (size_t i = 0; i < 2; i++) {
        int length = snprintf(path, PATH_MAX, "%s/%s-%s%s", folder, prefixes[part], kind, endings[i]);
        if (length < 0 || length >= PATH_MAX) {
            *error = weft_error_create(WEFT_ERR_INVALID, "%.64s...: the path is too long", folder);
            return WEFT_ERR_INVALID;
        }
        if (access(path, F_OK) == 0)
            return WEFT_OK;
    }
    *error = weft_error_create(WEFT_ERR_NOT_FOUND, "%s: expected %s-%s there, or the same with .gz; found neither",
                               folder, prefixes[part], kind);
    return WEFT_ERR_NOT_FOUND;
}

static weft_status check_labels(const char *path, const idx_array *labels, size_t images, weft_error **error)
{
    if (labels->size != images) {
        *error = weft_error_create(WEFT_ERR_FORMAT, "%s: expected as many labels as images, %zu, found %zu", path,
                                   images, labels->size);
        return WEFT_ERR_FORMAT;
    }
    for (size_t i = 0; i < labels->size; i++) {
        if (labels->data[i] >= DATASET_CLASSES) {
            *error = weft_error_create(WEFT_ERR_FORMAT, "%s: expected labels from 0 to %d, found %d at %zu", path,
                                       DATASET_CLASSES - 1, labels->data[i], i);
            return WEFT_ERR_FORMAT;
        }
    }
    return WEFT_OK;
}

weft_status dataset_read(const char *folder, dataset_part part, dataset *out, weft_error **error)
{
    char path[PATH_MAX];
    idx_array images = {0}, labels = {0};
    weft_status st = find_file(folder, part, "images-idx3-ubyte", path, error);
    if (!st)
        st = idx_read(path, (idx_shape){3, {0, DATASET_SIDE, DATASET_SIDE}}, &images, error);
    if (!st)
        st = find_file(folder, part, "labels-idx1-ubyte", path, error);
    if (!st)
        st = idx_read(path, (idx_shape){1, {0}}, &labels, error);
    if (!st)
        st = check_labels(path, &labels, images.dims[0], error);
    if (st) {
        idx_fini(&images);
        idx_fini(&labels);
        return st;
    }
    *out = (dataset){.count = images.dims[0], .images = images.data, .labels = labels.data};
    return WEFT_OK;
}

weft_status dataset_draw(uint64_t seed, dataset_part part, size_t count, dataset *out, weft_error **error)
{
    dataset data = {.count = count, .images = malloc(count * DATASET_PIXELS), .labels = malloc(count)};
    if (!data.images || !data.labels) {
        dataset_fini(&data);
        *error = weft_error_create(WEFT_ERR_MEMORY, "out of memory for %zu drawn digits", count);
        return WEFT_ERR_MEMORY;
    }
    digits_draw_many(random_key(seed, (uint64_t)part), 0, count, data.images, data.labels);
    *out = data;
    return WEFT_OK;
}

void dataset_fini(dataset *data)
{
    free(data->images);
    free(data->labels);
    *data = (dataset){0};
}
