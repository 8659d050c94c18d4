/* SPDX-License-Identifier: Apache-2.0 */
/* lines.c - see lines.h. */
#include "run/lines.h"

#include <stdio.h>
#include <string.h>

void lines_init(lines *made, int rank, bool has_prefix)
{
    *made = (lines){0};
    if (has_prefix)
        snprintf(made->prefix, sizeof made->prefix, "[%d] ", rank);
}

static void put_line(lines *from, const char *bytes, size_t size, buffer *to)
{
    buffer_add(to, from->prefix, strlen(from->prefix));
    buffer_add(to, from->rest.data, from->rest.used);
    buffer_add(to, bytes, size);
    buffer_add(to, "\n", 1);
    buffer_drop(&from->rest, from->rest.used);
}

void lines_take(lines *from, const char *bytes, size_t size, buffer *to)
{
    if (!from->prefix[0]) {
        buffer_add(to, bytes, size);
        return;
    }
    while (size > 0) {
        size_t most = LINE_MAX_BYTES - from->rest.used; /* the line may still end behind them */
        const char *end = memchr(bytes, '\n', size > most ? most + 1 : size);
        size_t length = end ? (size_t)(end - bytes) : most;
        if (!end && size <= most) {
            buffer_add(&from->rest, bytes, size);
            return;
        }
        put_line(from, bytes, length, to);
        length += end ? 1 : 0;
        bytes += length;
        size -= length;
    }
}

void lines_end(lines *from, buffer *to)
{
    if (from->rest.used > 0)
        put_line(from, NULL, 0, to);
    buffer_fini(&from->rest);
}
