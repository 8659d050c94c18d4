/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft_perf.c - measures weft on this host, or between two (docs/weft-perf.md). Each fabric is measured in a process of
 * its own (task.h). This process opens an agent only with --serve.
 */
#include "perf/bench.h"
#include "perf/serve.h"
#include "perf/stop.h"
#include "perf/writers.h"

#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SILENCE_S 120 /* and ten times the time of a result: longer between two results, a task is ended */
enum { FAILED = 1, REFUSED = 2, SLOWER = 3 };

static const char *const usual_fabrics[] = {"host", "tcp", "verbs"};

typedef struct run {
    settings o;
    run_report report;
    bool is_invalid, has_failed;
    bool has_said_stop; /* a signal ends the program, and that was printed */
    const char *now;    /* the fabric that is being measured */
    const char *last;   /* the last fabric that has results */
    picture svg;
} run;

typedef struct part { /* what a task is to do */
    const settings *o;
    const char *list;
} part;

/* ---- What the tasks do ------------------------------------------------------------------------------------------ */

/* Whether the fabrics of a list open on this host. A note means that the list itself is wrong. */
static bool try_fabric(task_end *to, void *arg)
{
    const part *p = arg;
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    weft_agent_options options = {
        .has_rank = true, .world_size = 1, .master_addr = "127.0.0.1", .master_port = WEFT_ANY_PORT, .fabric = p->list};
    weft_status status = weft_agent_open(&options, &agent, &error);
    weft_agent_stop(agent);
    if (status == WEFT_ERR_INVALID)
        task_note(to, "invalid");
    char shown[32];
    return !status || task_fail_status(to, fabric_name(p->list, shown), status, error);
}

/* Whether host carries large tensors between two workers. Only a large tensor shows that. If it does not, a note says
 * why. */
static bool try_host_bulk(task_end *to, void *arg)
{
    const part *p = arg;
    bench b;
    bool is_absent = false;
    char why[600];
    if (!bench_open(&b, p->o, to, p->list, 2, false, &is_absent))
        return is_absent && task_fail(to, "%s", b.absent);
    bool carries = bench_try_bulk(&b, why, sizeof(why));
    if (!carries)
        task_note(to, "host cannot carry large tensors here, so it is measured with tcp for them: %s", why);
    return bench_close(&b, carries) || !carries;
}

static bool measure_fabric(task_end *to, void *arg)
{
    static bool (*const measures[MEASURES])(bench *) = {measure_latency, measure_bandwidth, measure_rate,
                                                        measure_incast,  measure_beside,    measure_collectives,
                                                        measure_device};
    const part *p = arg;
    const settings *o = p->o;
    bench b;
    bool is_absent = false, has_helpers = o->peers || o->wanted[LATENCY] || o->wanted[BANDWIDTH] || o->wanted[RATE];
    if (!bench_open(&b, o, to, p->list, (int)o->workers, has_helpers, &is_absent)) {
        if (is_absent && !o->has_fabrics)
            task_note(to, "%s", b.absent);
        return is_absent && (!o->has_fabrics || task_fail(to, "%s", b.absent));
    }
    bool ok = true;
    for (int i = 0; ok && i < MEMORY; i++)
        ok = !o->wanted[i] || measures[i](&b);
    return bench_close(&b, ok) && ok;
}

static bool measure_memory_of(task_end *to, void *arg)
{
    const part *p = arg;
    bench b;
    bool is_absent = false;
    memory_before before = memory_read_before(p->list);
    if (before.kib < 0) {
        static const char why[] = "memory is not measured: this kernel has no /proc/self/smaps_rollup";
        task_note(to, "%s", why);
        return !p->o->has_only || task_fail(to, "--only names memory, which is not measured here");
    }
    if (!bench_open(&b, p->o, to, p->list, (int)p->o->idle_peers + 1, false, &is_absent))
        return false;
    bool ok = measure_memory(&b, &before);
    return bench_close(&b, ok) && ok;
}

/* Joins once more, to say that all is done. */
static bool tell_done(task_end *to, void *arg)
{
    const part *p = arg;
    bench b;
    bool is_absent = false;
    if (!bench_open(&b, p->o, to, p->list, 2, false, &is_absent))
        return false;
    weft_status status = serve_tell_done(b.agent);
    return bench_close(&b, !status) && !status;
}

/* ---- What this process does with the results -------------------------------------------------------------------- */

/* Once: each fabric says the same of a peer that is missing. */
static void say(run *r, const char *text)
{
    if (!run_report_note(&r->report, text))
        return;
    fflush(stdout);
    fprintf(stderr, "weft-perf: %s\n", text);
}

