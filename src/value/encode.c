/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c - values become metadata; see encode.h. */
#include "value/encode.h"

#include "base/alloc.h"
#include "tensor/tensor.h"
#include "value/reference.h"
#include "value/walk.h"

#include <stdlib.h>
#include <string.h>

typedef struct encoding {
    wfi_encoded *out;
    const wfi_encode_options *options;
    bool all_inline, never_pushes;
    uint64_t staged_total; /* bytes of page-locked memory for all tensors of devices */
    weft_status status;
} encoding;

/* ---- How large is it --------------------------------------------------------------------------------------------- */

typedef struct sizing {
    uint64_t payload, meta; /* meta: an upper bound, without tiny tensors that may be in it */
    uint64_t tiny;
    uint64_t staged; /* in page-locked memory */
    size_t tensors;
} sizing;

static sizing size_of(weft_args values)
{
    wfi_walk walk;
    sizing sum = {0};
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; (value = wfi_walk_next(&walk));) {
        weft_tensors tensors = wfi_value_tensors(value);
        if (tensors.count > WEFT_MAX_CALL_TENSORS)
            return (sizing){.tensors = tensors.count}; /* too many: a count this large may be no count of `items` */
        sum.meta += 16;
        if (value->type == WEFT_TYPE_STRING || value->type == WEFT_TYPE_BYTES)
            sum.meta += value->as.bytes.size < UINT32_MAX ? value->as.bytes.size : UINT32_MAX; /* no overflow */
        else if (value->type == WEFT_TYPE_RREF)
            sum.meta += 32;
        for (size_t i = 0; i < tensors.count; i++) {
            uint64_t nbytes = tensors.items[i] ? weft_tensor_nbytes(tensors.items[i]) : 0;
            sum.payload += nbytes;
            sum.tiny += nbytes <= WFI_TINY_TENSOR ? nbytes : 0;
            if (nbytes && wfi_tensor_kind(tensors.items[i]) == WFI_MEMORY_CUDA)
                sum.staged += wfi_staged_bytes(nbytes);
        }
        sum.tensors += tensors.count;
        sum.meta += tensors.count * (34 + 8 * WEFT_MAX_DIMS);
    }
    return sum;
}

weft_status wfi_encode_fits(weft_args values, char *problem, size_t room)
{
    sizing size = size_of(values);
    uint64_t beside = size.meta + size.tiny + WFI_BODY_MARGIN;
    if (size.tensors > WEFT_MAX_CALL_TENSORS)
        snprintf(problem, room, "%zu tensors, where a call carries %d", size.tensors, WEFT_MAX_CALL_TENSORS);
    else if (beside > WFI_META_MAX)
        snprintf(problem, room,
                 "%llu bytes beside tensors (strings, bytes, the shape of each tensor), where a call carries %u",
                 (unsigned long long)beside, WFI_META_MAX);
    else
        return WEFT_OK;
    return WEFT_ERR_TOO_LARGE;
}

/* ---- One tensor -------------------------------------------------------------------------------------------------- */

static void add_remote(encoding *e, weft_tensor *tensor, size_t patch, size_t landing)
{
    wfi_encoded *out = e->out;
    wfi_encoded_tensor *remote = wfi_grow(out->remote, out->remote_count, &out->remote_capacity, sizeof(*remote));
    if (!remote) {
        e->status = WEFT_ERR_MEMORY;
        return;
    }
    out->remote = remote;
    out->remote[out->remote_count++] =
        (wfi_encoded_tensor){.tensor = weft_tensor_ref(tensor), .patch = patch, .landing = landing};
    out->remote_bytes += weft_tensor_nbytes(tensor);
}

static void encode_rref(encoding *e, weft_rref *rref)
{
    wfi_encoded *out = e->out;
    wfi_rref_name name;
    e->status = e->options->pass(rref, &name);
    if (e->status)
        return;
    weft_rref **rrefs = wfi_grow(out->rrefs, out->rref_count, &out->rref_capacity, sizeof(*rrefs));
    if (!rrefs) {
        e->status = WEFT_ERR_MEMORY;
        return;
    }
    out->rrefs = rrefs;
    out->rrefs[out->rref_count++] = weft_rref_ref(rref);
    wfi_reference_write_name(&out->meta, &name);
}

