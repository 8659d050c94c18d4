/* SPDX-License-Identifier: Apache-2.0 */
/* client/stream.h - the caller's side of items; server/stream.h says how they are sent and bounded. */
#ifndef WFI_ITEMS_IN_H
#define WFI_ITEMS_IN_H

#include "rpc/client/client.h"

typedef struct wfi_items_in wfi_items_in;

/* The call that items belong to. All [agent lock]. */
typedef struct wfi_stream_owner_ops {
    void (*hold)(void *owner);
    void (*drop)(void *owner);
    void (*end)(void *owner, const weft_values *values, weft_error *error, bool quiet); /* its end waited for items */
    void (*fail)(void *owner, weft_error *error); /* an item cannot be had. Takes over `error` */
} wfi_stream_owner_ops;

/* For the on_item of `options`. They are `owner`'s, which has these operations; `call`: that owner where it calls another
 * worker, else NULL. NULL: no memory. */
wfi_items_in *wfi_items_in_create(weft_agent *agent, const weft_rpc_options *options, void *owner,
                                  const wfi_stream_owner_ops *ops, wfi_request *call);
void wfi_items_in_free(wfi_items_in *items);                                      /* not locked */
void wfi_items_in_on_item(weft_agent *agent, wfi_peer *from, wfi_reader *reader); /* [agent lock] */
/* An item of a call to ourselves, which moves in; WEFT_ERR_AGAIN. [agent lock] */
weft_status wfi_items_in_give(wfi_items_in *items, weft_values *values);
/* How many there will be. False: it was told before. [agent lock] */
bool wfi_items_in_expect(wfi_items_in *items, uint32_t count);
void wfi_items_in_expect_given(wfi_items_in *items); /* of a call to ourselves: no more than were given. [agent lock] */
/*
 * Whether the call's end has to wait for items; then it comes again when they are through, by the owner's `end` with
 * the same arguments (`values` stays the caller's; of `error` a reference is kept). `stop`: it ends
 * without the items that have not been handed over; only an on_item that runs, or a payload under way, is waited for.
 * [agent lock]
 */
bool wfi_items_in_wait(wfi_items_in *items, const weft_values *values, const weft_error *error, bool quiet, bool stop);

#endif
