/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_header.c - parses the JSON of an untrusted header; names, dtypes, shapes and offsets must match. */
#include "file/safetensors.h"

#include "base/alloc.h"
#include "base/text/json.h"
#include "base/text/refuse.h"
#include "base/utf8.h"
#include "tensor/print.h"
#include "tensor/tensor.h"

#include <cjson/cJSON.h> /* cJSON_ParseWithLengthOpts */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"
#define DEPTH_MAX 16
#define VALUES_MAX 4000000           /* each takes about 80 bytes while the header is parsed */
#define WHOLE_MAX 9007199254740992.0 /* 2^53: cJSON stores numbers as float64 */

static const char *const dtype_names[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = "F32",   [WEFT_DTYPE_FLOAT64] = "F64",   [WEFT_DTYPE_INT64] = "I64",
    [WEFT_DTYPE_INT32] = "I32",     [WEFT_DTYPE_UINT8] = "U8",      [WEFT_DTYPE_INT8] = "I8",
    [WEFT_DTYPE_BOOL] = "BOOL",     [WEFT_DTYPE_FLOAT16] = "F16",   [WEFT_DTYPE_INT16] = "I16",
    [WEFT_DTYPE_BFLOAT16] = "BF16", [WEFT_DTYPE_COMPLEX64] = "C64",
};

const char *wfi_safetensors_dtype(weft_dtype dtype)
{
    return wfi_dtype_is_valid(dtype) ? dtype_names[dtype] : NULL;
}

static bool dtype_of(const char *name, weft_dtype *dtype)
{
    for (unsigned i = 0; i < WFI_DTYPES; i++)
        if (dtype_names[i] && strcmp(dtype_names[i], name) == 0) {
            *dtype = (weft_dtype)i;
            return true;
        }
    return false;
}

const char *wfi_shown(const char *name, char text[WFI_SHOWN])
{
    int size = wfi_utf8_fit(name, WFI_SHOWN - 4);
    for (int i = 0; i < size; i++)
        text[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i];
    snprintf(text + size, (size_t)(WFI_SHOWN - size), "%s", name[size] != 0 ? "..." : "");
    return text;
}

/* ---- Checks of the text, before cJSON parses it ---- */

typedef struct scan {
    bool in_string;
    int depth;
    size_t values;
    const char *key;   /* the last string directly inside the outermost braces; points to its quotation mark */
    bool in_metadata;  /* the scan is between the braces of "__metadata__" */
    size_t null_count; /* number of characters 0 in the texts of "__metadata__" */
    char number;       /* 0: not inside a number; '0': in a number that began with 0; '1': in another number */
} scan;

/* Accepts only digits, without a leading 0: the numbers of the format are sizes. cJSON would accept 1e0, 1.0, -0 and
 * 01. Returns NULL or what is wrong. */
static const char *scan_number(scan *s, char byte)
{
    static const char *const odd = "has a number that is not written as a whole one";
    bool is_digit = byte >= '0' && byte <= '9';
    if (strchr("+-.", byte) || (s->number != 0 && (byte == 'e' || byte == 'E')) || (s->number == '0' && is_digit))
        return odd;
    s->number = !is_digit ? 0 : s->number == 0 && byte == '0' ? '0' : '1';
    return NULL;
}

/* Scans a bracket outside of strings. Returns false if brackets are nested too deep. */
static bool scan_bracket(scan *s, char bracket)
{
    bool opens = bracket == '{' || bracket == '[';
    s->depth += opens ? 1 : -1;
    if (opens && s->depth == 2)
        s->in_metadata = s->key && strncmp(s->key, "\"" METADATA "\"", strlen(METADATA) + 2) == 0;
    if (!opens && s->depth <= 1)
        s->in_metadata = false;
    return s->depth <= DEPTH_MAX;
}

/* Scans a backslash in a string. A character 0 would end a name early, so only the texts of "__metadata__" may have
 * one. */
static const char *scan_escape(scan *s, const char *at, const char *end, size_t *step)
{
    bool is_null = end - at >= 6 && strncmp(at + 1, "u0000", 5) == 0;
    if (is_null && !s->in_metadata)
        return "has a character 0";
    s->null_count += is_null;
    *step = end - at > 1 && (unsigned char)at[1] < 0x80 ? 2 : 1;
    return NULL;
}

