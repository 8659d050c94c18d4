/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer.c - a distributed optimizer, on the worker that created it (weft/dist_optim.h). Each owner of
 * parameters has an optimizer over its own ones (part.c), which a handle names. A step is one call to each owner,
 * or the messages of a backward pass name the handles (dist/pass.h). PyTorch's DistributedOptimizer is built like
 * this.
 */
#include "base/alloc.h"
#include "base/handle.h"
#include "base/text/sized.h"
#include "dist/pass.h"
#include "optim/rules.h"
#include "remote/owners.h"
#include "remote/remote.h"
#include "rpc/client/client.h"

#include <weft/dist_optim.h>

#include <math.h>
#include <stdlib.h>

/* A program that links this links the component as well. */
__attribute__((used)) static const wfi_component *const linked = &wfi_remote_component;

/* ---- Creating ---------------------------------------------------------------------------------------------------- */

weft_dist_optimizer *weft_dist_optimizer_ref(weft_dist_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    if (optimizer)
        atomic_fetch_add(&optimizer->refs, 1);
    return optimizer;
}

void weft_dist_optimizer_unref(weft_dist_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer)
        return;
    int before = atomic_fetch_sub(&optimizer->refs, 1);
    if (!WFI_HANDLE_IS_LAST(optimizer, before))
        return;
    for (size_t i = 0; i < optimizer->count; i++)
        weft_rref_unref(optimizer->parts[i]);
    free(optimizer->parts);
    wfi_agent_unref(optimizer->agent);
    wfi_handle_free(optimizer);
}

size_t weft_dist_optimizer_owners(const weft_dist_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    return optimizer ? optimizer->count : 0;
}

/* Whether an earlier parameter has the same owner. */
static bool came_before(weft_rref *const *parameters, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (weft_rref_owner(parameters[i]) == weft_rref_owner(parameters[index]))
            return true;
    return false;
}

/* Waits until the value of a handle is made. */
static weft_status await_created(weft_rref *rref, weft_error **error)
{
    weft_future *made = weft_rref_created(rref);
    if (!made)
        return WEFT_ERR_MEMORY;
    weft_status status = wfi_future_wait(made, WEFT_FOREVER);
    if (status && weft_future_error(made))
        *error = weft_error_ref((weft_error *)weft_future_error(made));
    weft_future_unref(made);
    return status;
}

/*
 * A call has at most WEFT_MAX_VALUES arguments: replaces the parameters items[0 .. count - 1] by fewer handles,
 * each to a list of parameters at their owner. Afterwards items[0 .. *pages - 1] are these handles, referenced.
 */
static weft_status gather_pages(weft_agent *agent, int owner, weft_value *items, size_t count, size_t *pages,
                                weft_error **error)
{
    weft_status status = WEFT_OK;
    *pages = 0;
    for (size_t at = 0; at < count && !status; at += WFI_REMOTE_PAGE) {
        weft_rref *page;
        size_t size = count - at < WFI_REMOTE_PAGE ? count - at : WFI_REMOTE_PAGE;
        status = weft_rpc_remote(agent, weft_to_rank(owner), "weft:tensors", (weft_args){items + at, size},
                                 &(weft_rpc_options){.error = error}, &page);
        if (!status)
            items[(*pages)++] = weft_of_rref(page);
    }
    for (size_t i = 0; i < *pages && !status; i++)
        status = await_created(items[i].as.rref, error);
    return status;
}

/* Creates the optimizer at the owner of parameters[first], over all parameters of that owner. */
static weft_status create_part(weft_dist_optimizer *optimizer, weft_rref *const *parameters, size_t count, size_t first,
                               const wfi_writer *spec, weft_error **error)
{
    int owner = weft_rref_owner(parameters[first]);
    weft_value *items = wfi_calloc(count + 1, sizeof(*items));
    size_t used = 1, pages = 0;
    weft_status status = items ? WEFT_OK : WEFT_ERR_MEMORY;
    if (status)
        return status;
    items[0] = weft_of_bytes(spec->data, spec->size);
    for (size_t i = first; i < count; i++)
        if (weft_rref_owner(parameters[i]) == owner)
            items[used++] = weft_of_rref(parameters[i]);
    if (used > WEFT_MAX_VALUES) {
        status = gather_pages(optimizer->agent, owner, items + 1, used - 1, &pages, error);
        used = 1 + pages;
    }
    if (!status)
        status = weft_rpc_remote(optimizer->agent, weft_to_rank(owner), "weft:optimizer", (weft_args){items, used},
                                 &(weft_rpc_options){.error = error}, &optimizer->parts[optimizer->count]);
    optimizer->count += !status;
    for (size_t i = 0; i < pages; i++)
        weft_rref_unref(items[1 + i].as.rref);
    free(items);
    return status;
}

