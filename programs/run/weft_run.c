/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft_run.c - starts the workers of a job, here, over ssh, or by srun (docs/weft-run.md).
 *
 * One process for each host starts the workers there (node.h): a child of this one, or `weft-run --node` on another
 * host. This process talks to them (link.h), prints, and decides (job.h).
 */
#include "run/job.h"
#include "run/launcher.h"
#include "run/node.h"
#include "run/secret.h"
#include "run/settings.h"
#include "run/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* srun or mpirun has started the workers already, and tells them where rank 0 is. */
static int become_program(const settings *o, int tasks, const char *launcher)
{
    char why[600];
    if (o->has_workers && tasks > 0 && o->workers != tasks) {
        fprintf(stderr,
                "weft-run: -n is %lld, but %s started %d copies of weft-run: start weft-run without %s, or pass %s -n "
                "%lld\n",
                (long long)o->workers, launcher, tasks, launcher, launcher, (long long)o->workers);
        return 2;
    }
    execvp(o->argv[0], o->argv);
    int trouble = errno;
    worker_describe_trouble(o->argv[0], trouble, why, sizeof why);
    fprintf(stderr, "weft-run: %s\n", why);
    return trouble == ENOENT ? 127 : 126;
}

/* A pipe that is opened later must not become a standard descriptor. */
static void open_standard_descriptors(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
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
    const char *launcher;
    open_standard_descriptors();
    if (argc == 2 && strcmp(argv[1], "--node") == 0)
        return node_run(0, 1);
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
    explicit_bzero(&job_secret, sizeof job_secret);
    hosts_free(&hosts);
    return code;
}
