/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c - arguments packed once for several calls: the targets of a multicast, the attempts of one call. Tensors are
 * packed (if they must be) once, and held once; what differs from call to call are the exposures, as each peer has keys of
 * its own, and so the copy of the metadata in which these stand.
 */
#include "base/alloc.h"
#include "value/encode.h"

#include <stdlib.h>

struct wfi_shared_pack {
    atomic_int refs;
    wfi_pack pack; /* never sealed; unchanged once made */
};

weft_status wfi_shared_pack_create(weft_args values, wfi_shared_pack **out)
{
    wfi_shared_pack *shared = wfi_calloc(1, sizeof *shared);
    if (!shared)
        return WEFT_ERR_MEMORY;
    atomic_init(&shared->refs, 1);
    wfi_pack_options how = {0};
    weft_status st = wfi_pack_values(&shared->pack, values, &how);
    if (!st) {
        wfi_pack_landing_count(&shared->pack, 0);
        st = shared->pack.meta.failed ? WEFT_ERR_MEMORY : WEFT_OK;
    }
    if (st) {
        wfi_shared_pack_unref(shared);
        return st;
    }
    *out = shared;
    return WEFT_OK;
}

wfi_shared_pack *wfi_shared_pack_ref(wfi_shared_pack *shared)
{
    atomic_fetch_add(&shared->refs, 1);
    return shared;
}

void wfi_shared_pack_unref(wfi_shared_pack *shared)
{
    if (!shared || atomic_fetch_sub(&shared->refs, 1) != 1)
        return;
    wfi_pack_fini(&shared->pack);
    free(shared);
}

const wfi_pack *wfi_shared_pack_get(const wfi_shared_pack *shared)
{
    return &shared->pack;
}

size_t wfi_shared_pack_bytes(const wfi_shared_pack *shared)
{
    return shared ? shared->pack.meta.capacity + (size_t)shared->pack.packed_bytes : 0;
}

weft_status wfi_pack_view(wfi_pack *pack, wfi_shared_pack *shared)
{
    *pack = shared->pack;
    pack->packed_bytes = 0; /* counted with the one that it is a view of */
    if (pack->remote_count) {
        wfi_writer_init_growing(&pack->meta);
        wfi_write_bytes(&pack->meta, shared->pack.meta.data, shared->pack.meta.size);
    } else {
        wfi_writer_init(&pack->meta, shared->pack.meta.data, shared->pack.meta.size);
        pack->meta.size = shared->pack.meta.size;
        pack->copied_bytes = 0;
    }
    if (pack->meta.failed) {
        wfi_writer_fini(&pack->meta);
        *pack = (wfi_pack){0};
        return WEFT_ERR_MEMORY;
    }
    pack->shared = wfi_shared_pack_ref(shared);
    return WEFT_OK;
}
