/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/group.h - groups of workers, and what all members of one do together: allreduce, broadcast, barrier and others.
 *
 * Every member makes the group, with the same name and the same ranks in the same order, and takes part in all its
 * operations, in the same order. Making a group sends nothing. A member is named by its place in the list, its index.
 *
 *     weft_status average(weft_agent *agent, weft_tensor *gradient) // every worker of the job calls this
 *     {
 *         weft_group *all = NULL;
 *         weft_status st = weft_group_create(agent, "gradients", NULL, 0, &all);
 *         if (!st)
 *             st = weft_group_allreduce(all, gradient, WEFT_AVG, 0); // in place: the same bits on every member
 *         if (st)
 *             weft_error_print(weft_group_error(all), stderr); // says which member is missing
 *         weft_group_destroy(all);
 *         return st;
 *     }
 *
 * Each function with _async starts the operation, and gives a future that completes when this worker's part is done;
 * the one without it waits. Operations of different groups do not disturb each other, and those of one group may
 * overlap: a member may be 64 operations ahead of one to whom it sends, further ones wait their turn.
 *
 * TENSORS of an operation are on the CPU. Their dtypes and element counts are the same on all members, which is
 * checked; shapes need not be. Until the operation has ended its tensors must not be changed, nor read where they
 * receive a result; they are referenced meanwhile. After a failure the contents of what was to receive a result are
 * undefined. An input and an output do not overlap (WEFT_ERR_INVALID), but where it is said that they may. Tensors that
 * are not contiguous, and parameters of modules, are copied, and so may overlap. Tensors without elements are fine.
 *
 * ERRORS. A call with a wrong argument (a NULL, a tensor on a device, no such member) is refused at once and takes no
 * part. A warning in the log names the function, without its _async. Any other failure ends the GROUP: the operation
 * and all others under way fail on every member, all later ones are refused with the same error, and weft_group_error
 * tells it.
 *   - WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT: a member is gone; the error names it.
 *   - WEFT_ERR_TIMEOUT: the message names the members that did not come.
 *   - WEFT_ERR_STATE: the members did not call the same operation, or with other dtypes, counts or algorithms; the
 *     message says what each had.
 *   - WEFT_ERR_STATE, at once: a carrier's function called an operation of its own group. The group goes on.
 *   - WEFT_ERR_INVALID: the lists of ranks differ.
 *   - WEFT_ERR_CANCELLED: a member cancelled a future, or destroyed the group with operations under way.
 *   - WEFT_ERR_BUSY: what came early, or the values of all, do not fit a member's memory_budget_bytes.
 *   - WEFT_ERR_UNREACHABLE, WEFT_ERR_MEMORY, WEFT_ERR_CLOSED, WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST.
 * An operation may have completed on some members when it fails on others: a member died after it had given its part,
 * or one aborted the group right after it. The next one fails on all. weft_group_shrink makes a group of those who
 * live. docs/groups.md says more.
 *
 * Data that arrived before a member left or died is delivered. A recv still succeeds if the tensor is here. So does
 * another operation in which this member only receives (a broadcast, a scatter; a reduce or a gather at the root), if
 * all that it needs is here. All other operations fail, as said above.
 *
 * THREADS. Any thread may call these functions at any time, with one exception: while weft_group_destroy runs, no other
 * thread may be in a function of that group. Only one that waits in an operation may: it returns WEFT_ERR_CANCELLED.
 * Since all members must call in the same order, threads that use groups at the same time need a group each.
 * WEFT_ERR_DEADLOCK, from functions that wait: this thread cannot wait (weft_future_wait); the call took no part.
 *
 * timeout_ms: 0 is the agent's default for calls, WEFT_FOREVER no limit. The time in which it waits its turn counts.
 */
#ifndef WEFT_GROUP_H
#define WEFT_GROUP_H

#include <weft/agent.h>
#include <weft/future.h>
#include <weft/reduce.h>
#include <weft/tensor.h>
#include <weft/value.h>

#include <stdio.h>

