/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - how a training run goes, and how it went. */
#include "report.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEMORY 0.05 /* weight of the newest loss in the mean, after about twenty losses */
#define LIVE_SECONDS 0.2
#define PLAIN_SECONDS 2.0

double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- Progress --------------------------------------------------------------------------------------------------- */

void progress_begin(progress *p)
{
    if (p->began <= 0)
        p->began = p->shown = clock_seconds();
}

void progress_add(progress *p, int64_t steps, double loss, int64_t items)
{
    if (p->items == 0)
        p->first_loss = p->loss = loss;
    double share = 1.0 / (1.0 + (double)p->updates), least = (double)steps * MEMORY;
    share = share > least ? share : least < 1 ? least : 1;
    p->loss += (loss - p->loss) * share;
    p->items += items;
}

static void show(progress *p)
{
    bool live = isatty(STDOUT_FILENO), over = p->updates >= p->total;
    double now = clock_seconds(), seconds = now - p->began;
    double left = seconds * (double)(p->total - p->updates) / (double)p->updates;
    if (p->quiet || (!over && now - p->shown < (live ? LIVE_SECONDS : PLAIN_SECONDS)))
        return;
    printf("%s%3.0f %%  update %lld of %lld  loss %.4f  %.0f %s/s  %d:%02d left%s", live ? "\r\033[K" : "",
           100.0 * (double)p->updates / (double)p->total, (long long)p->updates, (long long)p->total, p->loss,
           seconds > 0 ? (double)p->items / seconds : 0, p->unit, (int)left / 60, (int)left % 60,
           live && !over ? "" : "\n");
    fflush(stdout);
    p->shown = now;
}

void progress_update(progress *p, int64_t updates)
{
    p->updates += updates;
    p->ended = clock_seconds();
    show(p);
}

double progress_seconds(const progress *p)
{
    return p->ended > p->began ? p->ended - p->began : 0;
}

/* ---- The report ------------------------------------------------------------------------------------------------- */

static weft_status cannot_write(const char *path)
{
    fprintf(stderr, "%s cannot be written: %s\n", path, strerror(errno));
    return WEFT_ERR_IO;
}

weft_status report_open(report *r, const char *path, bool quiet)
{
    *r = (report){.quiet = quiet, .path = path, .json = path ? fopen(path, "we") : NULL};
    if (!quiet)
        putchar('\n');
    return path && !r->json ? cannot_write(path) : WEFT_OK;
}

static void add_key(report *r, const char *key)
{
    fprintf(r->json, "%s  \"%s\": ", r->count++ ? ",\n" : "{\n", key);
}

static bool has_line(const report *r, const char *name)
{
    if (!r->quiet && name)
        printf("  %-20s ", name);
    return !r->quiet && name;
}

void report_number(report *r, const char *key, const char *name, int digits, double value)
{
    if (has_line(r, name))
        printf("%.*f\n", digits, value);
    if (!r->json)
        return;
    add_key(r, key);
    fprintf(r->json, "%.17g", value);
}

void report_bytes(report *r, const char *key, const char *name, uint64_t bytes)
{
    if (has_line(r, name))
        printf("%.1f MB\n", (double)bytes / 1e6);
    report_number(r, key, NULL, 0, (double)bytes);
}

void report_text(report *r, const char *key, const char *name, const char *value)
{
    if (has_line(r, name))
        printf("%s\n", value);
    if (!r->json)
        return;
    add_key(r, key);
    fprintf(r->json, "\"%s\"", value);
}

void report_list(report *r, const char *key, const double *values, int64_t count)
{
    if (!r->json)
        return;
    add_key(r, key);
    for (int64_t i = 0; i < count; i++)
        fprintf(r->json, "%s%.17g", i ? ", " : "[", values[i]);
    fprintf(r->json, "%s]", count ? "" : "[");
}

weft_status report_close(report *r)
{
    if (!r->json)
        return WEFT_OK;
    fprintf(r->json, "\n}\n");
    bool bad = ferror(r->json);
    return fclose(r->json) || bad ? cannot_write(r->path) : WEFT_OK;
}
