/* SPDX-License-Identifier: Apache-2.0 */
/* wire.c - pieces that several call messages have: names of references, dtypes with shapes. */
#include "value/wire.h"

#include "tensor/dtype.h"

#include <stdio.h>

void wfi_reference_write_name(wfi_writer *writer, const wfi_rref_name *name)
{
    wfi_write_u32(writer, name->owner);
    wfi_write_u32(writer, name->owner_incarnation);
    wfi_write_u32(writer, name->creator);
    wfi_write_u32(writer, name->creator_incarnation);
    wfi_write_u64(writer, name->number);
}

wfi_rref_name wfi_reference_read_name(wfi_reader *reader)
{
    wfi_rref_name name;
    name.owner = wfi_read_u32(reader);
    name.owner_incarnation = wfi_read_u32(reader);
    name.creator = wfi_read_u32(reader);
    name.creator_incarnation = wfi_read_u32(reader);
    name.number = wfi_read_u64(reader);
    return name;
}

uint64_t wfi_reference_name_hash(const wfi_hash_key *hash_key, const wfi_rref_name *name)
{
    uint64_t words[3] = {((uint64_t)name->owner << 32) | name->creator,
                         ((uint64_t)name->owner_incarnation << 32) | name->creator_incarnation, name->number};
    return wfi_hash_keyed(hash_key, words, sizeof(words));
}

void wfi_value_write_tensor_type(wfi_writer *writer, weft_dtype dtype, weft_shape shape)
{
    wfi_write_u8(writer, (uint8_t)dtype);
    wfi_write_u8(writer, (uint8_t)shape.ndim);
    for (int i = 0; i < shape.ndim; i++)
        wfi_write_i64(writer, shape.dims[i]);
}

bool wfi_value_read_tensor_type(wfi_reader *reader, wfi_tensor_type *type, uint64_t *nbytes, bool *linked)
{
    uint8_t byte = wfi_read_u8(reader);
    weft_dtype *dtype = &type->dtype;
    weft_shape *shape = &type->shape;
    *dtype = (weft_dtype)(linked ? byte & ~(WFI_LINKED | WFI_NAMES_DEVICES) : byte);
    bool is_placed = linked && byte & WFI_NAMES_DEVICES;
    if (linked)
        *linked = byte & WFI_LINKED;
    type->from = type->to = 0;
    shape->ndim = wfi_read_u8(reader);
    uint64_t bytes = weft_dtype_size(*dtype);
    if (reader->failed || !bytes || shape->ndim > WEFT_MAX_DIMS || (linked && *linked && !wfi_dtype_is_float(*dtype)))
        return !(reader->failed = true);
    for (int i = 0; i < shape->ndim; i++) {
        shape->dims[i] = wfi_read_i64(reader);
        if (shape->dims[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)shape->dims[i], &bytes) || bytes > INT64_MAX)
            reader->failed = true;
    }
    if (is_placed) {
        type->from = wfi_read_u8(reader);
        type->to = wfi_read_u8(reader);
        if (type->from >= WFI_DEVICE_CODES || type->to >= WFI_DEVICE_CODES)
            reader->failed = true;
    }
    *nbytes = bytes;
    return !reader->failed;
}

const char *wfi_value_tensor_type_text(char text[WFI_TENSOR_TEXT], weft_dtype dtype, weft_shape shape)
{
    size_t at = (size_t)snprintf(text, WFI_TENSOR_TEXT, "%s [", weft_dtype_name(dtype));
    for (int i = 0; i < shape.ndim && at < WFI_TENSOR_TEXT; i++)
        at += (size_t)snprintf(text + at, WFI_TENSOR_TEXT - at, "%s%lld", i ? ", " : "", (long long)shape.dims[i]);
    if (at < WFI_TENSOR_TEXT)
        snprintf(text + at, WFI_TENSOR_TEXT - at, "]");
    return text;
}
