/* SPDX-License-Identifier: Apache-2.0 */
/* printer.h - weft-run's own stdout and stderr: what is to be written there, and whether it can be. */
#ifndef WEFT_RUN_PRINTER_H
#define WEFT_RUN_PRINTER_H

#include "run/buffer.h"

#include <stdbool.h>

/* Index 0 is stdout, 1 is stderr. */
typedef struct printer {
    int fds[2];
    buffer out[2];
    bool is_shut[2]; /* writing has failed: what is added is dropped */
    int trouble[2];  /* errno of that */
} printer;

void printer_init(printer *made);
/* Adds "weft-run: TEXT" to stderr. */
__attribute__((format(printf, 2, 3))) void printer_say(printer *to, const char *format, ...);
/* Whether so little waits to be written that the nodes get credit for more. */
bool printer_has_room(const printer *of);
/* Writes what can be written without waiting. */
void printer_write(printer *from);
/* Writes the rest, and waits for the readers, at most wait_ms, -1: without limit. The rest is then
 * dropped, and a line says so. */
void printer_finish(printer *done, int64_t wait_ms);

#endif
