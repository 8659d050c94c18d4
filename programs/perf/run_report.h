/* SPDX-License-Identifier: Apache-2.0 */
/* run_report.h - what a run found: its results and notes, and where they were measured. */
#ifndef WEFT_PERF_RUN_REPORT_H
#define WEFT_PERF_RUN_REPORT_H

#include "perf/result.h"

typedef struct run_report {
    results found;
    char (*notes)[1024]; /* what was not measured, and failures */
    size_t note_count;
    char version[32], libfabric[32], kernel[96]; /* "": not known */
    int64_t processors;
    double seconds;     /* of one result; NaN: not known */
    char date[32];      /* of the beginning, in UTC: "2026-11-28T06:10:00Z"; "": not known */
    double averages[3]; /* of the machine's load at the beginning, over 1, 5 and 15 minutes; NaN: not known */
} run_report;

/* Sets the machine to this one, and the versions to those of this process. */
void run_report_here(run_report *run, double seconds);
void run_report_note(run_report *run, const char *text); /* cut to fit; dropped if memory is out */
void run_report_fini(run_report *run);

#endif
