/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - how a run goes, and how it went: sums of what workers report, the live line, the JSON file. */
#ifndef EXAMPLES_REPORT_H
#define EXAMPLES_REPORT_H

#include <weft/status.h>

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Seconds on a clock that is never set. */
double clock_seconds(void);
/* "1.23 GB", decimal. Returns `out`. */
const char *bytes_text(uint64_t bytes, char out[16]);

/* ---- The tally: what training workers have reported so far. The lock of its owner covers it --------------------- */

typedef struct tally {
    int64_t updates;            /* steps of the model */
    int64_t gradients;          /* received */
    int64_t images;             /* that the gradients were computed from */
    double loss, first_loss;    /* mean over about the last twenty; the first */
    double computing, in_calls; /* seconds, summed over trainers; waiting for other trainers counts as in calls */
    double began, ended;        /* clock_seconds: the first request for the model; the last step */
    uint64_t bytes_sent, bytes_copied; /* of the workers that have reported them */
} tally;

/* Sets `began`, the first time it is called. */
void tally_begin(tally *tally);
/* Adds one gradient: its loss, its images, the seconds of computing it and of the trainer's previous call. */
void tally_gradient(tally *tally, double loss, int64_t images, double computing, double in_call);
/* Adds one step of the model. */
void tally_update(tally *tally);
/* Adds `steps` that a trainer made itself: their mean loss, and the sums of the other numbers. */
void tally_steps(tally *tally, int64_t steps, double loss, int64_t images, double computing, double in_calls);
/* The share of their time that trainers spent in calls, 0 to 1. */
double tally_communication(const tally *tally);
double tally_seconds(const tally *tally);

/* ---- The live line: overwritten in place on a terminal, a new line every two seconds elsewhere ------------------ */

typedef struct progress {
    FILE *to; /* NULL: nothing is written */
    bool live;
    int64_t updates;  /* expected in total */
    const char *unit; /* plural name of what the tally counts as images */
    double last;      /* clock_seconds of the last line */
} progress;

void progress_init(progress *progress, FILE *to, int64_t updates, const char *unit);
/* Writes a line if the last one is old enough (0.2 s on a terminal, 2 s elsewhere) or if `over`. */
void progress_show(progress *progress, const tally *tally, uint64_t bytes_moved, bool over);

/* ---- The JSON file ---------------------------------------------------------------------------------------------- */

/*
 * Writes `json` to a temporary file beside `path` and renames it to `path`; deletes `json`. `json` NULL means that
 * memory was exhausted. Links are followed, and the mode of an existing file is kept. A pipe, a device, or the file
 * that is standard output is written in place. WEFT_ERR_IO, WEFT_ERR_MEMORY; `error` receives a line with the file's
 * name.
 */
WEFT_NODISCARD weft_status json_file_write(const char *path, cJSON *json, weft_error **error);

#endif
