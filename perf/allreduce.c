/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allreduce.c - allreduces of a group of processes, 4 B to 100 MiB, and its barrier: against libfabric's round trip and bandwidth of the same
 * run, in slices taken in turn.
 *
 * THE BOUND of large ones. In an allreduce of n bytes over P processes at least 2 (P - 1) n bytes travel in all. A raw pair, which keeps two
 * cores busy, reads B bytes a second; so on a machine with c cores, where min(P, c) / 2 pairs can be at work, it takes
 * 2 (P - 1) n / (B min(P, c) / 2). What adding up costs is not in it. That so few bytes are needed is Patarasuk's
 * and Yuan's (src/coll/algorithm/ring.c).
 *
 * With RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, --table and --levels are started once for each
 * of them, as on several hosts.
 */
#include "common/measure.h"
#include "common/raw_pair.h"
#include "common/workers.h"

#include "cli.h"

#include <stdlib.h>
#include <unistd.h>

#define MESSAGE_BYTES 64 /* of the raw ping-pong */
#define WARM_UP 3
#define SIZE_MOST ((size_t)100 << 20)

static const size_t sizes[] = {4, 256, 4096, 65536, 1 << 20, 16 << 20, SIZE_MOST};
enum { SIZES = sizeof sizes / sizeof *sizes };
static const char *const algorithms[] = {"recursive_doubling", "rabenseifner", "ring", "tree", "two_level"};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

typedef struct settings {
    int64_t processes, slices;
    const char *json, *provider, *algorithm;
    bool quick, table, levels;
} settings;

/* So many in a slice: about as long whatever the size. */
static int64_t count_of(const settings *o, size_t bytes)
{
    int64_t count = bytes <= 65536 ? 200 : bytes <= 1 << 20 ? 40 : bytes <= 16 << 20 ? 6 : 2;
    return o->quick && count > 4 ? count / 4 : count;
}

/* ---- What every process does ------------------------------------------------------------------------------------ */

/* One slice; bytes 0: barriers. `out`: the first process's times, or NULL. */
static weft_status slice(weft_group *group, size_t bytes, int64_t count, series *out)
{
    weft_tensor *x = weft_tensor_zeros(WEFT_SHAPE((int64_t)(bytes / 4)), WEFT_DTYPE_FLOAT32);
    weft_status st = x ? weft_group_barrier(group, 0) : WEFT_ERR_MEMORY;
    for (int64_t i = 0; i <= count / 10 && !st; i++) /* what ran before has left its own in the caches */
        st = bytes ? weft_group_allreduce(group, x, WEFT_OP_SUM, 0) : weft_group_barrier(group, 0);
    double start = measure_now_us();
    for (int64_t i = 0; i < count && !st; i++)
        st = bytes ? weft_group_allreduce(group, x, WEFT_OP_SUM, 0) : weft_group_barrier(group, 0);
    if (out && !st)
        series_add(out, (measure_now_us() - start) / (double)count);
    weft_tensor_unref(x);
    return st;
}

static weft_status make_group(weft_agent *agent, const char *algorithm, weft_group **out)
{
    char rule[80];
    weft_status st = weft_group_open(agent, "allreduce", NULL, 0, out, NULL);
    if (st || !algorithm)
        return st;
    snprintf(rule, sizeof rule, "allreduce * * %s", algorithm);
    st = weft_group_set_algorithms(*out, rule);
    if (st)
        weft_group_close(*out);
    return st;
}

/* ---- The usual run: weft and raw in turn ------------------------------------------------------------------------- */

/* The raw side, of the first process alone; NULL elsewhere. Between its slices the others wait in a barrier. */
typedef struct floors {
    raw_pair *pair;
    raw_cut cut;
    series trips, bulk; /* of MESSAGE_BYTES; of a read of SIZE_MOST / 4 */
} floors;

static bool raw_open(floors *f, const char *provider) /* now: it forks, and later there are threads */
{
    return raw_pair_open(provider, SIZE_MOST, &f->pair) == 0 &&
           raw_pair_best_cut(f->pair, RAW_READ, SIZE_MOST / 4, &f->cut) == 0;
}

static bool raw_slice(floors *f)
{
    return !f->pair || (raw_pair_trips(f->pair, MESSAGE_BYTES, 200, &f->trips) == 0 &&
                        raw_pair_bulk(f->pair, RAW_READ, SIZE_MOST / 4, f->cut, 2, &f->bulk) == 0);
}

