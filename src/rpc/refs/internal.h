/* SPDX-License-Identifier: Apache-2.0 */
/* refs/internal.h - the structs of remote references; only for the files of rpc/refs. */
#ifndef WFI_RREF_INTERNAL_H
#define WFI_RREF_INTERNAL_H

#include "rpc/refs/refs.h"

#define WFI_FORK_NUMBERS                                                                                               \
    (UINT64_C(1) << 48)          /* numbers are below this: an index key is 48 bits of number and 16 bits of rank */
#define WFI_FORKS_MAX (1u << 22) /* the most forks of one worker that are counted */

/* A handle that another worker holds. [agent lock] */
typedef struct wfi_fork {
    wfi_list of_value, of_peer;
    wfi_owned *owned;
    wfi_peer *peer; /* the incarnation that holds it; the fork ends with it */
    uint64_t number;
} wfi_fork;

/* The references of one incarnation of a rank to values of this worker. [agent lock] */
typedef struct wfi_ref_peer {
    uint32_t incarnation; /* 0: none yet */
    wfi_list forks;
    size_t count;
    uint64_t forks_seen;     /* the highest number of any FORK */
    uint64_t creations_seen; /* the highest number in the name of a value that it had made here, or gave up */
    uint64_t calls_seen;     /* the highest id of a call that made such a value */
} wfi_ref_peer;

/* The agent's data of this component: wfi_refs_of. [agent lock] */
typedef struct wfi_refs {
    wfi_map owned;       /* values of this worker, by hash of the name: owned.c */
    wfi_map fork_index;  /* forks of these values, by rank and number */
    wfi_ref_peer *peers; /* by rank */
    wfi_map forks;       /* this worker's unconfirmed references to values of others, by fork */
    wfi_list references; /* all references of this worker to values of others */
    uint64_t next_number, next_fork;
    size_t leaked_forks; /* forks of workers that left without dropping them */
} wfi_refs;

static inline wfi_refs *wfi_refs_of(const weft_agent *agent)
{
    return agent->state[WFI_STATE_REFS];
}

void wfi_owned_release_if_unused(wfi_owned *owned);
/* Handles FORK. WEFT_OK if the fork is counted (perhaps since an earlier FORK), or why not. [agent lock] */
weft_status wfi_owned_take_fork(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t number);
/* Handles DROP. `gave_up`: it is from the creator, whose call failed or will never be sent. [agent lock] */
void wfi_owned_take_drop(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t number, bool gave_up);
void wfi_owned_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why);
/* Called when this worker stops: frees the values that only others hold, while net and executor still exist for their
 * destructors. [agent lock] */
void wfi_owned_end(weft_agent *agent);
/* Makes a handle on the owner. NULL: no memory. [agent lock] */
weft_rref *wfi_owned_handle(wfi_owned *owned);
/* Makes a handle to a value of another worker, whose peer is `owner` (NULL: it has not joined). NULL: no memory.
 * [agent lock] */
weft_rref *wfi_rref_make(weft_agent *agent, const wfi_rref_name *name, wfi_peer *owner);
/* Sets the handle's owner, and this worker's interest in it. NULL: ends both. [agent lock] */
void wfi_rref_set_owner(weft_rref *rref, wfi_peer *owner);
/* Writes its name and fork: the beginning of FORK and DROP. */
void wfi_rref_write_fork(const weft_rref *rref, wfi_writer *writer);

#endif
