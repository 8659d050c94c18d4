/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabrics.c - compares fabrics. Each round starts a job of two workers on each fabric, one after the other.
 *
 * It measures the first call to a worker, echoes of 0 bytes to 64 MiB, and small calls, alone and beside echoes of the
 * largest size to the same worker. It also measures an agent with nothing to do, and the time until the caller knows
 * that a worker was killed.
 */
#include "common/measure.h"
#include "common/workers.h"

#include "cli.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define DEATH_MS 30000 /* the longest that a death may take */
#define SMALL_CALLS 40 /* small calls, for each of the options' calls */
#define IDLE_S 3       /* how long an agent with nothing to do is watched */

static const size_t sizes[] = {0, 8, 64, 512, 4096, 32768, 262144, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB};

enum { BASE, OTHER, SIDES };

typedef struct settings {
    int64_t rounds, calls, largest;
    const char *fabric, *base, *json;
} settings;

typedef struct side {
    const char *fabric;
    series first, echo[COUNT(sizes)], alone, beside, death; /* microseconds */
    double wakes, busy; /* of an idle worker, the most of all rounds: wake-ups in a second, part of one core */
} side;

static weft_status echo(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

static weft_status tell_pid(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_i64(getpid())));
    return WEFT_OK;
}

static weft_status wait_long(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    sleep(DEATH_MS / 1000);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = echo},
    {.name = "pid", .gives = {WEFT_TYPE_I64}, .run = tell_pid},
    {.name = "wait", .run = wait_long},
};

/* A worker that never closes its agent: it needs no heartbeats of others, and others need none of it. It is killed. */
static int serve(void)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_agent_options options = {.functions = functions, .function_count = COUNT(functions)};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    weft_status status = weft_agent_open(&options, &agent, &error);
    while (status == WEFT_OK)
        pause();
    return workers_complain("worker", status, error) ? 0 : 1;
}

static bool get_pid(weft_agent *agent, int64_t *out)
{
    weft_values *result = NULL;
    weft_status status = weft_rpc_sync(agent, weft_to_rank(1), "pid", WEFT_NO_VALUES, NULL, &result);
    if (status == WEFT_OK)
        status = weft_values_get_i64(result, 0, out);
    weft_values_unref(result);
    return status == WEFT_OK || workers_complain("pid", status, NULL);
}

/* Echoes of one size: each is checked, byte by byte. */
static bool echo_size(weft_agent *agent, size_t bytes, int64_t calls, series *out)
{
    weft_tensor *there = weft_tensor_zeros(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8);
    weft_tensor *back = weft_tensor_zeros(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8);
    uint8_t *sent = there ? weft_tensor_data(there) : NULL, *got = back ? weft_tensor_data(back) : NULL;
    weft_rpc_options options = {.land = {&back, 1}};
    bool ok = there && back;
    for (size_t i = 0; ok && i < bytes; i++)
        sent[i] = (uint8_t)((i * 2654435761u + bytes) >> 13);
    for (int64_t i = 0; ok && i < calls; i++) {
        if (bytes)
            memset(got, 0, bytes);
        double start = measure_now_us();
        weft_status status = weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(there)),
                                           bytes ? &options : NULL, NULL);
        series_add(out, measure_now_us() - start);
        ok = status == WEFT_OK || workers_complain("echo", status, NULL);
        if (ok && bytes && memcmp(sent, got, bytes) != 0) {
            fprintf(stderr, "echo of %zu bytes: the result differs\n", bytes);
            ok = false;
        }
    }
    weft_tensor_unref(there);
    weft_tensor_unref(back);
    return ok;
}