static void print_size(const settings *o, size_t bytes, double us, double trip_us, double bytes_per_us, report *json)
{
    char name[32];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    double pairs = (double)(o->processes < cores ? o->processes : cores) / 2;
    double bound = 2.0 * (double)(o->processes - 1) * (double)bytes / (bytes_per_us * (pairs < 1 ? 1 : pairs));
    printf("| %-8s | %10.1f | %9.1f | %8.2f |", bytes ? measure_bytes_name(bytes, name) : "barrier", us, us / trip_us,
           (double)bytes / us / 1000);
    report_number(json, us, "us_%zu", bytes);
    report_number(json, us / trip_us, "trips_%zu", bytes);
    if (bytes >= 1 << 20) {
        printf(" %8.0f %% |\n", 100 * bound / us);
        report_number(json, bound / us, "of_bound_%zu", bytes);
    } else {
        printf(" %8s   |\n", "");
    }
}

static weft_status measure(const settings *o, weft_agent *agent, floors *f, report *json)
{
    weft_group *group;
    series taken[SIZES + 1] = {{0}};
    bool first = weft_agent_rank(agent) == 0;
    weft_status st = make_group(agent, o->algorithm, &group);
    if (st)
        return st;
    for (int64_t turn = -1; turn < o->slices && !st; turn++) { /* the first one warms up */
        if (first && !raw_slice(f))
            st = WEFT_ERR_SYSTEM;
        for (size_t i = 0; i <= SIZES && !st; i++) {
            size_t bytes = i ? sizes[i - 1] : 0;
            st = slice(group, bytes, turn < 0 ? WARM_UP : count_of(o, bytes), turn < 0 ? NULL : &taken[i]);
        }
    }
    double trip = series_summary(&f->trips).p50, bulk = series_summary(&f->bulk).p50;
    for (size_t i = 0; i <= SIZES && first && !st; i++)
        print_size(o, i ? sizes[i - 1] : 0, series_summary(&taken[i]).p50, trip,
                   bulk > 0 ? (double)(SIZE_MOST / 4) / bulk : 1, json);
    for (size_t i = 0; i <= SIZES; i++)
        series_fini(&taken[i]);
    weft_group_close(group);
    return st;
}

/* ---- All algorithms at all sizes: the rules that were best ------------------------------------------------------- */

static weft_status compare(const settings *o, weft_agent *agent)
{
    weft_status st = WEFT_OK;
    bool first = weft_agent_rank(agent) == 0;
    for (size_t bytes = 256; bytes <= 16 << 20 && !st; bytes *= 4) {
        series taken[ALGORITHMS] = {{0}};
        size_t best = 0;
        for (int64_t turn = -1; turn < o->slices && !st; turn++)
            for (size_t i = 0; i < ALGORITHMS && !st; i++) {
                weft_group *group;
                st = make_group(agent, algorithms[i], &group);
                if (st)
                    break;
                st = slice(group, bytes, turn < 0 ? WARM_UP : count_of(o, bytes), turn < 0 ? NULL : &taken[i]);
                weft_group_close(group);
            }
        for (size_t i = 0; i < ALGORITHMS && first && !st; i++) {
            best = series_summary(&taken[i]).p50 < series_summary(&taken[best]).p50 ? i : best;
            printf("# %9zu B %-18s %10.1f us\n", bytes, algorithms[i], series_summary(&taken[i]).p50);
        }
        if (first && !st)
            printf("allreduce %d %zu %s\n", weft_agent_world_size(agent), bytes, algorithms[best]);
        for (size_t i = 0; i < ALGORITHMS; i++)
            series_fini(&taken[i]);
    }
    return st;
}

/* ---- Several hosts: what weft chooses, beside algorithms for one level --------------------------------------------- */

static weft_status compare_levels(const settings *o, weft_agent *agent)
{
    /* as the table of a group in which each member has a host of its own */
    static const char flat[] = "barrier * * dissemination; allreduce 4 262144 recursive_doubling;"
                               "allreduce * 2048 recursive_doubling; allreduce 16 1048576 tree;"
                               "allreduce * 4194304 rabenseifner; allreduce * * ring";
    weft_group *groups[2];
    bool first = weft_agent_rank(agent) == 0;
    weft_status st = weft_group_open(agent, "two-levels", NULL, 0, &groups[0], NULL);
    if (st)
        return st;
    st = weft_group_open(agent, "one-level", NULL, 0, &groups[1], NULL);
    if (!st)
        st = weft_group_set_algorithms(groups[1], flat);
    if (first && !st)
        printf("| size | one level, us | two levels, us | ratio |\n|---|---|---|---|\n");
    for (size_t bytes = 0; bytes <= 16 << 20 && !st; bytes = bytes ? 4 * bytes : 4) {
        series taken[2] = {{0}};
        char name[32];
        for (int64_t turn = -1; turn < o->slices && !st; turn++)
            for (size_t i = 0; i < 2 && !st; i++)
                st = slice(groups[i], bytes, turn < 0 ? WARM_UP : count_of(o, bytes), turn < 0 ? NULL : &taken[i]);
        double two = series_summary(&taken[0]).p50, one = series_summary(&taken[1]).p50;
        if (first && !st)
            printf("| %s | %.1f | %.1f | %.2f |\n", bytes ? measure_bytes_name(bytes, name) : "barrier", one, two,
                   one / two);
        series_fini(&taken[0]);
        series_fini(&taken[1]);
    }
    weft_group_close(groups[0]);
    weft_group_close(groups[1]);
    return st;
}