/* Says if the machine is too busy. */
static void look(run *r)
{
    run_report_look(&r->report);
    if (r->report.busy > BUSY_MOST)
        say(r, "the machine is busy with other programs: do not quote these results, not even ratios");
}

static void take_note(const char *text, void *arg)
{
    say(arg, text);
}

static void take_invalid(const char *text, void *arg)
{
    run *r = arg;
    (void)text;
    r->is_invalid = true;
}

static void take_result(const result *taken, void *arg)
{
    run *r = arg;
    results *found = &r->report.found;
    r->last = r->now;
    if (!r->o.json)
        table_write(stdout, taken, found->count ? &found->items[found->count - 1] : NULL);
    results_add(found, taken);
}

static bool do_part(run *r, task_fn fn, const char *list)
{
    char why[1024];
    part p = {.o = &r->o, .list = list};
    task_hears hears = {.result = take_result, .note = take_note, .arg = r};
    double silence_s = SILENCE_S + 10 * r->o.seconds + (r->o.peers ? 600 : 0);
    r->now = list;
    bool ok = task_run(fn, &p, silence_s, &hears, why, sizeof(why));
    if (!ok)
        say(r, why);
    r->has_said_stop = stop_signal();
    if (!ok || ferror(stdout)) /* nobody gets the next results */
        r->has_failed = true;
    return ok;
}

typedef struct bulk_news {
    run *r;
    bool lacks;
} bulk_news;

static void take_bulk_note(const char *text, void *arg)
{
    bulk_news *news = arg;
    say(news->r, text);
    news->lacks = true;
}

/* Measures host+tcp instead of host if host carries no large tensors on this machine. A failure is reported by the
 * measurement that follows. */
static void complete_host(run *r)
{
    settings *o = &r->o;
    char why[1024];
    for (size_t i = 0; i < o->fabric_count && !o->serve && !*o->to_host && !stop_signal(); i++) {
        part p = {.o = o, .list = o->fabrics[i]};
        bulk_news news = {.r = r};
        task_hears hears = {.note = take_bulk_note, .arg = &news};
        if (strcmp(o->fabrics[i], "host") != 0)
            continue;
        (void)task_run(try_host_bulk, &p, SILENCE_S, &hears, why, sizeof(why));
        if (news.lacks)
            text_copy(o->fabrics[i], sizeof(*o->fabrics), "host,tcp");
    }
}

/* Keeps the fabrics that open. Fails if one that the user names does not open, or if options or variables are wrong:
 * then the user's own agents would not open either. */
static int find_fabrics(run *r)
{
    settings *o = &r->o;
    size_t kept = 0;
    char why[1024];
    task_hears hears = {.note = take_invalid, .arg = r};
    for (size_t i = 0; i < sizeof(usual_fabrics) / sizeof(*usual_fabrics) && !o->has_fabrics; i++)
        text_copy(o->fabrics[o->fabric_count++], sizeof(*o->fabrics), usual_fabrics[i]);
    for (size_t i = 0; i < o->fabric_count; i++) {
        part p = {.o = o, .list = o->fabrics[i]};
        bool opens = task_run(try_fabric, &p, SILENCE_S, &hears, why, sizeof(why));
        if (opens && kept != i)
            memcpy(o->fabrics[kept], o->fabrics[i], sizeof(*o->fabrics));
        kept += opens;
        if (opens)
            continue;
        say(r, why);
        r->has_said_stop = stop_signal();
        if (o->has_fabrics || r->is_invalid || stop_signal())
            return r->is_invalid ? REFUSED : FAILED;
    }
    o->fabric_count = kept;
    complete_host(r);
    return kept > 0 ? 0 : FAILED;
}

static void measure(run *r)
{
    const settings *o = &r->o;
    bool has_memory = o->wanted[MEMORY] && !*o->to_host, has_more = false;
    for (int i = 0; i < MEMORY; i++)
        has_more = has_more || o->wanted[i];
    if (o->wanted[MEMORY] && !has_memory)
        say(r, "memory is measured on one host only");
    for (size_t i = 0; i < o->fabric_count && !r->has_failed; i++) {
        if (has_more)
            (void)do_part(r, measure_fabric, o->fabrics[i]);
        if (has_memory && !r->has_failed)
            (void)do_part(r, measure_memory_of, o->fabrics[i]);
    }
    if (*o->to_host && r->last && !r->has_failed)
        (void)do_part(r, tell_done, r->last);
    if (r->report.found.count || r->has_failed)
        return;
    say(r, "nothing was measured");
    r->has_failed = true;
}

