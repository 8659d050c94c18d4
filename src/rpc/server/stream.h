/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server/stream.h - results that stream: items sent ahead of the reply.
 *
 * The callee (server/stream.c) numbers the items of a call from 0, exposes their large tensors, and keeps each until
 * the caller has said TOOK. It keeps at most WFI_ITEMS_MAX. The caller (client/stream.c) pulls them all at once, hands
 * them to on_item in order, one at a time, and says TOOK after each: so a slow on_item slows the sender down, and
 * neither side ever holds more than WFI_ITEMS_MAX. The reply says how many items there are. The call's future completes
 * after the last of them, and never while on_item runs.
 *
 * A call to this worker itself has no sender's side: client/stream.c gets its items by reference.
 */
#ifndef WFI_ITEMS_OUT_H
#define WFI_ITEMS_OUT_H

#include "rpc/server/server.h"

#define WFI_ITEMS_MAX 16

typedef struct wfi_items_out {
    wfi_list waiting; /* those not taken */
    size_t count;     /* of them */
    uint32_t sent;
} wfi_items_out;

/* ---- The callee's. A call without items (NULL) answers as one that has sent none. -------------------------------- */

/* Whether some are not taken. [agent lock] */
static inline bool wfi_items_out_busy(const weft_call *call)
{
    return call->items && call->items->count > 0;
}
weft_status wfi_items_out_create(wfi_items_out **out);
uint32_t wfi_items_out_count(const weft_call *call);       /* sent so far; [agent lock] */
void wfi_items_out_took(weft_call *call, uint32_t number); /* [agent lock] */
/* WEFT_OK, or why no item can be sent now: WEFT_ERR_STATE, WEFT_ERR_CANCELLED. [agent lock] */
weft_status wfi_items_may_send(const weft_call *call);
weft_status wfi_items_out_send(weft_call *call, weft_args values); /* as responder.send_item */
void wfi_items_out_drop(weft_call *call);                          /* nobody will take them; [agent lock] */

#endif
