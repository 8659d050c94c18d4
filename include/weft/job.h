/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/job.h - starting the other workers of a job as processes on this machine.
 *
 * The calling process becomes rank 0. By default the children run the same program, which learns from RANK that it is
 * another worker.
 *
 *     weft_status use_server(weft_agent *agent); // calls rank 0
 *     weft_status run_job(weft_agent_options options) // the children of weft_job_open come here as well
 *     {
 *         weft_job *job = NULL;
 *         weft_agent *agent;
 *         bool launched = weft_job_is_launched(NULL, NULL);
 *         weft_status status = launched ? WEFT_OK : weft_job_open(&(weft_job_options){.count = 3}, &job, NULL);
 *         options.job = job; // NULL in a child
 *         if (!status && !(status = weft_agent_open(&options, &agent, NULL)))
 *             {
 *             status = weft_agent_rank(agent) == 0 ? weft_agent_serve(agent, WEFT_FOREVER) : use_server(agent);
 *             weft_status closed = weft_agent_close(agent, WEFT_FOREVER);
 *             status = status ? status : closed;
 *         }
 *         weft_status children = weft_job_close(job, 10000, NULL); // NULL does nothing
 *         return status ? status : children;
 *     }
 *
 * ENVIRONMENT. The children get RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and WEFT_SPAWNED, which
 * their first agent removes. The store's port is a free port that is bound before they start.
 *
 * SECRET. The job has a random secret. If WEFT_SECRET_FILE or WEFT_SECRET is set, the job uses that secret. The
 * secret appears neither in command lines nor in environments: the children inherit a descriptor, whose number is in
 * WEFT_SECRET_FD, and read the secret from it. Their first agent closes the descriptor.
 *
 * DEATH. A child dies when its parent dies. On Linux it dies when the thread that called weft_job_open ends. So call
 * weft_job_open on a thread that lives as long as the job.
 */
#ifndef WEFT_JOB_H
#define WEFT_JOB_H

#include <weft/status.h>

WEFT_BEGIN_C

/* Options of weft_job_open. A zeroed struct, or NULL, starts no children: a job of rank 0 alone. */
typedef struct weft_job_options {
    int count;               /* the number of children: their ranks are 1..count, the world size is count + 1 */
    const char *program;     /* default: this executable, even if its file was renamed or deleted */
    const char *const *argv; /* NULL-terminated, argv[0] included; default: this process's argv */
} weft_job_options;

/*
 * Starts the other workers of a job as children of this process. It returns when their processes exist, and does not
 * wait for them: pass the job to weft_agent_open (weft_agent_options.job), which waits until they have joined. Each
 * child runs the program from its beginning, so the program must not call this function in a child, where RANK is set.
 * The same holds for a process that mpirun, srun or weft-run started. Call the function before you open an agent and
 * before you start threads, on a thread that lives as long as the job.
 *
 * *out receives the job, on success only; end it with weft_job_close after the agent. *error receives the detail of a
 * failure; you release it. If `error` is NULL, the log has the detail.
 *
 * Returns WEFT_OK, or a negative status. After a failure *out is unchanged, and no child is left. Errors:
 *   WEFT_ERR_INVALID: `out` is NULL, or count is negative or too large.
 *   WEFT_ERR_STATE: this process is a child of weft_job_open that has not opened an agent yet. The check prevents a
 *   program that ignores RANK from starting children endlessly.
 *   WEFT_ERR_SYSTEM: a process, a port or the file of the secret could not be made.
 *   WEFT_ERR_IO: the file that WEFT_SECRET_FILE names cannot be read.
 *   WEFT_ERR_MEMORY.
 * One thread.
 */
WEFT_API WEFT_NODISCARD weft_status weft_job_open_sized(const weft_job_options *options, size_t size, weft_job **out,
                                                        weft_error **error);
static inline WEFT_NODISCARD weft_status weft_job_open(const weft_job_options *options, weft_job **out,
                                                       weft_error **error)
{
    return weft_job_open_sized(options, sizeof(*options), out, error);
}

/*
 * Whether this process was started as a worker: by weft_job_open in its parent, by a launcher (mpirun, srun,
 * weft-run and those of docs/environment.md), or by a user who set RANK or WORLD_SIZE. A batch script of Slurm is
 * none of these. A program that starts its own workers calls weft_job_open only if this function returns false.
 * *rank and *world_size receive the values that weft_agent_open will take from the environment. They are -1 if
 * nothing started this process, or if the values are malformed or incomplete; weft_agent_open then says what is
 * wrong. Either pointer may be NULL. Under PMIx, a pointer that is not NULL makes the function connect to the
 * launcher. Any thread.
 */
WEFT_API bool weft_job_is_launched(int *rank, int *world_size);

/* The process id of a rank's child; 0 for rank 0 or a rank that does not exist. */
WEFT_API int weft_job_pid(const weft_job *job, int rank);

/*
 * Waits until all children have ended, at most wait_ms (0: not at all; or WEFT_FOREVER), kills the remaining ones, and
 * frees the job. *worst_exit, if not NULL, receives the highest exit code; a child killed by a signal counts as 128 +
 * the signal. One thread. NULL does nothing. If rank 0's weft_agent_open failed, no child can join: then this
 * function waits for at most 3 s.
 *   WEFT_OK: all children exited with 0.
 *   WEFT_ERR_TIMEOUT: children had to be killed.
 *   WEFT_ERR_REMOTE: children failed.
 *   WEFT_ERR_UNKNOWN: no child is known to have failed, but the program reaped a child itself (a handler of SIGCHLD, or
 *   SIGCHLD ignored), so the exit code of that child is unknown.
 */
WEFT_API WEFT_NODISCARD weft_status weft_job_close(weft_job *job, int64_t wait_ms, int *worst_exit);

WEFT_END_C
#endif
