/* SPDX-License-Identifier: Apache-2.0 */
/* end.c - ends lanes: completes their operations, tells the peer, and reports the end. Refuses connect requests. */
#include "ofi_rdm/rdm.h"

#include <stdlib.h>

static void free_unexpected(wfi_lane *lane)
{
    for (wfi_list *node; (node = wfi_list_pop_front(&lane->unexpected));)
        free(wfi_container_of(node, wfrdm_unexpected, link));
}

static void flush_list(wfrdm *rdm, wfi_list *ops, weft_status status)
{
    for (wfi_list *node; (node = wfi_list_pop_front(ops));) {
        wfrdm_op *op = wfi_container_of(node, wfrdm_op, link);
        if (op->kind == WFRDM_OP_INJECT)
            free(op); /* the first member of the wfrdm_injected that post.c has allocated */
        else
            wfrdm_complete(rdm, op, status, 0);
    }
}

void wfrdm_lane_flush(wfi_lane *lane, weft_status status)
{
    flush_list(lane->rdm, &lane->receives, status);
    flush_list(lane->rdm, &lane->sends, status);
    flush_list(lane->rdm, &lane->reads, status);
    lane->receive_count = lane->send_count = lane->read_count = lane->pieces = lane->serve_count = 0;
    lane->is_in_message = false;
    free_unexpected(lane);
    wfi_list_remove(&lane->work);
}

/* A BYE to a lane that was never connected refuses it. */
void wfrdm_lane_send_bye(wfi_lane *lane)
{
    if (lane->has_greeted)
        wfrdm_send_bye(lane->rdm, lane->peer, lane->id | lane->is_dialler);
    lane->has_greeted = false;
}

void wfrdm_lane_break(wfi_lane *lane, weft_status why, const char *text)
{
    wfi_assert_held(&lane->rdm->lock);
    if (lane->state == WFRDM_BROKEN)
        return;
    lane->state = WFRDM_BROKEN;
    lane->why = why;
    lane->why_text = text;
    wfrdm_lane_flush(lane, WEFT_ERR_UNREACHABLE);
    wfrdm_lane_send_bye(lane);
    wfrdm_notify(lane->rdm, &lane->down, WFI_EVENT_CLOSED);
}

void wfrdm_lane_send_or_break(wfi_lane *lane, wfrdm_frame_kind kind, uint8_t flags, const void *content, size_t size)
{
    if (!wfrdm_lane_send(lane, kind, flags, content, size))
        wfrdm_lane_break(lane, WEFT_ERR_FABRIC, "out of memory");
}

void wfrdm_request_free(wfi_connect_request *request)
{
    wfrdm *rdm = request->rdm;
    wfi_assert_held(&rdm->lock);
    if (!request->is_gone)
        wfrdm_send_bye(rdm, request->peer, request->id);
    wfi_list_remove(&request->link);
    wfi_list_remove(&request->asks.link);
    rdm->request_count--;
    wfrdm_peer_leave(rdm, request->peer);
    free(request);
}

static void lose(wfrdm *rdm, const wfrdm_peer *peer)
{
    WFI_FOR_LIST (wfi_lane, lane, &rdm->lanes, link) {
        bool was_asking = lane->is_dialler && lane->state == WFRDM_CONNECTING;
        if (lane->peer == peer && lane->state >= WFRDM_CONNECTING)
            wfrdm_lane_break(lane, was_asking ? WEFT_ERR_UNREACHABLE : WEFT_ERR_FABRIC, peer->why);
    }
    WFI_FOR_LIST_TAKING (wfi_connect_request, request, next, &rdm->requests, link) {
        if (request->peer != peer)
            continue;
        request->is_gone = true;
        if (!wfi_list_empty(&request->asks.link)) /* its owner has not seen it */
            wfrdm_request_free(request);
    }
}

void wfrdm_peers_lost(wfrdm *rdm)
{
    wfi_assert_held(&rdm->lock);
    for (wfi_list *node; (node = wfi_list_pop_front(&rdm->failed));)
        lose(rdm, wfi_container_of(node, wfrdm_peer, failed));
}
