/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - a member that has no more data takes part in the others' passes with zeros; at the end all have one model.
 *
 * Each turn begins with a count of the members that train. If a member finds none in its first turn, either it
 * trained in the turn before, or no member has trained since the last join: then it is one of the last.
 */
#include "data_parallel/data_parallel.h"

#include "coll/group.h"
#include "future/future.h"
#include "tensor/tensor.h"

#include <string.h>

/* Takes part in one pass of the others, with zeros (PyTorch: shadows its allreduces). */
static weft_status shadow_pass(weft_data_parallel *parallel)
{
    weft_future *ended = NULL;
    wfi_mutex_lock(&parallel->lock);
    parallel->in_pass = false;
    for (size_t i = 0; i < parallel->bucket_count; i++) {
        wfi_bucket *bucket = &parallel->buckets[i];
        memset(weft_tensor_data(bucket->flat), 0, weft_tensor_nbytes(bucket->flat));
        bucket->arrived = bucket->count;
    }
    weft_status status = wfi_buckets_advance(parallel);
    if (!status && parallel->options.find_unused &&
        !(parallel->used = wfi_tensor_zeros(WEFT_SHAPE((int64_t)parallel->count), WEFT_DTYPE_UINT8, NULL)))
        status = WEFT_ERR_MEMORY;
    if (!status)
        status = wfi_data_parallel_finish(parallel, &ended);
    wfi_mutex_unlock(&parallel->lock);
    if (!status)
        status = wfi_future_wait(ended, WEFT_FOREVER);
    weft_future_unref(ended);
    return status;
}

/* Takes part in the passes of the others, until all have joined. *is_last: no member trained when this one joined. */
static weft_status shadow_until_joined(weft_data_parallel *parallel, bool *is_last)
{
    size_t active;
    *is_last = true;
    weft_status status = wfi_data_parallel_begin(parallel, false, &active);
    while (!status && active) {
        *is_last = false;
        status = shadow_pass(parallel);
        if (!status)
            status = wfi_data_parallel_begin(parallel, false, &active);
    }
    return status;
}

/*
 * Members that joined before the last have parameters of fewer steps: all continue with the parameters of the first
 * of the last members.
 */
static weft_status copy_last_model(weft_data_parallel *parallel, bool is_last)
{
    int64_t size = (int64_t)weft_group_size(parallel->group), root = size;
    weft_status status =
        wfi_data_parallel_agree(parallel, is_last ? weft_group_index(parallel->group) : size, WEFT_OP_MIN, &root);
    if (status)
        return status;
    return root >= 0 && root < size ? wfi_data_parallel_broadcast(parallel, (size_t)root) : WEFT_ERR_PROTOCOL;
}

/* Why it cannot join; NULL: it can. */
static const char *objection(weft_data_parallel *parallel)
{
    bool has_sums = false;
    wfi_mutex_lock(&parallel->lock);
    for (size_t i = 0; i < parallel->count; i++)
        has_sums = has_sums || parallel->parameters[i].accumulated;
    wfi_mutex_unlock(&parallel->lock);
    if (!parallel->options.uneven)
        return "it was made without the option uneven";
    /* If this member reduced them while it joins, they would be lost: no member steps with the averages then. */
    return has_sums ? "there are sums of passes that reduced nothing: first run a pass that reduces them, over a loss "
                      "times 0 if need be"
                    : NULL;
}

weft_status weft_data_parallel_join(weft_data_parallel *parallel)
{
    WFI_CHECK_HANDLE(parallel);
    if (!parallel)
        return wfi_refuse_null("weft_data_parallel_join", "parallel");
    const char *wrong = objection(parallel);
    if (wrong) {
        wfi_agent_log(parallel->group->agent, WEFT_LOG_WARN, 0, "weft_data_parallel_join (group \"%s\"): %s",
                      parallel->group->name, wrong);
        return WEFT_ERR_STATE;
    }
    bool is_last;
    weft_status status = shadow_until_joined(parallel, &is_last);
    if (!status)
        status = copy_last_model(parallel, is_last);
    if (status) { /* the others' passes need this member, if the group is not over */
        weft_error *why = wfi_data_parallel_take_error(parallel);
        if (!why)
            why = weft_error_create(status, "data parallel: a member that had joined: %s", weft_status_text(status));
        weft_group_abort(parallel->group, why);
        weft_error_unref(why);
    }
    return status;
}