/* One optimizer at each owner; waits until all are created. */
static weft_status create_parts(weft_dist_optimizer *optimizer, weft_rref *const *parameters, size_t count,
                                const weft_optimizer_spec *spec, weft_error **error)
{
    wfi_writer bytes;
    wfi_writer_init_growing(&bytes);
    wfi_remote_spec_write(spec, &bytes);
    weft_status status = bytes.failed ? WEFT_ERR_MEMORY : WEFT_OK;
    for (size_t i = 0; i < count && !status; i++)
        if (!came_before(parameters, i))
            status = create_part(optimizer, parameters, count, i, &bytes, error);
    wfi_writer_fini(&bytes);
    for (size_t i = 0; i < optimizer->count && !status; i++)
        status = await_created(optimizer->parts[i], error);
    return status;
}

/* The parameters of a new optimizer: handles to all that the program has named, each referenced. */
typedef struct parameters {
    weft_rref **items;
    size_t count, capacity;
} parameters;

static void drop_parameters(parameters *all)
{
    for (size_t i = 0; i < all->count; i++)
        weft_rref_unref(all->items[i]);
    free(all->items);
}

/* Adds a handle to what the value names: the handle itself, or a new one to tensors of this worker. */
static weft_status add_parameter(weft_agent *agent, parameters *all, const weft_value *value, weft_error **error)
{
    const char *wrong = NULL;
    if (value->type == WEFT_TYPE_RREF)
        wrong = value->as.rref ? NULL : "NULL";
    else if (value->type == WEFT_TYPE_TENSOR)
        wrong = value->as.tensor ? NULL : "NULL";
    else if (value->type == WEFT_TYPE_TENSORS)
        wrong = value->as.tensors.count ? NULL : "a list without tensors";
    else
        return wfi_refuse_to(error, WEFT_ERR_TYPE,
                             "a distributed optimizer: parameter %zu is of type %s: expected a handle, tensors, or a "
                             "list of these",
                             all->count, weft_type_name(value->type));
    if (wrong)
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "a distributed optimizer: parameter %zu is %s", all->count,
                             wrong);
    weft_rref **items = wfi_grow(all->items, all->count, &all->capacity, sizeof(*items));
    if (!items)
        return WEFT_ERR_MEMORY;
    all->items = items;
    weft_status status = WEFT_OK;
    if (value->type == WEFT_TYPE_RREF)
        items[all->count] = weft_rref_ref(value->as.rref);
    else
        status = weft_rref_create(agent, *value, &items[all->count], error);
    all->count += !status;
    return status;
}

static weft_status add_parameters(weft_agent *agent, parameters *all, weft_args list, int depth, weft_error **error)
{
    weft_status status = depth <= WEFT_MAX_LIST_DEPTH ? WEFT_OK : WEFT_ERR_TOO_LARGE;
    for (size_t i = 0; i < list.count && !status; i++)
        status = list.items[i].type == WEFT_TYPE_LIST
                     ? add_parameters(agent, all, list.items[i].as.list, depth + 1, error)
                     : add_parameter(agent, all, &list.items[i], error);
    return status;
}

/* Makes the optimizer over `all`, which is not empty; waits until all owners have made their parts. */
static weft_status create(weft_agent *agent, const parameters *all, const weft_optimizer_spec *spec,
                          weft_dist_optimizer **out, weft_error **error)
{
    weft_dist_optimizer *optimizer = wfi_calloc(1, sizeof(*optimizer));
    weft_rref **parts = optimizer ? wfi_calloc(all->count, sizeof(*parts)) : NULL;
    if (!parts) {
        free(optimizer);
        return WEFT_ERR_MEMORY;
    }
    WFI_HANDLE_INIT(optimizer);
    atomic_init(&optimizer->refs, 1);
    optimizer->agent = wfi_agent_ref(agent);
    optimizer->parts = parts;
    optimizer->type = spec->type;
    atomic_init(&optimizer->lr, spec->lr);
    atomic_init(&optimizer->sets, 0);
    weft_status status = create_parts(optimizer, all->items, all->count, spec, error);
    if (status)
        weft_dist_optimizer_unref(optimizer);
    else
        *out = optimizer;
    return status;
}

