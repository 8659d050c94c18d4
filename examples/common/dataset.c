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
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define CHUNK_BYTES 65536
#define GZIP_FIRST 0x1f     /* the first byte of a gzip stream */
#define GZIP_RATIO_MAX 1040 /* deflate cannot do better than 1032 : 1 */

typedef struct source {
    FILE *file;
    const char *path;
    size_t file_size;
    bool gzip, ended; /* ended: the last gzip stream */
    z_stream inflater;
    uint8_t chunk[CHUNK_BYTES];
} source;

static weft_status refuse(weft_error **error, weft_status code, const char *path, const char *format, ...)
    WEFT_PRINTF(4, 5);
static weft_status refuse(weft_error **error, weft_status code, const char *path, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    *error = weft_error_create(code, "%s: %s", path, what);
    return code;
}

/* ---- The bytes of an IDX file, inflated if it is gzipped -------------------------------------------------------- */

static weft_status source_start(source *from, weft_error **error)
{
    struct stat info;
    uint8_t magic[2];
    if (fstat(fileno(from->file), &info) != 0)
        return refuse(error, WEFT_ERR_IO, from->path, "cannot be examined: %s", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return refuse(error, WEFT_ERR_IO, from->path, "expected a file, found something else");
    from->file_size = (size_t)info.st_size;
    from->gzip = fread(magic, 1, 2, from->file) == 2 && magic[0] == GZIP_FIRST && magic[1] == 0x8b;
    if (fseek(from->file, 0, SEEK_SET) != 0)
        return refuse(error, WEFT_ERR_IO, from->path, "cannot be read: %s", strerror(errno));
    if (from->gzip && inflateInit2(&from->inflater, 15 + 16) != Z_OK)
        return refuse(error, WEFT_ERR_MEMORY, from->path, "out of memory");
    return WEFT_OK;
}

static weft_status source_open(const char *path, source **out, weft_error **error)
{
    source *from = calloc(1, sizeof *from);
    if (!from)
        return refuse(error, WEFT_ERR_MEMORY, path, "out of memory");
    from->path = path;
    from->file = fopen(path, "rbe");
    weft_status st;
    if (!from->file)
        st = refuse(error, errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_IO, path, "cannot be opened: %s",
                    strerror(errno));
    else
        st = source_start(from, error);
    if (!st) {
        *out = from;
        return WEFT_OK;
    }
    if (from->file)
        fclose(from->file);
    free(from);
    return st;
}

static void source_close(source *from)
{
    if (from->gzip)
        inflateEnd(&from->inflater);
    fclose(from->file);
    free(from);
}

/* Reads more compressed bytes for the inflater; false at the end of the file. */
static bool source_refill(source *from)
{
    z_stream *z = &from->inflater;
    if (z->avail_in == 0) {
        z->next_in = from->chunk;
        z->avail_in = (uInt)fread(from->chunk, 1, sizeof from->chunk, from->file);
    }
    return z->avail_in > 0;
}

/* Begins the next gzip stream, if one follows, as in concatenated files. */
static bool source_begin_next(source *from)
{
    return source_refill(from) && *from->inflater.next_in == GZIP_FIRST && inflateReset(&from->inflater) == Z_OK;
}

static weft_status source_inflate(source *from, uint8_t *into, size_t want, size_t *got, weft_error **error)
{
    z_stream *z = &from->inflater;
    z->next_out = into;
    while (*got < want && !from->ended) {
        if (!source_refill(from))
            return refuse(error, WEFT_ERR_FORMAT, from->path, "the gzip stream is cut off");
        z->avail_out = want - *got > 1u << 30 ? 1u << 30 : (uInt)(want - *got);
        uint8_t *before = z->next_out;
        int code = inflate(z, Z_NO_FLUSH);
        *got += (size_t)(z->next_out - before);
        from->ended = code == Z_STREAM_END && !source_begin_next(from);
        if (code != Z_OK && code != Z_STREAM_END)
            return refuse(error, code == Z_MEM_ERROR ? WEFT_ERR_MEMORY : WEFT_ERR_FORMAT, from->path,
                          "the gzip stream is damaged: %s", z->msg ? z->msg : zError(code));
    }
    return WEFT_OK;
}

/* Reads up to `want` bytes; *got is less only at the end of the data. */
static weft_status source_read(source *from, uint8_t *into, size_t want, size_t *got, weft_error **error)
{
    *got = 0;
    if (from->gzip) {
        weft_status st = source_inflate(from, into, want, got, error);
        if (st)
            return st;
    } else {
        *got = fread(into, 1, want, from->file);
    }
    if (ferror(from->file))
        return refuse(error, WEFT_ERR_IO, from->path, "cannot be read: %s", strerror(errno));
    return WEFT_OK;
}

/*
 * Checks that nothing follows the data, neither more data nor bytes after the last gzip stream. Also checks its
 * checksum.
 */
static weft_status source_end(source *from, size_t expected, weft_error **error)
{
    uint8_t more;
    size_t got;
    weft_status st = source_read(from, &more, 1, &got, error);
    if (st)
        return st;
    if (got > 0)
        return refuse(error, WEFT_ERR_FORMAT, from->path, "expected %zu bytes, found more behind them", expected);
    if (from->gzip && source_refill(from))
        return refuse(error, WEFT_ERR_FORMAT, from->path,
                      "expected the end of the file behind the gzip stream, found "
                      "more");
    return WEFT_OK;
}

/* ---- The IDX format --------------------------------------------------------------------------------------------- */

static weft_status read_exactly(source *from, uint8_t *into, size_t want, const char *what, weft_error **error)
{
    size_t got;
    weft_status st = source_read(from, into, want, &got, error);
    if (!st && got < want)
        return refuse(error, WEFT_ERR_FORMAT, from->path, "expected %zu bytes of %s, found %zu", want, what, got);
    return st;
}

static weft_status read_dims(source *from, idx_shape expected, idx_array *array, weft_error **error)
{
    uint8_t bytes[4 * IDX_MAX_DIMS];
    weft_status st = read_exactly(from, bytes, 4 * (size_t)array->ndim, "dimensions", error);
    if (st)
        return st;
    array->size = 1;
    for (int d = 0; d < array->ndim; d++) {
        const uint8_t *b = bytes + 4 * d;
        array->dims[d] = (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
        if (array->dims[d] == 0)
            return refuse(error, WEFT_ERR_FORMAT, from->path, "expected a size of at least 1, found dimension %d of 0",
                          d);
        if (expected.dims[d] && array->dims[d] != expected.dims[d])
            return refuse(error, WEFT_ERR_FORMAT, from->path, "expected dimension %d to be %zu, found %zu", d,
                          expected.dims[d], array->dims[d]);
        if (__builtin_mul_overflow(array->size, array->dims[d], &array->size))
            return refuse(error, WEFT_ERR_FORMAT, from->path, "the dimensions are more than memory has addresses");
    }
    return WEFT_OK;
}

static weft_status read_header(source *from, idx_shape expected, idx_array *array, weft_error **error)
{
    uint8_t magic[4];
    weft_status st = read_exactly(from, magic, sizeof magic, "header", error);
    if (st)
        return st;
    if (magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || magic[3] != expected.ndim)
        return refuse(error, WEFT_ERR_FORMAT, from->path, "expected the magic number 0000080%d, found %02x%02x%02x%02x",
                      expected.ndim, magic[0], magic[1], magic[2], magic[3]);
    array->ndim = expected.ndim;
    return read_dims(from, expected, array, error);
}

/* Checks, before memory is allocated, that a file of this size can have the dimensions of its header. */
static weft_status check_size(const source *from, const idx_array *array, weft_error **error)
{
    size_t header = 4 + 4 * (size_t)array->ndim;
    if (!from->gzip && from->file_size - header != array->size)
        return refuse(error, WEFT_ERR_FORMAT, from->path, "expected %zu bytes after the header, found %zu", array->size,
                      from->file_size - header);
    if (from->gzip && array->size / GZIP_RATIO_MAX > from->file_size)
        return refuse(error, WEFT_ERR_FORMAT, from->path,
                      "expected %zu bytes after the header, found a file too small to hold them", array->size);
    return WEFT_OK;
}

static weft_status read_array(source *from, idx_shape expected, idx_array *array, weft_error **error)
{
    weft_status st = read_header(from, expected, array, error);
    if (!st)
        st = check_size(from, array, error);
    if (st)
        return st;
    array->data = malloc(array->size);
    if (!array->data)
        return refuse(error, WEFT_ERR_MEMORY, from->path, "out of memory for %zu bytes", array->size);
    st = read_exactly(from, array->data, array->size, "data", error);
    return st ? st : source_end(from, array->size, error);
}

weft_status idx_read(const char *path, idx_shape expected, idx_array *out, weft_error **error)
{
    idx_array array = {0};
    source *from = NULL;
    weft_status st = source_open(path, &from, error);
    if (st)
        return st;
    st = read_array(from, expected, &array, error);
    source_close(from);
    if (st)
        idx_fini(&array);
    else
        *out = array;
    return st;
}

void idx_fini(idx_array *array)
{
    free(array->data);
    *array = (idx_array){0};
}

/* ---- The data set ----------------------------------------------------------------------------------------------- */

static const char *const prefixes[] = {[DATASET_TRAIN] = "train", [DATASET_HELD_OUT] = "t10k"};

/* Finds the plain file if it exists, else the compressed one. */
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
