/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floors.h - the floors: two processes that exchange the same data without weft, in slices that alternate with weft's.
 *
 * tcp and verbs: libfabric alone (common/raw_pair.h). host: plain shared memory and process_vm_readv (memory_pair.h).
 * Each function measures for about `us` microseconds, and adds at least one sample to `out`. On failure it prints a
 * line to stderr and returns false.
 */
#ifndef WEFT_PERF_FLOORS_H
#define WEFT_PERF_FLOORS_H

#include "common/measure.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct floors floors;

/* Forks: call it before there are threads. NULL: there is no floor for this fabric, or it does not open. `most` is the
 * largest transfer. */
floors *floors_open(const char *fabric, size_t most);
void floors_close(floors *f); /* NULL does nothing */

/* Round trips of a message of at most FLOOR_TRIP_MOST bytes. For larger sizes use floors_move. */
bool floors_trips(floors *f, size_t bytes, double us, series *out);
/* A tensor moved one way (a remote read), or there and back. */
bool floors_move(floors *f, size_t bytes, bool is_back, double us, series *out);
/* Round trips a second with `window` of them in flight. */
bool floors_rate(floors *f, unsigned window, double us, series *out);
bool floors_has_rate(const floors *f);
const char *floors_trips_name(const floors *f);
const char *floors_move_name(const floors *f);

#define FLOOR_TRIP_MOST 4096

#endif