/* Scans the character at `at`. Returns NULL or what is wrong. *step: how many bytes were scanned. */
static const char *scan_byte(scan *s, const char *at, const char *end, size_t *step)
{
    *step = wfi_utf8_size(at);
    if (*step == 0 || *step > (size_t)(end - at))
        return "is not UTF-8";
    if (*at == 0)
        return "has a byte 0";
    if (s->in_string && (unsigned char)*at < 0x20)
        return "has a control character in a string";
    const char *odd = s->in_string ? NULL : scan_number(s, *at);
    if (odd)
        return odd;
    if (*at == '"') {
        s->in_string = !s->in_string;
        s->key = s->in_string && s->depth == 1 ? at : s->key;
    } else if (s->in_string && *at == '\\')
        return scan_escape(s, at, end, step);
    else if (!s->in_string && strchr("{}[]", *at)) {
        if (!scan_bracket(s, *at))
            return "is nested deeper than 16 brackets";
    } else if (!s->in_string && *at == ',' && ++s->values > VALUES_MAX)
        return "has more than 4,000,000 values";
    return NULL;
}

/* Checks the text before cJSON parses it: UTF-8, depth, numbers, number of values. It ends with a NUL, so that an
 * incomplete UTF-8 sequence at its end is detected. *null_count: the number of characters 0 in the metadata. */
static weft_status scan_header(const wfi_safetensors *file, const char *text, size_t size, size_t *null_count,
                               weft_error **error)
{
    scan s = {0};
    size_t step;
    if (size == 0 || text[0] != '{')
        return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\": the header does not begin with '{'", file->path);
    for (size_t at = 0; at < size; at += step) {
        const char *wrong = scan_byte(&s, text + at, text + size, &step);
        if (wrong)
            return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\": the header %s, at its byte %zu", file->path, wrong,
                                 at);
    }
    *null_count = s.null_count;
    return WEFT_OK;
}

/* Returns a copy in which each character 0 is U+FFFD, because cJSON's strings end at the first character 0. NULL: no
 * memory. */
static char *without_nulls(const char *text, size_t size)
{
    char *copy = wfi_calloc(size + 1, 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, size);
    for (char *at = copy; (at = strchr(at, '\\')) && at[1] != 0; at += 2)
        if (strncmp(at + 1, "u0000", 5) == 0)
            memcpy(at + 1, "ufffd", 5);
    return copy;
}

static weft_status parse_json(wfi_safetensors *file, const char *text, size_t size, weft_error **error)
{
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(text, size, &end, false);
    file->json = json;
    for (; json && end < text + size && strchr(" \t\r\n", *end); end++)
        continue;
    if (json && end == text + size)
        return WEFT_OK;
    return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\": the header is no JSON, or memory is out, at its byte %zu",
                         file->path, end ? (size_t)(end - text) : 0);
}

/* ---- One tensor ---- */

/* The entry that is read now; its errors name it. */
typedef struct reading {
    const wfi_safetensors *file;
    wfi_safetensors_entry *entry;
    weft_error **error;
} reading;

static weft_status wrong(const reading *r, weft_status status, const char *format, ...) WEFT_PRINTF(3, 4);
static weft_status wrong(const reading *r, weft_status status, const char *format, ...)
{
    char name[WFI_SHOWN], text[256];
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(text, sizeof(text), format, args);
    va_end(args);
    return wfi_refuse_to(r->error, status, "\"%s\": tensor \"%s\" %s", r->file->path, wfi_shown(r->entry->name, name),
                         text);
}

/* Returns the value of `key`. If the key is not there exactly once: NULL, and *status is set. */
static const cJSON *field(const reading *r, const cJSON *json, const char *key, weft_status *status)
{
    const cJSON *found = NULL;
    for (const cJSON *item = json->child; item; item = item->next) {
        if (strcmp(item->string, key) != 0)
            continue;
        if (found) {
            *status = wrong(r, WEFT_ERR_FORMAT, "has \"%s\" twice", key);
            return NULL;
        }
        found = item;
    }
    if (!found)
        *status = wrong(r, WEFT_ERR_FORMAT, "has no \"%s\"", key);
    return found;
}

