/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buckets.c - the places of gradients in buckets, and the reduction of a bucket that is full. A bucket is one
 * tensor, so that one allreduce averages the gradients of many parameters.
 */
#include "data_parallel/data_parallel.h"

#include "base/alloc.h"
#include "future/future.h"
#include "rpc/agent/agent.h"
#include "tensor/combine.h"
#include "tensor/tensor.h"

#include <stdlib.h>

/* ---- Places ------------------------------------------------------------------------------------------------------ */

/* Whether a parameter of that dtype needs a new bucket. */
static bool is_full(const weft_data_parallel *parallel, const wfi_bucket *bucket, weft_dtype dtype)
{
    bool first = bucket == parallel->buckets;
    size_t most = first ? parallel->options.first_bucket_bytes : parallel->options.bucket_bytes;
    size_t bytes = (size_t)bucket->elements * weft_dtype_size(bucket->dtype);
    return bucket->count && (bytes >= most || bucket->dtype != dtype);
}

weft_status wfi_buckets_make(weft_data_parallel *parallel, const size_t *order)
{
    size_t count = parallel->count;
    wfi_buckets_free(parallel);
    parallel->buckets = wfi_calloc(count, sizeof(*parallel->buckets));
    if (!parallel->buckets)
        return WEFT_ERR_MEMORY;
    wfi_bucket *bucket = parallel->buckets;
    parallel->bucket_count = 1;
    for (size_t i = 0; i < count; i++) {
        wfi_parallel_parameter *parameter = &parallel->parameters[order[i]];
        if (is_full(parallel, bucket, parameter->tensor->dtype)) {
            bucket++;
            parallel->bucket_count++;
        }
        if (!bucket->parameters && !(bucket->parameters = wfi_calloc(count - i, sizeof(*bucket->parameters))))
            return WEFT_ERR_MEMORY;
        bucket->dtype = parameter->tensor->dtype;
        bucket->parameters[bucket->count++] = order[i];
        parameter->bucket = parallel->bucket_count - 1;
        parameter->offset = bucket->elements;
        bucket->elements += weft_tensor_numel(parameter->tensor);
    }
    return WEFT_OK;
}

void wfi_buckets_free(weft_data_parallel *parallel)
{
    for (size_t i = 0; i < parallel->bucket_count; i++) {
        free(parallel->buckets[i].parameters);
        weft_tensor_unref(parallel->buckets[i].flat);
        weft_future_unref(parallel->buckets[i].done);
    }
    free(parallel->buckets);
    parallel->buckets = NULL;
    parallel->bucket_count = parallel->begun = 0;
}

weft_tensor *wfi_bucket_view(const weft_data_parallel *parallel, size_t parameter)
{
    const wfi_parallel_parameter *of = &parallel->parameters[parameter];
    weft_tensor *view;
    const wfi_bucket *bucket = &parallel->buckets[of->bucket];
    return wfi_tensor_over(bucket->flat->storage, of->offset, of->tensor->shape, bucket->dtype, &view) ? NULL : view;
}

/* ---- A pass ------------------------------------------------------------------------------------------------------ */

