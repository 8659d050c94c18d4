/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c - metadata becomes values; see decode.h. */
#include "value/decode.h"

#include "base/alloc.h"
#include "base/utf8.h"
#include "mem/stream.h"
#include "value/value.h"
#include "tensor/check.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct decoding {
    wfi_decoded *out;
    wfi_reader *meta, *tail;
    const wfi_decode_options *options; /* NULL: nothing is made, it is only measured */
    uint64_t bytes;                    /* measured */
    wfi_tensor_types *types;           /* when measuring: NULL, not needed */
    size_t tensor_count;
    weft_status status;
} decoding;

static WEFT_PRINTF(3, 4) void fail(decoding *d, weft_status status, const char *format, ...)
{
    if (d->status)
        return;
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(d->out->problem, sizeof(d->out->problem), format, args);
    va_end(args);
    d->status = status;
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

#define TENSOR_OVERHEAD 256 /* a tensor and its storage, about */
#define RREF_OVERHEAD 512   /* a handle, its place in the tables, and the message that announces it */

static void count_bytes(decoding *d, uint64_t bytes)
{
    d->bytes = bytes > UINT64_MAX - d->bytes ? UINT64_MAX : d->bytes + bytes;
}

/* Skips what stands in the metadata for the contents of a tensor. */
static void skip_contents(wfi_reader *meta, uint8_t encoding, uint64_t nbytes)
{
    if (encoding == WFI_ENCODING_INLINE)
        (void)wfi_read_bytes(meta, nbytes);
    else if (encoding == WFI_ENCODING_PULL || encoding == WFI_ENCODING_EAGER)
        (void)wfi_read_bytes(meta, WFI_RMA_BYTES);
    else if (encoding == WFI_ENCODING_PUSH)
        (void)wfi_read_u32(meta);
}

static void measure_tensor(decoding *d, const wfi_tensor_type *type, uint64_t nbytes, uint8_t encoding)
{
    if (d->types && d->types->count < WEFT_MAX_SIGNATURE)
        d->types->items[d->types->count] = *type;
    if (d->types)
        d->types->count++;
    d->tensor_count++;
    count_bytes(d, nbytes);
    count_bytes(d, TENSOR_OVERHEAD);
    skip_contents(d->meta, encoding, nbytes);
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static bool admit_tensor(decoding *d, weft_dtype dtype, weft_shape shape)
{
    uint64_t bytes = weft_dtype_size(dtype);
    for (int i = 0; i < shape.ndim; i++)
        bytes *= (uint64_t)shape.dims[i]; /* wfi_value_read_tensor_type saw that it does not overflow */
    char problem[sizeof(d->out->problem)];
    weft_status status = d->options->admit(d->options->admit_arg, bytes, problem, sizeof(problem));
    if (status)
        fail(d, status, "%s", problem);
    return !status;
}

/* Of a module's parameter that is a landing place; takes over the reference. */
static weft_tensor *present_value(weft_tensor *place)
{
    weft_tensor *now = wfi_tensor_read(place);
    weft_tensor_unref(place);
    return now;
}

/* The place that the owner of the values has for the tensor, checked. NULL: it has none, or d->status is set. */
static weft_tensor *place_for(decoding *d, size_t index, weft_dtype dtype, weft_shape shape)
{
    weft_tensor *place = d->options->place ? d->options->place(d->options->place_arg, index, dtype, shape) : NULL;
    if (!place && d->options->admit)
        (void)admit_tensor(d, dtype, shape);
    if (!place)
        return NULL;
    place = present_value(place);
    weft_shape have = weft_tensor_shape(place);
    bool fits = weft_tensor_dtype(place) == dtype && weft_tensor_is_contiguous(place) && wfi_shape_equal(&have, &shape);
    if (!fits) {
        char arrives[WFI_TENSOR_TEXT], waits[WFI_TENSOR_TEXT];
        fail(d, WEFT_ERR_SHAPE, "tensor %zu is %s, its landing place is %s%s", index,
             wfi_value_tensor_type_text(arrives, dtype, shape),
             wfi_value_tensor_type_text(waits, weft_tensor_dtype(place), have),
             weft_tensor_is_contiguous(place) ? "" : ", not contiguous");
        weft_tensor_unref(place);
        return NULL;
    }
    if (d->options->checks_places && !wfi_tensor_is_on_gpu(place) &&
        !wfi_storage_is_accessible(place->storage, weft_tensor_data(place), weft_tensor_nbytes(place), true)) {
        fail(d, WEFT_ERR_INVALID, "the memory of the landing place of tensor %zu cannot be written: " WFI_INACCESSIBLE,
             index);
        weft_tensor_unref(place);
        return NULL;
    }
    return place;
}

static void copy_bytes(decoding *d, wfi_reader *from, weft_tensor *place, uint64_t nbytes)
{
    const uint8_t *bytes = wfi_read_bytes(from, nbytes);
    if (!bytes)
        fail(d, WEFT_ERR_PROTOCOL, "truncated tensor %zu", d->tensor_count - 1);
    else if (nbytes)
        memcpy(weft_tensor_data(place), bytes, nbytes);
    wfi_storage_wrote(place->storage); /* tapes notice that it changed under them */
    d->out->copied_bytes += wfi_copied(nbytes);
}

/* The tensor is in the tail of the message; its address is not used. */
static void copy_eager(decoding *d, weft_tensor *place, uint64_t nbytes)
{
    (void)wfi_read_bytes(d->meta, WFI_RMA_BYTES);
    copy_bytes(d, d->tail, place, nbytes);
}

static void add_segment(decoding *d, weft_tensor *place, uint64_t nbytes)
{
    wfi_decoded *out = d->out;
    wfi_rma_address remote = wfi_rma_decode(d->meta);
    wfi_segment *segments = wfi_grow(out->segments, out->segment_count, &out->segment_capacity, sizeof(*segments));
    if (!segments) {
        fail(d, WEFT_ERR_MEMORY, "no memory for the list of segments");
        return;
    }
    out->segments = segments;
    out->segments[out->segment_count++] = (wfi_segment){.local = place ? weft_tensor_data(place) : NULL,
                                                        .storage = place ? place->storage : NULL,
                                                        .size = nbytes,
                                                        .remote = remote};
}

/* Notes that the next tensor goes to a device; takes over `place`. `is_in_message`: its bytes are in the message;
 * returns memory of the host for them, which is borrowed. */
static weft_tensor *add_move(decoding *d, const wfi_tensor_type *type, uint64_t nbytes, weft_tensor *place,
                             bool is_in_message)
{
    if (!d->out->moves)
        d->out->moves = wfi_calloc(1, sizeof(*d->out->moves));
    wfi_decoded_moves *out = d->out->moves;
    wfi_decoded_move *items = out ? wfi_grow(out->items, out->count, &out->capacity, sizeof(*items)) : NULL;
    weft_tensor *host = items && is_in_message ? wfi_tensor_empty(type->shape, type->dtype, NULL) : NULL;
    if (items)
        out->items = items;
    if (!items || (is_in_message && !host)) {
        fail(d, WEFT_ERR_MEMORY, "no memory for tensor %zu", d->tensor_count - 1);
        weft_tensor_unref(place);
        return NULL;
    }
    out->nbytes += nbytes;
    out->items[out->count++] = (wfi_decoded_move){.index = d->tensor_count - 1,
                                                  .type = *type,
                                                  .nbytes = nbytes,
                                                  .device = d->options->is_answer ? type->from : type->to,
                                                  .place = place,
                                                  .host = host,
                                                  .segment = d->out->segment_count};
    return host;
}

static void check_landed(decoding *d, uint64_t nbytes, bool is_move)
{
    uint32_t index = wfi_read_u32(d->meta);
    d->out->landed_bytes += nbytes;
    if (is_move || index >= d->options->landed_count || index != d->tensor_count - 1)
        fail(d, WEFT_ERR_PROTOCOL, "tensor %zu claims landing place %u of %zu", d->tensor_count - 1, index,
             d->options->landed_count);
}

/* The next tensor came linked. */
static void note_linked(decoding *d, const wfi_tensor_type *type)
{
    wfi_decoded *out = d->out;
    wfi_decoded_link *linked = wfi_grow(out->linked, out->linked_count, &out->linked_capacity, sizeof(*linked));
    if (linked)
        out->linked = linked;
    if (!linked)
        fail(d, WEFT_ERR_MEMORY, "no memory for the list of linked tensors");
    else if (!d->options->takes_linked)
        fail(d, WEFT_ERR_PROTOCOL, "tensor %zu is linked, outside of a distributed context", d->tensor_count);
    else
        out->linked[out->linked_count++] = (wfi_decoded_link){d->tensor_count, type->from};
}

/* Whether the tensor goes to a device. `place`: what the owner has for it, or NULL. */
static bool is_for_device(const decoding *d, const wfi_tensor_type *type, const weft_tensor *place)
{
    if (place)
        return wfi_tensor_is_on_gpu(place);
    return d->options->is_answer ? type->from || d->options->moves_cpu : type->to != 0;
}

/* A tensor with a reference. NULL: the failure is kept; or it was measured; or it goes to a device. */
static weft_tensor *decode_tensor(decoding *d)
{
    wfi_tensor_type type = {.shape = WEFT_SCALAR};
    uint64_t nbytes = 0;
    bool linked = false;
    if (d->tensor_count >= WEFT_MAX_CALL_TENSORS)
        fail(d, WEFT_ERR_TOO_LARGE, "over %d tensors in one call", WEFT_MAX_CALL_TENSORS);
    else if (!wfi_value_read_tensor_type(d->meta, &type, &nbytes, &linked))
        fail(d, WEFT_ERR_PROTOCOL, "malformed type of tensor %zu", d->tensor_count);
    else if (linked && d->options)
        note_linked(d, &type);
    if (d->status)
        return NULL;
    uint8_t encoding = wfi_read_u8(d->meta);
    /* Data that should follow must be there before memory is taken for them. */
    if ((encoding == WFI_ENCODING_INLINE && nbytes > wfi_reader_left(d->meta)) ||
        (encoding == WFI_ENCODING_EAGER && d->tail && nbytes > wfi_reader_left(d->tail)) ||
        encoding > WFI_ENCODING_PUSH) {
        fail(d, WEFT_ERR_PROTOCOL, "truncated tensor %zu", d->tensor_count);
        return NULL;
    }
    if (!d->options) {
        measure_tensor(d, &type, nbytes, encoding);
        return NULL;
    }
    weft_tensor *place = place_for(d, d->tensor_count++, type.dtype, type.shape);
    bool is_move = is_for_device(d, &type, place);
    bool is_in_message = encoding == WFI_ENCODING_INLINE || encoding == WFI_ENCODING_EAGER;
    weft_tensor *value = NULL; /* what the caller gets; `place` is where the bytes go, or NULL */
    if (is_move && !d->status) {
        place = add_move(d, &type, nbytes, place, is_in_message);
    } else if (!d->status) {
        if (!place && !(place = wfi_tensor_empty(type.shape, type.dtype, NULL)))
            fail(d, WEFT_ERR_MEMORY, "no memory for tensor %zu", d->tensor_count - 1);
        value = place;
    }
    if (d->status) {
        weft_tensor_unref(value);
        return NULL;
    }
    if (encoding == WFI_ENCODING_INLINE)
        copy_bytes(d, d->meta, place, nbytes);
    else if (encoding == WFI_ENCODING_EAGER)
        copy_eager(d, place, nbytes);
    else if (encoding == WFI_ENCODING_PULL)
        add_segment(d, place, nbytes);
    else
        check_landed(d, nbytes, is_move);
    if (d->status || d->meta->failed) {
        fail(d, WEFT_ERR_PROTOCOL, "truncated metadata");
        weft_tensor_unref(value);
        return NULL;
    }
    return value;
}

static void decode_tensors(decoding *d, weft_value *value)
{
    uint32_t count = wfi_read_u32(d->meta);
    if (count > WEFT_MAX_CALL_TENSORS || count > wfi_reader_left(d->meta) / 3) { /* a tensor takes 3 bytes at least */
        fail(d, WEFT_ERR_PROTOCOL, "%u tensors in %zu bytes", count, wfi_reader_left(d->meta));
        return;
    }
    for (uint32_t i = 0; !d->options && i < count && !d->status && !d->meta->failed; i++)
        (void)decode_tensor(d);
    if (!d->options)
        return;
    weft_tensor **items = wfi_calloc(count, sizeof(*items));
    if (!items) {
        fail(d, WEFT_ERR_MEMORY, "no memory for %u tensors", count);
        return;
    }
    size_t have = 0;
    for (; have < count && !d->status; have++)
        items[have] = decode_tensor(d);
    value->type = WEFT_TYPE_TENSORS;
    value->as.tensors = (weft_tensors){items, have};
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static void decode_bytes(decoding *d, weft_type type, weft_value *value)
{
    size_t size;
    const uint8_t *bytes = wfi_read_blob(d->meta, UINT32_MAX, &size);
    if (!bytes && d->meta->failed) {
        fail(d, WEFT_ERR_PROTOCOL, "truncated %s", weft_type_name(type));
        return;
    }
    if (!d->options) {
        count_bytes(d, size);
        return;
    }
    weft_value borrowed = {.type = type, .as.bytes = {bytes ? bytes : (const uint8_t *)"", size}};
    if (wfi_value_own(&borrowed, value))
        fail(d, WEFT_ERR_MEMORY, "no memory for %zu bytes", size);
    d->out->copied_bytes += wfi_copied(size);
}

static void decode_rref(decoding *d, weft_value *value)
{
    wfi_decoded *out = d->out;
    wfi_rref_name name = wfi_reference_read_name(d->meta);
    if (!d->options) {
        count_bytes(d, RREF_OVERHEAD);
        return;
    }
    wfi_decoded_rref *rrefs = wfi_grow(out->rrefs, out->rref_count, &out->rref_capacity, sizeof(*rrefs));
    if (!rrefs) {
        fail(d, WEFT_ERR_MEMORY, "no memory for references");
        return;
    }
    out->rrefs = rrefs;
    value->type = WEFT_TYPE_RREF;
    value->as.rref = NULL;
    out->rrefs[out->rref_count++] = (wfi_decoded_rref){value, name};
}

static void decode_list(decoding *d, weft_value *value, int depth);

static void decode_value(decoding *d, weft_value *value, int depth)
{
    weft_type type = (weft_type)wfi_read_u8(d->meta);
    if (type == WEFT_TYPE_NULL)
        *value = weft_of_null();
    else if (type == WEFT_TYPE_BOOL)
        *value = weft_of_bool(wfi_read_u8(d->meta) != 0);
    else if (type == WEFT_TYPE_I64)
        *value = weft_of_i64(wfi_read_i64(d->meta));
    else if (type == WEFT_TYPE_F64)
        *value = weft_of_f64(wfi_read_f64(d->meta));
    else if (type == WEFT_TYPE_STRING || type == WEFT_TYPE_BYTES)
        decode_bytes(d, type, value);
    else if (type == WEFT_TYPE_TENSOR) {
        *value = weft_of_tensor(decode_tensor(d));
    } else if (type == WEFT_TYPE_TENSORS)
        decode_tensors(d, value);
    else if (type == WEFT_TYPE_RREF)
        decode_rref(d, value);
    else if (type == WEFT_TYPE_LIST)
        decode_list(d, value, depth + 1);
    else
        fail(d, WEFT_ERR_PROTOCOL, "unknown type %d of a value", (int)type);
    if (d->meta->failed)
        fail(d, WEFT_ERR_PROTOCOL, "truncated metadata");
}

/* Reads the count of a list at nesting depth `depth`, and checks both. */
static uint32_t count_of_list(decoding *d, int depth)
{
    uint32_t count = wfi_read_u32(d->meta);
    if (d->meta->failed || count > WEFT_MAX_VALUES || depth > WEFT_MAX_LIST_DEPTH || count > wfi_reader_left(d->meta))
        fail(d, WEFT_ERR_PROTOCOL, "a list of %u values at depth %d", count, depth);
    return count;
}

static void decode_list(decoding *d, weft_value *value, int depth)
{
    uint32_t count = count_of_list(d, depth);
    if (d->status)
        return;
    if (!d->options) { /* measuring, one value takes the place of all */
        count_bytes(d, count * sizeof(weft_value));
        for (weft_value one; count && !d->status; count--)
            decode_value(d, &one, depth);
        return;
    }
    weft_value *items = wfi_calloc(count, sizeof(*items));
    if (!items) {
        fail(d, WEFT_ERR_MEMORY, "no memory for %u values", count);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        items[i].type = WEFT_TYPE_NULL;
    for (uint32_t i = 0; i < count && !d->status; i++)
        decode_value(d, &items[i], depth);
    value->type = WEFT_TYPE_LIST;
    value->as.list = (weft_args){items, count};
}

weft_status wfi_decode(wfi_decoded *decoded, wfi_reader *meta, wfi_reader *tail, const wfi_decode_options *options)
{
    *decoded = (wfi_decoded){0};
    decoding d = {.out = decoded, .meta = meta, .tail = tail, .options = options, .status = WEFT_OK};
    uint32_t count = count_of_list(&d, 0);
    if (!d.status && !(decoded->values = wfi_values_make(count)))
        fail(&d, WEFT_ERR_MEMORY, "no memory for %u values", count);
    weft_value *items = (weft_value *)weft_values_args(decoded->values).items; /* nobody else has them yet */
    for (uint32_t i = 0; i < count && !d.status; i++)
        decode_value(&d, &items[i], 0);
    if (d.status) {
        char problem[sizeof(decoded->problem)];
        memcpy(problem, decoded->problem, sizeof(problem));
        wfi_decoded_fini(decoded);
        memcpy(decoded->problem, problem, sizeof(problem));
    }
    return d.status;
}

weft_status wfi_decode_measure(wfi_decoded *decoded, const uint8_t *meta, size_t size, uint64_t *bytes,
                               wfi_tensor_types *types)
{
    wfi_reader reader;
    decoding d = {.out = decoded, .meta = &reader, .types = types, .status = WEFT_OK};
    if (types)
        types->count = 0;
    wfi_reader_init(&reader, meta, size);
    decode_list(&d, NULL, 0);
    *bytes = d.bytes;
    return d.status;
}

/* ---- Peeking ----------------------------------------------------------------------------------------------------- */

bool wfi_peek_tensor(wfi_reader *tensors, wfi_tensor_type *out)
{
    uint64_t nbytes = 0;
    bool linked = false;
    if (!wfi_value_read_tensor_type(tensors, out, &nbytes, &linked))
        return false;
    skip_contents(tensors, wfi_read_u8(tensors), nbytes);
    return !tensors->failed;
}

static bool peek_value(wfi_reader *meta, wfi_peeked *out)
{
    *out = (wfi_peeked){.type = (weft_type)wfi_read_u8(meta)};
    wfi_tensor_type type;
    if (out->type == WEFT_TYPE_BYTES) {
        out->bytes = wfi_read_blob(meta, UINT32_MAX, &out->size);
    } else if (out->type == WEFT_TYPE_TENSORS) {
        out->tensor_count = wfi_read_u32(meta);
        out->tensors = *meta;
        for (uint32_t i = 0; i < out->tensor_count; i++)
            if (!wfi_peek_tensor(meta, &type))
                return false;
    } else {
        return false;
    }
    return !meta->failed;
}

bool wfi_peek_values(const uint8_t *meta, size_t size, wfi_peeked *values, size_t count)
{
    wfi_reader reader;
    wfi_reader_init(&reader, meta, size);
    if (wfi_read_u32(&reader) != count)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!peek_value(&reader, &values[i]))
            return false;
    return true;
}

/* ---- To devices -------------------------------------------------------------------------------------------------- */

/* Bytes of a move in `staged`; 0: it goes to the CPU after all. */
static size_t staged_bytes(const wfi_decoded_move *move)
{
    return move->place || move->device ? wfi_staged_bytes(move->nbytes) : 0;
}

/* Where the bytes of a move are pulled to: `local`, which is in page-locked memory, or a new tensor of the CPU. */
static weft_status place_segment(wfi_decoded *decoded, wfi_decoded_move *move, void *local)
{
    wfi_segment *segment = &decoded->segments[move->segment];
    if (!staged_bytes(move)) {
        move->host = wfi_tensor_empty(move->type.shape, move->type.dtype, NULL);
        if (!move->host)
            return WEFT_ERR_MEMORY;
    }
    segment->local = move->host ? weft_tensor_data(move->host) : local;
    segment->storage = move->host ? move->host->storage : decoded->moves->staged;
    return WEFT_OK;
}

/* A new tensor whose memory counts as written by the copy stream, so that the copy waits for no other work. */
static weft_status create_on(int device, const wfi_tensor_type *type, weft_tensor **out)
{
    weft_stream *stream;
    weft_status status = wfi_copies_stream(device, &stream);
    if (status)
        return status;
    weft_stream *before = wfi_stream_set(stream);
    status = wfi_tensor_create(type->shape, type->dtype, WFI_MEMORY_CUDA, device, out);
    (void)wfi_stream_set(before);
    return status;
}

static weft_status device_failed(wfi_decoded *decoded, const wfi_decoded_move *move, weft_status status)
{
    if (status)
        snprintf(decoded->problem, sizeof(decoded->problem), "tensor %zu could not be copied to cuda:%d: %s",
                 move->index, move->place ? weft_tensor_device(move->place).index : move->device - 1,
                 weft_status_text(status));
    return status;
}

weft_status wfi_decoded_stage(wfi_decoded *decoded)
{
    wfi_decoded_moves *moves = decoded->moves;
    size_t bytes = 0;
    int device = 0; /* any of them: all devices can use the memory */
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < moves->count; i++) {
        wfi_decoded_move *move = &moves->items[i];
        move->staged_at = bytes;
        bytes += staged_bytes(move);
        if (staged_bytes(move))
            device = move->place ? weft_tensor_device(move->place).index : move->device - 1;
    }
    for (size_t i = 0; i < moves->count && !status; i++) {
        wfi_decoded_move *move = &moves->items[i];
        if (!move->place && move->device)
            status = device_failed(decoded, move, create_on(move->device - 1, &move->type, &move->place));
    }
    if (bytes && !status)
        status = wfi_storage_create(WFI_MEMORY_PINNED, device, bytes, &moves->staged);
    for (size_t i = 0; i < moves->count && !status; i++) {
        wfi_decoded_move *move = &moves->items[i];
        char *local = bytes ? (char *)wfi_storage_data(moves->staged) + move->staged_at : NULL;
        if (!move->host)
            status = place_segment(decoded, move, local);
        else if (staged_bytes(move))
            memcpy(local, weft_tensor_data(move->host), move->nbytes);
    }
    return status;
}

static weft_status copy_move(wfi_decoded *decoded, wfi_decoded_move *move, uint64_t offset, uint64_t size,
                             wfi_copies *copies)
{
    wfi_storage *to = move->place->storage;
    size_t at = (size_t)((char *)wfi_tensor_address(move->place) - (char *)wfi_storage_data(to));
    weft_status status =
        wfi_copies_add(copies, to, at + offset, decoded->moves->staged, move->staged_at + offset, size);
    wfi_storage_wrote(to);
    return device_failed(decoded, move, status);
}

weft_status wfi_decoded_copy(wfi_decoded *decoded, size_t segment, uint64_t offset, uint64_t size, wfi_copies *copies)
{
    wfi_decoded_moves *moves = decoded->moves;
    for (size_t i = 0; i < moves->count && moves->items[i].segment <= segment; i++) {
        wfi_decoded_move *move = &moves->items[i];
        if (move->segment != segment || move->host)
            continue;
        move->copied += size;
        return copy_move(decoded, move, offset, size, copies);
    }
    return WEFT_OK;
}

weft_status wfi_decoded_to_devices(wfi_decoded *decoded, weft_values *values, wfi_copies *copies)
{
    const wfi_decoded_moves *moves = decoded->moves;
    size_t count = wfi_values_tensors(weft_values_args(values), NULL, 0);
    weft_tensor **tensors = wfi_calloc(count, sizeof(*tensors));
    weft_status status = tensors ? WEFT_OK : WEFT_ERR_MEMORY;
    wfi_values_tensors(weft_values_args(values), tensors, tensors ? count : 0);
    for (size_t i = 0; i < moves->count && !status; i++) {
        wfi_decoded_move *move = &moves->items[i];
        if (move->place && move->copied < move->nbytes)
            status = copy_move(decoded, move, 0, move->nbytes, copies);
        tensors[move->index] = move->place ? move->place : move->host;
    }
    if (!status)
        wfi_values_replace_tensors(values, tensors);
    free(tensors);
    return status;
}

void wfi_decoded_fini(wfi_decoded *decoded)
{
    weft_values_unref(decoded->values);
    free(decoded->segments);
    free(decoded->rrefs);
    free(decoded->linked);
    wfi_decoded_moves *moves = decoded->moves;
    for (size_t i = 0; moves && i < moves->count; i++) {
        weft_tensor_unref(moves->items[i].place);
        weft_tensor_unref(moves->items[i].host);
    }
    if (moves) {
        wfi_storage_unref(moves->staged);
        free(moves->items);
    }
    free(moves);
    *decoded = (wfi_decoded){0};
}

weft_status wfi_decode_landing(wfi_reader *meta, wfi_landing **out, size_t *count)
{
    *out = NULL;
    *count = 0;
    uint32_t announced = wfi_read_u32(meta);
    if (meta->failed || announced > WEFT_MAX_CALL_TENSORS || announced > wfi_reader_left(meta) / (2 + WFI_RMA_BYTES))
        return WEFT_ERR_PROTOCOL;
    if (!announced)
        return WEFT_OK;
    wfi_landing *list = wfi_calloc(announced, sizeof(*list));
    if (!list)
        return WEFT_ERR_MEMORY;
    for (uint32_t i = 0; i < announced; i++) {
        wfi_tensor_type type = {0};
        wfi_value_read_tensor_type(meta, &type, &list[i].size, NULL);
        list[i].dtype = type.dtype;
        list[i].shape = type.shape;
        list[i].remote = wfi_rma_decode(meta);
    }
    if (meta->failed) {
        free(list);
        return WEFT_ERR_PROTOCOL;
    }
    *out = list;
    *count = announced;
    return WEFT_OK;
}
