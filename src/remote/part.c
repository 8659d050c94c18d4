/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part.c - the part of a distributed optimizer at an owner: an optimizer over the owner's parameters, which handles
 * name, and the functions by which optimizer.c creates and steps it. They run on worker threads; the part's lock lets
 * one at a time use the optimizer.
 */
#include "autograd/gradient.h"
#include "base/alloc.h"
#include "base/error.h"
#include "dist/contexts.h"
#include "dist/pass.h"
#include "remote/part.h"
#include "remote/remote.h"
#include "rpc/refs/refs.h"
#include "tensor/tensor.h"
#include "value/walk.h"

#include <weft/ops.h>
#include <weft/optim.h>
#include <weft/remote_module.h>

#include <stdlib.h>
#include <string.h>

/* The tensors, and the parameters of modules, that the arguments from `first` on name: handles of this worker, other
 * ones fail. *items: to be freed, also on failure; borrows the tensors. */
static weft_status find_parameters(weft_call *call, size_t first, weft_tensor ***items, size_t *count)
{
    size_t capacity = 0;
    *items = NULL;
    *count = 0;
    for (size_t i = first; i < weft_call_count(call); i++) {
        if (weft_call_type(call, i) != WEFT_TYPE_RREF)
            return WEFT_ERR_TYPE;
        weft_rref *rref = weft_call_rref(call, i);
        weft_value value = weft_of_null();
        weft_status status = rref->value ? weft_future_wait(rref->value, WEFT_FOREVER) : WEFT_OK;
        const wfi_object *object = rref->value && !status ? wfi_object_of(rref->value) : NULL;
        if (!status && !object)
            status = weft_rref_local_value(rref, WEFT_FOREVER, &value);
        if (status)
            return status;
        bool is_module = object && object->type == &weft_module_object;
        weft_tensors here = is_module ? weft_module_parameters(object->object) : wfi_value_tensors(&value);
        if (!here.count && !is_module) {
            weft_call_fail(call, WEFT_ERR_TYPE, "parameter %zu is neither a tensor nor a list of tensors nor a module",
                           i - first);
            return WEFT_ERR_TYPE;
        }
        for (size_t k = 0; k < here.count; k++) {
            weft_tensor **grown = wfi_grow(*items, *count, &capacity, sizeof(*grown));
            if (!grown)
                return WEFT_ERR_MEMORY;
            *items = grown;
            grown[(*count)++] = here.items[k];
        }
    }
    return WEFT_OK;
}

/* "weft:tensors" (parameters ...) -> a list of them, which one handle names */
static weft_status run_gather(weft_call *call, void *user)
{
    (void)user;
    size_t count;
    weft_tensor **items;
    weft_status status = find_parameters(call, 0, &items, &count);
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){items, count})));
    free(items);
    return status;
}

/* "weft:optimizer" (spec, parameters ...) -> the part */
static weft_status run_create(weft_call *call, void *user)
{
    (void)user;
    size_t size, count = 0;
    weft_tensor **items = NULL;
    weft_optimizer_spec spec;
    const void *bytes = weft_call_bytes(call, 0, &size);
    weft_error *error = wfi_remote_spec_read(weft_call_agent(call), bytes, size, &spec);
    weft_status status = error ? weft_error_code(error) : find_parameters(call, 1, &items, &count);
    wfi_remote_part *made = status ? NULL : wfi_calloc(1, sizeof(*made));
    if (!status && !made)
        status = WEFT_ERR_MEMORY;
    if (!status) {
        wfi_mutex_init(&made->lock);
        status = weft_optimizer_create((weft_tensors){items, count}, &spec, &made->optimizer, &error);
    }
    free(items);
    if (!status) {
        weft_call_give_object(call, &wfi_remote_part_type, made);
    } else {
        if (error) /* otherwise the status is that of a handle whose value could not be made, or is of another type */
            weft_call_fail(call, status, "%s", weft_error_message(error));
        if (made)
            wfi_remote_part_drop(made);
    }
    weft_error_unref(error);
    return status;
}

