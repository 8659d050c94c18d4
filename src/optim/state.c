/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - the state of an optimizer as named tensors (PyTorch's state_dict): read, and replaced as a whole. */
#include "optim/optim.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text/refuse.h"
#include "tensor/copy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEP "step"
#define STEPS_MAX 9007199254740992.0 /* 2^53: a float64 holds every whole number up to here */

static int slots_of(const weft_optimizer *optimizer, size_t i, wfi_slot slots[WEFT_OPTIMIZER_SLOTS])
{
    return wfi_optimizer_spec_slots(&optimizer->groups[optimizer->kept[i].group].spec, slots);
}

/* How many tensors the state of parameter i has. */
static size_t tensors_of(const weft_optimizer *optimizer, size_t i)
{
    wfi_slot slots[WEFT_OPTIMIZER_SLOTS];
    if (optimizer->kept[i].steps == 0)
        return 0;
    return (size_t)slots_of(optimizer, i, slots) + (optimizer->type->uncounted ? 0 : 1);
}

size_t weft_optimizer_state_count(const weft_optimizer *optimizer)
{
    WFI_CHECK_HANDLE(optimizer);
    size_t count = 0;
    for (size_t i = 0; optimizer && i < optimizer->count; i++)
        count += tensors_of(optimizer, i);
    return count;
}

weft_status weft_optimizer_ref_state(const weft_optimizer *optimizer, size_t index, weft_optimizer_state *out)
{
    WFI_CHECK_HANDLE(optimizer);
    size_t i = 0, here;
    const size_t asked = index;
    if (!optimizer || !out)
        return wfi_refuse_null("weft_optimizer_ref_state", !optimizer ? "the optimizer" : "out");
    for (; i < optimizer->count && index >= (here = tensors_of(optimizer, i)); i++)
        index -= here;
    if (i == optimizer->count)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_optimizer_ref_state: there is no state %zu: the optimizer has %zu",
                          asked, weft_optimizer_state_count(optimizer));
    wfi_slot slots[WEFT_OPTIMIZER_SLOTS];
    const wfi_kept *kept = &optimizer->kept[i];
    weft_optimizer_state state = {.parameter = i};
    slots_of(optimizer, i, slots);
    if (!optimizer->type->uncounted && index == 0) {
        state.name = STEP;
        state.tensor = wfi_tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, (double)kept->steps, NULL);
    } else {
        const wfi_slot *slot = &slots[optimizer->type->uncounted ? index : index - 1];
        state.name = slot->name;
        state.tensor = weft_tensor_ref(kept->slots[slot->place]);
    }
    if (!state.tensor)
        return WEFT_ERR_MEMORY;
    *out = state;
    return WEFT_OK;
}

/* The new state of one parameter, before it replaces the old one. */
struct wfi_new_state {
    weft_tensor *slots[WEFT_OPTIMIZER_SLOTS];
    bool has_step;
    uint64_t steps;
};

wfi_new_state *wfi_state_begin(const weft_optimizer *optimizer)
{
    return wfi_calloc(optimizer->count, sizeof(wfi_new_state));
}

void wfi_state_drop(const weft_optimizer *optimizer, wfi_new_state *incoming)
{
    for (size_t i = 0; incoming && i < optimizer->count; i++)
        for (int k = 0; k < WEFT_OPTIMIZER_SLOTS; k++)
            weft_tensor_unref(incoming[i].slots[k]);
    free(incoming);
}

/* The place of the parameter's slot of that name; -1: there is none. */
static int slot_named(const weft_optimizer *optimizer, size_t i, const char *name)
{
    wfi_slot slots[WEFT_OPTIMIZER_SLOTS];
    int count = slots_of(optimizer, i, slots);
    for (int k = 0; k < count; k++)
        if (strcmp(slots[k].name, name) == 0)
            return slots[k].place;
    return -1;
}

static bool is_step(const weft_optimizer *optimizer, const char *name)
{
    return !optimizer->type->uncounted && strcmp(name, STEP) == 0;
}

weft_error *wfi_state_mismatch(const weft_optimizer *optimizer, const weft_optimizer_state *item, weft_dtype dtype,
                               const weft_shape *shape)
{
    char wanted[WFI_SHAPE_TEXT], got[WFI_SHAPE_TEXT], name[WFI_STATE_SHOWN];
    snprintf(name, sizeof(name), "%s", item->name);
    if (item->parameter >= optimizer->count)
        return weft_error_create(WEFT_ERR_NOT_FOUND, "%s of parameter %zu: there are %zu parameters", name,
                                 item->parameter, optimizer->count);
    const weft_tensor *p = optimizer->parameters[item->parameter];
    int64_t numel = 0;
    if (is_step(optimizer, item->name)) {
        if (wfi_shape_numel(shape, &numel) && numel == 1)
            return NULL;
        return weft_error_create(WEFT_ERR_SHAPE, "parameter %zu: %s has %lld elements, not 1", item->parameter, STEP,
                                 (long long)numel);
    }
    if (slot_named(optimizer, item->parameter, item->name) < 0)
        return weft_error_create(WEFT_ERR_NOT_FOUND, "parameter %zu: %s with these options keeps no '%s'",
                                 item->parameter, optimizer->type->name, name);
    if (dtype != p->dtype)
        return weft_error_create(WEFT_ERR_TYPE, "parameter %zu: %s is %s, the parameter %s", item->parameter, name,
                                 weft_dtype_name(dtype), weft_dtype_name(p->dtype));
    if (!wfi_shape_equal(shape, &p->shape))
        return weft_error_create(WEFT_ERR_SHAPE, "parameter %zu: %s is %s, the parameter %s", item->parameter, name,
                                 wfi_shape_text(shape, got), wfi_shape_text(&p->shape, wanted));
    return NULL;
}

