/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call_tape.c - the tape of a call being served: opened at first use, kept in the call's slot, asked for its error when the
 * call is finished, and closed then. Here because src/rpc may not know tapes. Under a distributed context it will be a child
 * of the context's tape.
 */
#include "rpc/serve.h"

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

weft_tape *weft_call_tape(weft_call *call)
{
    if (!call->slot.value) {
        weft_tape *tape = weft_tape_open(NULL);
        if (!tape)
            return NULL; /* operators on it return NULL, which weft_call_give answers */
        call->slot = (wfi_call_slot){.value = tape, .error = tape_error, .drop = close_tape};
    }
    return call->slot.value;
}
