/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - how a training run goes, and how it went: the live line, and lines of the final table. */
#ifndef EXAMPLES_REPORT_H
#define EXAMPLES_REPORT_H

#include <weft/status.h>

#include <stdbool.h>
#include <stdint.h>

/* Seconds on a clock that is never set. */
double clock_seconds(void);

/* ---- Progress: what trainers have reported so far, shown in a line that is overwritten on a terminal ------------ */

/* The lock of its owner covers it. */
typedef struct progress {
    int64_t total;           /* updates of the model that are expected */
    const char *unit;        /* plural name of the items: "images" */
    bool quiet;              /* show nothing */
    int64_t updates, items;  /* so far */
    double loss, first_loss; /* mean over about the last twenty; the first */
    double began, ended;     /* clock_seconds of progress_begin, and of the last update */
    double shown;            /* clock_seconds of the last line */
} progress;

/* Starts the clock. Further calls do nothing. */
void progress_begin(progress *progress);
/* Adds the mean loss of `steps` steps of a trainer, and their items. */
void progress_add(progress *progress, int64_t steps, double loss, int64_t items);
/*
 * Adds updates of the model, and shows a line with the time left if the last line is old enough (0.2 s on a terminal,
 * 2 s elsewhere), or if these are the last updates.
 */
void progress_update(progress *progress, int64_t updates);
double progress_seconds(const progress *progress);

/* Prints a line of the final table: a name, and its value. */
void report_line(const char *name, const char *format, ...) WEFT_PRINTF(2, 3);

#endif