/* ---- The job ----------------------------------------------------------------------------------------------------- */

static weft_status compare_one(const settings *o, weft_agent *agent)
{
    return o->levels ? compare_levels(o, agent) : compare(o, agent);
}

static int serve(const settings *o)
{
    weft_agent *agent;
    floors none = {0};
    report nowhere = {0};
    weft_error *error = NULL;
    weft_status st = weft_agent_open(&(weft_agent_options){0}, &agent, &error);
    if (st)
        return workers_complain("worker", st, error) ? 0 : 1;
    st = o->table || o->levels ? compare_one(o, agent) : measure(o, agent, &none, &nowhere);
    weft_status left = weft_agent_close(agent);
    return st || left ? 1 : 0;
}

static bool print_measured(const settings *o, weft_agent *agent, floors *f, report *json)
{
    printf("Allreduce of float32 over %d processes, medians of %d slices; raw: a ping-pong of %d bytes, and a read\n"
           "of 25 MiB (libfabric %s, %s)\n\n"
           "| size     |         us | raw trips |     GB/s | of bound   |\n"
           "|----------|------------|-----------|----------|------------|\n",
           (int)o->processes, (int)o->slices, MESSAGE_BYTES, raw_pair_version(f->pair), o->provider);
    weft_status st = measure(o, agent, f, json);
    if (st)
        return workers_complain("allreduce", st, NULL);
    double trip = series_summary(&f->trips).p50;
    printf("\nraw round trip %.1f us, raw read %.2f GB/s\n", trip,
           (double)(SIZE_MOST / 4) / series_summary(&f->bulk).p50 / 1000);
    report_number(json, trip, "raw_trip_us");
    return true;
}

static bool print_table(const settings *o, weft_agent *agent)
{
    weft_status st = compare_one(o, agent);
    return st ? workers_complain("allreduce", st, NULL) : true;
}

static bool run(const settings *o)
{
    report json;
    floors f = {0};
    workers w;
    if (!report_open(&json, o->json))
        return false;
    bool ok = o->table || o->levels || raw_open(&f, o->provider);
    if (ok && (ok = workers_open(NULL, 0, (int)o->processes - 1, &w))) {
        ok = o->table || o->levels ? print_table(o, w.agent) : print_measured(o, w.agent, &f, &json);
        ok = workers_close(&w) && ok;
    }
    raw_pair_close(f.pair);
    series_fini(&f.trips);
    series_fini(&f.bulk);
    return report_close(&json) && ok;
}

int main(int argc, char **argv)
{
    settings o = {.processes = 2, .slices = 8, .provider = "tcp"};
    const cli_option options[] = {
        {"processes", CLI_INT, &o.processes, 2, 64, NULL, "N", "members of the group", "2"},
        {"slices", CLI_INT, &o.slices, 1, 10000, NULL, "N", "turns of raw and all sizes", "8"},
        {"algorithm", CLI_TEXT, &o.algorithm, 0, 0, NULL, "NAME", "carries all sizes, instead of the table's", NULL},
        {"table", CLI_FLAG, &o.table, 0, 0, NULL, NULL,
         "measures each algorithm at each size, and prints the best ones as rules for weft_group_set_algorithms", NULL},
        {"levels", CLI_FLAG, &o.levels, 0, 0, NULL, NULL,
         "over several hosts: measures weft's choice beside algorithms for one level, 4 B to 16 MiB, and the barrier",
         NULL},
        {"provider", CLI_TEXT, &o.provider, 0, 0, NULL, "NAME", "libfabric's provider for the raw side", "tcp"},
        {"json", CLI_TEXT, &o.json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
        {"quick", CLI_FLAG, &o.quick, 0, 0, NULL, NULL, "a quarter of it", NULL},
    };
    const cli program = {
        .program = "allreduce",
        .purpose = "allreduce and barrier of a group of processes, against raw round trips and reads",
        .example = "allreduce --processes 4",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (o.quick)
        o.slices = (o.slices + 3) / 4;
    if (workers_is_child() || (getenv("RANK") && (o.table || o.levels)))
        return serve(&o);
    return run(&o) ? 0 : 1;
}
