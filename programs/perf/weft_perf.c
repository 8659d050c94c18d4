/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft_perf.c - measures weft on this host, or between two (docs/weft-perf.md). Each fabric is measured in a process of
 * its own (task.h). This process opens an agent only with --serve.
 */
#include "perf/bench.h"
#include "perf/peers.h"
#include "perf/serve.h"
#include "perf/writers.h"

#include <stdlib.h>
#include <string.h>

#define SILENCE_S 120 /* and ten times the time of a result: longer between two results, a task is ended */
enum { FAILED = 1, REFUSED = 2, SLOWER = 3 };

static const char *const usual_fabrics[] = {"host", "tcp", "verbs"};

typedef struct run {
    settings o;
    report_of_run report;
    bool is_invalid, has_failed;
    const char *last; /* the last fabric that was measured */
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
    weft_status st = weft_agent_open(&options, &agent, &error);
    weft_agent_stop(agent);
    if (st == WEFT_ERR_INVALID)
        task_note(to, "invalid");
    char shown[32];
    return !st || task_fail_status(to, fabric_name(p->list, shown), st, error);
}

static bool measure_fabric(task_end *to, void *arg)
{
    static bool (*const measures[MEASURES])(bench *) = {measure_latency, measure_bandwidth, measure_rate,
                                                        measure_incast,  measure_beside,    measure_collectives};
    const part *p = arg;
    const settings *o = p->o;
    bench b;
    bool is_absent = false, has_floors = o->wanted[LATENCY] || o->wanted[BANDWIDTH] || o->wanted[RATE];
    if (!bench_open(&b, o, to, p->list, (int)o->workers, has_floors, &is_absent)) {
        if (is_absent && !o->has_fabrics)
            task_note(to, "%s does not reach the other side: it is not measured", b.fabric);
        return is_absent && (!o->has_fabrics || task_fail(to, "%s does not reach the other side", b.fabric));
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
        task_note(to, "memory is not measured: this kernel has no /proc/self/smaps_rollup");
        return true;
    }
    if (!bench_open(&b, p->o, to, p->list, (int)p->o->idle_peers + 1, false, &is_absent))
        return false;
    bool ok = measure_memory(&b, &before);
    return bench_close(&b, ok) && ok;
}

static bool measure_peers(task_end *to, void *arg)
{
    const part *p = arg;
    return peers_measure(p->o, to);
}

/* Joins once more, to say that all is done. */
static bool tell_done(task_end *to, void *arg)
{
    const part *p = arg;
    bench b;
    bool is_absent = false;
    if (!bench_open(&b, p->o, to, p->list, 2, false, &is_absent))
        return false;
    weft_status st = serve_tell_done(b.agent);
    return bench_close(&b, !st) && !st;
}

/* ---- What this process does with the results -------------------------------------------------------------------- */

static void say(run *r, const char *text)
{
    char(*notes)[1024] = realloc(r->report.notes, (r->report.note_count + 1) * sizeof *notes);
    fflush(stdout);
    fprintf(stderr, "weft-perf: %s\n", text);
    if (!notes)
        return;
    r->report.notes = notes;
    text_copy(notes[r->report.note_count++], sizeof *notes, text);
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
    if (!r->o.csv && !r->o.json)
        table_write(stdout, taken, found->count ? &found->items[found->count - 1] : NULL);
    results_add(found, taken);
}

static bool do_part(run *r, task_fn fn, const char *list)
{
    char why[1024];
    part p = {.o = &r->o, .list = list};
    task_hears hears = {.result = take_result, .note = take_note, .arg = r};
    double silence_s = SILENCE_S + 10 * r->o.seconds + (fn == measure_peers ? 600 : 0);
    if (task_run(fn, &p, silence_s, &hears, why, sizeof why))
        return true;
    say(r, why);
    r->has_failed = true;
    return false;
}

