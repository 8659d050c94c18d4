/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.c - see peers.h. fi_pingpong and ucx_perftest run once for each slice, and report an average or a median, which
 * is one sample. The others are programs of weft's tree. Each starts once, and answers a line "bytes window
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

#define LIMIT_S 120     /* of one program, its start included */
#define START_US 300000 /* until a server listens */
#define OUTPUT_MOST (64 << 10)

enum { PINGPONG, UCX, TORCH, GLOO, MPI };

static bool is(const result *r, const char *measure, const char *what)
{
    return strcmp(r->measure, measure) == 0 && strcmp(r->what, what) == 0;
}

static bool is_echo(const result *r)
{
    return is(r, "latency", "echo");
}

static bool is_moved(const result *r)
{
    return is_echo(r) || (is(r, "bandwidth", "one way") && r->bytes >= 65536);
}

static bool is_call(const result *r)
{
    return is_echo(r) || is(r, "latency", "one way") || is(r, "latency", "no-op executor") || is(r, "rate", "executor");
}

static bool is_reduced(const result *r)
{
    return is(r, "collectives", "allreduce") || is(r, "collectives", "barrier");
}

static const struct {
    const char *program, *package;
    const char *beside_tcp, *beside_others; /* its transport; NULL: it is not measured there */
    bool (*measures)(const result *r);
    int measurements[3]; /* that it needs; MEASURES: none further */
} programs[PEERS] = {
    [PINGPONG] = {"fi_pingpong", "libfabric-bin", "tcp", NULL, is_echo, {LATENCY, MEASURES, MEASURES}},
    [UCX] = {"UCX", "ucx-utils", "tcp", "its choice", is_moved, {LATENCY, BANDWIDTH, MEASURES}},
    [TORCH] = {"PyTorch", "python3-torch", "tcp", "default", is_call, {LATENCY, RATE, MEASURES}},
    [GLOO] = {"Gloo", "python3-torch", "tcp", "tcp", is_reduced, {COLLECTIVES, MEASURES, MEASURES}},
    [MPI] =
        {"Open MPI", "openmpi-bin libopenmpi-dev", "tcp", "its choice", is_reduced, {COLLECTIVES, MEASURES, MEASURES}},
};

struct peers {
    helper helper;
    task_end *to;
    bool is_tcp;        /* weft is measured over tcp */
    bool has[PEERS];    /* found, and has not failed */
    const char *python; /* that has PyTorch */
    char torch_rpc[1024], torch_allreduce[1024], mpi_allreduce[1024];
    session running[PEERS];
    int workers[PEERS]; /* of the running programs */
    char out[OUTPUT_MOST];
};

/* ---- In the helper's process ------------------------------------------------------------------------------------ */

/* A server, and a client whose output is read. Both lists end with NULL. */
static bool run_pair(peers *p, const char *const *server, const char *const *client)
{
    pid_t pid = command_start(server);
    (void)usleep(START_US);
    bool ok = pid > 0 && command_run(client, LIMIT_S, p->out, sizeof p->out);
    command_end(pid);
    return ok;
}

