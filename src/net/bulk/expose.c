/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expose.c - exposes memory of this worker, which a peer may read or write for a while.
 *
 * If registering is cheap (limits->keys_per_transfer: tcp), each exposure has a region of its own, with a random key
 * that ends with the exposure. On a fabric whose registrations last (verbs), the exposure uses the storage's
 * registration in the cache. Its key outlives the exposure, so only closing the connection ends the peer's access.
 */
#include "base/alloc.h"
#include "net/bulk/bulk.h"

#include <stdlib.h>

static void drop_storage(wfi_task *task)
{
    wfi_exposed *exposed = wfi_container_of(task, wfi_exposed, task);
    wfi_storage_unref(exposed->storage);
    free(exposed);
}

static void close_regions(const wfi_transport *transport, wfi_exposed *exposed)
{
    for (size_t i = 0; i < transport->fabric_count; i++) {
        const wfi_net_fabric *fabric = &transport->fabrics[i];
        wfi_exposed_region *on = &exposed->on[i];
        if (on->cached)
            wfi_reg_cache_put(fabric->cache, exposed->storage, on->region);
        else if (on->region)
            fabric->ops->region_close(fabric->fabric, on->region);
        *on = (wfi_exposed_region){0};
    }
    exposed->open = false;
    if (exposed->pinned)
        wfi_storage_unpin_read(exposed->storage);
    exposed->pinned = false;
}

/* Opens a region on the fabric, unless there is one. WEFT_ERR_AGAIN: the fabric's cache has no region of the
 * storage. */
static weft_status open_region(wfi_net_fabric *fabric, wfi_exposed *exposed)
{
    wfi_exposed_region *on = &exposed->on[wfi_net_fabric_index(fabric)];
    uint64_t offset = 0;
    weft_status status;
    if (on->region || !exposed->size)
        return WEFT_OK;
    if (fabric->limits->keys_per_transfer) {
        status = fabric->ops->region_open(fabric->fabric, &WFI_HOST_MEMORY(exposed->data, exposed->size),
                                          exposed->access, &on->region);
        if (status) {
            wfi_net_fabric_refused(fabric, exposed->size, status);
            return status;
        }
    } else {
        void *region = NULL;
        if (!wfi_net_fabric_find(fabric, exposed->storage, exposed->access, &region))
            return WEFT_ERR_AGAIN;
        on->region = region;
        on->cached = true;
        offset = (uint64_t)((char *)exposed->data - (char *)wfi_storage_data(exposed->storage));
    }
    on->remote =
        (wfi_rma_address){.address = on->region->base + offset, .key = on->region->key, .fabric = fabric->ops->number};
    return WEFT_OK;
}

/* Opens a region on the fabric that wfi_channel_exposes_on names. If that fails, tries the other fabrics of the peer.
 * wfi_prepared_begin has the same order. */
static weft_status open_first(wfi_channel *channel, wfi_exposed *exposed, wfi_rma_address *remote)
{
    const wfi_peer *peer = channel->peer;
    wfi_transport *transport = peer->transport;
    wfi_net_fabric *first = wfi_channel_exposes_on(channel);
    weft_status status = first ? open_region(first, exposed) : WEFT_ERR_UNREACHABLE;
    for (size_t i = 0; i < transport->fabric_count && first && status; i++) {
        if (&transport->fabrics[i] == first || !wfi_channel_may_use(channel, i))
            continue;
        status = open_region(&transport->fabrics[i], exposed);
        first = status ? first : &transport->fabrics[i];
    }
    if (!status)
        *remote = exposed->on[wfi_net_fabric_index(first)].remote;
    return status == WEFT_ERR_AGAIN ? WEFT_ERR_MEMORY : status; /* not prepared, or registering it failed */
}

weft_status wfi_peer_expose(wfi_peer *peer, wfi_storage *storage, void *data, size_t size, unsigned access,
                            wfi_exposure *out)
{
    wfi_transport *transport = peer->transport;
    wfi_assert_held(&transport->progress->lock);
    if (transport->closing)
        return WEFT_ERR_CLOSED;
    if (peer->status)
        return peer->status;
    wfi_exposed *exposed = wfi_calloc(1, sizeof(*exposed));
    if (!exposed)
        return WEFT_ERR_MEMORY;
    *exposed = (wfi_exposed){.storage = storage, .data = data, .size = size, .access = access, .open = true};
    exposed->task.run = drop_storage;
    wfi_rma_address remote = {0};
    weft_status status = open_first(peer->channels[WFI_BULK], exposed, &remote);
    if (status) {
        free(exposed);
        return status;
    }
    (void)wfi_storage_ref(storage);
    exposed->pinned = access & WFI_REMOTE_READ;
    if (exposed->pinned)
        wfi_storage_pin_read(storage);
    wfi_list_push_back(&wfi_peer_bulk(peer)->exposed, &exposed->link);
    *out = (wfi_exposure){.remote = remote, .region = exposed};
    return WEFT_OK;
}

