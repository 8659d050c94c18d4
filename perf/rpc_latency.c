/* SPDX-License-Identifier: Apache-2.0 */
/* rpc_latency.c - round trip of a call that does nothing, against libfabric's own ping-pong, in slices taken in turn. */
#include "common/measure.h"
#include "common/raw_pair.h"
#include "common/workers.h"

#include "cli.h"

#define MESSAGE_BYTES 64 /* of the raw ping-pong */
#define WARM_UP 300

static weft_status do_nothing(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "inline", .run = do_nothing, .flags = WEFT_FUNCTION_INLINE},
    {.name = "executor", .run = do_nothing},
};
#define FUNCTIONS (sizeof functions / sizeof *functions)

typedef struct settings {
    int64_t slices, calls;
    const char *json, *provider;
    bool quick;
} settings;

static bool call_slice(weft_agent *agent, const char *function, int64_t count, series *out)
{
    for (int64_t i = 0; i < count; i++) {
        double start = measure_now_us();
        weft_status status = weft_rpc_sync(agent, weft_to_rank(1), function, WEFT_NO_VALUES, NULL, NULL);
        if (status != WEFT_OK)
            return workers_complain(function, status, NULL);
        if (out)
            series_add(out, measure_now_us() - start);
    }
    return true;
}

static void print_row(const char *name, summary s, summary raw, double aim, report *json)
{
    printf("| %-16s | %8.2f | %8.2f | %8.2f |", name, s.min, s.p50, s.p99);
    if (aim > 0)
        printf(" %6.2f | %6.2f | <= %.1f |\n", s.p50 / raw.p50, s.min / raw.min, aim);
    else
        printf("        |        |        |\n");
    report_number(json, s.min, "%s_min_us", name);
    report_number(json, s.p50, "%s_p50_us", name);
    report_number(json, s.p99, "%s_p99_us", name);
    if (aim > 0) {
        report_number(json, s.p50 / raw.p50, "%s_ratio_of_medians", name);
        report_number(json, s.min / raw.min, "%s_ratio_of_minima", name);
    }
}

static bool measure(const settings *o, raw_pair *raw, weft_agent *agent, report *json)
{
    series floor = {0}, calls[FUNCTIONS] = {0};
    bool ok = true;
    for (size_t f = 0; ok && f < FUNCTIONS; f++)
        ok = call_slice(agent, functions[f].name, WARM_UP, NULL);
    for (int64_t slice = 0; ok && slice < o->slices; slice++) {
        ok = raw_pair_trips(raw, MESSAGE_BYTES, (unsigned)o->calls, &floor) == 0;
        for (size_t f = 0; ok && f < FUNCTIONS; f++)
            ok = call_slice(agent, functions[f].name, o->calls, &calls[f]);
    }
    if (ok) {
        summary r = series_summary(&floor);
        printf("No-op call round trip, us; raw is a ping-pong of %d bytes (libfabric %s, %s)\n\n", MESSAGE_BYTES,
               raw_pair_version(raw), o->provider);
        printf("|                  |      min |      p50 |      p99 | p50/raw | min/raw | aim |\n");
        printf("|------------------|----------|----------|----------|--------|--------|--------|\n");
        print_row("raw", r, r, 0, json);
        print_row("inline", series_summary(&calls[0]), r, 1.5, json);
        print_row("executor", series_summary(&calls[1]), r, 2.0, json);
        report_text(json, "libfabric", raw_pair_version(raw));
    }
    series_fini(&floor);
    for (size_t f = 0; f < FUNCTIONS; f++)
        series_fini(&calls[f]);
    return ok;
}

static bool run(const settings *o)
{
    report json;
    raw_pair *raw = NULL;
    workers w;
    if (!report_open(&json, o->json))
        return false;
    bool ok = raw_pair_open(o->provider, 4096, &raw) == 0;
    if (ok && (ok = workers_open(NULL, 0, 1, &w))) {
        ok = measure(o, raw, w.agent, &json);
        ok = workers_close(&w) && ok;
    }
    raw_pair_close(raw);
    return report_close(&json) && ok;
}

int main(int argc, char **argv)
{
    settings o = {.slices = 20, .calls = 1000, .provider = "tcp"};
    const cli_option options[] = {
        {"slices", CLI_INT, &o.slices, 1, 10000, NULL, "N", "turns of raw, inline, executor", "20"},
        {"calls", CLI_INT, &o.calls, 1, 100000, NULL, "N", "round trips in a slice", "1000"},
        {"provider", CLI_TEXT, &o.provider, 0, 0, NULL, "NAME", "libfabric's provider for the raw side", "tcp"},
        {"json", CLI_TEXT, &o.json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
        {"quick", CLI_FLAG, &o.quick, 0, 0, NULL, NULL, "a quarter of it", NULL},
    };
    const cli program = {"rpc_latency", "round trip of a no-op call against libfabric's ping-pong",
                         "rpc_latency --slices 40", options, sizeof options / sizeof *options};
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (workers_is_child())
        return workers_serve(functions, FUNCTIONS);
    if (o.quick)
        o.slices = (o.slices + 3) / 4;
    return run(&o) ? 0 : 1;
}
