/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.c - optimizers and their groups of parameters: making, checking, counting references. */
#include "optim/optim.h"

#include "base/alloc.h"
#include "base/text/sized.h"
#include "tensor/copy.h"

#include <stdlib.h>

static weft_error *parameter_problem(const weft_tensor *p, weft_update update, size_t i)
{
    if (!p)
        return weft_error_create(WEFT_ERR_INVALID, "parameter %zu is NULL", i);
    if (!wfi_dtype_is_float(p->dtype))
        return weft_error_create(WEFT_ERR_TYPE, "parameter %zu is %s; optimizers step float32 and float64", i,
                                 weft_dtype_name(p->dtype));
    if (!weft_tensor_is_contiguous(p))
        return weft_error_create(WEFT_ERR_UNSUPPORTED, "parameter %zu is not contiguous", i);
    if (update == WEFT_UPDATE_BESIDE && !p->cell)
        return weft_error_create(WEFT_ERR_UNSUPPORTED,
                                 "parameter %zu is a plain tensor; WEFT_UPDATE_BESIDE is for parameters of modules "
                                 "(weft_module_add_parameter)",
                                 i);
    return NULL;
}

static int by_address(const void *a, const void *b)
{
    const weft_tensor *x = *(weft_tensor *const *)a, *y = *(weft_tensor *const *)b;
    return (x > y) - (x < y);
}

/* The position of a parameter from `at` on, counted through the present and the new ones. */
static size_t place_of(const weft_optimizer *optimizer, weft_tensors more, const weft_tensor *parameter, size_t at)
{
    while ((at < optimizer->count ? optimizer->parameters[at] : more.items[at - optimizer->count]) != parameter)
        at++;
    return at;
}

static weft_error *twice_error(const weft_optimizer *optimizer, weft_tensors more, const weft_tensor *parameter)
{
    size_t first = place_of(optimizer, more, parameter, 0);
    size_t second = place_of(optimizer, more, parameter, first + 1) - optimizer->count;
    if (first < optimizer->count)
        return weft_error_create(WEFT_ERR_INVALID, "parameter %zu is parameter %zu of the optimizer already", second,
                                 first);
    return weft_error_create(WEFT_ERR_INVALID, "parameters %zu and %zu are one tensor", first - optimizer->count,
                             second);
}

/* Checks that no parameter occurs twice, among the present and the new ones. */
static weft_error *twice_problem(const weft_optimizer *optimizer, weft_tensors more)
{
    size_t count = optimizer->count + more.count;
    weft_tensor **sorted = wfi_calloc(count, sizeof(weft_tensor *));
    if (!sorted)
        return weft_error_create(WEFT_ERR_MEMORY, "no memory for %zu parameters", count);
    for (size_t i = 0; i < count; i++)
        sorted[i] = i < optimizer->count ? optimizer->parameters[i] : more.items[i - optimizer->count];
    qsort(sorted, count, sizeof(weft_tensor *), by_address);
    weft_error *error = NULL;
    for (size_t i = 1; i < count && !error; i++)
        if (sorted[i - 1] == sorted[i])
            error = twice_error(optimizer, more, sorted[i]);
    free(sorted);
    return error;
}

static weft_error *parameters_problem(const weft_optimizer *optimizer, weft_tensors parameters, weft_update update)
{
    weft_error *error = NULL;
    if (parameters.count == 0)
        return weft_error_create(WEFT_ERR_INVALID, "there are no parameters");
    if (!parameters.items)
        return weft_error_create(WEFT_ERR_INVALID, "the list of %zu parameters is NULL", parameters.count);
    for (size_t i = 0; i < parameters.count && !error; i++)
        error = parameter_problem(parameters.items[i], update, i);
    return error ? error : twice_problem(optimizer, parameters);
}

/* Makes room in all arrays for one more group of `more` parameters; changes nothing else. */
static bool reserve_slab(weft_optimizer *optimizer, size_t more)
{
    size_t count = optimizer->count + more;
    weft_tensor **parameters = realloc(optimizer->parameters, count * sizeof(*parameters));
    if (parameters)
        optimizer->parameters = parameters;
    wfi_kept *kept = realloc(optimizer->kept, count * sizeof(*kept));
    if (kept)
        optimizer->kept = kept;
    wfi_group *groups = realloc(optimizer->groups, (optimizer->group_count + 1) * sizeof(*groups));
    if (groups)
        optimizer->groups = groups;
    return parameters && kept && groups;
}

