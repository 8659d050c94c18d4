/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure.h - what every benchmark does: take the time, and collect samples.
 *
 * A machine that others use too is never quiet. So nothing is compared across runs. The things compared are measured
 * in short slices in turn (raw, weft, raw, weft ...), and the ratio is formed in the same run.
 */
#ifndef PERF_MEASURE_H
#define PERF_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

double measure_now_us(void);

/* Samples of one quantity. Zeroed = empty. */
typedef struct series {
    double *values;
    size_t count, room;
} series;

void series_add(series *s, double value); /* ends the program if memory is out */
void series_fini(series *s);

typedef struct summary {
    double min, p50, p99;
} summary;
summary series_summary(series *s); /* sorts; zeros if empty */

/* "8 B", "64 KiB", "16 MiB" in a buffer of at least 32 bytes; returns it. */
const char *measure_bytes_name(size_t bytes, char *buffer);

#endif
