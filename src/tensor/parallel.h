/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallel.h - a loop cut into fixed pieces that a few threads share.
 *
 * The pieces depend on `count` and `grain` alone, never on the number of threads: what is summed piece by piece and joined
 * in order has the same bits on any machine.
 */
#ifndef WFI_PARALLEL_H
#define WFI_PARALLEL_H

#include <weft/status.h>

#include <stdint.h>

/* Runs run(arg, begin, end) on pieces of `grain` items (the last may be shorter); returns when all are done. */
void wfi_parallel(int64_t count, int64_t grain, void (*run)(void *arg, int64_t begin, int64_t end), void *arg);

/* How many threads a kernel may use: WEFT_CPU_THREADS, else OMP_NUM_THREADS, else this process's share of the cores
 * (topo/share.h), which may change when a job begins. */
int wfi_cpu_threads(void);
weft_status wfi_cpu_threads_setting(int64_t *threads, weft_error **error); /* what the variable says, 0: nothing */
void wfi_cpu_threads_set(int threads); /* for the whole process, from the next kernel on; < 1 is 1 */

#define WFI_GRAIN 32768 /* elements; below it a hand-over costs more than it gains */

#endif
