/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c - values on their way out; see encode.h. */
#include "value/encode.h"

#include "rpc/refs/refs.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define BODY_MARGIN 64 /* bytes of a message kept for what stands before and after meta */

typedef struct packing {
    wfi_pack *pack;
    const wfi_pack_options *options;
    bool all_inline;
    weft_status status;
} packing;

/* ---- How large is it --------------------------------------------------------------------------------------------- */

typedef struct sizing {
    uint64_t payload, meta; /* meta: an upper bound, but for the tiny tensors that may ride in it */
    uint64_t tiny;
    size_t tensors;
} sizing;

static void size_tensor(const weft_tensor *tensor, sizing *sum)
{
    uint64_t nbytes = tensor ? weft_tensor_nbytes(tensor) : 0;
    sum->tensors++;
    sum->meta += 32 + 8 * WEFT_MAX_DIMS;
    sum->payload += nbytes;
    sum->tiny += nbytes <= WFI_TINY_TENSOR ? nbytes : 0;
}

static void size_values(weft_args values, int depth, sizing *sum)
{
    for (size_t i = 0; i < values.count && depth <= WEFT_MAX_LIST_DEPTH; i++) {
        const weft_value *value = &values.items[i];
        sum->meta += 16;
        if (value->type == WEFT_STRING || value->type == WEFT_BYTES)
            sum->meta += value->as.bytes.size;
        else if (value->type == WEFT_RREF)
            sum->meta += 32;
        else if (value->type == WEFT_TENSOR)
            size_tensor(value->as.tensor, sum);
        else if (value->type == WEFT_TENSORS)
            for (size_t k = 0; k < value->as.tensors.count; k++)
                size_tensor(value->as.tensors.items[k], sum);
        else if (value->type == WEFT_LIST)
            size_values(value->as.list, depth + 1, sum);
    }
}

