/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - opens the dialler's and the acceptor's end of a lane, and closes either. */
#include "base/alloc.h"
#include "ofi_rdm/rdm.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static uint64_t key_of(const wfi_lane *lane)
{
    return lane->id | !lane->is_dialler;
}

static weft_status create(wfrdm *rdm, void *user, wfrdm_peer *peer, uint64_t id, bool is_dialler, wfi_lane **out)
{
    wfi_lane *lane = wfi_calloc(1, sizeof(*lane));
    if (!lane)
        return WEFT_ERR_MEMORY;
    *lane = (wfi_lane){.rdm = rdm, .peer = peer, .user = user, .id = id, .is_dialler = is_dialler};
    lane->has_no_reads = rdm->limits.no_reads;
    wfi_list *const lists[] = {&lane->link,     &lane->work,  &lane->up.link, &lane->down.link,
                               &lane->receives, &lane->sends, &lane->reads,   &lane->unexpected};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        wfi_list_init(lists[i]);
    weft_status status = wfi_map_put(&rdm->by_id, key_of(lane), lane);
    if (status != WEFT_OK) {
        free(lane);
        return status;
    }
    peer->users++;
    rdm->lane_count++;
    wfi_list_push_back(&rdm->lanes, &lane->link);
    *out = lane;
    return WEFT_OK;
}

weft_status wfrdm_lane_open(wfi_fabric *base, const uint8_t *address, size_t size, void *user, wfi_lane **out)
{
    wfrdm *rdm = wfrdm_of(base);
    wfrdm_peer *peer;
    wfi_mutex_lock(&rdm->lock);
    weft_status status = wfrdm_peer_use(rdm, address, size, &peer);
    if (status == WEFT_OK) {
        do {
            uint64_t id;
            randombytes_buf(&id, sizeof(id));
            status = create(rdm, user, peer, id & ~UINT64_C(1), true, out);
        } while (status == WEFT_ERR_EXISTS);
        wfrdm_peer_leave(rdm, peer);
    }
    wfi_mutex_unlock(&rdm->lock);
    return status;
}

weft_status wfrdm_lane_take(wfi_fabric *base, wfi_connect_request *request, void *user, wfi_lane **out)
{
    wfrdm *rdm = wfrdm_of(base);
    wfi_mutex_lock(&rdm->lock);
    weft_status status = create(rdm, user, request->peer, request->id, false, out);
    if (status == WEFT_OK) {
        (*out)->request = request;
        (*out)->has_no_reads |= request->has_no_reads;
        (*out)->frames_in = 1; /* the HELLO */
    } else {
        wfrdm_request_free(request);
    }
    wfi_mutex_unlock(&rdm->lock);
    return status == WEFT_ERR_EXISTS ? WEFT_ERR_FABRIC : status;
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

void wfrdm_lane_close(wfi_lane *lane)
{
    if (!lane)
        return;
    wfrdm *rdm = lane->rdm;
    wfi_mutex_lock(&rdm->lock);
    wfrdm_lane_flush(lane, WEFT_ERR_CANCELLED);
    if (lane->request)
        wfrdm_request_free(lane->request);
    wfrdm_lane_send_bye(lane);
    (void)wfi_map_take(&rdm->by_id, key_of(lane));
    wfi_list_remove(&lane->link);
    wfi_list_remove(&lane->up.link);
    wfi_list_remove(&lane->down.link);
    rdm->lane_count--;
    wfrdm_peer_leave(rdm, lane->peer);
    wfi_mutex_unlock(&rdm->lock);
    free(lane);
}
