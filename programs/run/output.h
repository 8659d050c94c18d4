/* SPDX-License-Identifier: Apache-2.0 */
/* output.h - what weft-run prints: the output of the workers, as lines with the rank in front, and its own lines. */
#ifndef WEFT_RUN_OUTPUT_H
#define WEFT_RUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes on their way to a descriptor. A zeroed struct is empty. If memory is exhausted, the program ends. */
typedef struct buffer {
    char *memory;
    size_t begin, used; /* the bytes begin at memory + begin */
    size_t room;        /* of `memory` */
} buffer;

void buffer_add(buffer *to, const void *bytes, size_t size);
void buffer_drop(buffer *from, size_t size); /* the first `size` bytes */
/* Writes at most 4,096 bytes, which a pipe that poll finds writable takes without waiting. False: errno; EAGAIN and
 * EINTR are no failures. */
bool buffer_write(buffer *from, int fd);
void buffer_fini(buffer *done);

#define LINE_MAX_BYTES (64 << 10) /* a longer line is printed in pieces, each as a line of its own */

/* One stream of one worker. */
typedef struct lines {
    char prefix[16]; /* "[3] "; "": the output passes unchanged */
    buffer rest;     /* the beginning of a line whose end is missing */
} lines;

/* Adds the lines that are complete to `to`. */
void lines_take(lines *from, const char *bytes, size_t size, buffer *to);
/* The worker has ended: the last line is printed even without an end. */
void lines_end(lines *from, buffer *to);

/* weft-run's own stdout (index 0) and stderr (index 1). */
typedef struct output {
    int fds[2];
    buffer out[2];
    int errnum[2]; /* errno: writing has failed, and the bytes are dropped; 0: not so far */
} output;

void output_init(output *made);
/* Adds "weft-run: TEXT" to stderr. */
__attribute__((format(printf, 2, 3))) void output_say(output *to, const char *format, ...);
/* Whether so little waits to be written that more of this stream is read from the workers. */
bool output_has_room(const output *of, int which);
/* Writes one of the two, and waits for its reader, at most wait_ms; 0: does not wait; -1: without limit. */
void output_write(output *from, int which, int64_t wait_ms);
void output_fini(output *done);

#endif
