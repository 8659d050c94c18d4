/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c - see fault.h. */
#include "value/fault.h"

#include "base/text/log.h"
#include "base/text/refuse.h"
#include "base/utf8.h"
#include "value/walk.h"

#include <stdarg.h>
#include <stdio.h>

WEFT_PRINTF(3, 4)
static void find(char *text, size_t room, const char *format, ...)
{
    va_list args;
    if (text[0])
        return;
    va_start(args, format);
    wfi_utf8_print_v(text, room, format, args);
    va_end(args);
}

void wfi_value_tensors_fault(weft_tensors tensors, const char *path, char *text, size_t room)
{
    if (tensors.count && !tensors.items)
        find(text, room, "%s is a list of %zu tensors at NULL", path, tensors.count);
    else if (tensors.count > WEFT_MAX_CALL_TENSORS)
        find(text, room, "%s: %zu tensors where a call may have %d", path, tensors.count, WEFT_MAX_CALL_TENSORS);
    for (size_t i = 0; !text[0] && i < tensors.count; i++)
        if (!tensors.items[i])
            find(text, room, "%s: tensor %zu is NULL", path, i);
}

void wfi_value_list_fault(weft_args list, int depth, const char *path, char *text, size_t room)
{
    if (depth > WEFT_MAX_LIST_DEPTH)
        find(text, room, "%s: lists in lists, more than %d deep", path, WEFT_MAX_LIST_DEPTH);
    else if (list.count > WEFT_MAX_VALUES)
        find(text, room, "%s: %zu values where a list may have %d", path, list.count, WEFT_MAX_VALUES);
    else if (list.count && !list.items)
        find(text, room, "%s: %zu values at NULL", path, list.count);
}

void wfi_value_fault(const weft_value *value, int depth, const char *path, char *text, size_t room)
{
    switch (value->type) {
    case WEFT_TYPE_TENSOR:
        if (!value->as.tensor)
            find(text, room, "%s is a NULL tensor", path);
        break;
    case WEFT_TYPE_TENSORS:
        wfi_value_tensors_fault(value->as.tensors, path, text, room);
        break;
    case WEFT_TYPE_STRING:
    case WEFT_TYPE_BYTES:
        if (!value->as.bytes.data && (value->type == WEFT_TYPE_STRING || value->as.bytes.size))
            find(text, room, "%s is %s at NULL", path, value->type == WEFT_TYPE_STRING ? "a string" : "bytes");
        else if (value->as.bytes.size > PTRDIFF_MAX)
            find(text, room, "%s has %zu bytes: at most %zu", path, value->as.bytes.size, (size_t)PTRDIFF_MAX);
        break;
    case WEFT_TYPE_RREF:
        if (!value->as.rref)
            find(text, room, "%s is a NULL reference", path);
        break;
    case WEFT_TYPE_LIST:
        wfi_value_list_fault(value->as.list, depth + 1, path, text, room);
        break;
    case WEFT_TYPE_NULL:
    case WEFT_TYPE_BOOL:
    case WEFT_TYPE_I64:
    case WEFT_TYPE_F64:
        break;
    default:
        find(text, room, "%s has type %d, which is no type of a value", path, (int)value->type);
    }
}

weft_status wfi_values_refuse(weft_error **error, const char *function, weft_args values, weft_status status,
                              weft_log_level null_tensor)
{
    char text[200] = "", at[WFI_WALK_PATH], path[WFI_WALK_PATH + 8];
    bool tensor = false;
    wfi_walk walk;
    wfi_value_list_fault(values, 0, "the list", text, sizeof(text));
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; !text[0] && status != WEFT_ERR_MEMORY && (value = wfi_walk_next(&walk));) {
        snprintf(path, sizeof(path), "value %s", wfi_walk_path(&walk, at));
        wfi_value_fault(value, walk.depth, path, text, sizeof(text));
        tensor = text[0] && value->type == WEFT_TYPE_TENSOR;
    }
    if (error || !tensor || null_tensor == WEFT_LOG_ERROR)
        return wfi_refuse_to(error, status, "%s: %s", function, text[0] ? text : weft_status_text(status));
    wfi_log(null_tensor, "%s: %s", function, text);
    return status;
}
