/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.c - messages: posted receives, sends, and the DATA frames that carry them.
 *
 * The receiver copies a DATA frame to the posted receive, or keeps it until one is posted. It keeps at most rdm->window
 * frames a lane. While that number of frames is not consumed, the sender waits for credit.
 */
#include "ofi_rdm/rdm.h"

#include <stdlib.h>
#include <string.h>

#define TOO_LONG "the peer sent more than the receive has room for"

/* The part at offset `done`, and how many of `most` bytes fit it. */
static uint8_t *place_of(const wfrdm_op *op, size_t most, size_t *size)
{
    size_t at = op->done;
    const wfrdm_part *part = op->parts;
    while (at >= part->size && part < op->parts + WFI_RECEIVE_BUFFERS_MAX - 1)
        at -= (part++)->size;
    size_t left = at < part->size ? part->size - at : 0;
    *size = left < most ? left : most;
    return part->data ? part->data + at : NULL;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

static void break_malformed(wfi_lane *lane, const char *text)
{
    wfrdm_log(lane->rdm, WEFT_LOG_WARN, "%s: %s: its lane is closed", lane->rdm->base.ops->name, text);
    wfrdm_lane_break(lane, WEFT_ERR_FABRIC, text);
}

static wfrdm_op *take_receive(wfi_lane *lane)
{
    lane->receive_count--;
    return wfi_container_of(wfi_list_pop_front(&lane->receives), wfrdm_op, link);
}

/* The first frame of a message. False: the lane is broken. */
static bool begin_message(wfi_lane *lane, const wfrdm_head *head)
{
    const wfrdm_op *op = wfi_container_of(lane->receives.next, wfrdm_op, link);
    if (!(head->flags & WFRDM_FIRST) || head->total > WFRDM_MESSAGE_MAX) {
        break_malformed(lane, "the peer began no message where one must begin");
        return false;
    }
    if (head->total > op->size) {
        wfrdm_complete(lane->rdm, take_receive(lane), WEFT_ERR_TOO_LARGE, 0);
        break_malformed(lane, TOO_LONG);
        return false;
    }
    lane->in_size = head->total;
    lane->is_in_message = true;
    return true;
}

/* Copies a frame to the first receive. There is one. */
static void consume(wfi_lane *lane, const wfrdm_head *head, const uint8_t *bytes)
{
    if (!lane->is_in_message && !begin_message(lane, head))
        return;
    wfrdm_op *op = wfi_container_of(lane->receives.next, wfrdm_op, link);
    size_t left = head->size, size;
    if (left > lane->in_size - op->done || (left == 0 && lane->in_size)) {
        break_malformed(lane, TOO_LONG);
        return;
    }
    for (; left; left -= size) {
        uint8_t *place = place_of(op, left, &size);
        memcpy(place, bytes + (head->size - left), size);
        op->done += size;
    }
    lane->data_consumed++;
    if (op->done < lane->in_size)
        return;
    lane->is_in_message = false;
    wfrdm_complete(lane->rdm, take_receive(lane), WEFT_OK, lane->in_size);
}

static bool keep_unexpected(wfi_lane *lane, const wfrdm_head *head, const uint8_t *bytes)
{
    wfrdm_unexpected *frame = malloc(sizeof(*frame) + head->size);
    if (!frame)
        return false;
    frame->head = *head;
    memcpy(frame->bytes, bytes, head->size);
    wfi_list_push_back(&lane->unexpected, &frame->link);
    return true;
}

static void give_credit(wfi_lane *lane)
{
    if (lane->state == WFRDM_CONNECTED && lane->data_consumed - lane->data_reported >= lane->rdm->window / 2)
        wfrdm_lane_send_or_break(lane, WFRDM_CREDIT, 0, NULL, 0);
}

void wfrdm_on_data(wfi_lane *lane, const wfrdm_head *head, const uint8_t *bytes)
{
    wfi_assert_held(&lane->rdm->lock);
    if (++lane->data_in - lane->data_consumed > lane->rdm->window)
        break_malformed(lane, "the peer sent more than was granted");
    else if (!wfi_list_empty(&lane->receives))
        consume(lane, head, bytes);
    else if (!keep_unexpected(lane, head, bytes))
        wfrdm_lane_break(lane, WEFT_ERR_FABRIC, "out of memory");
    give_credit(lane);
}

/* The frames that came before the receive was posted. */
void wfrdm_consume_unexpected(wfi_lane *lane)
{
    while (!wfi_list_empty(&lane->receives) && !wfi_list_empty(&lane->unexpected)) {
        wfrdm_unexpected *frame = wfi_container_of(wfi_list_pop_front(&lane->unexpected), wfrdm_unexpected, link);
        consume(lane, &frame->head, frame->bytes);
        free(frame);
    }
    give_credit(lane);
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void sent(wfi_lane *lane, wfrdm_op *op)
{
    wfi_list_remove(&op->link);
    lane->send_count--;
    if (op->kind == WFRDM_OP_INJECT)
        free(wfi_container_of(op, wfrdm_injected, op));
    else
        wfrdm_complete(lane->rdm, op, WEFT_OK, op->size);
}

bool wfrdm_has_credit(const wfi_lane *lane)
{
    return lane->data_out - lane->data_consumed_by_peer < lane->rdm->window;
}

/* Sends the next part of this message. */
bool wfrdm_send_part(wfi_lane *lane, wfrdm_op *op)
{
    const size_t most = lane->rdm->kind->frame_bytes - WFRDM_HEAD_BYTES;
    wfrdm_buffer *frame = wfrdm_frame_take(lane->rdm);
    if (!frame)
        return false;
    wfrdm_head head = {.kind = WFRDM_DATA, .total = op->done ? 0 : op->size, .flags = op->done ? 0 : WFRDM_FIRST};
    while (op->done < op->size && head.size < most) {
        size_t size;
        const uint8_t *place = place_of(op, most - head.size, &size);
        memcpy(frame->bytes + WFRDM_HEAD_BYTES + head.size, place, size);
        head.size = (uint16_t)(head.size + size);
        op->done += size;
    }
    lane->data_out++;
    wfrdm_lane_send_frame(lane, frame, &head);
    return true;
}

bool wfrdm_push_data(wfi_lane *lane, size_t *budget)
{
    wfi_assert_held(&lane->rdm->lock);
    if (wfi_list_empty(&lane->sends) || !wfrdm_has_credit(lane))
        return false;
    wfrdm_op *op = wfi_container_of(lane->sends.next, wfrdm_op, link);
    size_t before = op->done;
    if (!wfrdm_send_part(lane, op))
        return false;
    if (lane->state != WFRDM_CONNECTED) /* the peer was lost, and the operation is completed */
        return false;
    size_t bytes = op->done - before + WFRDM_HEAD_BYTES;
    *budget -= bytes < *budget ? bytes : *budget;
    if (op->done == op->size)
        sent(lane, op);
    return true;
}
