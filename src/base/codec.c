/* SPDX-License-Identifier: Apache-2.0 */
/* codec.c - writes and reads byte strings, and grows writers; numbers are in codec.h. */
#include "base/codec.h"

#include <assert.h>
#include <stdlib.h> /* realloc, free */
#include <string.h>

#define GROW_MIN 256 /* the size of a small message */

void wfi_writer_init(wfi_writer *writer, void *data, size_t capacity)
{
    *writer = (wfi_writer){.data = data, .capacity = capacity};
}

void wfi_writer_init_growing(wfi_writer *writer)
{
    *writer = (wfi_writer){.grows = true};
}

void wfi_writer_init_room(wfi_writer *writer, void *room, size_t capacity)
{
    *writer = (wfi_writer){.data = room, .capacity = capacity, .grows = true, .in_room = true};
}

void wfi_writer_fini(wfi_writer *writer)
{
    if (writer->grows && !writer->in_room)
        free(writer->data);
    *writer = (wfi_writer){.failed = true}; /* further writes fail */
}

static bool grow(wfi_writer *writer, size_t need)
{
    size_t capacity = writer->capacity < GROW_MIN ? GROW_MIN : writer->capacity;
    uint8_t *data;
    while (capacity < need) {
        if (__builtin_mul_overflow(capacity, (size_t)2, &capacity))
            return false;
    }
    data = realloc(writer->in_room ? NULL : writer->data, capacity);
    if (!data)
        return false;
    if (writer->in_room)
        memcpy(data, writer->data, writer->size);
    writer->in_room = false;
    writer->data = data;
    writer->capacity = capacity;
    return true;
}

bool wfi_writer_make_room(wfi_writer *writer, size_t size)
{
    size_t end;
    if (!writer->failed && (__builtin_add_overflow(writer->size, size, &end) ||
                            (end > writer->capacity && !(writer->grows && grow(writer, end)))))
        writer->failed = true;
    return !writer->failed;
}

void wfi_write_bytes(wfi_writer *writer, const void *data, size_t size)
{
    if (size == 0) /* data may be NULL, which memcpy does not allow */
        return;
    wfi_write_raw(writer, data, size);
}

void wfi_write_blob(wfi_writer *writer, const void *data, size_t size)
{
    if (size > UINT32_MAX) {
        writer->failed = true;
        return;
    }
    wfi_write_u32(writer, (uint32_t)size);
    wfi_write_bytes(writer, data, size);
}

void wfi_write_string(wfi_writer *writer, const char *text)
{
    wfi_write_blob(writer, text, strlen(text));
}

void wfi_reader_init(wfi_reader *reader, const void *data, size_t size)
{
    *reader = (wfi_reader){.data = data, .size = size};
}

size_t wfi_reader_left(const wfi_reader *reader)
{
    assert(reader->at <= reader->size);
    return reader->failed ? 0 : reader->size - reader->at;
}

const uint8_t *wfi_read_bytes(wfi_reader *reader, size_t size)
{
    static const uint8_t nothing; /* reading an empty string succeeds, even if `data` is NULL */
    const uint8_t *at;
    if (reader->failed || size > reader->size - reader->at) {
        reader->failed = true;
        return NULL;
    }
    if (size == 0)
        return &nothing;
    at = reader->data + reader->at;
    reader->at += size;
    return at;
}

const uint8_t *wfi_read_blob(wfi_reader *reader, size_t limit, size_t *size)
{
    uint32_t length = wfi_read_u32(reader);
    const uint8_t *at;
    *size = 0;
    if (length > limit)
        reader->failed = true;
    at = wfi_read_bytes(reader, length);
    if (at)
        *size = length;
    return at;
}

void wfi_read_string(wfi_reader *reader, char *out, size_t capacity)
{
    size_t size;
    const uint8_t *text;
    assert(capacity > 0);
    out[0] = '\0';
    text = wfi_read_blob(reader, capacity - 1, &size);
    if (!text)
        return;
    if (memchr(text, 0, size)) {
        reader->failed = true;
        return;
    }
    memcpy(out, text, size);
    out[size] = '\0';
}