/* A result in the caller's landing place of that number. False: it does not fit, or there is none. */
static bool fits_landing(const wfi_encode_options *options, const weft_tensor *tensor, size_t index)
{
    const wfi_landing *place = index < options->landing_count ? &options->landing[index] : NULL;
    weft_shape have = weft_tensor_shape(tensor);
    if (place && weft_tensor_dtype(tensor) == place->dtype && wfi_shape_equal(&have, &place->shape))
        return true;
    if (!options->problem)
        return false;
    char result[WFI_TENSOR_TEXT], waits[WFI_TENSOR_TEXT];
    wfi_value_tensor_type_text(result, weft_tensor_dtype(tensor), have);
    if (place)
        snprintf(options->problem, options->problem_room, "tensor %zu of the results is %s, its landing place is %s",
                 index, result, wfi_value_tensor_type_text(waits, place->dtype, place->shape));
    else
        snprintf(options->problem, options->problem_room,
                 "tensor %zu of the results is %s: the caller has %zu landing places", index, result,
                 options->landing_count);
    return false;
}

/* Otherwise the caller pulls the result into its landing place: the caller has told no address, or this worker cannot
 * write there. */
static bool is_pushed(const encoding *e, size_t index)
{
    const wfi_landing *place = &e->options->landing[index];
    return !e->never_pushes && (place->remote.address || place->remote.key);
}

/* `at`: where its dtype stands. */
static void add_linked(encoding *e, weft_tensor *tensor, size_t at)
{
    wfi_encoded *out = e->out;
    weft_tensor **linked = wfi_grow(out->linked, out->linked_count, &out->linked_capacity, sizeof(*linked));
    if (!linked) {
        e->status = WEFT_ERR_MEMORY;
        return;
    }
    out->linked = linked;
    out->linked[out->linked_count++] = weft_tensor_ref(tensor);
    if (!out->meta.failed)
        out->meta.data[at] |= WFI_LINKED;
}

/* Writes the two device bytes behind the dtype and shape of a tensor; `at`: where its dtype stands. The byte of the
 * receiver's device is set later. */
static void write_devices(encoding *e, const weft_tensor *tensor, size_t at)
{
    wfi_encoded *out = e->out;
    if (!out->devices)
        out->devices = wfi_calloc(1, sizeof(*out->devices));
    wfi_encoded_devices *devices = out->devices;
    size_t *offsets =
        devices ? wfi_grow(devices->offsets, devices->offset_count, &devices->offset_capacity, sizeof(*offsets)) : NULL;
    if (!offsets) {
        e->status = WEFT_ERR_MEMORY;
        return;
    }
    devices->offsets = offsets;
    devices->offsets[devices->offset_count++] = out->meta.size;
    wfi_write_u8(&out->meta, wfi_device_code(weft_tensor_device(tensor)));
    wfi_write_u8(&out->meta, 0);
    if (!out->meta.failed)
        out->meta.data[at] |= WFI_NAMES_DEVICES;
}

/* Notes that a tensor of a device will be copied to `staged`, and returns the tensor there, or NULL. Takes over
 * `flat`. */
static weft_tensor *use_copy(encoding *e, weft_tensor *flat)
{
    wfi_encoded_devices *out = e->out->devices;
    weft_tensor *copy = NULL;
    size_t offset = out->staged_bytes;
    wfi_encoded_copy *copies = wfi_grow(out->copies, out->copy_count, &out->copy_capacity, sizeof(*copies));
    if (copies)
        out->copies = copies;
    if (!out->staged)
        e->status =
            wfi_storage_create(WFI_MEMORY_PINNED, weft_tensor_device(flat).index, e->staged_total, &out->staged);
    if (!e->status)
        e->status = copies ? wfi_tensor_over(out->staged, (int64_t)(offset / weft_dtype_size(flat->dtype)), flat->shape,
                                             flat->dtype, &copy)
                           : WEFT_ERR_MEMORY;
    if (e->status) {
        weft_tensor_unref(flat);
        return NULL;
    }
    out->copies[out->copy_count++] = (wfi_encoded_copy){.tensor = flat, .offset = offset, .patch = WFI_NO_PATCH};
    out->staged_bytes += wfi_staged_bytes(weft_tensor_nbytes(flat));
    return copy;
}

