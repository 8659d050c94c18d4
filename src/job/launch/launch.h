/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h - a job that was started by weft_job_open (weft/job.h): what rank 0's agent needs from it, and whether its
 * children are alive.
 *
 * weft_job_open starts the other workers as children of this process and returns a weft_job. Rank 0's program passes
 * the job to weft_agent_open, which takes from it the listening socket of the store, the port, and the secret that
 * the children also have.
 *
 * LOCKING. None. The program's thread owns a weft_job; the agent's thread touches only store_fd, which is atomic.
 * LIFETIME. weft_job_close frees the job. A wfi_processes is a copy of the process numbers, so it may outlive the
 * job.
 */
#ifndef WFI_LAUNCH_H
#define WFI_LAUNCH_H

#include "base/handle.h"
#include "job/protocol/secret.h"

#include <weft/job.h>

#include <stdatomic.h>
#include <sys/types.h>

#define WFI_JOB_ADDRESS "127.0.0.1"

typedef struct wfi_process {
    pid_t pid;
    bool ended;
    int exit_code; /* -1: it has ended, but another part of the process reaped it */
    int signal;    /* the signal that killed the process; 0: none */
} wfi_process;

/* Owned by rank 0's program. The agent's thread may touch only store_fd. */
struct weft_job {
    wfi_handle handle;
    int count, port;
    bool has_failed;         /* rank 0's agent did not open: the children's failures follow from it */
    _Atomic int store_fd;    /* -1 once taken */
    wfi_secret *secret;      /* random, guarded; the children have it too */
    wfi_process processes[]; /* of rank index + 1 */
};

/* The processes of a job that weft_job_open started; it may outlive the job. One thread at a time. */
typedef struct wfi_processes {
    int count;
    int ended;        /* the number of processes that are known to have ended */
    wfi_process at[]; /* of rank index + 1 */
} wfi_processes;

wfi_processes *wfi_processes_of(const weft_job *job); /* the caller frees it; NULL: out of memory */
/* Looks which processes have ended, and returns their number. Reaps none: weft_job_close does that. */
int wfi_processes_poll(wfi_processes *processes);
/* The same; true if all have ended, false if there are none. */
bool wfi_processes_have_ended(wfi_processes *processes);
/*
 * Names the processes that have ended and that `counts` says true for: "rank 1 exited with 3, rank 2 was killed by
 * signal 9 (Killed), and 5 more". Returns their number.
 */
int wfi_processes_name(const wfi_processes *processes, bool (*counts)(const void *arg, int rank), const void *arg,
                       char *out, size_t room);

/* Describes the processes that have not ended and that `counts` says true for: "; rank 2 is process 4711 (sleep), which
 * is stopped". "": there are none. */
void wfi_processes_describe(const wfi_processes *processes, bool (*counts)(const void *arg, int rank), const void *arg,
                            char *out, size_t room);

int wfi_job_world_size(const weft_job *job);
int wfi_job_port(const weft_job *job);
/* The store's listening socket, which the caller then owns. -1 if it was taken before. Any thread. */
int wfi_job_take_fd(weft_job *job);

/* Rank 0's agent opened, or did not. If it did not, the program has the reason: weft_job_close logs no exit codes as
 * errors, and waits for a short time only. */
void wfi_job_opened(weft_job *job, bool has_failed);

/*
 * An agent is being opened in this process, which may call weft_job_open itself from now on. Returns whether
 * weft_job_open started this process, once.
 */
bool wfi_spawn_joined(void);

/* The job's secret, for rank 0's agent; the children find theirs by wfi_secret_find. Borrowed from the job. */
const wfi_secret *wfi_job_secret(const weft_job *job);

#endif
