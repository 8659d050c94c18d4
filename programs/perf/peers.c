/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.c - see peers.h. The programs are of weft's tree. Each starts once, and answers a line "bytes window
 * microseconds what" with a line of samples.
 */
#include "perf/peers.h"

#include "perf/command.h"
#include "perf/helper.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_S 120 /* of one program, its start included */
#define OUTPUT_MOST (64 << 10)

enum { TORCH, GLOO, MPI, PYTHON };

static bool is(const result *r, const char *measure, const char *what)
{
    return strcmp(r->measure, measure) == 0 && strcmp(r->what, what) == 0;
}

static bool is_call(const result *r)
{
    return is(r, "latency", "echo") || is(r, "latency", "one way") || is(r, "latency", "no-op executor") ||
           is(r, "rate", "executor");
}

static bool is_reduced(const result *r)
{
    return is(r, "collectives", "allreduce") || is(r, "collectives", "barrier");
}

static const struct {
    const char *program, *package;
    const char *beside_tcp, *beside_others; /* its transport */
    bool (*measures)(const result *r);
    int measurements[2]; /* that it needs */
} programs[PEERS] = {
    [TORCH] = {"PyTorch", "python3-torch", "tcp", "default", is_call, {LATENCY, RATE}},
    [GLOO] = {"Gloo", "python3-torch", "tcp", "tcp", is_reduced, {COLLECTIVES, COLLECTIVES}},
    [PYTHON] = {"weft in Python", "python3-weft", "tcp", "the same", is_call, {LATENCY, RATE}},
    [MPI] = {"Open MPI", "openmpi-bin libopenmpi-dev", "tcp", "its choice", is_reduced, {COLLECTIVES, COLLECTIVES}},
};

struct peers {
    helper helper;
    task_end *to;
    bool is_tcp;               /* weft is measured over tcp */
    bool has[PEERS];           /* found, and has not failed */
    char fabrics[64];          /* over which weft is measured */
    const char *python[PEERS]; /* that has the peer's package */
    char program[PEERS][1024]; /* of weft's tree */
    session running[PEERS];
    int workers[PEERS]; /* of the running programs */
    char out[OUTPUT_MOST];
};

/* ---- In the helper's process ------------------------------------------------------------------------------------ */

static bool start(peers *p, int which, int workers)
{
    char count[16];
    snprintf(count, sizeof(count), "%d", workers);
    const char *yields = workers > sysconf(_SC_NPROCESSORS_ONLN) ? "1" : "0"; /* its processes spin while they wait */
    const char *command[PEERS][16] = {
        [TORCH] = {p->python[TORCH], p->program[TORCH], "--transport", p->is_tcp ? "tcp" : "default"},
        [GLOO] = {p->python[GLOO], p->program[GLOO], "--processes", count},
        [MPI] = {"mpirun", "-n", count, "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated", "--mca",
                 "mpi_yield_when_idle", yields, p->program[MPI]},
        [PYTHON] = {p->python[PYTHON], p->program[PYTHON], "--fabric", p->fabrics},
    };
    session_close(&p->running[which]);
    p->workers[which] = workers;
    return session_open(&p->running[which], command[which]);
}

/* Executes an order. Starts the program, unless it runs with this number of workers. */
static bool ask(peers *p, const order *o, series *out)
{
    char line[128], *at = p->out, *end;
    session *s = &p->running[o->what];
    if ((s->pid <= 0 || p->workers[o->what] != o->of.workers) && !start(p, o->what, (int)o->of.workers))
        return false;
    snprintf(line, sizeof(line), "%lld %lld %.0f %s\n", (long long)o->of.bytes, (long long)o->of.window, o->us,
             o->of.what);
    if (!session_ask(s, line, LIMIT_S, p->out, sizeof(p->out)))
        return false;
    for (double value = strtod(at, &end); end != at; value = strtod(at, &end)) {
        series_add(out, value);
        at = end;
    }
    return out->count > 0;
}

static bool execute(void *state, const order *o, series *out)
{
    peers *p = state;
    return ask(p, o, out) || helper_say("it failed, or took more than %d s", LIMIT_S);
}

