/* SPDX-License-Identifier: Apache-2.0 */
/* frame.c - writes and reads frames. A reader accepts exactly what a writer can have written. */
#include "ofi_rdm/rdm.h"

#include "base/codec.h"

#include <assert.h>
#include <string.h>

#define MAGIC 0x31647277u /* "wrd1"; the last character is the version */

void wfrdm_head_write(const wfrdm_head *head, uint8_t out[WFRDM_HEAD_BYTES])
{
    wfi_writer writer;
    wfi_writer_init(&writer, out, WFRDM_HEAD_BYTES);
    wfi_write_u32(&writer, MAGIC);
    wfi_write_u8(&writer, head->kind);
    wfi_write_u8(&writer, head->flags);
    wfi_write_u16(&writer, head->size);
    wfi_write_u64(&writer, head->to);
    wfi_write_u32(&writer, head->sequence);
    wfi_write_u32(&writer, head->consumed);
    wfi_write_u64(&writer, head->total);
    assert(!writer.failed && writer.size == WFRDM_HEAD_BYTES);
}

bool wfrdm_head_read(const uint8_t *bytes, size_t size, wfrdm_head *out)
{
    wfi_reader reader;
    wfi_reader_init(&reader, bytes, size);
    uint32_t magic = wfi_read_u32(&reader);
    out->kind = wfi_read_u8(&reader);
    out->flags = wfi_read_u8(&reader);
    out->size = wfi_read_u16(&reader);
    out->to = wfi_read_u64(&reader);
    out->sequence = wfi_read_u32(&reader);
    out->consumed = wfi_read_u32(&reader);
    out->total = wfi_read_u64(&reader);
    return !reader.failed && magic == MAGIC && out->size == wfi_reader_left(&reader) && out->kind >= WFRDM_HELLO &&
           out->kind <= WFRDM_BYTES;
}

size_t wfrdm_hello_write(const wfrdm_hello *hello, uint8_t *out, size_t room)
{
    wfi_writer writer;
    wfi_writer_init(&writer, out, room);
    wfi_write_u64(&writer, hello->instance);
    wfi_write_u8(&writer, (uint8_t)hello->address_size);
    wfi_write_raw(&writer, hello->address, hello->address_size);
    wfi_write_u8(&writer, (uint8_t)hello->data_size);
    wfi_write_raw(&writer, hello->data, hello->data_size);
    assert(!writer.failed);
    return writer.size;
}

bool wfrdm_hello_read(const uint8_t *bytes, size_t size, wfrdm_hello *out)
{
    wfi_reader reader;
    wfi_reader_init(&reader, bytes, size);
    out->instance = wfi_read_u64(&reader);
    out->address_size = wfi_read_u8(&reader);
    if (out->address_size > sizeof(out->address))
        return false;
    wfi_read_raw(&reader, out->address, out->address_size);
    out->data_size = wfi_read_u8(&reader);
    if (out->data_size > sizeof(out->data))
        return false;
    wfi_read_raw(&reader, out->data, out->data_size);
    return !reader.failed && wfi_reader_left(&reader) == 0;
}

size_t wfrdm_range_write(const wfrdm_range *range, uint8_t *out, size_t room)
{
    wfi_writer writer;
    wfi_writer_init(&writer, out, room);
    wfi_write_u64(&writer, range->remote);
    wfi_write_u64(&writer, range->key);
    wfi_write_u64(&writer, range->size);
    assert(!writer.failed);
    return writer.size;
}

bool wfrdm_range_read(const uint8_t *bytes, size_t size, wfrdm_range *out)
{
    wfi_reader reader;
    wfi_reader_init(&reader, bytes, size);
    out->remote = wfi_read_u64(&reader);
    out->key = wfi_read_u64(&reader);
    out->size = wfi_read_u64(&reader);
    return !reader.failed && wfi_reader_left(&reader) == 0 && out->size >= 1 && out->size <= WFRDM_PIECE_BYTES;
}
