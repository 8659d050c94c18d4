/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/group.h - a set of workers that meet: barrier and all-gather over all or some.
 *
 * Every member makes the group with the same name and the same ranks in the same order, and takes part in its operations in
 * the same order; a group of the same name may be made again once the former is destroyed, by all alike. Different groups do
 * not disturb each other, nor do operations of one group that are under way at once (at most 256). A member that dies or
 * leaves fails the operation under way, and every later one, on all members, with WEFT_ERR_PEER_DEAD or WEFT_ERR_PEER_LEFT.
 * Members that disagree are told: WEFT_ERR_STATE where one does a barrier and another an all-gather, WEFT_ERR_INVALID where
 * their lists differ and that can be seen; else the time limit's error says who is missing. The error of an operation is that
 * of its future: the blocking forms return its code. Any thread, but for weft_group_destroy: nobody may be inside another
 * function of that group then, unless it waits there.
 */
#ifndef WEFT_GROUP_H
#define WEFT_GROUP_H

#include <weft/agent.h>
#include <weft/future.h>
#include <weft/value.h>

WEFT_BEGIN_C

/*
 * `ranks` NULL: all living workers at this moment, in rank order (in static jobs: all). This worker must be one of them. No
 * communication. `name`: 1..64 bytes of [A-Za-z0-9-_:]; unique among this worker's open groups.
 * A warning in the log says which argument was at fault.
 * WEFT_ERR_INVALID, WEFT_ERR_NOT_FOUND (no such rank, or nobody ever held it), WEFT_ERR_EXISTS, WEFT_ERR_CLOSED,
 * WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_create(weft_agent *agent, const char *name, const int *ranks,
                                                      size_t count, weft_group **out);
/* Operations under way fail with WEFT_ERR_CLOSED; the other members', if this worker is the first of the list, with
 * WEFT_ERR_CANCELLED. At any time, also after the agent was closed. NULL is a no-op. */
WEFT_API void weft_group_destroy(weft_group *group);

WEFT_API size_t weft_group_size(const weft_group *group);
WEFT_API int weft_group_index(const weft_group *group);                /* this worker's place in it */
WEFT_API int weft_group_member(const weft_group *group, size_t index); /* the rank at a place; -1 past the end */

/*
 * Completes when every member has come. timeout_ms: 0 is the agent's default for calls, WEFT_FOREVER none; WEFT_ERR_TIMEOUT
 * names the missing ones. A member that timed out has given up this operation, for which it counts as come; the next ones
 * still match. So do they after a failure to start (the code returned by the async forms, with the reason in the log): that was
 * this member's part, and the operation fails with this code and reason for all. So it is with WEFT_ERR_AGAIN: queue_limit_bytes wait
 * for the first member, and as much is to be tried again; starting once more begins the next operation. Where not even that can be
 * said, for want of memory, or since 1,024 such failures are not known to have been heard, every later operation of the group fails
 * here with WEFT_ERR_STATE, as the members would be out of step; the others hear by their time limit.
 * A blocking form called where the thread cannot wait (weft_future_wait) is WEFT_ERR_DEADLOCK and takes no part, whoever else came.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier(weft_group *group, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier_async(weft_group *group, int64_t timeout_ms, weft_future **out);

/* Everybody's values at everybody: one list a member, in the group's order, of which the whole is under the limits of one
 * call's values (weft/value.h): at most 1,024 members, lists of at most 7 levels, 65,536 tensors, 64 MiB beside them. Over
 * that it is WEFT_ERR_TOO_LARGE for all. Tensors stay as they are until it completes.
 * Parts that have come wait at the first member, where they count against its memory_budget_bytes. One for which there is no room is
 * brought again until the time limit; then the operation fails with WEFT_ERR_BUSY for all, or, where the part alone is over the
 * budget, with WEFT_ERR_TOO_LARGE at once. So do not run further ahead of the first member than it has memory for. */
WEFT_API WEFT_NODISCARD weft_status weft_group_all_gather(weft_group *group, weft_args mine, int64_t timeout_ms,
                                                          weft_values **out);
WEFT_API WEFT_NODISCARD weft_status weft_group_all_gather_async(weft_group *group, weft_args mine, int64_t timeout_ms,
                                                                weft_future **out);

WEFT_END_C
#endif
