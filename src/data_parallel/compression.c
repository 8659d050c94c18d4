/* SPDX-License-Identifier: Apache-2.0 */
/* compression.c - gradients that travel in fewer bytes than they have. */
#include "future/future.h"
#include "rpc/agent/agent.h"

#include "base/alloc.h"

#include <weft/data_parallel.h>

#include <stdlib.h>

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

static weft_status unpack(weft_future *reduced, weft_future *whole, void *arg)
{
    const packed *of = arg;
    const weft_error *error = weft_future_error(reduced);
    if (error)
        return wfi_future_fail(whole, error);
    weft_status st = weft_tensor_assign(of->bucket, of->small);
    return st ? st : wfi_future_complete(whole, NULL, NULL);
}

weft_status weft_bucket_bfloat16(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                 weft_future **out, void *arg)
{
    WFI_LIVE(group, bucket);
    (void)index, (void)arg;
    if (!group || !bucket || !out)
        return wfi_refuse_null("weft_bucket_bfloat16", !group ? "group" : !bucket ? "bucket" : "out");
    packed *of = wfi_calloc(1, sizeof *of);
    if (!of)
        return WEFT_ERR_MEMORY;
    *of = (packed){weft_tensor_ref(bucket), weft_tensor_to(bucket, WEFT_DTYPE_BFLOAT16)};
    weft_future *reduced = NULL;
    weft_status st =
        of->small ? weft_group_allreduce_async(group, of->small, WEFT_OP_AVG, timeout_ms, &reduced) : WEFT_ERR_MEMORY;
    if (st) {
        free_packed(of);
        return st;
    }
    *out = wfi_future_then(reduced, unpack, of, free_packed);
    weft_future_unref(reduced);
    return *out ? WEFT_OK : WEFT_ERR_MEMORY;
}
