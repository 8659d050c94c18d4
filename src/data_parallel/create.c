/* SPDX-License-Identifier: Apache-2.0 */
/* create.c - creates a weft_data_parallel, and its public functions apart from passes and joins. */
#include "data_parallel/data_parallel.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/text/sized.h"
#include "coll/group.h"
#include "tensor/tensor.h"

#include <stdlib.h>

#define BUCKET_BYTES (25u << 20)
#define FIRST_BUCKET_BYTES (1u << 20)

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

/* Operations of groups take no tensors of GPUs. */
static weft_status check_places(const weft_module *module, weft_error **error)
{
    weft_tensors parameters = weft_module_parameters(module), buffers = weft_module_buffers(module);
    for (size_t i = 0; i < parameters.count; i++)
        if (wfi_tensor_kind(parameters.items[i]) == WFI_MEMORY_CUDA)
            return wfi_error_fail(error, WEFT_ERR_INVALID, "data parallel: parameter %s is on a device",
                                  weft_module_parameter_name(module, i));
    for (size_t i = 0; i < buffers.count; i++)
        if (wfi_tensor_kind(buffers.items[i]) == WFI_MEMORY_CUDA)
            return wfi_error_fail(error, WEFT_ERR_INVALID, "data parallel: buffer %s is on a device",
                                  weft_module_buffer_name(module, i));
    return WEFT_OK;
}

static weft_status take_parameters(weft_data_parallel *parallel, weft_error **error)
{
    weft_tensors all = weft_module_parameters(parallel->module);
    parallel->parameters = wfi_calloc(all.count, sizeof(*parallel->parameters));
    parallel->gradients = wfi_calloc(all.count, sizeof(*parallel->gradients));
    parallel->order = wfi_calloc(all.count, sizeof(*parallel->order));
    if (!parallel->parameters || !parallel->gradients || !parallel->order)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < all.count; i++) {
        const char *name = weft_module_parameter_name(parallel->module, i);
        if (weft_tensor_requires_grad(all.items[i]))
            parallel->parameters[parallel->count++] =
                (wfi_parallel_parameter){.tensor = all.items[i], .place = i, .name = name ? name : ""};
    }
    if (!parallel->count)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "data parallel: no parameter of the module wants a gradient");
    for (size_t i = 0; i < parallel->count; i++) /* a backward pass computes the last parameters first */
        parallel->order[i] = parallel->count - 1 - i;
    return wfi_buckets_make(parallel, parallel->order);
}

/* This member cannot take part: aborts the group, because the others would wait for it. */
static void end_group(weft_group *group, weft_status status, weft_error **error)
{
    const weft_error *over = weft_group_error(group);
    if (!*error)
        *error = over ? weft_error_ref(over) : weft_error_create(status, "data parallel: %s", weft_status_text(status));
    weft_group_abort(group, *error);
}

static weft_status set_up(weft_data_parallel *parallel, weft_error **error)
{
    bool known = false;
    weft_status status = check_places(parallel->module, error);
    if (!status)
        status = take_parameters(parallel, error);
    if (!status)
        status = wfi_data_parallel_add_hooks(parallel);
    if (!status)
        status = wfi_data_parallel_compare(parallel, &known, error);
    if (!status)
        status = wfi_data_parallel_broadcast(parallel, 0);
    if (status && !known)
        end_group(parallel->group, status, error);
    return status;
}

/* Gives the error to the caller if it asked for it, otherwise to the log. Takes over `why`. */
static void give_error(const weft_group *group, weft_error **error, weft_error *why)
{
    if (why && !error)
        wfi_agent_log(group ? group->agent : NULL, WEFT_LOG_WARN, 0, "%s", weft_error_message(why));
    wfi_error_give(error, why);
}

static weft_data_parallel_options with_defaults(const weft_data_parallel_options *options)
{
    weft_data_parallel_options o = *options;
    o.bucket_bytes = o.bucket_bytes ? o.bucket_bytes : BUCKET_BYTES;
    o.first_bucket_bytes = o.first_bucket_bytes ? o.first_bucket_bytes : FIRST_BUCKET_BYTES;
    return o;
}

