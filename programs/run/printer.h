/* SPDX-License-Identifier: Apache-2.0 */
/* printer.h - weft-run's own stdout and stderr: what is to be written there, and whether it can be. */
#ifndef WEFT_RUN_PRINTER_H
#define WEFT_RUN_PRINTER_H

#include "run/buffer.h"

#include <stdbool.h>

/* Index 0 is stdout, 1 is stderr. */
typedef struct printer {
    buffer out[2];
    bool is_shut[2]; /* writing has failed: what is added is dropped */
    int trouble[2];  /* errno of that */
} printer;

/* Adds "weft-run: TEXT" to stderr. */
__attribute__((format(printf, 2, 3))) void printer_say(printer *to, const char *format, ...);
/* Whether so little waits to be written that more may be read from the nodes. */
bool printer_has_room(const printer *of);
/* Writes what can be written. wait_ms: how long to wait for the readers each time, -1 for no limit. */
void printer_write(printer *from, int wait_ms);
void printer_fini(printer *done);

#endif
