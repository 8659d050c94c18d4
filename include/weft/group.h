/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/group.h - a set of workers that meet: barrier and all-gather over all or some.
 *
 * Every member makes the group with the same name and the same ranks in the same order, and takes part in its operations in
 * the same order. Different groups do not disturb each other. A member that dies or leaves fails the operation under way,
 * and every later one, on all members, with WEFT_ERR_PEER_DEAD or WEFT_ERR_PEER_LEFT. Any thread.
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
 * WEFT_ERR_INVALID, WEFT_ERR_NOT_FOUND, WEFT_ERR_EXISTS, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_create(weft_agent *agent, const char *name, const int *ranks,
                                                      size_t count, weft_group **out);
/* Operations under way fail with WEFT_ERR_CLOSED. Before the agent closes. NULL is a no-op. */
WEFT_API void weft_group_destroy(weft_group *group);

WEFT_API size_t weft_group_size(const weft_group *group);
WEFT_API int weft_group_index(const weft_group *group);                /* this worker's place in it */
WEFT_API int weft_group_member(const weft_group *group, size_t index); /* the rank at a place; -1 past the end */

/* Completes when every member has come. WEFT_ERR_TIMEOUT names the missing ones. A member that timed out has given up this
 * operation; the others' next ones still match. */
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier(weft_group *group, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier_async(weft_group *group, int64_t timeout_ms, weft_future **out);

/* Everybody's values at everybody: `count` lists in the group's order. */
WEFT_API WEFT_NODISCARD weft_status weft_group_all_gather(weft_group *group, weft_args mine, int64_t timeout_ms,
                                                          weft_values **out);
WEFT_API WEFT_NODISCARD weft_status weft_group_all_gather_async(weft_group *group, weft_args mine, int64_t timeout_ms,
                                                                weft_future **out);

WEFT_END_C
#endif