/* Keeps the fabrics that open. One that the command line names has to open. */
static int find_fabrics(run *r)
{
    settings *o = &r->o;
    size_t kept = 0;
    char why[1024];
    task_hears hears = {.note = take_invalid, .arg = r};
    for (size_t i = 0; i < sizeof usual_fabrics / sizeof *usual_fabrics && !o->has_fabrics; i++)
        text_copy(o->fabrics[o->fabric_count++], sizeof *o->fabrics, usual_fabrics[i]);
    for (size_t i = 0; i < o->fabric_count; i++) {
        part p = {.o = o, .list = o->fabrics[i]};
        bool opens = task_run(try_fabric, &p, SILENCE_S, &hears, why, sizeof why);
        if (opens && kept != i)
            memcpy(o->fabrics[kept], o->fabrics[i], sizeof *o->fabrics);
        kept += opens;
        if (opens)
            continue;
        say(r, why);
        if (o->has_fabrics)
            return r->is_invalid ? REFUSED : FAILED;
    }
    o->fabric_count = kept;
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
        if (has_more && do_part(r, measure_fabric, o->fabrics[i]))
            r->last = o->fabrics[i];
        if (has_memory && !r->has_failed)
            (void)do_part(r, measure_memory_of, o->fabrics[i]);
    }
    if (*o->to_host && r->last && !r->has_failed)
        (void)do_part(r, tell_done, r->last);
    if (o->peers && !r->has_failed)
        (void)do_part(r, measure_peers, "");
}

/* ---- The end ---------------------------------------------------------------------------------------------------- */

static int finish(run *r, const results *old)
{
    const settings *o = &r->o;
    results *found = &r->report.found;
    int slower = 0;
    if (o->csv)
        csv_write(stdout, found);
    else if (o->json)
        json_write(stdout, &r->report);
    else
        table_write_peers(stdout, found);
    if (o->svg && !svg_write(o->svg, found))
        r->has_failed = true;
    if (o->compare)
        slower = compare_write(o->csv || o->json ? stderr : stdout, old, found, o->bound);
    if (slower < 0)
        say(r, "--compare: no result is in both runs");
    if (fflush(stdout) || ferror(stdout))
        r->has_failed = true;
    return r->has_failed || slower < 0 ? FAILED : slower > 0 ? SLOWER : 0;
}

/* The fabrics of --serve, in one list. */
static int serve_fabrics(run *r)
{
    char list[128] = "";
    for (size_t i = 0; i < r->o.fabric_count; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? "," : "", r->o.fabrics[i]);
    return serve(&r->o, list);
}

static int run_all(run *r)
{
    results old = {0};
    char why[512];
    int code = 0;
    if (r->o.compare && !json_read(r->o.compare, &old, why, sizeof why)) {
        fprintf(stderr, "weft-perf: --compare %s\n", why);
        code = REFUSED;
    } else if (r->o.from && !json_read(r->o.from, &r->report.found, why, sizeof why)) {
        fprintf(stderr, "weft-perf: --from %s\n", why);
        code = REFUSED;
    }
    if (!code && !r->o.from)
        code = find_fabrics(r);
    if (!code && r->o.serve) {
        code = serve_fabrics(r);
    } else if (!code) {
        for (size_t i = 0; r->o.from && !r->o.csv && !r->o.json && i < r->report.found.count; i++)
            table_write(stdout, &r->report.found.items[i], i ? &r->report.found.items[i - 1] : NULL);
        if (!r->o.from)
            measure(r);
        code = finish(r, &old);
    }
    results_fini(&old);
    return code;
}

int main(int argc, char **argv)
{
    static run r;
    if (getenv("WEFT_SPAWNED")) /* a worker that bench_open started */
        return service_serve();
    int code = settings_read(argc, argv, &r.o);
    if (code >= 0)
        return code;
    r.report.seconds = r.o.seconds;
    code = run_all(&r);
    results_fini(&r.report.found);
    free(r.report.notes);
    return code;
}
