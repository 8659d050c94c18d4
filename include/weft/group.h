/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/group.h - groups of workers, and their collective operations: allreduce, broadcast, barrier and others.
 *
 * All members open the group together, with the same name and the same ranks in the same order, and call all its
 * operations in the same order. A member is identified by its index, its place in the list of ranks.
 *
 *     weft_status average(weft_agent *agent, weft_tensor *gradient) // every worker of the job calls this
 *     {
 *         weft_group *all = NULL;
 *         weft_error *error = NULL;
 *         weft_status status = weft_group_open(agent, "gradients", NULL, 0, 0, &all, &error);
 *         if (!status)
 *             status = weft_group_allreduce(all, gradient, WEFT_OP_AVG, 0); // in place: the same bits on every member
 *         if (status)
 *             weft_error_print(error ? error : weft_group_error(all), stderr); // says which member is missing
 *         weft_error_unref(error);
 *         weft_group_close(all);
 *         return status;
 *     }
 *
 * A function with _async starts the operation, and returns a future that completes when this worker's part is done.
 * The function without _async waits until then. Operations of different groups are independent. Operations of one
 * group may overlap. A member may be at most 64 operations ahead of a member to which it sends, and in shared memory
 * (docs/groups.md) at most one operation ahead of any member. Beyond that its operations wait.
 *
 * TENSORS of an operation are on the CPU. Dtypes and element counts must be equal on all members (weft checks this);
 * shapes may differ. The operation references its tensors until it has ended. Until then inputs must not be changed,
 * and outputs must not be changed or read. After a failure the contents of outputs are undefined. An input and an
 * output must not overlap (WEFT_ERR_INVALID), unless the function allows it. Non-contiguous tensors and parameters
 * of modules are copied, so these may overlap. Tensors without elements are allowed. The operation fails with
 * WEFT_ERR_INVALID if memory of a tensor cannot be accessed when it starts. If the memory is lost later, this
 * process may get SIGSEGV or SIGBUS, because weft computes with it.
 *
 * ERRORS. A call with a wrong argument (a NULL, a tensor on a device, no such member) is rejected at once and does
 * not take part. The log has a warning with the function's name without _async. Any other failure ends the group,
 * unless the description of the function says otherwise. All operations in flight then fail on every member, later
 * ones are rejected with the same error, and weft_group_error returns it.
 *   WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT: a member is gone; the error names it.
 *   WEFT_ERR_TIMEOUT: the message names the members that are missing.
 *   WEFT_ERR_STATE: two members called different operations, dtypes, counts or algorithms; the message says what
 *   each of the two called.
 *   WEFT_ERR_STATE, at once: a function of a carrier called an operation of the group that it carries. The group
 *   continues.
 *   WEFT_ERR_CANCELLED: a member cancelled a future, or closed the group with operations in flight.
 *   WEFT_ERR_BUSY: the memory_budget_bytes of a member are too few for the messages of operations that it has not
 *   called yet, or for the values of all members (weft_group_allgather_values).
 *   WEFT_ERR_DEADLOCK, from functions that wait: this thread cannot wait (weft_future_wait). The call took no part in
 *   an operation.
 *   WEFT_ERR_UNREACHABLE, WEFT_ERR_MEMORY, WEFT_ERR_CLOSED, WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST.
 *
 * If a member dies or aborts the group after it has sent its part, the operation may complete on some members and
 * fail on others. The next operation fails on all. weft_group_shrink makes a group of the living members
 * (docs/groups.md).
 *
 * Data that arrived before a member left or died is delivered. A recv succeeds if its tensor has arrived. So does an
 * operation in which this member only receives (broadcast, scatter; reduce and gather at the root), if everything
 * that it needs has arrived. All other operations fail.
 *
 * THREADS. Any thread may call these functions at any time. Exception: while weft_group_close runs, other threads
 * may not call a function of that group. A thread that waits for an operation when weft_group_close is called may
 * continue to wait, and gets WEFT_ERR_CANCELLED. Threads that use groups at the same time need one group each,
 * because all members must call operations in the same order.
 *
 * timeout_ms: 0 is the agent's default for calls, WEFT_FOREVER is no limit. The limit includes the time that an
 * operation waits for earlier ones.
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

