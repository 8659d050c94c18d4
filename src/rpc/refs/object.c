/* SPDX-License-Identifier: Apache-2.0 */
/* object.c - objects of users' types as values: wraps them, checks their type, destroys each exactly once. */
#include "rpc/refs/internal.h"

#include "base/error.h"
#include "base/text/sized.h"

#include <stdlib.h>

wfi_object *wfi_object_create(const weft_object_type *type, void *object, weft_drop_fn drop)
{
    wfi_object *wrapped = malloc(sizeof(*wrapped));
    if (!wrapped) {
        if (drop)
            drop(object);
        return NULL;
    }
    *wrapped = (wfi_object){.type = type, .object = object, .drop = drop};
    return wrapped;
}

void wfi_object_drop(void *object)
{
    wfi_object *wrapped = object;
    if (!wrapped)
        return;
    if (wrapped->drop)
        wrapped->drop(wrapped->object);
    free(wrapped);
}

const wfi_object *wfi_object_of(const weft_future *value)
{
    return wfi_future_payload_kind(value) == wfi_object_drop ? weft_future_payload(value) : NULL;
}

weft_value wfi_made_value(const weft_future *value)
{
    weft_args args = weft_values_args(weft_future_values(value));
    return args.count ? args.items[0] : weft_of_null();
}

weft_error *wfi_object_stays(const wfi_object *object, int owner)
{
    wfi_error_detail detail = {.code = WEFT_ERR_TYPE, .worker = owner};
    return wfi_error_create(&detail, "the reference names an object of its owner's own%s%s, which stays there",
                            object->type ? " type, " : "", object->type ? object->type->name : "");
}

weft_status weft_rref_local_object(weft_rref *rref, void **out)
{
    WFI_CHECK_HANDLE(rref);
    if (!rref || !out)
        return wfi_refuse_null("weft_rref_local_object", rref ? "out" : "the handle");
    if (!rref->value)
        return WEFT_ERR_STATE;
    const wfi_object *held = wfi_object_of(rref->value);
    if (!held)
        return WEFT_ERR_TYPE;
    *out = held->object;
    return WEFT_OK;
}

weft_status weft_rref_local_typed_sized(weft_rref *rref, const weft_object_type *type, size_t size, int64_t wait_ms,
                                        void **out)
{
    WFI_CHECK_HANDLE(rref);
    weft_object_type own;
    if (!rref || !type || !out)
        return wfi_refuse_null("weft_rref_local_typed", !rref ? "the handle" : type ? "out" : "the type");
    if (!WFI_SIZED(type, size, &own))
        return wfi_refuse_newer(NULL, "weft_rref_local_typed", "weft_object_type");
    if (!rref->value)
        return WEFT_ERR_STATE;
    weft_status status = weft_future_wait(rref->value, wait_ms);
    if (status)
        return status;
    const wfi_object *held = wfi_object_of(rref->value);
    if (!held || held->type != type) {
        wfi_agent_log(rref->agent, WEFT_LOG_ERROR, 0, "a reference was read as an object of type %s, and names %s%s",
                      type->name, held ? "a " : "a value",
                      held ? (held->type ? held->type->name : "object without a type") : "");
        return WEFT_ERR_TYPE;
    }
    *out = held->object;
    return WEFT_OK;
}