/* Small calls, one after another. `large`: an echo of that tensor to the same worker is always under way. */
static bool call_small(weft_agent *agent, weft_tensor *large, int64_t calls, series *out)
{
    weft_tensor *back = large ? weft_tensor_clone(large) : NULL;
    weft_rpc_options options = {.land = {&back, 1}};
    weft_future *echoed = NULL;
    weft_status status = large && !back ? WEFT_ERR_MEMORY : WEFT_OK;
    for (int64_t i = 0; !status && i < calls; i++) {
        if (echoed && weft_future_done(echoed)) {
            status = weft_future_wait(echoed, WEFT_FOREVER);
            weft_future_unref(echoed);
            echoed = NULL;
        }
        if (!status && large && !echoed)
            status =
                weft_rpc_async(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(large)), &options, &echoed);
        double start = measure_now_us();
        if (!status)
            status = weft_rpc_sync(agent, weft_to_rank(1), "pid", WEFT_NO_VALUES, NULL, NULL);
        series_add(out, measure_now_us() - start);
    }
    weft_status ended = echoed ? weft_future_wait(echoed, WEFT_FOREVER) : WEFT_OK;
    weft_future_unref(echoed);
    weft_tensor_unref(back);
    return (status == WEFT_OK && ended == WEFT_OK) || workers_complain("pid", status ? status : ended, NULL);
}

static bool call_small_beside(weft_agent *agent, const settings *o, side *s)
{
    weft_tensor *large = weft_tensor_zeros(WEFT_SHAPE(o->largest), WEFT_DTYPE_UINT8);
    bool ok = large && call_small(agent, NULL, SMALL_CALLS * o->calls, &s->alone) &&
              call_small(agent, large, SMALL_CALLS * o->calls, &s->beside);
    weft_tensor_unref(large);
    return ok;
}

/* This process, with its agent, while it does nothing. */
static void rest(side *s)
{
    struct rusage began, ended;
    sleep(1); /* what ends the last calls is over */
    (void)getrusage(RUSAGE_SELF, &began);
    double start = measure_now_us();
    sleep(IDLE_S);
    (void)getrusage(RUSAGE_SELF, &ended);
    double seconds = (measure_now_us() - start) / 1e6;
    double used =
        (double)(ended.ru_utime.tv_sec - began.ru_utime.tv_sec + ended.ru_stime.tv_sec - began.ru_stime.tv_sec) +
        (double)(ended.ru_utime.tv_usec - began.ru_utime.tv_usec + ended.ru_stime.tv_usec - began.ru_stime.tv_usec) /
            1e6;
    long waits = ended.ru_nvcsw - began.ru_nvcsw - 1; /* the sleep of this function is one */
    s->wakes = fmax(s->wakes, (double)waits / seconds);
    s->busy = fmax(s->busy, used / seconds);
}

/* The time from the kill to the end of a call that was running there. */
static bool kill_worker(weft_agent *agent, int64_t pid, series *out)
{
    weft_future *future = NULL;
    weft_status status = weft_rpc_async(agent, weft_to_rank(1), "wait", WEFT_NO_VALUES, NULL, &future);
    if (status != WEFT_OK)
        return workers_complain("wait", status, NULL);
    usleep(200000); /* until the call runs there */
    double start = measure_now_us();
    if (pid <= 1 || kill((pid_t)pid, SIGKILL) != 0)
        return workers_complain("kill", WEFT_ERR_SYSTEM, NULL);
    status = weft_future_wait(future, DEATH_MS);
    series_add(out, measure_now_us() - start);
    weft_future_unref(future);
    return status == WEFT_ERR_PEER_DEAD || workers_complain("a call to a killed worker", status, NULL);
}

static bool play(const settings *o, side *s)
{
    workers w;
    int64_t pid = 0;
    setenv("WEFT_FABRIC", s->fabric, 1);
    if (!workers_open(functions, COUNT(functions), 1, &w))
        return false;
    double start = measure_now_us();
    bool ok = get_pid(w.agent, &pid);
    series_add(&s->first, measure_now_us() - start);
    for (size_t i = 0; ok && i < COUNT(sizes) && sizes[i] <= (size_t)o->largest; i++) {
        int64_t calls = sizes[i] < MIB ? o->calls : o->calls / 8 + 1;
        ok = echo_size(w.agent, sizes[i], calls, &s->echo[i]);
    }
    ok = ok && call_small_beside(w.agent, o, s);
    if (ok)
        rest(s);
    ok = ok && kill_worker(w.agent, pid, &s->death);
    weft_agent_stop(w.agent);
    (void)!weft_job_close(w.job, 1000, NULL); /* its worker was killed */
    return ok;
}

