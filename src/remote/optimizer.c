/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.c - an optimizer over parameters of several workers (weft/dist_optim.h): an optimizer at each owner, stepped by calls. */
#include "autograd/gradient.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/mutex.h"
#include "dist/contexts.h"
#include "remote/remote.h"
#include "rpc/client/client.h"
#include "tensor/tensor.h"
#include "value/walk.h"

#include <weft/dist_optim.h>
#include <weft/ops.h>

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A program that links this links the component as well. */
__attribute__((used)) static const wfi_component *const linked = &wfi_remote_component;

struct weft_dist_optimizer {
    atomic_int refs;
    weft_agent *agent; /* referenced */
    weft_rref **parts; /* handles of the owners' optimizers */
    size_t count;
};

/* ---- On an owner ------------------------------------------------------------------------------------------------- */

/* The part of one owner. */
typedef struct part {
    weft_optimizer *optimizer;
    wfi_mutex lock; /* an optimizer is one thread's at a time */
} part;

static void drop_part(void *object)
{
    part *p = object;
    weft_optimizer_unref(p->optimizer);
    wfi_mutex_fini(&p->lock);
    free(p);
}

static const weft_object_type part_type = {.name = "optimizer", .drop = drop_part};

/* A spec as it came: no byte of it is trusted to be a bool. False: it is none. */
static bool read_spec(const void *bytes, size_t size, weft_optimizer_spec *out)
{
    uint8_t raw[sizeof *out];
    static const size_t sgd[] = {offsetof(weft_sgd_options, nesterov), offsetof(weft_sgd_options, maximize),
                                 offsetof(weft_sgd_options, average)},
                        adam[] = {offsetof(weft_adam_options, amsgrad), offsetof(weft_adam_options, maximize),
                                  offsetof(weft_adam_options, average)},
                        adagrad[] = {offsetof(weft_adagrad_options, maximize), offsetof(weft_adagrad_options, average),
                                     offsetof(weft_adagrad_options, average)};
    int kind;
    if (size != sizeof raw)
        return false;
    memcpy(raw, bytes, size);
    memcpy(&kind, raw + offsetof(weft_optimizer_spec, kind), sizeof kind);
    const size_t *bools = kind == WEFT_OPTIMIZER_SGD ? sgd : kind == WEFT_OPTIMIZER_ADAGRAD ? adagrad : adam;
    for (int i = 0; i < 3; i++)
        raw[offsetof(weft_optimizer_spec, sgd) + bools[i]] &= 1;
    memcpy(out, raw, size);
    return kind >= WEFT_OPTIMIZER_SGD && kind <= WEFT_OPTIMIZER_ADAGRAD &&
           (out->update == WEFT_UPDATE_IN_PLACE || out->update == WEFT_UPDATE_BESIDE);
}

