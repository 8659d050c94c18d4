/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc_bandwidth.c - calls with one tensor of 8 B to 64 MiB, one way and echoed into a landing tensor, against libfabric.
 *
 * The floor of a small call is a ping-pong of as many bytes; of a large one a remote read of as many bytes (echo: a read and
 * a write), cut and overlapped as is fastest here and now for that size.
 */
#include "common/measure.h"
#include "common/raw_pair.h"
#include "common/workers.h"

#include "cli.h"

#include <stdlib.h>

#define SMALL 4096 /* up to here the floor is a ping-pong */
#define MIB ((size_t)1 << 20)
#define WARM_TRIPS 200

static const size_t sizes[] = {8, 64, 512, 4096, 16384, 65536, 262144, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB};
#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct settings {
    int64_t slice_ms, slices, bytes;
    const char *json, *provider;
    bool quick;
} settings;

typedef struct bench {
    const settings *o;
    raw_pair *raw;
    weft_agent *agent;
    weft_tensor *there, *back; /* the argument, and where the echo lands */
    size_t bytes;
    raw_cut cut_one, cut_echo;
    series floor_one, floor_echo, one, echo; /* microseconds */
} bench;

static weft_status take(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    return WEFT_OK;
}

static weft_status echo(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "take", .takes = {WEFT_TYPE_TENSOR}, .run = take},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = echo},
};

static bool call_once(bench *b, bool echoes, double *us)
{
    weft_rpc_options options = {.land = {&b->back, 1}};
    double start = measure_now_us();
    weft_status status = weft_rpc_sync(b->agent, weft_to_rank(1), echoes ? "echo" : "take",
                                       WEFT_VALUES(weft_of_tensor(b->there)), echoes ? &options : NULL, NULL);
    *us = measure_now_us() - start;
    return status == WEFT_OK || workers_complain("call", status, NULL);
}

static bool call_slice(bench *b, bool echoes, series *out)
{
    double end = measure_now_us() + (double)b->o->slice_ms * 1e3, us;
    do {
        if (!call_once(b, echoes, &us))
            return false;
        series_add(out, us);
    } while (measure_now_us() < end);
    return true;
}

/* How many repetitions fill a slice, from the best so far: a neighbour on the core makes a slice longer, not poorer
 * in samples. */
static unsigned repeats(const bench *b, series *s)
{
    if (s->count == 0)
        return 1;
    double wanted = (double)b->o->slice_ms * 1e3 / series_summary(s).min;
    return wanted < 1 ? 1 : wanted > 20000 ? 20000 : (unsigned)wanted;
}

static bool floor_slice(bench *b, bool echoes, series *out)
{
    if (b->bytes <= SMALL)
        return raw_pair_trips(b->raw, b->bytes, repeats(b, out), out) == 0;
    int what = echoes ? RAW_READ | RAW_WRITE : RAW_READ;
    return raw_pair_bulk(b->raw, what, b->bytes, echoes ? b->cut_echo : b->cut_one, repeats(b, out), out) == 0;
}

static bool choose_cuts(bench *b)
{
    return raw_pair_best_cut(b->raw, RAW_READ, b->bytes, &b->cut_one) == 0 &&
           raw_pair_best_cut(b->raw, RAW_READ | RAW_WRITE, b->bytes, &b->cut_echo) == 0;
}

static void print_side(bench *b, const char *name, double trips, series *raw, series *weft, report *json)
{
    summary r = series_summary(raw), w = series_summary(weft);
    double bytes = (double)b->bytes * trips;
    printf(" %9.1f | %9.1f | %6.2f | %6.2f | %6.0f %% | %6.0f %% |", r.p50, w.p50, bytes / r.p50 / 1e3,
           bytes / w.p50 / 1e3, 100 * r.p50 / w.p50, 100 * r.min / w.min);
    report_number(json, r.p50, "%s_%zu_raw_us", name, b->bytes);
    report_number(json, w.p50, "%s_%zu_us", name, b->bytes);
    report_number(json, w.min, "%s_%zu_min_us", name, b->bytes);
    report_number(json, r.p50 / w.p50, "%s_%zu_of_raw", name, b->bytes);
    report_number(json, r.min / w.min, "%s_%zu_of_raw_best", name, b->bytes);
}