/* Adds the gradients that a context has for the parameters. */
static weft_status add_gradients(weft_context *context, weft_tensors parameters, weft_gradient *sums)
{
    weft_gradient *more = wfi_calloc(parameters.count, sizeof(*more));
    weft_status status = more ? weft_context_ref_gradients(context, parameters, more) : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < parameters.count && !status; i++)
        status = wfi_gradient_join(&sums[i], &more[i]);
    if (more)
        weft_context_drop_gradients(more, parameters.count);
    free(more);
    return status;
}

/*
 * The sums of the gradients over the contexts that argument `at` of the call names, in that order: for each its id, and
 * the passes that have failed (wfi_passes_write_failed). To be dropped by drop_gathered, also on failure.
 */
static weft_status gather(weft_call *call, const wfi_remote_part *p, size_t at, weft_gradient **out)
{
    size_t size;
    wfi_reader ids;
    weft_tensors parameters = weft_optimizer_parameters(p->optimizer);
    const void *bytes = weft_call_bytes(call, at, &size);
    wfi_reader_init(&ids, bytes, size);
    *out = wfi_calloc(parameters.count, sizeof(**out));
    weft_status status = *out ? WEFT_OK : WEFT_ERR_MEMORY;
    while (!status && wfi_reader_left(&ids)) {
        weft_context_id id = {.rank = wfi_read_u32(&ids), .incarnation = wfi_read_u32(&ids)};
        id.number = wfi_read_u64(&ids);
        status = ids.failed ? WEFT_ERR_PROTOCOL : wfi_passes_read_failed(call, &id, &ids);
        weft_context *context = status ? NULL : wfi_contexts_find_ref(weft_call_agent(call), &id);
        if (context)
            status = add_gradients(context, parameters, *out);
        wfi_context_unref(context);
    }
    return status;
}

static void drop_gathered(const wfi_remote_part *p, weft_gradient *sums)
{
    if (sums)
        weft_context_drop_gradients(sums, weft_optimizer_parameters(p->optimizer).count);
    free(sums);
}

/* Steps. On failure *error may say which gradient does not fit. */
static weft_status apply(wfi_remote_part *p, weft_gradient *sums, weft_error **error)
{
    weft_gradients gradients = {sums, weft_optimizer_parameters(p->optimizer).count};
    wfi_mutex_lock(&p->lock);
    weft_status status = weft_optimizer_apply(p->optimizer, gradients);
    p->changes++;
    if (status)
        (void)!weft_optimizer_check_gradients(p->optimizer, gradients, error); /* to say more */
    wfi_mutex_unlock(&p->lock);
    return status;
}

/* "weft:norm" (part, contexts) -> the norm of all gradients here */
static weft_status run_norm(weft_call *call, void *user)
{
    (void)user;
    wfi_remote_part *p;
    weft_gradient *sums = NULL;
    double norm = 0;
    weft_status status = wfi_remote_part_of(call, &p);
    if (!status)
        status = gather(call, p, 1, &sums);
    if (!status)
        status = weft_gradients_norm((weft_gradients){sums, weft_optimizer_parameters(p->optimizer).count}, &norm);
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_f64(norm)));
    if (p)
        drop_gathered(p, sums);
    return status;
}

static weft_status scale_all(weft_call *call, weft_gradient *sums, size_t count, double factor)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && !status; i++) {
        if (!sums[i].values)
            continue;
        weft_tape *t = weft_tape_open(
            &(weft_tape_options){.parent = weft_call_tape(call), .device = weft_tensor_device(sums[i].values)});
        weft_tensor *scaled = weft_tensor_ref(weft_scale(t, sums[i].values, factor));
        status = weft_tape_status(t);
        weft_tape_close(t);
        if (status)
            break;
        weft_tensor_unref(sums[i].values);
        sums[i].values = scaled;
    }
    return status;
}

/* "weft:step" (part, contexts, factor of the gradients) */
static weft_status run_step(weft_call *call, void *user)
{
    (void)user;
    wfi_remote_part *p;
    weft_gradient *sums = NULL;
    double factor = weft_call_f64(call, 2);
    weft_status status = wfi_remote_part_of(call, &p);
    size_t count = status ? 0 : weft_optimizer_parameters(p->optimizer).count;
    if (!status)
        status = gather(call, p, 1, &sums);
    if (!status && factor != 1)
        status = scale_all(call, sums, count, factor);
    weft_error *error = NULL;
    if (!status)
        status = apply(p, sums, &error);
    if (error)
        weft_call_fail(call, status, "%s", weft_error_message(error));
    weft_error_unref(error);
    if (p)
        drop_gathered(p, sums);
    return status;
}

