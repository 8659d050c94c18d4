/* SPDX-License-Identifier: Apache-2.0 */
/* floors.c - see floors.h. A floor is a helper: one that stalls is killed. */
#include "perf/floors.h"

#include "perf/helper.h"
#include "perf/memory_pair.h"
#include "perf/raw_pair.h"

#include <math.h>
#include <rdma/fabric.h>
#include <stdlib.h>
#include <string.h>

#define RATE_BYTES 64
#define WARM_TRIPS 100
#define LIMIT_S 30 /* longer than trying all cuts takes on a busy machine */

struct floors {
    helper helper;
    char provider[16]; /* "host": no provider of libfabric */
    size_t most;
    char names[2][64]; /* of messages, and of moves */
};

/* ---- In the helper's process ------------------------------------------------------------------------------------ */

/* The last measurement goes on in the next slice with its best cut, and with the time of one repetition. */
typedef struct pairs {
    raw_pair *raw;
    memory_pair *memory;
    int what;
    size_t bytes;
    unsigned window;
    double one_us;
    raw_cut cut;
} pairs;

static bool measure_trips(pairs *p, size_t bytes, unsigned count, series *out)
{
    return p->raw ? raw_pair_trips(p->raw, bytes, count, out) : memory_pair_trips(p->memory, bytes, count, out);
}

static bool move(pairs *p, bool is_back, size_t bytes, unsigned count, series *out)
{
    return p->raw ? raw_pair_bulk(p->raw, is_back, bytes, p->cut, count, out)
                  : memory_pair_read(p->memory, bytes, is_back ? 2 : 1, count, out);
}

/* `count` repetitions of what `p` says. */
static bool repeat(pairs *p, unsigned count, series *out)
{
    double took = 0;
    switch (p->what) {
    case FLOOR_TRIP:
        return measure_trips(p, p->bytes, count, out);
    case FLOOR_RATE:
        if (!raw_pair_window(p->raw, RATE_BYTES, count + p->window, p->window, &took))
            return false;
        series_add(out, (count + p->window) / took * 1e6);
        return true;
    default:
        return move(p, p->what == FLOOR_ECHO, p->bytes, count, out);
    }
}

/* Tries how long one repetition takes, and which cut is the fastest. */
static bool prepare(pairs *p, const order *o)
{
    series warm = {0};
    bool is_rate = o->what == FLOOR_RATE, is_move = o->what == FLOOR_READ || o->what == FLOOR_ECHO, ok = true;
    p->what = o->what;
    p->bytes = (size_t)o->of.bytes;
    p->window = (unsigned)o->of.window;
    if (is_move && p->raw)
        ok = raw_pair_best_cut(p->raw, o->what == FLOOR_ECHO, p->bytes, &p->cut);
    ok = ok && repeat(p, is_move ? 1 : WARM_TRIPS, &warm);
    double first = series_summary(&warm).min;
    p->one_us = is_rate ? 1e6 / first : first;
    series_fini(&warm);
    return ok;
}

static bool execute(void *state, const order *o, series *out)
{
    pairs *p = state;
    bool is_new = p->what != o->what || p->bytes != (size_t)o->of.bytes || p->window != (unsigned)o->of.window;
    if (is_new && !prepare(p, o))
        return false;
    return repeat(p, (unsigned)fmin(fmax(o->us / p->one_us, 1), 50000), out);
}

static int run(int fd, void *arg)
{
    const floors *f = arg;
    pairs p = {.what = -1};
    bool ok = strcmp(f->provider, "host") == 0 ? memory_pair_open(f->most, &p.memory)
                                               : raw_pair_open(f->provider, f->most, &p.raw);
    return helper_serve(fd, ok, execute, &p);
}

/* ---- In this process -------------------------------------------------------------------------------------------- */

floors *floors_open(const char *fabric, size_t most, char *why, size_t room)
{
    static const char *const known[] = {"host", "tcp", "verbs"};
    floors *f = NULL;
    snprintf(why, room, "none is known");
    for (size_t i = 0; i < sizeof(known) / sizeof(*known) && !f; i++)
        if (strcspn(fabric, ",") == strlen(known[i]) && strncmp(fabric, known[i], strlen(known[i])) == 0) {
            f = calloc(1, sizeof(*f));
            if (f)
                snprintf(f->provider, sizeof(f->provider), "%s", known[i]);
        }
    if (!f)
        return NULL;
    f->most = most;
    if (strcmp(f->provider, "host") == 0) {
        snprintf(f->names[0], sizeof(f->names[0]), "shared memory");
        snprintf(f->names[1], sizeof(f->names[1]), "process_vm_readv");
    } else {
        unsigned major = FI_MAJOR(fi_version()), minor = FI_MINOR(fi_version());
        snprintf(f->names[0], sizeof(f->names[0]), "libfabric %u.%u %s messages", major, minor, f->provider);
        snprintf(f->names[1], sizeof(f->names[1]), "libfabric %u.%u %s remote reads", major, minor, f->provider);
    }
    if (helper_open(&f->helper, run, f, why, room))
        return f;
    free(f);
    return NULL;
}

void floors_close(floors *f)
{
    if (f)
        helper_close(&f->helper);
    free(f);
}

bool floors_have(const floors *f, floor_kind kind)
{
    return f && (kind != FLOOR_RATE || strcmp(f->provider, "host") != 0);
}

const char *floors_name(const floors *f, floor_kind kind)
{
    return f->names[kind == FLOOR_READ || kind == FLOOR_ECHO];
}

bool floors_measure(floors *f, floor_kind kind, size_t bytes, unsigned window, double us, series *out, char *why,
                    size_t room)
{
    order o = {.what = (int)kind, .us = us, .of = {.bytes = (int64_t)bytes, .window = window}};
    return helper_measure(&f->helper, &o, LIMIT_S, out, why, room);
}
