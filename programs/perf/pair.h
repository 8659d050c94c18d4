/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pair.h - the two processes of a floor, each on a core of its own.
 *
 * Two processes that poll without pause may share a core for seconds: the scheduler sees no difference. Each of their
 * messages then waits until the other one has offered the core, and the floor measures the scheduler.
 */
#ifndef WEFT_PERF_PAIR_H
#define WEFT_PERF_PAIR_H

#include <stdbool.h>

typedef struct pair {
    int control;   /* a socket between the two; the other process sleeps on it between slices */
    bool is_apart; /* each has a processor to itself */
} pair;

/* Forks the other process, which runs `serve` and exits, and dies with this one. Binds both to a processor, if this
 * process may run on two. False: helper_say was called. */
bool pair_split(pair *out, int (*serve)(const pair *p, void *arg), void *arg);

#endif
