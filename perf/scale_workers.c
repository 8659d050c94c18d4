/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scale_workers.c - one job of N workers, each a process of this machine, over the fabrics of WEFT_FABRIC: how long
 * until the first call is answered, and what idle workers and idle peers cost.
 *
 * Every worker opens and calls its neighbour, then its next eight. Then all call all, which leaves a full mesh of
 * connections. libfabric's pools come with the first peers: what a further one costs is counted from the ninth call on.
 * Memory is private dirty pages as /proc/self/smaps_rollup counts them, of whole processes. Nothing is cleaned up
 * before it is measured.
 */
#include "common/measure.h"
#include "common/workers.h"

#include "cli.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define PATIENCE_MS 600000 /* two cores have hundreds of processes to start */

#define NEAR 8
#define KNOWN (2 * NEAR + 1) /* peers then: those called, those who called, and rank 0 */

#define AGENT_AIM_KIB 10240
#define PEER_AIM_KIB 64
#define PEER_AIM_DESCRIPTORS 2
#define MESSAGES_AIM 4 /* at the rendezvous, for each worker */

typedef struct usage {
    long dirty_kib, descriptors;
} usage;

typedef struct news { /* of one worker */
    usage opened, called, now;
    double open_ms, first_ms; /* since it began to open */
    double cpu_ms;            /* of its whole process, until its first call was answered */
} news;

static news own;
static weft_future *called;   /* complete when the first call has been answered */
static weft_future *released; /* complete when all has been measured: who closes tells the store */

/* ---- Every worker ----------------------------------------------------------------------------------------------- */

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
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "Private_Dirty:", 14) == 0)
            now.dirty_kib = strtol(line + 14, NULL, 10);
    }
    if (file)
        fclose(file);
    return now;
}

