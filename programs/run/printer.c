/* SPDX-License-Identifier: Apache-2.0 */
/* printer.c - see printer.h. */
#include "run/printer.h"

#include "run/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PRINTER_MOST (256 << 10)

void printer_say(printer *to, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text - 1, format, args);
    va_end(args);
    buffer_add(&to->out[1], "weft-run: ", 10);
    buffer_add(&to->out[1], text, strlen(text));
    buffer_add(&to->out[1], "\n", 1);
}

bool printer_has_room(const printer *of)
{
    return of->out[0].used < PRINTER_MOST && of->out[1].used < PRINTER_MOST;
}

/*
 * buffer_write does not wait for a pipe or file. It would wait for a terminal that the user has stopped (Ctrl-S), so a
 * terminal is opened again with O_NONBLOCK. On the inherited descriptor, that would change other programs too.
 */
void printer_init(printer *made)
{
    *made = (printer){0};
    for (int which = 0; which < 2; which++) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", which + 1);
        int fd = isatty(which + 1) ? open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
        made->fds[which] = fd >= 0 ? fd : which + 1;
    }
}

static int left_of(int64_t until_ms)
{
    int64_t left_ms = until_ms - clock_ms();
    return until_ms < 0 ? -1 : left_ms < 0 ? 0 : (int)left_ms;
}

static void write_one(printer *from, int which, int64_t until_ms)
{
    struct pollfd room = {.fd = from->fds[which], .events = POLLOUT};
    while (!from->is_shut[which] && from->out[which].used > 0 && poll(&room, 1, left_of(until_ms)) == 1) {
        if (buffer_write(&from->out[which], from->fds[which]) == BUFFER_FAILED) {
            from->is_shut[which] = true;
            from->trouble[which] = errno;
        }
    }
    if (from->is_shut[which])
        buffer_drop(&from->out[which], from->out[which].used);
}

void printer_write(printer *from)
{
    for (int which = 0; which < 2; which++)
        write_one(from, which, 0);
}

void printer_finish(printer *done, int64_t wait_ms)
{
    int64_t until_ms = wait_ms < 0 ? -1 : clock_ms() + wait_ms;
    write_one(done, 0, until_ms);
    if (done->out[0].used > 0)
        printer_say(done, "nobody read the last %zu bytes of the output: they are dropped", done->out[0].used);
    write_one(done, 1, until_ms);
    for (int which = 0; which < 2; which++) {
        buffer_fini(&done->out[which]);
        if (done->fds[which] > 2)
            close(done->fds[which]);
    }
}
