/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabric_faults.c - calls over a fabric that fails. Echoes are made, a command takes the fabric away in the middle
 * of one (--cut), and more echoes follow: every call must end with WEFT_OK and the right bytes. With --kills, workers
 * are killed while calls to them are in progress: every call must end, and no result may have a wrong byte.
 */
#include "common/measure.h"
#include "common/workers.h"

#include "cli.h"
#include "tensors.h"

#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define MIB ((int64_t)1 << 20)
#define WAIT_MS 60000 /* a call that has not ended by then hangs */
#define SMALL 8

typedef struct settings {
    int64_t bytes, calls, kills, workers, seconds, limit_ms;
    const char *cut, *lanes, *lanes_after;
} settings;

static weft_status echo(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

static weft_status wait_long(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    sleep(2 * WAIT_MS / 1000);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = echo},
    {.name = "wait", .run = wait_long},
};

/* ---- An echo that is checked ------------------------------------------------------------------------------------- */

typedef struct echoed {
    weft_tensor *there, *back;
    weft_future *future;
    size_t bytes;
    uint32_t salt;
    double began_us;
} echoed;

static uint8_t byte_at(size_t i, uint32_t salt)
{
    return (uint8_t)((i * 2654435761u + salt) >> 13);
}

static void echo_fini(echoed *e)
{
    weft_future_unref(e->future);
    weft_tensor_unref(e->there);
    weft_tensor_unref(e->back);
}

static bool echo_begin(weft_agent *agent, int rank, size_t bytes, echoed *out)
{
    static uint32_t salt;
    echoed e = {.bytes = bytes, .salt = salt += 1000003};
    e.there = tensor_zeros(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8);
    e.back = tensor_zeros(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8);
    weft_status status = e.there && e.back ? WEFT_OK : WEFT_ERR_MEMORY;
    uint8_t *sent = status == WEFT_OK ? weft_tensor_data(e.there) : NULL;
    for (size_t i = 0; sent && i < bytes; i++)
        sent[i] = byte_at(i, e.salt);
    weft_rpc_options options = {.land = {&e.back, 1}};
    e.began_us = measure_now_us();
    if (status == WEFT_OK)
        status = weft_rpc_async(agent, weft_to_rank(rank), "echo", WEFT_VALUES(weft_of_tensor(e.there)), &options,
                                &e.future);
    if (status == WEFT_OK) {
        *out = e;
        return true;
    }
    echo_fini(&e);
    return workers_complain("starting an echo", status, NULL);
}

/* Whether the echo ended as it may. It is released. */
static bool echo_end(echoed *e, bool may_die, double *took_us)
{
    weft_status status = weft_future_wait(e->future, WAIT_MS);
    bool ok = status == WEFT_OK || (may_die && status == WEFT_ERR_PEER_DEAD);
    *took_us = measure_now_us() - e->began_us;
    if (!ok)
        workers_complain("echo", status, NULL);
    const uint8_t *got = weft_tensor_data(e->back);
    for (size_t i = 0; status == WEFT_OK && ok && i < e->bytes; i++)
        if (got[i] != byte_at(i, e->salt)) {
            fprintf(stderr, "echo of %zu bytes: byte %zu is %u and should be %u\n", e->bytes, i, got[i],
                    byte_at(i, e->salt));
            ok = false;
        }
    echo_fini(e);
    return ok;
}

static bool echo_once(weft_agent *agent, int rank, size_t bytes, double *took_us)
{
    echoed e = {0};
    return echo_begin(agent, rank, bytes, &e) && echo_end(&e, false, took_us);
}

/* Prints the fabrics of both lanes; whether both names begin with `wanted` (NULL: any). */
static bool tell_lanes(weft_agent *agent, int rank, const char *when, const char *wanted, bool quiet)
{
    char control[256], bulk[256];
    weft_status status = weft_agent_fabric(agent, rank, WEFT_LANE_CONTROL, control, sizeof(control));
    if (status == WEFT_OK)
        status = weft_agent_fabric(agent, rank, WEFT_LANE_BULK, bulk, sizeof(bulk));
    if (status != WEFT_OK)
        return workers_complain("weft_agent_fabric", status, NULL);
    if (!quiet)
        printf("%s: control on %s, bulk on %s\n", when, control, bulk);
    size_t size = wanted ? strlen(wanted) : 0;
    if (!wanted || (strncmp(control, wanted, size) == 0 && strncmp(bulk, wanted, size) == 0))
        return true;
    fprintf(stderr, "%s: both lanes should be on %s: control is on %s, bulk on %s\n", when, wanted, control, bulk);
    return false;
}

