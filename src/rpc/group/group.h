/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.h - groups inside weft: how an operation of a group is gathered.
 *
 * The first member gathers. Each other member calls weft's own function "weft:gather" there, with its contribution to
 * the operation. The calls are kept until all contributions have come, and their answer is the result of the operation:
 * N - 1 calls, N - 1 answers. The gathering member's own contribution needs no call. No thread waits.
 *
 * NUMBERING. An operation is named by the group's name, its list of members with their incarnations (as a hash), the
 * generation (how many groups of that name and list this worker made before), and the number of the operation in the
 * group. All members that follow the rules of weft/group.h count alike, without asking each other.
 *
 * A member that cannot start an operation, or whose contribution does not arrive, has used the number up all the same.
 * It sends WFI_GATHER_ABSENT, and the operation fails for all. If even that cannot be sent, `broken` is set, and all
 * later operations fail here, so that the member cannot fall out of step.
 *
 * EARLY CONTRIBUTIONS, to a group that is not open here yet, wait in a record: a weft_group whose `opened` is false.
 * There are at most WFI_EARLY_MAX of them, and at most WFI_EARLY_PEER_MAX of one worker. Further ones are answered with
 * WEFT_ERR_BUSY, and their member tries again.
 */
#ifndef WFI_GROUP_H
#define WFI_GROUP_H

#include "rpc/agent/agent.h"

#include <weft/group.h>

#define WFI_GROUP_NAME_MAX 64
#define WFI_EARLY_MAX 8192
#define WFI_EARLY_PEER_MAX 64
#define WFI_OPERATIONS_MAX 256 /* operations under way in one group */
#define WFI_ABSENCES_MAX 1024  /* WFI_GATHER_ABSENT messages of one agent that are not answered yet */

typedef enum wfi_gather_kind {
    WFI_GATHER_BARRIER = 1,
    WFI_GATHER_VALUES = 2,
    WFI_GATHER_ABSENT = 3, /* this member does not contribute: its values are the status and the text that say why */
} wfi_gather_kind;

typedef struct wfi_group_key {
    char name[WFI_GROUP_NAME_MAX + 1];
    uint64_t ranks_hash; /* of the list of ranks alone: tells a mistake from an older or newer incarnation */
    uint64_t members_hash;
    uint64_t generation;
} wfi_group_key;

typedef struct wfi_group_member {
    int rank, index;
    uint32_t incarnation;
    wfi_peer *peer; /* NULL: ourselves, or one that is gone */
} wfi_group_member;

/* Somebody who waits for the end of an operation: a call to be answered, or a future of our own. */
typedef struct wfi_gather_wait {
    wfi_task task;
    wfi_timer timer;
    struct wfi_contribution *contribution;
    weft_call *call;
    weft_future *future;
    weft_values *results;
    weft_error *error;
} wfi_gather_wait;

/* What a member brings to an operation, at the gathering member. */
typedef struct wfi_contribution {
    wfi_list link; /* early ones: in their record */
    wfi_task release;
    weft_group *group;
    struct wfi_operation *operation; /* NULL: early */
    int from;
    uint32_t incarnation;
    uint64_t number;
    wfi_gather_kind kind;
    weft_values *values;
    size_t charged; /* bytes against the memory budget, for the values of another member; until it is discarded */
    wfi_gather_wait *wait; /* NULL: told already */
} wfi_contribution;

/* An operation under way. */
typedef struct wfi_operation {
    wfi_list link;
    wfi_task task; /* its end */
    char group_name[WFI_GROUP_NAME_MAX + 1];
    uint64_t number;
    size_t size, come;
    weft_error *failure;               /* it cannot succeed any more; those who come later are told the same */
    wfi_contribution *contributions[]; /* by place in the group */
} wfi_operation;

/* Guarded by the agent's lock; key, size, index and members are constant once it is opened. */
struct weft_group {
    wfi_list link; /* in the agent's groups */
    weft_agent *agent;
    wfi_group_key key;
    bool opened; /* false: a record, of early contributions alone */
    wfi_list early;
    size_t size;
    int index;
    wfi_group_member *members;
    wfi_map places; /* member by rank + 1 */
    uint64_t next_number;
    wfi_list ops; /* of ours, gathered elsewhere, under way */
    weft_error *broken;
    wfi_timer broken_timer;
    /* Of the gathering member: */
    wfi_list operations;
    size_t operation_count;
    uint64_t opened_below; /* every lower number has its operation open, or is over */
    bool interested;
};

extern const weft_function wfi_gather_function; /* "weft:gather" */

/* What an agent has of groups: wfi_groups_of. [agent lock] but for absences */
typedef struct wfi_groups {
    wfi_list all;                 /* weft_group.link */
    size_t owed_answers;          /* of operations that are over: not finished, or not known to have arrived */
    weft_future *answers_settled; /* completes when there are none; NULL: nobody waits for that */
    wfi_map pasts;                /* what was of each name and list: wfi_group_past */
    wfi_list pasts_over;          /* of those the ones that can only be asked for, oldest first */
    size_t pasts_over_count;
    size_t early_count; /* early contributions: gather.c */
    size_t *early_by_rank;
    atomic_int absences; /* said to members that gather, and not answered: member.c */
} wfi_groups;

