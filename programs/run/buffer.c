/* SPDX-License-Identifier: Apache-2.0 */
/* buffer.c - see buffer.h. */
#include "run/buffer.h"

#include "base/quiet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES (64 << 10)
#define WRITE_BYTES 4096

static void need_room(buffer *to, size_t size)
{
    size_t room = to->room ? to->room : 1024;
    if (to->memory && to->room - (size_t)(to->data - to->memory) - to->used >= size)
        return;
    if (to->used > 0)
        memmove(to->memory, to->data, to->used);
    while (room - to->used < size)
        room *= 2;
    char *larger = realloc(to->memory, room);
    if (!larger) {
        static const char text[] = "weft-run: out of memory\n";
        (void)!write(2, text, sizeof text - 1);
        _exit(1);
    }
    to->data = to->memory = larger;
    to->room = room;
}

void buffer_add(buffer *to, const void *bytes, size_t size)
{
    if (size == 0)
        return;
    need_room(to, size);
    memcpy(to->data + to->used, bytes, size);
    to->used += size;
}

void buffer_drop(buffer *from, size_t size)
{
    from->used -= size;
    from->data = from->used > 0 ? from->data + size : from->memory;
}

void buffer_fini(buffer *done)
{
    free(done->memory);
    *done = (buffer){0};
}

static buffer_end end_of(ssize_t got)
{
    if (got > 0)
        return BUFFER_OPEN;
    if (got == 0)
        return BUFFER_CLOSED;
    return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ? BUFFER_OPEN : BUFFER_FAILED;
}

buffer_end buffer_read(buffer *to, int fd)
{
    need_room(to, READ_BYTES);
    ssize_t got = read(fd, to->data + to->used, READ_BYTES);
    to->used += got > 0 ? (size_t)got : 0;
    return end_of(got);
}

buffer_end buffer_write(buffer *from, int fd)
{
    if (from->used == 0)
        return BUFFER_OPEN;
    wfi_quiet quiet;
    wfi_quiet_begin(&quiet);
    ssize_t put = write(fd, from->data, from->used < WRITE_BYTES ? from->used : WRITE_BYTES);
    wfi_quiet_end(&quiet);
    if (put > 0)
        buffer_drop(from, (size_t)put);
    return end_of(put);
}

/* ---- Frames ----------------------------------------------------------------------------------------------------- */

static void put_u32(char *to, uint32_t number)
{
    for (int i = 0; i < 4; i++)
        to[i] = (char)(number >> (8 * i));
}

static uint32_t get_u32(const char *from)
{
    uint32_t number = 0;
    for (int i = 0; i < 4; i++)
        number |= (uint32_t)(unsigned char)from[i] << (8 * i);
    return number;
}

size_t frame_begin(buffer *to, uint8_t type)
{
    size_t begun = to->used;
    frame_number(to, 0);
    buffer_add(to, &type, 1);
    return begun;
}

void frame_number(buffer *to, int64_t number)
{
    char bytes[4];
    put_u32(bytes, (uint32_t)number);
    buffer_add(to, bytes, sizeof bytes);
}

void frame_bytes(buffer *to, const void *bytes, size_t size)
{
    frame_number(to, (int64_t)size);
    buffer_add(to, bytes, size);
}

void frame_text(buffer *to, const char *text)
{
    frame_bytes(to, text, strlen(text));
}

void frame_end(buffer *to, size_t begun)
{
    put_u32(to->data + begun, (uint32_t)(to->used - begun));
}

int frame_first(const buffer *from, frame *out)
{
    if (from->used < 5)
        return 0;
    size_t size = get_u32(from->data);
    if (size < 5 || size > FRAME_MAX)
        return -1;
    if (from->used < size)
        return 0;
    *out = (frame){.type = (uint8_t)from->data[4], .at = from->data + 5, .end = from->data + size, .size = size};
    return 1;
}

int frame_read_number(frame *from)
{
    from->is_bad = from->is_bad || from->end - from->at < 4;
    if (from->is_bad)
        return 0;
    from->at += 4;
    return (int)get_u32(from->at - 4);
}

const char *frame_read_bytes(frame *from, size_t *size)
{
    *size = (uint32_t)frame_read_number(from);
    from->is_bad = from->is_bad || (size_t)(from->end - from->at) < *size;
    if (from->is_bad) {
        *size = 0;
        return from->at;
    }
    from->at += *size;
    return from->at - *size;
}

char *frame_read_text(frame *from)
{
    size_t size;
    buffer text = {0};
    const char *bytes = frame_read_bytes(from, &size);
    buffer_add(&text, bytes, size);
    buffer_add(&text, "", 1);
    return text.data;
}
