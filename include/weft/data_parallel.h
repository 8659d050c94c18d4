/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/data_parallel.h - one module on every member of a group, each with its own data: backward passes average the
 * gradients over the members, and do so while they compute.
 *
 *     weft_status train(weft_group *group, weft_module *model, weft_tensor *x, weft_tensor *y)
 *     {
 *         weft_data_parallel *parallel; // all get member 0's parameters
 *         weft_status st = weft_data_parallel_create(group, model, NULL, &parallel, NULL);
 *         if (st)
 *             return st;
 *         weft_optimizer *sgd = weft_sgd_create(weft_module_parameters(model), &(weft_sgd_options){.lr = 0.05});
 *         for (int i = 0; i < 100 && !st; i++) {
 *             weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = (uint64_t)i});
 *             weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
 *             weft_backward(t, weft_cross_entropy(t, weft_module_forward(t, model, x), y));
 *             st = weft_tape_status(t);
 *             if (!st) // with what is alike on all members
 *                 st = weft_optimizer_apply(sgd, weft_tape_gradients(t, weft_module_parameters(model)));
 *             weft_tape_close(t);
 *         }
 *         weft_optimizer_unref(sgd);
 *         weft_data_parallel_unref(parallel);
 *         return st;
 *     }
 *
 * Under a distributed context it is the context that takes the hooks: weft_context_set_hooks(context,
 * weft_data_parallel_hooks(parallel)). The averaged gradients are the context's then, and distributed optimizers step
 * with them.
 *
 * BUCKETS. Gradients are gathered in buckets, and a bucket is reduced as soon as its last gradient is there, while the
 * pass goes on. Parameters are put into them in the order in which their gradients came in the first pass, at member
 * 0. A bucket takes no more once it has reached its size (1 MiB for the first one and 25 MiB for the others, by
 * option), or where the next parameter has another dtype: so it may be larger than its size by one parameter. The
 * gradients that a pass leaves are views of the buckets: a sum is copied once, into its bucket. Their memory is used
 * again by a later pass if nobody holds any of them then. Gradients of embeddings are dense here.
 *
 * FROZEN PARAMETERS (weft_tensor_set_requires_grad) have no place in the buckets. They must be the same on all members
 * when the object is made; weft_data_parallel_create checks it. A parameter that is thawed later would not be averaged.
 * So the next pass or join fails with WEFT_ERR_STATE and the parameter's name on each member that has thawed it, and
 * ends the group for all. To thaw one, call weft_data_parallel_unref, thaw the parameter on all members, and call
 * weft_data_parallel_create for the same group. If the parameter is frozen on some members only, this call fails with
 * its name on all, and the group lives. A parameter that is frozen after the object was made keeps its place. With
 * `find_unused` that parameter has a gradient only if another member computed one. Without `find_unused` a pass that
 * computes no gradient for it fails.
 *
 * BUFFERS of the module, such as a batch norm's statistics, are alike after weft_data_parallel_create, and after
 * weft_data_parallel_join. From then on each member's follow its own data.
 *
 * ALL MEMBERS make it for modules that are alike, and then run the same number of passes; each pass is one after the
 * other. A member whose pass fails ends the group, so that the others do not wait for it: their passes fail with its
 * name, as they do if it dies. Then this object is of no use any more, and weft_group_error says why; weft_group_shrink
 * and another object are the way on.
 *
 * A FORWARD PASS that fails is part of this if weft_backward or weft_dist_backward is called all the same, as above: it
 * finds that the tape has failed, and ends the group with the tape's error. A member that leaves that call out has to say
 * so itself: weft_group_abort(group, weft_tape_error(t)). Else the others wait until their time is up.
 *
 * Source: S. Li and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", PVLDB 13(12),
 * 2020.
 *
 * THREADS. Any thread, one at a time. The group is used by this object alone.
 */
#ifndef WEFT_DATA_PARALLEL_H
#define WEFT_DATA_PARALLEL_H

#include <weft/group.h>
#include <weft/hooks.h>
#include <weft/nn.h>

WEFT_BEGIN_C

/*
 * Reduces a bucket: starts what makes `bucket` (contiguous, one dimension, this member's sums) the average over the
 * group, on every member the same operations, and gives a future that completes when it is. `index`: which one it is.
 * For compression, above all. It is called with a lock of the weft_data_parallel held: it must not wait, nor call
 * functions of that.
 */
typedef weft_status (*weft_bucket_fn)(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                      weft_future **out, void *arg);
/* One of these: gradients travel as bfloat16, which halves what float32 takes, and keeps 8 significant bits of each.
 * `arg` is NULL. */
WEFT_API weft_status weft_bucket_bfloat16(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                          weft_future **out, void *arg);

/* Equal on all members, which is checked: but for timeout_ms and reduce_arg. Of functions `reduce` it is only seen whether
 * there is one, and whether it is weft_bucket_bfloat16. */