weft_status wfi_pack_fits(weft_args values, char *problem, size_t room)
{
    sizing size = {0};
    size_values(values, 0, &size);
    uint64_t beside = size.meta + size.tiny + BODY_MARGIN;
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

static void add_remote(packing *p, weft_tensor *tensor, size_t patch, size_t landing)
{
    wfi_pack *pack = p->pack;
    if (pack->remote_count == pack->remote_capacity) {
        size_t capacity = pack->remote_capacity ? pack->remote_capacity * 2 : 8;
        wfi_packed *grown = realloc(pack->remote, capacity * sizeof *grown);
        if (!grown) {
            p->status = WEFT_ERR_MEMORY;
            return;
        }
        pack->remote = grown;
        pack->remote_capacity = capacity;
    }
    pack->remote[pack->remote_count++] =
        (wfi_packed){.tensor = weft_tensor_ref(tensor), .patch = patch, .landing = landing};
}

static void pack_rref(packing *p, weft_rref *rref)
{
    wfi_pack *pack = p->pack;
    wfi_rref_name name;
    weft_status st = wfi_rref_pass(rref, &name);
    if (st) {
        p->status = st;
        return;
    }
    if (pack->rref_count == pack->rref_capacity) {
        size_t capacity = pack->rref_capacity ? pack->rref_capacity * 2 : 4;
        weft_rref **grown = realloc(pack->rrefs, capacity * sizeof(*grown));
        if (!grown) {
            p->status = WEFT_ERR_MEMORY;
            return;
        }
        pack->rrefs = grown;
        pack->rref_capacity = capacity;
    }
    pack->rrefs[pack->rref_count++] = weft_rref_ref(rref);
    wfi_write_rref_name(&pack->meta, &name);
}

/* A result that the caller wants in its landing place `index`. */
static void pack_landed(packing *p, weft_tensor *tensor, size_t index)
{
    wfi_write_u8(&p->pack->meta, WFI_ROAD_LANDED);
    wfi_write_u32(&p->pack->meta, (uint32_t)index);
    add_remote(p, tensor, WFI_NO_PATCH, index);
}

static void pack_remote(packing *p, weft_tensor *tensor)
{
    wfi_write_u8(&p->pack->meta, WFI_ROAD_REMOTE);
    size_t patch = p->pack->meta.size;
    wfi_write_u64(&p->pack->meta, 0);
    wfi_write_u64(&p->pack->meta, 0);
    add_remote(p, tensor, patch, 0);
}

static void pack_inline(packing *p, weft_tensor *tensor, size_t nbytes)
{
    wfi_pack *pack = p->pack;
    wfi_write_u8(&pack->meta, WFI_ROAD_META);
    wfi_write_bytes(&pack->meta, weft_tensor_data(tensor), nbytes);
    pack->copied_bytes += wfi_copied(nbytes);
}

static void explain_landing(const packing *p, const weft_tensor *tensor, size_t index)
{
    char result[WFI_TENSOR_TEXT], place[WFI_TENSOR_TEXT];
    const wfi_pack_options *options = p->options;
    if (!options->problem)
        return;
    wfi_tensor_type_text(result, weft_tensor_dtype(tensor), weft_tensor_shape(tensor));
    if (index >= options->landing_count)
        snprintf(options->problem, options->problem_room,
                 "tensor %zu of the results is %s: the caller has %zu landing places", index, result,
                 options->landing_count);
    else
        snprintf(options->problem, options->problem_room, "tensor %zu of the results is %s, its landing place is %s",
                 index, result,
                 wfi_tensor_type_text(place, options->landing[index].dtype, options->landing[index].shape));
}

static bool fits_landing(const packing *p, const weft_tensor *tensor, size_t index)
{
    if (!p->options->landing)
        return true;
    const wfi_landing *place = index < p->options->landing_count ? &p->options->landing[index] : NULL;
    weft_shape have = weft_tensor_shape(tensor);
    if (place && weft_tensor_dtype(tensor) == place->dtype && wfi_shape_equal(&have, &place->shape))
        return true;
    explain_landing(p, tensor, index);
    return false;
}

static void pack_tensor(packing *p, weft_tensor *tensor)
{
    wfi_pack *pack = p->pack;
    size_t index = pack->tensor_count++;
    weft_tensor *flat = weft_tensor_contiguous(tensor);
    if (!flat) {
        p->status = WEFT_ERR_MEMORY;
        return;
    }
    size_t nbytes = weft_tensor_nbytes(flat);
    pack->packed_bytes += flat == tensor ? 0 : nbytes;
    wfi_write_tensor_type(&pack->meta, weft_tensor_dtype(flat), weft_tensor_shape(flat));
    if (!fits_landing(p, flat, index))
        p->status = WEFT_ERR_SHAPE;
    else if (p->all_inline || nbytes <= WFI_TINY_TENSOR)
        pack_inline(p, flat, nbytes);
    else if (p->options->landing)
        pack_landed(p, flat, index);
    else
        pack_remote(p, flat);
    weft_tensor_unref(flat);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static void pack_list(packing *p, weft_args values, int depth);

static void pack_tensors(packing *p, weft_tensors tensors)
{
    wfi_write_u32(&p->pack->meta, (uint32_t)tensors.count);
    for (size_t i = 0; i < tensors.count && !p->status; i++) {
        if (tensors.items[i])
            pack_tensor(p, tensors.items[i]);
        else
            p->status = WEFT_ERR_INVALID;
    }
}

static void pack_bytes(packing *p, const weft_value *value)
{
    if (value->as.bytes.size > UINT32_MAX)
        p->status = WEFT_ERR_TOO_LARGE;
    else if (!value->as.bytes.data && (value->as.bytes.size || value->type == WEFT_STRING))
        p->status = WEFT_ERR_INVALID;
    else {
        wfi_write_blob(&p->pack->meta, value->as.bytes.data, value->as.bytes.size);
        p->pack->copied_bytes += wfi_copied(value->as.bytes.size);
    }
}

static void pack_value(packing *p, const weft_value *value, int depth)
{
    wfi_writer *meta = &p->pack->meta;
    wfi_write_u8(meta, (uint8_t)value->type);
    if (value->type == WEFT_NULL)
        return;
    if (value->type == WEFT_BOOL)
        wfi_write_u8(meta, value->as.boolean);
    else if (value->type == WEFT_I64)
        wfi_write_i64(meta, value->as.i64);
    else if (value->type == WEFT_F64)
        wfi_write_f64(meta, value->as.f64);
    else if (value->type == WEFT_STRING || value->type == WEFT_BYTES)
        pack_bytes(p, value);
    else if (value->type == WEFT_TENSOR && value->as.tensor)
        pack_tensor(p, value->as.tensor);
    else if (value->type == WEFT_TENSORS)
        pack_tensors(p, value->as.tensors);
    else if (value->type == WEFT_RREF && value->as.rref)
        pack_rref(p, value->as.rref);
    else if (value->type == WEFT_LIST)
        pack_list(p, value->as.list, depth + 1);
    else
        p->status = WEFT_ERR_INVALID;
}

static void pack_list(packing *p, weft_args values, int depth)
{
    if (values.count > WEFT_MAX_VALUES || depth > WEFT_MAX_LIST_DEPTH) {
        p->status = WEFT_ERR_TOO_LARGE;
        return;
    }
    wfi_write_u32(&p->pack->meta, (uint32_t)values.count);
    for (size_t i = 0; i < values.count && !p->status; i++)
        pack_value(p, &values.items[i], depth);
}

weft_status wfi_pack_values(wfi_pack *pack, weft_args values, const wfi_pack_options *options)
{
    sizing size = {0};
    size_values(values, 0, &size);
    *pack = (wfi_pack){0};
    packing p = {.pack = pack, .options = options, .status = WEFT_OK};
    p.all_inline = size.payload <= WFI_INLINE_LIMIT && size.payload + size.meta <= WFI_MESSAGE_MAX - 512;
    wfi_writer_init_growing(&pack->meta);
    if (size.tensors > WEFT_MAX_CALL_TENSORS)
        p.status = WEFT_ERR_TOO_LARGE;
    else
        pack_list(&p, values, 0);
    if (!p.status && options->landing && pack->tensor_count != options->landing_count) {
        p.status = WEFT_ERR_SHAPE;
        if (options->problem)
            snprintf(options->problem, options->problem_room, "%zu tensors in the results for %zu landing places",
                     pack->tensor_count, options->landing_count);
    }
    if (!p.status && pack->meta.failed)
        p.status = WEFT_ERR_MEMORY;
    if (p.status)
        wfi_pack_fini(pack);
    return p.status;
}

void wfi_pack_landing_count(wfi_pack *pack, size_t count)
{
    wfi_write_u32(&pack->meta, (uint32_t)count);
}

void wfi_pack_landing(wfi_pack *pack, const weft_tensor *place, uint64_t address, uint64_t key)
{
    wfi_write_tensor_type(&pack->meta, place->dtype, place->shape);
    wfi_write_u64(&pack->meta, address);
    wfi_write_u64(&pack->meta, key);
}

void wfi_pack_fini(wfi_pack *pack)
{
    wfi_shared_pack *shared = pack->shared;
    if (shared) { /* the lists are its */
        pack->remote_count = pack->rref_count = 0;
        pack->rrefs = NULL;
        pack->remote = NULL;
    }
    for (size_t i = 0; i < pack->remote_count; i++)
        weft_tensor_unref(pack->remote[i].tensor);
    for (size_t i = 0; i < pack->rref_count; i++)
        weft_rref_unref(pack->rrefs[i]);
    free(pack->rrefs);
    free(pack->remote);
    free(pack->exposures);
    wfi_storage_unref(pack->meta_storage);
    wfi_writer_fini(&pack->meta);
    *pack = (wfi_pack){0};
    wfi_shared_pack_unref(shared);
}