static void encode_tensor(encoding *e, weft_tensor *tensor)
{
    wfi_encoded *out = e->out;
    size_t index = out->tensor_count++;
    bool on_device = wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA;
    weft_tensor *flat = wfi_tensor_contiguous(tensor, NULL);
    if (!flat) {
        e->status = WEFT_ERR_MEMORY;
        return;
    }
    size_t nbytes = weft_tensor_nbytes(flat);
    bool has_landing = e->options->landing, is_staged = on_device && nbytes;
    out->packed_bytes += on_device || weft_tensor_is_contiguous(tensor) ? 0 : nbytes;
    size_t at = out->meta.size;
    wfi_value_write_tensor_type(&out->meta, weft_tensor_dtype(flat), weft_tensor_shape(flat));
    if (on_device || e->options->names_devices)
        write_devices(e, tensor, at);
    if (e->options->is_linked && e->options->is_linked(e->options->context, tensor))
        add_linked(e, tensor, at);
    if (!e->status && is_staged)
        flat = use_copy(e, flat);
    if (e->status) {
        weft_tensor_unref(flat);
        return;
    }
    if (has_landing && !fits_landing(e->options, flat, index)) {
        e->status = WEFT_ERR_SHAPE;
    } else if (e->all_inline || nbytes <= WFI_TINY_TENSOR) {
        wfi_write_u8(&out->meta, WFI_ENCODING_INLINE);
        if (is_staged) /* overwritten by wfi_encode_copied */
            out->devices->copies[out->devices->copy_count - 1].patch = out->meta.size;
        if (nbytes)
            wfi_write_bytes(&out->meta, weft_tensor_data(flat), nbytes);
        out->copied_bytes += wfi_copied(nbytes);
    } else if (has_landing && is_pushed(e, index)) {
        wfi_write_u8(&out->meta, WFI_ENCODING_PUSH);
        wfi_write_u32(&out->meta, (uint32_t)index);
        add_remote(e, flat, WFI_NO_PATCH, index);
    } else {
        wfi_write_u8(&out->meta, WFI_ENCODING_PULL);
        size_t patch = out->meta.size; /* its memory, once it is exposed */
        wfi_rma_encode(&out->meta, &(wfi_rma_address){0});
        add_remote(e, flat, patch, 0);
    }
    weft_tensor_unref(flat);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static void encode_tensors(encoding *e, weft_tensors tensors)
{
    wfi_write_u32(&e->out->meta, (uint32_t)tensors.count);
    for (size_t i = 0; i < tensors.count && !e->status; i++) {
        if (tensors.items[i])
            encode_tensor(e, tensors.items[i]);
        else
            e->status = WEFT_ERR_INVALID;
    }
}

static void encode_bytes(encoding *e, const weft_value *value)
{
    if (value->as.bytes.size > UINT32_MAX)
        e->status = WEFT_ERR_TOO_LARGE;
    else if (!value->as.bytes.data && (value->as.bytes.size || value->type == WEFT_TYPE_STRING))
        e->status = WEFT_ERR_INVALID;
    else {
        wfi_write_blob(&e->out->meta, value->as.bytes.data, value->as.bytes.size);
        e->out->copied_bytes += wfi_copied(value->as.bytes.size);
    }
}

static void encode_list(encoding *e, weft_args list, int depth)
{
    if (list.count > WEFT_MAX_VALUES || depth > WEFT_MAX_LIST_DEPTH)
        e->status = WEFT_ERR_TOO_LARGE;
    else
        wfi_write_u32(&e->out->meta, (uint32_t)list.count);
}

/* Of a list: how many items follow. */
static void encode_value(encoding *e, const weft_value *value, int depth)
{
    wfi_writer *meta = &e->out->meta;
    wfi_write_u8(meta, (uint8_t)value->type);
    if (value->type == WEFT_TYPE_NULL)
        return;
    if (value->type == WEFT_TYPE_BOOL)
        wfi_write_u8(meta, value->as.boolean);
    else if (value->type == WEFT_TYPE_I64)
        wfi_write_i64(meta, value->as.i64);
    else if (value->type == WEFT_TYPE_F64)
        wfi_write_f64(meta, value->as.f64);
    else if (value->type == WEFT_TYPE_STRING || value->type == WEFT_TYPE_BYTES)
        encode_bytes(e, value);
    else if (value->type == WEFT_TYPE_TENSOR && value->as.tensor)
        encode_tensor(e, value->as.tensor);
    else if (value->type == WEFT_TYPE_TENSORS)
        encode_tensors(e, value->as.tensors);
    else if (value->type == WEFT_TYPE_RREF && value->as.rref)
        encode_rref(e, value->as.rref);
    else if (value->type == WEFT_TYPE_LIST)
        encode_list(e, value->as.list, depth + 1);
    else
        e->status = WEFT_ERR_INVALID;
}

weft_status wfi_encode(wfi_encoded *encoded, weft_args values, const wfi_encode_options *options)
{
    wfi_walk walk;
    sizing size = size_of(values);
    *encoded = (wfi_encoded){0};
    encoding e = {.out = encoded, .options = options, .status = WEFT_OK};
    e.all_inline = size.payload <= WFI_INLINE_LIMIT && size.payload + size.meta <= WFI_BODY_INLINE;
    e.staged_total = size.staged;
    e.never_pushes = options->never_pushes || size.payload <= options->eager;
    if (options->room)
        wfi_writer_init_room(&encoded->meta, options->room, WFI_META_ROOM);
    else
        wfi_writer_init_growing(&encoded->meta);
    if (size.tensors > WEFT_MAX_CALL_TENSORS)
        e.status = WEFT_ERR_TOO_LARGE;
    else
        encode_list(&e, values, 0);
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; !e.status && (value = wfi_walk_next(&walk));)
        encode_value(&e, value, walk.depth);
    if (!e.status && options->landing && encoded->tensor_count != options->landing_count) {
        e.status = WEFT_ERR_SHAPE;
        if (options->problem)
            snprintf(options->problem, options->problem_room, "%zu tensors in the results for %zu landing places",
                     encoded->tensor_count, options->landing_count);
    }
    if (!e.status && encoded->meta.failed)
        e.status = WEFT_ERR_MEMORY;
    if (e.status)
        wfi_encoded_fini(encoded);
    return e.status;
}

