/* SPDX-License-Identifier: Apache-2.0 */
/* values.c - lists of tagged values: literals, and their owned, counted form. */
#include "value/value.h"

#include "base/alloc.h"
#include "base/handle.h"
#include "base/parker.h"
#include "base/text/refuse.h"
#include "mem/cuda.h"
#include "mem/stream.h"
#include "tensor/cell.h"
#include "tensor/tensor.h"
#include "value/fault.h"
#include "value/walk.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct weft_values {
    wfi_handle handle;
    atomic_int refs;
    size_t count, capacity;
    weft_value *items;  /* malloc'ed, or `first` */
    weft_value first[]; /* of wfi_values_make */
};

/* ---- Literals --------------------------------------------------------------------------------------------------- */

weft_value weft_of_null(void)
{
    return (weft_value){.type = WEFT_TYPE_NULL};
}

weft_value weft_of_bool(bool value)
{
    return (weft_value){.type = WEFT_TYPE_BOOL, .as.boolean = value};
}

weft_value weft_of_i64(int64_t value)
{
    return (weft_value){.type = WEFT_TYPE_I64, .as.i64 = value};
}

weft_value weft_of_f64(double value)
{
    return (weft_value){.type = WEFT_TYPE_F64, .as.f64 = value};
}

weft_value weft_of_string(const char *text)
{
    return (weft_value){.type = WEFT_TYPE_STRING, .as.bytes = {.data = text, .size = text ? strlen(text) : 0}};
}

weft_value weft_of_bytes(const void *data, size_t size)
{
    return (weft_value){.type = WEFT_TYPE_BYTES, .as.bytes = {.data = data, .size = size}};
}

weft_value weft_of_tensor(weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    return (weft_value){.type = WEFT_TYPE_TENSOR, .as.tensor = tensor};
}

weft_value weft_of_tensors(weft_tensors tensors)
{
    return (weft_value){.type = WEFT_TYPE_TENSORS, .as.tensors = tensors};
}

weft_value weft_of_rref(weft_rref *rref)
{
    WFI_CHECK_HANDLE(rref);
    return (weft_value){.type = WEFT_TYPE_RREF, .as.rref = rref};
}

weft_value weft_of_list(weft_args list)
{
    return (weft_value){.type = WEFT_TYPE_LIST, .as.list = list};
}

bool wfi_args_are_readable(weft_args values)
{
    wfi_walk walk;
    if (values.count && !values.items)
        return false;
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; (value = wfi_walk_next(&walk));) {
        if (value->type == WEFT_TYPE_LIST && value->as.list.count && !value->as.list.items)
            return false;
        if (value->type == WEFT_TYPE_TENSORS && value->as.tensors.count && !value->as.tensors.items)
            return false;
    }
    return true;
}

/* ---- Owning one value ------------------------------------------------------------------------------------------- */

static weft_status own_bytes(weft_value *value)
{
    size_t size = value->as.bytes.size;
    if (!value->as.bytes.data && (size || value->type == WEFT_TYPE_STRING))
        return WEFT_ERR_INVALID;
    if (size > PTRDIFF_MAX)
        return WEFT_ERR_TOO_LARGE;
    char *copy = malloc(size + 1);
    if (!copy)
        return WEFT_ERR_MEMORY;
    if (size)
        memcpy(copy, value->as.bytes.data, size);
    copy[size] = 0; /* so that a string can be borrowed as one */
    value->as.bytes.data = copy;
    return WEFT_OK;
}

static weft_status own_tensors(weft_value *value)
{
    weft_tensors from = value->as.tensors;
    if (from.count > WEFT_MAX_CALL_TENSORS)
        return WEFT_ERR_TOO_LARGE;
    for (size_t i = 0; i < from.count; i++)
        if (!from.items[i])
            return WEFT_ERR_INVALID;
    weft_tensor **items = malloc(from.count * sizeof(*items) + 1);
    if (!items)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < from.count; i++)
        items[i] = weft_tensor_ref(from.items[i]);
    value->as.tensors = (weft_tensors){items, from.count};
    return WEFT_OK;
}

/* Its items are still borrowed. */
static weft_status own_list(weft_value *value, int depth)
{
    weft_args from = value->as.list;
    if (depth > WEFT_MAX_LIST_DEPTH || from.count > WEFT_MAX_VALUES)
        return WEFT_ERR_TOO_LARGE;
    weft_value *items = malloc(from.count * sizeof(*items) + 1);
    if (!items)
        return WEFT_ERR_MEMORY;
    if (from.count)
        memcpy(items, from.items, from.count * sizeof(*items));
    value->as.list.items = items;
    return WEFT_OK;
}

