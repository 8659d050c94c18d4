/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/data_parallel.h - data parallelism: one module on every member of a group, each with its own data. Backward
 * passes average the gradients over the members while they compute.
 *
 *     weft_status train(weft_group *group, weft_module *model, weft_tensor *x, weft_tensor *y)
 *     {
 *         weft_data_parallel *parallel; // all get member 0's parameters
 *         weft_status status = weft_data_parallel_create(group, model, NULL, &parallel, NULL);
 *         if (status)
 *             return status;
 *         weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 0.05};
 *         weft_optimizer *sgd = NULL;
 *         status = weft_optimizer_create(weft_module_parameters(model), &spec, &sgd, NULL);
 *         for (int i = 0; i < 100 && !status; i++) {
 *             weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = (uint64_t)i});
 *             weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
 *             weft_backward(t, weft_cross_entropy(t, weft_module_forward(t, model, x), y));
 *             status = weft_tape_status(t);
 *             if (!status) // with the averages
 *                 status = weft_optimizer_apply(sgd, weft_tape_gradients(t, weft_module_parameters(model)));
 *             weft_tape_close(t);
 *         }
 *         weft_optimizer_unref(sgd);
 *         weft_data_parallel_unref(parallel);
 *         return status;
 *     }
 *
 * Under a distributed context set the hooks on the context: weft_context_set_hooks(context,
 * weft_data_parallel_hooks(parallel)). The context then has the averaged gradients, and distributed optimizers step
 * with them.
 *
 * BUCKETS. Gradients are collected in buckets. A bucket is reduced as soon as its last gradient is computed, while the
 * pass continues. Parameters are in the buckets in the order in which their gradients were computed in the first pass
 * of member 0. A bucket is full when it reaches its size (an option; by default 1 MiB for the first bucket, 25 MiB for
 * others), or when the next parameter has another dtype. So a bucket may exceed its size by one parameter. The
 * resulting gradients are views of the buckets. A later pass reuses the memory of a bucket if nothing else holds the
 * bucket's gradients. Gradients of embeddings are dense here.
 *
 * FROZEN PARAMETERS (weft_tensor_set_requires_grad) are not in the buckets. The same parameters must be frozen on all
 * members; weft_data_parallel_create checks that. To unfreeze one, call weft_data_parallel_unref, unfreeze the
 * parameter on all members, and call weft_data_parallel_create for the same group (docs/data-parallel.md). If a
 * parameter is unfrozen without that, the next pass or join fails with WEFT_ERR_STATE and the parameter's name, and
 * ends the group. A parameter that is frozen later stays in its bucket. With `find_unused` it gets a gradient only if
 * another member computed one. Without `find_unused` a pass that computes no gradient for it fails.
 *
 * BUFFERS of the module, such as the statistics of a batch norm, are equal after weft_data_parallel_create and after
 * weft_data_parallel_join. In between, each member's buffers follow its own data.
 *
 * ALL MEMBERS create the object for equal modules, and then run the same number of passes, one after another. If a pass
 * of a member fails, or the member dies, the group ends: the others' passes fail with an error that names the member.
 * The object is then unusable, and weft_group_error has the reason. To continue, call weft_group_shrink and create
 * another object.
 *
 * A FORWARD PASS that fails must be reported to the group, or the others wait until their time limit. Call
 * weft_backward or weft_dist_backward even then, as in the example: it ends the group with the tape's error. Otherwise
 * call weft_group_abort(group, weft_tape_error(t)).
 *
 * Source: S. Li and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", PVLDB 13(12),
 * 2020.
 *
 * THREADS. Any thread, one at a time. The program may use the group for other operations only between passes, on all
 * members at the same place; with `uneven` only after a join.
 */
#ifndef WEFT_DATA_PARALLEL_H
#define WEFT_DATA_PARALLEL_H

#include <weft/group.h>
#include <weft/hooks.h>
#include <weft/nn.h>

WEFT_BEGIN_C

/*
 * Reduces a bucket, for example with compression. `bucket` is contiguous, has one dimension, and holds this member's
 * sums; `index` identifies it. The function starts the operations that turn the sums into the average over the group,
 * with the same bits on every member. *out receives a future that completes when these operations are complete. A
 * lock of the weft_data_parallel is held, so the function must not wait or call functions of that object.
 */
typedef weft_status (*weft_bucket_fn)(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                      weft_future **out, void *arg);
/* A weft_bucket_fn that sends gradients as bfloat16: half the bytes of float32, and 8 significant bits. `arg` is
 * NULL. */
WEFT_API weft_status weft_bucket_bfloat16(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                          weft_future **out, void *arg);

/* Options of weft_data_parallel_create. They must be equal on all members, except timeout_ms and reduce_arg.
 * weft_data_parallel_create checks that; for `reduce` it checks only whether the field is NULL, weft_bucket_bfloat16 or
 * another function. */
