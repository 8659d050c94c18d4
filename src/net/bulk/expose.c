/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expose.c - exposes memory of this worker, which a peer may read or write for a while.
 *
 * If registering is cheap (tcp, the simulation), each exposure has a region of its own, with a random key that ends
 * with it. On a fabric where it is expensive (wfi_net_fabric.cache is set: verbs), the
 * storage's cached region is used. Its key outlives the exposure, so only closing the connection ends the peer's
 * access.
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

static void close_region(wfi_transport *transport, wfi_exposed *exposed)
{
    wfi_net_fabric *fabric = &transport->fabrics[0];
    if (exposed->cached)
        wfi_reg_cache_put(fabric->cache, exposed->storage);
    else if (exposed->region)
        fabric->ops->region_close(fabric->fabric, exposed->region);
    exposed->region = NULL;
    exposed->cached = false;
    if (exposed->pinned)
        wfi_storage_unpin_read(exposed->storage);
    exposed->pinned = false;
}

static weft_status open_region(wfi_net_fabric *fabric, wfi_exposed *exposed, void *data, size_t size, unsigned access,
                               uint64_t *address)
{
    if (fabric->limits->keys_per_transfer) {
        weft_status status = fabric->ops->region_open(fabric->fabric, data, size, access, &exposed->region);
        if (!status)
            *address = exposed->region->base;
        return status;
    }
    void *region = NULL;
    weft_status status = wfi_reg_cache_get(fabric->cache, exposed->storage, &region);
    if (status)
        return status;
    exposed->region = region;
    exposed->cached = true;
    *address = exposed->region->base + (uint64_t)((char *)data - (char *)wfi_storage_data(exposed->storage));
    return WEFT_OK;
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
    exposed->storage = storage;
    exposed->task.run = drop_storage;
    uint64_t address = 0;
    weft_status status = size ? open_region(&transport->fabrics[0], exposed, data, size, access, &address) : WEFT_OK;
    if (status) {
        free(exposed);
        return status;
    }
    exposed->address = address;
    exposed->key = exposed->region ? exposed->region->key : 0;
    exposed->size = size;
    exposed->access = access;
    (void)wfi_storage_ref(storage);
    exposed->pinned = access & WFI_REMOTE_READ;
    if (exposed->pinned)
        wfi_storage_pin_read(storage);
    wfi_list_push_back(&wfi_peer_bulk(peer)->exposed, &exposed->link);
    *out = (wfi_exposure){.address = address, .key = exposed->key, .size = size, .region = exposed, .storage = storage};
    return WEFT_OK;
}

void wfi_peer_withdraw(wfi_peer *peer, wfi_exposure *exposures, size_t count, bool quiet)
{
    wfi_transport *transport = peer->transport;
    wfi_channel *channel = peer->channels[WFI_BULK];
    wfi_assert_held(&transport->progress->lock);
    /* The lane first: on tcp, closing a region does not stop a write in flight; closing the lane does. */
    if (!quiet)
        wfi_channel_end(channel);
    for (size_t i = 0; i < count; i++) {
        wfi_exposed *exposed = exposures[i].region;
        if (!exposed)
            continue;
        exposures[i].region = NULL;
        close_region(transport, exposed);
        wfi_list_remove(&exposed->link);
        wfi_progress_defer(transport->progress, &exposed->task, WFI_DEFER_RELEASE);
    }
    channel->used_ns = transport->progress->now_ns;
    wfi_channel_want(channel);
}

bool wfi_exposed_covers(const wfi_bulk *bulk, const wfi_query *query)
{
    WFI_FOR_LIST (const wfi_exposed, exposed, &bulk->exposed, link) {
        uint64_t offset = query->address - exposed->address; /* large if it begins before */
        if (exposed->region && exposed->key == query->key && (exposed->access & query->access) == query->access &&
            offset <= exposed->size && query->size <= exposed->size - offset)
            return true;
    }
    return false;
}

void wfi_exposed_end_all(wfi_bulk *bulk)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&bulk->exposed)))
        close_region(bulk->channel.peer->transport, wfi_container_of(node, wfi_exposed, link));
}
