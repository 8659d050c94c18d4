/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - whether all members have the same kind of module and the same options; and copies of member 0's values.
 *
 * All members exchange a hash of their module, and their options. If the hashes differ, they also exchange the names
 * and shapes of their tensors, for the error. All members compare the same lists, so all come to the same result.
 */
#include "data_parallel/data_parallel.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/map.h"
#include "base/utf8.h"
#include "tensor/tensor.h"
#include "future/future.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS 6       /* that are compared */
#define NAMES_MOST 1000 /* parameters and buffers that are named: the most that a list of values may have */

/* ---- Comparing modules ------------------------------------------------------------------------------------------- */

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
    size_t used = (size_t)snprintf(text, room, "%.*s %s [", wfi_utf8_fit(name ? name : "", 160), name ? name : "",
                                   weft_dtype_name(tensor->dtype));
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
        describe(module, i, text, sizeof(text));
        hash = hash * 1099511628211u ^ wfi_hash_bytes(text, strlen(text));
    }
    return hash;
}

/* The list of a member. It may be anything, because another program may have sent it. */
static weft_args given(const weft_values *all, size_t member)
{
    return weft_values_args(all).items[member].as.list;
}

/* The first member whose list is not a hash and options, because it called something else. The group's size: none. */
static size_t first_stray(const weft_values *all)
{
    size_t member = 0;
    for (; member < weft_values_args(all).count; member++)
        if (given(all, member).count != 1 + OPTIONS || given(all, member).items[0].type != WEFT_TYPE_I64)
            break;
    return member;
}

static int64_t hash_in(const weft_values *all, size_t member)
{
    return given(all, member).items[0].as.i64;
}

/* Item i of the list of that member, as text. */
static void text_in(const weft_values *all, size_t member, size_t i, char text[TEXT_MAX])
{
    weft_args list = given(all, member);
    if (i < list.count && list.items[i].type != WEFT_TYPE_STRING)
        snprintf(text, TEXT_MAX, "no name");
    else if (i < list.count)
        snprintf(text, TEXT_MAX, "%.*s", (int)list.items[i].as.bytes.size, (const char *)list.items[i].as.bytes.data);
    else
        snprintf(text, TEXT_MAX, "nothing more");
}

/* The hashes of members 0 and `other` differ: finds the first tensor that does, for the error. */
static weft_status compare_names(weft_data_parallel *parallel, size_t other, bool *known, weft_error **error)
{
    const weft_module *module = parallel->module;
    size_t count = tensors_of(module), listed = count < NAMES_MOST ? count : NAMES_MOST;
    char(*texts)[TEXT_MAX] = wfi_calloc(listed, sizeof(*texts));
    weft_value *items = wfi_calloc(listed, sizeof(*items));
    weft_values *all = NULL;
    weft_status status = texts && items ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < listed && !status; i++) {
        describe(module, i, texts[i], sizeof(texts[i]));
        items[i] = weft_of_string(texts[i]);
    }
    if (!status)
        status = weft_group_allgather_values(parallel->group, (weft_args){items, listed}, parallel->options.timeout_ms,
                                             &all);
    if (!status) {
        size_t i = 0;
        char here[TEXT_MAX], there[TEXT_MAX];
        do {
            text_in(all, 0, i, here);
            text_in(all, other, i, there);
        } while (!strcmp(here, there) && i++ < NAMES_MOST);
        *known = true;
        if (i > NAMES_MOST)
            status = wfi_error_fail(error, WEFT_ERR_INVALID,
                                    "data parallel: the modules differ: members 0 and %zu have the same first %d "
                                    "tensors, and then others",
                                    other, NAMES_MOST);
        else
            status = wfi_error_fail(error, WEFT_ERR_INVALID,
                                    "data parallel: the modules differ: member %zu has %s where member 0 has %s", other,
                                    there, here);
    }
    weft_values_unref(all);
    free(texts);
    free(items);
    return status;
}

/* ---- Comparing options ------------------------------------------------------------------------------------------- */

