/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - how a training run goes, and how it went. */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
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

void report_line(const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("  %-20s ", name);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}
