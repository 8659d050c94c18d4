/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making.h - how the members of a group open it together.
 *
 * The member with the lowest rank is the GATHERER.
 *
 *   1. Each other member tells it of its call (JOIN). The gatherer keeps calls that come before its own.
 *   2. When all have called, the gatherer numbers the group and tells all (MADE). From now on each member has the
 *      group, and its end is that of every group: a member that dies, or that gives up, ends it on all members.
 *   3. Each member answers (READY). When all have answered, the gatherer says GO. So no message of the group can come
 *      to a member that does not have it.
 *   4. The members of each host get their memory (sharing.c).
 *
 * A member whose time has passed before MADE came, or that hears of the death of another, takes its call back (LEAVE).
 * The gatherer answers with the members that are missing (FAILED), unless MADE is on its way. If no answer comes within
 * WFI_GROUP_ANSWER_MS, the member gives up; to a later MADE it answers that the group is over. Nothing else is
 * remembered of a call that failed. If the gatherer fails, it tells those that have called. If it fails because a
 * member has died, it keeps the calls that name other members: they may be of members that have called again.
 *
 * THE LIST of the gatherer is the group's. Members that give ranks must give the same (wfi_making.what is a hash of
 * them); in an elastic job without ranks, and in weft_group_shrink, lists may differ. MADE has the list with the
 * incarnations, so a member waits until it has heard of these workers.
 *
 * LOCKING. All [agent lock]. Functions that wait release the lock and the agent (wfi_agent_leave).
 */
#ifndef WFI_MAKING_H
#define WFI_MAKING_H

#include "coll/group.h"

typedef enum wfi_making_stage {
    WFI_MAKING_GATHERS, /* not all have called, as far as is known */
    WFI_MAKING_MADE,    /* this member has the group */
    WFI_MAKING_SHARES,  /* all members have it: the memory of this host is still to come */
} wfi_making_stage;

typedef struct wfi_making {
    wfi_list link;        /* in wfi_groups.makings */
    weft_group *group;    /* once its members are known, it is in wfi_groups.all */
    bool inside;          /* the agent is entered and locked. False: it has closed meanwhile */
    const char *function; /* for error texts */
    int64_t timeout_ms;
    uint64_t limit_ns, until_ns; /* the end of the call; the thread sleeps until then */

    wfi_making_stage stage;
    uint64_t attempt; /* number of the call, given by its member; 0: the others have not been told yet */
    uint64_t what;    /* equal on all members that open the same group */
    bool may_differ;  /* the lists of the members may differ */
    size_t gatherer;  /* index */
    size_t missing;   /* at the gatherer: members that have not called, then those that have not said READY */
    bool has_left; /* the time has passed (LEAVE was said if not made), and `until_ns` ends the wait for the answer */
    weft_status gone; /* how member `gone_rank` ended while this one, which does not gather, waited; WEFT_OK: none */
    int gone_rank;
    uint8_t *list; /* what MADE said, taken when this member has heard of all workers in it; NULL: not yet MADE */
    size_t list_bytes;
} wfi_making;

/* Enters the agent. `timeout_ms`: 0 is that of its calls; it counts from now if `limit_ns` is 0. WEFT_ERR_CLOSED. */
weft_status wfi_making_begin(wfi_making *making, weft_group *group, const char *function, int64_t timeout_ms,
                             uint64_t limit_ns);
/* In an elastic job: waits until each rank has been held by a worker. If a rank is dead or has left here, also waits
 * until this worker knows all that the store knew when the wait began. WEFT_OK, also if that time has passed; or why no
 * group can be made. `ranks` NULL: waits for nothing. */
weft_status wfi_making_await_news(wfi_making *making, const int *ranks, size_t count);
/* Opens the group, which has its members, together with the others. If it fails, group->over has the reason, unless the
 * agent has closed. */
weft_status wfi_making_meet(wfi_making *making, uint64_t what, bool may_differ);

/* A message about a group that is not made: JOIN, LEAVE, FAILED, MADE. False: malformed. */
bool wfi_making_hear(weft_agent *agent, wfi_peer *from, unsigned word, wfi_reader *reader);
void wfi_making_hear_ready(weft_group *group, wfi_group_member *from); /* READY, at the gatherer */
void wfi_making_hear_go(weft_group *group, const wfi_group_member *from);
void wfi_making_forget(weft_agent *agent, const wfi_peer *peer); /* its calls, because it has ended; NULL: all */
/* A member has ended. True: the group may yet be opened without it, or is opened already: its gatherer is asked. */
bool wfi_making_lacks(const weft_group *group, const wfi_group_member *member, weft_status why);
void wfi_making_news(weft_agent *agent); /* a worker has joined, or a sync with the store was answered */
void wfi_making_wake(weft_agent *agent); /* wakes all: this worker is out of the job, or about to leave it */
void wfi_making_end(weft_agent *agent);  /* the agent closes: wakes all, and forgets all calls */

#endif
