/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.h - a process that measures something else in turns with weft: a floor (floors.h) or a peer (peers.h). It
 * sleeps until it gets an order, and answers with samples.
 *
 * A helper that does not answer in time is killed. So the floor that stalls, or the peer, is lost, and weft is not.
 */
#ifndef WEFT_PERF_HELPER_H
#define WEFT_PERF_HELPER_H

#include "perf/result.h"

#include <sys/types.h>

typedef struct order {
    int what;  /* the helper knows its meaning */
    result of; /* the result that is measured: its size, workers and window */
    double us; /* how long to measure, in microseconds */
} order;

typedef struct helper {
    int fd;    /* the socket to the helper's process */
    pid_t pid; /* 0: there is none */
} helper;

/* ---- In the helper's process ------------------------------------------------------------------------------------ */

/* The main function: prepares, and then serves orders with helper_serve. Its return value is the exit code. */
typedef int (*helper_main)(int fd, void *arg);
/* Executes one order, and adds samples to `out`. False: helper_say has the reason. */
typedef bool (*helper_fn)(void *state, const order *o, series *out);
/* Answers orders until this process is killed. `is_ready` false: answers once that it cannot serve, and returns. */
int helper_serve(int fd, bool is_ready, helper_fn fn, void *state);
/* Sets the sentence that says why an order cannot be executed. Returns false. */
bool helper_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- In this process -------------------------------------------------------------------------------------------- */

/* Forks: call it before there are threads. False: `why` has the reason. */
bool helper_open(helper *h, helper_main run, void *arg, char *why, size_t room);
/* Gives an order, and adds its samples to `out`. False: `why` has the reason; h->pid is 0 if the helper is gone. It is
 * killed if it takes more than limit_s seconds longer than the order says. */
bool helper_measure(helper *h, const order *o, double limit_s, series *out, char *why, size_t room);
void helper_close(helper *h); /* a zeroed one: nothing */

#endif