/* "find_unused true", each. What is told apart is what a pass does: a time limit and an argument are a member's own. */
static void describe_options(const weft_data_parallel_options *o, char texts[OPTIONS][TEXT_MAX])
{
    const char *reduce = !o->reduce                          ? "NULL"
                         : o->reduce == weft_bucket_bfloat16 ? "weft_bucket_bfloat16"
                                                             : "a function of the program's";
    size_t i = 0;
    snprintf(texts[i++], TEXT_MAX, "find_unused %s", o->find_unused ? "true" : "false");
    snprintf(texts[i++], TEXT_MAX, "uneven %s", o->uneven ? "true" : "false");
    snprintf(texts[i++], TEXT_MAX, "divide_by_all %s", o->divide_by_all ? "true" : "false");
    snprintf(texts[i++], TEXT_MAX, "bucket_bytes %zu", o->bucket_bytes);
    snprintf(texts[i++], TEXT_MAX, "first_bucket_bytes %zu", o->first_bucket_bytes);
    snprintf(texts[i++], TEXT_MAX, "reduce %s", reduce);
    assert(i == OPTIONS);
}

/* The options are behind the hash. */
static weft_status compare_options(const weft_values *all, bool *known, weft_error **error)
{
    char here[TEXT_MAX], there[TEXT_MAX];
    for (size_t other = 1; other < weft_values_args(all).count; other++)
        for (size_t i = 1; i <= OPTIONS; i++) {
            text_in(all, 0, i, here);
            text_in(all, other, i, there);
            if (!strcmp(here, there))
                continue;
            *known = true;
            return wfi_error_fail(error, WEFT_ERR_INVALID,
                                  "data parallel: the options differ: member %zu has %s where member 0 has %s", other,
                                  there, here);
        }
    return WEFT_OK;
}

/* ---- Comparing both ---------------------------------------------------------------------------------------------- */

static weft_status exchange(const weft_data_parallel *parallel, weft_values **all)
{
    char options[OPTIONS][TEXT_MAX];
    weft_value mine[1 + OPTIONS] = {weft_of_i64((int64_t)hash_of(parallel->module))};
    describe_options(&parallel->options, options);
    for (size_t i = 0; i < OPTIONS; i++)
        mine[1 + i] = weft_of_string(options[i]);
    return weft_group_allgather_values(parallel->group, (weft_args){mine, 1 + OPTIONS}, parallel->options.timeout_ms,
                                       all);
}

weft_status wfi_data_parallel_compare(weft_data_parallel *parallel, bool *known, weft_error **error)
{
    weft_group *group = parallel->group;
    weft_values *all;
    weft_status status = exchange(parallel, &all);
    if (status)
        return status;
    size_t other = first_stray(all);
    if (other < weft_group_size(group)) {
        weft_values_unref(all);
        *known = true;
        return wfi_error_fail(error, WEFT_ERR_STATE,
                              "data parallel: member %zu (rank %d) called something else meanwhile", other,
                              weft_group_member(group, other));
    }
    status = compare_options(all, known, error);
    other = 1;
    while (other < weft_group_size(group) && hash_in(all, other) == hash_in(all, 0))
        other++;
    weft_values_unref(all);
    return status || other == weft_group_size(group) ? status : compare_names(parallel, other, known, error);
}

/* ---- Copies of values -------------------------------------------------------------------------------------------- */

static weft_status wait_for(weft_future **futures, size_t count, weft_status status)
{
    for (size_t i = 0; i < count && futures; i++) {
        weft_status ended = futures[i] ? wfi_future_wait(futures[i], WEFT_FOREVER) : WEFT_OK;
        status = status ? status : ended;
        weft_future_unref(futures[i]);
    }
    return status;
}

/* One broadcast for each tensor, all at once. The module gets the values when all have arrived: if a member dies
 * meanwhile, it has either its own values or the root's, and no mixture. */
weft_status wfi_data_parallel_broadcast(weft_data_parallel *parallel, size_t root)
{
    const weft_module *module = parallel->module;
    size_t count = tensors_of(module);
    bool gives = root == (size_t)weft_group_index(parallel->group);
    weft_future **futures = wfi_calloc(count, sizeof(*futures));
    weft_tensor **values = wfi_calloc(count, sizeof(*values));
    weft_status status = futures && values ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < count && !status; i++) {
        weft_tensor *tensor = tensor_of(module, i);
        values[i] = gives ? weft_tensor_ref(tensor)
                          : wfi_tensor_empty(weft_tensor_shape(tensor), weft_tensor_dtype(tensor), NULL);
        status = !values[i] ? WEFT_ERR_MEMORY
                            : weft_group_broadcast_async(parallel->group, values[i], root, parallel->options.timeout_ms,
                                                         &futures[i]);
    }
    status = wait_for(futures, count, status);
    for (size_t i = 0; i < count && values; i++) {
        if (!status && !gives)
            status = weft_tensor_assign(tensor_of(module, i), values[i]);
        weft_tensor_unref(values[i]);
    }
    free(futures);
    free(values);
    return status;
}