/* Keeps those results of --from that --only, --fabric and --sizes choose. False: none is left. */
static bool choose_results(run *r)
{
    results *found = &r->report.found;
    size_t kept = 0;
    for (size_t i = 0; i < found->count; i++) {
        const result *one = &found->items[i];
        if (settings_choose(&r->o, one->measure, one->fabric, one->bytes))
            found->items[kept++] = *one;
    }
    found->count = kept;
    return kept > 0;
}

/* ---- The end ---------------------------------------------------------------------------------------------------- */

static int finish(run *r, const results *old)
{
    const settings *o = &r->o;
    results *found = &r->report.found;
    char caption[512];
    int slower = 0;
    if (o->json)
        json_write(stdout, &r->report);
    else
        printf("\n%s\n", run_report_caption(&r->report, caption, sizeof(caption)));
    if (o->svg && !svg_write(&r->svg, &r->report))
        r->has_failed = true;
    if (o->compare)
        slower = compare_write(o->json ? stderr : stdout, old, found, o->bound);
    if (slower < 0)
        say(r, "--compare: no result is in both runs");
    return r->has_failed || slower < 0 ? FAILED : slower > 0 ? SLOWER : 0;
}

/* The fabrics of --serve, in one list, each once. */
static int serve_fabrics(run *r)
{
    char list[FABRICS_MAX * sizeof(*r->o.fabrics)] = "", item[sizeof(*r->o.fabrics)];
    for (size_t i = 0; i < r->o.fabric_count; i++)
        for (const char *at = r->o.fabrics[i]; next_item(&at, item, sizeof(item));)
            if (!list_has(list, item))
                snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", *list ? "," : "", item);
    return serve(&r->o, list);
}

/* Opens the files that the options name, before anything is measured. */
static int open_files(run *r, run_report *old)
{
    const settings *o = &r->o;
    char why[512];
    bool ok = !o->compare || json_read(o->compare, old, why, sizeof(why));
    if (!ok) {
        fprintf(stderr, "weft-perf: --compare %s\n", why);
        return REFUSED;
    }
    if (o->from && !json_read(o->from, &r->report, why, sizeof(why))) {
        fprintf(stderr, "weft-perf: --from %s\n", why);
        return REFUSED;
    }
    if (o->from && !choose_results(r)) {
        fprintf(stderr, "weft-perf: --from %s has no result that --only, --fabric and --sizes choose\n", o->from);
        return REFUSED;
    }
    return o->svg && !svg_open(&r->svg, o->svg) ? REFUSED : 0;
}

static int run_all(run *r)
{
    run_report old = {0};
    const results *found = &r->report.found;
    int code = open_files(r, &old);
    if (!code && !r->o.from) {
        run_report_here(&r->report, r->o.seconds);
        if (!r->o.serve)
            look(r);
        code = find_fabrics(r);
    }
    if (!code && r->o.serve) {
        code = serve_fabrics(r);
    } else if (!code) {
        for (size_t i = 0; r->o.from && !r->o.json && i < found->count; i++)
            table_write(stdout, &found->items[i], i ? &found->items[i - 1] : NULL);
        if (!r->o.from)
            measure(r);
        if (!r->o.from && !stop_signal())
            look(r);
        code = finish(r, &old.found);
    }
    svg_drop(&r->svg);
    run_report_fini(&old);
    return code;
}

int main(int argc, char **argv)
{
    static run r = {.svg.fd = -1};
    if (getenv("WEFT_SPAWNED")) /* a worker that bench_open started */
        return service_serve();
    int mode = fcntl(STDOUT_FILENO, F_GETFL);
    if (mode < 0 || (mode & O_ACCMODE) == O_RDONLY) { /* another file could get its number */
        fprintf(stderr, "weft-perf: standard output cannot be written: %s\n",
                mode < 0 ? "it is closed: redirect it to /dev/null" : "it is open only for reading");
        return FAILED;
    }
    (void)signal(SIGXFSZ, SIG_IGN); /* output over the limit of a file is an error */
    int code = settings_read(argc, argv, &r.o);
    if (code >= 0)
        return cli_flush("weft-perf", code);
    if (!stop_catch()) {
        fprintf(stderr, "weft-perf: a pipe: %s\n", strerror(errno));
        return FAILED;
    }
    code = run_all(&r);
    run_report_fini(&r.report);
    if (stop_signal() && !r.has_said_stop)
        fprintf(stderr, "weft-perf: ended by SIG%s\n", sigabbrev_np(stop_signal()));
    return cli_flush("weft-perf", stop_signal() ? 128 + stop_signal() : code);
}
