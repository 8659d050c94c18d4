/* SPDX-License-Identifier: Apache-2.0 */
/* settings.c - see settings.h. */
#include "run/settings.h"

#include "cli.h"

#include <weft/base.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MOST 65536

static const char notes[] =
    "Each worker gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT\n"
    "and the job's secret (WEFT_SECRET_FILE or WEFT_SECRET if set, otherwise a random one). Its\n"
    "standard input is empty. Its output is printed line by line, with its rank in front.\n"
    "\n"
    "FILE of --hosts has one host a line: its name, perhaps with a user (me@node1), and how many\n"
    "workers it takes (slots=4; 1 if it is not given). \"#\" begins a comment. max_slots=K, which\n"
    "Open MPI knows, is ignored. The first host is filled first. A name that means this machine\n"
    "needs no ssh; each worker elsewhere has one. The hosts need weft-run, PROGRAM and the present\n"
    "folder at the same paths.\n"
    "\n"
    "If a worker fails, one line says which and how, and weft-run ends the other workers: SIGTERM,\n"
    "then SIGKILL after --grace. With --restarts it then restarts all workers, because a job of\n"
    "fixed size cannot replace one worker. In an elastic job it restarts only the failed worker,\n"
    "except rank 0, which serves the store. Without restarts left, an elastic job continues while\n"
    "MIN of its workers have not failed.\n"
    "\n"
    "INT, TERM, HUP, QUIT, USR1, USR2, TSTP and CONT are passed on. The first four end the job;\n"
    "a second one kills the workers at once. If weft-run or a connection dies, the worker ends.\n"
    "If nobody reads weft-run's output any more (| head), it ends the job without a word.\n"
    "\n"
    "Within a Slurm allocation of several nodes (sbatch, salloc), srun reaches the nodes in\n"
    "place of ssh. As one task of several of srun or mpirun, weft-run becomes PROGRAM: those\n"
    "have started the workers already.\n"
    "\n"
    "Exit code: 0 if all workers exited with 0; otherwise that of the worker that failed first,\n"
    "128 + its signal; 126 or 127 if PROGRAM cannot be started; 128 + the signal that ended\n"
    "weft-run (141 if nobody reads its output); 1 if a host cannot be reached; 2 for a wrong\n"
    "option or file.\n";

/* As mpirun and its relatives call these options. */
static const char *const aliases[] = {"-np",          "n",     "--np",      "n",     "--n",           "n",
                                      "--hostfile",   "hosts", "-hostfile", "hosts", "--machinefile", "hosts",
                                      "-machinefile", "hosts", NULL};

/* "2:8" */
static bool read_elastic(const char *text, settings *o)
{
    char *end;
    o->least = strtoll(text, &end, 10);
    if (end == text || *end != ':')
        return false;
    const char *second = end + 1;
    o->most = strtoll(second, &end, 10);
    return end != second && !*end && o->least >= 1 && o->least <= o->most && o->most <= WORKERS_MOST;
}

static int check(const cli *program, settings *o, const char *elastic)
{
    if (elastic && !read_elastic(elastic, o))
        return cli_error(program, "--elastic is '%s': expected MIN:MAX, with 1 <= MIN <= MAX <= %d", elastic,
                         WORKERS_MOST);
    if (elastic && o->has_workers && (o->workers < o->least || o->workers > o->most))
        return cli_error(program, "-n is %lld: --elastic %s allows %lld to %lld", (long long)o->workers, elastic,
                         (long long)o->least, (long long)o->most);
    if (!o->hosts && strcmp(o->ssh, "ssh") != 0)
        return cli_error(program, "--ssh has no effect here: it is for --hosts");
    if (!o->ssh[strspn(o->ssh, " ")])
        return cli_error(program, "--ssh is '%s': expected a command", o->ssh);
    if (!*o->argv)
        return cli_error(program, "no program: weft-run -n N PROGRAM [ARGUMENTS...]");
    if (!**o->argv)
        return cli_error(program, "the name of the program is empty");
    return -1;
}

