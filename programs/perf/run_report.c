/* SPDX-License-Identifier: Apache-2.0 */
/* run_report.c - see run_report.h. */
#include "perf/run_report.h"

#include <math.h>
#include <rdma/fabric.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <weft/base.h>

void run_report_here(run_report *run, double seconds)
{
    struct utsname system = {0};
    (void)uname(&system);
    text_copy(run->version, sizeof run->version, weft_version());
    snprintf(run->libfabric, sizeof run->libfabric, "%u.%u", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    text_copy(run->kernel, sizeof run->kernel, system.release);
    run->processors = sysconf(_SC_NPROCESSORS_ONLN);
    run->seconds = seconds;
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        strftime(run->date, sizeof run->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    for (int i = getloadavg(run->averages, 3) < 0 ? 0 : 3; i < 3; i++)
        run->averages[i] = (double)NAN;
}

void run_report_note(run_report *run, const char *text)
{
    char(*notes)[1024] = realloc(run->notes, (run->note_count + 1) * sizeof *notes);
    if (!notes)
        return;
    run->notes = notes;
    text_copy(notes[run->note_count++], sizeof *notes, text);
}

void run_report_fini(run_report *run)
{
    results_fini(&run->found);
    free(run->notes);
    *run = (run_report){0};
}
