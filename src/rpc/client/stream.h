/* SPDX-License-Identifier: Apache-2.0 */
/* client/stream.h - the caller's side of items; server/stream.h describes how they are sent, and their limit. */
#ifndef WFI_ITEMS_IN_H
#define WFI_ITEMS_IN_H

#include "rpc/client/client.h"

typedef struct wfi_items_in wfi_items_in;

/* For the on_item of `options`. Returns NULL if memory is out. */
wfi_items_in *wfi_items_in_create(wfi_request *call, const weft_rpc_options *options);
void wfi_items_in_free(wfi_items_in *items);                                      /* not locked */
void wfi_items_in_on_item(weft_agent *agent, wfi_peer *from, wfi_reader *reader); /* [agent lock] */
/* Gives an item of a call to this worker itself; takes over `values` on success. WEFT_ERR_AGAIN, WEFT_ERR_CANCELLED.
 * [agent lock] */
weft_status wfi_items_in_give(wfi_items_in *items, weft_values *values);
/* Sets the number of items that there will be. False if it was set before. [agent lock] */
bool wfi_items_in_expect(wfi_items_in *items, uint32_t count);
void wfi_items_in_expect_given(wfi_items_in *items); /* the same: those given with wfi_items_in_give. [agent lock] */
/*
 * Whether the call must wait for items before it ends. If so, wfi_call_complete is called with the same arguments when
 * on_item has returned from the last item (`values` is borrowed; a reference to `error` is kept). `stop`: items that
 * have not been passed to on_item are dropped; the call waits only for a running on_item, or a payload in flight.
 * [agent lock]
 */
bool wfi_items_in_wait(wfi_items_in *items, const weft_values *values, const weft_error *error, bool quiet, bool stop);

#endif
