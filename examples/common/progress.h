/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - how training goes, as it goes: one line that is written over on a terminal, a line now and then elsewhere. */
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H

#include "tally.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct progress {
    FILE *to; /* NULL: says nothing */
    bool live;
    int64_t updates;  /* in all */
    const char *unit; /* what an "image" of the tally is called, in the plural */
    double last;      /* when something was written */
} progress;

void progress_init(progress *progress, FILE *to, int64_t updates, const char *unit);
/* Writes if it is time (five times a second on a terminal, else every two seconds), and in any case if it is over. */
void progress_show(progress *progress, const tally *tally, uint64_t bytes_moved, bool over);

/* "1.23 GB", decimal. Returns `out`. */
const char *bytes_text(uint64_t bytes, char out[16]);

#endif
