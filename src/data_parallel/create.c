/* SPDX-License-Identifier: Apache-2.0 */
/* create.c - making one: the modules are compared, and all get member 0's values. And its end. */
#include "data_parallel/data_parallel.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/map.h"
#include "coll/group.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define NAMES_MOST 1000 /* so many parameters and buffers are named, of those that a value can list */

/* ---- Are the modules alike? --------------------------------------------------------------------------------------- */

static const char *name_of(const weft_module *module, size_t i)
{
    size_t parameters = weft_module_parameters(module).count;
    return i < parameters ? weft_module_parameter_name(module, i) : weft_module_buffer_name(module, i - parameters);
}

static weft_tensor *tensor_of(const weft_module *module, size_t i)
{
    weft_tensors parameters = weft_module_parameters(module), buffers = weft_module_buffers(module);
    return i < parameters.count ? parameters.items[i] : buffers.items[i - parameters.count];
}

static size_t tensors_of(const weft_module *module)
{
    return weft_module_parameters(module).count + weft_module_buffers(module).count;
}

/* "conv1.weight float32 [32, 1, 3, 3]" */
static void describe(const weft_module *module, size_t i, char *text, size_t room)
{
    const weft_tensor *tensor = tensor_of(module, i);
    const char *name = name_of(module, i);
    size_t used = (size_t)snprintf(text, room, "%.160s %s [", name ? name : "", weft_dtype_name(tensor->dtype));
    for (int d = 0; d < tensor->shape.ndim && used < room; d++)
        used += (size_t)snprintf(text + used, room - used, d ? ", %lld" : "%lld", (long long)tensor->shape.dims[d]);
    if (used < room)
        snprintf(text + used, room - used, "]%s", weft_tensor_requires_grad(tensor) ? "" : " fixed");
}

#define TEXT_MAX 320

static uint64_t hash_of(const weft_module *module)
{
    uint64_t hash = tensors_of(module);
    char text[TEXT_MAX];
    for (size_t i = 0; i < tensors_of(module); i++) {
        describe(module, i, text, sizeof text);
        hash = hash * 1099511628211u ^ wfi_hash_bytes(text, strlen(text));
    }
    return hash;
}

/* What a member gave; nothing of it is believed. */
static weft_args given(const weft_values *all, size_t member)
{
    return weft_values_args(all).items[member].as.list;
}

/* The first member that gave something else than the hash of its module; the group's size: all gave one. */
static size_t not_in_step(const weft_values *all)
{
    size_t member = 0;
    for (; member < weft_values_args(all).count; member++)
        if (given(all, member).count != 1 || given(all, member).items[0].type != WEFT_I64)
            break;
    return member;
}

static int64_t hash_in(const weft_values *all, size_t member)
{
    return given(all, member).items[0].as.i64;
}

/* What that member says of its i-th tensor. */
static void text_in(const weft_values *all, size_t member, size_t i, char text[TEXT_MAX])
{
    weft_args list = given(all, member);
    if (i < list.count && list.items[i].type != WEFT_STRING)
        snprintf(text, TEXT_MAX, "no name");
    else if (i < list.count)
        snprintf(text, TEXT_MAX, "%.*s", (int)list.items[i].as.bytes.size, (const char *)list.items[i].as.bytes.data);
    else
        snprintf(text, TEXT_MAX, "nothing more");
}

static weft_status compare_names(weft_group *group, const weft_module *module, size_t other, weft_error **error)
{
    size_t count = tensors_of(module), listed = count < NAMES_MOST ? count : NAMES_MOST;
    char(*texts)[TEXT_MAX] = wfi_calloc(listed + 1, sizeof *texts);
    weft_value *items = wfi_calloc(listed + 1, sizeof *items);
    weft_values *all = NULL;
    weft_status st = texts && items ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < listed && !st; i++) {
        describe(module, i, texts[i], sizeof texts[i]);
        items[i] = weft_of_string(texts[i]);
    }
    if (!st)
        st = weft_group_allgather_values(group, (weft_args){items, listed}, 0, &all);
    if (!st) {
        size_t i = 0;
        char here[TEXT_MAX], there[TEXT_MAX];
        do {
            text_in(all, 0, i, here);
            text_in(all, other, i, there);
        } while (!strcmp(here, there) && i++ < NAMES_MOST);
        if (i > NAMES_MOST)
            snprintf(there, sizeof there, "something else behind its first %d tensors than what follows there",
                     NAMES_MOST);
        st = wfi_error_fail(error, WEFT_ERR_INVALID,
                            "data parallel: the modules differ: member %zu has %s where member 0 has %s", other, there,
                            here);
    }
    weft_values_unref(all);
    free(texts);
    free(items);
    return st;
}

static weft_status compare(weft_group *group, const weft_module *module, weft_error **error)
{
    weft_values *all;
    weft_status st = weft_group_allgather_values(group, WEFT_VALUES(weft_of_i64((int64_t)hash_of(module))), 0, &all);
    if (st)
        return st;
    size_t other = not_in_step(all);
    if (other < weft_group_size(group)) {
        weft_values_unref(all);
        return wfi_error_fail(error, WEFT_ERR_STATE,
                              "data parallel: member %zu (rank %d) called something else meanwhile", other,
                              weft_group_member(group, other));
    }
    other = 1;
    while (other < weft_group_size(group) && hash_in(all, other) == hash_in(all, 0))
        other++;
    weft_values_unref(all);
    return other == weft_group_size(group) ? WEFT_OK : compare_names(group, module, other, error);
}

