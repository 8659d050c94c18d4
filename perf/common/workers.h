/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - the job of a benchmark: rank 0 measures, the others are processes of this program that only serve.
 */
#ifndef PERF_WORKERS_H
#define PERF_WORKERS_H

#include <weft/weft.h>

typedef struct workers {
    weft_job *job;
    weft_agent *agent;
} workers;

/* Whether this process was started as one of the others. */
bool workers_is_child(void);
/* Serves until the job ends. Returns the exit code of such a process. */
int workers_serve(const weft_function *functions, size_t count);

/* Starts `count` others and joins them. Before threads. False after a line on stderr. */
bool workers_open(const weft_function *functions, size_t function_count, int count, workers *out);
/* Ends the job; false after a line on stderr if a worker failed. Zeroed: nothing. */
bool workers_close(workers *w);

/* Prints what failed, with its detail (may be NULL), releases the detail; returns false. */
bool workers_complain(const char *what, weft_status status, weft_error *error);

#endif