/* A spec that is complete and fits. */
static weft_error *append(weft_optimizer *optimizer, weft_tensors parameters, const weft_optimizer_spec *spec)
{
    weft_error *error = parameters_problem(optimizer, parameters, spec->update);
    if (!error && !reserve_slab(optimizer, parameters.count))
        error = weft_error_create(WEFT_ERR_MEMORY, "no memory for %zu parameters", parameters.count);
    if (error)
        return error;
    optimizer->groups[optimizer->group_count] = (wfi_group){*spec, optimizer->count, parameters.count};
    for (size_t i = 0; i < parameters.count; i++) {
        optimizer->parameters[optimizer->count] = weft_tensor_ref(parameters.items[i]);
        optimizer->kept[optimizer->count++] = (wfi_kept){.group = optimizer->group_count};
    }
    optimizer->group_count++;
    return NULL;
}

static weft_error *create(weft_tensors parameters, const weft_optimizer_spec *given, size_t size, weft_optimizer **out)
{
    weft_optimizer_spec spec;
    if (!given)
        return weft_error_create(WEFT_ERR_INVALID, "spec is NULL: pass one with a type, such as &weft_sgd_type");
    weft_error *error = wfi_optimizer_spec_copy(given, size, &spec);
    if (error)
        return error;
    weft_optimizer *optimizer = wfi_calloc(1, sizeof(*optimizer));
    if (!optimizer)
        return weft_error_create(WEFT_ERR_MEMORY, "no memory for an optimizer");
    WFI_HANDLE_INIT(optimizer);
    atomic_init(&optimizer->refs, 1);
    optimizer->type = spec.type;
    error = append(optimizer, parameters, &spec);
    if (!error)
        *out = optimizer;
    else
        weft_optimizer_unref(optimizer);
    return error;
}

weft_status weft_optimizer_create_sized(weft_tensors parameters, const weft_optimizer_spec *spec, size_t size,
                                        weft_optimizer **out, weft_error **error)
{
    weft_optimizer *optimizer = NULL;
    weft_error *why = create(parameters, spec, size, &optimizer);
    return WFI_GIVE("weft_optimizer_create", optimizer, why, weft_optimizer_unref, out, error);
}

/* That a group's spec says of the optimizer as a whole what the first group's does. */
static weft_error *group_problem(const weft_optimizer *optimizer, const weft_optimizer_spec *spec)
{
    const weft_optimizer_spec *first = &optimizer->groups[0].spec;
    if (spec->type != first->type)
        return weft_error_create(WEFT_ERR_INVALID, "a group of %s in an optimizer of type %s", spec->type->name,
                                 first->type->name);
    if (spec->update != first->update || spec->average != first->average || spec->max_norm != first->max_norm ||
        spec->error_if_nonfinite != first->error_if_nonfinite || spec->pin_timeout_ms != first->pin_timeout_ms)
        return weft_error_create(WEFT_ERR_INVALID, "update, average, max_norm, error_if_nonfinite and pin_timeout_ms "
                                                   "of a group must be the first group's");
    return NULL;
}

weft_status weft_optimizer_add_group_sized(weft_optimizer *optimizer, weft_tensors parameters,
                                           const weft_optimizer_spec *spec, size_t size, weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer || !spec)
        return wfi_refuse_null_to(error, "weft_optimizer_add_group", !optimizer ? "the optimizer" : "spec");
    if (optimizer->accumulated > 0)
        return wfi_refuse_to(error, WEFT_ERR_STATE, "%zu gradients are accumulated: step or zero them first",
                             optimizer->accumulated);
    weft_optimizer_spec complete;
    weft_error *found = wfi_optimizer_spec_copy(spec, size, &complete);
    if (!found)
        found = group_problem(optimizer, &complete);
    if (!found)
        found = append(optimizer, parameters, &complete);
    weft_status status = weft_error_code(found);
    if (found)
        wfi_refuse_with(error, found);
    return status;
}

weft_optimizer *weft_optimizer_ref(weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    if (optimizer)
        atomic_fetch_add_explicit(&optimizer->refs, 1, memory_order_relaxed);
    return optimizer;
}

