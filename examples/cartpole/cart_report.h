/* SPDX-License-Identifier: Apache-2.0 */
/* cart_report.h - a line for each episode, a final line, and the same as JSON. */
#ifndef EXAMPLES_CART_REPORT_H
#define EXAMPLES_CART_REPORT_H

#include "cart_learner.h"

typedef struct cart_report {
    const cart_settings *set;
    double *rewards, *running; /* by episode */
    int64_t episodes;
    double began, ended; /* clock_seconds: the first episode; the last step of the optimizer */
    bool solved;         /* --solve: the running reward passed 475 */
    bool interrupted;
    int *lost; /* ranks of observers that died or failed */
    int lost_count;
} cart_report;

/* Set `set` first. false: no memory. */
bool cart_report_open(cart_report *report);
void cart_report_close(cart_report *report);
void cart_report_episode(cart_report *report, double reward);
void cart_report_lost(cart_report *report, int rank); /* once for each */
/*
 * Saves the policy (--save), writes the report (--report), and prints the final line (unless --quiet). WEFT_ERR_IO,
 * WEFT_ERR_MEMORY.
 */
WEFT_NODISCARD weft_status cart_report_deliver(const cart_report *report, const weft_agent *agent,
                                               const cart_learner *learner, weft_error **error);

#endif
