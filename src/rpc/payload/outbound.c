/* SPDX-License-Identifier: Apache-2.0 */
/* outbound.c - values on their way out: what the peer is to pull is exposed to it, and withdrawn again. */
#include "base/alloc.h"
#include "tensor/tensor.h"
#include "value/encode.h"

#include <stdlib.h>

#define EXPOSURE_BYTES 512 /* about what net and the provider hold for one */
#define BODY_MARGIN 64     /* bytes of a message kept for what stands before and after meta */

static void patch_u64(wfi_pack *pack, size_t at, uint64_t value)
{
    wfi_writer slot;
    wfi_writer_init(&slot, pack->meta.data + at, 8);
    wfi_write_u64(&slot, value);
}

static weft_status expose_tensors(wfi_pack *pack, wfi_peer *peer)
{
    for (size_t i = 0; i < pack->remote_count; i++) {
        wfi_packed *item = &pack->remote[i];
        if (item->patch == WFI_NO_PATCH)
            continue;
        wfi_exposure *exposure = &pack->exposures[pack->exposure_count];
        weft_status st = wfi_peer_expose(peer, item->tensor->storage, weft_tensor_data(item->tensor),
                                         weft_tensor_nbytes(item->tensor), WFI_REMOTE_READ, exposure);
        if (st)
            return st;
        pack->exposure_count++;
        patch_u64(pack, item->patch, exposure->address);
        patch_u64(pack, item->patch + 8, exposure->key);
    }
    return WEFT_OK;
}

static weft_status expose_meta(wfi_pack *pack, wfi_peer *peer, wfi_writer *header)
{
    weft_status st =
        wfi_storage_wrap(WFI_MEMORY_HOST, 0, pack->meta.data, pack->meta.size, NULL, NULL, &pack->meta_storage);
    if (st)
        return st;
    wfi_exposure *exposure = &pack->exposures[pack->exposure_count];
    st = wfi_peer_expose(peer, pack->meta_storage, pack->meta.data, pack->meta.size, WFI_REMOTE_READ, exposure);
    if (st)
        return st;
    pack->exposure_count++;
    wfi_write_u8(header, 1);
    wfi_write_u64(header, exposure->address);
    wfi_write_u64(header, exposure->key);
    wfi_write_u64(header, pack->meta.size);
    return WEFT_OK;
}

weft_status wfi_pack_seal(wfi_pack *pack, wfi_peer *peer, wfi_writer *header)
{
    bool outgrown = header->size + pack->meta.size + BODY_MARGIN > WFI_MESSAGE_MAX;
    weft_status st = pack->meta.failed ? WEFT_ERR_MEMORY : WEFT_OK;
    if (!st && pack->meta.size > WFI_META_MAX)
        st = WEFT_ERR_TOO_LARGE; /* the peer would refuse it */
    if (!st && (pack->remote_count || outgrown)) {
        pack->exposures = wfi_calloc(pack->remote_count + outgrown, sizeof *pack->exposures);
        st = pack->exposures ? expose_tensors(pack, peer) : WEFT_ERR_MEMORY;
    }
    if (!st && outgrown) {
        st = expose_meta(pack, peer, header);
    } else if (!st) {
        wfi_write_u8(header, 0);
        wfi_write_blob(header, pack->meta.data, pack->meta.size);
    }
    if (!st && header->failed)
        st = WEFT_ERR_MEMORY;
    if (st)
        wfi_pack_withdraw(pack, peer, true); /* nobody has been told of them */
    return st;
}

void wfi_pack_withdraw(wfi_pack *pack, wfi_peer *peer, bool quiet)
{
    if (pack->exposure_count)
        wfi_peer_withdraw(peer, pack->exposures, pack->exposure_count, quiet);
    pack->exposure_count = 0;
}

weft_status wfi_pack_pushes(const wfi_pack *pack, const wfi_landing *landing, wfi_segment **segments, size_t *count)
{
    *segments = NULL;
    *count = 0;
    if (!landing || !pack->remote_count)
        return WEFT_OK;
    wfi_segment *list = wfi_calloc(pack->remote_count, sizeof *list);
    if (!list)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < pack->remote_count; i++) {
        const wfi_packed *item = &pack->remote[i];
        list[i] = (wfi_segment){.local = weft_tensor_data(item->tensor),
                                .storage = item->tensor->storage,
                                .size = weft_tensor_nbytes(item->tensor),
                                .remote_address = landing[item->landing].address,
                                .remote_key = landing[item->landing].key};
    }
    *segments = list;
    *count = pack->remote_count;
    return WEFT_OK;
}

/* ---- What it holds ----------------------------------------------------------------------------------------------- */

uint64_t wfi_pack_bytes(const wfi_pack *pack)
{
    uint64_t bytes = pack->meta.size;
    for (size_t i = 0; i < pack->remote_count; i++)
        bytes += weft_tensor_nbytes(pack->remote[i].tensor);
    return bytes;
}

/* A view's may be the shared one's, or a copy of it. */
static size_t meta_bytes(const wfi_pack *pack)
{
    size_t own = pack->meta.grows ? pack->meta.capacity : 0;
    return own + (pack->shared ? wfi_shared_pack_get(pack->shared)->meta.capacity : 0);
}

size_t wfi_pack_small_bytes(const wfi_pack *pack)
{
    size_t each = sizeof *pack->remote + sizeof *pack->exposures + EXPOSURE_BYTES;
    return pack->remote_count * each + pack->rref_count * sizeof *pack->rrefs +
           (pack->meta_storage ? EXPOSURE_BYTES : meta_bytes(pack));
}

size_t wfi_pack_copied_bytes(const wfi_pack *pack)
{
    uint64_t packed = pack->shared ? wfi_shared_pack_get(pack->shared)->packed_bytes : pack->packed_bytes;
    return (size_t)packed + (pack->meta_storage ? meta_bytes(pack) : 0);
}

uint64_t wfi_pack_exposed_bytes(const wfi_pack *pack)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < pack->exposure_count; i++)
        bytes += pack->exposures[i].size;
    return bytes;
}