WEFT_BEGIN_C

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/*
 * Makes this worker's side of a group. `ranks` lists the members, of which this worker is one; NULL: all workers of a
 * static job, or all that live at this moment in an elastic one, in the order of their ranks; `count` is not looked at
 * then. In an elastic job the function waits for ranks that no worker has held yet, because the news of a worker may
 * arrive late. It waits at most call_timeout_ms of the agent (forever, if that is WEFT_FOREVER). `name` has 1..64 bytes
 * of [A-Za-z0-9-_:], and this worker has no other open group of that name. When all members have destroyed a group they
 * may make another of the same name. If weft_group_create failed on some members, their next group of that name fails
 * at once, or when a query or a time limit shows that the others have destroyed it; weft_group_error says why. Then all
 * members destroy the group and create it again: the function then queries the other members, and waits for their
 * answers for at most a second. In an inline handler (WEFT_INLINE) it neither waits for ranks nor queries. The log has
 * a warning that says which argument is wrong. WEFT_ERR_INVALID (an argument, or a rule in WEFT_ALGORITHMS: see below),
 * WEFT_ERR_NOT_FOUND (no such rank, or no worker has joined with it in that time), WEFT_ERR_EXISTS (the name),
 * WEFT_ERR_STATE (in a child of fork(2)), WEFT_ERR_CLOSED, WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_create(weft_agent *agent, const char *name, const int *ranks,
                                                      size_t count, weft_group **out);
/* Frees the group. If operations are under way here, the group is over for all (WEFT_ERR_CANCELLED); their futures
 * complete once nobody touches their tensors any more. Allowed at any time, also after the agent was closed. NULL does
 * nothing. */
WEFT_API void weft_group_destroy(weft_group *group);

WEFT_API size_t weft_group_size(const weft_group *group);
WEFT_API int weft_group_index(const weft_group *group);                /* this worker's place in it */
WEFT_API int weft_group_member(const weft_group *group, size_t index); /* the rank at a place; -1 past the end */
/* Why the group is over; NULL: it is not, or `group` is NULL. Borrowed, until the group is destroyed. */
WEFT_API const weft_error *weft_group_error(const weft_group *group);

/* Ends the group on all members, for that reason: what is under way fails, and nothing is taken any more. Call it on
 * a member that cannot take part in an operation for which the others will wait. `why` is copied; NULL:
 * WEFT_ERR_CANCELLED. */
WEFT_API void weft_group_abort(weft_group *group, const weft_error *why);