weft_status wfi_buckets_open(weft_data_parallel *parallel)
{
    parallel->begun = 0;
    for (size_t i = 0; i < parallel->count; i++) {
        wfi_parallel_parameter *of = &parallel->parameters[i];
        of->arrived = false;
        weft_tensor_unref(parallel->gradients[of->place].values); /* a view of a bucket */
        parallel->gradients[of->place].values = NULL;
    }
    for (size_t i = 0; i < parallel->bucket_count; i++) {
        wfi_bucket *bucket = &parallel->buckets[i];
        weft_future_unref(bucket->done);
        bucket->done = NULL;
        bucket->arrived = 0;
        if (bucket->flat && wfi_tensor_is_alone(bucket->flat))
            continue;
        weft_tensor_unref(bucket->flat);
        bucket->flat = wfi_tensor_empty(WEFT_SHAPE(bucket->elements), bucket->dtype, NULL);
        if (!bucket->flat)
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

void wfi_parameter_arrives(weft_data_parallel *parallel, size_t parameter)
{
    wfi_parallel_parameter *of = &parallel->parameters[parameter];
    of->arrived = true;
    parallel->buckets[of->bucket].arrived++;
}

/* With the option uneven: the sum is divided by the number of members that train. */
typedef struct division {
    weft_tensor *flat;
    size_t divisor;
} division;

static void free_division(void *arg)
{
    division *of = arg;
    weft_tensor_unref(of->flat);
    free(of);
}

static weft_status divide(weft_future *reduced, weft_future *done, void *arg)
{
    const division *of = arg;
    const weft_error *error = weft_future_error(reduced);
    if (error)
        return wfi_future_fail(done, error);
    wfi_combine_divide(of->flat->dtype, weft_tensor_data(of->flat), (size_t)weft_tensor_numel(of->flat), of->divisor);
    return wfi_future_complete(done, NULL, NULL);
}

static weft_status reduce_uneven(weft_data_parallel *parallel, wfi_bucket *bucket)
{
    weft_future *reduced;
    division *of = wfi_calloc(1, sizeof(*of));
    if (!of)
        return WEFT_ERR_MEMORY;
    weft_status status =
        weft_group_allreduce_async(parallel->group, bucket->flat, WEFT_OP_SUM, parallel->options.timeout_ms, &reduced);
    if (status) {
        free(of);
        return status;
    }
    *of = (division){weft_tensor_ref(bucket->flat),
                     parallel->options.divide_by_all ? weft_group_size(parallel->group) : parallel->active};
    bucket->done = wfi_future_then(reduced, divide, of, free_division);
    weft_future_unref(reduced);
    return bucket->done ? WEFT_OK : WEFT_ERR_MEMORY;
}

static weft_status reduce(weft_data_parallel *parallel, size_t index)
{
    const weft_data_parallel_options *o = &parallel->options;
    wfi_bucket *bucket = &parallel->buckets[index];
    if (o->reduce) {
        weft_status status =
            o->reduce(parallel->group, bucket->flat, index, o->timeout_ms, &bucket->done, o->reduce_arg);
        return !status && !bucket->done ? WEFT_ERR_INVALID : status;
    }
    if (o->uneven)
        return reduce_uneven(parallel, bucket);
    return weft_group_allreduce_async(parallel->group, bucket->flat, WEFT_OP_AVG, o->timeout_ms, &bucket->done);
}

weft_status wfi_buckets_advance(weft_data_parallel *parallel)
{
    weft_status status = WEFT_OK;
    while (!status && parallel->begun < parallel->bucket_count &&
           parallel->buckets[parallel->begun].arrived == parallel->buckets[parallel->begun].count)
        status = reduce(parallel, parallel->begun++);
    return status;
}

/* ---- Buckets that travel as bfloat16 ----------------------------------------------------------------------------- */

/* A bucket, and its copy in bfloat16 that is reduced. */
typedef struct packed {
    weft_tensor *bucket, *small;
} packed;

static void free_packed(void *arg)
{
    packed *of = arg;
    weft_tensor_unref(of->bucket);
    weft_tensor_unref(of->small);
    free(of);
}

static weft_status unpack(weft_future *reduced, weft_future *done, void *arg)
{
    const packed *of = arg;
    const weft_error *error = weft_future_error(reduced);
    if (error)
        return wfi_future_fail(done, error);
    weft_status status = weft_tensor_assign(of->bucket, of->small);
    return status ? status : wfi_future_complete(done, NULL, NULL);
}

weft_status weft_bucket_bfloat16(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                 weft_future **out, void *arg)
{
    WFI_CHECK_HANDLE(group, bucket);
    (void)index, (void)arg;
    if (!group || !bucket || !out)
        return wfi_refuse_null("weft_bucket_bfloat16", !group ? "group" : !bucket ? "bucket" : "out");
    packed *of = wfi_calloc(1, sizeof(*of));
    if (!of)
        return WEFT_ERR_MEMORY;
    *of = (packed){weft_tensor_ref(bucket), wfi_tensor_to(bucket, WEFT_DTYPE_BFLOAT16, NULL)};
    weft_future *reduced = NULL;
    weft_status status =
        of->small ? weft_group_allreduce_async(group, of->small, WEFT_OP_AVG, timeout_ms, &reduced) : WEFT_ERR_MEMORY;
    if (status) {
        free_packed(of);
        return status;
    }
    *out = wfi_future_then(reduced, unpack, of, free_packed);
    weft_future_unref(reduced);
    return *out ? WEFT_OK : WEFT_ERR_MEMORY;
}
