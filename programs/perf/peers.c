/* SPDX-License-Identifier: Apache-2.0 */
/* peers.c - see peers.h. */
#include "perf/peers.h"

#include "perf/command.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_S 120     /* of one program */
#define START_US 300000 /* until a server listens */
#define OUTPUT_MOST (64 << 10)

typedef struct peers {
    const settings *o;
    task_end *to;
    char out[OUTPUT_MOST]; /* of the last program */
} peers;

static void put(peers *p, const char *program, const char *fabric, result *r, double value)
{
    if (!isfinite(value) || value <= 0 || !settings_has_size(p->o, r->bytes))
        return;
    text_copy(r->program, sizeof r->program, program);
    text_copy(r->fabric, sizeof r->fabric, fabric);
    r->p50 = value;
    task_put(p->to, r);
}

static void put_latency(peers *p, const char *program, const char *fabric, const char *what, int64_t bytes, double us)
{
    result r = result_of("latency", what, "us", false);
    r.bytes = bytes;
    r.workers = 2;
    put(p, program, fabric, &r, us);
}

/* A server, and a client whose output is read. Both lists end with NULL. */
static bool run_pair(peers *p, const char *const *server, const char *const *client)
{
    pid_t pid = command_start(server);
    (void)usleep(START_US);
    bool ok = pid > 0 && command_run(client, LIMIT_S, p->out, sizeof p->out);
    command_end(pid);
    return ok;
}

/* ---- libfabric's fi_pingpong ------------------------------------------------------------------------------------ */

/* "4k" */
static int64_t bytes_of(const char *text)
{
    char *end;
    int64_t bytes = strtoll(text, &end, 10);
    return *end == 'k' ? bytes << 10 : *end == 'm' ? bytes << 20 : bytes;
}