/* "weft:rate" (part, rate) */
static weft_status run_rate(weft_call *call, void *user)
{
    (void)user;
    wfi_remote_part *p;
    weft_status status = wfi_remote_part_of(call, &p);
    if (status)
        return status;
    wfi_mutex_lock(&p->lock);
    status = weft_optimizer_set_lr(p->optimizer, weft_call_f64(call, 1));
    wfi_mutex_unlock(&p->lock);
    return status;
}

/* ---- Steps in a backward pass ------------------------------------------------------------------------------------ */

static void confirmed_here(wfi_ref_waiter *waiter, weft_status status) /* at once: it is this worker's own */
{
    (void)waiter;
    (void)status;
}

/* Steps the part of that name with the gradients of a pass, and counts it in *stepped. It may be freed already. */
static weft_status step_part(weft_agent *agent, const wfi_rref_name *name, const wfi_pass_result *pass, size_t *stepped,
                             weft_error **error)
{
    wfi_ref_waiter at_once = {confirmed_here};
    weft_rref *rref = NULL;
    wfi_net_lock(agent->net);
    weft_status status = wfi_rref_import(agent, name, &at_once, &rref);
    wfi_net_unlock(agent->net);
    if (status)
        return status == WEFT_ERR_NOT_FOUND ? WEFT_OK
                                            : status; /* the root has released it, because the pass has failed there */
    void *object = NULL;
    weft_gradient *sums = NULL;
    status = weft_rref_local_typed(rref, &wfi_remote_part_type, 0, &object);
    wfi_remote_part *p = object;
    if (!status) {
        weft_tensors parameters = weft_optimizer_parameters(p->optimizer);
        sums = wfi_calloc(parameters.count, sizeof(*sums));
        status = sums ? WEFT_OK : WEFT_ERR_MEMORY;
        for (size_t i = 0; i < parameters.count && !status; i++)
            status = wfi_pass_add_gradient(pass, parameters.items[i], &sums[i]);
        if (!status)
            status = apply(p, sums, error);
        *stepped += !status;
        drop_gathered(p, sums);
    }
    weft_rref_unref(rref);
    return status;
}

weft_status wfi_remote_parts_step(weft_agent *agent, const void *names, size_t size, const wfi_pass_result *pass,
                                  size_t *stepped, weft_error **error)
{
    weft_status status = WEFT_OK;
    wfi_reader reader;
    wfi_reader_init(&reader, names, size);
    while (!status && wfi_reader_left(&reader)) {
        wfi_rref_name name = wfi_reference_read_name(&reader);
        if (reader.failed)
            return WEFT_ERR_PROTOCOL;
        if (name.owner == (uint32_t)wfi_agent_rank(agent))
            status = step_part(agent, &name, pass, stepped, error);
    }
    return status;
}

/* ---- The functions ----------------------------------------------------------------------------------------------- */

weft_status wfi_remote_optimizers_register(weft_agent *agent)
{
    static const weft_function functions[] = {
        {.name = "weft:optimizer",
         .takes = {WEFT_TYPE_BYTES, WEFT_TYPE_REST},
         .gives = {WEFT_TYPE_REST},
         .run = run_create},
        {.name = "weft:tensors", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_TENSORS}, .run = run_gather},
        {.name = "weft:norm", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_BYTES}, .gives = {WEFT_TYPE_F64}, .run = run_norm},
        {.name = "weft:step", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_BYTES, WEFT_TYPE_F64}, .run = run_step},
        {.name = "weft:rate", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_F64}, .run = run_rate},
        {.name = "weft:state",
         .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64, WEFT_TYPE_I64},
         .gives = {WEFT_TYPE_BYTES, WEFT_TYPE_TENSORS},
         .run = wfi_remote_part_run_state},
        {.name = "weft:state_in",
         .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64, WEFT_TYPE_BYTES, WEFT_TYPE_TENSORS},
         .run = wfi_remote_part_run_receive},
        {.name = "weft:state_set", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .run = wfi_remote_part_run_exchange},
    };
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions) && !status; i++)
        status = wfi_function_register(agent, &functions[i], NULL);
    return status;
}
