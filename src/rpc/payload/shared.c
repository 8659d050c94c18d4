/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c - arguments packed once for several calls: the targets of a multicast, the attempts of one call.
 *
 * Tensors are packed and held once. Each call has its own exposures, because each peer has its own keys. If there are
 * exposures, each call also has its own copy of the metadata, which contain the keys.
 */
#include "base/alloc.h"
#include "rpc/payload/payload.h"

#include <stdlib.h>

struct wfi_shared_body {
    atomic_int refs;
    wfi_encoded body;     /* constant once `copied` is set, or if there is no `staging` */
    wfi_staging *staging; /* of its tensors of devices; NULL: it has none */
    bool copied;          /* [agent lock] */
};

weft_status wfi_shared_body_create(weft_args values, const wfi_encode_options *how, wfi_shared_body **out)
{
    wfi_shared_body *shared = wfi_calloc(1, sizeof(*shared));
    if (!shared)
        return WEFT_ERR_MEMORY;
    atomic_init(&shared->refs, 1);
    weft_status status = wfi_encode(&shared->body, values, how);
    if (!status) {
        wfi_encode_landing_count(&shared->body, 0);
        status = shared->body.meta.failed ? WEFT_ERR_MEMORY : WEFT_OK;
    }
    if (status) {
        wfi_shared_body_unref(shared);
        return status;
    }
    *out = shared;
    return WEFT_OK;
}

wfi_shared_body *wfi_shared_body_ref(wfi_shared_body *shared)
{
    atomic_fetch_add(&shared->refs, 1);
    return shared;
}

void wfi_shared_body_unref(wfi_shared_body *shared)
{
    if (!shared || atomic_fetch_sub(&shared->refs, 1) != 1)
        return;
    wfi_staging_unref(shared->staging);
    wfi_encoded_fini(&shared->body);
    free(shared);
}

weft_status wfi_shared_body_stage(wfi_shared_body *shared, weft_agent *agent)
{
    return wfi_stage(&shared->body, agent, &shared->staging);
}

wfi_staging *wfi_shared_body_staging(const wfi_shared_body *shared)
{
    return shared ? shared->staging : NULL;
}

void wfi_shared_body_copied(wfi_shared_body *shared)
{
    if (!shared->copied)
        wfi_encode_copied(&shared->body);
    shared->copied = true;
}

const wfi_encoded *wfi_shared_body_get(const wfi_shared_body *shared)
{
    return &shared->body;
}

size_t wfi_shared_body_bytes(const wfi_shared_body *shared)
{
    return shared ? shared->body.meta.capacity + (size_t)shared->body.packed_bytes : 0;
}

weft_status wfi_outbound_share(wfi_outbound *outbound, wfi_shared_body *shared)
{
    wfi_encoded view = shared->body;
    const wfi_writer *meta = &shared->body.meta;
    view.packed_bytes = 0;                   /* counted in shared->body */
    if (view.remote_count || view.devices) { /* addresses and devices will be written into its own copy */
        wfi_writer_init_growing(&view.meta);
        wfi_write_bytes(&view.meta, meta->data, meta->size);
    } else {
        wfi_writer_init(&view.meta, meta->data, meta->size);
        view.meta.size = meta->size;
        view.copied_bytes = 0;
    }
    if (view.meta.failed) {
        wfi_writer_fini(&view.meta);
        return WEFT_ERR_MEMORY;
    }
    *outbound = (wfi_outbound){.body = view, .shared = wfi_shared_body_ref(shared)};
    return WEFT_OK;
}