/* ---- A cut ------------------------------------------------------------------------------------------------------- */

static bool echoes(weft_agent *agent, const settings *o, series *small, series *large)
{
    bool ok = true;
    double took = 0;
    for (int64_t i = 0; ok && i < o->calls; i++) {
        ok = echo_once(agent, 1, SMALL, &took);
        series_add(small, took);
        ok = ok && echo_once(agent, 1, (size_t)o->bytes, &took);
        series_add(large, took);
    }
    return ok;
}

/* Runs the command while an echo is in progress. `after_us`: from its start to the end of that echo. */
static bool cut_in_the_middle(weft_agent *agent, const settings *o, double usual_us, double *after_us)
{
    extern char **environ;
    char *const argv[] = {"sh", "-c", (char *)o->cut, NULL};
    echoed e = {0};
    pid_t pid;
    int end = 0;
    double took = 0;
    if (!echo_begin(agent, 1, (size_t)o->bytes, &e))
        return false;
    usleep((useconds_t)(usual_us / 3)); /* the command takes time too */
    double start = measure_now_us();
    if (posix_spawnp(&pid, "sh", NULL, NULL, argv, environ) != 0) {
        echo_fini(&e);
        return workers_complain("starting the command of --cut", WEFT_ERR_SYSTEM, NULL);
    }
    bool ok = echo_end(&e, false, &took);
    *after_us = measure_now_us() - start;
    if (waitpid(pid, &end, 0) != pid || end != 0) {
        fprintf(stderr, "--cut \"%s\" ended with %d\n", o->cut, end);
        return false;
    }
    return ok;
}

static bool run_cut(const settings *o)
{
    workers w;
    series small = {0}, large = {0}, late_small = {0}, late_large = {0};
    double after = 0;
    if (!workers_open(functions, COUNT(functions), 1, &w))
        return false;
    bool ok = echoes(w.agent, o, &small, &large) && tell_lanes(w.agent, 1, "at first", o->lanes, false);
    summary usual = series_summary(&large);
    if (ok && o->cut)
        ok = cut_in_the_middle(w.agent, o, usual.p50, &after) && echoes(w.agent, o, &late_small, &late_large) &&
             tell_lanes(w.agent, 1, "after the cut", o->lanes_after, false);
    if (ok) {
        double worst = after;
        for (size_t i = 0; i < late_small.count; i++) {
            worst = late_small.values[i] > worst ? late_small.values[i] : worst;
            worst = late_large.values[i] > worst ? late_large.values[i] : worst;
        }
        printf("echo: %.0f ms by the median; worst call from the cut on: %.0f ms\n", usual.p50 / 1e3, worst / 1e3);
        if (o->limit_ms && worst > (double)o->limit_ms * 1e3) {
            fprintf(stderr, "the worst call took longer than %lld ms\n", (long long)o->limit_ms);
            ok = false;
        }
    }
    series_fini(&small);
    series_fini(&large);
    series_fini(&late_small);
    series_fini(&late_large);
    if (!ok)
        (void)!weft_debug_dump(w.agent, stderr);
    return workers_close(&w) && ok;
}

/* ---- Kills ------------------------------------------------------------------------------------------------------- */