/* The tensors that the call's handles name, from `first` on: a list to be freed, of borrowed ones. */
static weft_status find_parameters(weft_call *call, size_t first, weft_tensor ***items, size_t *count)
{
    size_t capacity = 0;
    *items = NULL;
    *count = 0;
    for (size_t i = first; i < weft_call_count(call); i++) {
        weft_value value;
        if (weft_call_type(call, i) != WEFT_RREF)
            return WEFT_ERR_TYPE;
        weft_status st = weft_rref_local_value(weft_call_rref(call, i), WEFT_FOREVER, &value);
        if (st)
            return st;
        weft_tensors here = wfi_tensors_in(&value);
        if (!here.count) {
            weft_call_fail(call, WEFT_ERR_TYPE, "parameter %zu is neither a tensor nor a list of tensors", i - first);
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

/* Beside, where all are parameters of modules; else as the spec says. */
static weft_optimizer *make_optimizer(weft_tensors parameters, weft_optimizer_spec spec, weft_error **error)
{
    weft_update asked = spec.update;
    spec.update = WEFT_UPDATE_BESIDE;
    weft_optimizer *made = weft_optimizer_create(parameters, &spec, error);
    if (made || asked == WEFT_UPDATE_BESIDE || weft_error_code(*error) != WEFT_ERR_UNSUPPORTED)
        return made;
    weft_error_unref(*error);
    *error = NULL;
    spec.update = asked;
    return weft_optimizer_create(parameters, &spec, error);
}

/* (spec, parameters ...) */
static weft_status run_create(weft_call *call, void *user)
{
    (void)user;
    size_t size, count;
    weft_tensor **items;
    weft_optimizer_spec spec;
    weft_error *error = NULL;
    const void *bytes = weft_call_bytes(call, 0, &size);
    if (!read_spec(bytes, size, &spec))
        return WEFT_ERR_PROTOCOL;
    weft_status st = find_parameters(call, 1, &items, &count);
    part *made = st ? NULL : wfi_calloc(1, sizeof *made);
    if (!st && !made)
        st = WEFT_ERR_MEMORY;
    if (!st) {
        wfi_mutex_init(&made->lock);
        made->optimizer = make_optimizer((weft_tensors){items, count}, spec, &error);
        st = made->optimizer ? WEFT_OK : error ? weft_error_code(error) : WEFT_ERR_MEMORY;
    }
    free(items);
    if (!st) {
        weft_call_give_object(call, &part_type, made);
    } else {
        weft_call_fail(call, st, "%s", error ? weft_error_message(error) : weft_status_text(st));
        if (made)
            drop_part(made);
    }
    weft_error_unref(error);
    return st;
}

static weft_context *find_context(weft_agent *agent, const weft_context_id *id)
{
    wfi_net_lock(agent->net);
    weft_context *context = wfi_contexts_find(agent, id);
    if (context)
        wfi_context_ref(context);
    wfi_net_unlock(agent->net);
    return context;
}

/* Adds what a context has for the parameters. */
static weft_status add_gradients(weft_context *context, weft_tensors parameters, weft_gradient *sums)
{
    weft_gradient *more = wfi_calloc(parameters.count + 1, sizeof *more);
    weft_status st = more ? weft_context_gradients(context, parameters, more) : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < parameters.count && !st; i++)
        st = wfi_gradient_join(&sums[i], &more[i]);
    if (more)
        weft_context_drop_gradients(more, parameters.count);
    free(more);
    return st;
}

/* The sums over the contexts that the call's bytes number `at` name: to be dropped. */
static weft_status gather(weft_call *call, const part *p, size_t at, weft_gradient **out)
{
    size_t size;
    wfi_reader ids;
    weft_tensors parameters = weft_optimizer_parameters(p->optimizer);
    const void *bytes = weft_call_bytes(call, at, &size);
    wfi_reader_init(&ids, bytes, size);
    *out = wfi_calloc(parameters.count + 1, sizeof **out);
    weft_status st = *out ? WEFT_OK : WEFT_ERR_MEMORY;
    while (!st && wfi_reader_left(&ids)) {
        weft_context_id id = {.rank = wfi_read_u32(&ids), .incarnation = wfi_read_u32(&ids)};
        id.number = wfi_read_u64(&ids);
        weft_context *context = ids.failed ? NULL : find_context(weft_call_agent(call), &id);
        st = ids.failed ? WEFT_ERR_PROTOCOL : context ? add_gradients(context, parameters, *out) : WEFT_OK;
        wfi_context_unref(context);
    }
    return st;
}

static void drop_gathered(const part *p, weft_gradient *sums)
{
    if (sums)
        weft_context_drop_gradients(sums, weft_optimizer_parameters(p->optimizer).count);
    free(sums);
}

static weft_status part_of(weft_call *call, part **out)
{
    void *object;
    weft_status st = weft_rref_local_typed(weft_call_rref(call, 0), &part_type, WEFT_FOREVER, &object);
    *out = st ? NULL : object;
    return st;
}

/* (part, contexts) -> the norm of all gradients here */
static weft_status run_norm(weft_call *call, void *user)
{
    (void)user;
    part *p;
    weft_gradient *sums = NULL;
    double norm = 0;
    weft_status st = part_of(call, &p);
    if (!st)
        st = gather(call, p, 1, &sums);
    if (!st)
        st = weft_gradients_norm((weft_gradients){sums, weft_optimizer_parameters(p->optimizer).count}, &norm);
    if (!st)
        weft_call_give(call, WEFT_VALUES(weft_of_f64(norm)));
    if (p)
        drop_gathered(p, sums);
    return st;
}

static weft_status scale_all(weft_call *call, weft_gradient *sums, size_t count, double factor)
{
    weft_tape *t = weft_call_tape(call);
    for (size_t i = 0; i < count; i++) {
        if (!sums[i].values)
            continue;
        weft_tensor *scaled = weft_tensor_ref(weft_scale(t, sums[i].values, factor));
        if (!scaled)
            return weft_tape_status(t);
        weft_tensor_unref(sums[i].values);
        sums[i].values = scaled;
    }
    return WEFT_OK;
}

/* (part, contexts, factor of the gradients) */
static weft_status run_step(weft_call *call, void *user)
{
    (void)user;
    part *p;
    weft_gradient *sums = NULL;
    double factor = weft_call_f64(call, 2);
    weft_status st = part_of(call, &p);
    size_t count = st ? 0 : weft_optimizer_parameters(p->optimizer).count;
    if (!st)
        st = gather(call, p, 1, &sums);
    if (!st && factor != 1)
        st = scale_all(call, sums, count, factor);
    if (!st) {
        wfi_mutex_lock(&p->lock);
        st = weft_optimizer_apply(p->optimizer, (weft_gradients){sums, count});
        wfi_mutex_unlock(&p->lock);
    }
    if (p)
        drop_gathered(p, sums);
    return st;
}

weft_status wfi_remote_optimizers_register(weft_agent *agent)
{
    static const weft_function functions[] = {
        {.name = "weft:optimizer", .takes = {WEFT_BYTES, WEFT_REST}, .gives = {WEFT_REST}, .run = run_create},
        {.name = "weft:norm", .takes = {WEFT_RREF, WEFT_BYTES}, .gives = {WEFT_F64}, .run = run_norm},
        {.name = "weft:step", .takes = {WEFT_RREF, WEFT_BYTES, WEFT_F64}, .run = run_step},
    };
    weft_status st = WEFT_OK;
    for (size_t i = 0; i < sizeof functions / sizeof *functions && !st; i++)
        st = wfi_function_register(agent, &functions[i], NULL);
    return st;
}

/* ---- Creating ---------------------------------------------------------------------------------------------------- */

weft_dist_optimizer *weft_dist_optimizer_ref(weft_dist_optimizer *optimizer)
{
    if (optimizer)
        atomic_fetch_add(&optimizer->refs, 1);
    return optimizer;
}

void weft_dist_optimizer_unref(weft_dist_optimizer *optimizer)
{
    if (!optimizer || atomic_fetch_sub(&optimizer->refs, 1) != 1)
        return;
    for (size_t i = 0; i < optimizer->count; i++)
        weft_rref_unref(optimizer->parts[i]);
    free(optimizer->parts);
    wfi_agent_unref(optimizer->agent);
    free(optimizer);
}

size_t weft_dist_optimizer_owners(const weft_dist_optimizer *optimizer)
{
    return optimizer ? optimizer->count : 0;
}

static bool came_before(weft_rref *const *parameters, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (weft_rref_owner(parameters[i]) == weft_rref_owner(parameters[index]))
            return true;
    return false;
}

/* An optimizer at the owner of parameters[first], over all of its. */
static weft_status create_part(weft_dist_optimizer *optimizer, weft_rref *const *parameters, size_t count, size_t first,
                               const weft_optimizer_spec *spec, weft_error **error)
{
    int owner = weft_rref_owner(parameters[first]);
    weft_value *items = wfi_calloc(count + 1, sizeof *items);
    size_t used = 0;
    if (!items)
        return WEFT_ERR_MEMORY;
    items[used++] = weft_of_bytes(spec, sizeof *spec);
    for (size_t i = first; i < count; i++)
        if (weft_rref_owner(parameters[i]) == owner)
            items[used++] = weft_of_rref(parameters[i]);
    weft_status st = weft_rpc_remote(optimizer->agent, weft_to_rank(owner), "weft:optimizer", (weft_args){items, used},
                                     &(weft_rpc_options){.error = error}, &optimizer->parts[optimizer->count]);
    optimizer->count += !st;
    free(items);
    return st;
}

static weft_status await_parts(const weft_dist_optimizer *optimizer, weft_error **error)
{
    for (size_t i = 0; i < optimizer->count; i++) {
        weft_future *made = weft_rref_created(optimizer->parts[i]);
        if (!made)
            return WEFT_ERR_MEMORY;
        weft_status st = weft_future_wait(made, WEFT_FOREVER);
        if (st && weft_future_error(made))
            *error = weft_error_ref((weft_error *)weft_future_error(made));
        weft_future_unref(made);
        if (st)
            return st;
    }
    return WEFT_OK;
}

static weft_status create_parts(weft_dist_optimizer *optimizer, weft_rref *const *parameters, size_t count,
                                const weft_optimizer_spec *spec, weft_error **error)
{
    weft_status st = WEFT_OK;
    for (size_t i = 0; i < count && !st; i++)
        if (!came_before(parameters, i))
            st = create_part(optimizer, parameters, count, i, spec, error);
    return st ? st : await_parts(optimizer, error);
}

weft_status weft_dist_optimizer_create(weft_agent *agent, weft_rref *const *parameters, size_t count,
                                       const weft_optimizer_spec *spec, weft_dist_optimizer **out, weft_error **error)
{
    weft_error *why = NULL;
    if (!agent || !parameters || !count || !spec || !out)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "a distributed optimizer: %s",
                              !count ? "no parameters are given" : "an argument is NULL");
    for (size_t i = 0; i < count; i++)
        if (!parameters[i])
            return wfi_error_fail(error, WEFT_ERR_INVALID, "a distributed optimizer: parameter %zu is NULL", i);
    weft_status st = wfi_rpc_may_wait(agent, "weft_dist_optimizer_create", &(weft_rpc_options){.error = &why});
    weft_dist_optimizer *optimizer = st ? NULL : wfi_calloc(1, sizeof *optimizer);
    weft_rref **parts = optimizer ? wfi_calloc(count, sizeof *parts) : NULL;
    if (!st && !parts)
        st = WEFT_ERR_MEMORY;
    if (st) {
        free(optimizer);
    } else {
        atomic_init(&optimizer->refs, 1);
        optimizer->agent = wfi_agent_ref(agent);
        optimizer->parts = parts;
        st = create_parts(optimizer, parameters, count, spec, &why);
    }
    if (!st)
        *out = optimizer;
    else if (parts)
        weft_dist_optimizer_unref(optimizer);
    if (st && !why)
        why = weft_error_create(st, "a distributed optimizer: %s", weft_status_text(st));
    wfi_error_give(error, why);
    return st;
}

/* ---- Stepping ---------------------------------------------------------------------------------------------------- */

/* A call of `function` to each owner, and their ends. `each`, if not NULL, receives a number from each. */
static weft_status call_owners(const weft_dist_optimizer *optimizer, const char *function, weft_args args,
                               int64_t timeout_ms, double *each, weft_error **error)
{
    weft_future **futures = wfi_calloc(optimizer->count, sizeof *futures);
    weft_status first = futures ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; futures && i < optimizer->count; i++) {
        weft_error *unsent = NULL;
        weft_status st =
            weft_rref_rpc_async(optimizer->parts[i], function, args,
                                &(weft_rpc_options){.timeout_ms = timeout_ms, .error = &unsent}, &futures[i]);
        if (st && !first) {
            first = st;
            *error = weft_error_ref(unsent);
        }
        weft_error_unref(unsent);
    }
    for (size_t i = 0; futures && i < optimizer->count; i++) {
        weft_status st = futures[i] ? weft_future_wait(futures[i], WEFT_FOREVER) : WEFT_OK;
        const weft_error *why = futures[i] ? weft_future_error(futures[i]) : NULL;
        if (st && first)
            wfi_log_agent(optimizer->agent, WEFT_LOG_WARN, 0, "%s failed at rank %d as well: %s", function,
                          weft_rref_owner(optimizer->parts[i]), why ? weft_error_message(why) : weft_status_text(st));
        if (st && !first) {
            first = st;
            *error = weft_error_ref((weft_error *)why);
        }
        if (!st && futures[i] && each)
            first = weft_values_get_f64(weft_future_values(futures[i]), 0, &each[i]);
        weft_future_unref(futures[i]);
    }
    free(futures);
    return first;
}

