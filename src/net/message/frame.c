/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.c - the format of frames, on control channels.
 *
 *   0  u64 MAC (SipHash-2-4) of everything after it; in a long or large frame only up to byte WFI_LONG_HASHED: the
 *      rest is not covered, like data moved by remote reads and writes. On a private connection
 *      (wfi_conn_is_private): 0
 *   8  u16 magic        10  u8 version     11  u8 count of messages
 *  12  u32 number of this frame on its connection, from 0
 *  16  u64 sequence of the first message   24  u64 last sequence received
 *  32  u32 frames consumed on this connection                             36  u32 size of the frame
 *  40  messages: u8 type, u24 size, bytes
 *
 * The key belongs to one connection and one direction (handshake.c). So a frame that was forged, changed, sent back to
 * its sender or taken from another connection has a wrong MAC. The number of a frame shows that it was neither
 * replayed nor reordered. Nobody but the peer can write to a private connection, so its frames need no MAC.
 */
#include "net/message/message.h"

#include "base/codec.h"

#include <string.h>

#define MAGIC 0x5745
#define VERSION 14
#define HASH crypto_shorthash_BYTES
#define FIELDS (WFI_FRAME_HEAD - HASH)

static_assert(WFI_MESSAGE_MAX + WFI_FRAME_HEAD + WFI_MESSAGE_HEAD <= WFI_FRAME_BYTES, "one message fits a frame");

static size_t hashed(size_t size)
{
    return (size > WFI_FRAME_BYTES ? WFI_LONG_HASHED : size) - HASH;
}

void wfi_frame_write(const wfi_frame *frame, const uint8_t *key, uint8_t *out)
{
    wfi_writer writer;
    wfi_writer_init(&writer, out + HASH, FIELDS);
    wfi_write_u16(&writer, MAGIC);
    wfi_write_u8(&writer, VERSION);
    wfi_write_u8(&writer, (uint8_t)frame->count);
    wfi_write_u32(&writer, frame->number);
    wfi_write_u64(&writer, frame->first);
    wfi_write_u64(&writer, frame->ack);
    wfi_write_u32(&writer, frame->consumed);
    wfi_write_u32(&writer, frame->size);
    assert(!writer.failed && writer.size == FIELDS);
    if (key)
        crypto_shorthash(out, out + HASH, hashed(frame->size), key);
    else
        memset(out, 0, HASH);
}

bool wfi_frame_read(const uint8_t *data, size_t size, const uint8_t *key, wfi_frame *out)
{
    if (size < WFI_FRAME_HEAD)
        return false;
    wfi_reader reader;
    wfi_reader_init(&reader, data + HASH, FIELDS);
    uint16_t magic = wfi_read_u16(&reader);
    uint8_t version = wfi_read_u8(&reader);
    out->count = wfi_read_u8(&reader);
    out->number = wfi_read_u32(&reader);
    out->first = wfi_read_u64(&reader);
    out->ack = wfi_read_u64(&reader);
    out->consumed = wfi_read_u32(&reader);
    out->size = wfi_read_u32(&reader);
    if (magic != MAGIC || version != VERSION || out->size != size)
        return false;
    if (!key) {
        static const uint8_t no_hash[HASH];
        return memcmp(data, no_hash, HASH) == 0;
    }
    uint8_t hash[HASH];
    crypto_shorthash(hash, data + HASH, hashed(size), key);
    return sodium_memcmp(hash, data, sizeof(hash)) == 0;
}

void wfi_frame_message(uint8_t out[WFI_MESSAGE_HEAD], uint8_t type, size_t size)
{
    out[0] = type;
    out[1] = (uint8_t)(size & 0xff);
    out[2] = (uint8_t)(size >> 8 & 0xff);
    out[3] = (uint8_t)(size >> 16);
}

bool wfi_frame_next(const uint8_t *data, size_t size, size_t *at, uint8_t *type, const uint8_t **bytes, size_t *length)
{
    if (size - *at < WFI_MESSAGE_HEAD)
        return false;
    const uint8_t *head = data + *at;
    size_t wanted = (size_t)head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16;
    if (head[0] >= WFI_NET_MESSAGES_END || wanted > WFI_LARGE_MESSAGE_MAX || wanted > size - *at - WFI_MESSAGE_HEAD)
        return false;
    *type = head[0];
    *bytes = head + WFI_MESSAGE_HEAD;
    *length = wanted;
    *at += WFI_MESSAGE_HEAD + wanted;
    return true;
}