/* Why the call is refused; NULL: it is not. */
static weft_error *objection(const weft_group *group, const weft_module *module,
                             const weft_data_parallel_options *options, weft_data_parallel **out)
{
    if (!options)
        return weft_error_create(WEFT_ERR_INVALID, "weft_data_parallel_create: " WFI_NEWER,
                                 "weft_data_parallel_options");
    const char *wrong = !group                               ? "group is NULL"
                        : !module                            ? "module is NULL"
                        : !out                               ? "out is NULL"
                        : options->uneven && options->reduce ? "uneven and reduce do not go together"
                                                             : NULL;
    if (wrong)
        return weft_error_create(WEFT_ERR_INVALID, "weft_data_parallel_create: %s", wrong);
    if (options->timeout_ms < WEFT_FOREVER)
        return weft_error_create(WEFT_ERR_INVALID,
                                 "weft_data_parallel_create: timeout_ms is %lld: 0, more, or WEFT_FOREVER",
                                 (long long)options->timeout_ms);
    return NULL;
}

weft_status weft_data_parallel_create_sized(weft_group *group, weft_module *module,
                                            const weft_data_parallel_options *options, size_t size,
                                            weft_data_parallel **out, weft_error **error)
{
    WFI_CHECK_HANDLE(group, module);
    weft_data_parallel_options own;
    options = WFI_SIZED(options, size, &own);
    weft_error *why = objection(group, module, options, out);
    if (why) {
        give_error(group, error, why);
        return WEFT_ERR_INVALID;
    }
    weft_data_parallel *parallel = wfi_calloc(1, sizeof(*parallel));
    if (!parallel) {
        end_group(group, WEFT_ERR_MEMORY, &why);
        give_error(group, error, why);
        return WEFT_ERR_MEMORY;
    }
    WFI_HANDLE_INIT(parallel);
    atomic_init(&parallel->users, 1);
    atomic_init(&parallel->refs, 1);
    wfi_mutex_init(&parallel->lock);
    parallel->group = group;
    wfi_group_use(group);
    parallel->module = weft_module_ref(module);
    parallel->options = with_defaults(options);
    parallel->syncs = true;
    weft_status status = set_up(parallel, &why);
    give_error(group, error, why);
    if (status)
        weft_data_parallel_unref(parallel);
    else
        *out = parallel;
    return status;
}

/* ---- References and settings ------------------------------------------------------------------------------------- */

weft_data_parallel *weft_data_parallel_ref(weft_data_parallel *parallel)
{
    WFI_CHECK_HANDLE(parallel);
    if (parallel)
        atomic_fetch_add_explicit(&parallel->users, 1, memory_order_relaxed);
    return parallel;
}

void weft_data_parallel_unref(weft_data_parallel *parallel)
{
    WFI_CHECK_HANDLE(parallel);
    if (!parallel)
        return;
    int before = atomic_fetch_sub_explicit(&parallel->users, 1, memory_order_acq_rel);
    if (!WFI_HANDLE_IS_LAST(parallel, before))
        return;
    weft_hooks_unref(parallel->hooks);
    wfi_data_parallel_unref(parallel);
}

weft_hooks *weft_data_parallel_hooks(weft_data_parallel *parallel)
{
    WFI_CHECK_HANDLE(parallel);
    return parallel ? parallel->hooks : NULL;
}

void weft_data_parallel_set_sync(weft_data_parallel *parallel, bool on)
{
    WFI_CHECK_HANDLE(parallel);
    if (!parallel) {
        (void)!wfi_refuse_null("weft_data_parallel_set_sync", "parallel");
        return;
    }
    wfi_mutex_lock(&parallel->lock);
    parallel->syncs = on;
    wfi_mutex_unlock(&parallel->lock);
}

weft_gradients weft_data_parallel_gradients(weft_data_parallel *parallel)
{
    WFI_CHECK_HANDLE(parallel);
    if (!parallel)
        return (weft_gradients){0};
    return (weft_gradients){parallel->gradients, weft_module_parameters(parallel->module).count};
}
