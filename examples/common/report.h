/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - how a training run goes, and how it went: the live line; the final table, as text and as JSON. */
#ifndef EXAMPLES_REPORT_H
#define EXAMPLES_REPORT_H

#include <weft/status.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

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

/* ---- The report: each value is a line of the table on standard output, and a value of the JSON file ------------- */

typedef struct report {
    bool quiet; /* no table */
    FILE *json; /* NULL: no file */
    const char *path;
    int count; /* values in the file */
} report;

/* `path` NULL: no file. WEFT_ERR_IO: the file cannot be made; a line is printed. */
WEFT_NODISCARD weft_status report_open(report *out, const char *path, bool quiet);
/* Adds a value with its key in the file, and its name in the table; NULL: not in the table. `digits` behind the point
 * are shown in the table. */
void report_number(report *report, const char *key, const char *name, int digits, double value);
void report_bytes(report *report, const char *key, const char *name, uint64_t bytes);
void report_text(report *report, const char *key, const char *name, const char *value);
/* Adds a list to the file. */
void report_list(report *report, const char *key, const double *values, int64_t count);
/* WEFT_ERR_IO: the file could not be written; a line is printed. */
WEFT_NODISCARD weft_status report_close(report *report);

#endif
