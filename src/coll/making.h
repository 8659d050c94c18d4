/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making.h - what a group waits for before it is open: news of its members, and their answers about which group they
 * open.
 *
 * LOCKING. All [agent lock]. Functions that wait release the lock and the agent (wfi_agent_leave).
 */
#ifndef WFI_MAKING_H
#define WFI_MAKING_H

#include "coll/group.h"

typedef struct wfi_making {
    weft_group *group; /* not open, and not visible to others */
    bool inside;       /* the agent is entered and locked. False: it has closed meanwhile */
} wfi_making;

/* In an elastic job: waits, within the agent's limit for calls, until each rank has been held by a worker. If a rank is
 * dead or has left here, also waits until this worker knows all that the store knew when the wait began. WEFT_OK, also
 * if that time has passed; or why no group can be made. `ranks` NULL: waits for nothing. */
weft_status wfi_making_await_news(wfi_making *making, const int *ranks, size_t count);
/* Sets the group's generation. Asks the other members first if the last group of that name failed here. */
weft_status wfi_making_agree(wfi_making *making);
/* That peer has answered about that group: `first_left` is the first generation that is neither closed nor
 * over there. */
void wfi_making_answered(weft_agent *agent, const wfi_peer *from, const wfi_group_key *key, uint64_t first_left);
/* That group is over at that peer, which may have been asked about it and has not answered yet. */
void wfi_making_over(weft_agent *agent, const wfi_peer *from, const wfi_group_key *key);
void wfi_making_gone(weft_agent *agent, const wfi_peer *peer); /* it will not answer */
void wfi_making_news(weft_agent *agent); /* a worker has joined, or a sync with the store was answered */
void wfi_making_wake(weft_agent *agent); /* wakes all waiters: this worker is out of the job, or about to leave it */
void wfi_making_end(weft_agent *agent);  /* wakes all waiters, because the agent closes */

#endif
