/* SPDX-License-Identifier: Apache-2.0 */
/* raw_pair.c - see raw_pair.h. Orders go to the other process through a socket, on which it sleeps between slices. */
#include "perf/raw_pair.h"

#include "perf/helper.h"
#include "perf/pair.h"
#include "perf/raw_endpoint.h"

#include <stdlib.h>
#include <unistd.h>

/* The other process answers `answers` messages, each with one of `bytes`. Then it sleeps again. */
typedef struct instruction {
    unsigned answers;
    size_t bytes;
} instruction;

struct raw_pair {
    pair pair;
    raw_endpoint here;
    raw_memory there;
};

typedef struct setup {
    const char *provider;
    size_t bulk_bytes;
} setup;

/* ---- The other process ------------------------------------------------------------------------------------------ */

/*
 * Counts from the messages that were answered, not from those that were received. After its last answer this process
 * polls until that answer has left. It may receive the first message of the next slice there.
 */
static bool answer(raw_endpoint *e, const instruction *i)
{
    unsigned end = e->asked + i->answers;
    while (e->asked != end) {
        if (!raw_endpoint_wait(e, &e->received, e->asked + 1))
            return false;
        while (e->asked != end && e->asked != e->received)
            if (!raw_endpoint_send(e, i->bytes))
                return false;
        if (!raw_endpoint_receive(e))
            return false;
    }
    return raw_endpoint_wait(e, &e->done, e->asked);
}

static int serve(const pair *p, void *arg)
{
    const setup *s = arg;
    raw_endpoint e;
    raw_address address;
    instruction next;
    bool ok = raw_endpoint_open(&e, s->provider, s->bulk_bytes) && raw_endpoint_listen(&e, &address) &&
              write(p->control, &address, sizeof(address)) == sizeof(address) && raw_endpoint_accept(&e);
    raw_memory memory = ok ? raw_endpoint_memory(&e) : (raw_memory){0};
    ok = ok && write(p->control, &memory, sizeof(memory)) == sizeof(memory);
    e.alone = p->is_apart;
    while (ok && read(p->control, &next, sizeof(next)) == sizeof(next))
        ok = answer(&e, &next);
    return ok ? 0 : 1;
}

/* ---- This process ----------------------------------------------------------------------------------------------- */

bool raw_pair_open(const char *provider, size_t bulk_bytes, raw_pair **out)
{
    raw_address address;
    setup s = {provider, bulk_bytes};
    raw_pair *p = calloc(1, sizeof(*p));
    if (!p || !pair_split(&p->pair, serve, &s) || !raw_endpoint_open(&p->here, provider, bulk_bytes))
        return false;
    p->here.alone = p->pair.is_apart;
    if (read(p->pair.control, &address, sizeof(address)) != sizeof(address))
        return helper_say("the other process of the pair ended");
    if (!raw_endpoint_connect(&p->here, &address))
        return false;
    *out = p;
    return read(p->pair.control, &p->there, sizeof(p->there)) == sizeof(p->there);
}

static bool begin(raw_pair *p, unsigned answers, size_t bytes)
{
    instruction next = {answers, bytes};
    return write(p->pair.control, &next, sizeof(next)) == sizeof(next) ||
           helper_say("the other process of the pair ended");
}

static bool ask(raw_endpoint *e, size_t bytes)
{
    return raw_endpoint_send(e, bytes) && raw_endpoint_wait(e, &e->received, e->received + 1);
}

bool raw_pair_trips(raw_pair *p, size_t bytes, unsigned count, series *out)
{
    raw_endpoint *e = &p->here;
    if (!begin(p, count, bytes))
        return false;
    for (unsigned i = 0; i < count; i++) {
        double start = measure_now_us();
        if (!ask(e, bytes))
            return false;
        series_add(out, measure_now_us() - start);
        if (!raw_endpoint_receive(e))
            return false;
    }
    return true;
}

