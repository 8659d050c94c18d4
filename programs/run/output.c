/* SPDX-License-Identifier: Apache-2.0 */
/* output.c - see output.h. */
#include "run/output.h"

#include "base/nosignal.h"
#include "run/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITE_BYTES 4096
#define OUTPUT_MOST (256 << 10)

/* ---- Bytes ------------------------------------------------------------------------------------------------------ */

static void need_room(buffer *to, size_t size)
{
    size_t room = to->room ? to->room : 1024;
    if (to->memory && to->room - to->begin - to->used >= size)
        return;
    if (to->used > 0)
        memmove(to->memory, to->memory + to->begin, to->used);
    while (room - to->used < size)
        room *= 2;
    char *larger = realloc(to->memory, room);
    if (!larger) {
        static const char text[] = "weft-run: out of memory\n";
        (void)!write(2, text, sizeof(text) - 1);
        _exit(1);
    }
    *to = (buffer){.memory = larger, .used = to->used, .room = room};
}

void buffer_add(buffer *to, const void *bytes, size_t size)
{
    if (size == 0)
        return;
    need_room(to, size);
    memcpy(to->memory + to->begin + to->used, bytes, size);
    to->used += size;
}

void buffer_drop(buffer *from, size_t size)
{
    from->used -= size;
    from->begin = from->used > 0 ? from->begin + size : 0;
}

bool buffer_write(buffer *from, int fd)
{
    wfi_nosignal saved;
    if (from->used == 0)
        return true;
    wfi_nosignal_begin(&saved);
    ssize_t put = write(fd, from->memory + from->begin, from->used < WRITE_BYTES ? from->used : WRITE_BYTES);
    wfi_nosignal_end(&saved);
    if (put > 0)
        buffer_drop(from, (size_t)put);
    return put >= 0 || errno == EINTR || errno == EAGAIN;
}

void buffer_fini(buffer *done)
{
    free(done->memory);
    *done = (buffer){0};
}

/* ---- Lines ------------------------------------------------------------------------------------------------------ */

static void put_line(lines *from, const char *bytes, size_t size, buffer *to)
{
    buffer_add(to, from->prefix, strlen(from->prefix));
    buffer_add(to, from->rest.memory + from->rest.begin, from->rest.used);
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

/* ---- weft-run's own streams ------------------------------------------------------------------------------------- */

/*
 * buffer_write must not wait: for a terminal that the user has stopped (Ctrl-S), or for a pipe that another program has
 * filled since it was polled. So these are opened again with O_NONBLOCK. On the inherited descriptor, that would change
 * other programs too.
 */
void output_init(output *made)
{
    *made = (output){0};
    for (int which = 0; which < 2; which++) {
        char path[32];
        struct stat about;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", which + 1);
        bool may_fill = isatty(which + 1) || (fstat(which + 1, &about) == 0 && S_ISFIFO(about.st_mode));
        int fd = may_fill ? open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
        made->fds[which] = fd >= 0 ? fd : which + 1;
    }
}

void output_say(output *to, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text) - 1, format, args);
    va_end(args);
    buffer_add(&to->out[1], "weft-run: ", 10);
    buffer_add(&to->out[1], text, strlen(text));
    buffer_add(&to->out[1], "\n", 1);
}

bool output_has_room(const output *of, int which)
{
    return of->out[which].used < OUTPUT_MOST;
}

void output_write(output *from, int which, int64_t wait_ms)
{
    struct pollfd room = {.fd = from->fds[which], .events = POLLOUT};
    int64_t until_ms = clock_ms() + wait_ms;
    while (!from->errnum[which] && from->out[which].used > 0 &&
           poll(&room, 1, wait_ms < 0 ? -1 : clock_left(until_ms)) == 1)
        if (!buffer_write(&from->out[which], from->fds[which]))
            from->errnum[which] = errno;
    if (from->errnum[which])
        buffer_drop(&from->out[which], from->out[which].used);
}

void output_fini(output *done)
{
    for (int which = 0; which < 2; which++) {
        buffer_fini(&done->out[which]);
        if (done->fds[which] > 2)
            close(done->fds[which]);
    }
}
