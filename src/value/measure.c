/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - how much memory a body asks for, read before any is taken. */
#include "value/decode.h"

#define TENSOR_OVERHEAD 256 /* a tensor and its storage, about */
#define RREF_OVERHEAD 512   /* a handle, its place in the tables, and the message that announces it */

typedef struct measuring {
    wfi_reader meta;
    uint64_t bytes;
    wfi_tensor_types *types; /* NULL: nobody asks */
} measuring;

static void add(measuring *m, uint64_t bytes)
{
    m->bytes = bytes > UINT64_MAX - m->bytes ? UINT64_MAX : m->bytes + bytes;
}

static void note_type(wfi_tensor_types *types, weft_dtype dtype, weft_shape shape)
{
    if (types->count < WEFT_MAX_SIGNATURE)
        types->items[types->count] = (wfi_tensor_type){dtype, shape};
    types->count++;
}

static void measure_tensor(measuring *m)
{
    weft_dtype dtype;
    weft_shape shape;
    uint64_t nbytes = 0;
    if (!wfi_read_tensor_type(&m->meta, &dtype, &shape, &nbytes))
        return;
    if (m->types)
        note_type(m->types, dtype, shape);
    add(m, nbytes);
    add(m, TENSOR_OVERHEAD);
    uint8_t road = wfi_read_u8(&m->meta);
    if (road == WFI_ROAD_META)
        (void)wfi_read_bytes(&m->meta, nbytes);
    else if (road == WFI_ROAD_REMOTE)
        (void)wfi_read_bytes(&m->meta, 16);
    else if (road == WFI_ROAD_LANDED)
        (void)wfi_read_u32(&m->meta);
    else if (road != WFI_ROAD_PART)
        m->meta.failed = true;
}

static void measure_list(measuring *m, int depth);

static void measure_value(measuring *m, int depth)
{
    weft_type type = (weft_type)wfi_read_u8(&m->meta);
    size_t size;
    if (type == WEFT_BOOL) {
        (void)wfi_read_u8(&m->meta);
    } else if (type == WEFT_I64 || type == WEFT_F64) {
        (void)wfi_read_u64(&m->meta);
    } else if (type == WEFT_STRING || type == WEFT_BYTES) {
        (void)wfi_read_blob(&m->meta, UINT32_MAX, &size);
        add(m, m->meta.failed ? 0 : size);
    } else if (type == WEFT_TENSOR) {
        measure_tensor(m);
    } else if (type == WEFT_TENSORS) {
        for (uint32_t left = wfi_read_u32(&m->meta); left && !m->meta.failed; left--)
            measure_tensor(m);
    } else if (type == WEFT_RREF) {
        (void)wfi_read_rref_name(&m->meta);
        add(m, RREF_OVERHEAD);
    } else if (type == WEFT_LIST) {
        measure_list(m, depth + 1);
    } else if (type != WEFT_NULL) {
        m->meta.failed = true;
    }
}

static void measure_list(measuring *m, int depth)
{
    uint32_t count = wfi_read_u32(&m->meta);
    if (count > WEFT_MAX_VALUES || depth > WEFT_MAX_LIST_DEPTH)
        m->meta.failed = true;
    else
        add(m, count * sizeof(weft_value));
    for (; count && !m->meta.failed; count--)
        measure_value(m, depth);
}

weft_status wfi_unpack_measure(const uint8_t *meta, size_t size, uint64_t *bytes, wfi_tensor_types *types)
{
    measuring m = {.bytes = 0, .types = types};
    if (types)
        types->count = 0;
    wfi_reader_init(&m.meta, meta, size);
    measure_list(&m, 0);
    *bytes = m.bytes;
    return m.meta.failed ? WEFT_ERR_PROTOCOL : WEFT_OK;
}
