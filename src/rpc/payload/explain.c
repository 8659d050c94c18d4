/* SPDX-License-Identifier: Apache-2.0 */
/* explain.c - finds the value of a list that cannot be sent, and says why; see explain.h. */
#include "rpc/payload/explain.h"

#include "base/error.h"
#include "base/utf8.h"
#include "rpc/refs/refs.h"
#include "tensor/tensor.h"
#include "value/encode.h"
#include "value/fault.h"
#include "value/value.h"
#include "value/walk.h"

#include <stdarg.h>

void wfi_find(wfi_finding *out, const char *format, ...)
{
    va_list args;
    if (out->text[0])
        return;
    va_start(args, format);
    wfi_utf8_print_v(out->text, sizeof(out->text), format, args);
    va_end(args);
}

static bool is_alive(const weft_agent *agent, int rank)
{
    wfi_net_lock(agent->net);
    bool alive = wfi_agent_knows_alive(agent, rank);
    wfi_net_unlock(agent->net);
    return alive;
}

static void find_in_rref(const weft_agent *agent, const weft_rref *rref, const char *path, wfi_finding *out)
{
    const int owner = weft_rref_owner(rref);
    if (out->text[0]) {
        return; /* it is NULL */
    } else if (!wfi_rrefs_are_of(agent, WEFT_VALUES(weft_of_rref((weft_rref *)rref)))) {
        wfi_find(out, "%s is a reference of another agent", path);
    } else if (!is_alive(agent, owner)) {
        wfi_find(out, "%s is a reference to a value of rank %d, which is gone", path, owner);
        out->worker = owner;
    } else if (wfi_rref_passable(rref)) {
        wfi_find(out, "%s is a reference to a value that was not made", path);
    }
}

void wfi_find_in_tensors(weft_tensors tensors, const char *path, wfi_finding *out)
{
    wfi_value_tensors_fault(tensors, path, out->text, sizeof(out->text));
}

void wfi_find_inaccessible(weft_tensors tensors, const char *path, bool for_writing, wfi_finding *out)
{
    for (size_t i = 0; !out->text[0] && i < tensors.count; i++) {
        const weft_tensor *tensor = tensors.items[i];
        if (weft_tensor_is_contiguous(tensor) && wfi_tensor_kind(tensor) != WFI_MEMORY_CUDA &&
            !wfi_storage_is_accessible(wfi_tensor_storage(tensor), wfi_tensor_address(tensor),
                                       weft_tensor_nbytes(tensor), for_writing))
            wfi_find(out, "%s: the memory of tensor %zu cannot be %s: " WFI_INACCESSIBLE, path, i,
                     for_writing ? "written" : "read");
    }
}

/* Of a list only its size is checked, not its items. */
static void find_in_value(const weft_agent *agent, const weft_value *value, int depth, const char *path,
                          wfi_finding *out)
{
    wfi_value_fault(value, depth, path, out->text, sizeof(out->text));
    wfi_find_inaccessible(wfi_value_tensors(value), path, false, out);
    if (value->type == WEFT_TYPE_RREF)
        find_in_rref(agent, value->as.rref, path, out);
}

void wfi_find_in_values(const weft_agent *agent, weft_args values, const char *part, wfi_finding *out)
{
    wfi_walk walk;
    wfi_value_list_fault(values, 0, part, out->text, sizeof(out->text));
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; !out->text[0] && (value = wfi_walk_next(&walk));) {
        char at[WFI_WALK_PATH], path[WFI_WALK_PATH + 40];
        snprintf(path, sizeof(path), "%.32s %s", part, wfi_walk_path(&walk, at));
        find_in_value(agent, value, walk.depth, path, out);
    }
    if (!out->text[0] && wfi_args_are_readable(values) && !wfi_encode_fits(values, out->text, sizeof(out->text)))
        out->text[0] = '\0';
}

void wfi_find_data(weft_args values, const void *data, char text[WFI_FIND_DATA])
{
    wfi_walk walk;
    *text = '\0';
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; !*text && (value = wfi_walk_next(&walk));) {
        weft_tensors tensors = wfi_value_tensors(value);
        char at[WFI_WALK_PATH], number[32] = "";
        for (size_t i = 0; !*text && i < tensors.count; i++) {
            if (weft_tensor_data(tensors.items[i]) != data)
                continue;
            if (value->type == WEFT_TYPE_TENSORS)
                snprintf(number, sizeof(number), ": tensor %zu", i);
            snprintf(text, WFI_FIND_DATA, "value %s%s", wfi_walk_path(&walk, at), number);
        }
    }
}

weft_error *wfi_explain_values(const weft_agent *agent, weft_args values, weft_status why)
{
    wfi_finding found = {.worker = -1};
    if (why != WEFT_ERR_MEMORY)
        wfi_find_in_values(agent, values, "value", &found);
    wfi_error_detail detail = {.code = why, .worker = found.worker};
    return wfi_error_create(&detail, "%s", found.text[0] ? found.text : weft_status_text(why));
}

void wfi_results_fault(const weft_agent *agent, weft_args results, weft_status why, char *text, size_t room)
{
    wfi_finding found = {.worker = -1};
    if (why != WEFT_ERR_MEMORY)
        wfi_find_in_values(agent, results, "result", &found);
    snprintf(text, room, "%s", found.text);
}