/* A row "bytes #sent #ack total time MB/sec usec/xfer ...", where a transfer is half of a round trip. */
static bool run_pingpong(peers *p, const order *o, series *out)
{
    char port[16], size[32];
    double us;
    snprintf(port, sizeof port, "%d", command_free_port());
    snprintf(size, sizeof size, "%lld", (long long)o->of.bytes);
    const char *count = o->of.bytes <= 1 << 20 ? "500" : "10";
    const char *server[] = {"fi_pingpong", "-p", "tcp", "-e", "msg", "-I", count, "-S", size, "-B", port, NULL};
    const char *client[] = {"fi_pingpong", "-p", "tcp", "-e", "msg",       "-I", count,
                            "-S",          size, "-P",  port, "127.0.0.1", NULL};
    if (!run_pair(p, server, client))
        return false;
    char *rest = NULL;
    for (char *line = strtok_r(p->out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lf", &us) == 1 && us > 0) {
            series_add(out, 2 * us);
            return true;
        }
    return false;
}

/* Reads a column, counted from 0, of the row of numbers that follows the names of the columns. */
static bool run_ucx(peers *p, const order *o, series *out)
{
    char port[16], size[32];
    bool is_rate = o->of.is_rate;
    snprintf(port, sizeof port, "%d", command_free_port());
    snprintf(size, sizeof size, "%lld", (long long)o->of.bytes);
    const char *count = o->of.bytes <= 65536 ? "2000" : o->of.bytes <= 1 << 20 ? "200" : "10";
    const char *server[] = {"ucx_perftest", "-p", port, NULL};
    const char *client[] = {"ucx_perftest", "127.0.0.1", "-p", port,  "-t", is_rate ? "ucp_am_bw" : "ucp_am_lat",
                            "-s",           size,        "-n", count, "-w", "50",
                            "-f",           "-v",        NULL};
    const char *at = run_pair(p, server, client) ? strchr(p->out, '\n') : NULL;
    for (int column = 0; at && column < (is_rate ? 5 : 1); column++)
        at = strchr(at + 1, ',');
    double value = at ? strtod(at + 1, NULL) : 0; /* MiB a second, or the time of one way */
    if (value > 0)
        series_add(out, is_rate ? value * 1048576 / 1e9 : 2 * value);
    return value > 0;
}

static bool start(peers *p, int which, int workers)
{
    char count[16];
    snprintf(count, sizeof count, "%d", workers);
    const char *yields = workers > sysconf(_SC_NPROCESSORS_ONLN) ? "1" : "0"; /* its processes spin while they wait */
    const char *torch[] = {p->python, p->torch_rpc, "--transport", p->is_tcp ? "tcp" : "default", NULL};
    const char *gloo[] = {p->python, p->torch_allreduce, "--processes", count, NULL};
    const char *mpi[] = {"mpirun", "-n",       count,   "--oversubscribe",     "--bind-to", "none",           "--mca",
                         "plm",    "isolated", "--mca", "mpi_yield_when_idle", yields,      p->mpi_allreduce, NULL};
    session_close(&p->running[which]);
    p->workers[which] = workers;
    return session_open(&p->running[which], which == TORCH ? torch : which == GLOO ? gloo : mpi);
}

static bool ask(peers *p, const order *o, series *out)
{
    char line[128], *at = p->out, *end;
    session *s = &p->running[o->what];
    if ((s->pid <= 0 || p->workers[o->what] != o->of.workers) && !start(p, o->what, (int)o->of.workers))
        return false;
    snprintf(line, sizeof line, "%lld %lld %.0f %s\n", (long long)o->of.bytes, (long long)o->of.window, o->us,
             o->of.what);
    if (!session_ask(s, line, LIMIT_S, p->out, sizeof p->out))
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
    bool ok = o->what == PINGPONG ? run_pingpong(p, o, out) : o->what == UCX ? run_ucx(p, o, out) : ask(p, o, out);
    return ok || helper_say("it failed, or took more than %d s", LIMIT_S);
}

static int run(int fd, void *arg)
{
    peers *p = arg;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)setenv("OMP_NUM_THREADS", "1", 1); /* as each of weft's workers has one */
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    if (p->is_tcp) {
        (void)setenv("UCX_TLS", "tcp", 1);
        (void)setenv("OMPI_MCA_pml", "ob1", 1);
        (void)setenv("OMPI_MCA_btl", "tcp,self", 1);
        (void)setenv("OMPI_MCA_btl_tcp_if_include", "lo", 1);
    }
    return helper_serve(fd, true, execute, p);
}

/* ---- In this process -------------------------------------------------------------------------------------------- */

/* The first Python that has torch; NULL: none. */
static const char *python_with_torch(peers *p)
{
    static const char *const pythons[] = {"python3", "/usr/bin/python3"};
    for (size_t i = 0; i < 2; i++) {
        const char *probe[] = {pythons[i], "-c", "import torch", NULL};
        if (command_run(probe, 60, p->out, sizeof p->out))
            return pythons[i];
    }
    return NULL;
}

static bool find(peers *p, int which)
{
    switch (which) {
    case PINGPONG:
        return command_exists("fi_pingpong");
    case UCX:
        return command_exists("ucx_perftest");
    case MPI:
        return command_exists("mpirun");
    default:
        p->python = p->python ? p->python : python_with_torch(p);
        return p->python;
    }
}

/* The program of weft's tree that a peer needs. */
static bool find_own(peers *p, int which)
{
    switch (which) {
    case TORCH:
        return command_own_file("../share/weft/peers/torch_rpc.py", p->torch_rpc, sizeof p->torch_rpc);
    case GLOO:
        return command_own_file("../share/weft/peers/torch_allreduce.py", p->torch_allreduce,
                                sizeof p->torch_allreduce);
    case MPI:
        return command_own_file("mpi_allreduce", p->mpi_allreduce, sizeof p->mpi_allreduce);
    default:
        return true;
    }
}

peers *peers_open(const settings *o, const char *fabrics, task_end *to)
{
    peers *p = calloc(1, sizeof *p);
    char why[256] = "no memory";
    bool has_any = false;
    if (!p)
        return NULL;
    p->to = to;
    p->is_tcp = strcmp(fabrics, "tcp") == 0;
    for (int i = 0; i < PEERS; i++) {
        bool is_wanted = p->is_tcp ? programs[i].beside_tcp : programs[i].beside_others;
        bool is_needed = false;
        for (size_t k = 0; k < sizeof programs[i].measurements / sizeof *programs[i].measurements; k++)
            is_needed = is_needed || (programs[i].measurements[k] < MEASURES && o->wanted[programs[i].measurements[k]]);
        if (!is_wanted || !is_needed)
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
    if (has_any && helper_open(&p->helper, run, p, why, sizeof why))
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
    if (helper_measure(&p->helper, &o, 2 * LIMIT_S, out, why, sizeof why))
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
    text_copy(r.program, sizeof r.program, programs[which].program);
    text_copy(r.fabric, sizeof r.fabric, ours->fabric);
    text_copy(r.control, sizeof r.control, p->is_tcp ? programs[which].beside_tcp : programs[which].beside_others);
    result_fill(&r, samples, (double)NAN, "");
    r.of_weft = r.is_rate ? r.p50 / ours->p50 : ours->p50 / r.p50;
    return r;
}
