/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_pair.h - the floor: two processes that speak libfabric and nothing else, measured in slices.
 *
 * Each side has one connected endpoint (FI_EP_MSG) of the provider and a completion queue that it polls without pause while
 * a slice runs. Between slices the other process sleeps, so it may stay open while something else is measured.
 * Every function returns 0, or -1 with a line on stderr.
 */
#ifndef PERF_RAW_PAIR_H
#define PERF_RAW_PAIR_H

#include "measure.h"

#define RAW_PAIR_WINDOW_MAX 256

typedef struct raw_pair raw_pair;

/* Forks: call it before there are threads. `bulk_bytes` is the largest transfer. provider NULL: tcp. */
int raw_pair_open(const char *provider, size_t bulk_bytes, raw_pair **out);
void raw_pair_close(raw_pair *pair); /* NULL is a no-op */

/* `count` round trips of `bytes` (at most 4096), one after the other; each one's microseconds go to `out`. */
int raw_pair_trips(raw_pair *pair, size_t bytes, unsigned count, series *out);

/* The same with `window` of them under way; `us` is the time of all. */
int raw_pair_window(raw_pair *pair, size_t bytes, unsigned count, unsigned window, double *us);

/*
 * One remote read or write (both: a read, then a write) of `bytes`, cut into chunks of `cut.chunk` with `cut.window` of them
 * under way, repeated `count` times; each one's microseconds go to `out`.
 */
enum { RAW_READ = 1, RAW_WRITE = 2 };
typedef struct raw_cut {
    size_t chunk;
    unsigned window;
} raw_cut;
int raw_pair_bulk(raw_pair *pair, int what, size_t bytes, raw_cut cut, unsigned count, series *out);

/* The fastest of the cuts from 64 KiB to all in one and of windows from 1 to 8, each tried a few times in turn,
 * in about 3 s at most. */
int raw_pair_best_cut(raw_pair *pair, int what, size_t bytes, raw_cut *out);

/* libfabric's version, as "1.17". */
const char *raw_pair_version(const raw_pair *pair);

#endif
