/* SPDX-License-Identifier: Apache-2.0 */
/* rpc_rate.c - no-op calls a second with 1 to 256 of them in flight, from one and several threads, against libfabric. */
#include "common/measure.h"
#include "common/raw_pair.h"
#include "common/workers.h"

#include "cli.h"

#include <pthread.h>

#define MESSAGE_BYTES 64
#define WINDOW_MAX 256
#define THREADS 4 /* of the case with several callers */
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const unsigned windows[] = {1, 4, 16, 64, 256};

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

typedef struct settings {
    int64_t slice_ms, slices;
    const char *json, *provider;
    bool quick;
} settings;

/* One thread's part: `window` calls in flight until the time is over. */
typedef struct caller {
    pthread_t thread;
    weft_agent *agent;
    const char *function;
    unsigned window;
    double end_us;
    unsigned long finished;
    weft_status status;
} caller;

static weft_status start_call(const caller *c, weft_future **slot)
{
    weft_rpc_options options = {.wait_for_room = true};
    return weft_rpc_async(c->agent, weft_to_rank(1), c->function, WEFT_NO_VALUES, &options, slot);
}

static void *call_until(void *arg)
{
    caller *c = arg;
    weft_future *flying[WINDOW_MAX] = {0};
    unsigned long started = 0;
    while (c->status == WEFT_OK && started < c->window) {
        c->status = start_call(c, &flying[started]);
        started += c->status == WEFT_OK;
    }
    while (c->finished < started) { /* the oldest first */
        weft_future **slot = &flying[c->finished % c->window];
        weft_status status = weft_future_wait(*slot, WEFT_FOREVER);
        weft_future_unref(*slot);
        c->finished++;
        c->status = c->status ? c->status : status;
        if (c->status != WEFT_OK || measure_now_us() >= c->end_us)
            continue;
        c->status = start_call(c, slot);
        started += c->status == WEFT_OK;
    }
    return NULL;
}

/* Calls a second. */
static bool call_slice(weft_agent *agent, const char *function, unsigned window, int threads, double slice_us,
                       series *out)
{
    caller callers[THREADS];
    double start = measure_now_us();
    int running = 0;
    unsigned long finished = 0;
    weft_status status = WEFT_OK;
    for (; running < threads; running++) {
        callers[running] = (caller){
            .agent = agent, .function = function, .window = window / (unsigned)threads, .end_us = start + slice_us};
        if (running > 0 && pthread_create(&callers[running].thread, NULL, call_until, &callers[running]))
            break;
    }
    call_until(&callers[0]);
    for (int i = 0; i < running; i++) {
        if (i > 0)
            pthread_join(callers[i].thread, NULL);
        finished += callers[i].finished;
        status = status ? status : callers[i].status;
    }
    series_add(out, (double)finished / (measure_now_us() - start) * 1e6);
    return running == threads && (status == WEFT_OK || workers_complain(function, status, NULL));
}

static bool raw_slice(raw_pair *raw, unsigned window, double slice_us, series *out)
{
    double last = out->count ? out->values[out->count - 1] : 20000, us;
    unsigned count = (unsigned)(last * slice_us / 1e6) + window;
    if (raw_pair_window(raw, MESSAGE_BYTES, count, window, &us))
        return false;
    series_add(out, count / us * 1e6);
    return true;
}

typedef struct rates {
    series raw, on_poller, on_executor, threaded;
} rates;

static bool measure_window(const settings *o, raw_pair *raw, weft_agent *agent, unsigned window, rates *r)
{
    double us = (double)o->slice_ms * 1e3;
    bool ok = true;
    for (int64_t i = 0; ok && i < o->slices; i++) {
        ok = raw_slice(raw, window, us, &r->raw) && call_slice(agent, "inline", window, 1, us, &r->on_poller) &&
             call_slice(agent, "executor", window, 1, us, &r->on_executor);
        if (ok && window >= THREADS)
            ok = call_slice(agent, "executor", window, THREADS, us, &r->threaded);
    }
    return ok;
}

static void print_window(unsigned window, rates *r, report *json)
{
    double raw = series_summary(&r->raw).p50, on_poller = series_summary(&r->on_poller).p50;
    double on_executor = series_summary(&r->on_executor).p50, threaded = series_summary(&r->threaded).p50;
    printf("| %9u | %9.0f | %9.0f | %9.0f | ", window, raw, on_poller, on_executor);
    if (r->threaded.count)
        printf("%9.0f | ", threaded);
    else
        printf("%9s | ", "");
    printf("%6.2f | %6.2f |\n", on_poller / raw, on_executor / raw);
    report_number(json, raw, "window_%u_raw_per_s", window);
    report_number(json, on_poller, "window_%u_inline_per_s", window);
    report_number(json, on_executor, "window_%u_executor_per_s", window);
    report_number(json, on_poller / raw, "window_%u_inline_of_raw", window);
    report_number(json, on_executor / raw, "window_%u_executor_of_raw", window);
    if (r->threaded.count)
        report_number(json, threaded, "window_%u_threads_per_s", window);
    series_fini(&r->raw);
    series_fini(&r->on_poller);
    series_fini(&r->on_executor);
    series_fini(&r->threaded);
}

static bool measure(const settings *o, raw_pair *raw, weft_agent *agent, report *json)
{
    bool ok = true;
    printf("No-op calls a second (medians of slices); raw: ping-pong of %d bytes with as many under way (libfabric %s, "
           "%s)\n\n",
           MESSAGE_BYTES, raw_pair_version(raw), o->provider);
    printf("| in flight |       raw |    inline |  executor | %d threads | inline | execut |\n"
           "|           |     trips |     calls |     calls |     calls | of raw | of raw |\n"
           "|-----------|-----------|-----------|-----------|-----------|--------|--------|\n",
           THREADS);
    for (size_t i = 0; ok && i < COUNT(windows); i++) {
        rates r = {0};
        ok = measure_window(o, raw, agent, windows[i], &r);
        print_window(windows[i], &r, json);
        fflush(stdout);
    }
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
    settings o = {.slices = 6, .slice_ms = 100, .provider = "tcp"};
    const cli_option options[] = {
        {"slices", CLI_INT, &o.slices, 1, 10000, NULL, "N", "turns of raw and weft at every window", "6"},
        {"slice-ms", CLI_INT, &o.slice_ms, 1, 10000, NULL, "N", "length of a slice", "100"},
        {"provider", CLI_TEXT, &o.provider, 0, 0, NULL, "NAME", "libfabric's provider for the raw side", "tcp"},
        {"json", CLI_TEXT, &o.json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
        {"quick", CLI_FLAG, &o.quick, 0, 0, NULL, NULL, "slices of 40 ms, half as many", NULL},
    };
    const cli program = {"rpc_rate", "no-op calls a second with many in flight, against libfabric",
                         "rpc_rate --slice-ms 200", options, COUNT(options)};
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (workers_is_child())
        return workers_serve(functions, COUNT(functions));
    if (o.quick) {
        o.slice_ms = 40;
        o.slices = (o.slices + 1) / 2;
    }
    return run(&o) ? 0 : 1;
}
