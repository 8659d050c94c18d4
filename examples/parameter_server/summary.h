/* SPDX-License-Identifier: Apache-2.0 */
/* summary.h - the final table of a training run, as text and as JSON. */
#ifndef EXAMPLES_SUMMARY_H
#define EXAMPLES_SUMMARY_H

#include <weft/agent.h>
#include <weft/nn.h>

#include "settings.h"
#include "common/report.h"

typedef struct summary {
    const char *model;
    const char *device; /* the option --device; "cpu" */
    int64_t seed;
    int trainers, lost; /* trainers at the start; those that died or left early */
    int64_t iterations; /* updates of the model */
    double seconds;     /* of training: from the first request for the model to the last update */
    int64_t images;
    double loss, first_loss;
    double held_out_accuracy;     /* 0 to 1; < 0: nothing was held out (JSON: null), or it was not measured: */
    const char *accuracy_missing; /* the reason; "" */
    double communication_share;   /* of the trainers' time, with the server's computing; 0 to 1 */
    uint64_t bytes_sent;          /* payload sent by all workers */
    uint64_t bytes_copied_by_weft;
} summary;

/* The summary after training, without an accuracy. `stats` are those of the server. */
summary summary_of(const settings *settings, const tally *tally, const weft_stats *stats);
/*
 * Saves the model (--save), writes the JSON report (--report), and prints the table (unless --quiet). WEFT_ERR_IO,
 * WEFT_ERR_MEMORY.
 */
WEFT_NODISCARD weft_status summary_deliver(const summary *report, const settings *settings, const weft_module *model,
                                           weft_error **error);

#endif
