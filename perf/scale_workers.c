/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scale_workers.c - one job of N workers, each a process of this machine, over tcp: how long until the first call is answered,
 * and what idle workers and idle peers cost.
 *
 * Every worker opens and calls its neighbour; then all call rank 0; then all call all, which leaves a full mesh of connections.
 * Memory is private dirty pages as /proc/self/smaps_rollup counts them, of whole processes. Nothing is cleaned up before it
 * is measured.
 */
#include "common/measure.h"
#include "common/workers.h"

#include "cli.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define PATIENCE_MS 600000 /* two cores have hundreds of processes to start */

#define AGENT_AIM_KIB 10240
#define PEER_AIM_KIB 64
#define PEER_AIM_DESCRIPTORS 2

typedef struct usage {
    long dirty_kib, descriptors;
} usage;

typedef struct news { /* of one worker */
    usage before, opened, called, hub, mesh;
    double open_ms, first_ms; /* since it began to open */
    double mesh_ms;
} news;

static news own;
static weft_future *called; /* complete when the first call has been answered */

/* ---- Every worker ------------------------------------------------------------------------------------------------- */

static long count_descriptors(void)
{
    long count = -3; /* itself, and two names that are no files */
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

static usage weigh(void)
{
    char line[256];
    usage now = {.dirty_kib = -1, .descriptors = count_descriptors()};
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "Private_Dirty:", 14) == 0)
            now.dirty_kib = strtol(line + 14, NULL, 10);
    }
    if (file)
        fclose(file);
    return now;
}

static weft_status run_nothing(weft_call *call, void *user)
{
    (void)call, (void)user;
    return WEFT_OK;
}

static const weft_rpc_options patient = {.timeout_ms = PATIENCE_MS};

static weft_status run_hub(weft_call *call, void *user)
{
    (void)user;
    weft_status status =
        weft_rpc_sync(weft_call_agent(call), weft_to_rank(0), "nothing", WEFT_NO_VALUES, &patient, NULL);
    own.hub = weigh();
    return status;
}

static weft_status call_everybody(weft_agent *agent)
{
    int size = weft_agent_world_size(agent);
    weft_target *all = calloc((size_t)size, sizeof *all);
    weft_future *ended = NULL;
    size_t count = 0;
    if (!all)
        return WEFT_ERR_MEMORY;
    for (int step = 1; step < size; step++) /* not all at the same one at once */
        all[count++] = weft_to_rank((weft_agent_rank(agent) + step) % size);
    weft_status status = weft_rpc_multicast(agent, all, count, "nothing", WEFT_NO_VALUES, &patient, &ended);
    if (status == WEFT_OK)
        status = weft_future_wait(ended, PATIENCE_MS);
    if (status == WEFT_OK) {
        weft_future **each = weft_future_payload(ended);
        status = weft_future_wait_all(each, count, 0);
    }
    weft_future_unref(ended);
    free(all);
    return status;
}

static weft_status run_mesh(weft_call *call, void *user)
{
    (void)user;
    double began = measure_now_us();
    weft_status status = call_everybody(weft_call_agent(call));
    own.mesh_ms = (measure_now_us() - began) / 1e3;
    return status;
}

static weft_status run_report(weft_call *call, void *user)
{
    (void)user;
    weft_status status = weft_future_wait(called, PATIENCE_MS);
    own.mesh = weigh();
    weft_call_give(call, WEFT_VALUES(weft_of_bytes(&own, sizeof own)));
    return status;
}

static const weft_function functions[] = {
    {.name = "nothing", .run = run_nothing},
    {.name = "hub", .run = run_hub},
    {.name = "mesh", .run = run_mesh},
    {.name = "report", .gives = {WEFT_BYTES}, .run = run_report},
};

