/* SPDX-License-Identifier: Apache-2.0 */
/* join.c - a member that has no more data takes part in the others' passes with zeros. */
#include "data_parallel/data_parallel.h"

#include "coll/group.h"

#include <string.h>

/* What the others exchange in one pass. */
static weft_status shadow(weft_data_parallel *parallel)
{
    weft_future *ended = NULL;
    wfi_mutex_lock(&parallel->lock);
    parallel->in_pass = false;
    for (size_t i = 0; i < parallel->bucket_count; i++) {
        wfi_bucket *bucket = &parallel->buckets[i];
        memset(weft_tensor_data(bucket->flat), 0, weft_tensor_nbytes(bucket->flat));
        bucket->arrived = bucket->count;
    }
    weft_status st = wfi_buckets_advance(parallel);
    if (!st && parallel->options.find_unused &&
        !(parallel->used = weft_tensor_zeros(WEFT_SHAPE((int64_t)parallel->count), WEFT_UINT8)))
        st = WEFT_ERR_MEMORY;
    if (!st)
        st = wfi_parallel_finish(parallel, &ended);
    wfi_mutex_unlock(&parallel->lock);
    if (!st)
        st = weft_future_wait(ended, WEFT_FOREVER);
    weft_future_unref(ended);
    return st;
}

weft_status weft_data_parallel_join(weft_data_parallel *parallel)
{
    if (!parallel)
        return wfi_refuse_null("weft_data_parallel_join", "parallel");
    if (!parallel->options.uneven) {
        wfi_log_agent(parallel->group->agent, WEFT_LOG_WARN, 0,
                      "weft_data_parallel_join (group \"%s\"): it was made without the option uneven",
                      parallel->group->name);
        return WEFT_ERR_STATE;
    }
    size_t active;
    weft_status st;
    do {
        st = wfi_parallel_begin(parallel, false, &active);
        if (!st && active)
            st = shadow(parallel);
    } while (!st && active);
    if (st) { /* the others' passes need this member, if the group is not over */
        weft_error *why = weft_error_create(st, "data parallel: a member that had joined: %s", weft_status_text(st));
        weft_group_abort(parallel->group, why);
        weft_error_unref(why);
    }
    return st;
}