static double cpu_ms(void)
{
    struct timespec used;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

static weft_status run_nothing(weft_call *call, void *user)
{
    (void)call, (void)user;
    return WEFT_OK;
}

static const weft_rpc_options patient = {.timeout_ms = PATIENCE_MS};

static weft_status call_next(weft_agent *agent, int64_t count_most)
{
    int size = weft_agent_world_size(agent);
    weft_target *all = calloc((size_t)size, sizeof(*all));
    weft_future *ended = NULL;
    size_t count = 0;
    if (!all)
        return WEFT_ERR_MEMORY;
    for (int step = 1; step < size && step <= count_most; step++) /* not all at the same one at once */
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

static weft_status run_call_next(weft_call *call, void *user)
{
    (void)user;
    return call_next(weft_call_agent(call), weft_call_i64(call, 0));
}

static weft_status run_report(weft_call *call, void *user)
{
    (void)user;
    weft_status status = weft_future_wait(called, PATIENCE_MS);
    own.now = weigh();
    weft_call_give(call, WEFT_VALUES(weft_of_bytes(&own, sizeof(own))));
    return status;
}

static weft_status run_release(weft_call *call, void *user)
{
    (void)call, (void)user;
    return weft_future_complete(released, NULL, NULL);
}

static const weft_function functions[] = {
    {.name = "nothing", .run = run_nothing},
    {.name = "call next", .takes = {WEFT_TYPE_I64}, .run = run_call_next},
    {.name = "release", .run = run_release},
    {.name = "report", .gives = {WEFT_TYPE_BYTES}, .run = run_report},
};

/* Opens, and calls the neighbour. */
static bool begin(weft_job *job, weft_agent **out)
{
    weft_error *error = NULL;
    weft_agent_options options = {.functions = functions,
                                  .function_count = sizeof(functions) / sizeof(*functions),
                                  .job = job,
                                  .rendezvous_timeout_ms = PATIENCE_MS,
                                  .death_timeout_ms = PATIENCE_MS};
    called = weft_future_create(NULL);
    released = weft_future_create(NULL);
    double began = measure_now_us();
    weft_status status = weft_agent_open(&options, out, &error);
    own.open_ms = (measure_now_us() - began) / 1e3;
    if (status != WEFT_OK)
        return workers_complain("opening the agent", status, error);
    own.opened = weigh();
    double opened = measure_now_us();
    int next = (weft_agent_rank(*out) + 1) % weft_agent_world_size(*out);
    status = weft_rpc_sync(*out, weft_to_rank(next), "nothing", WEFT_NO_VALUES, &patient, NULL);
    own.first_ms = own.open_ms + (measure_now_us() - opened) / 1e3;
    own.cpu_ms = cpu_ms();
    own.called = weigh();
    return (status == WEFT_OK && weft_future_complete(called, NULL, NULL) == WEFT_OK) ||
           workers_complain("the first call", status, NULL);
}

static int serve(void)
{
    weft_agent *agent = NULL;
    bool good = begin(NULL, &agent) && weft_future_wait(released, PATIENCE_MS) == WEFT_OK;
    weft_status left = weft_agent_close(agent, WEFT_FOREVER);
    weft_future_unref(called);
    weft_future_unref(released);
    return good && left == WEFT_OK ? 0 : 1;
}

/* ---- Rank 0 ----------------------------------------------------------------------------------------------------- */

/* All others do it at once. */
static weft_future *tell_all(weft_agent *agent, int size, const char *what, weft_args arguments)
{
    weft_target *all = calloc((size_t)size, sizeof(*all));
    weft_future *ended = NULL;
    for (int rank = 1; all && rank < size; rank++)
        all[rank - 1] = weft_to_rank(rank);
    weft_status status =
        !all ? WEFT_ERR_MEMORY : weft_rpc_multicast(agent, all, (size_t)size - 1, what, arguments, &patient, &ended);
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

static bool all_call_next(weft_agent *agent, int size, int64_t count)
{
    weft_future *ended = tell_all(agent, size, "call next", WEFT_VALUES(weft_of_i64(count)));
    weft_future_unref(ended);
    return ended && call_next(agent, count) == WEFT_OK;
}

static bool release(weft_agent *agent, int size)
{
    weft_future *ended = tell_all(agent, size, "release", WEFT_NO_VALUES);
    weft_future_unref(ended);
    return ended != NULL;
}

static bool gather(weft_agent *agent, int size, news *out)
{
    weft_future *ended = tell_all(agent, size, "report", WEFT_NO_VALUES);
    bool good = ended != NULL;
    for (int rank = 1; good && rank < size; rank++) {
        const void *bytes = NULL;
        size_t count = 0;
        const weft_values *values = weft_future_values(((weft_future **)weft_future_payload(ended))[rank - 1]);
        good = weft_values_get_bytes(values, 0, &bytes, &count) == WEFT_OK && count == sizeof(*out);
        if (good)
            memcpy(&out[rank], bytes, count);
    }
    weft_future_unref(ended);
    own.now = weigh();
    out[0] = own;
    return good;
}

static uint64_t count_messages(const weft_agent *agent)
{
    weft_stats stats = {0};
    if (agent)
        weft_agent_stats(agent, &stats);
    return stats.rendezvous_messages;
}

typedef struct outcome {
    summary open_ms, first_ms, cpu_ms, idle_kib, peer_kib;
    double messages; /* at the rendezvous, until all had called their neighbour */
    double spawn_ms, most_open_ms, most_first_ms, most_idle_kib, most_peer_kib, most_descriptors, mesh_ms;
} outcome;

static bool play(int size, news *near, news *mesh, outcome *o)
{
    weft_job *job = NULL;
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    double began = measure_now_us();
    weft_status status = weft_job_open(&(weft_job_options){.count = size - 1}, &job, &error);
    o->spawn_ms = (measure_now_us() - began) / 1e3;
    if (status != WEFT_OK)
        return workers_complain("starting the workers", status, error);
    bool good = begin(job, &agent) && gather(agent, size, near);
    o->messages = (double)count_messages(agent);
    good = good && all_call_next(agent, size, NEAR) && gather(agent, size, near);
    began = measure_now_us();
    good = good && all_call_next(agent, size, size);
    o->mesh_ms = (measure_now_us() - began) / 1e3;
    good = good && gather(agent, size, mesh) && release(agent, size);
    status = weft_agent_close(agent, WEFT_FOREVER);
    weft_status ended = weft_job_close(job, good ? PATIENCE_MS : 0, NULL);
    weft_future_unref(called);
    weft_future_unref(released);
    return good &&
           ((status == WEFT_OK && ended == WEFT_OK) || workers_complain("ending", status ? status : ended, NULL));
}

/* ---- What comes out --------------------------------------------------------------------------------------------- */

static double most(const series *s)
{
    double max = 0;
    for (size_t i = 0; i < s->count; i++)
        max = s->values[i] > max ? s->values[i] : max;
    return max;
}

static void judge(const news *near, const news *mesh, int size, outcome *o)
{
    series open_ms = {0}, first_ms = {0}, cpu = {0}, idle = {0}, peer = {0}, descriptors = {0};
    for (int rank = 0; rank < size; rank++) {
        const news *n = &mesh[rank];
        series_add(&open_ms, n->open_ms);
        series_add(&first_ms, n->first_ms);
        series_add(&cpu, n->cpu_ms);
        series_add(&idle, (double)n->called.dirty_kib);
        series_add(&descriptors, (double)(n->now.descriptors - n->opened.descriptors) / (size - 1));
        if (rank > NEAR && rank < size - NEAR && size > 2 * KNOWN) /* the others know rank 0 as a neighbour */
            series_add(&peer, (double)(n->now.dirty_kib - near[rank].now.dirty_kib) / (size - 1 - KNOWN));
    }
    o->most_open_ms = most(&open_ms);
    o->most_first_ms = most(&first_ms);
    o->most_idle_kib = most(&idle);
    o->most_peer_kib = most(&peer);
    o->most_descriptors = most(&descriptors);
    o->open_ms = series_summary(&open_ms);
    o->first_ms = series_summary(&first_ms);
    o->cpu_ms = series_summary(&cpu);
    o->idle_kib = series_summary(&idle);
    o->peer_kib = series_summary(&peer);
    series_fini(&open_ms);
    series_fini(&first_ms);
    series_fini(&cpu);
    series_fini(&idle);
    series_fini(&peer);
    series_fini(&descriptors);
}

static void show(const outcome *o, int size)
{
    const char *fabric = getenv("WEFT_FABRIC");
    printf("%d workers, each a process, WEFT_FABRIC=%s\n\n", size, fabric ? fabric : "auto");
    printf("| %-46s | %9s | %9s | %9s |\n", "", "median", "most", "aim");
    printf("|------------------------------------------------|-----------|-----------|-----------|\n");
    printf("| %-46s | %9.1f |           |           |\n", "all processes started, ms", o->spawn_ms);
    printf("| %-46s | %9.1f | %9.1f |           |\n", "agent open, ms since opening began", o->open_ms.p50,
           o->most_open_ms);
    printf("| %-46s | %9.1f | %9.1f |           |\n", "first call answered, ms since opening began", o->first_ms.p50,
           o->most_first_ms);
    printf("| %-46s | %9.1f |           |           |\n", "processor time of a worker until then, ms", o->cpu_ms.p50);
    printf("| %-46s | %9.1f |           |           |\n", "everybody has called everybody, ms", o->mesh_ms);
    printf("| %-46s | %9.0f | %9.0f | %9d |\n", "private dirty memory of an idle worker, KiB", o->idle_kib.p50,
           o->most_idle_kib, AGENT_AIM_KIB);
    printf("| %-46s | %9.1f | %9.1f | %9d |\n", "each further idle peer, KiB", o->peer_kib.p50, o->most_peer_kib,
           PEER_AIM_KIB);
    printf("| %-46s |           | %9.2f | %9d |\n", "descriptors a connected peer", o->most_descriptors,
           PEER_AIM_DESCRIPTORS);
    printf("| %-46s |           | %9.0f | %9d |\n", "messages at the rendezvous", o->messages, MESSAGES_AIM * size);
}

static bool holds(const outcome *o, int size)
{
    return o->messages <= MESSAGES_AIM * size && o->most_idle_kib <= AGENT_AIM_KIB &&
           o->most_peer_kib <= PEER_AIM_KIB && o->most_descriptors <= PEER_AIM_DESCRIPTORS;
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
    bool check = false;
    const cli_option options[] = {
        {"workers", CLI_INT, &size, 2, 1024, NULL, "N", "processes, this one included", "16"},
        {"check", CLI_FLAG, &check, 0, 0, NULL, NULL, "fail where something is over its aim", NULL},
    };
    const cli program = {
        .program = "scale_workers",
        .purpose = "time to the first call and memory against the number of workers",
        .example = "scale_workers --workers 64",
        .options = options,
        .count = sizeof(options) / sizeof(*options),
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    raise_descriptor_limit();
    if (workers_is_child())
        return serve();
    news *near = calloc((size_t)size, sizeof(*near)), *mesh = calloc((size_t)size, sizeof(*mesh));
    outcome o = {0};
    bool good = near && mesh && play((int)size, near, mesh, &o);
    if (good) {
        judge(near, mesh, (int)size, &o);
        show(&o, (int)size);
    }
    free(near);
    free(mesh);
    return good && (!check || holds(&o, (int)size)) ? 0 : 1;
}