/* Opens, and calls the neighbour. */
static bool begin(weft_job *job, weft_agent **out)
{
    weft_error *error = NULL;
    weft_agent_options options = {.functions = functions,
                                  .function_count = sizeof functions / sizeof *functions,
                                  .job = job,
                                  .rendezvous_timeout_ms = PATIENCE_MS,
                                  .death_timeout_ms = PATIENCE_MS,
                                  .error = &error};
    called = weft_future_create(NULL);
    own.before = weigh();
    double began = measure_now_us();
    weft_status status = weft_agent_open(&options, out);
    own.open_ms = (measure_now_us() - began) / 1e3;
    if (status != WEFT_OK)
        return workers_complain("opening the agent", status, error);
    own.opened = weigh();
    double opened = measure_now_us();
    int next = (weft_agent_rank(*out) + 1) % weft_agent_world_size(*out);
    status = weft_rpc_sync(*out, weft_to_rank(next), "nothing", WEFT_NO_VALUES, &patient, NULL);
    own.first_ms = own.open_ms + (measure_now_us() - opened) / 1e3;
    own.called = weigh();
    return (status == WEFT_OK && weft_future_complete(called, NULL, NULL) == WEFT_OK) ||
           workers_complain("the first call", status, NULL);
}

static int serve(void)
{
    weft_agent *agent = NULL;
    bool good = begin(NULL, &agent);
    weft_status left = weft_agent_close(agent);
    weft_future_unref(called);
    return good && left == WEFT_OK ? 0 : 1;
}

/* ---- Rank 0 --------------------------------------------------------------------------------------------------------- */

/* All others do it at once. */
static weft_future *tell_all(weft_agent *agent, int size, const char *what)
{
    weft_target *all = calloc((size_t)size, sizeof *all);
    weft_future *ended = NULL;
    for (int rank = 1; all && rank < size; rank++)
        all[rank - 1] = weft_to_rank(rank);
    weft_status status = !all
                             ? WEFT_ERR_MEMORY
                             : weft_rpc_multicast(agent, all, (size_t)size - 1, what, WEFT_NO_VALUES, &patient, &ended);
    if (status == WEFT_OK)
        status = weft_future_wait(ended, PATIENCE_MS);
    if (status == WEFT_OK)
        status = weft_future_wait_all(weft_future_payload(ended), (size_t)size - 1, 0);
    free(all);
    if (status == WEFT_OK)
        return ended;
    workers_complain(what, status, NULL);
    weft_future_unref(ended);
    return NULL;
}

static bool tell(weft_agent *agent, int size, const char *what)
{
    weft_future *ended = tell_all(agent, size, what);
    weft_future_unref(ended);
    return ended != NULL;
}

static bool gather(weft_agent *agent, int size, news *out)
{
    weft_future *ended = tell_all(agent, size, "report");
    bool good = ended != NULL;
    for (int rank = 1; good && rank < size; rank++) {
        const void *bytes = NULL;
        size_t count = 0;
        const weft_values *values = weft_future_values(((weft_future **)weft_future_payload(ended))[rank - 1]);
        good = weft_values_get_bytes(values, 0, &bytes, &count) == WEFT_OK && count == sizeof *out;
        if (good)
            memcpy(&out[rank], bytes, count);
    }
    weft_future_unref(ended);
    own.mesh = weigh();
    out[0] = own;
    return good;
}

/* Every worker calls its neighbour, rank 0, all; `out` has what each says of it. */
static bool play(int size, news *out)
{
    weft_job *job = NULL;
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_status status = weft_spawn(&(weft_spawn_options){.count = size - 1, .error = &error}, &job);
    if (status != WEFT_OK)
        return workers_complain("starting the workers", status, error);
    bool good = begin(job, &agent) && gather(agent, size, out) && tell(agent, size, "hub");
    own.hub = weigh();
    double began = measure_now_us();
    weft_future *others = NULL;
    good = good && (size == 2 || (others = tell_all(agent, size, "mesh")) != NULL) && call_everybody(agent) == WEFT_OK;
    own.mesh_ms = (measure_now_us() - began) / 1e3;
    weft_future_unref(others);
    good = good && gather(agent, size, out);
    status = weft_agent_close(agent);
    weft_status ended = weft_job_wait(job, good ? PATIENCE_MS : 0, NULL);
    weft_future_unref(called);
    return good &&
           ((status == WEFT_OK && ended == WEFT_OK) || workers_complain("ending", status ? status : ended, NULL));
}

/* ---- What comes out --------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    summary open_ms, first_ms, idle_kib, peer_kib; /* of all workers */
    double mesh_ms, most_first_ms, most_idle_kib, most_peer_kib, most_descriptors;
} outcome;

static double most(const series *s)
{
    double max = 0;
    for (size_t i = 0; i < s->count; i++)
        max = s->values[i] > max ? s->values[i] : max;
    return max;
}

