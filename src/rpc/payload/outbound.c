/* SPDX-License-Identifier: Apache-2.0 */
/* outbound.c - exposes a call's arguments or results to a peer, and ends the exposure. See payload.h. */
#include "base/alloc.h"
#include "rpc/payload/payload.h"
#include "tensor/tensor.h"

#include <assert.h>
#include <stdlib.h>

#define EXPOSURE_BYTES 512 /* roughly the memory that net and the provider hold for one exposure */
#define HEADER_MOST 448    /* longest header of a call whose values are all inline; see also WFI_OUTBOUND_HEADER_MOST */

/* ---- What fits a frame ------------------------------------------------------------------------------------------- */

static bool fits_frame(size_t header_size, size_t meta_size)
{
    return header_size + meta_size + WFI_BODY_MARGIN <= WFI_MESSAGE_MAX;
}

#define EAGER_OTHER 1024 /* bytes of a long message that are not for tensors */

static_assert(WFI_LONG_COVERED <= EAGER_OTHER && WFI_EAGER_LONG + EAGER_OTHER == WFI_LONG_MESSAGE_MAX &&
                  WFI_EAGER_LARGE + EAGER_OTHER == WFI_LARGE_MESSAGE_MAX,
              "eager tensors fit a long or large message");
static_assert(HEADER_MOST + WFI_BODY_INLINE + WFI_BODY_MARGIN <= WFI_MESSAGE_MAX,
              "what is encoded inline fits a frame");
static_assert(WFI_OUTBOUND_HEADER_MOST + WFI_META_ROOM + WFI_BODY_MARGIN <= WFI_MESSAGE_MAX,
              "metadata in the room are never exposed");

size_t wfi_payload_eager(const wfi_peer *peer)
{
    size_t most = wfi_peer_message_max(peer);
    return most > WFI_MESSAGE_MAX ? most - EAGER_OTHER : 0;
}

/* Whether the tensors may follow the metadata in a long message. The MAC covers only its first WFI_LONG_COVERED bytes,
 * so header and metadata must fit into these. Does not ask whether the peer takes such messages. */
static bool may_be_eager(const wfi_outbound *outbound, size_t header_size)
{
    const wfi_encoded *body = &outbound->body;
    return body->remote_count && body->remote_bytes <= WFI_EAGER_LARGE &&
           header_size + body->meta.size + WFI_BODY_MARGIN <= WFI_LONG_COVERED;
}

/* Whether they do. A reply that is sent after pushes is not large: large receives may be given back meanwhile. */
static bool is_eager(const wfi_outbound *outbound, const wfi_peer *peer, size_t header_size)
{
    const wfi_encoded *body = &outbound->body;
    if (!may_be_eager(outbound, header_size) || body->remote_bytes > wfi_payload_eager(peer))
        return false;
    for (size_t i = 0; body->remote_bytes > WFI_EAGER_LONG && i < body->remote_count; i++)
        if (body->remote[i].patch == WFI_NO_PATCH)
            return false;
    return true;
}

bool wfi_outbound_exposes(const wfi_outbound *outbound, const wfi_peer *peer, size_t header_size)
{
    const wfi_encoded *body = &outbound->body;
    if (is_eager(outbound, peer, header_size))
        return false;
    for (size_t i = 0; i < body->remote_count; i++)
        if (body->remote[i].patch != WFI_NO_PATCH)
            return true;
    return !fits_frame(header_size, body->meta.size);
}

/* ---- Tensors of devices ------------------------------------------------------------------------------------------ */

weft_status wfi_outbound_address(wfi_outbound *outbound, weft_agent *agent, int rank, const uint8_t *devices,
                                 char *problem, size_t room)
{
    const wfi_encoded *body = &outbound->body;
    weft_status status = WEFT_OK;
    if (!body->devices)
        return WEFT_OK;
    wfi_net_lock(agent->net);
    for (size_t i = 0; i < body->devices->offset_count && !status; i++) {
        uint8_t *place = body->meta.data + body->devices->offsets[i];
        if (devices)
            place[1] = devices[i];
        else
            status = wfi_device_there(agent, rank, place[0], &place[1], problem, room);
    }
    wfi_net_unlock(agent->net);
    return status;
}

