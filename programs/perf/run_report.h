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
    double seconds; /* of one result; NaN: not known */
    char date[32];  /* of the beginning, in UTC: "2026-11-28T06:10:00Z"; "": not known */
    char host[65];
    double averages[3]; /* of the machine's load at the beginning, over 1, 5 and 15 minutes; NaN: not known */
    double busy; /* the part of the processors that other programs used, before or after the run; NaN: not known */
} run_report;

/* Sets the machine to this one, and the versions to those of this process. */
void run_report_here(run_report *run, double seconds);
/* Takes a sentence, cut to fit. False: it is there already, or memory is out. */
bool run_report_note(run_report *run, const char *text);
/* Looks how busy the machine is, while this program does nothing: call it before and after the measurements. */
void run_report_look(run_report *run);
/* Writes a line for people: machine, date, version and load. Returns `out`. */
const char *run_report_caption(const run_report *run, char *out, size_t room);
#define BUSY_MOST 0.15 /* results of a machine that is busier should not be quoted */
void run_report_fini(run_report *run);

#endif
