/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accumulate.c - adds or copies the tensors of a call's arguments to the places that `land` names.
 *
 * Runs just before the handler: adds them (WEFT_FUNCTION_LAND_ADD), or copies them (in a call to this worker itself).
 * All arguments have arrived by then, so no resumed transfer adds twice, and no cancelled call adds only a part.
 * Places are found and checked before the first element changes.
 */
#include "rpc/server/server.h"

#include "base/alloc.h"
#include "base/list.h"
#include "value/value.h"
#include "tensor/cell.h"
#include "tensor/cpu/cpu.h"

#include <stdlib.h>

typedef struct adding {
    size_t count;
    weft_tensor **arrived; /* contiguous, referenced */
    weft_tensor **places;  /* referenced; NULL if `land` gave none */
} adding;

static weft_error *check_place(const weft_call *call, size_t index, const weft_tensor *arrived,
                               const weft_tensor *place)
{
    char comes[WFI_TENSOR_TEXT], waits[WFI_TENSOR_TEXT];
    weft_shape have = weft_tensor_shape(arrived), want = weft_tensor_shape(place);
    wfi_value_tensor_type_text(comes, weft_tensor_dtype(arrived), have);
    wfi_value_tensor_type_text(waits, weft_tensor_dtype(place), want);
    if (weft_tensor_dtype(arrived) != weft_tensor_dtype(place) || !wfi_shape_equal(&have, &want) ||
        !weft_tensor_is_contiguous(place))
        return wfi_call_error(call, WEFT_ERR_SHAPE, "tensor %zu is %s, its landing place is %s%s", index, comes, waits,
                              weft_tensor_is_contiguous(place) ? "" : ", not contiguous");
    bool adds = call->function->flags & WEFT_FUNCTION_LAND_ADD;
    if (adds && !wfi_has_binary(place))
        return wfi_call_error(call, WEFT_ERR_TYPE,
                              "tensor %zu, %s, cannot be added: only float32, float64, int64, int32 and uint8 can",
                              index, comes);
    return NULL;
}

/* Finds the places and checks them. */
static weft_error *find_places(weft_call *call, adding *a)
{
    weft_args args = weft_values_args(call->args);
    a->count = wfi_values_tensors(args, NULL, 0);
    a->arrived = wfi_calloc(a->count, sizeof(*a->arrived));
    a->places = wfi_calloc(a->count, sizeof(*a->places));
    if (!a->arrived || !a->places)
        return wfi_call_error(call, WEFT_ERR_MEMORY, "no memory for a list of %zu places", a->count);
    wfi_values_tensors(args, a->arrived, a->count);
    for (size_t i = 0; i < a->count; i++)
        a->arrived[i] = wfi_tensor_contiguous(a->arrived[i], NULL); /* a reference, or a copy of a strided tensor */
    const weft_function *function = call->function;
    for (size_t i = 0; i < a->count; i++) {
        weft_tensor *arrived = a->arrived[i];
        if (!arrived)
            return wfi_call_error(call, WEFT_ERR_MEMORY, "no memory for tensor %zu", i);
        a->places[i] =
            function->land(call->from, i, weft_tensor_dtype(arrived), weft_tensor_shape(arrived), function->user);
        weft_error *error = a->places[i] ? check_place(call, i, arrived, a->places[i]) : NULL;
        if (error)
            return error;
    }
    return NULL;
}

static weft_error *add_all(weft_call *call, const adding *a)
{
    wfi_registered *entry = wfi_container_of(call->function, wfi_registered, function);
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&entry->adding);
    for (size_t i = 0; i < a->count && !status; i++) {
        if (!a->places[i])
            continue;
        wfi_write place;
        status = wfi_cell_write_begin(&place, a->places[i], WFI_WRITE_IN_PLACE, NULL); /* allocates nothing */
        if (status)
            continue;
        weft_tensor *beside = wfi_tensor_to_device(a->arrived[i], weft_tensor_device(place.to), NULL);
        status = beside ? wfi_binary(WFI_ADD, place.from, beside, place.to) : WEFT_ERR_MEMORY;
        weft_tensor_unref(beside);
        wfi_cell_write_end(&place, !status);
    }
    pthread_mutex_unlock(&entry->adding);
    return status ? wfi_call_error(call, status, "the tensors could not be added: %s", weft_status_text(status)) : NULL;
}

/* For a call of this worker to itself: its tensors are not transferred, so they are copied, as results are. */
static weft_error *copy_all(weft_call *call, const adding *a)
{
    weft_status status = WEFT_OK;
    uint64_t copied = 0;
    for (size_t i = 0; i < a->count && !status; i++) {
        if (!a->places[i] || wfi_tensor_address(a->places[i]) == wfi_tensor_address(a->arrived[i]))
            continue; /* the caller's own tensor is the place */
        status = weft_tensor_assign(a->places[i], a->arrived[i]);
        copied += wfi_copied(weft_tensor_nbytes(a->arrived[i]));
    }
    wfi_net_lock(call->agent->net);
    call->agent->stats.bytes_copied += copied;
    wfi_net_unlock(call->agent->net);
    return status ? wfi_call_error(call, status, "the tensors could not be copied: %s", weft_status_text(status))
                  : NULL;
}

weft_error *wfi_land_when_run(weft_call *call)
{
    adding a = {0};
    weft_error *error = find_places(call, &a);
    if (!error)
        error = call->function->flags & WEFT_FUNCTION_LAND_ADD ? add_all(call, &a) : copy_all(call, &a);
    for (size_t i = 0; i < a.count && !error; i++)
        if (!a.places[i])
            a.places[i] = weft_tensor_ref(a.arrived[i]);
    if (!error)
        wfi_values_replace_tensors(call->args, a.places);
    for (size_t i = 0; i < a.count; i++) {
        if (a.arrived)
            weft_tensor_unref(a.arrived[i]);
        if (a.places)
            weft_tensor_unref(a.places[i]);
    }
    free(a.arrived);
    free(a.places);
    return error;
}