static bool whole(const cJSON *json, uint64_t *value)
{
    if (!cJSON_IsNumber(json) || !(json->valuedouble >= 0 && json->valuedouble <= WHOLE_MAX) ||
        json->valuedouble != floor(json->valuedouble))
        return false;
    *value = (uint64_t)json->valuedouble;
    return true;
}

static weft_status read_dtype(const reading *r, const cJSON *json)
{
    weft_status status = WEFT_OK;
    char name[WFI_SHOWN];
    const cJSON *text = field(r, json, "dtype", &status);
    if (!text)
        return status;
    if (!cJSON_IsString(text))
        return wrong(r, WEFT_ERR_FORMAT, "has a \"dtype\" that is no string");
    if (!dtype_of(text->valuestring, &r->entry->dtype))
        return wrong(r, WEFT_ERR_TYPE, "has dtype \"%s\", which weft does not have",
                     wfi_shown(text->valuestring, name));
    return WEFT_OK;
}

static weft_status read_shape(const reading *r, const cJSON *json)
{
    weft_status status = WEFT_OK;
    const cJSON *sizes = field(r, json, "shape", &status);
    weft_shape *shape = &r->entry->shape;
    uint64_t size;
    if (!sizes)
        return status;
    if (!cJSON_IsArray(sizes))
        return wrong(r, WEFT_ERR_FORMAT, "has a \"shape\" that is no array");
    for (const cJSON *item = sizes->child; item; item = item->next) {
        if (shape->ndim == WEFT_MAX_DIMS)
            return wrong(r, WEFT_ERR_FORMAT, "has more than %d dimensions", WEFT_MAX_DIMS);
        if (!whole(item, &size))
            return wrong(r, WEFT_ERR_FORMAT, "has a size in dimension %d that is no whole number up to 2^53",
                         shape->ndim);
        shape->dims[shape->ndim++] = (int64_t)size;
    }
    return WEFT_OK;
}

static weft_status read_offsets(const reading *r, const cJSON *json)
{
    weft_status status = WEFT_OK;
    char text[WFI_SHAPE_TEXT];
    uint64_t begin, end, bytes;
    int64_t numel;
    wfi_safetensors_entry *e = r->entry;
    const cJSON *pair = field(r, json, "data_offsets", &status);
    if (!pair)
        return status;
    if (!cJSON_IsArray(pair) || cJSON_GetArraySize(pair) != 2 || !whole(pair->child, &begin) ||
        !whole(pair->child->next, &end))
        return wrong(r, WEFT_ERR_FORMAT, "has \"data_offsets\" that are not two whole numbers up to 2^53");
    if (begin > end)
        return wrong(r, WEFT_ERR_FORMAT, "begins at %llu and ends at %llu", (unsigned long long)begin,
                     (unsigned long long)end);
    if (!wfi_shape_numel(&e->shape, &numel) ||
        __builtin_mul_overflow((uint64_t)numel, weft_dtype_size(e->dtype), &bytes))
        return wrong(r, WEFT_ERR_FORMAT, "is larger than 2^63 bytes: shape %s", wfi_shape_text(&e->shape, text));
    if (bytes != end - begin)
        return wrong(r, WEFT_ERR_FORMAT, "is %s %s, %llu bytes, but lies from %llu to %llu", weft_dtype_name(e->dtype),
                     wfi_shape_text(&e->shape, text), (unsigned long long)bytes, (unsigned long long)begin,
                     (unsigned long long)end);
    e->begin = begin;
    e->size = bytes;
    return WEFT_OK;
}

static weft_status read_entry(const reading *r, const cJSON *json)
{
    r->entry->name = json->string;
    if (!cJSON_IsObject(json))
        return wrong(r, WEFT_ERR_FORMAT, "is described by something that is no object");
    weft_status status = read_dtype(r, json);
    if (status == WEFT_OK)
        status = read_shape(r, json);
    return status == WEFT_OK ? read_offsets(r, json) : status;
}

