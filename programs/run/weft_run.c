/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft_run.c - starts the workers of a job, here, over ssh, or by srun (docs/weft-run.md).
 *
 * Each worker has a supervisor on its machine (supervisor.h), which a process here leads to: the supervisor itself, ssh
 * or srun (worker.h). The streams of that process are those of the worker. This process prints, and decides (job.h).
 */
#include "base/launchers.h"
#include "run/job.h"
#include "run/secret.h"
#include "run/settings.h"
#include "run/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Under another launcher ------------------------------------------------------------------------------------- */

static int number_of(const char *name)
{
    const char *text = getenv(name);
    long number = text ? strtol(text, NULL, 10) : 0;
    return number > 0 && number <= 1 << 24 ? (int)number : 0;
}

/* The number of tasks that the launcher has started; 0: it did not start this process; -1: not known. */
static int tasks_of(const wfi_launcher *one)
{
    int size = 0;
    if (!getenv(one->rank) || (one->started && !getenv(one->started)))
        return 0;
    for (size_t i = 0; i < WFI_LAUNCHER_NAMES && one->size[i] && !size; i++)
        size = number_of(one->size[i]);
    return one->size[0] ? size : -1;
}

/* The number of tasks of srun or mpirun, of which this process is one; 0: it is the only one; -1: several, it is not
 * known how many. *launcher gets the name of the program that started them.
 *
 * RANK and WORLD_SIZE do not count, because a worker may start weft-run. With --mpi=pmi2, srun sets PMI's variables
 * too. So the last launcher that has started as many tasks is the one that is named. */
static int launcher_tasks(const char **launcher)
{
    int tasks = 0;
    for (const wfi_launcher *one = wfi_launchers + WFI_LAUNCHER_BY_HAND + 1; one->name; one++) {
        int these = tasks_of(one);
        if (these && (!tasks || these == tasks)) {
            tasks = these;
            *launcher = one->command;
        }
    }
    return tasks != 1 ? tasks : 0;
}

/* srun or mpirun has started the workers already, and tells them where rank 0 is. */
static int become_program(const settings *o, int tasks, const char *launcher)
{
    if (o->has_workers && tasks > 0 && o->workers != tasks) {
        fprintf(stderr,
                "weft-run: -n is %lld, but %s started %d copies of weft-run: start weft-run without %s, or pass %s -n "
                "%lld\n",
                (long long)o->workers, launcher, tasks, launcher, launcher, (long long)o->workers);
        return 2;
    }
    execvp(o->argv[0], o->argv);
    return supervisor_report_start_failure(o->argv[0], errno);
}

/* ---- The whole -------------------------------------------------------------------------------------------------- */

/* A pipe that is opened later must not become a standard descriptor. False: the error was printed. */
static bool open_standard_descriptors(void)
{
    int fd, flags = fcntl(STDOUT_FILENO, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
        fprintf(stderr, "weft-run: standard output cannot be written: %s\n",
                flags < 0 ? "it is closed: redirect it to /dev/null" : "it is open only for reading");
        return false;
    }
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
    return true;
}

/* The store's port is weft-run's to choose. A worker that starts weft-run has these variables of its own job. */
static void warn_of_unused(const settings *o)
{
    if (getenv("RANK"))
        return;
    if (getenv("MASTER_PORT") && !o->master_port)
        fprintf(stderr, "weft-run: MASTER_PORT is set, and has no effect here: --master-port sets the port\n");
    if (getenv("MASTER_ADDR") && !o->master_addr)
        fprintf(stderr, "weft-run: MASTER_ADDR is set, and has no effect here: --master-addr sets the address\n");
}

int main(int argc, char **argv)
{
    settings o;
    host_list hosts = {0};
    secret job_secret;
    const char *launcher = "";
    if (!open_standard_descriptors())
        return 1;
    if (argc == 2 && strcmp(argv[1], "--worker") == 0)
        return supervisor_run();
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN); /* the help may not fit into a file; workers inherit `before` */
    int code = settings_read(argc, argv, &o);
    (void)signal(SIGXFSZ, before);
    if (code >= 0)
        return code;
    int tasks = launcher_tasks(&launcher);
    if (tasks && o.hosts) {
        fprintf(stderr,
                "weft-run: %s started several weft-run, and each would start a job on the hosts of %s: start it once, "
                "or leave out --hosts\n",
                launcher, o.hosts);
        return 2;
    }
    if (tasks)
        return become_program(&o, tasks, launcher);
    warn_of_unused(&o);
    code = settings_find_hosts(&o, &hosts);
    if (code < 0)
        code = secret_find(&job_secret) ? job_run(&o, &hosts, &job_secret) : 2;
    explicit_bzero(&job_secret, sizeof(job_secret));
    hosts_free(&hosts);
    return code;
}