/*
 * Makes a group of those members of `group` that live, in the same order and with the same name; all of these call it,
 * and it returns when all have. The old group is over with it, if it was not before, and stays to be destroyed. A
 * member that dies meanwhile is left out. The group has the old one's rules for algorithms, and no carrier.
 * WEFT_ERR_TIMEOUT (who lives did not come; the log says who), WEFT_ERR_INVALID (a NULL, or timeout_ms), and the errors
 * of weft_group_create. After WEFT_ERR_TIMEOUT it may be called again. Who comes when the others' limit has passed gets
 * WEFT_ERR_TIMEOUT at once, too, and meets them in its next call. After success it gives WEFT_ERR_EXISTS as long as the
 * group that it made is open.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_shrink(weft_group *group, int64_t timeout_ms, weft_group **out);

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* A barrier: completes when every member has called it. */
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier(weft_group *group, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier_async(weft_group *group, int64_t timeout_ms, weft_future **out);

/* tensor, on every member: the sum (or what `how` says) of all members' tensors; the same bits on all. */
WEFT_API WEFT_NODISCARD weft_status weft_group_allreduce(weft_group *group, weft_tensor *tensor, weft_reduce how,
                                                         int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_allreduce_async(weft_group *group, weft_tensor *tensor, weft_reduce how,
                                                               int64_t timeout_ms, weft_future **out);

/* tensor, on member `root` alone: the sum of all members' tensors; the others' stay as they are. */
WEFT_API WEFT_NODISCARD weft_status weft_group_reduce(weft_group *group, weft_tensor *tensor, weft_reduce how,
                                                      size_t root, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_reduce_async(weft_group *group, weft_tensor *tensor, weft_reduce how,
                                                            size_t root, int64_t timeout_ms, weft_future **out);

/* tensor, on every member: that of member `root`. */
WEFT_API WEFT_NODISCARD weft_status weft_group_broadcast(weft_group *group, weft_tensor *tensor, size_t root,
                                                         int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_broadcast_async(weft_group *group, weft_tensor *tensor, size_t root,
                                                               int64_t timeout_ms, weft_future **out);

/* output, on every member: the inputs of all, one behind the other in the order of the group; it has as many times the
 * elements of `input` as there are members. `input` may be this member's part of `output`. */
WEFT_API WEFT_NODISCARD weft_status weft_group_allgather(weft_group *group, const weft_tensor *input,
                                                         weft_tensor *output, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_allgather_async(weft_group *group, const weft_tensor *input,
                                                               weft_tensor *output, int64_t timeout_ms,
                                                               weft_future **out);

/* output: this member's part of the sum of all inputs; part i of an input, of as many as there are members, is for
 * member i. */
WEFT_API WEFT_NODISCARD weft_status weft_group_reduce_scatter(weft_group *group, const weft_tensor *input,
                                                              weft_tensor *output, weft_reduce how, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_reduce_scatter_async(weft_group *group, const weft_tensor *input,
                                                                    weft_tensor *output, weft_reduce how,
                                                                    int64_t timeout_ms, weft_future **out);

/* output, on member `root`: as of an allgather. The others' output is not looked at, and may be NULL. */
WEFT_API WEFT_NODISCARD weft_status weft_group_gather(weft_group *group, const weft_tensor *input, weft_tensor *output,
                                                      size_t root, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_gather_async(weft_group *group, const weft_tensor *input,
                                                            weft_tensor *output, size_t root, int64_t timeout_ms,
                                                            weft_future **out);

/* output: part i of the input of member `root` on member i. The others' input is not looked at, and may be NULL. At the
 * root `output` may be its own part of `input`. */
WEFT_API WEFT_NODISCARD weft_status weft_group_scatter(weft_group *group, const weft_tensor *input, weft_tensor *output,
                                                       size_t root, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_scatter_async(weft_group *group, const weft_tensor *input,
                                                             weft_tensor *output, size_t root, int64_t timeout_ms,
                                                             weft_future **out);

/* Part j of output on member i: part i of the input of member j. They have as many elements, a multiple of the count of
 * members. */
WEFT_API WEFT_NODISCARD weft_status weft_group_all_to_all(weft_group *group, const weft_tensor *input,
                                                          weft_tensor *output, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_all_to_all_async(weft_group *group, const weft_tensor *input,
                                                                weft_tensor *output, int64_t timeout_ms,
                                                                weft_future **out);

/* From one member to another: the n-th send to a member meets its n-th recv from this one. These two alone take part,
 * whatever order other operations have. A send of up to 3,584 bytes may end before the recv is called; the tensor is
 * received also if the sender has left the job by then. Nobody sends to itself: WEFT_ERR_INVALID. */
WEFT_API WEFT_NODISCARD weft_status weft_group_send(weft_group *group, const weft_tensor *tensor, size_t to,
                                                    int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_send_async(weft_group *group, const weft_tensor *tensor, size_t to,
                                                          int64_t timeout_ms, weft_future **out);
WEFT_API WEFT_NODISCARD weft_status weft_group_recv(weft_group *group, weft_tensor *tensor, size_t from,
                                                    int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_recv_async(weft_group *group, weft_tensor *tensor, size_t from,
                                                          int64_t timeout_ms, weft_future **out);

/*
 * Gives every member the values of all: the result is a list of lists, one for each member, in the order of the
 * group. The members' values may differ in kind and size. Besides the errors above:
 *   - WEFT_ERR_TOO_LARGE, on every member: the values of one member, or those of all members together, exceed the
 *     limits of one call (weft/value.h). The group goes on.
 *   - WEFT_ERR_BUSY: as they come they do not fit the memory_budget_bytes of a member. This ends the group.
 *   - WEFT_ERR_UNSUPPORTED, at once: `mine` has a remote reference; pass these on in calls.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_allgather_values(weft_group *group, weft_args_in mine,
                                                                int64_t timeout_ms, weft_values **out);
WEFT_API WEFT_NODISCARD weft_status weft_group_allgather_values_async(weft_group *group, weft_args_in mine,
                                                                      int64_t timeout_ms, weft_future **out);

/* ---- Algorithms -------------------------------------------------------------------------------------------------- */

/*
 * Which algorithm carries an operation depends on the number of members and the bytes of one member's part, by a table
 * that was measured. A part is the tensor of an allreduce, a reduce or a broadcast; the longer tensor of the others has
 * as many parts as there are members. `rules` go before the table: "OPERATION MEMBERS BYTES ALGORITHM; ...", where
 * MEMBERS and BYTES are the most for which the rule holds, or *; the first rule that fits counts. All members need the
 * same rules. The environment's WEFT_ALGORITHMS is taken for groups that were not given any. Call it before the first
 * operation.
 *     weft_group_set_algorithms(group, "allreduce 4 65536 recursive_doubling; allreduce * * ring");
 * The words for OPERATION and ALGORITHM:
 *     barrier                      dissemination
 *     allreduce                    recursive_doubling, rabenseifner, ring, tree, two_level
 *     reduce, broadcast            tree, chain, two_level
 *     allgather                    direct, bruck, ring
 *     reduce_scatter               direct, ring
 *     gather, scatter, all_to_all  direct
 * weft_group_print_algorithms prints the whole table that holds for this group, as such rules, a line each.
 * WEFT_ERR_INVALID: the log says which word; WEFT_ERR_STATE: it is too late; WEFT_ERR_CLOSED, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_set_algorithms(weft_group *group, const char *rules);
WEFT_API void weft_group_print_algorithms(const weft_group *group, FILE *to);

/* ---- Operations carried by others -------------------------------------------------------------------------------- */

/*
 * A table of functions that carry this group's operations in place of weft, for example by the MPI or NCCL of the
 * machine. Each gets plain memory, does the whole operation, and returns when it is done. They are called in the order
 * in which the operations were started, one at a time for each group, on a thread of weft's (of groups that overlap,
 * several at once, up to 256), and may wait there for each other. An operation of the same group that such a function
 * calls is refused with WEFT_ERR_STATE, because it would wait for itself. A failure that they return ends the group.
 * When a time limit passes, or the group ends for another reason, the members hear of it and later operations are
 * refused; but a function that runs is not interrupted, and the future of its operation completes when it returns.
 *
 * A NULL slot: weft carries that operation itself. `count` is the elements of one member's part, and may be 0. With
 * WEFT_AVG the function also divides.
 */
typedef struct weft_group_carrier {
    weft_status (*barrier)(void *arg);
    weft_status (*allreduce)(void *arg, void *data, size_t count, weft_dtype dtype, weft_reduce how); /* in place */
    /* In place at the root. The others' `data` is the user's own memory, and has to stay as it is. */
    weft_status (*reduce)(void *arg, void *data, size_t count, weft_dtype dtype, weft_reduce how, size_t root);
    weft_status (*broadcast)(void *arg, void *data, size_t count, weft_dtype dtype, size_t root);
    /* out: `count` elements of each member. `in` may be this member's place in it. */
    weft_status (*allgather)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype);
    /* in: `count` elements for each member. */
    weft_status (*reduce_scatter)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype,
                                  weft_reduce how);
    /* As allgather, at the root; `out` of the others is NULL. */
    weft_status (*gather)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype, size_t root);
    /* At the root `out` may be its own place in `in`; `in` of the others is NULL. */
    weft_status (*scatter)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype, size_t root);
    weft_status (*all_to_all)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype);
    /* May wait for the other's recv. All that this group carries waits behind it: members in a circle must not all
     * call send first. */
    weft_status (*send)(void *arg, const void *data, size_t count, weft_dtype dtype, size_t to);
    weft_status (*recv)(void *arg, void *data, size_t count, weft_dtype dtype, size_t from);
} weft_group_carrier;

/*
 * `carrier` is copied. drop(arg), if not NULL, runs at once on failure, or when another carrier takes this one's place,
 * else when the group is gone: on the thread that lets go of it last, which may be a thread of weft's, some time after
 * weft_group_destroy, but before the agent has closed. So free `arg` there, and nowhere else. Call this before the first
 * operation. WEFT_ERR_INVALID: a NULL; WEFT_ERR_STATE: it is too late (the log says both); WEFT_ERR_CLOSED,
 * WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_set_carrier(weft_group *group, const weft_group_carrier *carrier,
                                                           void *arg, weft_drop_fn drop);

WEFT_END_C
#endif
