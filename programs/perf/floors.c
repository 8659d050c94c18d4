/* SPDX-License-Identifier: Apache-2.0 */
/* floors.c - see floors.h. */
#include "perf/floors.h"

#include "common/raw_pair.h"
#include "perf/memory_pair.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RATE_BYTES 64
#define WARM_TRIPS 100
#define CUTS 32

struct floors {
    raw_pair *raw;
    memory_pair *memory;
    struct { /* the best cut of each size that was moved: [0] one way, [1] there and back */
        size_t bytes;
        raw_cut cut;
    } cuts[2][CUTS];
    size_t cut_count[2];
    char trips_name[48], move_name[48];
};

floors *floors_open(const char *fabric, size_t most)
{
    size_t length = strcspn(fabric, ",");
    bool is_host = length == 4 && strncmp(fabric, "host", 4) == 0;
    bool is_raw = (length == 3 && strncmp(fabric, "tcp", 3) == 0) || (length == 5 && strncmp(fabric, "verbs", 5) == 0);
    floors *f = is_host || is_raw ? calloc(1, sizeof *f) : NULL;
    char provider[16];
    if (!f)
        return NULL;
    snprintf(provider, sizeof provider, "%.*s", (int)length, fabric);
    if (is_host && memory_pair_open(most, &f->memory) == 0) {
        snprintf(f->trips_name, sizeof f->trips_name, "shared memory");
        snprintf(f->move_name, sizeof f->move_name, "process_vm_readv");
        return f;
    }
    if (is_raw && raw_pair_open(provider, most, &f->raw) == 0) {
        snprintf(f->trips_name, sizeof f->trips_name, "libfabric %s %s messages", raw_pair_version(f->raw), provider);
        snprintf(f->move_name, sizeof f->move_name, "libfabric %s %s remote reads", raw_pair_version(f->raw), provider);
        return f;
    }
    free(f);
    return NULL;
}

void floors_close(floors *f)
{
    if (!f)
        return;
    raw_pair_close(f->raw);
    memory_pair_close(f->memory);
    free(f);
}

/* How many repetitions fill a slice of `us` microseconds, if each takes `best`. Nothing is known yet: `first`. */
static unsigned repeats(double us, double best, unsigned first)
{
    double wanted = best > 0 ? us / best : first;
    return wanted < 1 ? 1 : wanted > 50000 ? 50000 : (unsigned)wanted;
}

static double best_of(const series *s)
{
    double best = 0;
    for (size_t i = 0; i < s->count; i++)
        best = i == 0 || s->values[i] < best ? s->values[i] : best;
    return best;
}

static int trips(floors *f, size_t bytes, unsigned count, series *out)
{
    return f->raw ? raw_pair_trips(f->raw, bytes, count, out) : memory_pair_trips(f->memory, bytes, count, out);
}

bool floors_trips(floors *f, size_t bytes, double us, series *out)
{
    series warm = {0};
    int failed = out->count ? 0 : trips(f, bytes, WARM_TRIPS, &warm);
    unsigned count = repeats(us, out->count ? best_of(out) : best_of(&warm), 1);
    series_fini(&warm);
    return !failed && trips(f, bytes, count, out) == 0;
}

/* The fastest way to cut a transfer of this size into pieces. It is found by trial, once for each size. */
static bool find_cut(floors *f, size_t bytes, bool is_back, raw_cut *out)
{
    size_t *count = &f->cut_count[is_back];
    for (size_t i = 0; i < *count; i++)
        if (f->cuts[is_back][i].bytes == bytes) {
            *out = f->cuts[is_back][i].cut;
            return true;
        }
    if (raw_pair_best_cut(f->raw, is_back ? RAW_READ | RAW_WRITE : RAW_READ, bytes, out))
        return false;
    if (*count < CUTS) {
        f->cuts[is_back][*count].bytes = bytes;
        f->cuts[is_back][(*count)++].cut = *out;
    }
    return true;
}

bool floors_move(floors *f, size_t bytes, bool is_back, double us, series *out)
{
    int what = is_back ? RAW_READ | RAW_WRITE : RAW_READ;
    unsigned count = repeats(us, best_of(out), 1);
    if (f->memory)
        return memory_pair_read(f->memory, bytes, is_back ? 2 : 1, count, out) == 0;
    raw_cut cut;
    return find_cut(f, bytes, is_back, &cut) && raw_pair_bulk(f->raw, what, bytes, cut, count, out) == 0;
}

bool floors_has_rate(const floors *f)
{
    return f && f->raw;
}

bool floors_rate(floors *f, unsigned window, double us, series *out)
{
    double last = out->count ? out->values[out->count - 1] : 20000, took;
    unsigned count = (unsigned)fmin(last * us / 1e6, 1e7) + window;
    if (raw_pair_window(f->raw, RATE_BYTES, count, window, &took))
        return false;
    series_add(out, count / took * 1e6);
    return true;
}

const char *floors_trips_name(const floors *f)
{
    return f->trips_name;
}

const char *floors_move_name(const floors *f)
{
    return f->move_name;
}
