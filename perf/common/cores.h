/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cores.h - puts the two sides of a floor on cores of their own.
 *
 * Two processes that poll without pause may share a core for seconds: the scheduler sees no difference. Each of their
 * messages then waits until the other one has offered the core, and the floor measures the scheduler.
 */
#ifndef PERF_CORES_H
#define PERF_CORES_H

#include <sched.h>
#include <stdbool.h>

typedef struct cores {
    cpu_set_t allowed; /* where this process ran before */
    int mine, other;   /* two processors of `allowed`, of different cores if there are such */
} cores;

/* False: this process may run on one processor only, or on more than cpu_set_t can name. */
bool cores_find(cores *out);

/* The calling thread alone. A thread that may not be moved stays where it is. */
void cores_pin(int processor);
void cores_free(const cores *c); /* the calling thread may run on all of `allowed` again */

#endif
