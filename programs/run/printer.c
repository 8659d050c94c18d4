/* SPDX-License-Identifier: Apache-2.0 */
/* printer.c - see printer.h. */
#include "run/printer.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

void printer_write(printer *from, int wait_ms)
{
    for (int which = 0; which < 2; which++) {
        struct pollfd room = {.fd = which + 1, .events = POLLOUT};
        while (!from->is_shut[which] && from->out[which].used > 0 && poll(&room, 1, wait_ms) == 1) {
            if (buffer_write(&from->out[which], which + 1) == BUFFER_FAILED) {
                from->is_shut[which] = true;
                from->trouble[which] = errno;
            }
        }
        if (from->is_shut[which])
            buffer_drop(&from->out[which], from->out[which].used);
    }
}

void printer_fini(printer *done)
{
    for (int which = 0; which < 2; which++)
        buffer_fini(&done->out[which]);
}