/* Makes a borrowed value owned, except the items of a list. On failure it is a null value. */
static weft_status own(weft_value *value, int depth)
{
    weft_status status = WEFT_OK;
    switch (value->type) {
    case WEFT_TYPE_NULL:
    case WEFT_TYPE_BOOL:
    case WEFT_TYPE_I64:
    case WEFT_TYPE_F64:
        break;
    case WEFT_TYPE_STRING:
    case WEFT_TYPE_BYTES:
        status = own_bytes(value);
        break;
    case WEFT_TYPE_TENSOR:
        status = weft_tensor_ref(value->as.tensor) ? WEFT_OK : WEFT_ERR_INVALID;
        break;
    case WEFT_TYPE_TENSORS:
        status = own_tensors(value);
        break;
    case WEFT_TYPE_RREF:
        status = weft_rref_ref(value->as.rref) ? WEFT_OK : WEFT_ERR_INVALID;
        break;
    case WEFT_TYPE_LIST:
        status = own_list(value, depth + 1);
        break;
    default:
        status = WEFT_ERR_INVALID;
    }
    if (status)
        value->type = WEFT_TYPE_NULL;
    return status;
}

/* Makes all of them its own, `items` and what is in their lists. On failure none is: they are null values. */
static weft_status own_all(weft_value *items, size_t count)
{
    wfi_walk walk;
    weft_status status = WEFT_OK;
    wfi_walk_begin(&walk, (weft_args){items, count});
    for (weft_value *value; (value = (weft_value *)wfi_walk_next(&walk));) {
        if (!status)
            status = own(value, walk.depth);
        else
            value->type = WEFT_TYPE_NULL; /* still borrowed */
    }
    for (size_t i = 0; status && i < count; i++)
        wfi_value_release(&items[i]);
    return status;
}

weft_status wfi_value_own(const weft_value *from, weft_value *to)
{
    *to = *from;
    return own_all(to, 1);
}

void wfi_value_release(weft_value *value)
{
    switch (value->type) {
    case WEFT_TYPE_STRING:
    case WEFT_TYPE_BYTES:
        free((void *)value->as.bytes.data);
        break;
    case WEFT_TYPE_TENSOR:
        weft_tensor_unref(value->as.tensor);
        break;
    case WEFT_TYPE_TENSORS:
        for (size_t i = 0; i < value->as.tensors.count; i++)
            weft_tensor_unref(value->as.tensors.items[i]);
        free((void *)value->as.tensors.items);
        break;
    case WEFT_TYPE_RREF:
        weft_rref_unref(value->as.rref);
        break;
    case WEFT_TYPE_LIST:
        for (size_t i = 0; i < value->as.list.count; i++)
            wfi_value_release((weft_value *)&value->as.list.items[i]);
        free((void *)value->as.list.items);
        break;
    default:
        break;
    }
    value->type = WEFT_TYPE_NULL;
}

/* ---- Owned lists ------------------------------------------------------------------------------------------------ */

weft_values *wfi_values_make(size_t count)
{
    weft_values *values = malloc(sizeof(*values) + count * sizeof(*values->items));
    if (!values)
        return NULL;
    WFI_HANDLE_INIT(values);
    atomic_init(&values->refs, 1);
    values->count = values->capacity = count;
    values->items = values->first;
    for (size_t i = 0; i < count; i++)
        values->items[i].type = WEFT_TYPE_NULL;
    return values;
}

weft_status wfi_values_create(weft_args from, weft_values **out)
{
    if (from.count > WEFT_MAX_VALUES)
        return WEFT_ERR_TOO_LARGE;
    weft_values *values = wfi_values_make(from.count);
    if (!values)
        return WEFT_ERR_MEMORY;
    if (from.count)
        memcpy(values->items, from.items, from.count * sizeof(*from.items));
    weft_status status = own_all(values->items, from.count);
    if (status)
        weft_values_unref(values);
    else
        *out = values;
    return status;
}

weft_status weft_values_create(weft_args from, weft_values **out, weft_error **error)
{
    if (!out)
        return wfi_refuse_null_to(error, "weft_values_create", "out");
    weft_status status = wfi_args_are_readable(from) ? wfi_values_create(from, out) : WEFT_ERR_INVALID;
    return status ? wfi_values_refuse(error, "weft_values_create", from, status, WEFT_LOG_DEBUG) : WEFT_OK;
}

weft_values *weft_values_ref(weft_values *values)
{
    WFI_CHECK_HANDLE(values);
    if (values)
        atomic_fetch_add_explicit(&values->refs, 1, memory_order_relaxed);
    return values;
}

