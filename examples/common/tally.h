/* SPDX-License-Identifier: Apache-2.0 */
/* tally.h - what the server hears from its trainers, added up while they train. The owner's lock covers it. */
#ifndef EXAMPLES_TALLY_H
#define EXAMPLES_TALLY_H

#include <stdint.h>

typedef struct tally {
    int64_t updates;            /* steps of the model */
    int64_t gradients;          /* that came */
    int64_t images;             /* behind them */
    double loss, first_loss;    /* mean of the last twenty or so; the first */
    double computing, in_calls; /* seconds, of all trainers together; waiting for other trainers is in calls, too */
    double began, ended;        /* by clock_seconds: the first model was asked for; the last step was done */
    uint64_t bytes_sent, bytes_copied; /* of workers that told */
} tally;

/* Seconds on a clock that is never set. */
double clock_seconds(void);

/* The first model was asked for, unless it was before. */
void tally_begin(tally *tally);
/* A gradient came: its loss, its images, how long the trainer computed it, and was in its last call before. */
void tally_gradient(tally *tally, double loss, int64_t images, double computing, double in_call);
void tally_update(tally *tally);
/* A trainer made `steps` of the model itself: their mean loss, and the sums of the rest. */
void tally_steps(tally *tally, int64_t steps, double loss, int64_t images, double computing, double in_calls);
/* The share of their time that trainers spent in calls, 0 to 1. */
double tally_communication(const tally *tally);
double tally_seconds(const tally *tally);

#endif