/* Rows "bytes #sent #ack total time MB/sec usec/xfer ...", where a transfer is half of a round trip. */
static void measure_pingpong(peers *p)
{
    char port[16], size[16];
    double us;
    if (!command_exists("fi_pingpong")) {
        task_note(p->to, "fi_pingpong is not installed: apt-get install libfabric-bin");
        return;
    }
    snprintf(port, sizeof port, "%d", command_free_port());
    const char *server[] = {"fi_pingpong", "-p", "tcp", "-e", "msg", "-I", "500", "-B", port, NULL};
    const char *client[] = {"fi_pingpong", "-p", "tcp", "-e", "msg", "-I", "500", "-P", port, "127.0.0.1", NULL};
    if (!run_pair(p, server, client)) {
        task_note(p->to, "fi_pingpong failed, or took more than %d s", LIMIT_S);
        return;
    }
    char *rest = NULL;
    for (char *line = strtok_r(p->out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (sscanf(line, "%15s %*s %*s %*s %*s %*s %lf", size, &us) == 2 && bytes_of(size) > 0)
            put_latency(p, "fi_pingpong", "tcp", "echo", bytes_of(size), 2 * us);
}

/* ---- UCX -------------------------------------------------------------------------------------------------------- */

/* One test of one size; the column, counted from 0, of the row of numbers. NaN: it failed. */
static double ucx_number(peers *p, const char *test, size_t bytes, const char *count, int column)
{
    char port[16], size[32];
    snprintf(port, sizeof port, "%d", command_free_port());
    snprintf(size, sizeof size, "%zu", bytes);
    const char *server[] = {"ucx_perftest", "-p", port, NULL};
    const char *client[] = {"ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", size,
                            "-n",           count,       "-w", "50", "-f", "-v", NULL};
    if (!run_pair(p, server, client))
        return (double)NAN;
    const char *at = strchr(p->out, '\n'); /* the names of the columns come first */
    for (int i = 0; at && i < column; i++)
        at = strchr(at + 1, ',');
    return at ? strtod(at + 1, NULL) : (double)NAN;
}

static void measure_ucx(peers *p)
{
    static const size_t sizes[] = {8, 64, 512, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
    size_t wanted[SIZES_MAX], count = settings_sizes(p->o, sizes, sizeof sizes / sizeof *sizes, wanted);
    if (!command_exists("ucx_perftest")) {
        task_note(p->to, "ucx_perftest is not installed: apt-get install ucx-utils");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const char *times = wanted[i] <= 65536 ? "2000" : wanted[i] <= 1 << 20 ? "200" : "10";
        double one_way_us = p->o->wanted[LATENCY] ? ucx_number(p, "ucp_am_lat", wanted[i], times, 1) : (double)NAN;
        put_latency(p, "UCX", "its choice", "echo", (int64_t)wanted[i], 2 * one_way_us);
        if (!p->o->wanted[BANDWIDTH] || wanted[i] < 65536)
            continue;
        result r = result_of("bandwidth", "one way", "GB/s", true);
        r.bytes = (int64_t)wanted[i];
        r.workers = 2;
        r.window = 4; /* UCX decides how many are in flight: compared with ours */
        put(p, "UCX", "its choice", &r, ucx_number(p, "ucp_am_bw", wanted[i], times, 5) * 1048576 / 1e9);
    }
}

/* ---- PyTorch ---------------------------------------------------------------------------------------------------- */

/* Calls `each` for the members "NAME": NUMBER of a flat JSON object. */
static void for_numbers(peers *p, void (*each)(peers *p, const char *name, double value, const char *arg),
                        const char *arg)
{
    for (char *at = strchr(p->out, '"'); at; at = strchr(at, '"')) {
        char *name = at + 1, *end = strchr(name, '"'), *after;
        if (!end)
            return;
        *end = '\0';
        at = end + 1 + strspn(end + 1, ": \n");
        double value = strtod(at, &after);
        if (after != at)
            each(p, name, value, arg);
        else if (*at == '"') /* a text */
            after = strchr(at + 1, '"') ? strchr(at + 1, '"') + 1 : at + 1;
        at = after;
    }
}

static void take_torch(peers *p, const char *name, double value, const char *transport)
{
    long long number = 0;
    int used = 0;
    if (strcmp(name, "noop_p50_us") == 0 && p->o->wanted[LATENCY])
        put_latency(p, "PyTorch", transport, "no-op executor", 0, value);
    else if (sscanf(name, "one_way_%lld_us%n", &number, &used) == 1 && used > 0 && p->o->wanted[LATENCY])
        put_latency(p, "PyTorch", transport, "one way", number, value);
    else if (sscanf(name, "echo_%lld_us%n", &number, &used) == 1 && used > 0 && p->o->wanted[LATENCY])
        put_latency(p, "PyTorch", transport, "echo", number, value);
    else if (sscanf(name, "window_%lld_per_s%n", &number, &used) == 1 && used > 0 && p->o->wanted[RATE]) {
        result r = result_of("rate", "executor", "calls/s", true);
        r.workers = 2;
        r.window = number;
        put(p, "PyTorch", transport, &r, value);
    }
}

static void take_allreduce(peers *p, const char *name, double value, const char *arg)
{
    int workers = atoi(arg);
    const char *program = strchr(arg, ' ') + 1;
    long long bytes = 0;
    if (sscanf(name, "us_%lld", &bytes) != 1)
        return;
    result r = result_of("collectives", bytes ? "allreduce" : "barrier", "us", false);
    r.workers = workers;
    r.bytes = bytes;
    put(p, program, "tcp", &r, value);
}

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

static void measure_torch(peers *p)
{
    static const char *const transports[] = {"tcp", "default"};
    char script[1024], seconds[32], sizes[SIZES_MAX * 12] = ""; /* "": the usual ones */
    const char *python = python_with_torch(p);
    if (!python) {
        task_note(p->to, "PyTorch is not installed: apt-get install python3-torch");
        return;
    }
    snprintf(seconds, sizeof seconds, "%g", p->o->seconds);
    for (size_t i = 0; i < p->o->size_count; i++)
        snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), "%s%zu", i ? "," : "", p->o->sizes[i]);
    const char *only = !p->o->wanted[RATE] ? "latency" : !p->o->wanted[LATENCY] ? "rate" : "latency,rate";
    if (!command_own_file("../share/weft/peers/torch_rpc.py", script, sizeof script)) {
        task_note(p->to, "PyTorch is not measured: %s is not there", script);
        return;
    }
    for (size_t i = 0; i < 2 && (p->o->wanted[LATENCY] || p->o->wanted[RATE]); i++) {
        const char *command[] = {python,    script, "--seconds", seconds, "--transport", transports[i],
                                 "--sizes", sizes,  "--only",    only,    NULL};
        if (command_run(command, LIMIT_S, p->out, sizeof p->out))
            for_numbers(p, take_torch, transports[i]);
        else
            task_note(p->to, "PyTorch RPC (%s) failed, or took more than %d s", transports[i], LIMIT_S);
    }
    if (!command_own_file("../share/weft/peers/torch_allreduce.py", script, sizeof script))
        return;
    for (int world = 2; world <= p->o->workers && p->o->wanted[COLLECTIVES]; world *= 2) {
        char workers[16], who[32];
        snprintf(workers, sizeof workers, "%d", world);
        snprintf(who, sizeof who, "%d Gloo", world);
        const char *command[] = {python, script, "--processes", workers, "--quick", NULL};
        if (command_run(command, LIMIT_S, p->out, sizeof p->out))
            for_numbers(p, take_allreduce, who);
        else
            task_note(p->to, "Gloo over %d processes failed, or took more than %d s", world, LIMIT_S);
    }
}

/* ---- Open MPI --------------------------------------------------------------------------------------------------- */

/* Over tcp on loopback, as weft's tcp is. Its processes spin while they wait; where they are more than the cores, they
 * give way. */
static void measure_mpi(peers *p)
{
    char program[1024];
    if (!command_exists("mpirun")) {
        task_note(p->to, "Open MPI is not installed: apt-get install openmpi-bin libopenmpi-dev");
        return;
    }
    if (!command_own_file("mpi_allreduce", program, sizeof program)) {
        task_note(p->to, "Open MPI is installed, but its program is not beside weft-perf: build weft with WEFT_PERF=ON "
                         "and libopenmpi-dev");
        return;
    }
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    for (int world = 2; world <= p->o->workers; world *= 2) {
        char workers[16], who[32];
        snprintf(workers, sizeof workers, "%d", world);
        snprintf(who, sizeof who, "%d Open MPI", world);
        const char *yields = world > sysconf(_SC_NPROCESSORS_ONLN) ? "1" : "0";
        const char *command[] = {"mpirun",
                                 "-n",
                                 workers,
                                 "--oversubscribe",
                                 "--bind-to",
                                 "none",
                                 "--mca",
                                 "plm",
                                 "isolated",
                                 "--mca",
                                 "pml",
                                 "ob1",
                                 "--mca",
                                 "btl",
                                 "tcp,self",
                                 "--mca",
                                 "btl_tcp_if_include",
                                 "lo",
                                 "--mca",
                                 "mpi_yield_when_idle",
                                 yields,
                                 program,
                                 "--quick",
                                 NULL};
        if (command_run(command, LIMIT_S, p->out, sizeof p->out))
            for_numbers(p, take_allreduce, who);
        else
            task_note(p->to, "Open MPI over %d processes failed, or took more than %d s", world, LIMIT_S);
    }
}

bool peers_measure(const settings *o, task_end *to)
{
    static peers p;
    p.o = o;
    p.to = to;
    (void)setenv("OMP_NUM_THREADS", "1", 1); /* as each of weft's workers has one */
    if (o->wanted[LATENCY])
        measure_pingpong(&p);
    if (o->wanted[LATENCY] || o->wanted[BANDWIDTH])
        measure_ucx(&p);
    if (o->wanted[LATENCY] || o->wanted[RATE] || o->wanted[COLLECTIVES])
        measure_torch(&p);
    if (o->wanted[COLLECTIVES])
        measure_mpi(&p);
    return true;
}
