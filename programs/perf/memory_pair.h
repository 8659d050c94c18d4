/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_pair.h - the floor of the fabric host: two processes that poll a shared page, and that read each other's
 * memory with process_vm_readv. Between slices the other process sleeps. A function that returns false has called
 * helper_say.
 */
#ifndef WEFT_PERF_MEMORY_PAIR_H
#define WEFT_PERF_MEMORY_PAIR_H

#include "common/measure.h"

typedef struct memory_pair memory_pair;

/* Forks. False if that fails, or if reading the other's memory is forbidden. The pair lives as long as this process. */
bool memory_pair_open(size_t most, memory_pair **out);
/* `count` round trips; each side copies `bytes` (at most 4096) into the page. */
bool memory_pair_trips(memory_pair *p, size_t bytes, unsigned count, series *out);
/* Reads `bytes` bytes `times` times in a row, and adds the microseconds of the row to `out`. Repeats that `count`
 * times. */
bool memory_pair_read(memory_pair *p, size_t bytes, int times, unsigned count, series *out);

#endif
