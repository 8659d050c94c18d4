/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/group.h - groups of workers: barrier and all-gather.
 *
 * Every member makes the group, with the same name and the same ranks in the same order, and takes part in all
 * its operations, in the same order. Making a group sends nothing.
 *
 *     weft_status count_samples(weft_agent *agent, int64_t mine, int64_t *total) // every worker of the job calls this
 *     {
 *         weft_group *all;
 *         weft_values *gathered;
 *         weft_status st = weft_group_create(agent, "count", NULL, 0, &all);
 *         if (st)
 *             return st;
 *         st = weft_group_all_gather(all, WEFT_VALUES(weft_of_i64(mine)), 0, &gathered);
 *         *total = 0;
 *         for (size_t i = 0; !st && i < weft_group_size(all); i++)
 *             *total += weft_values_args(gathered).items[i].as.list.items[0].as.i64; // a list for each member
 *         if (!st)
 *             weft_values_unref(gathered);
 *         weft_group_destroy(all);
 *         return st;
 *     }
 *
 * Operations of different groups do not disturb each other. Up to 256 operations of one group may be under way
 * at once.
 *
 * ERRORS. An operation ends alike on all members; its error is that of its future, and the blocking functions
 * return the code.
 *   - If a member dies or leaves, the operations under way and all later ones fail with WEFT_ERR_PEER_DEAD or
 *     WEFT_ERR_PEER_LEFT.
 *   - WEFT_ERR_STATE: one member called a barrier, another an all-gather. WEFT_ERR_INVALID: the members' lists
 *     of ranks differ. (If that cannot be seen, the members time out.)
 *   - WEFT_ERR_TIMEOUT: the message names the members that did not come.
 * docs/groups.md says what happens when a member cannot take part, and what a group costs in memory.
 *
 * THREADS. Any thread may call these functions at any time, with one exception: while weft_group_destroy runs, no
 * other thread may be in a function of that group. Only one that waits in weft_group_barrier or
 * weft_group_all_gather may: its function returns WEFT_ERR_CLOSED.
 */
#ifndef WEFT_GROUP_H
#define WEFT_GROUP_H

#include <weft/agent.h>
#include <weft/future.h>
#include <weft/value.h>

WEFT_BEGIN_C

/*
 * Makes this worker's side of a group. `ranks` lists the members, of which this worker is one; NULL: all
 * workers of a static job, or all that live at this moment in an elastic one, in the order of their ranks.
 * `name` has 1..64 bytes of [A-Za-z0-9-_:], and this worker has no other open group of that name. When all
 * members have destroyed a group they may make another of the same name. The log has a warning that says which
 * argument is wrong. WEFT_ERR_INVALID, WEFT_ERR_NOT_FOUND (no such rank, or nobody ever held it),
 * WEFT_ERR_EXISTS (the name), WEFT_ERR_CLOSED, WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_create(weft_agent *agent, const char *name, const int *ranks,
                                                      size_t count, weft_group **out);
/* Frees the group. This worker's operations under way fail with WEFT_ERR_CLOSED. If this worker is the first of
 * the list, those of the other members fail with WEFT_ERR_CANCELLED. Allowed at any time, also after the agent
 * was closed. NULL does nothing. */
WEFT_API void weft_group_destroy(weft_group *group);

WEFT_API size_t weft_group_size(const weft_group *group);
WEFT_API int weft_group_index(const weft_group *group);                /* this worker's place in it */
WEFT_API int weft_group_member(const weft_group *group, size_t index); /* the rank at a place; -1 past the end */

/*
 * A barrier: completes when every member has called it. timeout_ms: 0 is the agent's default for calls,
 * WEFT_FOREVER no limit.
 *
 * The operations of a group are numbered, and each call of this function or of an all-gather uses one number up,
 * even if it fails: so after a failure or a time-out the next call belongs to the next operation. Do not repeat a
 * call that failed. If the async function returns a failure, for example WEFT_ERR_AGAIN because the queue to the
 * first member is full, the operation fails with this code for all members.
 *
 * WEFT_ERR_STATE: this worker could not tell the others that an earlier call of its own failed, so every later
 * operation of this group fails here (docs/groups.md). WEFT_ERR_DEADLOCK, from the blocking function only: this
 * thread cannot wait (weft_future_wait), and the call used no number up.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier(weft_group *group, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier_async(weft_group *group, int64_t timeout_ms, weft_future **out);

/*
 * Gives every member the values of all: the result is a list of lists, one for each member, in the order of the
 * group. The contents of tensors in `mine` must not change until it completes. All else is as for the barrier;
 * besides:
 *   - WEFT_ERR_TOO_LARGE, for all: the values of all members together exceed the limits of one call
 *     (weft/value.h): 1,024 members, lists of 7 levels, 65,536 tensors, 64 MiB of strings and bytes. Or one
 *     member's values exceed the first member's memory budget.
 *   - WEFT_ERR_BUSY, for all: the first member had no memory for some member's values until the time limit. The
 *     values wait there, and count against its memory_budget_bytes: so do not run further ahead of the first
 *     member than it has memory for.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_all_gather(weft_group *group, weft_args mine, int64_t timeout_ms,
                                                          weft_values **out);
WEFT_API WEFT_NODISCARD weft_status weft_group_all_gather_async(weft_group *group, weft_args mine, int64_t timeout_ms,
                                                                weft_future **out);

WEFT_END_C
#endif
