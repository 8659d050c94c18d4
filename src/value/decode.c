/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c - values on their way in; see decode.h. */
#include "value/decode.h"

#include "base/alloc.h"
#include "value/values.h"
#include "tensor/tensor.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct unpacking {
    wfi_unpack *unpack;
    wfi_reader *meta, *tail;
    const wfi_unpack_options *options;
    size_t tensor_count;
    weft_status status;
} unpacking;

static WEFT_PRINTF(3, 4) void fail(unpacking *u, weft_status status, const char *format, ...)
{
    if (u->status)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(u->unpack->problem, sizeof u->unpack->problem, format, args);
    va_end(args);
    u->status = status;
}

/* Makes room for one more element of `size` bytes in a growing array. */
static bool grow(void **array, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return true;
    size_t larger = *capacity ? *capacity * 2 : 8;
    void *grown = realloc(*array, larger * size);
    if (!grown)
        return false;
    *array = grown;
    *capacity = larger;
    return true;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static bool admit(unpacking *u, weft_dtype dtype, weft_shape shape)
{
    uint64_t bytes = weft_dtype_size(dtype);
    for (int i = 0; i < shape.ndim; i++)
        bytes *= (uint64_t)shape.dims[i]; /* wfi_read_tensor_type saw that it does not overflow */
    char problem[sizeof u->unpack->problem];
    weft_status st = u->options->admit(u->options->admit_arg, bytes, problem, sizeof problem);
    if (st)
        fail(u, st, "%s", problem);
    return !st;
}

static weft_tensor *find_place(unpacking *u, weft_dtype dtype, weft_shape shape)
{
    size_t index = u->tensor_count++;
    weft_tensor *place = u->options->place ? u->options->place(u->options->place_arg, index, dtype, shape) : NULL;
    if (!place && u->options->admit && !admit(u, dtype, shape))
        return NULL;
    if (!place) {
        place = weft_tensor_empty(shape, dtype);
        if (!place)
            fail(u, WEFT_ERR_MEMORY, "no memory for tensor %zu", index);
        return place;
    }
    weft_shape have = weft_tensor_shape(place);
    bool fits = weft_tensor_dtype(place) == dtype && have.ndim == shape.ndim && weft_tensor_is_contiguous(place) &&
                memcmp(have.dims, shape.dims, (size_t)shape.ndim * sizeof *shape.dims) == 0;
    if (!fits) {
        char arrives[WFI_TENSOR_TEXT], waits[WFI_TENSOR_TEXT];
        fail(u, WEFT_ERR_SHAPE, "tensor %zu is %s, its landing place is %s%s", index,
             wfi_tensor_type_text(arrives, dtype, shape), wfi_tensor_type_text(waits, weft_tensor_dtype(place), have),
             weft_tensor_is_contiguous(place) ? "" : ", not contiguous");
        weft_tensor_unref(place);
        return NULL;
    }
    return place;
}

static void copy_here(unpacking *u, wfi_reader *from, weft_tensor *place, uint64_t nbytes)
{
    const uint8_t *bytes = wfi_read_bytes(from, nbytes);
    if (!bytes)
        fail(u, WEFT_ERR_PROTOCOL, "truncated tensor %zu", u->tensor_count - 1);
    else if (nbytes)
        memcpy(weft_tensor_data(place), bytes, nbytes);
    wfi_storage_wrote(place->storage); /* tapes notice that it changed under them */
    u->unpack->copied_bytes += wfi_copied(nbytes);
}

static void add_segment(unpacking *u, weft_tensor *place, uint64_t nbytes)
{
    wfi_unpack *unpack = u->unpack;
    uint64_t address = wfi_read_u64(u->meta), key = wfi_read_u64(u->meta);
    if (!grow((void **)&unpack->segments, unpack->segment_count, &unpack->segment_capacity, sizeof(wfi_segment))) {
        fail(u, WEFT_ERR_MEMORY, "no memory for the list of segments");
        return;
    }
    unpack->segments[unpack->segment_count++] = (wfi_segment){.local = weft_tensor_data(place),
                                                              .storage = place->storage,
                                                              .size = nbytes,
                                                              .remote_address = address,
                                                              .remote_key = key};
}

static void check_landed(unpacking *u, uint64_t nbytes)
{
    uint32_t index = wfi_read_u32(u->meta);
    u->unpack->landed_bytes += nbytes;
    if (index >= u->options->landed_count || index != u->tensor_count - 1)
        fail(u, WEFT_ERR_PROTOCOL, "tensor %zu claims landing place %u of %zu", u->tensor_count - 1, index,
             u->options->landed_count);
}

/* Returns a tensor with a reference, or NULL with the failure kept. */
static weft_tensor *unpack_tensor(unpacking *u)
{
    weft_dtype dtype = WEFT_FLOAT32;
    weft_shape shape = WEFT_SCALAR;
    uint64_t nbytes = 0;
    if (u->tensor_count >= WEFT_MAX_CALL_TENSORS)
        fail(u, WEFT_ERR_TOO_LARGE, "over %d tensors in one call", WEFT_MAX_CALL_TENSORS);
    else if (!wfi_read_tensor_type(u->meta, &dtype, &shape, &nbytes))
        fail(u, WEFT_ERR_PROTOCOL, "malformed type of tensor %zu", u->tensor_count);
    if (u->status)
        return NULL;
    uint8_t road = wfi_read_u8(u->meta);
    /* What is said to be here must be here before memory is taken for it. */
    if ((road == WFI_ROAD_META && nbytes > wfi_reader_left(u->meta)) ||
        (road == WFI_ROAD_PART && nbytes > wfi_reader_left(u->tail)) || road > WFI_ROAD_LANDED) {
        fail(u, WEFT_ERR_PROTOCOL, "truncated tensor %zu", u->tensor_count);
        return NULL;
    }
    weft_tensor *place = find_place(u, dtype, shape);
    if (!place)
        return NULL;
    if (road == WFI_ROAD_META)
        copy_here(u, u->meta, place, nbytes);
    else if (road == WFI_ROAD_PART)
        copy_here(u, u->tail, place, nbytes);
    else if (road == WFI_ROAD_REMOTE)
        add_segment(u, place, nbytes);
    else
        check_landed(u, nbytes);
    if (u->status || u->meta->failed) {
        fail(u, WEFT_ERR_PROTOCOL, "truncated metadata");
        weft_tensor_unref(place);
        return NULL;
    }
    return place;
}

static void unpack_tensors(unpacking *u, weft_value *value)
{
    uint32_t count = wfi_read_u32(u->meta);
    if (count > WEFT_MAX_CALL_TENSORS || count > wfi_reader_left(u->meta) / 3) { /* a tensor takes 3 bytes at least */
        fail(u, WEFT_ERR_PROTOCOL, "%u tensors in %zu bytes", count, wfi_reader_left(u->meta));
        return;
    }
    weft_tensor **items = wfi_calloc(count + 1, sizeof *items);
    if (!items) {
        fail(u, WEFT_ERR_MEMORY, "no memory for %u tensors", count);
        return;
    }
    size_t have = 0;
    while (have < count && (items[have] = unpack_tensor(u)))
        have++;
    value->type = WEFT_TENSORS;
    value->as.tensors = (weft_tensors){items, have};
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static void unpack_bytes(unpacking *u, weft_type type, weft_value *value)
{
    size_t size;
    const uint8_t *bytes = wfi_read_blob(u->meta, UINT32_MAX, &size);
    if (!bytes && u->meta->failed) {
        fail(u, WEFT_ERR_PROTOCOL, "truncated %s", weft_type_name(type));
        return;
    }
    weft_value borrowed = {.type = type, .as.bytes = {bytes ? bytes : (const uint8_t *)"", size}};
    if (wfi_value_own(&borrowed, value))
        fail(u, WEFT_ERR_MEMORY, "no memory for %zu bytes", size);
    u->unpack->copied_bytes += wfi_copied(size);
}

static void unpack_rref(unpacking *u, weft_value *value)
{
    wfi_unpack *unpack = u->unpack;
    wfi_rref_name name = wfi_read_rref_name(u->meta);
    if (!grow((void **)&unpack->rrefs, unpack->rref_count, &unpack->rref_capacity, sizeof *unpack->rrefs)) {
        fail(u, WEFT_ERR_MEMORY, "no memory for references");
        return;
    }
    value->type = WEFT_RREF;
    value->as.rref = NULL;
    unpack->rrefs[unpack->rref_count++] = (wfi_unpacked_rref){value, name};
}

static void unpack_list(unpacking *u, weft_value *value, int depth);

static void unpack_value(unpacking *u, weft_value *value, int depth)
{
    weft_type type = (weft_type)wfi_read_u8(u->meta);
    if (type == WEFT_NULL)
        *value = weft_of_null();
    else if (type == WEFT_BOOL)
        *value = weft_of_bool(wfi_read_u8(u->meta) != 0);
    else if (type == WEFT_I64)
        *value = weft_of_i64(wfi_read_i64(u->meta));
    else if (type == WEFT_F64)
        *value = weft_of_f64(wfi_read_f64(u->meta));
    else if (type == WEFT_STRING || type == WEFT_BYTES)
        unpack_bytes(u, type, value);
    else if (type == WEFT_TENSOR) {
        weft_tensor *tensor = unpack_tensor(u);
        if (tensor)
            *value = weft_of_tensor(tensor);
    } else if (type == WEFT_TENSORS)
        unpack_tensors(u, value);
    else if (type == WEFT_RREF)
        unpack_rref(u, value);
    else if (type == WEFT_LIST)
        unpack_list(u, value, depth + 1);
    else
        fail(u, WEFT_ERR_PROTOCOL, "unknown type %d of a value", (int)type);
    if (u->meta->failed)
        fail(u, WEFT_ERR_PROTOCOL, "truncated metadata");
}

static void unpack_list(unpacking *u, weft_value *value, int depth)
{
    uint32_t count = wfi_read_u32(u->meta);
    if (u->meta->failed || count > WEFT_MAX_VALUES || depth > WEFT_MAX_LIST_DEPTH || count > wfi_reader_left(u->meta)) {
        fail(u, WEFT_ERR_PROTOCOL, "a list of %u values at depth %d", count, depth);
        return;
    }
    weft_value *items = wfi_calloc(count + 1, sizeof *items);
    if (!items) {
        fail(u, WEFT_ERR_MEMORY, "no memory for %u values", count);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        items[i].type = WEFT_NULL;
    for (uint32_t i = 0; i < count && !u->status; i++)
        unpack_value(u, &items[i], depth);
    value->type = WEFT_LIST;
    value->as.list = (weft_args){items, count};
}

weft_status wfi_unpack_values(wfi_unpack *unpack, wfi_reader *meta, wfi_reader *tail, const wfi_unpack_options *options)
{
    *unpack = (wfi_unpack){0};
    unpacking u = {.unpack = unpack, .meta = meta, .tail = tail, .options = options, .status = WEFT_OK};
    weft_value whole = {.type = WEFT_NULL};
    unpack_list(&u, &whole, 0);
    if (!u.status) {
        unpack->values = wfi_values_adopt((weft_value *)whole.as.list.items, whole.as.list.count);
        if (!unpack->values)
            fail(&u, WEFT_ERR_MEMORY, "no memory for values");
    }
    if (u.status) {
        char problem[sizeof unpack->problem];
        memcpy(problem, unpack->problem, sizeof problem);
        wfi_value_release(&whole);
        wfi_unpack_fini(unpack);
        memcpy(unpack->problem, problem, sizeof problem);
    }
    return u.status;
}

void wfi_unpack_fini(wfi_unpack *unpack)
{
    weft_values_unref(unpack->values);
    free(unpack->segments);
    free(unpack->rrefs);
    *unpack = (wfi_unpack){0};
}

weft_status wfi_unpack_landing(wfi_reader *meta, wfi_landing **out, size_t *count)
{
    *out = NULL;
    *count = 0;
    uint32_t announced = wfi_read_u32(meta);
    if (meta->failed || announced > WEFT_MAX_CALL_TENSORS || announced > wfi_reader_left(meta) / 18)
        return WEFT_ERR_PROTOCOL;
    if (!announced)
        return WEFT_OK;
    wfi_landing *list = wfi_calloc(announced, sizeof *list);
    if (!list)
        return WEFT_ERR_MEMORY;
    for (uint32_t i = 0; i < announced; i++) {
        wfi_read_tensor_type(meta, &list[i].dtype, &list[i].shape, &list[i].size);
        list[i].address = wfi_read_u64(meta);
        list[i].key = wfi_read_u64(meta);
    }
    if (meta->failed) {
        free(list);
        return WEFT_ERR_PROTOCOL;
    }
    *out = list;
    *count = announced;
    return WEFT_OK;
}
