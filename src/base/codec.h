/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h - writes and reads numbers and byte strings in little-endian order, within bounds.
 *
 * A writer that has run out of room, or a reader that has run past the end, sets `failed` and does nothing more. The
 * caller checks `failed` once, at the end. A failed reader returns zeros. Reading allocates nothing and copies nothing.
 * No locks.
 */
#ifndef WFI_CODEC_H
#define WFI_CODEC_H

#include <weft/status.h>

#include <endian.h>
#include <string.h> /* memcpy */

typedef struct wfi_writer {
    uint8_t *data;
    size_t size, capacity;
    bool grows;   /* data is malloc'ed and may be enlarged; wfi_writer_fini frees it */
    bool in_room; /* data is still the room of wfi_writer_init_room, and not malloc'ed */
    bool failed;  /* ran out of room or memory */
} wfi_writer;

void wfi_writer_init(wfi_writer *writer, void *data, size_t capacity); /* a fixed buffer */
void wfi_writer_init_growing(wfi_writer *writer);
/* A growing writer that uses the caller's memory first, so that short contents need no allocation. `room` must outlive
 * the writer. */
void wfi_writer_init_room(wfi_writer *writer, void *room, size_t capacity);
void wfi_writer_fini(wfi_writer *writer);
bool wfi_writer_make_room(wfi_writer *writer, size_t size); /* for `size` more bytes; otherwise sets `failed` */
void wfi_write_bytes(wfi_writer *writer, const void *data, size_t size); /* raw, no length */
void wfi_write_blob(wfi_writer *writer, const void *data, size_t size);  /* u32 length, then the bytes */
void wfi_write_string(wfi_writer *writer, const char *text);             /* a blob without the NUL */

typedef struct wfi_reader {
    const uint8_t *data;
    size_t size, at;
    bool failed;
} wfi_reader;

void wfi_reader_init(wfi_reader *reader, const void *data, size_t size);
size_t wfi_reader_left(const wfi_reader *reader);
const uint8_t *wfi_read_bytes(wfi_reader *reader, size_t size);               /* borrowed; NULL on failure */
const uint8_t *wfi_read_blob(wfi_reader *reader, size_t limit, size_t *size); /* fails over `limit` */
/* Copies a string and a NUL into out[capacity]; fails if it does not fit or holds a NUL. */
void wfi_read_string(wfi_reader *reader, char *out, size_t capacity);

/* ---- Numbers (inline, because every message has about a dozen)
 * ------------------------------------------------------- */

/* Writes the first `size` bytes of `little`. */
static inline void wfi_write_raw(wfi_writer *writer, const void *little, size_t size)
{
    if (writer->failed || (size > writer->capacity - writer->size && !wfi_writer_make_room(writer, size)))
        return;
    memcpy(writer->data + writer->size, little, size);
    writer->size += size;
}

static inline void wfi_write_u8(wfi_writer *writer, uint8_t value)
{
    wfi_write_raw(writer, &value, sizeof(value));
}

static inline void wfi_write_u16(wfi_writer *writer, uint16_t value)
{
    value = htole16(value);
    wfi_write_raw(writer, &value, sizeof(value));
}

static inline void wfi_write_u32(wfi_writer *writer, uint32_t value)
{
    value = htole32(value);
    wfi_write_raw(writer, &value, sizeof(value));
}

static inline void wfi_write_u64(wfi_writer *writer, uint64_t value)
{
    value = htole64(value);
    wfi_write_raw(writer, &value, sizeof(value));
}

static inline void wfi_write_i64(wfi_writer *writer, int64_t value)
{
    wfi_write_u64(writer, (uint64_t)value);
}

static inline void wfi_write_f64(wfi_writer *writer, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    wfi_write_u64(writer, bits);
}

/* Reads the next `size` bytes to `little`; nothing on failure. */
static inline void wfi_read_raw(wfi_reader *reader, void *little, size_t size)
{
    reader->failed |= size > reader->size - reader->at;
    if (reader->failed)
        return;
    memcpy(little, reader->data + reader->at, size);
    reader->at += size;
}

static inline uint8_t wfi_read_u8(wfi_reader *reader)
{
    uint8_t value = 0;
    wfi_read_raw(reader, &value, sizeof(value));
    return value;
}

static inline uint16_t wfi_read_u16(wfi_reader *reader)
{
    uint16_t value = 0;
    wfi_read_raw(reader, &value, sizeof(value));
    return le16toh(value);
}

static inline uint32_t wfi_read_u32(wfi_reader *reader)
{
    uint32_t value = 0;
    wfi_read_raw(reader, &value, sizeof(value));
    return le32toh(value);
}

static inline uint64_t wfi_read_u64(wfi_reader *reader)
{
    uint64_t value = 0;
    wfi_read_raw(reader, &value, sizeof(value));
    return le64toh(value);
}

static inline int64_t wfi_read_i64(wfi_reader *reader)
{
    return (int64_t)wfi_read_u64(reader);
}

static inline double wfi_read_f64(wfi_reader *reader)
{
    uint64_t bits = wfi_read_u64(reader);
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

#endif
