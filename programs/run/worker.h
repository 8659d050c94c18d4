/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - one worker as a process of this machine: how it is started, signalled and ended.
 *
 * A worker leads a process group of its own. Signals go to the group. When the worker has ended and its output is
 * closed, or a second after its end, the rest of the group is killed. The kernel kills the worker if the process that
 * started it dies.
 */
#ifndef WEFT_RUN_WORKER_H
#define WEFT_RUN_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct worker {
    int rank;
    pid_t pid;          /* 0: it does not run */
    int pipes[2];       /* the ends from which its stdout and stderr are read; -1: closed */
    int64_t kill_at_ms; /* when SIGKILL follows SIGTERM; 0: not yet told to end */
    bool is_killed;     /* that time has come before the worker's end */
    /* Its process has ended, and what it started may write its output until then, such as tee in "exec > >(tee log)".
     * 0: it runs. */
    int64_t lingers_to_ms;
} worker;

typedef struct worker_recipe {
    char *const *argv;
    char *const *envp;
    int secret_fd; /* the only descriptor that it inherits beside the standard ones */
} worker_recipe;

/* Returns 0, or the errno of the step that failed. Its standard input is /dev/null. */
int worker_start(worker *made, int rank, const worker_recipe *how);
/* Why a program could not be started, as errno `trouble` says: "hello: not found on PATH". It looks at this machine. */
void worker_describe_trouble(const char *program, int trouble, char *out, size_t room);
/* Sends a signal to the group of a worker that runs. */
void worker_signal(const worker *to, int number);
/* For a worker that has ended: kills the rest of its group and reaps it. Returns the status of waitpid. */
int worker_reap(worker *ended);

#endif