static inline wfi_groups *wfi_groups_of(const weft_agent *agent)
{
    return agent->state[WFI_STATE_GROUPS];
}

/* ---- operation.c. All [agent lock] ---- */

weft_error *wfi_group_problem(const weft_group *group, weft_status code, int worker, const char *format, ...)
    WEFT_PRINTF(4, 5);
/* Ends the waiting of its member with `error`; the contribution stays. */
void wfi_contribution_fail(wfi_contribution *contribution, const weft_error *error);
/* The same, and frees the contribution. Takes over `error`. */
void wfi_contribution_refuse(wfi_contribution *contribution, weft_error *error);
void wfi_contribution_discard(wfi_contribution *contribution); /* frees one that nobody waits for */
weft_status wfi_operation_find(weft_group *group, uint64_t number, wfi_operation **out);
void wfi_operation_fail(wfi_operation *operation,
                        weft_error *error); /* for all, also those to come. Takes over `error` */
void wfi_operation_close(weft_group *group, wfi_operation *operation);

/* ---- member.c: contributions to operations that another member gathers ---- */

/* Where a contribution of ours goes, and to which operation it belongs. */
typedef struct wfi_errand {
    wfi_group_key key;
    weft_worker to;
    uint64_t number;
    int64_t timeout_ms;
} wfi_errand;

/* Sends the contribution; `future` completes when the operation ends. Not locked. */
weft_status wfi_group_call_start(weft_group *group, const wfi_errand *what, wfi_gather_kind kind, weft_args mine,
                                 weft_future *future);
/* Says that our contribution will not come, even if the queue to that member is full. Nobody waits for the answer.
 * WEFT_ERR_AGAIN: WFI_ABSENCES_MAX of these are under way. Not locked. */
weft_status wfi_group_tell_absence(weft_agent *agent, const wfi_errand *what, const weft_error *why);
/* Whether the gathering member has to be told of a contribution that failed with `st`: not if one of the two workers is
 * gone, nor if the time limit has passed. */
bool wfi_group_missed_by(weft_status st);
/* Fails this worker's operations under way, and forgets them. [agent lock] */
void wfi_group_calls_fail(weft_group *group, const weft_error *error);

/* ---- gather.c: the gathering member's side ---- */

/* Our own contribution. The error, or WEFT_OK; then `future` completes when the operation ends. Takes over `values`.
 * [agent lock] */
weft_status wfi_gather_own(weft_group *group, uint64_t number, wfi_gather_kind kind, weft_values *values,
                           int64_t timeout_ms, weft_future *future);
/* Our own contribution will not come, for this reason. [agent lock] */
weft_status wfi_gather_miss(weft_group *group, uint64_t number, const weft_error *why);
/* The group was opened: takes in the early contributions of its record. [agent lock] */
void wfi_gather_adopt(weft_group *group, weft_group *record);
/* Everything under way fails with this error, for everybody. [agent lock] */
void wfi_gather_fail_all(weft_group *group, const weft_error *error);
/* Fails our own contributions to what is under way. [agent lock] */
void wfi_gather_fail_own(weft_group *group, const weft_error *error);
/* This worker leaves an elastic job: operations to which it has not contributed fail. [agent lock] */
void wfi_gather_leaving(weft_group *group);
/* Refuses the early contributions of one worker, or of all (-1). [agent lock] */
void wfi_gather_refuse_early(weft_agent *agent, int from, weft_status why);

/* An open group, or a record without one; NULL. [agent lock] */
weft_group *wfi_group_find(weft_agent *agent, const wfi_group_key *key, bool opened);
weft_group *wfi_group_make(weft_agent *agent, const wfi_group_key *key);
void wfi_group_free(weft_group *group);
/*
 * What is remembered of a name and list of members. A member that is gone never comes back as the same incarnation: so
 * once one group of that list is broken, all later ones are. When another worker takes the member's rank, no group of
 * that list can be made here any more: the past is over. It is kept for contributions that come late, as long as it is
 * among the last WFI_PASTS_OVER.
 */
#define WFI_PASTS_OVER 64
typedef struct wfi_group_past {
    wfi_list link; /* over: in the agent's pasts_over */
    uint64_t key;
    uint64_t generations; /* how many groups were made here */
    weft_error *broken;   /* why one of them broke */
    size_t size;
    weft_worker members[];
} wfi_group_past;

wfi_group_past *wfi_group_past_of(weft_agent *agent, const wfi_group_key *key); /* NULL: none. [agent lock] */
void wfi_group_remember_broken(const weft_group *group);                        /* it has just broken. [agent lock] */
void wfi_group_pasts_fini(weft_agent *agent);
/* How many groups of this name and list were made here. [agent lock] */
uint64_t wfi_group_generation(weft_agent *agent, const wfi_group_key *key);
weft_status wfi_group_next_generation(const weft_group *group); /* one more */

/* A worker took the rank of a former member: the pasts with that member are over, and the oldest of these is forgotten.
 * [agent lock] */
void wfi_groups_peer_joined(weft_agent *agent, wfi_peer *peer);

extern const wfi_component wfi_group_component;

#endif
