/* SPDX-License-Identifier: Apache-2.0 */
/* refs/internal.h - the structs of remote references, shared by the files of rpc/refs, and by dump.c. */
#ifndef WFI_RREF_INTERNAL_H
#define WFI_RREF_INTERNAL_H

#include "rpc/refs/refs.h"
#include "value/reference.h"

#define WFI_FORK_NUMBERS                                                                                               \
    (UINT64_C(1) << 48)          /* as much of a number as the index of forks has room for, beside the rank */
#define WFI_FORKS_MAX (1u << 22) /* of one worker's, that we will count */

/* A value of ours that others may refer to. It stays while `handles` (ours), `forks` (theirs) or `makers` (calls that will
 * complete it) are left. [agent lock] */
struct wfi_owned {
    weft_agent *agent;
    wfi_rref_name name;
    weft_future *value;
    weft_error *refused; /* why the last attempt to make it did not run: it may be tried again */
    bool given_up;       /* its creator will not try again */
    size_t handles, makers;
    wfi_list forks;
    wfi_owned *next; /* others with the same hash */
    wfi_task release;
};

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
    uint64_t creations_seen; /* the highest number of a name that it had made here, or gave up */
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

/*
 * A handle. On the owner it points at the value; elsewhere it has a fork. `agent` never changes, nor does `name` once the
 * handle is the user's; the rest is under the agent's lock.
 */
struct weft_rref {
    wfi_reference head; /* the first: values know no more of it */
    weft_agent *agent;
    wfi_rref_name name;
    wfi_owned *home;    /* on the owner; gone when the agent is */
    weft_future *value; /* on the owner: the value, which so outlives the table for those who borrowed it */
    wfi_list link;      /* elsewhere: in wfi_refs.references */
    wfi_peer *owner;    /* elsewhere: its incarnation, held; NULL: it has not joined as far as we know */
    uint64_t fork;      /* elsewhere */
    bool launched;      /* the name is out in the world: its call has left */
    bool passed;        /* or it may be, passed on before that */
    bool making;        /* its creation, by us, has not ended */
    bool confirmed;     /* the owner knows of it */
    bool unknown;       /* the owner has no fork of it: nothing to drop */
    bool lost;          /* of no use any more: `error` says why */
    weft_error *error;  /* the value could not be made, or the owner is gone */
    weft_future *made;  /* somebody asked for it while it was being made */
    wfi_timer timer;    /* while the owner is awaited */
    wfi_ref_waiter *waiter;
    unsigned notifications; /* promised for it: FORK and DROP */
};

/* Of one that is lost: why, as a call that takes it along ends. That its making found no room does not mean that this call found
 * none, and may be made again. [agent lock] */
weft_status wfi_rref_lost_status(const weft_rref *rref);
wfi_owned *wfi_owned_find(weft_agent *agent, const wfi_rref_name *name);
void wfi_owned_release_if_unused(wfi_owned *owned);
/* FORK came. WEFT_OK: it is counted (again, perhaps); else why it is not. [agent lock] */
weft_status wfi_owned_fork_said(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t number);
/* DROP came. gave_up: it was the creator's, whose call failed or will never come. [agent lock] */
void wfi_owned_drop_said(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t number, bool gave_up);
void wfi_owned_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why);
/* This worker stops: values that only others hold go while all that their destructors may call is still there. [agent lock] */
void wfi_owned_end(weft_agent *agent);
/* Of a value that has been made, and is no object: what a reference to it names. Borrowed from it. */
weft_value wfi_value_made(const weft_future *value);
/* Why no copy of it can be had anywhere. */
weft_error *wfi_object_stays(const struct wfi_object *object, int owner);
/* A handle of our own to it. NULL: no memory. [agent lock] */
weft_rref *wfi_owned_handle(wfi_owned *owned);
/* A handle to a value of another worker's, of that incarnation; NULL: it has not joined. NULL: no memory. [agent lock] */
weft_rref *wfi_rref_make(weft_agent *agent, const wfi_rref_name *name, wfi_peer *owner);
/* From now on we want to hear of that worker's death. NULL: of nobody's. [agent lock] */
void wfi_rref_set_owner(weft_rref *rref, wfi_peer *owner);
/* Its name and fork, as FORK and DROP begin. */
void wfi_rref_write_fork(const weft_rref *rref, wfi_writer *writer);

#endif