void weft_values_unref(weft_values *values)
{
    WFI_CHECK_HANDLE(values);
    if (!values)
        return;
    int before = atomic_fetch_sub_explicit(&values->refs, 1, memory_order_acq_rel);
    if (!WFI_HANDLE_IS_LAST(values, before))
        return;
    for (size_t i = 0; i < values->count; i++)
        wfi_value_release(&values->items[i]);
    if (values->items != values->first)
        free(values->items);
    wfi_handle_free(values);
}

weft_status weft_values_add(weft_values *values, weft_value value)
{
    WFI_CHECK_HANDLE(values);
    if (!values)
        return wfi_refuse_null("weft_values_add", "the list");
    if (!wfi_args_are_readable((weft_args){&value, 1}))
        return wfi_values_refuse(NULL, "weft_values_add", (weft_args){&value, 1}, WEFT_ERR_INVALID, WEFT_LOG_DEBUG);
    if (values->count >= WEFT_MAX_VALUES)
        return wfi_refuse(WEFT_ERR_TOO_LARGE, "weft_values_add: the list has %zu values, and a list may have %d",
                          values->count, WEFT_MAX_VALUES);
    bool moves = values->items == values->first && values->count == values->capacity;
    weft_value *items = wfi_grow(moves ? NULL : values->items, values->count, &values->capacity, sizeof(*items));
    if (!items)
        return WEFT_ERR_MEMORY;
    if (moves && values->count)
        memcpy(items, values->items, values->count * sizeof(*items));
    values->items = items;
    weft_status status = wfi_value_own(&value, &values->items[values->count]);
    if (status)
        return wfi_values_refuse(NULL, "weft_values_add", (weft_args){&value, 1}, status, WEFT_LOG_DEBUG);
    values->count++;
    return WEFT_OK;
}

size_t weft_values_count(const weft_values *values)
{
    WFI_CHECK_HANDLE(values);
    return values ? values->count : 0;
}

weft_type weft_values_type(const weft_values *values, size_t index)
{
    WFI_CHECK_HANDLE(values);
    return values && index < values->count ? values->items[index].type : WEFT_TYPE_NONE;
}

/* The streams are collected first, because many tensors usually have the same one. */
weft_status weft_values_wait(const weft_values *values, int64_t wait_ms)
{
    WFI_CHECK_HANDLE(values);
    uint64_t writers[WFI_CUDA_DEVICES_MAX] = {0};
    if (!values)
        return wfi_refuse_null("weft_values_wait", "the list");
    if (wait_ms < WEFT_FOREVER)
        return wfi_refuse_wait("weft_values_wait", wait_ms);
    wfi_walk walk;
    wfi_walk_begin(&walk, weft_values_args(values));
    for (const weft_value *value; (value = wfi_walk_next(&walk));) {
        weft_tensors tensors = wfi_value_tensors(value);
        for (size_t i = 0; i < tensors.count; i++) {
            weft_tensor *now = wfi_tensor_read(tensors.items[i]);
            wfi_storage_add_writer(now->storage, writers);
            weft_tensor_unref(now);
        }
    }
    weft_status status = WEFT_OK;
    uint64_t deadline_ns = wfi_deadline(wfi_park_clock(), wait_ms);
    for (int device = 0; device < WFI_CUDA_DEVICES_MAX; device++) {
        weft_status one = writers[device] == 0 ? WEFT_OK : wfi_stream_wait_all(device, writers[device], deadline_ns);
        status = status == WEFT_OK ? one : status;
    }
    return status;
}

weft_args weft_values_args(const weft_values *values)
{
    WFI_CHECK_HANDLE(values);
    return values ? (weft_args){values->items, values->count} : WEFT_NO_VALUES;
}

size_t wfi_values_bytes(weft_args values)
{
    wfi_walk walk;
    size_t bytes = sizeof(weft_values) + values.count * sizeof(*values.items);
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; (value = wfi_walk_next(&walk));) {
        if (value->type == WEFT_TYPE_LIST)
            bytes += sizeof(weft_values) + value->as.list.count * sizeof(*values.items);
        else if (value->type == WEFT_TYPE_STRING || value->type == WEFT_TYPE_BYTES)
            bytes += value->as.bytes.size;
        else if (value->type == WEFT_TYPE_TENSORS)
            bytes += value->as.tensors.count * sizeof(weft_tensor *);
    }
    return bytes;
}

size_t wfi_values_tensors(weft_args values, weft_tensor **out, size_t room)
{
    wfi_walk walk;
    size_t count = 0;
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; (value = wfi_walk_next(&walk));) {
        weft_tensors here = wfi_value_tensors(value);
        for (size_t i = 0; i < here.count; i++, count++)
            if (count < room)
                out[count] = here.items[i];
    }
    return count;
}

