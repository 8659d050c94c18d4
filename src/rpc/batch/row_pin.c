/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_pin.c - calls that lie in the slabs of a batch that they are not in: it began without them, or they had to leave it for
 * another caller's; see batch.h. One row keeps all of the slabs in memory, so all count until the last of these calls is over.
 */
#include "rpc/batch/batch.h"

#include "base/alloc.h"
#include "tensor/tensor.h"

#include <stdlib.h>

struct wfi_lodging {
    atomic_size_t holds; /* the calls', and the batch's; they may end on several threads once the agent is closed */
    size_t bytes;        /* against the memory budget, once the batch is over */
};

void wfi_batch_charge_whole(weft_batch *batch)
{
    size_t bytes = 0;
    for (size_t i = 0; i < WEFT_MAX_SIGNATURE; i++)
        bytes += batch->slabs[i] ? weft_tensor_nbytes(batch->slabs[i]) : 0;
    batch->agent->held_bytes += bytes - batch->spare_bytes;
    batch->spare_bytes = bytes;
}

void wfi_lodging_unref(wfi_lodging *lodging, weft_agent *agent)
{
    if (!lodging || atomic_fetch_sub(&lodging->holds, 1) > 1)
        return;
    if (agent)
        agent->held_bytes -= lodging->bytes;
    free(lodging);
}

/* Without memory for that it does not count: the row is there all the same. */
void wfi_batch_lodge(weft_batch *batch, weft_call *call)
{
    if (!batch->lodging && (batch->lodging = wfi_calloc(1, sizeof *batch->lodging)))
        atomic_store(&batch->lodging->holds, 1);
    call->lodging = batch->lodging;
    if (call->lodging)
        atomic_fetch_add(&call->lodging->holds, 1);
}

void wfi_batch_move_out(weft_call *call)
{
    wfi_lodging_unref(call->lodging, call->agent);
    call->lodging = NULL;
}

void wfi_batch_leave_to_lodgers(weft_batch *batch)
{
    if (batch->lodging && atomic_load(&batch->lodging->holds) > 1) {
        wfi_batch_charge_whole(batch);
        batch->lodging->bytes = batch->spare_bytes;
        batch->spare_bytes = 0;
    }
    wfi_lodging_unref(batch->lodging, batch->agent);
}
