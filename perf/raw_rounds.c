/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_rounds.c - the two floors of perf/cartpole, microseconds a round of all clients with a server that only answers: over
 * blocking TCP sockets, and over libfabric alone.
 */
#include "common/measure.h"
#include "common/raw_answer.h"
#include "common/raw_endpoint.h"
#include "common/raw_star.h"

#include "cli.h"

#include <string.h>

#define SLICES 5

typedef struct settings {
    int64_t clients, rounds, bytes, request_bytes, answer_bytes;
    const char *fabric;
} settings;

typedef struct floors {
    raw_answer *raw;
    raw_star *star; /* NULL: left out */
} floors;

typedef struct times {
    double batched, each;
} times; /* of a round */

static bool open_floors(const settings *o, floors *f)
{
    *f = (floors){0};
    if (raw_answer_open((int)o->clients, (int)o->bytes, &f->raw))
        return false;
    return strcmp(o->fabric, "none") == 0 ||
           !raw_star_open(o->fabric, (int)o->clients, (size_t)o->request_bytes, (size_t)o->answer_bytes, &f->star);
}

static void close_floors(floors *f)
{
    raw_star_close(f->star);
    raw_answer_close(f->raw);
}

static bool slice(const settings *o, floors *f, bool of_star, bool batched, double *best)
{
    double us;
    if (of_star ? raw_star_slice(f->star, (int)o->clients, batched, (int)o->rounds, &us)
                : raw_answer_slice(f->raw, (int)o->clients, batched, (int)o->rounds, &us))
        return false;
    us /= (double)o->rounds;
    *best = *best > 0 && *best < us ? *best : us;
    return true;
}

/* The best of a few slices, all kinds in turn: neighbours only ever add. */
static bool measure(const settings *o, floors *f, times *raw, times *star)
{
    for (int i = 0; i < SLICES; i++) {
        if (!slice(o, f, false, true, &raw->batched) || (f->star && !slice(o, f, true, true, &star->batched)) ||
            !slice(o, f, false, false, &raw->each) || (f->star && !slice(o, f, true, false, &star->each)))
            return false;
    }
    return true;
}

static void show(const settings *o, const floors *f, times raw, times star, report *to)
{
    printf("%d clients, us a round     | all are read, then all answered | each is answered as it comes\n",
           (int)o->clients);
    printf("blocking TCP sockets      | %31.1f | %28.1f\n", raw.batched, raw.each);
    report_number(to, raw.batched, "batched_us");
    report_number(to, raw.each, "each_us");
    if (!f->star)
        return;
    printf("libfabric, %-14.14s | %22.1f (%5.2fx) | %19.1f (%5.2fx)\n", o->fabric, star.batched,
           star.batched / raw.batched, star.each, star.each / raw.each);
    report_number(to, star.batched, "fabric_batched_us");
    report_number(to, star.each, "fabric_each_us");
}

int main(int argc, char **argv)
{
    settings o = {.clients = 8, .rounds = 1000, .bytes = 64, .request_bytes = 163, .answer_bytes = 90, .fabric = "tcp"};
    const char *json = NULL;
    const cli_option options[] = {
        {"clients", CLI_INT, &o.clients, 1, RAW_ANSWER_CLIENTS_MAX, NULL, "N", "processes that ask", "8"},
        {"rounds", CLI_INT, &o.rounds, 1, 1e6, NULL, "N", "requests of each in a slice; the best of five slices counts",
         "1000"},
        {"bytes", CLI_INT, &o.bytes, 16, 4096, NULL, "N", "of a request over sockets; an answer has 16", "64"},
        {"fabric", CLI_TEXT, &o.fabric, 0, 0, NULL, "NAME",
         "libfabric's provider that is measured too, in turn; none: leave it out", "tcp"},
        {"fabric-request", CLI_INT, &o.request_bytes, 1, RAW_MESSAGE_MAX, NULL, "N",
         "bytes of a request over libfabric; weft's of a policy is as long", "163"},
        {"fabric-answer", CLI_INT, &o.answer_bytes, 1, RAW_MESSAGE_MAX, NULL, "N", "bytes of its answer", "90"},
        {"json", CLI_TEXT, &json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
    };
    const cli program = {
        .program = "raw_rounds",
        .purpose = "a round of clients with a server that only answers: TCP sockets, and libfabric alone",
        .example = "raw_rounds --clients 8",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    floors f;
    times raw = {0}, star = {0};
    report to;
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (!report_open(&to, json))
        return 1;
    bool ok = open_floors(&o, &f) && measure(&o, &f, &raw, &star);
    if (ok)
        show(&o, &f, raw, star, &to);
    close_floors(&f);
    return report_close(&to) && ok ? 0 : 1;
}