/* ---- Preparing --------------------------------------------------------------------------------------------------- */

static void drop_shared(void *shared)
{
    wfi_shared_body_unref(shared);
}

/* Makes meta_storage if there is none. On failure the metadata have been freed, and body.meta.failed is set. */
static weft_status wrap_meta(wfi_outbound *outbound)
{
    wfi_writer *meta = &outbound->body.meta;
    bool is_own = meta->grows;
    if (outbound->meta_storage)
        return WEFT_OK;
    assert(!meta->in_room && "metadata that are exposed have outgrown the room");
    meta->grows = false; /* the storage owns its bytes */
    weft_status status = wfi_storage_wrap(
        WFI_MEMORY_HOST, 0, meta->data, is_own ? meta->capacity : meta->size, is_own ? free : drop_shared,
        is_own ? (void *)meta->data : wfi_shared_body_ref(outbound->shared), &outbound->meta_storage);
    if (status)
        *meta = (wfi_writer){.failed = true};
    return status;
}

void wfi_outbound_prepare(wfi_outbound *outbound, size_t later, wfi_prepared *prepared)
{
    wfi_encoded *body = &outbound->body;
    for (size_t i = 0; i < body->remote_count; i++)
        if (body->remote[i].patch != WFI_NO_PATCH)
            wfi_prepared_want(prepared, body->remote[i].tensor->storage, WFI_REMOTE_READ);
    if (!prepared->fabric_count || !wfi_outbound_may_outgrow(outbound, later) || body->meta.failed)
        return;
    bool has_room = later == 0 || wfi_writer_make_room(&body->meta, later);
    if (has_room && !wrap_meta(outbound))
        wfi_prepared_want(prepared, outbound->meta_storage, WFI_REMOTE_READ);
}

bool wfi_payload_needs_check(wfi_net *net, int rank)
{
    wfi_net_lock(net);
    const wfi_peer *peer = wfi_net_peer(net, rank);
    bool needs = peer && !wfi_peer_reports_memory(peer);
    wfi_net_unlock(net);
    return needs;
}

weft_status wfi_outbound_check(const wfi_outbound *outbound, wfi_net *net, int rank)
{
    const wfi_encoded *body = &outbound->body;
    bool checks = body->remote_count && wfi_payload_needs_check(net, rank);
    for (size_t i = 0; checks && i < body->remote_count; i++) {
        const weft_tensor *tensor = body->remote[i].tensor;
        if (!wfi_storage_is_accessible(tensor->storage, weft_tensor_data(tensor), weft_tensor_nbytes(tensor), false))
            return WEFT_ERR_INVALID;
    }
    return WEFT_OK;
}

/* ---- Publishing -------------------------------------------------------------------------------------------------- */

static weft_status expose(wfi_outbound *outbound, wfi_peer *peer, wfi_storage *storage, void *bytes, size_t size)
{
    wfi_exposure *exposure = &outbound->exposures[outbound->exposure_count];
    weft_status status = wfi_peer_expose(peer, storage, bytes, size, WFI_REMOTE_READ, exposure);
    if (status)
        return status;
    outbound->exposure_count++;
    outbound->exposed_bytes += size;
    return WEFT_OK;
}

static weft_status expose_tensors(wfi_outbound *outbound, wfi_peer *peer)
{
    for (size_t i = 0; i < outbound->body.remote_count; i++) {
        const wfi_encoded_tensor *item = &outbound->body.remote[i];
        if (item->patch == WFI_NO_PATCH)
            continue;
        const wfi_exposure *exposure = &outbound->exposures[outbound->exposure_count];
        weft_status status = expose(outbound, peer, item->tensor->storage, weft_tensor_data(item->tensor),
                                    weft_tensor_nbytes(item->tensor));
        if (status)
            return status;
        wfi_encode_address(&outbound->body, item, &exposure->remote);
    }
    return WEFT_OK;
}

