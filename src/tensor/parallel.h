/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallel.h - a loop cut into fixed pieces that a few threads share.
 *
 * The pieces depend on `count` and `grain` alone, never on the number of threads: what is summed piece by piece and joined
 * in order has the same bits on any machine.
 */
#ifndef WFI_PARALLEL_H
#define WFI_PARALLEL_H

#include <stdint.h>

/* Runs run(arg, begin, end) on pieces of `grain` items (the last may be shorter); returns when all are done. */
void wfi_parallel(int64_t count, int64_t grain, void (*run)(void *arg, int64_t begin, int64_t end), void *arg);

#define WFI_GRAIN 32768 /* elements; below it a hand-over costs more than it gains */

#endif