static bool slices(bench *b)
{
    double us;
    series warm = {0};
    bool ok = b->bytes <= SMALL ? raw_pair_trips(b->raw, b->bytes, WARM_TRIPS, &warm) == 0 : choose_cuts(b);
    series_fini(&warm);
    for (int i = 0; ok && i < 3; i++) /* memory and lanes are there */
        ok = call_once(b, true, &us) && call_once(b, false, &us);
    for (int64_t i = 0; ok && i < b->o->slices; i++) {
        ok = floor_slice(b, false, &b->floor_one) && call_slice(b, false, &b->one) &&
             floor_slice(b, true, &b->floor_echo) && call_slice(b, true, &b->echo);
    }
    return ok;
}

static bool measure_size(bench *b, size_t bytes, report *json)
{
    char name[32];
    b->bytes = bytes;
    b->there = weft_tensor_full(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8, 1);
    b->back = weft_tensor_zeros(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8);
    bool ok = b->there && b->back && slices(b);
    if (ok) {
        printf("| %-8s |", measure_bytes_name(bytes, name));
        print_side(b, "one_way", 1, &b->floor_one, &b->one, json);
        print_side(b, "echo", 2, &b->floor_echo, &b->echo, json);
        putchar('\n');
    }
    series_fini(&b->floor_one);
    series_fini(&b->floor_echo);
    series_fini(&b->one);
    series_fini(&b->echo);
    weft_tensor_unref(b->there);
    weft_tensor_unref(b->back);
    return ok;
}

static bool measure(bench *b, report *json)
{
    printf("Calls with a tensor, medians; GB/s is 1e9 bytes moved a second; of raw: raw's time over the call's\n"
           "(libfabric %s, %s: ping-pong up to 4 KiB, then remote read, for the echo read and write)\n\n",
           raw_pair_version(b->raw), b->o->provider);
    printf("| one way  |    raw us |   weft us | raw GB |weft GB | of raw   | best     |"
           " echo raw  |   weft us | raw GB |weft GB | of raw   | best     |\n"
           "|----------|-----------|-----------|--------|--------|----------|----------|"
           "-----------|-----------|--------|--------|----------|----------|\n");
    for (size_t i = 0; i < COUNT(sizes); i++) {
        if (b->o->bytes && b->o->bytes != (int64_t)sizes[i])
            continue;
        if (!measure_size(b, sizes[i], json))
            return false;
        fflush(stdout);
    }
    weft_stats stats;
    weft_agent_stats(b->agent, &stats);
    printf("\nbytes of payloads over the inline limit copied by weft, at the caller: %llu\n",
           (unsigned long long)stats.bytes_copied);
    report_number(json, (double)stats.bytes_copied, "bytes_copied");
    return true;
}

static bool run(const settings *o)
{
    report json;
    bench b = {.o = o};
    workers w;
    if (!report_open(&json, o->json))
        return false;
    bool ok = raw_pair_open(o->provider, 64 * MIB, &b.raw) == 0;
    if (ok && (ok = workers_open(NULL, 0, 1, &w))) {
        b.agent = w.agent;
        ok = measure(&b, &json);
        ok = workers_close(&w) && ok;
    }
    raw_pair_close(b.raw);
    return report_close(&json) && ok;
}

int main(int argc, char **argv)
{
    settings o = {.slices = 6, .slice_ms = 60, .provider = "tcp"};
    const cli_option options[] = {
        {"slices", CLI_INT, &o.slices, 1, 10000, NULL, "N", "turns of raw and weft at every size", "6"},
        {"slice-ms", CLI_INT, &o.slice_ms, 1, 10000, NULL, "N", "length of a slice", "60"},
        {"bytes", CLI_INT, &o.bytes, 1, 64 << 20, NULL, "N", "this size alone", "all"},
        {"provider", CLI_TEXT, &o.provider, 0, 0, NULL, "NAME", "libfabric's provider for the raw side", "tcp"},
        {"json", CLI_TEXT, &o.json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
        {"quick", CLI_FLAG, &o.quick, 0, 0, NULL, NULL, "slices of 20 ms, half as many", NULL},
    };
    const cli program = {"rpc_bandwidth", "calls with tensors against libfabric's remote read and write",
                         "rpc_bandwidth --slice-ms 200", options, COUNT(options)};
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (workers_is_child())
        return workers_serve(functions, COUNT(functions));
    if (o.quick) {
        o.slice_ms = 20;
        o.slices = (o.slices + 1) / 2;
    }
    return run(&o) ? 0 : 1;
}
