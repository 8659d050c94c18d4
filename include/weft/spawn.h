/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/spawn.h - the other workers of a job, started as processes of this machine by its rank 0.
 *
 * The calling process becomes rank 0: it opens its agent with weft_agent_options.job. The children get RANK, WORLD_SIZE,
 * LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and WEFT_SPAWNED (until their first agent) in their environment; the store's port is a
 * free one, bound before they start. The job has a random secret, which the children inherit as a descriptor that their first agent
 * closes (WEFT_SECRET_FD has its number); neither command line nor environment shows it. A child dies when its parent does (Linux: when the thread that called
 * weft_spawn does, so call it from one that lives on).
 */
#ifndef WEFT_SPAWN_H
#define WEFT_SPAWN_H

#include <weft/status.h>

WEFT_BEGIN_C

typedef struct weft_spawn_options {
    int count;               /* children: ranks 1..count; world size is count + 1 */
    const char *program;     /* default: this executable */
    const char *const *argv; /* NULL-terminated, argv[0] included; default: this process's own */
    weft_error **error;      /* receives the detail of a failure; you release it. NULL: the log does */
} weft_spawn_options;

/* Starts them. Call before any agent is open and before threads of your own. WEFT_ERR_INVALID, WEFT_ERR_SYSTEM;
 * WEFT_ERR_STATE in a child of weft_spawn that has not opened an agent yet: else a program that does not look at RANK would
 * start children for ever. */
WEFT_API WEFT_NODISCARD weft_status weft_spawn(const weft_spawn_options *options, weft_job **out);

/* The process id of a rank's child; 0 for rank 0 or a rank that does not exist. */
WEFT_API int weft_job_pid(const weft_job *job, int rank);

/*
 * Waits until all children have ended, at most timeout_ms, then kills those left, and frees the job.
 * WEFT_OK if all exited with 0; else WEFT_ERR_TIMEOUT (some had to be killed), or WEFT_ERR_REMOTE. `worst_exit`, if not
 * NULL, receives the highest exit code (128 + signal for a killed one). A child that the application reaped itself (in a
 * SIGCHLD handler, or by ignoring SIGCHLD) has an exit code that nobody knows: WEFT_ERR_UNKNOWN, if nothing worse happened.
 * NULL is a no-op. From one thread.
 */
WEFT_API WEFT_NODISCARD weft_status weft_job_wait(weft_job *job, int64_t timeout_ms, int *worst_exit);

WEFT_END_C
#endif
