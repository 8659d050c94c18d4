/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_pair.h - the floor of tcp and verbs: two processes that speak libfabric and nothing else.
 *
 * Each has one connected endpoint (FI_EP_MSG) of the provider, and polls its completion queue without pause while a
 * slice runs. Between slices the other process sleeps. A function that returns false has called helper_say.
 */
#ifndef WEFT_PERF_RAW_PAIR_H
#define WEFT_PERF_RAW_PAIR_H

#include "common/measure.h"

typedef struct raw_pair raw_pair;

/* Forks. `bulk_bytes` is the largest transfer. The pair lives as long as this process. */
bool raw_pair_open(const char *provider, size_t bulk_bytes, raw_pair **out);

/* `count` round trips of `bytes` (at most 4096), one after the other; each one's microseconds go to `out`. */
bool raw_pair_trips(raw_pair *p, size_t bytes, unsigned count, series *out);

/* The same with `window` (at most 256) of them under way; `us` is the time of all. */
bool raw_pair_window(raw_pair *p, size_t bytes, unsigned count, unsigned window, double *us);

/* A remote read of `bytes`, or a read and then a write (both), cut into chunks of `cut.chunk` with `cut.window` of them
 * under way, `count` times; each one's microseconds go to `out`. */
typedef struct raw_cut {
    size_t chunk;
    unsigned window;
} raw_cut;
bool raw_pair_bulk(raw_pair *p, bool both, size_t bytes, raw_cut cut, unsigned count, series *out);

/* The fastest of the cuts from 64 KiB to all in one and of windows from 1 to 8, each tried a few times in turn, in
 * about 3 s at most. */
bool raw_pair_best_cut(raw_pair *p, bool both, size_t bytes, raw_cut *out);

#endif
