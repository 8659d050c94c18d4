/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.h - lets programs work in turns: perf/run writes a number of steps to one of them, waits for the seconds that
 * they took, and goes on with the next program.
 */
#ifndef PERF_TURNS_H
#define PERF_TURNS_H

#include <stdbool.h>
#include <stdint.h>

typedef bool (*turns_step)(void *arg); /* false: it has said why */

/* Runs `count` steps, and sets `seconds` to the time that they took. */
bool turns_time(turns_step step, void *arg, int64_t count, double *seconds);
/* Reads numbers of steps from the input, one a line, until its end. Answers each with a line that has the seconds. */
bool turns_serve(turns_step step, void *arg);

#endif