/* Kills the worker while a call waits there and an echo is somewhere on its way. Others must not notice. */
static bool kill_one(weft_agent *agent, int pid, const settings *o, int rank, int64_t turn, series *deaths)
{
    static const size_t sizes[] = {SMALL, 32768, 1 * MIB, 4 * MIB};
    weft_future *waiting = NULL;
    echoed e = {0};
    double took = 0;
    bool ok =
        pid > 1 && echo_once(agent, rank, 1 * MIB, &took) && tell_lanes(agent, rank, "before a kill", o->lanes, true);
    if (!ok)
        return false;
    double delay = took * (double)(turn % 7) / 4; /* the echo is at another place each time */
    weft_status status = weft_rpc_async(agent, weft_to_rank(rank), "wait", WEFT_NO_VALUES, NULL, &waiting);
    if (status != WEFT_OK)
        return workers_complain("wait", status, NULL);
    if (!echo_begin(agent, rank, sizes[turn % (int64_t)COUNT(sizes)], &e)) {
        weft_future_unref(waiting);
        return false;
    }
    usleep((useconds_t)delay);
    double start = measure_now_us();
    ok = kill(pid, SIGKILL) == 0 || workers_complain("kill", WEFT_ERR_SYSTEM, NULL);
    status = weft_future_wait(waiting, WAIT_MS);
    series_add(deaths, measure_now_us() - start);
    ok = ok && (status == WEFT_ERR_PEER_DEAD || workers_complain("a call to a killed worker", status, NULL));
    ok = echo_end(&e, true, &took) && ok;
    weft_future_unref(waiting);
    return ok && (rank >= o->workers || echo_once(agent, rank + 1, 32768, &took));
}

static bool run_kills(const settings *o)
{
    series deaths = {0};
    bool ok = true;
    double until = o->seconds ? measure_now_us() + (double)o->seconds * 1e6 : 0;
    for (int64_t done = 0; ok && done < o->kills && (!until || measure_now_us() < until);) {
        workers w;
        if (!workers_open(functions, COUNT(functions), (int)o->workers, &w)) {
            ok = false;
            break;
        }
        for (int rank = 1; ok && rank <= o->workers && done < o->kills; rank++, done++)
            ok = kill_one(w.agent, weft_job_pid(w.job, rank), o, rank, done, &deaths);
        if (!ok)
            (void)!weft_debug_dump(w.agent, stderr);
        weft_agent_stop(w.agent);
        (void)!weft_job_close(w.job, 1000, NULL); /* its workers were killed */
    }
    size_t count = deaths.count;
    summary s = series_summary(&deaths);
    double worst = count ? deaths.values[count - 1] : 0; /* sorted */
    printf("%zu kills, known after (ms): p50 %.0f, worst %.0f\n", count, s.p50 / 1e3, worst / 1e3);
    if (ok && o->limit_ms && worst > (double)o->limit_ms * 1e3) {
        fprintf(stderr, "a death was known only after more than %lld ms\n", (long long)o->limit_ms);
        ok = false;
    }
    series_fini(&deaths);
    return ok;
}

int main(int argc, char **argv)
{
    settings o = {.bytes = 16 * MIB, .calls = 4, .workers = 4};
    const cli_option options[] = {
        {"bytes", CLI_INT, &o.bytes, 1, 1 << 30, NULL, "BYTES", "of the large echoes", "16777216"},
        {"calls", CLI_INT, &o.calls, 1, 100000, NULL, "N", "large echoes before the cut, and again after it", "4"},
        {"cut", CLI_TEXT, &o.cut, 0, 0, NULL, "COMMAND", "takes the fabric away: run in the middle of an echo", NULL},
        {"lanes", CLI_TEXT, &o.lanes, 0, 0, NULL, "NAME", "the fabric that both lanes must be on before the fault",
         NULL},
        {"lanes-after", CLI_TEXT, &o.lanes_after, 0, 0, NULL, "NAME", "the same after the cut", NULL},
        {"kills", CLI_INT, &o.kills, 0, 100000, NULL, "N", "kill so many workers, and cut nothing", "0"},
        {"workers", CLI_INT, &o.workers, 1, 64, NULL, "N", "workers of a job of --kills", "4"},
        {"seconds", CLI_INT, &o.seconds, 0, 1000000, NULL, "S", "start no job of --kills after that time; 0: no limit",
         "0"},
        {"limit-ms", CLI_INT, &o.limit_ms, 0, 1000000, NULL, "MS", "fail if a call or a death takes longer; 0: never",
         "0"},
    };
    const cli program = {
        .program = "fabric_faults",
        .purpose = "calls while their fabric fails, or their workers are killed",
        .example = "fabric_faults --lanes verbs --cut \"ip link set ib0 down\" --lanes-after tcp",
        .options = options,
        .count = COUNT(options),
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (workers_is_child())
        return workers_serve(functions, COUNT(functions));
    return (o.kills ? run_kills(&o) : run_cut(&o)) ? 0 : 1;
}