/* ---- Groups ------------------------------------------------------------------------------------- */

/*
 * Opens a group, together with the other members: every member calls the function, with the same name and the same
 * ranks, and it succeeds when all have called it. *out receives the group, on success only; close it with
 * weft_group_close.
 *
 * `name` has 1..64 bytes of [A-Za-z0-9-_:]. At most one open group of this worker has that name; one that has ended
 * does not count. `ranks` lists the members, this worker included. NULL means all workers of a static job, or all
 * currently living workers of an elastic job, in the order of their ranks; `count` is then ignored. In an elastic
 * job workers may have heard of different living workers: NULL then means the list of rank 0, which the others take.
 *
 * ORDER. Members that open several groups open them in the same order. If one member opens A and then B, and another
 * B and then A, each waits for the other until its limit.
 *
 * FAILURE. Either all members get the group, or none keeps it. If the function has succeeded on one member and then
 * fails on another, the group of the first ends with the same error, at the latest in its first operation. Nothing
 * of a failed attempt is remembered: all members call the function again. When the time limit of the member with the
 * lowest rank passes, the waiting calls of the others fail too, even if they have time left. The time limit of
 * another member ends only that member's call. A repeated call can therefore fail early several times: repeat it
 * until a deadline of the program, not a fixed number of times. The function may return up to a second after its
 * limit. weft_agent_wake does not end it.
 *
 * In an elastic job the function waits for ranks of which this worker has not heard, within its limit. If this
 * worker believes that the worker of a rank has died or left, the function asks the store, within the limit, whether
 * a new worker has taken the rank.
 *
 * timeout_ms: 0 is the agent's default for calls, WEFT_FOREVER is no limit.
 *
 * *error receives the detail of a failure; you release it. If `error` is NULL, the log has a warning. Errors:
 *   WEFT_ERR_TIMEOUT: *error names the members for which the call has waited: on the member with the lowest rank all
 *   missing ones, on the others often only the member with the lowest rank.
 *   WEFT_ERR_INVALID: an argument, or a rule in WEFT_ALGORITHMS (weft_group_set_algorithms). Also, on all members,
 *   if a member gave other ranks; *error names that member. The code is WEFT_ERR_TIMEOUT instead if the lists have
 *   other lowest ranks, or if not all members have called in time.
 *   WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT, WEFT_ERR_UNREACHABLE: a member; *error names it.
 *   WEFT_ERR_NOT_FOUND: no such rank, or this worker has not heard of a worker with it in time.
 *   WEFT_ERR_EXISTS: the name is in use, or another thread is opening a group of that name.
 *   WEFT_ERR_BUSY: this worker opens more than 64 groups at once that wait for the same other worker.
 *   WEFT_ERR_DEADLOCK: this thread cannot wait (weft_future_wait). Most threads that run inline handlers cannot.
 *   WEFT_ERR_STATE: in a child of fork(2).
 *   WEFT_ERR_CLOSED, WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_open(weft_agent *agent, const char *name, const int *ranks, size_t count,
                                                    int64_t timeout_ms, weft_group **out, weft_error **error);
/* Frees the group. If operations are in flight here, the group ends on all members (WEFT_ERR_CANCELLED); their
 * futures complete when weft no longer uses their tensors. Allowed at any time, even after the agent was closed.
 * NULL does nothing. */
WEFT_API void weft_group_close(weft_group *group);

WEFT_API size_t weft_group_size(const weft_group *group);              /* the number of members */
WEFT_API int weft_group_index(const weft_group *group);                /* this worker's index */
WEFT_API int weft_group_member(const weft_group *group, size_t index); /* the rank at an index; -1 past the end */
/* Why the group ended; NULL if it has not, or if `group` is NULL. Borrowed until the group is closed. */
WEFT_API const weft_error *weft_group_error(const weft_group *group);

