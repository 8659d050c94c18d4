/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opening.h - how the members of a group open it together.
 *
 * The member with the lowest rank is the COORDINATOR.
 *
 *   1. Each other member tells it of its call (JOIN). The coordinator keeps calls that come before its own.
 *   2. When all have called, the coordinator numbers the group and tells all (CREATED). From now on each member has
 *      the group, and its end is that of every group: a member that dies, or that gives up, ends it on all members.
 *   3. Each member answers (READY). When all have answered, the coordinator sends GO. So no message of the group can
 *      come to a member that does not have it.
 *   4. The members of each host get their memory (sharing.c).
 *
 * A member whose time has passed before CREATED came, or that hears of the death of another, takes its call back
 * (LEAVE). The coordinator answers with the members that are missing (FAILED), unless CREATED is on its way. If no
 * answer comes within WFI_GROUP_ANSWER_MS, the member gives up; to a later CREATED it answers that the group is
 * over. Nothing else is remembered of a call that failed. If the coordinator fails, it tells those that have called.
 * If it fails because a member has died, it keeps the calls that name other members: they may be of members that
 * have called again.
 *
 * THE LIST of the coordinator is the group's. Members that give ranks must give the same (wfi_opening.members_hash
 * is a hash of them); in an elastic job without ranks, and in weft_group_shrink, lists may differ. CREATED has the
 * list with the incarnations, so a member waits until it has heard of these workers.
 *
 * LOCKING. All [agent lock]. Functions that wait release the lock and the agent (wfi_agent_leave).
 */
#ifndef WFI_OPENING_H
#define WFI_OPENING_H

#include "coll/group.h"

typedef enum wfi_opening_stage {
    WFI_OPENING_CALLED,  /* this member has called; not all have, as far as it knows */
    WFI_OPENING_CREATED, /* this member has the group */
    WFI_OPENING_SHARING, /* all members have it: the memory of this host is still to come */
} wfi_opening_stage;

typedef struct wfi_opening {
    wfi_list link;        /* in wfi_groups.openings */
    weft_group *group;    /* once its members are known, it is in wfi_groups.all */
    bool is_entered;      /* the agent is entered and locked. False: it has closed meanwhile */
    const char *function; /* for error texts */
    int64_t timeout_ms;
    uint64_t limit_ns, until_ns; /* the end of the call; the thread sleeps until then */

    wfi_opening_stage stage;
    uint64_t attempt;      /* number of the call, given by its member; 0: the others have not been told yet */
    uint64_t members_hash; /* equal on all members that open the same group */
    bool may_differ;       /* the lists of the members may differ */
    size_t coordinator;    /* index */
    size_t missing;        /* at the coordinator: members that have not called, then those that have not sent READY */
    bool has_left;         /* it has taken its call back; until_ns ends the wait for the answer */
    weft_status gone;      /* how member `gone_rank` ended while this one waited for the coordinator; WEFT_OK: none */
    int gone_rank;
    uint8_t *list; /* the members, of CREATED. Used when this member has heard of all of them. NULL: no CREATED yet */
    size_t list_bytes;
} wfi_opening;

/* Enters the agent. `timeout_ms`: 0 is that of its calls; it counts from now if `limit_ns` is 0. WEFT_ERR_CLOSED. */
weft_status wfi_opening_begin(wfi_opening *opening, weft_group *group, const char *function, int64_t timeout_ms,
                              uint64_t limit_ns);
/* In an elastic job: waits until each rank has been held by a worker. If a rank is dead or has left here, also waits
 * until this worker knows all that the store knew when the wait began. WEFT_OK, also if that time has passed; or why
 * no group can be opened. `ranks` NULL: waits for nothing. */
weft_status wfi_opening_await_news(wfi_opening *opening, const int *ranks, size_t count);
/* Opens the group, which has its members, together with the others. If it fails, group->over has the reason, unless the
 * agent has closed. */
weft_status wfi_opening_run(wfi_opening *opening, uint64_t members_hash, bool may_differ);

/* A message about a group that is not open yet: JOIN, LEAVE, FAILED, CREATED. False: malformed. */
bool wfi_opening_on_message(weft_agent *agent, wfi_peer *from, unsigned type, wfi_reader *reader);
void wfi_opening_on_ready(weft_group *group, wfi_group_member *from); /* READY, at the coordinator */
void wfi_opening_on_go(weft_group *group, const wfi_group_member *from);
void wfi_opening_forget(weft_agent *agent, const wfi_peer *peer); /* its calls, because it has ended; NULL: all */
/* A member has ended. True: the group may yet be opened without it, or is opened already: its coordinator is asked. */
bool wfi_opening_lacks(const weft_group *group, const wfi_group_member *member, weft_status why);
void wfi_opening_news(weft_agent *agent); /* a worker has joined, or a sync with the store was answered */
void wfi_opening_wake(weft_agent *agent); /* wakes all: this worker is out of the job, or about to leave it */
void wfi_opening_end(weft_agent *agent);  /* the agent closes: wakes all, and forgets all calls */

#endif