static weft_status expose_meta(wfi_outbound *outbound, wfi_peer *peer, wfi_writer *header)
{
    const wfi_writer *meta = &outbound->body.meta;
    const wfi_exposure *exposure = &outbound->exposures[outbound->exposure_count];
    weft_status status = wrap_meta(outbound);
    if (!status)
        status = expose(outbound, peer, outbound->meta_storage, meta->data, meta->size);
    if (status)
        return status;
    wfi_write_u8(header, 1);
    wfi_rma_encode(header, &exposure->remote);
    wfi_write_u64(header, meta->size);
    return WEFT_OK;
}

/* Moves the header into a frame, where the tensors can be copied. If memory is out, sets header->failed. */
static bool move_to_frame(wfi_outbound *outbound, wfi_writer *header)
{
    const wfi_encoded *body = &outbound->body;
    size_t size = header->size + sizeof(uint8_t) + sizeof(uint32_t) + body->meta.size;
    for (size_t i = 0; i < body->remote_count; i++)
        size += body->remote[i].patch != WFI_NO_PATCH ? weft_tensor_nbytes(body->remote[i].tensor) : 0;
    wfi_writer whole = {.failed = header->failed || !(outbound->frame = wfi_frame_create(size))};
    if (!whole.failed) {
        wfi_writer_init(&whole, wfi_frame_bytes(outbound->frame), size);
        wfi_write_bytes(&whole, header->data, header->size);
    }
    wfi_writer_fini(header);
    *header = whole;
    return !whole.failed;
}

/* Copies the tensors behind the metadata, except those that were pushed into landing places (WFI_NO_PATCH). */
static void append_tensors(wfi_outbound *outbound, wfi_writer *header)
{
    wfi_encoded *body = &outbound->body;
    for (size_t i = 0; i < body->remote_count; i++)
        if (body->remote[i].patch != WFI_NO_PATCH)
            wfi_encode_eager(body, &body->remote[i]);
    if (!move_to_frame(outbound, header))
        return;
    wfi_write_u8(header, 0);
    wfi_write_blob(header, body->meta.data, body->meta.size);
    for (size_t i = 0; i < body->remote_count; i++) {
        const wfi_encoded_tensor *item = &body->remote[i];
        if (item->patch == WFI_NO_PATCH)
            continue;
        size_t bytes = weft_tensor_nbytes(item->tensor);
        wfi_write_bytes(header, weft_tensor_data(item->tensor), bytes);
        body->copied_bytes += wfi_copied(bytes);
    }
}

/* Sets small_bytes and copied_bytes. If the outbound is a view, the memory of `shared` is counted, and so is the view's
 * own copy of the metadata. */
static void count_held(wfi_outbound *outbound, bool outgrown)
{
    const wfi_encoded *body = &outbound->body;
    const wfi_encoded *shared = outbound->shared ? wfi_shared_body_get(outbound->shared) : NULL;
    size_t each = sizeof(*body->remote) + sizeof(*outbound->exposures) + EXPOSURE_BYTES;
    bool is_own = !shared || body->meta.data != shared->meta.data;
    size_t meta = (is_own && !body->meta.in_room ? body->meta.capacity : 0) + (shared ? shared->meta.capacity : 0);
    size_t small = body->remote_count * each + body->rref_count * sizeof(weft_rref *);
    size_t in_message =
        outbound->meta_follows && meta >= body->meta.size ? body->meta.size : 0; /* net counts these bytes */
    outbound->small_bytes = small + (outgrown ? EXPOSURE_BYTES : meta - in_message);
    outbound->copied_bytes = (size_t)(shared ? shared : body)->packed_bytes + (outgrown ? meta : 0);
}

