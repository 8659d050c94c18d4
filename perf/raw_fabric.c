/* SPDX-License-Identifier: Apache-2.0 */
/* raw_fabric.c - the floor under all benchmarks: what libfabric does on this machine without weft. */
#include "common/measure.h"
#include "common/raw_pair.h"

#include "cli.h"

#define SIZE_MAX_BYTES ((size_t)64 << 20)
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const size_t trip_sizes[] = {8, 64, 256, 1024, 4096};
static const size_t rate_sizes[] = {65536, 262144, 1 << 20, 4 << 20, 16 << 20, SIZE_MAX_BYTES};

typedef struct settings {
    const char *provider, *json;
    int64_t rounds, repeat_ms;
} settings;

static bool measure_trips(raw_pair *pair, const settings *o, report *json)
{
    printf("%12s %10s %10s %10s   round trip, us\n", "bytes", "min", "p50", "p99");
    for (size_t i = 0; i < COUNT(trip_sizes); i++) {
        series warm = {0}, times = {0};
        bool ok = raw_pair_trips(pair, trip_sizes[i], 200, &warm) == 0 &&
                  raw_pair_trips(pair, trip_sizes[i], (unsigned)o->rounds, &times) == 0;
        summary s = series_summary(&times);
        series_fini(&warm);
        series_fini(&times);
        if (!ok)
            return false;
        printf("%12zu %10.2f %10.2f %10.2f\n", trip_sizes[i], s.min, s.p50, s.p99);
        report_number(json, s.min, "trip_%zu_min_us", trip_sizes[i]);
        report_number(json, s.p50, "trip_%zu_p50_us", trip_sizes[i]);
        report_number(json, s.p99, "trip_%zu_p99_us", trip_sizes[i]);
    }
    return true;
}

/* GB/s of the best cut, over all repetitions, and that cut. */
static bool best_rate(raw_pair *pair, int what, size_t bytes, int64_t repeat_ms, double *rate, raw_cut *cut)
{
    series times = {0};
    double end = measure_now_us() + (double)repeat_ms * 1e3;
    bool ok = raw_pair_best_cut(pair, what, bytes, cut) == 0;
    do
        ok = ok && raw_pair_bulk(pair, what, bytes, *cut, 3, &times) == 0;
    while (ok && measure_now_us() < end);
    if (ok)
        *rate = (double)bytes / series_summary(&times).p50 / 1e3;
    series_fini(&times);
    return ok;
}

static bool measure_rates(raw_pair *pair, const settings *o, report *json)
{
    printf("%12s %10s %10s %13s %13s   GB/s; chunk x how many under way\n", "bytes", "read", "write", "read's cut",
           "write's cut");
    for (size_t i = 0; i < COUNT(rate_sizes); i++) {
        size_t bytes = rate_sizes[i];
        raw_cut read, write;
        double reads, writes;
        if (!best_rate(pair, RAW_READ, bytes, o->repeat_ms, &reads, &read) ||
            !best_rate(pair, RAW_WRITE, bytes, o->repeat_ms, &writes, &write))
            return false;
        printf("%12zu %10.2f %10.2f %10zu x%u %10zu x%u\n", bytes, reads, writes, read.chunk, read.window, write.chunk,
               write.window);
        report_number(json, reads, "read_%zu_gb_s", bytes);
        report_number(json, writes, "write_%zu_gb_s", bytes);
    }
    return true;
}

int main(int argc, char **argv)
{
    settings o = {.provider = "tcp", .rounds = 2000, .repeat_ms = 100};
    const cli_option options[] = {
        {"provider", CLI_TEXT, &o.provider, 0, 0, NULL, "NAME", "libfabric's provider with connected endpoints", "tcp"},
        {"rounds", CLI_INT, &o.rounds, 1, 1000000, NULL, "N", "round trips of each size", "2000"},
        {"repeat-ms", CLI_INT, &o.repeat_ms, 1, 60000, NULL, "N", "time spent on each rate", "100"},
        {"json", CLI_TEXT, &o.json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
    };
    const cli program = {"raw_fabric",
                         "round trips, remote reads and writes of two processes on loopback, on libfabric",
                         "raw_fabric --rounds 10000", options, COUNT(options)};
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    report json;
    raw_pair *pair = NULL;
    if (!report_open(&json, o.json))
        return 1;
    bool ok = raw_pair_open(o.provider, SIZE_MAX_BYTES, &pair) == 0;
    if (ok) {
        printf("raw libfabric %s, provider %s, connected endpoints, loopback, both sides polling\n",
               raw_pair_version(pair), o.provider);
        report_text(&json, "libfabric", raw_pair_version(pair));
        ok = measure_trips(pair, &o, &json) && measure_rates(pair, &o, &json);
    }
    raw_pair_close(pair);
    return report_close(&json) && ok ? 0 : 1;
}
