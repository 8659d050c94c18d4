/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.c - images of digits with their labels, from IDX files or drawn. */
#include "dataset.h"

#include "digits.h"
#include "random_stream.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static weft_status refuse(weft_error **error, weft_status code, const char *path, const char *format, ...)
    WEFT_PRINTF(4, 5);
static weft_status refuse(weft_error **error, weft_status code, const char *path, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    *error = weft_error_create(code, "%s: %s", path, what);
    return code;
}

/* ---- The IDX format --------------------------------------------------------------------------------------------- */

typedef struct source {
    gzFile file; /* reads plain files too */
    const char *path;
} source;

/* Reads `want` bytes, fewer only at the end of the data. */
static weft_status read_some(const source *from, uint8_t *into, size_t want, size_t *got, weft_error **error)
{
    int count = gzread(from->file, into, (unsigned)want), trouble;
    const char *why = gzerror(from->file, &trouble);
    *got = count > 0 ? (size_t)count : 0;
    if (trouble == Z_ERRNO)
        return refuse(error, WEFT_ERR_IO, from->path, "cannot be read: %s", strerror(errno));
    if (trouble == Z_BUF_ERROR)
        return refuse(error, WEFT_ERR_FORMAT, from->path, "the gzip stream is cut off");
    if (trouble < 0)
        return refuse(error, WEFT_ERR_FORMAT, from->path, "the gzip stream is damaged: %s", why);
    return WEFT_OK;
}

static weft_status read_exactly(const source *from, uint8_t *into, size_t want, const char *what, weft_error **error)
{
    size_t got;
    weft_status status = read_some(from, into, want, &got, error);
    if (!status && got < want)
        return refuse(error, WEFT_ERR_FORMAT, from->path, "expected %zu bytes of %s, found %zu", want, what, got);
    return status;
}

static weft_status read_header(const source *from, idx_shape expected, idx_array *array, weft_error **error)
{
    uint8_t bytes[4 * (1 + IDX_MAX_DIMS)];
    weft_status status = read_exactly(from, bytes, 4 * (1 + (size_t)expected.ndim), "header", error);
    if (status)
        return status;
    if (bytes[0] != 0 || bytes[1] != 0 || bytes[2] != 8 || bytes[3] != expected.ndim)
        return refuse(error, WEFT_ERR_FORMAT, from->path, "expected the magic number 0000080%d, found %02x%02x%02x%02x",
                      expected.ndim, bytes[0], bytes[1], bytes[2], bytes[3]);
    array->ndim = expected.ndim;
    array->size = 1;
    for (int d = 0; d < array->ndim; d++) {
        const uint8_t *b = bytes + 4 + 4 * d;
        array->dims[d] = (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
        if (array->dims[d] == 0)
            return refuse(error, WEFT_ERR_FORMAT, from->path, "expected a size of at least 1, found dimension %d of 0",
                          d);
        if (expected.dims[d] && array->dims[d] != expected.dims[d])
            return refuse(error, WEFT_ERR_FORMAT, from->path, "expected dimension %d to be %zu, found %zu", d,
                          expected.dims[d], array->dims[d]);
        if (array->dims[d] > IDX_MAX_BYTES / array->size)
            return refuse(error, WEFT_ERR_FORMAT, from->path, "expected at most %zu bytes of data, found more",
                          IDX_MAX_BYTES);
        array->size *= array->dims[d];
    }
    return WEFT_OK;
}

static weft_status read_array(const source *from, idx_shape expected, idx_array *array, weft_error **error)
{
    uint8_t more;
    size_t got = 0;
    weft_status status = read_header(from, expected, array, error);
    if (status)
        return status;
    array->data = malloc(array->size);
    if (!array->data)
        return refuse(error, WEFT_ERR_MEMORY, from->path, "out of memory for %zu bytes", array->size);
    status = read_exactly(from, array->data, array->size, "data", error);
    if (!status)
        status = read_some(from, &more, 1, &got, error); /* checks the checksum too */
    if (!status && got > 0)
        return refuse(error, WEFT_ERR_FORMAT, from->path, "expected %zu bytes of data, found more behind them",
                      array->size);
    return status;
}

weft_status idx_read(const char *path, idx_shape expected, idx_array *out, weft_error **error)
{
    idx_array array = {0};
    source from = {.file = gzopen(path, "rbe"), .path = path};
    if (!from.file)
        return refuse(error, errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_IO, path, "cannot be opened: %s",
                      strerror(errno));
    weft_status status = read_array(&from, expected, &array, error);
    gzclose(from.file);
    if (status)
        idx_fini(&array);
    else
        *out = array;
    return status;
}

void idx_fini(idx_array *array)
{
    free(array->data);
    *array = (idx_array){0};
}

/* ---- The data set ----------------------------------------------------------------------------------------------- */

/* Finds the plain file if it exists, else the compressed one. */
static weft_status read_file(const char *folder, dataset_part part, const char *kind, idx_shape shape, idx_array *out,
                             weft_error **error)
{
    static const char *const prefixes[] = {[DATASET_TRAIN] = "train", [DATASET_HELD_OUT] = "t10k"};
    char path[PATH_MAX];
    for (int packed = 0; packed < 2; packed++) {
        snprintf(path, sizeof(path), "%s/%s-%s%s", folder, prefixes[part], kind, packed ? ".gz" : "");
        if (access(path, F_OK) == 0)
            return idx_read(path, shape, out, error);
    }
    *error = weft_error_create(WEFT_ERR_NOT_FOUND, "%s: expected %s-%s there, or the same with .gz; found neither",
                               folder, prefixes[part], kind);
    return WEFT_ERR_NOT_FOUND;
}

static weft_status check_labels(const char *folder, const idx_array *labels, size_t images, weft_error **error)
{
    if (labels->size != images)
        return refuse(error, WEFT_ERR_FORMAT, folder, "expected as many labels as images, %zu, found %zu", images,
                      labels->size);
    for (size_t i = 0; i < labels->size; i++)
        if (labels->data[i] >= DATASET_CLASSES)
            return refuse(error, WEFT_ERR_FORMAT, folder, "expected labels from 0 to %d, found %d at %zu",
                          DATASET_CLASSES - 1, labels->data[i], i);
    return WEFT_OK;
}

weft_status dataset_read(const char *folder, dataset_part part, dataset *out, weft_error **error)
{
    const idx_shape squares = {3, {0, DATASET_SIDE, DATASET_SIDE}};
    idx_array images = {0}, labels = {0};
    weft_status status = read_file(folder, part, "images-idx3-ubyte", squares, &images, error);
    if (!status)
        status = read_file(folder, part, "labels-idx1-ubyte", (idx_shape){1, {0}}, &labels, error);
    if (!status)
        status = check_labels(folder, &labels, images.dims[0], error);
    if (status) {
        idx_fini(&images);
        idx_fini(&labels);
        return status;
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
    for (size_t i = 0; i < count; i++)
        data.labels[i] = (uint8_t)digits_draw(random_key(seed, (uint64_t)part), i, data.images + i * DATASET_PIXELS);
    *out = data;
    return WEFT_OK;
}

void dataset_fini(dataset *data)
{
    free(data->images);
    free(data->labels);
    *data = (dataset){0};
}
