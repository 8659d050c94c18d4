/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - remote reads, as messages. The reader asks for pieces (READ), and the owner copies each piece into frames
 * (BYTES), in the order of the READs. So each process touches only its own memory. After a region or a lane is closed,
 * the memory is no longer touched, even if the provider has frames in flight.
 *
 * A READ of memory that may not be read breaks the lane at both ends.
 */
#include "ofi_rdm/rdm.h"

#include <string.h>

/* ---- The reader -------------------------------------------------------------------------------------------------- */

/* The oldest read that was not asked for completely; NULL: none. */
static wfrdm_op *next_to_ask(wfi_lane *lane)
{
    WFI_FOR_LIST (wfrdm_op, op, &lane->reads, link) {
        if (op->read.asked < op->size)
            return op;
    }
    return NULL;
}

static void ask(wfi_lane *lane, wfrdm_op *op)
{
    uint8_t content[sizeof(wfrdm_range)];
    size_t left = op->size - op->read.asked;
    const wfrdm_range range = {.remote = op->read.remote + op->read.asked,
                               .key = op->read.key,
                               .size = left < WFRDM_PIECE_BYTES ? left : WFRDM_PIECE_BYTES};
    op->read.asked += range.size;
    lane->piece_left[lane->pieces++] = range.size;
    wfrdm_lane_send_or_break(lane, WFRDM_READ, 0, content, wfrdm_range_write(&range, content, sizeof(content)));
}

void wfrdm_on_bytes(wfi_lane *lane, const wfrdm_head *head, const uint8_t *bytes)
{
    wfi_assert_held(&lane->rdm->lock);
    if (!lane->pieces || head->size == 0 || head->size > lane->piece_left[0] || head->total != lane->bytes_in) {
        wfrdm_lane_break(lane, WEFT_ERR_FABRIC, "the peer sent bytes that were not asked for");
        return;
    }
    wfrdm_op *op = wfi_container_of(lane->reads.next, wfrdm_op, link); /* a piece is of one read */
    memcpy(op->read.local + op->done, bytes, head->size);
    op->done += head->size;
    lane->bytes_in += head->size;
    lane->piece_left[0] -= head->size;
    if (lane->piece_left[0] == 0)
        memmove(lane->piece_left, lane->piece_left + 1, --lane->pieces * sizeof(*lane->piece_left));
    if (op->done < op->size)
        return;
    wfi_list_remove(&op->link);
    lane->read_count--;
    wfrdm_complete(lane->rdm, op, WEFT_OK, op->size);
}

/* ---- The owner --------------------------------------------------------------------------------------------------- */

void wfrdm_on_read(wfi_lane *lane, const uint8_t *content, size_t size)
{
    wfrdm_range range;
    wfi_assert_held(&lane->rdm->lock);
    if (!wfrdm_range_read(content, size, &range) || lane->serve_count == WFRDM_PIECES || lane->has_no_reads ||
        !wfrdm_region_find(lane->rdm, &range)) {
        wfrdm_lane_break(lane, WEFT_ERR_FABRIC, "the peer asked for memory that it may not read");
        return;
    }
    lane->serves[lane->serve_count++] = range;
}

/* Sends the next frame of the oldest READ. */
static bool serve(wfi_lane *lane, size_t *budget)
{
    const size_t most = lane->rdm->kind->frame_bytes - WFRDM_HEAD_BYTES;
    wfrdm_range *range = &lane->serves[0];
    const uint8_t *data = wfrdm_region_find(lane->rdm, range);
    if (!data) { /* withdrawn meanwhile */
        wfrdm_lane_break(lane, WEFT_ERR_FABRIC, "the memory that the peer reads was withdrawn");
        return false;
    }
    wfrdm_buffer *frame = wfrdm_frame_take(lane->rdm);
    if (!frame)
        return false;
    size_t size = range->size < most ? range->size : most;
    wfrdm_head head = {.kind = WFRDM_BYTES, .size = (uint16_t)size, .total = lane->bytes_out};
    memcpy(frame->bytes + WFRDM_HEAD_BYTES, data, size);
    lane->bytes_out += size;
    range->remote += size;
    range->size -= size;
    if (range->size == 0)
        memmove(lane->serves, lane->serves + 1, --lane->serve_count * sizeof(*lane->serves));
    *budget -= size < *budget ? size : *budget;
    wfrdm_lane_send_frame(lane, frame, &head);
    return true;
}

bool wfrdm_push_reads(wfi_lane *lane, size_t *budget)
{
    wfi_assert_held(&lane->rdm->lock);
    wfrdm_op *op = lane->pieces < WFRDM_PIECES ? next_to_ask(lane) : NULL;
    if (op) {
        ask(lane, op);
        return lane->state == WFRDM_CONNECTED;
    }
    return lane->state == WFRDM_CONNECTED && lane->serve_count && serve(lane, budget);
}
