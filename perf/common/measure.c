/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - see measure.h. */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

double measure_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

void series_add(series *s, double value)
{
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 1024;
        double *values = realloc(s->values, room * sizeof(*values));
        if (!values) {
            fprintf(stderr, "out of memory\n");
            exit(1);
        }
        s->values = values;
        s->room = room;
    }
    s->values[s->count++] = value;
}

void series_fini(series *s)
{
    free(s->values);
    *s = (series){0};
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

summary series_summary(series *s)
{
    if (s->count == 0)
        return (summary){0};
    qsort(s->values, s->count, sizeof(*s->values), compare);
    return (summary){s->values[0], s->values[s->count / 2], s->values[s->count * 99 / 100]};
}

const char *measure_bytes_name(size_t bytes, char *buffer)
{
    if (bytes >= 1 << 20)
        snprintf(buffer, 32, "%zu MiB", bytes >> 20);
    else if (bytes >= 1 << 10)
        snprintf(buffer, 32, "%zu KiB", bytes >> 10);
    else
        snprintf(buffer, 32, "%zu B", bytes);
    return buffer;
}