static weft_error *add_step(wfi_new_state *into, const weft_optimizer_state *item)
{
    double steps = weft_tensor_get_f64(item->tensor, 0);
    if (!(steps >= 0 && steps <= STEPS_MAX) || steps != floor(steps))
        return weft_error_create(WEFT_ERR_INVALID, "parameter %zu: %s is %g, not a whole number from 0 on",
                                 item->parameter, STEP, steps);
    into->has_step = true;
    into->steps = (uint64_t)steps;
    return NULL;
}

weft_error *wfi_state_add(const weft_optimizer *optimizer, wfi_new_state *incoming, const weft_optimizer_state *item)
{
    if (!item->name || !item->tensor)
        return weft_error_create(WEFT_ERR_INVALID, "a name or a tensor of the state is NULL");
    weft_error *fault = wfi_state_mismatch(optimizer, item, item->tensor->dtype, &item->tensor->shape);
    if (fault)
        return fault;
    wfi_new_state *into = &incoming[item->parameter];
    bool step = is_step(optimizer, item->name);
    weft_tensor **slot = step ? NULL : &into->slots[slot_named(optimizer, item->parameter, item->name)];
    if (step ? into->has_step : *slot != NULL)
        return weft_error_create(WEFT_ERR_EXISTS, "parameter %zu: %s is given twice", item->parameter, item->name);
    if (step)
        return add_step(into, item);
    weft_device to = weft_tensor_device(optimizer->parameters[item->parameter]), now = weft_tensor_device(item->tensor);
    bool is_there = wfi_device_equal(to, now);
    *slot = is_there ? wfi_tensor_clone(item->tensor, NULL) : wfi_tensor_to_device(item->tensor, to, NULL);
    return *slot ? NULL
                 : weft_error_create(WEFT_ERR_MEMORY, "parameter %zu: no memory for %s", item->parameter, item->name);
}

/* An error if parameter i has some of its state, and lacks some. */
static weft_error *missing_state(const weft_optimizer *optimizer, const wfi_new_state *of, size_t i)
{
    wfi_slot slots[WEFT_OPTIMIZER_SLOTS];
    const char *missing = !optimizer->type->uncounted && !of->has_step ? STEP : NULL;
    int count = slots_of(optimizer, i, slots), given = 0;
    for (int k = 0; k < count; k++) {
        const weft_tensor *slot = of->slots[slots[k].place];
        given += slot != NULL;
        if (!slot && !missing)
            missing = slots[k].name;
    }
    if (!missing || (given == 0 && !of->has_step))
        return NULL;
    return weft_error_create(WEFT_ERR_INVALID, "parameter %zu: its %s is missing", i, missing);
}

weft_error *wfi_state_missing(const weft_optimizer *optimizer, const wfi_new_state *incoming)
{
    weft_error *found = NULL;
    for (size_t i = 0; i < optimizer->count && !found; i++)
        found = missing_state(optimizer, &incoming[i], i);
    return found;
}

void wfi_state_put(weft_optimizer *optimizer, wfi_new_state *incoming)
{
    for (size_t i = 0; i < optimizer->count; i++) {
        wfi_kept *kept = &optimizer->kept[i];
        bool has_slot = false;
        for (int k = 0; k < WEFT_OPTIMIZER_SLOTS; k++) {
            weft_tensor *old = kept->slots[k];
            kept->slots[k] = incoming[i].slots[k];
            incoming[i].slots[k] = old;
            has_slot = has_slot || kept->slots[k];
        }
        kept->steps = optimizer->type->uncounted ? has_slot : incoming[i].steps;
    }
}

weft_status weft_optimizer_set_state(weft_optimizer *optimizer, const weft_optimizer_state *items, size_t count,
                                     weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer || (!items && count > 0))
        return wfi_refuse_null_to(error, "weft_optimizer_set_state", !optimizer ? "the optimizer" : "items");
    wfi_new_state *incoming = wfi_state_begin(optimizer);
    if (!incoming)
        return wfi_refuse_to(error, WEFT_ERR_MEMORY, "no memory for the state of %zu parameters", optimizer->count);
    weft_error *found = NULL;
    for (size_t i = 0; i < count && !found; i++)
        found = wfi_state_add(optimizer, incoming, &items[i]);
    if (!found)
        found = wfi_state_missing(optimizer, incoming);
    if (!found)
        wfi_state_put(optimizer, incoming);
    wfi_state_drop(optimizer, incoming);
    weft_status status = weft_error_code(found);
    if (found)
        wfi_refuse_with(error, found);
    return status;
}