int settings_read(int argc, char **argv, settings *out)
{
    settings o = {.ssh = "ssh", .restarts = 0};
    double grace_s = 5, connect_s = 60;
    const char *elastic = NULL;
    bool version = false;
    int first = argc;
    const cli_option options[] = {
        {"n", CLI_INT, &o.workers, 1, WORKERS_MOST, NULL, "N", "workers to start",
         "MAX of --elastic, the slots of the hosts, or the tasks of Slurm"},
        {"hosts", CLI_TEXT, &o.hosts, 0, 0, NULL, "FILE", "start them over ssh on the hosts of FILE", NULL},
        {"elastic", CLI_TEXT, &elastic, 0, 0, NULL, "MIN:MAX",
         "the job is elastic (WEFT_ELASTIC): it needs MIN workers, and has room for MAX", NULL},
        {"restarts", CLI_INT, &o.restarts, 0, INT32_MAX, NULL, "K", "restart failed workers, K times in all", "0"},
        {"grace", CLI_NUMBER, &grace_s, 0, 86400, NULL, "SECONDS", "from SIGTERM to SIGKILL", "5"},
        {"connect-timeout", CLI_NUMBER, &connect_s, 0.1, 86400, NULL, "SECONDS",
         "fail if no further host has answered for that time", "60"},
        {"master-addr", CLI_TEXT, &o.master_addr, 0, 0, NULL, "ADDRESS", "where the others reach rank 0",
         "the first host; 127.0.0.1 if there is no other"},
        {"master-port", CLI_INT, &o.master_port, 1, 65535, NULL, "PORT", "the port of rank 0's store", "a free one"},
        {"export", CLI_TEXT, &o.exported, 0, 0, NULL, "NAMES",
         "variables, separated by commas, that other hosts get beside WEFT_*, FI_*, OMP_*, OPENBLAS_*, PATH and "
         "LD_LIBRARY_PATH",
         NULL},
        {"ssh", CLI_TEXT, &o.ssh, 0, 0, NULL, "COMMAND", "in place of ssh, with options: 'ssh -p 2222'", "ssh"},
        {"node-program", CLI_TEXT, &o.node_program, 0, 0, NULL, "PATH", "weft-run on the other hosts",
         "the same path as here"},
        {"no-prefix", CLI_FLAG, &o.no_prefix, 0, 0, NULL, NULL, "print output as it comes, without the rank", NULL},
        {"version", CLI_FLAG, &version, 0, 0, NULL, NULL, "the version of weft", NULL},
    };
    const cli program = {.program = "weft-run",
                         .purpose = "starts the workers of a job, here or on several hosts, and ends them together",
                         .example = "weft-run -n 4 --hosts hosts.txt ./train --epochs 3",
                         .options = options,
                         .count = sizeof(options) / sizeof(*options),
                         .notes = notes,
                         .operands = "PROGRAM [ARGUMENTS...]",
                         .first = &first,
                         .aliases = aliases};
    int code = cli_parse(&program, argc, argv);
    if (code >= 0)
        return cli_flush("weft-run", code);
    if (version) {
        printf("weft-run %d.%d.%d\n", WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
        return cli_flush("weft-run", 0);
    }
    o.has_workers = o.workers > 0;
    o.grace_ms = (int64_t)(grace_s * 1000);
    o.connect_ms = (int64_t)(connect_s * 1000);
    o.argv = argv + first;
    code = check(&program, &o, elastic);
    *out = o;
    return code;
}

int settings_find_hosts(settings *o, host_list *hosts)
{
    const cli program = {.program = "weft-run"};
    const char *tasks = getenv("SLURM_NTASKS");
    int64_t wanted = o->has_workers ? o->workers : o->most;
    if (o->hosts && !hosts_read(hosts, o->hosts))
        return 2;
    if (!o->hosts && !hosts_of_slurm(hosts))
        return 2;
    bool has_hosts = hosts->count > 0;
    if (!wanted && !has_hosts && getenv("SLURM_JOB_ID") && tasks)
        wanted = strtoll(tasks, NULL, 10);
    if (!wanted && has_hosts)
        wanted = hosts_slots(hosts);
    if (wanted > WORKERS_MOST)
        return cli_error(&program, "%lld workers: at most %d", (long long)wanted, WORKERS_MOST);
    if (wanted < 1)
        return cli_error(&program, "-n is missing: how many workers are to start? Options come before the program");
    if (!has_hosts)
        hosts_here(hosts, (int)wanted);
    o->workers = wanted;
    if (hosts_slots(hosts) < wanted && o->hosts)
        return cli_error(&program, "%lld workers, and the hosts of %s have %d slots: write slots=K behind their names",
                         (long long)wanted, o->hosts, hosts_slots(hosts));
    if (hosts_slots(hosts) < wanted)
        return cli_error(&program, "%lld workers, and the allocation has %d tasks: ask Slurm for more with --ntasks",
                         (long long)wanted, hosts_slots(hosts));
    return o->hosts && !hosts_merge(hosts, (int)wanted, o->hosts) ? 2 : -1;
}