typedef struct weft_data_parallel_options {
    size_t bucket_bytes;       /* 0: 25 MiB */
    size_t first_bucket_bytes; /* 0: 1 MiB */
    bool find_unused;          /* a pass may leave parameters out, other ones on each member; else that is an error */
    bool uneven;               /* members may run out of data: see weft_data_parallel_join. Each pass that reduces
                                * then waits, in its first hook, until all have begun it or joined */
    bool divide_by_all;        /* uneven: averages are over all members, also those that ran out */
    weft_bucket_fn reduce;     /* NULL: weft_group_allreduce. Not with `uneven` */
    void *reduce_arg;
    int64_t timeout_ms; /* of each operation of the group, those of create too; 0: the agent's default; WEFT_FOREVER */
} weft_data_parallel_options;

/*
 * Compares options, and names, dtypes and shapes of all parameters and buffers, with the other members', and gives all of
 * them member 0's values. Waits for all members. It references group and module; `options` is copied, NULL is all zero.
 * On failure *error is the caller's to unref; if `error` is NULL, the log has a warning in its place.
 *   - WEFT_ERR_INVALID, at once: a NULL, `uneven` with `reduce`, or a timeout_ms that is none. This member took no part,
 *     and the others wait.
 *   - WEFT_ERR_INVALID: no parameter wants a gradient, or a parameter or buffer is not on the CPU. The group is over, as
 *     after all that follows where nothing else is said: the others do not wait for a member that cannot make it.
 *   - WEFT_ERR_INVALID, on all members: the options or the modules differ; *error names the member and the first option
 *     with both its values, or the first parameter. The group lives. So it does after WEFT_ERR_STATE: a member gave other
 *     values here (weft_group_allgather_values).
 *   - WEFT_ERR_MEMORY, WEFT_ERR_DEADLOCK (this thread cannot wait), and the errors of the group.
 */
WEFT_API WEFT_NODISCARD weft_status weft_data_parallel_create(weft_group *group, weft_module *module,
                                                              const weft_data_parallel_options *options,
                                                              weft_data_parallel **out, weft_error **error);
WEFT_API weft_data_parallel *weft_data_parallel_ref(weft_data_parallel *parallel);
WEFT_API void weft_data_parallel_unref(weft_data_parallel *parallel); /* NULL does nothing */

/* For weft_tape_set_hooks and weft_context_set_hooks. Borrowed; with references of their own the hooks outlast the
 * object, of which they hold one. */
WEFT_API weft_hooks *weft_data_parallel_hooks(weft_data_parallel *parallel);

/*
 * Off: the passes from now on reduce nothing; what they find is added up here, and is part of what the next pass
 * reduces that is begun when it is on again. The gradients that such a pass leaves are this member's own: do not step
 * with them. All members do the same. The last pass before weft_data_parallel_join reduces.
 */
WEFT_API void weft_data_parallel_set_sync(weft_data_parallel *parallel, bool on);

/*
 * The averages of the last pass, for weft_optimizer_apply: one for each parameter of the module, in its order; those
 * that no member used have none. Tapes and contexts have the same. Borrowed, until the next pass or a join begins, or
 * the object goes.
 */
WEFT_API weft_gradients weft_data_parallel_gradients(weft_data_parallel *parallel);

/*
 * With `uneven`: this member has no more data. It takes part in the others' reductions with zeros until all members
 * have called this. Averages are over those who still train, or with divide_by_all over all. Then all get the parameters
 * and buffers of one member that trained to the end, the same bits on all: of those who had the last pass, the one with
 * the lowest index; of member 0 if there was no pass since all joined before. So the next epoch begins with one model.
 *
 * The state of an optimizer is not shared: momentum, averages of squares, counts of steps. A member that stepped less
 * often has another state, so its model would differ from the others' in the next epoch. Make a new optimizer on all
 * members then, or give all of them the state of the one with most steps: docs/data-parallel.md. SGD without momentum
 * has none.
 *
 * After a failure the group is over, and the module has this member's values or all of the last one's; a mixture after
 * WEFT_ERR_MEMORY alone.
 *   - WEFT_ERR_INVALID: NULL.
 *   - WEFT_ERR_STATE: a parameter was thawed after the object was made. The group is over, and its error names it.
 *   - WEFT_ERR_STATE, at once: without `uneven`; or there are sums of passes that reduced nothing, which would be lost
 *     (weft_data_parallel_set_sync). The group lives, and the others wait. Run a pass that reduces them, step with its
 *     averages, and join then. With no data left that may be a pass over any, with the loss times 0. The log says which.
 *   - The errors of the group.
 */
WEFT_API WEFT_NODISCARD weft_status weft_data_parallel_join(weft_data_parallel *parallel);

WEFT_END_C
#endif
