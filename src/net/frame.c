/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.c - the form of frames on control lanes.
 *
 *   0  u16 magic        2  u8 version      3  u8 count of messages
 *   4  u32 incarnation of the sender       8  u64 sequence of the first message
 *  16  u64 last sequence received          24 u32 frames consumed on this lane    28 u32 size of the frame
 *  32  u64 keyed hash of the 32 bytes before
 *  40  messages: u8 type, u8 zero, u16 size, bytes
 *
 * The key is the pair's own and of one direction (hello.c), so that a frame can be neither forged nor turned round.
 */
#include "net/net_internal.h"

#include "base/codec.h"

#include <string.h>

#define MAGIC 0x5745
#define VERSION 1
#define HASHED 32

static_assert(crypto_shorthash_BYTES == WFI_FRAME_HEAD - HASHED, "the hash ends the head");
static_assert(WFI_MESSAGE_MAX + WFI_FRAME_HEAD + WFI_MESSAGE_HEAD <= WFI_FRAME_BYTES, "one message fits a frame");

void wfi_frame_write(const wfi_frame *frame, const uint8_t key[crypto_shorthash_KEYBYTES], uint8_t *out)
{
    wfi_writer writer;
    wfi_writer_init(&writer, out, HASHED);
    wfi_write_u16(&writer, MAGIC);
    wfi_write_u8(&writer, VERSION);
    wfi_write_u8(&writer, (uint8_t)frame->count);
    wfi_write_u32(&writer, frame->incarnation);
    wfi_write_u64(&writer, frame->first);
    wfi_write_u64(&writer, frame->ack);
    wfi_write_u32(&writer, frame->consumed);
    wfi_write_u32(&writer, frame->size);
    assert(!writer.failed && writer.size == HASHED);
    crypto_shorthash(out + HASHED, out, HASHED, key);
}

bool wfi_frame_read(const uint8_t *data, size_t size, const uint8_t key[crypto_shorthash_KEYBYTES], wfi_frame *out)
{
    if (size < WFI_FRAME_HEAD)
        return false;
    wfi_reader reader;
    wfi_reader_init(&reader, data, HASHED);
    uint16_t magic = wfi_read_u16(&reader);
    uint8_t version = wfi_read_u8(&reader);
    out->count = wfi_read_u8(&reader);
    out->incarnation = wfi_read_u32(&reader);
    out->first = wfi_read_u64(&reader);
    out->ack = wfi_read_u64(&reader);
    out->consumed = wfi_read_u32(&reader);
    out->size = wfi_read_u32(&reader);
    if (magic != MAGIC || version != VERSION || out->size != size)
        return false;
    uint8_t hash[crypto_shorthash_BYTES];
    crypto_shorthash(hash, data, HASHED, key);
    return sodium_memcmp(hash, data + HASHED, sizeof(hash)) == 0;
}

void wfi_frame_message(uint8_t out[WFI_MESSAGE_HEAD], uint8_t type, size_t size)
{
    out[0] = type;
    out[1] = 0;
    out[2] = (uint8_t)(size & 0xff);
    out[3] = (uint8_t)(size >> 8);
}

bool wfi_frame_next(const uint8_t *data, size_t size, size_t *at, uint8_t *type, const uint8_t **bytes, size_t *length)
{
    if (size - *at < WFI_MESSAGE_HEAD)
        return false;
    const uint8_t *head = data + *at;
    size_t wanted = (size_t)head[2] | (size_t)head[3] << 8;
    if (head[0] >= 0xF0 || head[1] != 0 || wanted > WFI_MESSAGE_MAX || wanted > size - *at - WFI_MESSAGE_HEAD)
        return false;
    *type = head[0];
    *bytes = head + WFI_MESSAGE_HEAD;
    *length = wanted;
    *at += WFI_MESSAGE_HEAD + wanted;
    return true;
}
