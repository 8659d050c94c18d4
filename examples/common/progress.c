/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c - how training goes. */
#include "progress.h"

#include <unistd.h>

#define LIVE_SECONDS 0.2
#define PLAIN_SECONDS 2.0
#define CLEAR "\r\033[K"

const char *bytes_text(uint64_t bytes, char out[16])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 999.5 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1000;
    snprintf(out, 16, "%.*f %s", unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, units[unit]);
    return out;
}

void progress_init(progress *p, FILE *to, int64_t updates, const char *unit)
{
    *p = (progress){.to = to, .updates = updates, .unit = unit, .last = clock_seconds()};
    p->live = to && isatty(fileno(to));
}

static void write_line(progress *p, const tally *t, uint64_t bytes_moved)
{
    char bytes[16];
    double now = clock_seconds(), seconds = now - t->began;
    double rate = t->images > 0 && seconds > 0 ? (double)t->images / seconds : 0;
    fprintf(p->to, "%s%3.0f %%  update %lld of %lld  loss %.4f  %.0f %s/s  %s moved  %.0f %% of the time in calls%s",
            p->live ? CLEAR : "", p->updates ? 100.0 * (double)t->updates / (double)p->updates : 0,
            (long long)t->updates, (long long)p->updates, t->loss, rate, p->unit, bytes_text(bytes_moved, bytes),
            100 * tally_communication(t), p->live ? "" : "\n");
    fflush(p->to);
    p->last = now;
}

void progress_show(progress *p, const tally *t, uint64_t bytes_moved, bool over)
{
    double pause = over ? 0 : p->live ? LIVE_SECONDS : PLAIN_SECONDS;
    if (!p->to || t->gradients == 0 || clock_seconds() - p->last < pause)
        return;
    write_line(p, t, bytes_moved);
    if (over && p->live)
        fputc('\n', p->to);
}