bool wfi_values_on_device(weft_args values)
{
    wfi_walk walk;
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; (value = wfi_walk_next(&walk));) {
        weft_tensors here = wfi_value_tensors(value);
        for (size_t i = 0; i < here.count && here.count <= WEFT_MAX_CALL_TENSORS; i++)
            if (here.items[i] && wfi_tensor_kind(here.items[i]) == WFI_MEMORY_CUDA)
                return true;
    }
    return false;
}

/* The caller owns the lists; they are const only for readers. */
void wfi_values_replace_tensors(weft_values *values, weft_tensor *const *with)
{
    wfi_walk walk;
    wfi_walk_begin(&walk, (weft_args){values->items, values->count});
    for (const weft_value *value; (value = wfi_walk_next(&walk));) {
        weft_tensors here = wfi_value_tensors(value);
        for (size_t i = 0; i < here.count; i++) {
            weft_tensor **slot = (weft_tensor **)&here.items[i];
            weft_tensor_ref(*with);
            weft_tensor_unref(*slot);
            *slot = *with++;
        }
    }
}

void wfi_values_drop(void *values)
{
    weft_values_unref(values);
}

/* ---- Typed reading ---------------------------------------------------------------------------------------------- */

weft_status wfi_values_get(const weft_values *values, size_t index, weft_type type, void *out, size_t size)
{
    if (!values || !out)
        return WEFT_ERR_INVALID;
    if (index >= values->count)
        return WEFT_ERR_NOT_FOUND;
    if (values->items[index].type != type)
        return WEFT_ERR_TYPE;
    memcpy(out, &values->items[index].as, size);
    return WEFT_OK;
}

/* Logs why wfi_values_get failed with `status`, which is returned. */
__attribute__((cold)) static weft_status refuse(const char *function, const weft_values *values, size_t index,
                                                weft_type type, weft_status status)
{
    if (status == WEFT_ERR_INVALID)
        return wfi_refuse_null(function, values ? "out" : "the list");
    if (status == WEFT_ERR_NOT_FOUND)
        return wfi_refuse(status, "%s: there is no value %zu: the list has %zu", function, index, values->count);
    return wfi_refuse(status, "%s: value %zu has the type %s, not %s: weft_values_type tells it", function, index,
                      weft_type_name(values->items[index].type), weft_type_name(type));
}

static weft_status get(const char *function, const weft_values *values, size_t index, weft_type type, void *out,
                       size_t size)
{
    weft_status status = wfi_values_get(values, index, type, out, size);
    return status ? refuse(function, values, index, type, status) : WEFT_OK;
}

weft_status weft_values_get_bool(const weft_values *values, size_t index, bool *out)
{
    WFI_CHECK_HANDLE(values);
    return get(__func__, values, index, WEFT_TYPE_BOOL, out, sizeof(*out));
}

weft_status weft_values_get_i64(const weft_values *values, size_t index, int64_t *out)
{
    WFI_CHECK_HANDLE(values);
    return get(__func__, values, index, WEFT_TYPE_I64, out, sizeof(*out));
}

weft_status weft_values_get_f64(const weft_values *values, size_t index, double *out)
{
    WFI_CHECK_HANDLE(values);
    return get(__func__, values, index, WEFT_TYPE_F64, out, sizeof(*out));
}

weft_status weft_values_get_string(const weft_values *values, size_t index, const char **out)
{
    WFI_CHECK_HANDLE(values);
    return get(__func__, values, index, WEFT_TYPE_STRING, out, sizeof(*out));
}

weft_status weft_values_get_bytes(const weft_values *values, size_t index, const void **data, size_t *size)
{
    WFI_CHECK_HANDLE(values);
    if (!size)
        return wfi_refuse_null(__func__, "size");
    weft_status status = get(__func__, values, index, WEFT_TYPE_BYTES, data, sizeof(*data));
    if (!status)
        *size = values->items[index].as.bytes.size;
    return status;
}

weft_status weft_values_get_tensor(const weft_values *values, size_t index, weft_tensor **out)
{
    WFI_CHECK_HANDLE(values);
    return get(__func__, values, index, WEFT_TYPE_TENSOR, out, sizeof(*out));
}

weft_status weft_values_get_tensors(const weft_values *values, size_t index, weft_tensors *out)
{
    WFI_CHECK_HANDLE(values);
    return get(__func__, values, index, WEFT_TYPE_TENSORS, out, sizeof(*out));
}

weft_status weft_values_get_rref(const weft_values *values, size_t index, weft_rref **out)
{
    WFI_CHECK_HANDLE(values);
    return get(__func__, values, index, WEFT_TYPE_RREF, out, sizeof(*out));
}

weft_status weft_values_get_list(const weft_values *values, size_t index, weft_args *out)
{
    WFI_CHECK_HANDLE(values);
    return get(__func__, values, index, WEFT_TYPE_LIST, out, sizeof(*out));
}