static void print_row(const char *name, series *base, series *other, report *json)
{
    summary b = series_summary(base), s = series_summary(other);
    printf("| %-10s | %10.0f | %10.0f | %6.2f | %6.2f |\n", name, b.p50, s.p50, s.p50 / b.p50, s.min / b.min);
    report_number(json, b.p50, "%s_base_us", name);
    report_number(json, s.p50, "%s_us", name);
    report_number(json, s.p50 / b.p50, "%s_ratio", name);
    report_number(json, s.min / b.min, "%s_ratio_of_minima", name);
}

static void print_table(const settings *o, side sides[SIDES], report *json)
{
    printf("Echoes into a landing tensor, the first call, and a death, us: %s beside %s, %d jobs each\n\n", o->fabric,
           o->base, (int)o->rounds);
    printf("|            | %10s | %10s | p50    | min    |\n", o->base, o->fabric);
    printf("|------------|------------|------------|--------|--------|\n");
    print_row("first call", &sides[BASE].first, &sides[OTHER].first, json);
    for (size_t i = 0; i < COUNT(sizes) && sizes[i] <= (size_t)o->largest; i++) {
        char name[32];
        print_row(measure_bytes_name(sizes[i], name), &sides[BASE].echo[i], &sides[OTHER].echo[i], json);
    }
    print_row("death", &sides[BASE].death, &sides[OTHER].death, json);
    for (int i = 0; i < SIDES; i++) {
        summary alone = series_summary(&sides[i].alone), beside = series_summary(&sides[i].beside);
        const char *fabric = sides[i].fabric;
        printf("\n%s: small calls beside echoes of %lld bytes: p50 %.0f us, p99 %.0f us; alone %.0f and %.0f: p99 %.2f "
               "times\n",
               fabric, (long long)o->largest, beside.p50, beside.p99, alone.p50, alone.p99, beside.p99 / alone.p99);
        printf("%s: a worker with nothing to do: %.1f wake-ups in a second, %.3f %% of a core\n", fabric,
               sides[i].wakes, 100 * sides[i].busy);
        report_number(json, beside.p99 / alone.p99, "%s_beside_p99_ratio", i ? "other" : "base");
        report_number(json, sides[i].wakes, "%s_idle_wakes", i ? "other" : "base");
        report_number(json, sides[i].busy, "%s_idle_share", i ? "other" : "base");
    }
}

static bool run(const settings *o)
{
    side sides[SIDES] = {[BASE] = {.fabric = o->base}, [OTHER] = {.fabric = o->fabric}};
    report json;
    bool ok = report_open(&json, o->json);
    for (int64_t round = 0; ok && round < o->rounds; round++)
        for (int i = 0; ok && i < SIDES; i++)
            ok = play(o, &sides[i]);
    if (ok)
        print_table(o, sides, &json);
    for (int i = 0; i < SIDES; i++) {
        series_fini(&sides[i].first);
        series_fini(&sides[i].alone);
        series_fini(&sides[i].beside);
        series_fini(&sides[i].death);
        for (size_t j = 0; j < COUNT(sizes); j++)
            series_fini(&sides[i].echo[j]);
    }
    return report_close(&json) && ok;
}

int main(int argc, char **argv)
{
    settings o = {.rounds = 3, .calls = 20, .largest = 64 * MIB, .fabric = "verbs", .base = "tcp"};
    const cli_option options[] = {
        {"fabric", CLI_TEXT, &o.fabric, 0, 0, NULL, "NAME", "the fabric to measure", "verbs"},
        {"base", CLI_TEXT, &o.base, 0, 0, NULL, "NAME", "the fabric to compare it with", "tcp"},
        {"rounds", CLI_INT, &o.rounds, 1, 1000, NULL, "N", "jobs on each fabric, in turn", "3"},
        {"calls", CLI_INT, &o.calls, 1, 100000, NULL, "N", "echoes of each size in a job; an eighth from 1 MiB on",
         "20"},
        {"largest", CLI_INT, &o.largest, 0, 1 << 30, NULL, "BYTES", "of the echoes", "67108864"},
        {"json", CLI_TEXT, &o.json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
    };
    const cli program = {
        .program = "fabrics",
        .purpose = "calls over one fabric beside another: first call, echoes, small calls beside large ones, a death",
        .example = "fabrics --fabric verbs --rounds 10",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (workers_is_child())
        return serve();
    return run(&o) ? 0 : 1;
}
