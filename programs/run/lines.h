/* SPDX-License-Identifier: Apache-2.0 */
/* lines.h - the output of one worker, as whole lines with the rank in front: "[3] ". */
#ifndef WEFT_RUN_LINES_H
#define WEFT_RUN_LINES_H

#include "run/buffer.h"

#define LINE_MAX_BYTES (64 << 10) /* a longer line is printed in pieces, each as a line of its own */

typedef struct lines {
    char prefix[16]; /* "": the output passes unchanged */
    buffer rest;     /* the beginning of a line whose end is missing */
} lines;

void lines_init(lines *made, int rank, bool has_prefix);
/* Adds the lines that are complete to `to`. */
void lines_take(lines *from, const char *bytes, size_t size, buffer *to);
/* The worker has ended: the last line is printed even without an end. */
void lines_end(lines *from, buffer *to);

#endif
