/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallel.h - runs the pieces of a loop on a few threads.
 *
 * The pieces depend only on `count` and `grain`, never on the number of threads. So if each piece computes a sum, and
 * these sums are added in order, the result has the same bits on any machine.
 */
#ifndef WFI_PARALLEL_H
#define WFI_PARALLEL_H

#include <weft/status.h>

#include <stdint.h>

/* Runs run(arg, begin, end) on pieces of `grain` items (the last may be shorter); returns when all are done. */
void wfi_parallel(int64_t count, int64_t grain, void (*run)(void *arg, int64_t begin, int64_t end), void *arg);

/* How many threads a kernel may use: WEFT_CPU_THREADS, else OMP_NUM_THREADS, else this process's share of the cores
 * (topo/quota.h), which may change when a job begins. */
int wfi_cpu_threads(void);
weft_status wfi_cpu_threads_setting(int64_t *threads, weft_error **error); /* WEFT_CPU_THREADS; 0: not set */
void wfi_cpu_threads_set(int threads); /* for the whole process, from the next kernel on; below 1 counts as 1 */

#define WFI_GRAIN 32768 /* elements; for fewer, waking a thread costs more than it gains */

#endif
