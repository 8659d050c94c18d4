/* SPDX-License-Identifier: Apache-2.0 */
/* client/stream.h - the caller's side of items; server/stream.h describes how they are sent, and their limit. */
#ifndef WFI_ITEMS_IN_H
#define WFI_ITEMS_IN_H

#include "rpc/client/client.h"
#include "rpc/server/stream.h"

typedef struct wfi_items_in wfi_items_in;

typedef struct wfi_item_slot {
    wfi_items_in *items;
    enum { SLOT_FREE, SLOT_COMING, SLOT_READY } state;
    wfi_inbound inbound; /* of an item from another worker */
    uint64_t linked;     /* the number of its first recorded tensor; 0: none was recorded */
    weft_values *values; /* of an item of a call to this worker itself */
} wfi_item_slot;

/* Guarded by the agent's lock. While `in_hand`, the contents of slot `next` belong to the task. */
struct wfi_items_in {
    weft_agent *agent;
    weft_item_fn fn;
    void *arg;
    wfi_request *call;

    uint32_t next;  /* number of the item that is passed to on_item next */
    uint32_t given; /* number of items that wfi_items_in_give has stored */
    uint32_t expected;
    bool known;   /* `expected` is set */
    bool running; /* the task runs, or is queued */
    bool in_hand; /* on_item runs */
    bool stopped; /* on_item is not called for further items */
    wfi_task task;
    wfi_item_slot slots[WFI_ITEMS_MAX]; /* item n in slot n % WFI_ITEMS_MAX */

    bool waiting, peer_done; /* `waiting`: the call must be completed, with `peer_done`, `values` and `error` */
    const weft_values *values;
    weft_error *error;
};

/* For the on_item of `options`. Returns NULL if memory is out. */
wfi_items_in *wfi_items_in_create(wfi_request *call, const weft_rpc_options *options);
void wfi_items_in_free(wfi_items_in *items);                                      /* end.c; not locked */
void wfi_items_in_on_item(weft_agent *agent, wfi_peer *from, wfi_reader *reader); /* [agent lock] */
/* Gives an item of a call to this worker itself; takes over `values` on success. WEFT_ERR_AGAIN, WEFT_ERR_CANCELLED.
 * [agent lock] */
weft_status wfi_items_in_give(wfi_items_in *items, weft_values *values);
/* Sets the number of items that there will be. False if it was set before. [agent lock] */
bool wfi_items_in_expect(wfi_items_in *items, uint32_t count);
void wfi_items_in_expect_given(wfi_items_in *items); /* the same: those given with wfi_items_in_give. [agent lock] */
/*
 * end.c. Whether the call must wait for items before it ends. If so, wfi_call_complete is called with the same
 * arguments when on_item has returned from the last item (`values` is borrowed; a reference to `error` is kept).
 * `stop`: items that have not been passed to on_item are dropped; the call waits only for a running on_item, or a
 * payload in flight. [agent lock]
 */
bool wfi_items_in_wait(wfi_items_in *items, const weft_values *values, const weft_error *error, bool peer_done,
                       bool stop);
void wfi_items_in_complete_call(
    wfi_items_in *items); /* an item was taken or has failed: completes a call that waits. [agent lock] */
void wfi_items_in_empty(wfi_item_slot *s); /* frees the item */

#endif
