/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - the closing table of a training run, for people and as JSON. */
#ifndef EXAMPLES_SUMMARY_H
#define EXAMPLES_SUMMARY_H

#include <weft/agent.h>
#include <weft/nn.h>

#include "settings.h"
#include "common/report.h"

typedef struct summary {
    const char *model;
    int64_t seed;
    int trainers, lost; /* that there were; those of them that died, or left early */
    int64_t iterations; /* updates of the model */
    double seconds;     /* of training: from the first model asked for to the last update */
    int64_t images;
    double loss, first_loss;
    double held_out_accuracy;     /* 0 to 1; < 0: nothing was held out (null in JSON), or: */
    const char *accuracy_missing; /* why it was not measured; "" */
    double communication_share; /* of the trainers' time in calls, what the server computes in them included; 0 to 1 */
    uint64_t bytes_sent;        /* payload, by all workers */
    uint64_t bytes_copied_by_weft;
} summary;

/* What is known when training is over: without an accuracy. `stats` are the server's own. */
summary summary_of(const settings *settings, const tally *tally, const weft_stats *stats);
/*
 * Saves the model (--save), writes the report as JSON (--report; a temporary file beside it takes its place at the end),
 * prints the table (unless --quiet). WEFT_ERR_IO, WEFT_ERR_MEMORY.
 */
WEFT_NODISCARD weft_status summary_deliver(const summary *report, const settings *settings, const weft_module *model,
                                           weft_error **error);

#endif