/* All values of member 0, in as many operations as there are tensors, at once. */
static weft_status share_values(weft_group *group, const weft_module *module)
{
    size_t count = tensors_of(module), begun = 0;
    weft_future **futures = wfi_calloc(count + 1, sizeof(*futures));
    weft_status st = futures ? WEFT_OK : WEFT_ERR_MEMORY;
    for (; begun < count && !st; begun += !st)
        st = weft_group_broadcast_async(group, tensor_of(module, begun), 0, 0, &futures[begun]);
    for (size_t i = 0; i < begun; i++) {
        weft_status ended = weft_future_wait(futures[i], WEFT_FOREVER);
        st = st ? st : ended;
        weft_future_unref(futures[i]);
    }
    free(futures);
    return st;
}

/* ---- Making one -------------------------------------------------------------------------------------------------- */

static weft_status take_parameters(weft_data_parallel *parallel, weft_error **error)
{
    weft_tensors all = weft_module_parameters(parallel->module);
    parallel->parameters = wfi_calloc(all.count + 1, sizeof *parallel->parameters);
    parallel->gradients = wfi_calloc(all.count + 1, sizeof *parallel->gradients);
    parallel->order = wfi_calloc(all.count + 1, sizeof *parallel->order);
    if (!parallel->parameters || !parallel->gradients || !parallel->order)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < all.count; i++) {
        const char *name = weft_module_parameter_name(parallel->module, i);
        if (wfi_tensor_kind(all.items[i]) == WFI_MEMORY_CUDA)
            return wfi_error_fail(error, WEFT_ERR_INVALID, "data parallel: parameter %s is on a device", name);
        if (weft_tensor_requires_grad(all.items[i]))
            parallel->parameters[parallel->count++] =
                (wfi_parallel_parameter){.tensor = all.items[i], .place = i, .name = name ? name : ""};
    }
    if (!parallel->count)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "data parallel: no parameter of the module wants a gradient");
    for (size_t i = 0; i < parallel->count; i++) /* gradients come about the other way round */
        parallel->order[i] = parallel->count - 1 - i;
    return wfi_buckets_make(parallel, parallel->order);
}

static weft_status set_up(weft_data_parallel *parallel, weft_error **error)
{
    weft_status st = take_parameters(parallel, error);
    if (!st)
        st = wfi_parallel_add_hooks(parallel);
    if (st) { /* of this member alone, perhaps: the others would wait for it */
        if (!*error)
            *error = weft_error_create(st, "data parallel: %s", weft_status_text(st));
        weft_group_abort(parallel->group, *error);
        return st;
    }
    st = compare(parallel->group, parallel->module, error);
    return st ? st : share_values(parallel->group, parallel->module);
}

/* Whoever asked for the error gets it; else the log does. Takes over `why`. */
static void give_error(const weft_group *group, weft_error **error, weft_error *why)
{
    if (why && !error)
        wfi_log_agent(group ? group->agent : NULL, WEFT_LOG_WARN, 0, "%s", weft_error_message(why));
    wfi_error_give(error, why);
}

weft_status weft_data_parallel_create(weft_group *group, weft_module *module, const weft_data_parallel_options *options,
                                      weft_data_parallel **out, weft_error **error)
{
    weft_error *why = NULL;
    const char *wrong = !group                                          ? "group is NULL"
                        : !module                                       ? "module is NULL"
                        : !out                                          ? "out is NULL"
                        : options && options->uneven && options->reduce ? "uneven and reduce do not go together"
                                                                        : NULL;
    if (wrong) {
        give_error(group, error, weft_error_create(WEFT_ERR_INVALID, "weft_data_parallel_create: %s", wrong));
        return WEFT_ERR_INVALID;
    }
    weft_data_parallel *parallel = wfi_calloc(1, sizeof *parallel);
    if (!parallel)
        return wfi_error_fail(error, WEFT_ERR_MEMORY, "weft_data_parallel_create: no memory");
    atomic_init(&parallel->users, 1);
    atomic_init(&parallel->refs, 1);
    wfi_mutex_init(&parallel->lock);
    parallel->group = wfi_group_ref(group);
    parallel->module = weft_module_ref(module);
    parallel->options = options ? *options : (weft_data_parallel_options){0};
    parallel->syncs = true;
    weft_status st = set_up(parallel, &why);
    if (st && !why)
        why = weft_group_error(group) ? weft_error_ref(weft_group_error(group))
                                      : weft_error_create(st, "data parallel: %s", weft_status_text(st));
    give_error(group, error, why);
    if (st)
        weft_data_parallel_unref(parallel);
    else
        *out = parallel;
    return st;
}

/* ---- Its life ---------------------------------------------------------------------------------------------------- */

weft_data_parallel *weft_data_parallel_ref(weft_data_parallel *parallel)
{
    if (parallel)
        atomic_fetch_add_explicit(&parallel->users, 1, memory_order_relaxed);
    return parallel;
}

void weft_data_parallel_unref(weft_data_parallel *parallel)
{
    if (!parallel || atomic_fetch_sub_explicit(&parallel->users, 1, memory_order_acq_rel) != 1)
        return;
    weft_hooks_unref(parallel->hooks);
    wfi_parallel_unref(parallel);
}

weft_hooks *weft_data_parallel_hooks(weft_data_parallel *parallel)
{
    return parallel ? parallel->hooks : NULL;
}

void weft_data_parallel_set_sync(weft_data_parallel *parallel, bool on)
{
    if (parallel)
        parallel->syncs = on;
    else
        (void)!wfi_refuse_null("weft_data_parallel_set_sync", "parallel");
}

weft_gradients weft_data_parallel_gradients(weft_data_parallel *parallel)
{
    if (!parallel)
        return (weft_gradients){0};
    return (weft_gradients){parallel->gradients, weft_module_parameters(parallel->module).count};
}
