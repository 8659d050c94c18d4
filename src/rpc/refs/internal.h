/* SPDX-License-Identifier: Apache-2.0 */
/* refs/internal.h - the structs of remote references, shared by the files of rpc/refs. */
#ifndef WFI_RREF_INTERNAL_H
#define WFI_RREF_INTERNAL_H

#include "rpc/refs/refs.h"

#define WFI_FORK_NUMBERS                                                                                               \
    (UINT64_C(1) << 48)          /* as much of a number as the index of forks has room for, beside the rank */
#define WFI_FORKS_MAX (1u << 22) /* of one worker's, that we will count */

/* A handle that another worker holds. [agent lock] */
typedef struct wfi_fork {
    wfi_list of_value, of_peer;
    wfi_owned *owned;
    wfi_peer *peer; /* one incarnation of its rank, with whose end it goes */
    uint64_t number;
} wfi_fork;

/* What is known of the references that one incarnation of a rank has to values of ours. [agent lock] */
typedef struct wfi_fork_book {
    uint32_t incarnation; /* whose; 0: nobody's yet */
    wfi_list forks;
    size_t count;
    uint64_t forks_seen;     /* the highest number of any FORK */
    uint64_t creations_seen; /* the highest number of a name under which it had a value made here, or gave that up */
    uint64_t calls_seen;     /* the highest id of a call that made one */
} wfi_fork_book;

/* What an agent has of references: wfi_refs_of. [agent lock] */
typedef struct wfi_refs {
    wfi_map owned;        /* values of ours, by hash of the name: owned.c */
    wfi_map fork_index;   /* forks that others have of them, by rank and number */
    wfi_fork_book *books; /* by rank */
    wfi_map forks;        /* references of ours to others' values, awaiting confirmation, by fork */
    wfi_list references;  /* all of ours to others' values */
    uint64_t next_number, next_fork;
    size_t leaked_forks; /* of workers that left without dropping them */
} wfi_refs;

static inline wfi_refs *wfi_refs_of(const weft_agent *agent)
{
    return agent->state[WFI_STATE_REFS];
}

void wfi_owned_release_if_unused(wfi_owned *owned);
/* FORK came. WEFT_OK: it is counted (again, perhaps); else why it is not. [agent lock] */
weft_status wfi_owned_fork_said(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t number);
/* DROP came. gave_up: it was the creator's, whose call failed or will never come. [agent lock] */
void wfi_owned_drop_said(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t number, bool gave_up);
void wfi_owned_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why);
/* This worker stops: values that only others hold are freed now, while net and executor are there for their
 * destructors. [agent lock] */
void wfi_owned_end(weft_agent *agent);
/* A handle of our own to it. NULL: no memory. [agent lock] */
weft_rref *wfi_owned_handle(wfi_owned *owned);
/* A handle to a value of another worker, whose peer is `owner` (NULL: it has not joined). Returns NULL if memory is
 * out. [agent lock] */
weft_rref *wfi_rref_make(weft_agent *agent, const wfi_rref_name *name, wfi_peer *owner);
/* Sets the handle's owner, and this worker's interest in it. NULL: ends both. [agent lock] */
void wfi_rref_set_owner(weft_rref *rref, wfi_peer *owner);
/* Its name and fork, as FORK and DROP begin. */
void wfi_rref_write_fork(const weft_rref *rref, wfi_writer *writer);

#endif