void wfi_encode_landing_count(wfi_encoded *encoded, size_t count)
{
    wfi_write_u32(&encoded->meta, (uint32_t)count);
}

void wfi_encode_landing(wfi_encoded *encoded, const weft_tensor *place, const wfi_rma_address *remote)
{
    wfi_value_write_tensor_type(&encoded->meta, place->dtype, place->shape);
    wfi_rma_encode(&encoded->meta, remote);
}

void wfi_encode_address(wfi_encoded *encoded, const wfi_encoded_tensor *tensor, const wfi_rma_address *remote)
{
    wfi_writer slot;
    wfi_writer_init(&slot, encoded->meta.data + tensor->patch, WFI_RMA_BYTES);
    wfi_rma_encode(&slot, remote);
}

void wfi_encode_eager(wfi_encoded *encoded, const wfi_encoded_tensor *tensor)
{
    encoded->meta.data[tensor->patch - 1] = WFI_ENCODING_EAGER;
}

weft_status wfi_encode_copy(const wfi_encoded *encoded, wfi_copies *copies)
{
    const wfi_encoded_devices *devices = encoded->devices;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < devices->copy_count && !status; i++) {
        const wfi_encoded_copy *copy = &devices->copies[i];
        wfi_storage *from = copy->tensor->storage;
        size_t at = (size_t)((char *)wfi_tensor_address(copy->tensor) - (char *)wfi_storage_data(from));
        status = wfi_copies_add(copies, devices->staged, copy->offset, from, at, weft_tensor_nbytes(copy->tensor));
    }
    return status;
}

void wfi_encode_copied(wfi_encoded *encoded)
{
    const wfi_encoded_devices *devices = encoded->devices;
    for (size_t i = 0; i < devices->copy_count; i++) {
        const wfi_encoded_copy *copy = &devices->copies[i];
        if (copy->patch != WFI_NO_PATCH)
            memcpy(encoded->meta.data + copy->patch, (char *)wfi_storage_data(devices->staged) + copy->offset,
                   weft_tensor_nbytes(copy->tensor));
    }
}

static void free_devices(wfi_encoded_devices *devices)
{
    if (!devices)
        return;
    for (size_t i = 0; i < devices->copy_count; i++)
        weft_tensor_unref(devices->copies[i].tensor);
    wfi_storage_unref(devices->staged);
    free(devices->copies);
    free(devices->offsets);
    free(devices);
}

void wfi_encoded_fini(wfi_encoded *encoded)
{
    free_devices(encoded->devices);
    for (size_t i = 0; i < encoded->remote_count; i++)
        weft_tensor_unref(encoded->remote[i].tensor);
    for (size_t i = 0; i < encoded->rref_count; i++)
        weft_rref_unref(encoded->rrefs[i]);
    for (size_t i = 0; i < encoded->linked_count; i++)
        weft_tensor_unref(encoded->linked[i]);
    free(encoded->linked);
    free(encoded->rrefs);
    free(encoded->remote);
    wfi_writer_fini(&encoded->meta);
    *encoded = (wfi_encoded){0};
}