bool raw_pair_window(raw_pair *p, size_t bytes, unsigned count, unsigned window, double *us)
{
    raw_endpoint *e = &p->here;
    unsigned first = e->received, sent = 0;
    double start = measure_now_us();
    if (!begin(p, count, bytes))
        return false;
    while (e->received - first < count) {
        while (sent < count && sent - (e->received - first) < window) {
            if (!raw_endpoint_send(e, bytes))
                return false;
            sent++;
        }
        if (!raw_endpoint_wait(e, &e->received, e->received + 1) || !raw_endpoint_receive(e))
            return false;
    }
    *us = measure_now_us() - start;
    return true;
}

static bool transfer(raw_pair *p, bool writes, size_t bytes, raw_cut cut)
{
    raw_endpoint *e = &p->here;
    unsigned first = e->done, posted = 0;
    for (size_t at = 0; at < bytes; at += cut.chunk) {
        size_t piece = bytes - at < cut.chunk ? bytes - at : cut.chunk;
        if (posted >= cut.window && !raw_endpoint_wait(e, &e->done, first + posted - cut.window + 1))
            return false;
        if (!raw_endpoint_rma(e, writes, at, piece, &p->there))
            return false;
        posted++;
    }
    return raw_endpoint_wait(e, &e->done, first + posted);
}

/* The target of remote access must make progress: it polls until the last message of the slice comes. */
bool raw_pair_bulk(raw_pair *p, bool both, size_t bytes, raw_cut cut, unsigned count, series *out)
{
    raw_endpoint *e = &p->here;
    if (!begin(p, 2, 1) || !ask(e, 1) || !raw_endpoint_receive(e) || !raw_endpoint_wait(e, &e->done, e->asked))
        return false;
    for (unsigned i = 0; i < count; i++) {
        double start = measure_now_us();
        if (!transfer(p, false, bytes, cut) || (both && !transfer(p, true, bytes, cut)))
            return false;
        series_add(out, measure_now_us() - start);
    }
    return ask(e, 1) && raw_endpoint_receive(e);
}

/* ---- The floor ------------------------------------------------------------------------------------------------- */

#define TRY_TURNS 3
#define TRY_US 3e6 /* a busy machine may need much longer for all of them */

static const size_t chunks[] = {64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20};
static const unsigned windows[] = {1, 2, 4, 8};
#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define CUTS_MAX (COUNT(chunks) * COUNT(windows) + 1)

/* A window wider than the number of pieces adds nothing. */
static size_t list_cuts(size_t bytes, raw_cut out[CUTS_MAX])
{
    size_t count = 0;
    out[count++] = (raw_cut){bytes, 1};
    for (size_t i = 0; i < COUNT(chunks) && chunks[i] < bytes; i++) {
        size_t pieces = (bytes + chunks[i] - 1) / chunks[i];
        for (size_t j = 0; j < COUNT(windows) && (j == 0 || windows[j - 1] < pieces); j++)
            out[count++] = (raw_cut){chunks[i], windows[j]};
    }
    return count;
}

/* Turns, not one long try each: a neighbour's burst then hits some of every cut's tries, and the median leaves it out.
 * When the time is over, cuts that were not tried are left out. */
static bool try_cuts(raw_pair *p, bool both, size_t bytes, const raw_cut *cuts, size_t count, series *times)
{
    unsigned repeats = bytes <= 1 << 20 ? 20 : bytes <= 16 << 20 ? 5 : 1;
    double end = measure_now_us() + TRY_US;
    for (int turn = 0; turn < TRY_TURNS; turn++) {
        for (size_t i = 0; i < count && (times[0].count == 0 || measure_now_us() < end); i++)
            if (!raw_pair_bulk(p, both, bytes, cuts[i], repeats, &times[i]))
                return false;
    }
    return true;
}

bool raw_pair_best_cut(raw_pair *p, bool both, size_t bytes, raw_cut *out)
{
    raw_cut cuts[CUTS_MAX];
    series times[CUTS_MAX] = {{0}};
    size_t count = list_cuts(bytes, cuts);
    bool ok = try_cuts(p, both, bytes, cuts, count, times);
    double best = 0;
    for (size_t i = 0; i < count; i++) {
        double us = series_summary(&times[i]).p50;
        if (times[i].count > 0 && (best == 0 || us < best)) {
            best = us;
            *out = cuts[i];
        }
        series_fini(&times[i]);
    }
    return ok;
}
