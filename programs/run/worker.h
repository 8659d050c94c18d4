/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h - one worker as weft-run sees it: the process that leads to it, and what goes to it and comes from it. */
#ifndef WEFT_RUN_WORKER_H
#define WEFT_RUN_WORKER_H

#include "run/output.h"
#include "run/secret.h"
#include "run/settings.h"

#include <sys/types.h>

typedef enum worker_state {
    WORKER_ENDED,    /* it has no process */
    WORKER_WAITING,  /* it is to be started: only a few start at a time */
    WORKER_STARTING, /* ssh connects, or the supervisor starts */
    WORKER_READY,    /* the supervisor (supervisor.h) has greeted, and waits for the setup */
    WORKER_RUNNING,  /* the supervisor has got the setup, or it is in the outbox */
} worker_state;

typedef struct worker {
    host *on;
    int rank, local_rank;
    worker_state state;
    bool is_done;     /* it has exited with 0 */
    bool is_other;    /* weft-run there is of another version */
    bool has_setup;   /* the supervisor has said so */
    pid_t pid;        /* the supervisor, ssh or srun, leader of a process group; 0: none */
    int in;           /* its standard input; -1: closed */
    int streams[2];   /* its standard output and error; -1: closed */
    int port;         /* that the supervisor has found free; 0: none */
    int64_t until_ms; /* when the process is killed; 0: it is not told to end */
    size_t polled;    /* its place in the list for poll; 0: none */
    buffer outbox;    /* for `in` */
    lines out[2];
} worker;

/* The part of the setup that is equal for all workers of a job. */
typedef struct worker_setup {
    const settings *o;
    const secret *job_secret;
    const host *first; /* the host of rank 0 */
    bool is_alone;     /* there is no other host */
    int world_size;
    int port; /* of the store */
} worker_setup;

/* Starts the supervisor, ssh or srun. Each worker takes three descriptors. False: errno. */
bool worker_start(worker *one, const settings *o);
/* Sends the setup: the supervisor then starts the worker. */
void worker_set_up(worker *one, const worker_setup *of, int local_world_size);
/* Sends a signal to a worker that runs. */
void worker_signal(worker *to, int number);
/* Writes what the outbox has, without waiting. */
void worker_write(worker *to);
/* Ends a worker: one that runs by the signal `number`, and the process is killed after wait_ms. */
void worker_end(worker *one, int number, int64_t wait_ms);
/* Reads a stream once, without waiting; false: nothing came. `to` gets the lines. Output before the greeting is
 * skipped. */
bool worker_read(worker *from, int which, buffer *to);
/* Its process was reaped: passes what is left of the output, and closes the rest. */
void worker_close(worker *ended, output *to);

/* "ssh": what leads to the worker. */
const char *worker_command(const worker *of);

#endif
