/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffer.h - bytes on their way to or from a descriptor, and the frames in which weft-run and its nodes talk.
 *
 * A frame is a size (32 bits), a type, and fields: numbers of 32 bits, and texts with their sizes. Both ends may be
 * machines of different byte order, so numbers are little-endian.
 */
#ifndef WEFT_RUN_BUFFER_H
#define WEFT_RUN_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A zeroed struct is empty. Without memory the program ends. */
typedef struct buffer {
    char *data;  /* the first byte */
    size_t used; /* bytes from there on */
    char *memory;
    size_t room; /* of `memory` */
} buffer;

void buffer_add(buffer *to, const void *bytes, size_t size);
void buffer_drop(buffer *from, size_t size); /* the first `size` bytes */
void buffer_fini(buffer *done);

typedef enum buffer_end {
    BUFFER_OPEN,   /* there may be more later */
    BUFFER_CLOSED, /* the other end is gone */
    BUFFER_FAILED, /* errno */
} buffer_end;

/* Reads or writes once, without waiting if the descriptor does not wait. buffer_write sends at most 4,096 bytes: a pipe
 * that poll finds writable takes them without waiting. */
buffer_end buffer_read(buffer *to, int fd);
buffer_end buffer_write(buffer *from, int fd);

#define FRAME_MAX (16u << 20)

typedef struct frame { /* of a buffer, which must not change meanwhile */
    uint8_t type;
    bool is_bad; /* a field was missing */
    const char *at, *end;
    size_t size; /* all of it, for buffer_drop */
} frame;

/* Builds one: frame_begin returns what frame_end needs. */
size_t frame_begin(buffer *to, uint8_t type);
void frame_number(buffer *to, int64_t number); /* of 32 bits */
void frame_bytes(buffer *to, const void *bytes, size_t size);
void frame_text(buffer *to, const char *text);
void frame_end(buffer *to, size_t begun);

/* Looks at the first frame. Returns 1; 0 if it is not complete; -1 if it is no frame. */
int frame_first(const buffer *from, frame *out);
int frame_read_number(frame *from); /* 0 if it is missing */
/* Borrowed from the buffer, without a NUL. */
const char *frame_read_bytes(frame *from, size_t *size);
char *frame_read_text(frame *from); /* a copy, which the caller frees; never NULL */

#endif
