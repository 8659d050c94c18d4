/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call_tape.c - the tape of a call, or a batch of calls, being served: opened at first use, kept in a slot there, asked for its
 * error when the call or the batch is finished, and closed then. Its seed follows from which call, or batch, it is. Here because
 * src/rpc may not know tapes. Under a distributed context a call's will be a child of the context's tape.
 */
#include "rpc/batch/batch.h"

#include <weft/rpc.h>
#include <weft/tape.h>

static weft_error *tape_error(void *value)
{
    const weft_error *error = weft_tape_error(value);
    return error ? weft_error_ref(error) : NULL;
}

static void close_tape(void *value)
{
    weft_tape_close(value);
}

static weft_tape *open_in(wfi_call_slot *slot, uint64_t seed)
{
    if (!slot->value) {
        weft_tape *tape = weft_tape_open(&(weft_tape_options){.seed = seed});
        if (!tape)
            return NULL; /* operators on it return NULL, which giving results answers */
        *slot = (wfi_call_slot){.value = tape, .error = tape_error, .drop = close_tape};
    }
    return slot->value;
}

weft_tape *weft_call_tape(weft_call *call)
{
    if (!call)
        return NULL;
    uint64_t key[] = {(uint64_t)wfi_agent_rank(call->agent), (uint64_t)call->from, call->incarnation, call->id};
    return open_in(&call->slot, wfi_hash_bytes(key, sizeof key));
}

weft_tape *weft_batch_tape(weft_batch *batch)
{
    return open_in(&batch->slot, batch->seed);
}
