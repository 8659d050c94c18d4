/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - this process as one worker of a job: its rank, its messages, its signals and its exit code.
 *
 * A program is either rank 0 of a job whose other workers it starts itself, or one worker of a job that was started by
 * hand or by a launcher. Only worker_find and worker_choose_device call weft.
 */
#ifndef EXAMPLES_WORKER_H
#define EXAMPLES_WORKER_H

#include <weft/agent.h>
#include <weft/job.h>
#include <weft/tensor.h>

#include "cli.h"

/* ---- Options ---------------------------------------------------------------------------------------------------- */

typedef enum worker_death { ON_DEATH_STOP = 0, ON_DEATH_CONTINUE = 1 } worker_death;

typedef struct worker_options {
    bool spawn;               /* this process is rank 0 and starts the other workers */
    int64_t rank, world_size; /* rank -1, world_size 0: not given */
    const char *master_addr;  /* NULL: from the environment */
    int64_t master_port;      /* 0: from the environment */
    const char *fabric;
    int64_t death_timeout_ms;
    int64_t threads; /* compute threads of each worker; 0: the library's choice */
    int on_death;    /* worker_death */
} worker_options;

#define WORKER_OPTIONS 7
#define WORKER_OPTIONS_TOGETHER (WORKER_OPTIONS - 1) /* without --on-death: for programs that need all their workers */
/* Lists the options of a worker in `out`, --on-death last, and returns WORKER_OPTIONS. --world-size is not among them,
 * because its meaning differs between programs. */
size_t worker_list_options(worker_options *job, cli_option out[WORKER_OPTIONS]);

/*
 * The functions below return -1 to continue, or the exit code to end with, as cli_parse does.
 *
 * worker_find takes rank and world size from the options, from RANK and WORLD_SIZE, or from the variables of another
 * launcher. With `starts` it ignores other launchers, and accepts WORLD_SIZE without RANK. worker_settle then decides:
 * a process without a rank starts the job, with `world_size` workers.
 */
int worker_find(const cli *program, worker_options *job, bool starts);
int worker_settle(const cli *program, worker_options *job, int64_t world_size);
/* Checks before the work begins that `path` can be written, or replaced by a file beside it. NULL is accepted. */
int worker_check_output(const cli *program, const char *option, const char *path);
/* Reads the option --device; NULL: the CPU. `text` is as weft_device_choose takes it. */
int worker_choose_device(const cli *program, const char *text, weft_device *out);
/* Shares the cores among the workers of this machine: sets WEFT_CPU_THREADS, which started workers inherit. */
void worker_share_cores(const worker_options *job);
/* The agent options that follow from `job`; the caller adds its functions and callbacks. */
weft_agent_options worker_agent_options(const worker_options *job);

/* ---- Messages --------------------------------------------------------------------------------------------------- */

/*
 * The names in messages: of the program, of rank 0 ("server"), of the others ("trainer"); at most 31 bytes each. Call
 * it before other threads exist.
 */
void worker_name(const char *program, const char *first, const char *other, int rank);
/*
 * worker_name, and signals until worker_catch_signals: SIGINT and SIGTERM end rank 0 with a message and exit code 130.
 * They end the other workers without a message. A worker that weft_job_open started ignores SIGINT: rank 0 ends it.
 */
void worker_begin(const char *program, const char *first, const char *other, int rank);

/* Messages go to stderr. Any thread may call these functions. Only the first failure of a process is printed. */

/* Prints why this worker fails; returns the exit code, 1. */
int worker_fail(const char *format, ...) WEFT_PRINTF(1, 2);
/* The same with the message of `error`, which it releases; NULL: the text of `status`. */
int worker_error(weft_status status, weft_error *error);
/* Prints a line that is not a failure. */
void worker_note(const char *format, ...) WEFT_PRINTF(1, 2);
/* worker_fail, and ends the process immediately: for callbacks while the main thread computes. */
void worker_exit(const char *format, ...) WEFT_PRINTF(1, 2) __attribute__((noreturn));

/* ---- Signals and the end ---------------------------------------------------------------------------------------- */

/* From now on SIGINT and SIGTERM only set a flag, which worker_interrupted returns. */
void worker_catch_signals(void);
bool worker_interrupted(void);
/* Flushes standard output; if that fails, the exit code is 1 instead of 0. Call it last. */
int worker_flush(int code);

/*
 * While a started job assembles, the workers wait for each other, and weft does not report deaths yet. Between
 * worker_watch_children(true, ...) and worker_watch_children(false, NULL) the end of a child therefore ends this
 * process, with a message that names the child if `job` is given. The other children then end too.
 */
void worker_watch_children(bool on, const weft_job *job);
/* A started worker calls this when its agent is open: from then on it is not killed when rank 0 dies, and can print the
 * reason that weft reports. */
void worker_outlive_parent(void);

#endif
