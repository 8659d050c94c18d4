/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floors.h - the floors: two processes that exchange the same data without weft, in slices that alternate with weft's.
 *
 * tcp and verbs: libfabric alone (raw_pair.h). host: plain shared memory and process_vm_readv (memory_pair.h).
 */
#ifndef WEFT_PERF_FLOORS_H
#define WEFT_PERF_FLOORS_H

#include "common/measure.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct floors floors;

/* The exchanges that a floor measures. */
typedef enum floor_kind {
    FLOOR_TRIP, /* round trips of a message of at most FLOOR_TRIP_MOST bytes; microseconds of each */
    FLOOR_READ, /* a tensor moved one way; microseconds */
    FLOOR_ECHO, /* a tensor moved there and back; microseconds */
    FLOOR_RATE  /* round trips a second with a window of them in flight; not of host */
} floor_kind;
#define FLOOR_TRIP_MOST 4096

/* Forks: call it before there are threads. NULL: there is no floor for this fabric, or it does not open; `why` has the
 * reason. `most` is the largest transfer. */
floors *floors_open(const char *fabric, size_t most, char *why, size_t room);
void floors_close(floors *f);                       /* NULL does nothing */
bool floors_have(const floors *f, floor_kind kind); /* NULL: has none */
const char *floors_name(const floors *f, floor_kind kind);

/* Measures for about `us` microseconds, and adds at least one sample to `out`. False: `why` has the reason, and the
 * floor cannot be used again. */
bool floors_measure(floors *f, floor_kind kind, size_t bytes, unsigned window, double us, series *out, char *why,
                    size_t room);

#endif
