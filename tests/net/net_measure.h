/* SPDX-License-Identifier: Apache-2.0 */
/* net_measure.h - what this process costs: memory, processor time, wake-ups, descriptors, threads. */
#ifndef TEST_NET_MEASURE_H
#define TEST_NET_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEASURE_INSTRUMENTED true /* such a program's memory and times say nothing */
#else
#define MEASURE_INSTRUMENTED false
#endif

size_t measure_private_dirty_kb(void); /* of the whole process */
uint64_t measure_cpu_ns(void);
size_t measure_descriptors(void);
size_t measure_threads(void);
/* How often threads whose name begins with `prefix` went to sleep so far. */
uint64_t measure_sleeps(const char *prefix);

#endif
