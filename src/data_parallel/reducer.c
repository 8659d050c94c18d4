/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reducer.c - one backward pass of a member, as PyTorch's Reducer does it. The hook of each leaf copies the leaf's
 * gradient into its bucket (gradient_hook). The hook at the end of the pass (pass_ends) fills what is missing, and has
 * the pass wait until all buckets are reduced. Hooks run on the thread that runs the pass; callbacks of futures on a
 * worker thread.
 */
#include "data_parallel/data_parallel.h"

#include "base/alloc.h"
#include "base/error.h"
#include "coll/group.h"
#include "future/future.h"
#include "tensor/combine.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- References -------------------------------------------------------------------------------------------------- */

void wfi_data_parallel_ref(weft_data_parallel *parallel)
{
    atomic_fetch_add_explicit(&parallel->refs, 1, memory_order_relaxed);
}

void wfi_data_parallel_unref(void *arg)
{
    weft_data_parallel *parallel = arg;
    if (atomic_fetch_sub_explicit(&parallel->refs, 1, memory_order_acq_rel) != 1)
        return;
    wfi_buckets_free(parallel);
    for (size_t i = 0; i < parallel->count; i++)
        weft_tensor_unref(parallel->parameters[i].accumulated);
    for (size_t i = 0; parallel->gradients && i < weft_module_parameters(parallel->module).count; i++)
        weft_tensor_unref(parallel->gradients[i].values);
    free(parallel->gradients);
    free(parallel->parameters);
    free(parallel->order);
    weft_tensor_unref(parallel->used);
    weft_tensor_unref(parallel->shared_order);
    weft_error_unref(parallel->error);
    weft_module_unref(parallel->module);
    wfi_group_unuse(parallel->group);
    wfi_mutex_fini(&parallel->lock);
    wfi_handle_free(parallel);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

typedef struct hook_arg {
    weft_data_parallel *parallel; /* a reference */
    size_t parameter;
} hook_arg;

#define ONE_AFTER_THE_OTHER "passes have to be one after the other"

/* Keeps the first error of the pass. Takes over `error`. [lock] */
static void keep_error(weft_data_parallel *parallel, weft_error *error)
{
    if (parallel->error)
        weft_error_unref(error);
    else
        parallel->error = error;
}

/* Keeps an error for a status that is not WEFT_OK. [lock] */
static void keep_status(weft_data_parallel *parallel, weft_status status, const char *what)
{
    const weft_error *why = weft_group_error(parallel->group);
    if (status)
        keep_error(parallel, why ? weft_error_ref(why)
                                 : weft_error_create(status, "data parallel: %s: %s", what, weft_status_text(status)));
}

weft_error *wfi_data_parallel_take_error(weft_data_parallel *parallel)
{
    wfi_mutex_lock(&parallel->lock);
    weft_error *error = parallel->error;
    parallel->error = NULL;
    parallel->in_pass = false;
    wfi_mutex_unlock(&parallel->lock);
    return error;
}

/* ---- The beginning ----------------------------------------------------------------------------------------------- */

weft_status wfi_data_parallel_agree(weft_data_parallel *parallel, int64_t mine, weft_op how, int64_t *out)
{
    weft_tensor *number = wfi_tensor_copy_of(WEFT_SHAPE(1), WEFT_DTYPE_INT64, &mine, NULL);
    if (!number)
        return WEFT_ERR_MEMORY;
    weft_status status = weft_group_allreduce(parallel->group, number, how, parallel->options.timeout_ms);
    if (!status)
        *out = weft_tensor_get_i64(number, 0);
    weft_tensor_unref(number);
    return status;
}

/* The name of the first parameter that wants a gradient and has no place in a bucket, because it wanted none when the
 * object was made. NULL: there is none. The lists of a module do not change, so nothing else can be new. */
static const char *unfrozen_parameter(const weft_data_parallel *parallel)
{
    weft_tensors all = weft_module_parameters(parallel->module);
    for (size_t i = 0, next = 0; i < all.count; i++)
        if (next < parallel->count && parallel->parameters[next].place == i)
            next++;
        else if (weft_tensor_requires_grad(all.items[i]))
            return weft_module_parameter_name(parallel->module, i);
    return NULL;
}

/* Why no pass may begin: it is not to be this pass's own failure if the group is over. NULL: one may. [lock] */
static weft_error *obstacle(const weft_data_parallel *parallel)
{
    const weft_error *over = weft_group_error(parallel->group);
    const char *unfrozen = over ? NULL : unfrozen_parameter(parallel);
    if (unfrozen) /* no member would average it: without an error the models would differ */
        return weft_error_create(WEFT_ERR_STATE,
                                 "data parallel: parameter %s was thawed after weft_data_parallel_create, so that no "
                                 "member would average it: make another weft_data_parallel on all members",
                                 unfrozen);
    if (!over)
        return parallel->ending ? weft_error_create(WEFT_ERR_STATE, "data parallel: " ONE_AFTER_THE_OTHER) : NULL;
    wfi_error_detail detail = {.code = weft_error_code(over), .worker = weft_error_worker(over)};
    return wfi_error_create(&detail, "data parallel: the group is over: %s", weft_error_message(over));
}

weft_status wfi_data_parallel_begin(weft_data_parallel *parallel, bool trains, size_t *out)
{
    int64_t active = (int64_t)weft_group_size(parallel->group);
    wfi_mutex_lock(&parallel->lock);
    bool syncs = parallel->syncs || !trains;
    weft_error *why = obstacle(parallel);
    weft_status status = weft_error_code(why);
    wfi_mutex_unlock(&parallel->lock);
    if (!status && parallel->options.uneven && syncs)
        status = wfi_data_parallel_agree(parallel, trains, WEFT_OP_SUM, &active);
    wfi_mutex_lock(&parallel->lock);
    parallel->in_pass = trains;
    parallel->pass_syncs = syncs;
    parallel->active = (size_t)active;
    parallel->order_count = 0;
    if (!status && syncs)
        status = wfi_buckets_open(parallel);
    if (why)
        keep_error(parallel, why);
    else
        keep_status(parallel, status, "a pass could not begin");
    wfi_mutex_unlock(&parallel->lock);
    *out = (size_t)active;
    return status;
}

/* ---- Gradients of leaves ----------------------------------------------------------------------------------------- */

static void add_to(weft_tensor *sum, const weft_tensor *more)
{
    void *data = weft_tensor_data(sum);
    wfi_combine(sum->dtype, WEFT_OP_SUM, data, data, weft_tensor_data(more), (size_t)weft_tensor_numel(sum));
}

/* In a pass that reduces nothing: adds the gradient to those of earlier passes (PyTorch's no_sync). [lock] */
static void accumulate(weft_data_parallel *parallel, wfi_parallel_parameter *of, const weft_tensor *gradient)
{
    if (of->accumulated)
        add_to(of->accumulated, gradient);
    else if (!(of->accumulated = wfi_tensor_clone(gradient, NULL)))
        keep_status(parallel, WEFT_ERR_MEMORY, "an accumulated gradient");
}

/* Adds the gradients of earlier passes, which were not reduced, to the bucket. [lock] */
static void add_accumulated(wfi_parallel_parameter *of, weft_tensor *view)
{
    if (of->accumulated)
        add_to(view, of->accumulated);
    weft_tensor_unref(of->accumulated);
    of->accumulated = NULL;
}

/* Copies a gradient into its bucket. Returns a view of the bucket; NULL: no memory. [lock] */
static weft_tensor *put_into_bucket(weft_data_parallel *parallel, size_t parameter, weft_tensor *gradient)
{
    wfi_parallel_parameter *of = &parallel->parameters[parameter];
    if (of->arrived) {
        keep_error(parallel,
                   weft_error_create(WEFT_ERR_STATE,
                                     "data parallel: the gradient of %s came twice: " ONE_AFTER_THE_OTHER, of->name));
        return weft_tensor_ref(gradient);
    }
    weft_tensor *view = wfi_bucket_view(parallel, parameter);
    if (!view)
        return NULL;
    memcpy(weft_tensor_data(view), weft_tensor_data(gradient), weft_tensor_nbytes(gradient));
    add_accumulated(of, view);
    wfi_parameter_arrives(parallel, parameter);
    parallel->order[parallel->order_count++] = parameter;
    keep_status(parallel, wfi_buckets_advance(parallel), "a bucket could not be reduced");
    return view;
}

/* Begins this member's pass, unless it has begun. A failure is kept. */
static void begin_own(weft_data_parallel *parallel)
{
    size_t active;
    wfi_mutex_lock(&parallel->lock);
    bool has_begun = parallel->in_pass;
    wfi_mutex_unlock(&parallel->lock);
    if (!has_begun)
        (void)!wfi_data_parallel_begin(parallel, true, &active);
}

/* The hook of each leaf: gets the gradient, and returns the tensor that takes its place. */
static weft_tensor *gradient_hook(weft_tensor *leaf, weft_tensor *gradient, weft_future **wait, void *arg)
{
    const hook_arg *hook = arg;
    weft_data_parallel *parallel = hook->parallel;
    (void)leaf, (void)wait; /* the end of the pass waits for all buckets */
    begin_own(parallel);
    wfi_mutex_lock(&parallel->lock);
    weft_tensor *replacement = NULL;
    if (parallel->pass_syncs && !parallel->error) {
        replacement = put_into_bucket(parallel, hook->parameter, gradient);
    } else {
        if (!parallel->pass_syncs)
            accumulate(parallel, &parallel->parameters[hook->parameter], gradient);
        replacement = weft_tensor_ref(gradient);
    }
    wfi_mutex_unlock(&parallel->lock);
    return replacement;
}

/* The other members' gradient of the leaf is its gradient here too, so that a step here does the same as theirs. */
static weft_tensor *average_of_others(weft_tensor *leaf, void *arg)
{
    const hook_arg *hook = arg;
    weft_data_parallel *parallel = hook->parallel;
    (void)leaf;
    wfi_mutex_lock(&parallel->lock);
    weft_tensor *average = NULL;
    if (parallel->pass_syncs)
        average = weft_tensor_ref(parallel->gradients[parallel->parameters[hook->parameter].place].values);
    wfi_mutex_unlock(&parallel->lock);
    return average;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* Parameters without a gradient get zeros, and what earlier passes have accumulated. Keeps an error that names them if
 * the options do not allow that. [lock] */
static weft_status fill_missing(weft_data_parallel *parallel)
{
    char names[200] = "";
    size_t used = 0, missing = 0;
    for (size_t i = 0; i < parallel->count; i++) {
        wfi_parallel_parameter *of = &parallel->parameters[i];
        if (of->arrived)
            continue;
        weft_tensor *view = wfi_bucket_view(parallel, i);
        if (!view)
            return WEFT_ERR_MEMORY;
        memset(weft_tensor_data(view), 0, weft_tensor_nbytes(view));
        missing += !of->accumulated;
        if (!of->accumulated && used < sizeof(names))
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "", of->name);
        add_accumulated(of, view);
        weft_tensor_unref(view);
        wfi_parameter_arrives(parallel, i);
    }
    if (!missing || parallel->options.find_unused)
        return wfi_buckets_advance(parallel);
    keep_error(parallel, weft_error_create(WEFT_ERR_STATE,
                                           "data parallel: %zu parameters got no gradient in this pass (%s): "
                                           "set find_unused if passes may leave some out",
                                           missing, names));
    return WEFT_OK;
}

/* For each parameter 1 if this member has a gradient for it, otherwise 0. [lock] */
static weft_tensor *used_here(const weft_data_parallel *parallel)
{
    weft_tensor *used = wfi_tensor_zeros(WEFT_SHAPE((int64_t)parallel->count), WEFT_DTYPE_UINT8, NULL);
    for (size_t i = 0; used && i < parallel->count; i++)
        ((uint8_t *)weft_tensor_data(used))[i] = parallel->parameters[i].arrived || parallel->parameters[i].accumulated;
    return used;
}

/* The order in which gradients arrived here. -1 first: there is none, because this member has had no pass yet. */
static weft_tensor *own_order(const weft_data_parallel *parallel)
{
    weft_tensor *order = wfi_tensor_zeros(WEFT_SHAPE((int64_t)parallel->count), WEFT_DTYPE_INT64, NULL);
    int64_t *at = order ? weft_tensor_data(order) : NULL;
    size_t came = parallel->order_count;
    if (order && !came)
        *at = -1;
    for (size_t i = 0; order && i < came; i++)
        *at++ = (int64_t)parallel->order[i];
    for (size_t i = 0; order && came && i < parallel->count; i++) { /* the others follow */
        bool is_there = false;
        for (size_t k = 0; k < came; k++)
            is_there = is_there || parallel->order[k] == i;
        if (!is_there)
            *at++ = (int64_t)i;
    }
    return order;
}

/* The views of the reduced buckets become the gradients that the user reads. [lock] */
static weft_status keep_gradients(weft_data_parallel *parallel)
{
    const uint8_t *used = parallel->used ? weft_tensor_data(parallel->used) : NULL;
    for (size_t i = 0; i < parallel->count; i++) {
        weft_gradient *gradient = &parallel->gradients[parallel->parameters[i].place];
        weft_tensor_unref(gradient->values);
        gradient->values = NULL;
        if (!used || used[i])
            gradient->values = wfi_bucket_view(parallel, i);
        if ((!used || used[i]) && !gradient->values)
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

/* Member 0's order becomes that of all members, if it has one: the buckets are made again. [lock] */
static weft_status adopt_order(weft_data_parallel *parallel)
{
    const int64_t *shared = weft_tensor_data(parallel->shared_order);
    bool *seen = wfi_calloc(parallel->count, sizeof(*seen));
    weft_status status = seen ? WEFT_OK : WEFT_ERR_MEMORY;
    bool has_none = shared[0] == -1;
    for (size_t i = 0; i < parallel->count && !status && !has_none; i++) {
        if (shared[i] < 0 || shared[i] >= (int64_t)parallel->count || seen[shared[i]])
            status = WEFT_ERR_PROTOCOL;
        else
            seen[parallel->order[i] = (size_t)shared[i]] = true;
    }
    free(seen);
    if (status || has_none)
        return status;
    parallel->ordered = true;
    return wfi_buckets_make(parallel, parallel->order);
}

static const weft_error *first_failure(const weft_data_parallel *parallel)
{
    const weft_error *error = parallel->error;
    for (size_t i = 0; i < parallel->bucket_count && !error; i++)
        error = parallel->buckets[i].done ? weft_future_error(parallel->buckets[i].done) : NULL;
    return error ? error : weft_group_error(parallel->group);
}

/* The pass is over: all is exchanged, or something failed. Returns the error, with a reference; NULL: none. [lock] */
static weft_error *end_pass(weft_data_parallel *parallel)
{
    if (!first_failure(parallel)) {
        keep_status(parallel, keep_gradients(parallel), "the gradients");
        if (parallel->shared_order && !parallel->error)
            keep_status(parallel, adopt_order(parallel), "the order of the parameters");
    }
    const weft_error *failure = first_failure(parallel);
    weft_error *error = failure ? weft_error_ref(failure) : NULL;
    if (error)
        /* the others have data that this member lacks: they must not continue */
        weft_group_abort(parallel->group, error);
    weft_tensor_unref(parallel->used);
    weft_tensor_unref(parallel->shared_order);
    weft_error_unref(parallel->error);
    parallel->used = parallel->shared_order = NULL;
    parallel->error = NULL;
    parallel->ending = false;
    return error;
}

/* Drops the error. */
static weft_status end_with(weft_future *ended, weft_error *error)
{
    weft_status status = error ? wfi_future_fail(ended, error) : wfi_future_complete(ended, NULL, NULL);
    weft_error_unref(error);
    return status;
}

static weft_status all_exchanged(weft_future *all, weft_future *ended, void *arg)
{
    weft_data_parallel *parallel = arg;
    (void)all;
    wfi_mutex_lock(&parallel->lock);
    weft_error *error = end_pass(parallel);
    wfi_mutex_unlock(&parallel->lock);
    return end_with(ended, error);
}

/* Begins what is exchanged besides the buckets. futures[] gets the futures of all that is in progress. [lock] */
static size_t begin_exchanges(weft_data_parallel *parallel, weft_future **futures)
{
    size_t count = 0;
    int64_t timeout_ms = parallel->options.timeout_ms;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < parallel->begun; i++)
        if (parallel->buckets[i].done)
            futures[count++] = weft_future_ref(parallel->buckets[i].done);
    if (parallel->error)
        return count;
    if (parallel->used)
        status = weft_group_allreduce_async(parallel->group, parallel->used, WEFT_OP_MAX, timeout_ms, &futures[count]);
    count += !status && parallel->used;
    if (!status && !parallel->ordered)
        status = (parallel->shared_order = own_order(parallel)) ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!status && parallel->shared_order)
        status = weft_group_broadcast_async(parallel->group, parallel->shared_order, 0, timeout_ms, &futures[count]);
    count += !status && parallel->shared_order;
    keep_status(parallel, status, "the end of a pass");
    return count;
}

weft_status wfi_data_parallel_finish(weft_data_parallel *parallel, weft_future **out)
{
    weft_future *all = NULL, **futures = wfi_calloc(parallel->bucket_count + 2, sizeof(*futures));
    size_t count = futures ? begin_exchanges(parallel, futures) : 0;
    if (count && (all = weft_future_when_all(futures, count))) {
        wfi_data_parallel_ref(parallel);
        parallel->ending = true;
        *out = wfi_future_then(all, all_exchanged, parallel, wfi_data_parallel_unref);
    }
    for (size_t i = 0; i < count; i++)
        weft_future_unref(futures[i]);
    free(futures);
    weft_future_unref(all);
    if (*out)
        return WEFT_OK;
    /* No operation is in progress, or none could be followed. */
    if (!futures || count)
        keep_status(parallel, WEFT_ERR_MEMORY, "the end of a pass");
    weft_error *error = end_pass(parallel);
    if ((*out = weft_future_create(NULL)))
        return end_with(*out, error);
    weft_error_unref(error);
    return WEFT_ERR_MEMORY;
}

/* The backward pass has failed here: the other members must not wait for its gradients. */
static weft_status pass_failed(weft_data_parallel *parallel, const weft_error *why)
{
    weft_group_abort(parallel->group, why);
    weft_error_unref(wfi_data_parallel_take_error(parallel));
    return WEFT_OK;
}

/*
 * Whether the pass concerns the module. A pass without a gradient for it does not, unless other members may have
 * gradients for what is unused here. If a parameter was unfrozen, the pass counts, and fails at its beginning,
 * because it may have a gradient for that parameter only.
 */
static bool is_ours(weft_data_parallel *parallel)
{
    wfi_mutex_lock(&parallel->lock);
    bool ours = parallel->in_pass || (parallel->options.find_unused && parallel->syncs) || unfrozen_parameter(parallel);
    if (!ours)
        parallel->pass_syncs = false;
    wfi_mutex_unlock(&parallel->lock);
    return ours;
}

/* The hook at the end of a pass. *wait: the pass waits for that future. */
static weft_status pass_ends(const weft_error *why, weft_future **wait, void *arg)
{
    weft_data_parallel *parallel = arg;
    if (why)
        return pass_failed(parallel, why);
    if (!is_ours(parallel))
        return WEFT_OK;
    begin_own(parallel);
    wfi_mutex_lock(&parallel->lock);
    weft_status status = WEFT_OK;
    parallel->in_pass = false;
    if (parallel->pass_syncs && !parallel->error && parallel->options.find_unused &&
        !(parallel->used = used_here(parallel)))
        keep_status(parallel, WEFT_ERR_MEMORY, "the list of what was used");
    if (parallel->pass_syncs && !parallel->error)
        keep_status(parallel, fill_missing(parallel), "a bucket could not be reduced");
    if (parallel->error)
        weft_group_abort(parallel->group, parallel->error);
    if (parallel->pass_syncs || parallel->error)
        status = wfi_data_parallel_finish(parallel, wait);
    wfi_mutex_unlock(&parallel->lock);
    return status;
}

/* ---- Hooks ------------------------------------------------------------------------------------------------------- */

static void free_hook(void *arg)
{
    hook_arg *hook = arg;
    wfi_data_parallel_unref(hook->parallel);
    free(hook);
}

weft_status wfi_data_parallel_add_hooks(weft_data_parallel *parallel)
{
    weft_status status = weft_hooks_create(&parallel->hooks, NULL);
    for (size_t i = 0; i < parallel->count && !status; i++) {
        hook_arg *hook = wfi_calloc(1, sizeof(*hook));
        if (!hook)
            return WEFT_ERR_MEMORY;
        wfi_data_parallel_ref(parallel);
        *hook = (hook_arg){parallel, i};
        status = weft_hooks_add(
            parallel->hooks, parallel->parameters[i].tensor,
            &(weft_leaf_hook){.replace = gradient_hook, .absent = average_of_others, .arg = hook, .drop = free_hook});
    }
    weft_hooks_set_end(parallel->hooks, pass_ends, parallel);
    return status;
}
