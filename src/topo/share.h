/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.h - this process's part of the machine: the cores and the memory that affinity and control groups allow it,
 * divided by the number of the job's workers on this machine. Any thread may call.
 */
#ifndef WFI_SHARE_H
#define WFI_SHARE_H

#include <weft/status.h>

#include <stdbool.h>
#include <stdint.h>

/* Threads that compute, at least 1. */
int wfi_share_cores(void);
/* Bytes of memory; 0: not known. */
uint64_t wfi_share_memory(void);

/* That many processes of the job are here, as its table says; from now on it counts where the launcher said nothing. */
void wfi_share_tell(int processes);

/* What the shares are made of. */
typedef struct wfi_share_facts {
    int bound;       /* cores in this process's affinity mask */
    int online;      /* cores of the machine */
    uint64_t memory; /* of the machine, in bytes; 0: not known */
    int processes;   /* of the job, here; >= 1 */
    bool is_unbound; /* the launcher binds none of its processes to cores of its own: they share their mask */
} wfi_share_facts;

/* What LOCAL_WORLD_SIZE says; 0: nothing. WEFT_ERR_INVALID if that makes no sense. */
weft_status wfi_share_setting(int64_t *processes, weft_error **error);
/* What the launcher's variables say: 0, nothing. *is_unbound: see above. */
int wfi_share_launched(bool *is_unbound);
/* This process's rank among those of the job on this machine, as the launcher's variables say; 0 if they do not. */
int wfi_share_local_rank(void);
/* With the control groups below `root` (cgroup.h). */
int wfi_share_cores_of(const wfi_share_facts *facts, const char *root);
uint64_t wfi_share_memory_of(const wfi_share_facts *facts, const char *root);

#endif