weft_status weft_dist_optimizer_create_sized(weft_agent *agent, weft_args list, const weft_optimizer_spec *spec,
                                             size_t size, weft_dist_optimizer **out, weft_error **error)
{
    WFI_CHECK_HANDLE(agent);
    weft_error *why = NULL;
    parameters all = {NULL, 0, 0};
    const char *missing = !agent                      ? "the agent"
                          : list.count && !list.items ? "the list of parameters"
                          : !spec                     ? "the spec"
                          : !out                      ? "out"
                                                      : NULL;
    if (missing)
        return wfi_refuse_null_to(error, "weft_dist_optimizer_create", missing);
    if (list.count > PTRDIFF_MAX / sizeof(weft_value) - 1)
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "a distributed optimizer: count is %zu: at most %zu", list.count,
                             (size_t)PTRDIFF_MAX / sizeof(weft_value) - 1);
    weft_optimizer_spec complete;
    why = wfi_optimizer_spec_copy(spec, size, &complete); /* before any owner is called */
    weft_status status =
        why ? weft_error_code(why)
            : wfi_rpc_may_wait(agent, "weft_dist_optimizer_create", &(weft_rpc_options){.error = &why});
    if (!status)
        status = add_parameters(agent, &all, list, 1, &why);
    if (!status && !all.count)
        status = wfi_refuse_to(&why, WEFT_ERR_INVALID, "a distributed optimizer: no parameters are given");
    if (!status)
        status = create(agent, &all, &complete, out, &why);
    drop_parameters(&all);
    if (status && !why)
        why = weft_error_create(status, "a distributed optimizer: %s", weft_status_text(status));
    wfi_refuse_with(error, why);
    return status;
}

/* ---- Stepping ---------------------------------------------------------------------------------------------------- */

weft_status wfi_owners_may_wait(const weft_dist_optimizer *optimizer, const char *what, weft_error **error)
{
    if (!optimizer)
        return wfi_refuse_null_to(error, what, "the optimizer");
    return wfi_rpc_may_wait(optimizer->agent, what, &(weft_rpc_options){.error = error});
}

weft_status wfi_owners_end(weft_status status, const char *what, weft_error *why, weft_error **error)
{
    if (status && !why)
        why = weft_error_create(status, "%s: %s", what, weft_status_text(status));
    wfi_refuse_with(error, why);
    return status;
}

/* The first failure of several is returned; the log has the others. Takes over `why`. */
static void note_failure(const weft_dist_optimizer *optimizer, const char *function, size_t owner, weft_status status,
                         weft_error *why, weft_status *first, weft_error **error)
{
    if (!*first) {
        *first = status;
        *error = why;
        return;
    }
    wfi_agent_log(optimizer->agent, WEFT_LOG_WARN, 0, "%s failed at rank %d as well: %s", function,
                  weft_rref_owner(optimizer->parts[owner]), why ? weft_error_message(why) : weft_status_text(status));
    weft_error_unref(why);
}

weft_status wfi_owners_call(const weft_dist_optimizer *optimizer, const wfi_owner_calls *call, weft_values **results,
                            weft_error **error)
{
    weft_future **futures = wfi_calloc(optimizer->count, sizeof(*futures));
    weft_status first = futures ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; futures && i < optimizer->count; i++) {
        weft_error *unsent = NULL;
        const wfi_reserved_call one = {.function = call->function,
                                       .arguments = call->each ? call->each[i] : call->same,
                                       .timeout_ms = call->timeout_ms};
        if (call->each && !one.arguments.items)
            continue;
        weft_status status = wfi_rref_start_reserved(optimizer->parts[i], &one, &futures[i], &unsent);
        if (status)
            note_failure(optimizer, call->function, i, status, unsent, &first, error);
        else
            weft_error_unref(unsent);
    }
    for (size_t i = 0; futures && i < optimizer->count; i++) {
        if (!futures[i])
            continue;
        weft_status status = wfi_future_wait(futures[i], WEFT_FOREVER);
        if (status)
            note_failure(optimizer, call->function, i, status, weft_error_ref(weft_future_error(futures[i])), &first,
                         error);
        else if (results)
            results[i] = weft_values_ref((weft_values *)weft_future_values(futures[i]));
        weft_future_unref(futures[i]);
    }
    free(futures);
    return first;
}

void wfi_owners_drop(const weft_dist_optimizer *optimizer, weft_values **results)
{
    for (size_t i = 0; results && i < optimizer->count; i++)
        weft_values_unref(results[i]);
    free(results);
}

/*
 * *factor: by which the gradients are multiplied, so that their norm over all owners is at most max_norm. The norm is
 * the root of the sum of the squared norms of the owners, in their order.
 */