/* A worker's first peer brings libfabric's pools, which serve them all: it is the agent's. */
static outcome judge(const news *all, int size)
{
    series open_ms = {0}, first_ms = {0}, idle = {0}, peer = {0}, descriptors = {0};
    outcome o = {.mesh_ms = all[0].mesh_ms};
    for (int rank = 0; rank < size; rank++) {
        const news *n = &all[rank];
        series_add(&open_ms, n->open_ms);
        series_add(&first_ms, n->first_ms);
        series_add(&idle, (double)n->called.dirty_kib);
        series_add(&descriptors, (double)(n->mesh.descriptors - n->opened.descriptors) / (size - 1));
        if (size > 3) /* both neighbours are known already */
            series_add(&peer, (double)(n->mesh.dirty_kib - n->called.dirty_kib) / (size - 3));
    }
    o.most_first_ms = most(&first_ms);
    o.most_idle_kib = most(&idle);
    o.most_peer_kib = most(&peer);
    o.most_descriptors = most(&descriptors);
    o.open_ms = series_summary(&open_ms);
    o.first_ms = series_summary(&first_ms);
    o.idle_kib = series_summary(&idle);
    o.peer_kib = series_summary(&peer);
    series_fini(&open_ms);
    series_fini(&first_ms);
    series_fini(&idle);
    series_fini(&peer);
    series_fini(&descriptors);
    return o;
}

static void show(const outcome *o, int size, bool csv)
{
    if (csv) {
        printf("%d,%.1f,%.1f,%.1f,%.1f,%.0f,%.0f,%.1f,%.1f,%.2f\n", size, o->open_ms.p50, o->first_ms.p50,
               o->most_first_ms, o->mesh_ms, o->idle_kib.p50, o->most_idle_kib, o->peer_kib.p50, o->most_peer_kib,
               o->most_descriptors);
        return;
    }
    printf("%d workers, each a process, over tcp\n\n", size);
    printf("| %-46s | %9s | %9s | %9s |\n", "", "median", "most", "aim");
    printf("|------------------------------------------------|-----------|-----------|-----------|\n");
    printf("| %-46s | %9.1f | %9.1f |           |\n", "first call answered, ms since opening began", o->first_ms.p50,
           o->most_first_ms);
    printf("| %-46s | %9.1f |           |           |\n", "everybody has called everybody, ms", o->mesh_ms);
    printf("| %-46s | %9.0f | %9.0f | %9d |\n", "private dirty memory of an idle worker, KiB", o->idle_kib.p50,
           o->most_idle_kib, AGENT_AIM_KIB);
    printf("| %-46s | %9.1f | %9.1f | %9d |\n", "each further idle peer, KiB", o->peer_kib.p50, o->most_peer_kib,
           PEER_AIM_KIB);
    printf("| %-46s |           | %9.2f | %9d |\n", "descriptors a connected peer", o->most_descriptors,
           PEER_AIM_DESCRIPTORS);
}

static bool holds(const outcome *o)
{
    return o->most_idle_kib <= AGENT_AIM_KIB && o->most_peer_kib <= PEER_AIM_KIB &&
           o->most_descriptors <= PEER_AIM_DESCRIPTORS;
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    int64_t size = 16;
    bool csv = false, check = false;
    const cli_option options[] = {
        {"workers", CLI_INT, &size, 2, 1024, NULL, "N", "processes, this one included", "16"},
        {"csv", CLI_FLAG, &csv, 0, 0, NULL, NULL, "one line of numbers; perf/scale names the columns", NULL},
        {"check", CLI_FLAG, &check, 0, 0, NULL, NULL, "fail where memory or descriptors are over their aims", NULL},
    };
    const cli program = {"scale_workers", "time to the first call and memory against the number of workers",
                         "scale_workers --workers 64", options, sizeof options / sizeof *options};
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    raise_descriptor_limit();
    if (workers_is_child())
        return serve();
    news *all = calloc((size_t)size, sizeof *all);
    if (!all || !play((int)size, all)) {
        free(all);
        return 1;
    }
    outcome o = judge(all, (int)size);
    free(all);
    show(&o, (int)size, csv);
    return check && !holds(&o) ? 1 : 0;
}
