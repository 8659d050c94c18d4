/* SPDX-License-Identifier: Apache-2.0 */
/* say.c - completes and sends frames; sends BYE, and frames whose content is short. */
#include "ofi_rdm/rdm.h"

#include <string.h>

void wfrdm_lane_send_frame(wfi_lane *lane, wfrdm_buffer *frame, wfrdm_head *head)
{
    head->to = lane->id | lane->is_dialler;
    head->sequence = lane->frames_out++;
    head->consumed = lane->data_told = lane->data_consumed;
    wfrdm_head_write(head, frame->bytes);
    wfrdm_transmit(lane->rdm, lane->peer, frame, WFRDM_HEAD_BYTES + head->size);
}

bool wfrdm_lane_say(wfi_lane *lane, wfrdm_frame_kind kind, uint8_t flags, const void *content, size_t size)
{
    wfrdm_buffer *frame = wfrdm_frame_take(lane->rdm);
    if (!frame)
        return false;
    if (size)
        memcpy(frame->bytes + WFRDM_HEAD_BYTES, content, size);
    wfrdm_head head = {.kind = (uint8_t)kind, .flags = flags, .size = (uint16_t)size};
    wfrdm_lane_send_frame(lane, frame, &head);
    return true;
}

void wfrdm_bye(wfrdm *rdm, wfrdm_peer *peer, uint64_t to)
{
    wfrdm_buffer *frame = peer->is_dead ? NULL : wfrdm_frame_take(rdm);
    if (!frame) /* without memory the peer learns nothing, as if the BYE were lost with this process */
        return;
    const wfrdm_head head = {.kind = WFRDM_BYE, .to = to};
    wfrdm_head_write(&head, frame->bytes);
    wfrdm_transmit(rdm, peer, frame, WFRDM_HEAD_BYTES);
}
