/* SPDX-License-Identifier: Apache-2.0 */
/* life.c - the references to a weft_data_parallel, and its end. */
#include "data_parallel/data_parallel.h"

#include "coll/group.h"

#include <stdlib.h>

void wfi_parallel_ref(weft_data_parallel *parallel)
{
    atomic_fetch_add_explicit(&parallel->refs, 1, memory_order_relaxed);
}

void wfi_parallel_unref(void *arg)
{
    weft_data_parallel *parallel = arg;
    if (atomic_fetch_sub_explicit(&parallel->refs, 1, memory_order_acq_rel) != 1)
        return;
    wfi_buckets_free(parallel);
    for (size_t i = 0; i < parallel->count; i++)
        weft_tensor_unref(parallel->parameters[i].carried);
    for (size_t i = 0; parallel->gradients && i < weft_module_parameters(parallel->module).count; i++)
        weft_tensor_unref(parallel->gradients[i].values);
    free(parallel->gradients);
    free(parallel->parameters);
    free(parallel->order);
    weft_tensor_unref(parallel->used);
    weft_tensor_unref(parallel->shared_order);
    weft_error_unref(parallel->trouble);
    weft_module_unref(parallel->module);
    wfi_group_unuse(parallel->group);
    wfi_mutex_fini(&parallel->lock);
    wfi_handle_free(parallel);
}
