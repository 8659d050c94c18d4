/* SPDX-License-Identifier: Apache-2.0 */
/* outbox.c - see outbox.h. */
#include "job/protocol/outbox.h"

#include "base/alloc.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- The reserve ----------------------------------------------------------------------------------------------- */

weft_status wfi_outbox_reserve_init(wfi_outbox_reserve *reserve, size_t count, size_t frame_size)
{
    size_t unit = _Alignof(max_align_t), bytes = sizeof(wfi_outbox_entry) + frame_size;
    *reserve = (wfi_outbox_reserve){.entry_bytes = (bytes + unit - 1) / unit * unit, .count = count};
    wfi_list_init(&reserve->back);
    reserve->room = wfi_calloc(count, reserve->entry_bytes); /* the system allocates no pages before they are used */
    return reserve->room ? WEFT_OK : WEFT_ERR_MEMORY;
}

void wfi_outbox_reserve_fini(wfi_outbox_reserve *reserve)
{
    free(reserve->room);
    *reserve = (wfi_outbox_reserve){0};
}

static wfi_outbox_entry *take_from(wfi_outbox_reserve *reserve, size_t size)
{
    if (!reserve || sizeof(wfi_outbox_entry) + size > reserve->entry_bytes)
        return NULL;
    wfi_list *back = wfi_list_pop_front(&reserve->back);
    void *room = back ? wfi_container_of(back, wfi_outbox_entry, link) : NULL;
    if (!room && reserve->fresh < reserve->count)
        room = reserve->room + reserve->entry_bytes * reserve->fresh++;
    wfi_outbox_entry *entry = room;
    if (entry)
        entry->reserve = reserve;
    return entry;
}

/* ---- Outbox ------------------------------------------------------------------------------------------------------ */

void wfi_outbox_init(wfi_outbox *outbox, wfi_outbox_reserve *reserve)
{
    *outbox = (wfi_outbox){.reserve = reserve};
    wfi_list_init(&outbox->entries);
}

static void drop_first(wfi_outbox *outbox)
{
    wfi_outbox_entry *entry = wfi_container_of(wfi_list_pop_front(&outbox->entries), wfi_outbox_entry, link);
    outbox->bytes -= sizeof(*entry) + entry->size;
    if (entry->reserve)
        wfi_list_push_front(&entry->reserve->back, &entry->link);
    else
        free(entry);
}

void wfi_outbox_fini(wfi_outbox *outbox)
{
    while (outbox->entries.next && !wfi_list_empty(&outbox->entries))
        drop_first(outbox);
}

weft_status wfi_outbox_keep(wfi_outbox *outbox, const uint8_t *frame, size_t size, bool matters)
{
    if (outbox->bytes + sizeof(wfi_outbox_entry) + size > WFI_OUTBOX_LIMIT)
        return WEFT_ERR_TOO_LARGE;
    wfi_outbox_entry *entry = malloc(sizeof(*entry) + size);
    if (entry)
        entry->reserve = NULL;
    else if (matters)
        entry = take_from(outbox->reserve, size);
    if (!entry)
        return WEFT_ERR_MEMORY;
    entry->size = size;
    memcpy(entry->frame, frame, size);
    wfi_list_push_back(&outbox->entries, &entry->link);
    outbox->bytes += sizeof(*entry) + size;
    outbox->sent++;
    return WEFT_OK;
}

bool wfi_outbox_acknowledge(wfi_outbox *outbox, uint64_t received)
{
    if (received < outbox->acknowledged || received > outbox->sent)
        return false;
    for (; outbox->acknowledged < received; outbox->acknowledged++)
        drop_first(outbox);
    return true;
}

const wfi_outbox_entry *wfi_outbox_next(const wfi_outbox *outbox, const wfi_outbox_entry *after)
{
    const wfi_list *next = after ? after->link.next : outbox->entries.next;
    return next == &outbox->entries ? NULL : wfi_container_of(next, wfi_outbox_entry, link);
}