static int run(int fd, void *arg)
{
    peers *p = arg;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)setenv("OMP_NUM_THREADS", "1", 1); /* as each of weft's workers has one */
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    if (p->is_tcp) {
        (void)setenv("OMPI_MCA_pml", "ob1", 1);
        (void)setenv("OMPI_MCA_btl", "tcp,self", 1);
        (void)setenv("OMPI_MCA_btl_tcp_if_include", "lo", 1);
    }
    return helper_serve(fd, true, execute, p);
}

/* ---- In this process -------------------------------------------------------------------------------------------- */

/* The first Python that has the peer's module; NULL: none. */
static const char *python_with(peers *p, const char *import)
{
    static const char *const pythons[] = {"python3", "/usr/bin/python3"};
    for (size_t i = 0; i < 2; i++) {
        const char *probe[] = {pythons[i], "-c", import, NULL};
        if (command_run(probe, 60, p->out, sizeof(p->out)))
            return pythons[i];
    }
    return NULL;
}

static bool find(peers *p, int which)
{
    if (which == MPI)
        return command_exists("mpirun");
    if (which == GLOO && p->python[TORCH])
        p->python[GLOO] = p->python[TORCH];
    else
        p->python[which] = python_with(p, which == PYTHON ? "import weft" : "import torch");
    return p->python[which];
}

/* The program of weft's tree that a peer needs. */
static bool find_own(peers *p, int which)
{
    static const char *const paths[PEERS] = {[TORCH] = "../share/weft/peers/torch_rpc.py",
                                             [GLOO] = "../share/weft/peers/torch_allreduce.py",
                                             [MPI] = "mpi_allreduce",
                                             [PYTHON] = "../share/weft/peers/weft_rpc.py"};
    return command_own_file(paths[which], p->program[which], sizeof(p->program[which]));
}

peers *peers_open(const settings *o, const char *fabrics, task_end *to)
{
    peers *p = calloc(1, sizeof(*p));
    char why[256] = "no memory";
    bool has_any = false;
    if (!p)
        return NULL;
    p->to = to;
    p->is_tcp = strcmp(fabrics, "tcp") == 0;
    text_copy(p->fabrics, sizeof(p->fabrics), fabrics);
    for (int i = 0; i < PEERS; i++) {
        const int *needs = programs[i].measurements;
        if (!o->wanted[needs[0]] && !o->wanted[needs[1]])
            continue;
        bool is_found = find(p, i);
        p->has[i] = is_found && find_own(p, i);
        has_any = has_any || p->has[i];
        if (is_found && !p->has[i])
            task_note(to,
                      "%s is installed, but its program is not beside weft-perf: build weft with WEFT_PERF=ON and %s",
                      programs[i].program, programs[i].package);
        else if (!is_found)
            task_note(to, "%s is not installed: apt-get install %s", programs[i].program, programs[i].package);
    }
    if (has_any && helper_open(&p->helper, run, p, why, sizeof(why)))
        return p;
    if (has_any)
        task_note(to, "no peer is measured: %s", why);
    free(p);
    return NULL;
}

void peers_close(peers *p)
{
    if (p)
        helper_close(&p->helper);
    free(p);
}

void peers_measure(peers *p, int which, const result *of, double us, series *out)
{
    char why[256];
    order o = {.what = which, .of = *of, .us = us};
    if (!p || !p->has[which] || !programs[which].measures(of))
        return;
    if (helper_measure(&p->helper, &o, 2 * LIMIT_S, out, why, sizeof(why)))
        return;
    p->has[which] = false;
    out->count = 0;
    task_note(p->to, "%s is not measured further beside %s: %s of %lld bytes: %s", programs[which].program, of->fabric,
              of->what, (long long)of->bytes, why);
}

result peers_result(const peers *p, int which, const result *ours, series *samples)
{
    result r = result_of(ours->measure, ours->what, ours->unit, ours->is_rate);
    r.bytes = ours->bytes;
    r.workers = ours->workers;
    r.window = ours->window;
    text_copy(r.program, sizeof(r.program), programs[which].program);
    text_copy(r.fabric, sizeof(r.fabric), ours->fabric);
    text_copy(r.control, sizeof(r.control), p->is_tcp ? programs[which].beside_tcp : programs[which].beside_others);
    result_fill(&r, samples, (double)NAN, "");
    r.of_weft = r.is_rate ? r.p50 / ours->p50 : ours->p50 / r.p50;
    return r;
}
