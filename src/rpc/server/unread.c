/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unread.c - read pins on the results of a served call.
 *
 * weft_call_give puts a read pin on the storage of each tensor, so that weft_tensor_wait_unread waits for results that
 * have not been sent yet. The call's pins end when the answer has been written: transfers that are still to be made
 * have their own pins (net/bulk/expose.c, respond.c).
 *
 * A module's parameter (a cell) is not pinned: its value is read when the answer is written.
 */
#include "rpc/server/server.h"

#include "tensor/tensor.h"
#include "value/walk.h"

static void for_each_storage(const weft_call *call, void (*act)(wfi_storage *storage))
{
    wfi_walk walk;
    wfi_walk_begin(&walk, weft_values_args(call->results));
    for (const weft_value *value; (value = wfi_walk_next(&walk));) {
        weft_tensors tensors = wfi_value_tensors(value);
        for (size_t i = 0; i < tensors.count; i++)
            if (!tensors.items[i]->cell)
                act(tensors.items[i]->storage);
    }
}

/* Most results have no tensors, and need not be walked. */
static bool may_have_tensors(weft_args results)
{
    for (size_t i = 0; i < results.count; i++)
        if (results.items[i].type >= WEFT_TYPE_TENSOR)
            return true;
    return false;
}

void wfi_results_pin(weft_call *call)
{
    if (!may_have_tensors(weft_values_args(call->results)))
        return;
    for_each_storage(call, wfi_storage_pin_read);
    call->pinned = true;
}

void wfi_results_unpin(weft_call *call)
{
    if (!call->pinned)
        return;
    for_each_storage(call, wfi_storage_unpin_read);
    call->pinned = false;
}

void wfi_results_unread(weft_call *call)
{
    if (call->unread)
        wfi_complete_future(call->unread, NULL, NULL);
}

weft_future *weft_call_unread(weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    if (!call)
        return NULL;
    weft_agent *agent = call->agent;
    if (!wfi_agent_enter_locked(agent)) {
        weft_future *ended = wfi_future_create(NULL, NULL); /* a closed agent reads nothing */
        if (ended)
            wfi_complete_future(ended, NULL, NULL);
        return ended;
    }
    if (!call->unread)
        call->unread = wfi_agent_future(agent);
    weft_future *future = weft_future_ref(call->unread);
    wfi_agent_leave_locked(agent);
    return future;
}