typedef struct weft_data_parallel_options {
    size_t bucket_bytes;       /* the size of a bucket; 0: 25 MiB */
    size_t first_bucket_bytes; /* the size of the first bucket; 0: 1 MiB */
    bool find_unused;          /* a pass may leave out parameters, different ones on each member */
    /* Members may run out of data (weft_data_parallel_join). In each pass that reduces, the first hook waits until all
     * members have begun the pass or joined. */
    bool uneven;
    bool divide_by_all;    /* with `uneven`: averages are over all members, also those that ran out of data */
    weft_bucket_fn reduce; /* NULL: weft_group_allreduce. Not with `uneven` */
    void *reduce_arg;      /* passed to `reduce` */
    int64_t timeout_ms;    /* of each operation of the group; 0: the agent's default; WEFT_FOREVER: no limit */
} weft_data_parallel_options;

/*
 * Compares the options, and the names, dtypes and shapes of all parameters and buffers, with the other members. Then
 * gives all members the values of member 0. It waits for all members, and references group and module. `options` is
 * copied; NULL is all zero. *error receives the detail of a failure; you release it. If `error` is NULL, the log has a
 * warning instead. Unless said otherwise a failure ends the group, so that the others do not wait. Errors:
 *   WEFT_ERR_INVALID, at once: a NULL, `uneven` with `reduce`, or an invalid timeout_ms. The group continues: this
 *   member took no part, and the others wait.
 *   WEFT_ERR_INVALID: no parameter wants a gradient, or a parameter or buffer is not on the CPU.
 *   WEFT_ERR_INVALID, on all members: the options or the modules differ. The group continues. *error names the member
 *   and what differs first: an option, with both values, or a parameter.
 *   WEFT_ERR_STATE: a member called weft_group_allgather_values in place of this function. The group continues.
 *   WEFT_ERR_DEADLOCK: this thread cannot wait.
 *   WEFT_ERR_MEMORY, and the errors of the group.
 */
WEFT_API WEFT_NODISCARD weft_status weft_data_parallel_create_sized(weft_group *group, weft_module *module,
                                                                    const weft_data_parallel_options *options,
                                                                    size_t size, weft_data_parallel **out,
                                                                    weft_error **error);
static inline WEFT_NODISCARD weft_status weft_data_parallel_create(weft_group *group, weft_module *module,
                                                                   const weft_data_parallel_options *options,
                                                                   weft_data_parallel **out, weft_error **error)
{
    return weft_data_parallel_create_sized(group, module, options, sizeof(*options), out, error);
}
WEFT_API weft_data_parallel *weft_data_parallel_ref(weft_data_parallel *parallel);
WEFT_API void weft_data_parallel_unref(weft_data_parallel *parallel); /* NULL does nothing */

/* The hooks for weft_tape_set_hooks and weft_context_set_hooks. Borrowed. The hooks hold a reference to the object:
 * if you take a reference to the hooks, you may drop yours to the object first. */
WEFT_API weft_hooks *weft_data_parallel_hooks(weft_data_parallel *parallel);

/*
 * Switches reduction on (the default) or off. While reduction is off, passes reduce nothing: their gradients are
 * added up on this member. When reduction is on again, the next pass reduces these sums too. The gradients of a
 * pass without reduction are only this member's: do not step with them. All members must switch at the same passes.
 * The last pass before weft_data_parallel_join must reduce.
 */
WEFT_API void weft_data_parallel_set_sync(weft_data_parallel *parallel, bool on);

/*
 * The averages of the last pass, for weft_optimizer_apply: one for each parameter of the module, in its order; no
 * gradient for parameters that no member used. The tape or context of the pass has the same gradients. Borrowed until
 * the next pass or a join begins, or the object is freed.
 */
WEFT_API weft_gradients weft_data_parallel_gradients(weft_data_parallel *parallel);

/*
 * Reports that this member has no more data, with `uneven`. Until all members have called this function, the member
 * takes part in the others' reductions with zeros. Averages are over the members that still train, or, with
 * divide_by_all, over all. At the end all members get the parameters and buffers of one member, with the same bits.
 * That member has the lowest index among those that ran the last pass, or is member 0 if there was no pass since the
 * last join. So the next epoch begins with equal models.
 *
 * The state of optimizers (momentum, averages of squares, step counts) is not shared. A member that made fewer steps
 * has another state, so the models would differ in the next epoch. Create a new optimizer on all members, or copy the
 * state of the member with most steps to all (docs/data-parallel.md). SGD without momentum has no state.
 *
 * Errors:
 *   WEFT_ERR_STATE, at once: `uneven` is not set, or there are sums of passes that reduced nothing
 *   (weft_data_parallel_set_sync), which would be lost. The log has the reason. The group continues, and the others
 *   wait. To continue, run a pass that reduces (if no data is left, over any data with the loss times 0), step, and
 *   then join.
 *   WEFT_ERR_STATE: a parameter was unfrozen after the object was created; the group's error names it.
 *   WEFT_ERR_INVALID: NULL.
 *   The errors of the group.
 * After other failures the group has ended. The module then has either the values that this member had, or
 * the values of the member from which all copy; after WEFT_ERR_MEMORY it may have a mixture.
 */
WEFT_API WEFT_NODISCARD weft_status weft_data_parallel_join(weft_data_parallel *parallel);

WEFT_END_C
#endif
