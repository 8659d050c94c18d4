/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server/stream.h - results that stream: items sent ahead of the reply.
 *
 * The callee (server/stream.c) numbers the items of a call from 0, exposes their large tensors, and keeps each item
 * until the caller has sent TOOK. It keeps at most WFI_ITEMS_MAX. The caller (client/stream.c) pulls all items at once,
 * passes them to on_item in order, one at a time, and sends TOOK after each. So a slow on_item slows the sender down,
 * and neither side ever holds more than WFI_ITEMS_MAX. The reply contains the number of items. The call's future
 * completes after the last item, and never while on_item runs.
 *
 * In a call to this worker itself nothing is sent: client/stream.c gets the items by reference.
 */
#ifndef WFI_ITEMS_OUT_H
#define WFI_ITEMS_OUT_H

#include "rpc/server/server.h"

#include <stdlib.h>

#define WFI_ITEMS_MAX 16

typedef struct wfi_items_out {
    wfi_list waiting; /* items that the caller has not taken */
    size_t count;     /* of `waiting` */
    uint32_t sent;

    /* Items are admitted before their tensors have been copied from devices. The answer waits for them, because it
     * tells of an item that then cannot be sent. */
    size_t staging;       /* such items */
    bool answer_waits;    /* the last of them answers the call */
    weft_error *failure;  /* of the first that could not be sent */
    uint32_t failed_item; /* its number */
} wfi_items_out;

/* ---- The callee's side. A call without items (NULL) behaves like one that has sent none. ------------------------- */

/* Whether the caller has not taken some items. [agent lock] */
static inline bool wfi_items_out_busy(const weft_call *call)
{
    return call->items && call->items->count > 0;
}
weft_status wfi_items_out_create(wfi_items_out **out);
uint32_t wfi_items_out_count(const weft_call *call);       /* sent so far, before one that failed; [agent lock] */
void wfi_items_out_took(weft_call *call, uint32_t number); /* [agent lock] */
/* WEFT_OK, or why no item can be sent now: WEFT_ERR_STATE, WEFT_ERR_CANCELLED. [agent lock] */
weft_status wfi_items_may_send(const weft_call *call);
weft_status wfi_items_out_send(weft_call *call, weft_args values); /* as responder.send_item */
void wfi_items_out_drop(weft_call *call);                          /* the caller will not take the rest; [agent lock] */
/* Whether the answer must wait for items that are not sent yet: then the last one calls `respond` again. If one could
 * not be sent, sets call->error. Not locked. */
bool wfi_items_out_delay_answer(weft_call *call);
static inline void wfi_items_out_free(wfi_items_out *items)
{
    if (items)
        weft_error_unref(items->failure);
    free(items);
}

#endif