/* Ends the group on all members: operations in flight fail, and later ones are rejected. Call it on a member that
 * cannot take part in an operation for which the others wait. `why` is copied; NULL: WEFT_ERR_CANCELLED. */
WEFT_API void weft_group_abort(weft_group *group, const weft_error *why);

/*
 * Opens a group of the living members of `group`, in the same order, with the same name and the same rules for
 * algorithms, without a carrier. All living members must call it; it returns when all have called it. It ends the
 * old group, which you must still close. A member that dies meanwhile is left out. *error receives the detail of a
 * failure, as in weft_group_open. Errors:
 *   WEFT_ERR_TIMEOUT: a living member did not call; *error names it. The call may be repeated, on all members.
 *   WEFT_ERR_INVALID: a NULL, or an invalid timeout_ms.
 *   WEFT_ERR_EXISTS: the group that an earlier call made is still open.
 *   The errors of weft_group_open.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_shrink(weft_group *group, int64_t timeout_ms, weft_group **out,
                                                      weft_error **error);

/* ---- Operations --------------------------------------------------------------------------------- */

/* A barrier: completes when every member has called it. */
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier(weft_group *group, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_barrier_async(weft_group *group, int64_t timeout_ms, weft_future **out);

/* Sets `tensor`, on every member, to the reduction `how` (such as WEFT_OP_SUM) of all members' tensors; the same
 * bits on all. */
WEFT_API WEFT_NODISCARD weft_status weft_group_allreduce(weft_group *group, weft_tensor *tensor, weft_op how,
                                                         int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_allreduce_async(weft_group *group, weft_tensor *tensor, weft_op how,
                                                               int64_t timeout_ms, weft_future **out);

/* Sets `tensor`, on member `root` only, to the reduction `how` of all members' tensors. */
WEFT_API WEFT_NODISCARD weft_status weft_group_reduce(weft_group *group, weft_tensor *tensor, weft_op how, size_t root,
                                                      int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_reduce_async(weft_group *group, weft_tensor *tensor, weft_op how,
                                                            size_t root, int64_t timeout_ms, weft_future **out);

/* Sets `tensor`, on every member, to that of member `root`. */
WEFT_API WEFT_NODISCARD weft_status weft_group_broadcast(weft_group *group, weft_tensor *tensor, size_t root,
                                                         int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_broadcast_async(weft_group *group, weft_tensor *tensor, size_t root,
                                                               int64_t timeout_ms, weft_future **out);

/* Sets `output`, on every member, to the inputs of all members in the order of the group. `output` has as many
 * elements as all inputs together. `input` may be this member's part of `output`. */
WEFT_API WEFT_NODISCARD weft_status weft_group_allgather(weft_group *group, const weft_tensor *input,
                                                         weft_tensor *output, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_allgather_async(weft_group *group, const weft_tensor *input,
                                                               weft_tensor *output, int64_t timeout_ms,
                                                               weft_future **out);

/* Sets `output` to this member's part of the reduction `how` of all inputs. An input has one part for each member,
 * in the order of the group. */
WEFT_API WEFT_NODISCARD weft_status weft_group_reduce_scatter(weft_group *group, const weft_tensor *input,
                                                              weft_tensor *output, weft_op how, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_reduce_scatter_async(weft_group *group, const weft_tensor *input,
                                                                    weft_tensor *output, weft_op how,
                                                                    int64_t timeout_ms, weft_future **out);

/* Gathers as weft_group_allgather, on member `root` only. The others' `output` is ignored and may be NULL. */
WEFT_API WEFT_NODISCARD weft_status weft_group_gather(weft_group *group, const weft_tensor *input, weft_tensor *output,
                                                      size_t root, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_gather_async(weft_group *group, const weft_tensor *input,
                                                            weft_tensor *output, size_t root, int64_t timeout_ms,
                                                            weft_future **out);

/* Sets `output` on member i to part i of the input of member `root`. The others' `input` is ignored and may be NULL.
 * At the root `output` may be its own part of `input`. */
WEFT_API WEFT_NODISCARD weft_status weft_group_scatter(weft_group *group, const weft_tensor *input, weft_tensor *output,
                                                       size_t root, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_scatter_async(weft_group *group, const weft_tensor *input,
                                                             weft_tensor *output, size_t root, int64_t timeout_ms,
                                                             weft_future **out);

/* Sets part j of `output` on member i to part i of the input of member j. `input` and `output` have the same number
 * of elements, a multiple of the number of members. */
WEFT_API WEFT_NODISCARD weft_status weft_group_all_to_all(weft_group *group, const weft_tensor *input,
                                                          weft_tensor *output, int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_all_to_all_async(weft_group *group, const weft_tensor *input,
                                                                weft_tensor *output, int64_t timeout_ms,
                                                                weft_future **out);

/* Point to point: the n-th send to a member matches that member's n-th recv from this one. Only these two members
 * take part, and the order relative to other operations does not matter. A send of up to 3,584 bytes may complete
 * before the recv is called; the tensor is then received even if the sender has left the job. Sending to oneself:
 * WEFT_ERR_INVALID. */
WEFT_API WEFT_NODISCARD weft_status weft_group_send(weft_group *group, const weft_tensor *tensor, size_t to,
                                                    int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_send_async(weft_group *group, const weft_tensor *tensor, size_t to,
                                                          int64_t timeout_ms, weft_future **out);
WEFT_API WEFT_NODISCARD weft_status weft_group_recv(weft_group *group, weft_tensor *tensor, size_t from,
                                                    int64_t timeout_ms);
WEFT_API WEFT_NODISCARD weft_status weft_group_recv_async(weft_group *group, weft_tensor *tensor, size_t from,
                                                          int64_t timeout_ms, weft_future **out);

/*
 * Gives every member the values of all: a list of lists, one for each member, in the order of the group. The values
 * of members may differ in type and size. Further errors:
 *   WEFT_ERR_TOO_LARGE, on every member: the values of one member, or of all together, exceed the limits of one call
 *   (weft/value.h). The group continues.
 *   WEFT_ERR_BUSY: the values do not fit the memory_budget_bytes of a member. This ends the group.
 *   WEFT_ERR_UNSUPPORTED, at once: `mine` contains a remote reference. Send references in calls instead.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_allgather_values(weft_group *group, weft_args_in mine,
                                                                int64_t timeout_ms, weft_values **out);
WEFT_API WEFT_NODISCARD weft_status weft_group_allgather_values_async(weft_group *group, weft_args_in mine,
                                                                      int64_t timeout_ms, weft_future **out);

/* ---- Algorithms --------------------------------------------------------------------------------- */

/*
 * Sets rules that select the algorithm of an operation by the number of members and the bytes of one member's part.
 * They precede weft's own table. The part of an allreduce, a reduce or a broadcast is the whole tensor. The other
 * operations have a tensor with one part for each member. A rule is "OPERATION MEMBERS BYTES ALGORITHM; ...". It
 * applies to groups of at most MEMBERS members and parts of at most BYTES bytes; * is any number. The first such
 * rule is used. All members need the same rules. The environment variable WEFT_ALGORITHMS applies to groups without
 * rules of their own. Call the function before the first operation.
 *     weft_group_set_algorithms(group, "allreduce 4 65536 recursive_doubling; allreduce * * ring");
 * OPERATION, ALGORITHM:
 *     barrier          dissemination, two_level, shared
 *     allreduce        recursive_doubling, rabenseifner, ring, tree, two_level, shared
 *     allgather        direct, bruck, ring, shared
 *     reduce_scatter   direct, ring, shared
 *     all_to_all       direct, shared
 *
 * With a root:
 *     reduce, broadcast   tree, chain, two_level, shared
 *     gather, scatter     direct, two_level, shared
 *
 * weft_group_print_algorithms prints the whole table of this group as such rules, one per line.
 *
 * WEFT_ERR_INVALID (the log names the word), WEFT_ERR_STATE (an operation has begun), WEFT_ERR_CLOSED,
 * WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_set_algorithms(weft_group *group, const char *rules);
WEFT_API void weft_group_print_algorithms(const weft_group *group, FILE *to);

/* ---- Operations carried by others --------------------------------------------------------------- */

/*
 * A carrier: functions that perform this group's operations in place of weft, for example with MPI. Each
 * function gets addresses of host memory, performs the whole operation, and returns when it is complete. `count` is
 * the number of elements of one member's part, and may be 0. With WEFT_OP_AVG the function also divides. If a
 * function is NULL, weft performs that operation.
 *
 * The functions of one group are called one at a time, in the order in which the operations were started, on a
 * thread of weft. Functions of overlapping groups run at the same time, up to 256 of them, and may wait for each
 * other. A function must not call an operation of its own group (WEFT_ERR_STATE). A function that returns a failure
 * ends the group. When the group ends for another reason, such as a time limit, later operations are rejected, but a
 * running function is not interrupted: the future of its operation completes when it returns.
 */
typedef struct weft_group_carrier {
    weft_status (*barrier)(void *arg);
    weft_status (*allreduce)(void *arg, void *data, size_t count, weft_dtype dtype, weft_op how); /* in place */
    /* In place at the root. On other members `data` is the program's memory and must not be changed. */
    weft_status (*reduce)(void *arg, void *data, size_t count, weft_dtype dtype, weft_op how, size_t root);
    weft_status (*broadcast)(void *arg, void *data, size_t count, weft_dtype dtype, size_t root);
    /* out: `count` elements of each member. `in` may be this member's part of `out`. */
    weft_status (*allgather)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype);
    /* in: `count` elements for each member. */
    weft_status (*reduce_scatter)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype, weft_op how);
    /* As allgather, at the root; `out` is NULL on other members. */
    weft_status (*gather)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype, size_t root);
    /* At the root `out` may be its own part of `in`; `in` is NULL on other members. */
    weft_status (*scatter)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype, size_t root);
    weft_status (*all_to_all)(void *arg, const void *in, void *out, size_t count, weft_dtype dtype);
    /* The function may wait for the receiver's recv. Later operations of this group wait for the send, so if members
     * send in a circle, not all of them may call send first. */
    weft_status (*send)(void *arg, const void *data, size_t count, weft_dtype dtype, size_t to);
    weft_status (*recv)(void *arg, void *data, size_t count, weft_dtype dtype, size_t from);
} weft_group_carrier;

/*
 * Sets the carrier of a group, before its first operation. `carrier` is copied. Free `arg` only in `drop`.
 * drop(arg), if `drop` is not NULL, runs once:
 *   At once, if the function fails, or when another carrier replaces this one.
 *   Otherwise after weft_group_close, on the thread that releases the group last, which may be a thread of weft. If
 *   the group was closed before the agent, `drop` runs before weft_agent_close returns.
 * WEFT_ERR_INVALID: a NULL. WEFT_ERR_STATE: an operation has begun. The log explains both. WEFT_ERR_CLOSED,
 * WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_group_set_carrier_sized(weft_group *group, const weft_group_carrier *carrier,
                                                                 size_t size, void *arg, weft_drop_fn drop);
static inline WEFT_NODISCARD weft_status weft_group_set_carrier(weft_group *group, const weft_group_carrier *carrier,
                                                                void *arg, weft_drop_fn drop)
{
    return weft_group_set_carrier_sized(group, carrier, sizeof(*carrier), arg, drop);
}

WEFT_END_C
#endif
