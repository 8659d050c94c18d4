/* SPDX-License-Identifier: Apache-2.0 */
/* run_report.c - see run_report.h. */
#include "perf/run_report.h"

#include <math.h>
#include <rdma/fabric.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <weft/base.h>

#define LOOK_US 300000

void run_report_here(run_report *run, double seconds)
{
    struct utsname system = {0};
    (void)uname(&system);
    text_copy(run->version, sizeof(run->version), weft_version());
    snprintf(run->libfabric, sizeof(run->libfabric), "%u.%u", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    text_copy(run->kernel, sizeof(run->kernel), system.release);
    run->processors = sysconf(_SC_NPROCESSORS_ONLN);
    run->seconds = seconds;
    run->busy = (double)NAN;
    text_copy(run->host, sizeof(run->host), system.nodename);
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        strftime(run->date, sizeof(run->date), "%Y-%m-%dT%H:%M:%SZ", &utc);
    for (int i = getloadavg(run->averages, 3) < 0 ? 0 : 3; i < 3; i++)
        run->averages[i] = (double)NAN;
}

/* The time of all processors so far, and what they were idle of it; in the kernel's unit. */
static bool read_processors(double *all, double *idle)
{
    double times[8] = {0};
    FILE *file = fopen("/proc/stat", "re");
    int count = file ? fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &times[0], &times[1], &times[2], &times[3],
                              &times[4], &times[5], &times[6], &times[7])
                     : 0;
    if (file)
        fclose(file);
    *all = 0;
    for (int i = 0; i < 8; i++)
        *all += times[i];
    *idle = times[3] + times[4];
    return count == 8;
}

void run_report_look(run_report *run)
{
    double all, idle, all_then, idle_then;
    if (!read_processors(&all, &idle) || usleep(LOOK_US) != 0 || !read_processors(&all_then, &idle_then))
        return;
    double busy = all_then > all ? 1 - (idle_then - idle) / (all_then - all) : 0;
    run->busy = run->busy > busy ? run->busy : busy;
}

const char *run_report_caption(const run_report *run, char *out, size_t room)
{
    char load[64] = "";
    if (isfinite(run->averages[0]))
        snprintf(load, sizeof(load), ", load %.1f", run->averages[0]);
    if (isfinite(run->busy))
        snprintf(load + strlen(load), sizeof(load) - strlen(load), ", others used %.0f %%%s", 100 * run->busy,
                 run->busy > BUSY_MOST ? ": busy, do not quote" : "");
    snprintf(out, room, "%s, %lld processors, %.10s, weft %s, libfabric %s%s", *run->host ? run->host : "unknown host",
             (long long)run->processors, run->date, run->version, run->libfabric, load);
    return out;
}

bool run_report_note(run_report *run, const char *text)
{
    for (size_t i = 0; i < run->note_count; i++)
        if (strncmp(run->notes[i], text, sizeof(*run->notes) - 1) == 0)
            return false;
    char(*notes)[1024] = realloc(run->notes, (run->note_count + 1) * sizeof(*notes));
    if (!notes)
        return false;
    run->notes = notes;
    text_copy(notes[run->note_count++], sizeof(*notes), text);
    return true;
}

void run_report_fini(run_report *run)
{
    results_fini(&run->found);
    free(run->notes);
    *run = (run_report){0};
}
