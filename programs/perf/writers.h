/* SPDX-License-Identifier: Apache-2.0 */
/* writers.h - the forms of results: a table for people, JSON (written and read), SVG. */
#ifndef WEFT_PERF_WRITERS_H
#define WEFT_PERF_WRITERS_H

#include "perf/run_report.h"

#include <stdio.h>

/* Writes one row. `before` is the row above it, or NULL. If `r` begins another measurement, a title and column heads
 * come first. */
void table_write(FILE *to, const result *r, const result *before);
void json_write(FILE *to, const run_report *run);
/* Reads a file that json_write wrote. False; `why` has the sentence. */
bool json_read(const char *path, run_report *out, char *why, size_t room);

/* The file of a picture, open before anything is measured. Its former content stays until svg_write. */
typedef struct picture {
    const char *path;
    int fd;
    bool is_new; /* the file did not exist */
} picture;
/* Both return false after a line on stderr. svg_write closes the file; svg_drop does, and leaves no empty file. */
bool svg_open(picture *out, const char *path);
bool svg_write(picture *to, const run_report *run);
void svg_drop(picture *to);
/* Prints the ratio of the medians for each result that both runs have. Returns how many ratios exceed `bound`, which
 * count as slower; -1: no result could be compared. */
int compare_write(FILE *to, const results *old, const results *now, double bound);

/* Write "64 KiB" ("-" for 0) and "4 in flight, 3 workers" to `buffer`, which has at least 48 bytes, and return it. */
const char *size_text(int64_t bytes, char *buffer);
const char *load_text(const result *r, char *buffer);

#endif
