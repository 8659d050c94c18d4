/* SPDX-License-Identifier: Apache-2.0 */
/* push.c - sends the frames of a lane, alternately one of its messages and one of its reads. */
#include "ofi_rdm/rdm.h"

bool wfrdm_lane_has_work(const wfi_lane *lane)
{
    if (lane->state != WFRDM_CONNECTED)
        return false;
    bool asks = false;
    WFI_FOR_LIST (wfrdm_op, op, &lane->reads, link)
        asks = asks || op->read.asked < op->size;
    return asks || lane->serve_count || !wfi_list_empty(&lane->sends);
}

void wfrdm_lane_push(wfi_lane *lane, size_t *budget)
{
    wfrdm *rdm = lane->rdm;
    wfi_assert_held(&rdm->lock);
    bool goes_on = true;
    size_t turn = *budget < WFRDM_TURN_BYTES ? *budget : WFRDM_TURN_BYTES, before = turn;
    while (goes_on && turn && lane->state == WFRDM_CONNECTED && !lane->peer->is_dead &&
           lane->peer->frames < WFRDM_PEER_FRAMES) {
        goes_on = wfrdm_push_data(lane, &turn);
        if (turn && lane->state == WFRDM_CONNECTED)
            goes_on |= wfrdm_push_reads(lane, &turn);
    }
    *budget -= before - turn;
    wfi_list_remove(&lane->work);
    if (wfrdm_lane_has_work(lane))
        wfi_list_push_back(&rdm->work, &lane->work);
}
