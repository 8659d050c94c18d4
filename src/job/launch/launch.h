/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h - what the agent takes from a job of weft/spawn.h. */
#ifndef WFI_LAUNCH_H
#define WFI_LAUNCH_H

#include "job/protocol/secret.h"

#include <weft/spawn.h>

#include <stdatomic.h>
#include <sys/types.h>

#define WFI_JOB_ADDRESS "127.0.0.1"

typedef struct wfi_child {
    pid_t pid;
    bool ended;
    int exit_code; /* -1: ended, but somebody else reaped it */
} wfi_child;

/* Owned by rank 0's program. Only store_fd may be touched by another thread, the agent's. */
struct weft_job {
    int count, port;
    _Atomic int store_fd; /* -1 once taken */
    wfi_secret *secret;   /* random, guarded; the children have it, too */
    wfi_child children[]; /* of rank index + 1 */
};

/* The children of a job, for whoever watches them; it may outlive the job. */
typedef struct wfi_children {
    int count;
    int ended;      /* so many of the first are known to have ended */
    int rank, code; /* the first of them that failed, or else rank 1; code -1: not known */
    pid_t pids[];   /* of rank index + 1 */
} wfi_children;

wfi_children *wfi_children_of(const weft_job *job); /* to be freed; NULL: out of memory */
/* Whether all have ended; false if there are none. Reaps nobody: that is weft_job_wait's. Quick, however many there are. */
bool wfi_children_have_ended(wfi_children *children);

int wfi_job_world_size(const weft_job *job);
int wfi_job_port(const weft_job *job);
/* The store's listening socket; the caller owns it from now on. -1 if it was taken before. Any thread. */
int wfi_job_take_fd(weft_job *job);

/* An agent is being opened in this process: it is no child any more that does not know what it is. */
void wfi_spawn_joined(void);

/* What rank 0's agent proves and the children, who find theirs by wfi_secret_find. Borrowed from the job. */
const wfi_secret *wfi_job_secret(const weft_job *job);

#endif