void wfi_peer_withdraw(wfi_peer *peer, wfi_exposure *exposures, size_t count, bool peer_done)
{
    wfi_transport *transport = peer->transport;
    wfi_channel *channel = peer->channels[WFI_BULK];
    wfi_assert_held(&transport->progress->lock);
    /* The lane first: on tcp, closing a region does not stop a write in flight; closing the lane does. */
    if (!peer_done)
        wfi_channel_end(channel);
    for (size_t i = 0; i < count; i++) {
        wfi_exposed *exposed = exposures[i].region;
        if (!exposed)
            continue;
        exposures[i].region = NULL;
        close_regions(transport, exposed);
        wfi_list_remove(&exposed->link);
        wfi_progress_defer(transport->progress, &exposed->task, WFI_DEFER_RELEASE);
    }
    channel->used_ns = transport->progress->now_ns;
    wfi_channel_want(channel);
}

/* Whether the query names this exposure: fabric, key and access match, and its range lies inside. *offset gets the
 * offset of the range. */
static bool find_range(const wfi_transport *transport, const wfi_exposed *exposed, const wfi_query *query,
                       uint64_t *offset)
{
    for (size_t i = 0; i < transport->fabric_count; i++) {
        const wfi_exposed_region *on = &exposed->on[i];
        *offset = query->remote.address - on->remote.address; /* very large if the range begins before */
        if (on->region && on->remote.fabric == query->remote.fabric && on->remote.key == query->remote.key &&
            (exposed->access & query->access) == query->access && *offset <= exposed->size &&
            query->size <= exposed->size - *offset)
            return true;
    }
    return false;
}

/* Finds the exposure, checks that its memory can be accessed, and then opens a region on the query's fabric. */
uint8_t wfi_exposed_answer(wfi_bulk *bulk, const wfi_query *query, const wfi_registration *ended,
                           void (*registered)(wfi_registration *registration), wfi_rma_address *remote)
{
    wfi_transport *transport = bulk->channel.peer->transport;
    wfi_exposed *found = NULL;
    uint64_t offset = 0;
    WFI_FOR_LIST (wfi_exposed, exposed, &bulk->exposed, link)
        if (!found && exposed->open && find_range(transport, exposed, query, &offset))
            found = exposed;
    if (!found)
        return WFI_GONE;
    /* A peer asks for one chunk, unless its messages are forged. */
    size_t size = query->size < WFI_CHUNK_BYTES ? query->size : WFI_CHUNK_BYTES;
    if (!wfi_memory_is_accessible((const char *)found->data + offset, size, query->access == WFI_REMOTE_WRITE))
        return WFI_NOT_ACCESSIBLE;
    wfi_net_fabric *fabric = NULL;
    for (size_t i = 0; i < transport->fabric_count; i++)
        if (transport->fabrics[i].ops->number == query->fabric)
            fabric = &transport->fabrics[i];
    weft_status status = fabric ? open_region(fabric, found) : WEFT_ERR_UNSUPPORTED;
    bool was_tried = ended && ended->prepared.fabrics[0] == fabric &&
                     wfi_prepared_has(&ended->prepared, found->storage, found->access);
    if (status == WEFT_ERR_AGAIN && !was_tried) { /* the cache has no region: another thread registers the memory */
        wfi_prepared prepared = {.fabrics = {fabric}, .fabric_count = 1};
        wfi_prepared_want(&prepared, found->storage, found->access);
        bulk->registration = wfi_registration_start(transport, &prepared, registered, bulk);
        wfi_prepared_fini(&prepared); /* the exposure has a reference too */
        if (bulk->registration)
            return WFI_NOT_YET;
    }
    if (status)
        return WFI_NOT_ON_THIS_FABRIC;
    *remote = found->on[wfi_net_fabric_index(fabric)].remote;
    remote->address += offset;
    return WFI_STILL_EXPOSED;
}

void wfi_exposed_end_all(wfi_bulk *bulk)
{
    wfi_list *node;
    wfi_registration_forget(&bulk->registration);
    while ((node = wfi_list_pop_front(&bulk->exposed)))
        close_regions(bulk->channel.peer->transport, wfi_container_of(node, wfi_exposed, link));
}