void weft_optimizer_unref(weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer)
        return;
    uint32_t before = atomic_fetch_sub_explicit(&optimizer->refs, 1, memory_order_acq_rel);
    if (!WFI_HANDLE_IS_LAST(optimizer, before))
        return;
    for (size_t i = 0; i < optimizer->count; i++) {
        weft_tensor_unref(optimizer->parameters[i]);
        weft_tensor_unref(optimizer->kept[i].sum);
        for (int k = 0; k < WEFT_OPTIMIZER_SLOTS; k++)
            weft_tensor_unref(optimizer->kept[i].slots[k]);
    }
    weft_tensor_unref(optimizer->norm_on_gpu);
    wfi_steps_destroy(optimizer->steps);
    wfi_checks_orphan(&optimizer->checks);
    weft_error_unref(optimizer->error);
    free(optimizer->parameters);
    free(optimizer->kept);
    free(optimizer->groups);
    wfi_handle_free(optimizer);
}

weft_status wfi_optimizer_make_slots(const weft_optimizer *optimizer, size_t i)
{
    const weft_tensor *p = optimizer->parameters[i];
    wfi_kept *kept = &optimizer->kept[i];
    wfi_slot slots[WEFT_OPTIMIZER_SLOTS];
    int count = wfi_optimizer_spec_slots(&optimizer->groups[kept->group].spec, slots);
    for (int k = 0; k < count; k++) {
        weft_tensor **slot = &kept->slots[slots[k].place];
        if (!*slot)
            *slot = wfi_tensor_full_like(p, p->shape, p->dtype, slots[k].initial);
        if (!*slot)
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

size_t weft_optimizer_group_count(const weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    return !optimizer ? 0 : optimizer->group_count;
}

static bool has_group(const weft_optimizer *optimizer, size_t group)
{
    return optimizer && group < optimizer->group_count;
}

static weft_status no_group(const char *function, const weft_optimizer *optimizer, size_t group)
{
    return wfi_refuse(WEFT_ERR_INVALID, "%s: there is no group %zu: the optimizer has %zu", function, group,
                      optimizer->group_count);
}

static weft_status bad_lr(const char *function, double lr)
{
    return wfi_refuse(WEFT_ERR_INVALID, "%s: lr is %g: finite and not negative", function, lr);
}

weft_tensors weft_optimizer_group_parameters(const weft_optimizer *optimizer, size_t group)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!has_group(optimizer, group))
        return (weft_tensors){NULL, 0};
    const wfi_group *g = &optimizer->groups[group];
    return (weft_tensors){optimizer->parameters + g->begin, g->count};
}

weft_status weft_optimizer_get_spec_sized(const weft_optimizer *optimizer, size_t group, weft_optimizer_spec *spec,
                                          size_t size)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!has_group(optimizer, group) || !spec)
        return optimizer && spec ? no_group("weft_optimizer_get_spec", optimizer, group)
                                 : wfi_refuse_null("weft_optimizer_get_spec", !optimizer ? "the optimizer" : "spec");
    wfi_sized_give(spec, size, &optimizer->groups[group].spec, sizeof(*spec));
    return WEFT_OK;
}

weft_status weft_optimizer_set_group_lr(weft_optimizer *optimizer, size_t group, double lr)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer)
        return wfi_refuse_null("weft_optimizer_set_group_lr", "the optimizer");
    if (!has_group(optimizer, group))
        return no_group("weft_optimizer_set_group_lr", optimizer, group);
    if (!wfi_option_is_not_negative(lr))
        return bad_lr("weft_optimizer_set_group_lr", lr);
    optimizer->groups[group].spec.lr = lr;
    return WEFT_OK;
}

weft_status weft_optimizer_set_lr(weft_optimizer *optimizer, double lr)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer)
        return wfi_refuse_null("weft_optimizer_set_lr", "the optimizer");
    if (!wfi_option_is_not_negative(lr))
        return bad_lr("weft_optimizer_set_lr", lr);
    for (size_t g = 0; g < optimizer->group_count; g++)
        optimizer->groups[g].spec.lr = lr;
    return WEFT_OK;
}

double weft_optimizer_group_lr(const weft_optimizer *optimizer, size_t group)
{
    WFI_CHECK_HANDLE(optimizer);
    return has_group(optimizer, group) ? optimizer->groups[group].spec.lr : 0;
}

double weft_optimizer_lr(const weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    return weft_optimizer_group_lr(optimizer, 0);
}

weft_tensors weft_optimizer_parameters(const weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    return !optimizer ? (weft_tensors){NULL, 0} : (weft_tensors){optimizer->parameters, optimizer->count};
}
