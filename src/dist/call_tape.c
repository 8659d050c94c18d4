/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call_tape.c - the tape of a served call, or of a batch of calls. It is opened at first use and kept in a slot of
 * the call; when the call or batch is finished, its error is read and it is closed. Its seed follows from the call's
 * or batch's identity. It is here because src/rpc must not depend on tapes. The tape of a call under a distributed
 * context records into the context.
 */
#include "autograd/tape.h"
#include "dist/contexts.h"
#include "dist/link.h"
#include "rpc/batch/batch.h"

#include <weft/rpc.h>
#include <weft/tape.h>

static weft_error *tape_error(void *value)
{
    const weft_error *error = weft_tape_error(value);
    return error ? weft_error_ref(error) : NULL;
}

static void commit_tape(void *value)
{
    wfi_tape_commit(value);
}

static void close_tape(void *value)
{
    weft_tape_close(value);
}

static weft_tape *open_in(wfi_call_slot *slot, uint64_t seed, const wfi_link *link)
{
    if (!slot->value) {
        const weft_tape_options how = {.seed = seed};
        weft_tape *tape = link ? wfi_context_tape_at(link->context, &how, link->source->path) : weft_tape_open(&how);
        if (!tape)
            return NULL; /* operators on it return NULL; then giving the results fails */
        *slot = (wfi_call_slot){.value = tape, .error = tape_error, .publish = commit_tape, .drop = close_tape};
    }
    return slot->value;
}

weft_tape *weft_call_tape(weft_call *call)
{
    WFI_LIVE(call);
    if (!call)
        return NULL;
    uint64_t key[] = {(uint64_t)wfi_agent_rank(call->agent), (uint64_t)call->from, call->incarnation, call->id};
    return open_in(&call->slot, wfi_hash_bytes(key, sizeof key), call->link);
}

weft_tape *weft_batch_tape(weft_batch *batch)
{
    WFI_LIVE(batch);
    return batch ? open_in(&batch->slot, batch->seed, NULL) : NULL;
}

weft_context *weft_call_context(weft_call *call)
{
    WFI_LIVE(call);
    return call && call->link ? call->link->context : NULL;
}