static weft_status clip(const weft_dist_optimizer *optimizer, weft_value contexts, const weft_dist_step_options *how,
                        double *factor, weft_error **error)
{
    weft_values **norms = wfi_calloc(optimizer->count, sizeof(*norms));
    const wfi_owner_calls call = {"weft:norm", WEFT_VALUES(contexts), NULL, how->timeout_ms};
    weft_status status = norms ? wfi_owners_call(optimizer, &call, norms, error) : WEFT_ERR_MEMORY;
    double squares = 0, there;
    for (size_t i = 0; i < optimizer->count && !status; i++) {
        status = weft_values_get_f64(norms[i], 0, &there);
        if (!status)
            squares += there * there;
    }
    wfi_owners_drop(optimizer, norms);
    double norm = sqrt(squares);
    if (how->norm)
        *how->norm = norm;
    if (!status && how->error_if_nonfinite && !isfinite(norm))
        return wfi_refuse_to(
            error, WEFT_ERR_INVALID,
            "a step: the norm of the gradients is %g and error_if_nonfinite is set: no owner has stepped", norm);
    if (how->max_norm > 0)
        *factor = wfi_clip_factor(norm, how->max_norm);
    return status;
}

/* Names a context, and the passes over it that have failed: their gradients do not count. */
static void write_context(weft_context *context, wfi_writer *out)
{
    weft_context_id id = weft_context_get_id(context);
    wfi_write_u32(out, id.rank);
    wfi_write_u32(out, id.incarnation);
    wfi_write_u64(out, id.number);
    wfi_passes_write_failed(context, out);
}

weft_status weft_dist_optimizer_step_sized(weft_dist_optimizer *optimizer, weft_context *const *contexts, size_t count,
                                           const weft_dist_step_options *options, size_t size)
{
    WFI_CHECK_HANDLE(optimizer);
    weft_dist_step_options own;
    const weft_dist_step_options *how = WFI_SIZED(options, size, &own);
    weft_error *error = NULL;
    double factor = 1;
    wfi_writer ids;
    const char *missing = !optimizer ? "the optimizer" : count && !contexts ? "the list of contexts" : NULL;
    for (size_t i = 0; i < count && !missing; i++)
        missing = contexts[i] ? NULL : "a context";
    if (!how)
        return wfi_refuse_newer(options->error, "a step", "weft_dist_step_options");
    if (missing && !how->error)
        return wfi_refuse_null("weft_dist_optimizer_step", missing);
    if (missing)
        return wfi_refuse_to(how->error, WEFT_ERR_INVALID, "a step: %s is NULL", missing);
    if (!(how->max_norm >= 0))
        return wfi_refuse_to(how->error, WEFT_ERR_INVALID, "a step: max_norm is %g: 0, or more", how->max_norm);
    wfi_writer_init_growing(&ids);
    weft_status status =
        wfi_rpc_may_wait(optimizer->agent, "weft_dist_optimizer_step", &(weft_rpc_options){.error = &error});
    for (size_t i = 0; i < count && !status; i++)
        write_context(contexts[i], &ids);
    if (!status && ids.failed)
        status = WEFT_ERR_MEMORY;
    weft_value all = weft_of_bytes(ids.data, ids.size);
    if (!status && (how->max_norm > 0 || how->error_if_nonfinite))
        status = clip(optimizer, all, how, &factor, &error);
    if (!status)
        status = wfi_owners_call(
            optimizer, &(wfi_owner_calls){"weft:step", WEFT_VALUES(all, weft_of_f64(factor)), NULL, how->timeout_ms},
            NULL, &error);
    wfi_writer_fini(&ids);
    if (status && !error)
        error = weft_error_create(status, "a step: %s", weft_status_text(status));
    wfi_refuse_with(how->error, error);
    return status;
}

/* ---- The rate ---------------------------------------------------------------------------------------------------- */

weft_status weft_dist_optimizer_set_lr(weft_dist_optimizer *optimizer, double lr, int64_t timeout_ms,
                                       weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    weft_error *why = NULL;
    weft_status status = wfi_owners_may_wait(optimizer, "weft_dist_optimizer_set_lr", &why);
    if (!status && !wfi_option_is_not_negative(lr)) {
        why = wfi_bad_option(optimizer->type->name, "lr", lr, "finite and not negative");
        status = WEFT_ERR_INVALID;
    }
    if (!status)
        status = wfi_owners_call(
            optimizer, &(wfi_owner_calls){"weft:rate", WEFT_VALUES(weft_of_f64(lr)), NULL, timeout_ms}, NULL, &why);
    if (!status)
        atomic_store(&optimizer->lr, lr);
    return wfi_owners_end(status, "weft_dist_optimizer_set_lr", why, error);
}

double weft_dist_optimizer_lr(const weft_dist_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    return optimizer ? atomic_load(&optimizer->lr) : 0;
}