/* What the gradients are multiplied by, so that their norm over all owners is at most max_norm. */
static weft_status clip(const weft_dist_optimizer *optimizer, weft_value contexts, const weft_dist_step_options *how,
                        double *factor, weft_error **error)
{
    double *norms = wfi_calloc(optimizer->count, sizeof *norms), squares = 0;
    weft_status st = norms ? call_owners(optimizer, "weft:norm", WEFT_VALUES(contexts), how->timeout_ms, norms, error)
                           : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < optimizer->count && !st; i++)
        squares += norms[i] * norms[i];
    free(norms);
    double norm = sqrt(squares);
    if (how->norm)
        *how->norm = norm;
    *factor = norm > how->max_norm ? how->max_norm / (norm + 1e-6) : 1; /* as PyTorch's clip_grad_norm_ */
    return st;
}

weft_status weft_dist_optimizer_step(weft_dist_optimizer *optimizer, weft_context *const *contexts, size_t count,
                                     const weft_dist_step_options *options)
{
    static const weft_dist_step_options defaults;
    const weft_dist_step_options *how = options ? options : &defaults;
    weft_error *error = NULL;
    double factor = 1;
    wfi_writer ids;
    if (!optimizer || (count && !contexts))
        return wfi_error_fail(how->error, WEFT_ERR_INVALID, "a step: %s is NULL",
                              optimizer ? "the list of contexts" : "the optimizer");
    if (!(how->max_norm >= 0))
        return wfi_error_fail(how->error, WEFT_ERR_INVALID, "a step: max_norm is %g: 0, or more", how->max_norm);
    wfi_writer_init_growing(&ids);
    weft_status st =
        wfi_rpc_may_wait(optimizer->agent, "weft_dist_optimizer_step", &(weft_rpc_options){.error = &error});
    for (size_t i = 0; i < count && !st; i++) {
        weft_context_id id = weft_context_get_id(contexts[i]);
        wfi_write_u32(&ids, id.rank);
        wfi_write_u32(&ids, id.incarnation);
        wfi_write_u64(&ids, id.number);
        if (!contexts[i])
            st = WEFT_ERR_INVALID;
    }
    if (!st && ids.failed)
        st = WEFT_ERR_MEMORY;
    weft_value all = weft_of_bytes(ids.data, ids.size);
    if (!st && how->max_norm > 0)
        st = clip(optimizer, all, how, &factor, &error);
    if (!st)
        st = call_owners(optimizer, "weft:step", WEFT_VALUES(all, weft_of_f64(factor)), how->timeout_ms, NULL, &error);
    wfi_writer_fini(&ids);
    if (st && !error)
        error = weft_error_create(st, "a step: %s", weft_status_text(st));
    wfi_error_give(how->error, error);
    return st;
}
