/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.h - this process's part of the machine: the cores and the memory that affinity and control groups allow it,
 * divided by the number of the job's workers on this machine. Any thread may call.
 */
#ifndef WFI_QUOTA_H
#define WFI_QUOTA_H

#include <weft/status.h>

#include <stdbool.h>
#include <stdint.h>

/* Threads that compute, at least 1. Found once, and again after wfi_quota_set_processes. */
int wfi_quota_cores(void);
/* Bytes of memory; 0: not known. Found in the same way. */
uint64_t wfi_quota_memory(void);

/* Sets the number of the job's processes on this machine, from the member table. Used from then on if the launcher's
 * variables do not give it. */
void wfi_quota_set_processes(int processes);

/* The numbers from which the shares are computed. */
typedef struct wfi_quota_facts {
    int bound;       /* cores in this process's affinity mask */
    int online;      /* cores of the machine */
    uint64_t memory; /* of the machine, in bytes; 0: not known */
    int processes;   /* of the job, here; >= 1 */
    bool is_unbound; /* the launcher does not bind processes to disjoint cores: all have the same affinity mask */
} wfi_quota_facts;

/* The value of LOCAL_WORLD_SIZE; 0: not set. WEFT_ERR_INVALID if it is not a count. */
weft_status wfi_quota_setting(int64_t *processes, weft_error **error);
/* The number of processes here that the launcher's variables give; 0: none. *is_unbound: see wfi_quota_facts. */
int wfi_quota_launched(bool *is_unbound);
/* This process's rank among those of the job on this machine, as the launcher's variables say; 0 if they do not. */
int wfi_quota_local_rank(void);
/* Compute the shares from `facts` and the cgroup limits below `root` (cgroup.h). */
int wfi_quota_cores_of(const wfi_quota_facts *facts, const char *root);
uint64_t wfi_quota_memory_of(const wfi_quota_facts *facts, const char *root);

#endif
