/* SPDX-License-Identifier: Apache-2.0 */
/* rref_internal.h - the structs of remote references, shared by rref.c (handles) and rref_table.c (values). */
#ifndef WFI_RREF_INTERNAL_H
#define WFI_RREF_INTERNAL_H

#include "rpc/rref.h"

/* A value of ours that others may refer to. It stays while `handles` (ours), `forks` (theirs) or `makers` (calls that will
 * complete it) are left. [agent lock] */
struct wfi_owned {
    wfi_rref_name name;
    weft_future *value;
    size_t handles, makers;
    wfi_list forks;
    wfi_owned *next; /* others with the same hash */
    wfi_task release;
};

typedef struct wfi_fork {
    wfi_list link;
    int rank;
    uint64_t number;
} wfi_fork;

/*
 * A handle. On the owner it points at the value; elsewhere it has a fork. `agent`, `name`, `fork` never change; the rest is
 * under the agent's lock.
 */
struct weft_rref {
    atomic_int refs;
    weft_agent *agent;
    wfi_rref_name name;
    wfi_owned *home;    /* on the owner; gone when the agent is */
    weft_future *value; /* on the owner: the value, which so outlives the table for those who borrowed it */
    uint64_t fork;      /* elsewhere */
    bool confirmed;     /* the owner knows of it */
    bool unknown;       /* the owner has no fork of it: nothing to drop */
    weft_error *error;  /* the value could not be made, or the owner is gone */
    struct wfi_intake *waiter;
};

wfi_owned *wfi_owned_find(weft_agent *agent, const wfi_rref_name *name);
void wfi_owned_release_if_unused(weft_agent *agent, wfi_owned *owned);

#endif
