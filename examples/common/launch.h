/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h - which worker of which job a program is: rank 0 of one whose other workers it starts itself, or one
 * worker of a job that somebody started by hand or with a launcher.
 */
#ifndef EXAMPLES_LAUNCH_H
#define EXAMPLES_LAUNCH_H

#include <weft/agent.h>

#include "cli.h"

typedef enum launch_death { ON_DEATH_STOP = 0, ON_DEATH_CONTINUE = 1 } launch_death;

typedef struct launch {
    bool spawn;               /* we are to start the others; rank is 0 then */
    int64_t rank, world_size; /* rank -1, world_size 0: not given */
    const char *master_addr;  /* NULL: from the environment */
    int64_t master_port;      /* 0: from the environment */
    const char *fabric;
    int64_t death_timeout_ms;
    int64_t threads; /* for the operators of each worker; 0: the library's choice */
    int on_death;
} launch;

#define LAUNCH_OPTIONS 7
#define LAUNCH_OPTIONS_TOGETHER (LAUNCH_OPTIONS - 1) /* of programs that need all their workers: without --on-death */
/* The options for it, --world-size aside, which means something else in each program, and --on-death last; returns
 * LAUNCH_OPTIONS. */
size_t launch_list(launch *job, cli_option out[LAUNCH_OPTIONS]);

/*
 * Finds rank and world size: from the options, from RANK, or from the variables of another launcher (not if
 * `starts`). If there are none this process starts the job, with `world_size` workers. WORLD_SIZE without RANK
 * is an error, unless `starts`. The job's fabric must be one on which these programs run. All functions here
 * return -1 to go on, or the exit code to end with, as cli_parse.
 */
int launch_find(const cli *program, launch *job, bool starts);
int launch_settle(const cli *program, launch *job, int64_t world_size);
/* Checks before the work whether `path` can be written, or replaced by a file beside it. NULL is fine. */
int launch_check_output(const cli *program, const char *option, const char *path);
/* Shares the cores among this machine's workers: sets WEFT_CPU_THREADS in the environment, also of those that
 * we start. */
void launch_share_cores(const launch *job);

/* What it says about the agent; the rest is for the caller to set. */
weft_agent_options launch_agent(const launch *job);

#endif
