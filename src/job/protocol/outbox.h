/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox.h - the messages that one side of a link to the store has sent and the other has not acknowledged. After a
 * reconnect they are sent again.
 *
 * Messages are numbered from 1 without gaps; the other side reports how many it has received. An outbox is bounded in
 * bytes. If memory is exhausted, a message that must not be lost is stored in a reserve, which was allocated
 * beforehand; its entry is free again once the message is acknowledged.
 *
 * LOCKING. None: the caller's lock guards it. LIFETIME. A reserve may be shared by several outboxes and must outlive
 * them.
 */
#ifndef WFI_OUTBOX_H
#define WFI_OUTBOX_H

#include "base/list.h"

#include <weft/status.h>

#define WFI_OUTBOX_LIMIT (1u << 20) /* bytes kept for one reader */

/* Memory for `count` entries, allocated beforehand; several outboxes may share it. */
typedef struct wfi_outbox_reserve {
    uint8_t *room;
    size_t entry_bytes, count, fresh; /* fresh: number of entries at the front that have been used at least once */
    wfi_list back;                    /* entries that were used and are free again */
} wfi_outbox_reserve;

typedef struct wfi_outbox_entry {
    wfi_list link;
    wfi_outbox_reserve *reserve; /* the reserve that holds this entry; NULL: malloc */
    size_t size;
    uint8_t frame[];
} wfi_outbox_entry;

typedef struct wfi_outbox {
    wfi_list entries;            /* not acknowledged, oldest first */
    wfi_outbox_reserve *reserve; /* it outlives the outbox; NULL: none */
    uint64_t sent, acknowledged; /* messages so far */
    size_t bytes;                /* size of the entries */
} wfi_outbox;

weft_status wfi_outbox_reserve_init(wfi_outbox_reserve *reserve, size_t count, size_t frame_size); /* WEFT_ERR_MEMORY */
void wfi_outbox_reserve_fini(wfi_outbox_reserve *reserve); /* after its outboxes; no-op if it is zeroed */
void wfi_outbox_init(wfi_outbox *outbox, wfi_outbox_reserve *reserve);
void wfi_outbox_fini(wfi_outbox *outbox);
/*
 * Copies the frame of a message that is being sent. `matters`: if malloc fails, the reserve is used. WEFT_ERR_MEMORY;
 * WEFT_ERR_TOO_LARGE: the outbox is full.
 */
weft_status wfi_outbox_keep(wfi_outbox *outbox, const uint8_t *frame, size_t size, bool matters);
/*
 * The other side has received `received` messages: their entries are freed. Returns false if it claims more than was
 * sent, or fewer than before.
 */
bool wfi_outbox_acknowledge(wfi_outbox *outbox, uint64_t received);
/* Returns the entry after `after` (NULL: the first), or NULL at the end. */
const wfi_outbox_entry *wfi_outbox_next(const wfi_outbox *outbox, const wfi_outbox_entry *after);

#endif