weft_status wfi_outbound_publish(wfi_outbound *outbound, wfi_peer *peer, wfi_writer *header)
{
    wfi_encoded *body = &outbound->body;
    bool outgrown = !fits_frame(header->size, body->meta.size);
    weft_status status = body->meta.failed ? WEFT_ERR_MEMORY : WEFT_OK;
    if (!status && body->meta.size > WFI_META_MAX)
        status = WEFT_ERR_TOO_LARGE; /* the peer would reject it */
    bool eager = !status && is_eager(outbound, peer, header->size);
    if (!status && !eager && may_be_eager(outbound, header->size))
        wfi_peer_ask_long(peer, EAGER_OTHER + body->remote_bytes);
    if (!status && !eager && wfi_outbound_exposes(outbound, peer, header->size)) {
        outbound->exposures = wfi_calloc(body->remote_count + outgrown, sizeof(*outbound->exposures));
        status = outbound->exposures ? expose_tensors(outbound, peer) : WEFT_ERR_MEMORY;
    }
    if (!status && eager) {
        if (body->remote_bytes > WFI_EAGER_LONG)
            wfi_control_use_large(wfi_peer_control(peer));
        append_tensors(outbound, header);
    } else if (!status && outgrown) {
        status = expose_meta(outbound, peer, header);
    } else if (!status) {
        wfi_write_u8(header, 0);
        wfi_write_u32(header, (uint32_t)body->meta.size); /* the blob's size; wfi_outbound_fill adds its bytes */
        outbound->meta_follows = true;
    }
    if (!status && header->failed)
        status = WEFT_ERR_MEMORY;
    if (status)
        wfi_outbound_withdraw(outbound, peer, true); /* the peer has not been told of the exposures */
    else
        count_held(outbound, outgrown);
    return status;
}

void wfi_outbound_fill(const wfi_outbound *outbound, const wfi_writer *header, wfi_message *message)
{
    const wfi_writer *meta = &outbound->body.meta;
    message->head = header->data;
    message->head_size = header->size;
    message->frame = outbound->frame;
    message->part_count = outbound->meta_follows;
    if (outbound->meta_follows) {
        message->parts[0].data = meta->data;
        message->parts[0].size = meta->size;
    }
}

void wfi_outbound_withdraw(wfi_outbound *outbound, wfi_peer *peer, bool peer_done)
{
    if (outbound->exposure_count)
        wfi_peer_withdraw(peer, outbound->exposures, outbound->exposure_count, peer_done);
    outbound->exposure_count = 0;
    outbound->exposed_bytes = 0;
}

/* ---- Pushing ----------------------------------------------------------------------------------------------------- */

weft_status wfi_outbound_pushes(const wfi_outbound *outbound, const wfi_landing *landing, wfi_segment **segments,
                                size_t *count)
{
    const wfi_encoded *body = &outbound->body;
    *segments = NULL;
    *count = 0;
    if (!landing || !body->remote_count)
        return WEFT_OK;
    wfi_segment *list = wfi_calloc(body->remote_count, sizeof(*list));
    if (!list)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < body->remote_count; i++) {
        const wfi_encoded_tensor *item = &body->remote[i];
        if (item->patch != WFI_NO_PATCH)
            continue; /* not pushed: the peer reads it, or it is in the message */
        list[(*count)++] = (wfi_segment){.local = weft_tensor_data(item->tensor),
                                         .storage = item->tensor->storage,
                                         .size = weft_tensor_nbytes(item->tensor),
                                         .remote = landing[item->landing].remote};
    }
    *segments = list;
    return WEFT_OK;
}

/* ---- Freeing ----------------------------------------------------------------------------------------------------- */

void wfi_outbound_fini(wfi_outbound *outbound)
{
    if (outbound->shared) { /* the lists belong to `shared` */
        outbound->body.remote_count = outbound->body.rref_count = outbound->body.linked_count = 0;
        outbound->body.linked = NULL;
        outbound->body.rrefs = NULL;
        outbound->body.remote = NULL;
        outbound->body.devices = NULL;
    }
    wfi_staging_unref(outbound->staging);
    free(outbound->exposures);
    wfi_frame_unref(outbound->frame);
    wfi_storage_unref(outbound->meta_storage);
    wfi_encoded_fini(&outbound->body);
    wfi_shared_body_unref(outbound->shared);
    *outbound = (wfi_outbound){0};
}
