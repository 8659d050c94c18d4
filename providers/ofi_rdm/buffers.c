/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffers.c - the buffers that libfabric sends from and receives into.
 *
 * All receives are posted when the fabric is opened. If messages come faster than they are read, the provider keeps
 * them, or makes their senders wait (FI_RM_ENABLED). The windows of the lanes limit the number of such messages.
 * Buffers for frames to send are added as they are needed: at most WFRDM_PEER_FRAMES a peer, and one or two for each
 * lane.
 */
#include "base/alloc.h"
#include "ofi_rdm/rdm.h"

#include <stdlib.h>

#define FRAMES 32 /* added at once */

/* Returns 0 or libfabric's error. */
static int add_slab(wfrdm *rdm, size_t count, wfrdm_slab **out)
{
    size_t each = rdm->kind->frame_bytes;
    wfrdm_slab *slab = wfi_calloc(1, sizeof(*slab) + count * sizeof(*slab->buffers));
    if (!slab)
        return -FI_ENOMEM;
    slab->memory = aligned_alloc(4096, count * each);
    int ret = slab->memory ? 0 : -FI_ENOMEM;
    if (ret == 0 && rdm->info->domain_attr->mr_mode & FI_MR_LOCAL)
        ret = fi_mr_reg(rdm->domain, slab->memory, count * each, FI_SEND | FI_RECV, 0, 0, 0, &slab->mr, NULL);
    if (ret == 0 && slab->mr && rdm->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        ret = fi_mr_bind(slab->mr, &rdm->ep->fid, 0);
        ret = ret ? ret : fi_mr_enable(slab->mr);
    }
    if (ret != 0) {
        if (slab->mr)
            fi_close(&slab->mr->fid);
        free(slab->memory);
        free(slab);
        return ret;
    }
    slab->count = count;
    for (size_t i = 0; i < count; i++) {
        slab->buffers[i].bytes = slab->memory + i * each;
        slab->buffers[i].descriptor = slab->mr ? fi_mr_desc(slab->mr) : NULL;
        wfi_list_init(&slab->buffers[i].link);
    }
    slab->next = rdm->slabs;
    rdm->slabs = slab;
    *out = slab;
    return 0;
}

static int add_frames(wfrdm *rdm)
{
    wfrdm_slab *slab;
    int ret = add_slab(rdm, FRAMES, &slab);
    for (size_t i = 0; ret == 0 && i < slab->count; i++)
        wfi_list_push_back(&rdm->frames, &slab->buffers[i].link);
    return ret;
}

int wfrdm_receive_post(wfrdm *rdm, wfrdm_buffer *buffer)
{
    return (int)fi_recv(rdm->ep, buffer->bytes, rdm->kind->frame_bytes, buffer->descriptor, FI_ADDR_UNSPEC, buffer);
}

int wfrdm_buffers_open(wfrdm *rdm)
{
    wfrdm_slab *slab;
    size_t offered = rdm->info->rx_attr->size;
    int ret = add_slab(rdm, offered && offered < WFRDM_RECEIVES ? offered : WFRDM_RECEIVES, &slab);
    for (size_t i = 0; ret == 0 && i < slab->count; i++) {
        slab->buffers[i].is_receive = true;
        ret = wfrdm_receive_post(rdm, &slab->buffers[i]);
    }
    return ret ? ret : add_frames(rdm);
}

void wfrdm_buffers_close(wfrdm *rdm)
{
    for (wfrdm_slab *slab = rdm->slabs, *next; slab; slab = next) {
        next = slab->next;
        if (slab->mr)
            fi_close(&slab->mr->fid);
        free(slab->memory);
        free(slab);
    }
    rdm->slabs = NULL;
}

wfrdm_buffer *wfrdm_frame_take(wfrdm *rdm)
{
    wfi_assert_held(&rdm->lock);
    if (wfi_list_empty(&rdm->frames) && add_frames(rdm) != 0)
        return NULL;
    return wfi_container_of(wfi_list_pop_front(&rdm->frames), wfrdm_buffer, link);
}

void wfrdm_frame_give(wfrdm *rdm, wfrdm_buffer *frame)
{
    wfi_assert_held(&rdm->lock);
    frame->peer = NULL;
    wfi_list_remove(&frame->link);
    wfi_list_push_front(&rdm->frames, &frame->link);
}