/* ---- All tensors ---- */

static const cJSON *metadata_of(const wfi_safetensors *file)
{
    const cJSON *item = file->json ? ((const cJSON *)file->json)->child : NULL;
    while (item && strcmp(item->string, METADATA) != 0)
        item = item->next;
    return item;
}

const char *wfi_safetensors_text(const wfi_safetensors *file, const char *key)
{
    const cJSON *metadata = metadata_of(file);
    for (const cJSON *item = metadata ? metadata->child : NULL; item; item = item->next)
        if (strcmp(item->string, key) == 0)
            return item->valuestring;
    return NULL;
}

static weft_status check_metadata(const wfi_safetensors *file, const cJSON *json, weft_error **error)
{
    char key[WFI_SHOWN];
    if (json != metadata_of(file))
        return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\": the header has \"" METADATA "\" twice", file->path);
    if (!cJSON_IsObject(json))
        return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\": \"" METADATA "\" is no object", file->path);
    for (const cJSON *item = json->child; item; item = item->next)
        if (!cJSON_IsString(item))
            return wfi_refuse_to(error, WEFT_ERR_FORMAT, "\"%s\": \"" METADATA "\" has \"%s\", which is no string",
                                 file->path, wfi_shown(item->string, key));
    return WEFT_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const wfi_safetensors_entry *)a)->name, ((const wfi_safetensors_entry *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const wfi_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->size != y->size ? (x->size < y->size ? -1 : 1) : strcmp(x->name, y->name);
}

/* Checks that names are unique and that elements have no holes and no overlaps. Orders the entries by `begin`. */
static weft_status fit_together(wfi_safetensors *file, weft_error **error)
{
    wfi_safetensors_entry *e = file->entries;
    reading r = {.file = file, .error = error};
    if (file->count > 0)
        qsort(e, file->count, sizeof(*e), by_name);
    for (size_t i = 1; i < file->count; i++) {
        r.entry = &e[i];
        if (strcmp(e[i - 1].name, e[i].name) == 0)
            return wrong(&r, WEFT_ERR_FORMAT, "stands twice in the header");
    }
    if (file->count > 0)
        qsort(e, file->count, sizeof(*e), by_place);
    for (size_t i = 0; i < file->count; i++) {
        r.entry = &e[i];
        if (e[i].begin != file->size)
            return wrong(&r, WEFT_ERR_FORMAT, "begins at %llu, %s at %llu", (unsigned long long)e[i].begin,
                         e[i].begin < file->size ? "inside the one before it, which ends"
                                                 : "behind a hole from the end of the one before it",
                         (unsigned long long)file->size);
        file->size += e[i].size;
    }
    return WEFT_OK;
}

weft_status wfi_safetensors_parse(wfi_safetensors *file, const char *text, size_t size, weft_error **error)
{
    size_t null_count = 0;
    char *copy = NULL;
    weft_status status = scan_header(file, text, size, &null_count, error);
    if (status == WEFT_OK && null_count > 0 && !(copy = without_nulls(text, size)))
        status = wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", file->path);
    if (status == WEFT_OK)
        status = parse_json(file, copy ? copy : text, size, error);
    free(copy);
    if (status != WEFT_OK)
        return status;
    const cJSON *json = file->json;
    file->entries = wfi_calloc((size_t)cJSON_GetArraySize(json) + 1, sizeof(*file->entries));
    if (!file->entries)
        return wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", file->path);
    for (const cJSON *item = json->child; item && status == WEFT_OK; item = item->next) {
        reading r = {.file = file, .entry = &file->entries[file->count], .error = error};
        if (strcmp(item->string, METADATA) == 0) {
            status = check_metadata(file, item, error);
            continue;
        }
        status = read_entry(&r, item);
        file->count++;
    }
    return status == WEFT_OK ? fit_together(file, error) : status;
}

void wfi_safetensors_fini(wfi_safetensors *file)
{
    for (size_t i = 0; i < file->count; i++)
        weft_tensor_unref(file->entries[i].tensor);
    free(file->entries);
    cJSON_Delete(file->json);
    memset(file, 0, sizeof(*file));
}
