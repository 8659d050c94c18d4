/* SPDX-License-Identifier: Apache-2.0 */
/* loopback.h - a call of a worker to itself: the caller's side and the callee's in one struct. [agent lock] */
#ifndef WFI_LOOPBACK_H
#define WFI_LOOPBACK_H

#include "rpc/client/stream.h"
#include "rpc/server/server.h"

typedef struct wfi_loopback {
    weft_call call;      /* first member: freeing it frees the loopback */
    wfi_span outer;      /* the caller's span */
    weft_future *future; /* NULL: it has completed */
    weft_rref *rref;
    wfi_items_in *items; /* NULL: the caller takes none */
    weft_values *land;   /* the places for its results, as one list of tensors */
    bool landing;        /* results are being copied to the places */
    bool starved;        /* there was no memory to wait for a reference */
    bool begun;          /* its handler has begun */
    bool is_attempt;     /* as in wfi_request */
    uint64_t launched_ns;
    size_t unconfirmed;  /* references among its arguments that are being made */
    weft_error *failure; /* the call was cancelled: the error with which the future fails, perhaps later */
    wfi_child child;     /* of the served call that it is made for, if any */
    wfi_list link;       /* in the agent's local_calls */
} wfi_loopback;

/* The loopback that a served call belongs to; NULL: another worker made the call. */
static inline wfi_loopback *wfi_loopback_of(weft_call *call)
{
    return call->peer ? NULL : wfi_container_of(call, wfi_loopback, call);
}

#endif
