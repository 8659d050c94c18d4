/* SPDX-License-Identifier: Apache-2.0 */
/* message.c - messages: posted receives, sends, and how both move through a lane's rings. */
#include "host/host.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* An injected message that found no room. */
typedef struct injected {
    wfi_host_op op;
    uint8_t data[WFI_HOST_INJECT_MAX];
} injected;

static weft_status is_open(const wfi_lane *lane)
{
    if (lane->state == WFI_HOST_CONNECTED)
        return WEFT_OK;
    return lane->state < WFI_HOST_CONNECTED ? WEFT_ERR_STATE : WEFT_ERR_UNREACHABLE;
}

/* ---- Receiving ------------------------------------------------------------------------------------------------- */

/* The part at offset `done`, and how many of `most` bytes fit it. */
static uint8_t *place_of(const wfi_host_op *op, size_t most, size_t *size)
{
    size_t at = op->done;
    const wfi_host_part *part = op->parts;
    while (at >= part->size && part < op->parts + WFI_RECEIVE_BUFFERS_MAX - 1)
        at -= (part++)->size;
    size_t left = at < part->size ? part->size - at : 0;
    *size = left < most ? left : most;
    return part->data ? part->data + at : NULL;
}

static wfi_host_op *take_receive(wfi_lane *lane)
{
    lane->receive_count--;
    return wfi_container_of(wfi_list_pop_front(&lane->receives), wfi_host_op, link);
}

/* Takes the head of a message. False: no receive is posted for it, or the lane is broken. */
static bool begin_message(wfi_lane *lane)
{
    if (wfi_list_empty(&lane->receives)) {
        lane->has_unexpected = true;
        return false;
    }
    uint64_t size = wfi_host_ring_head(&lane->in);
    wfi_host_op *op = wfi_container_of(lane->receives.next, wfi_host_op, link);
    if (size > WFI_HOST_MESSAGE_MAX) {
        wfi_host_log(lane->host, WEFT_LOG_WARN,
                     "host: the peer wrote a malformed message into a ring: its lane is closed");
        wfi_host_lane_break(lane);
        return false;
    }
    if (size > op->size) {
        wfi_host_complete(lane->host, take_receive(lane), WEFT_ERR_TOO_LARGE, 0);
        wfi_host_lane_break(lane);
        return false;
    }
    lane->in_size = (uint32_t)size;
    lane->is_in_message = true;
    return true;
}

/* Takes up to `filled` bytes of the message. Returns how many were taken, padding included. */
static uint32_t fill_message(wfi_lane *lane, uint32_t filled)
{
    wfi_host_op *op = wfi_container_of(lane->receives.next, wfi_host_op, link);
    uint32_t taken = 0, left;
    while ((left = lane->in_size - (uint32_t)op->done) && taken < filled) {
        size_t size;
        uint8_t *place = place_of(op, left < filled - taken ? left : filled - taken, &size);
        wfi_host_ring_take(&lane->in, place, (uint32_t)size);
        op->done += size;
        taken += (uint32_t)size;
    }
    if (left)
        return taken;
    uint32_t padding = -taken % WFI_HOST_ALIGN;
    wfi_host_ring_skip(&lane->in, padding);
    lane->is_in_message = false;
    wfi_host_complete(lane->host, take_receive(lane), WEFT_OK, lane->in_size);
    return taken + padding;
}

/* Takes what is in the ring now: a peer that writes all the time does not keep this thread here. */
void wfi_host_receive(wfi_lane *lane)
{
    uint32_t filled;
    wfi_assert_held(&lane->lock);
    lane->has_unexpected = false;
    if (!wfi_host_ring_filled(&lane->in, &filled)) {
        wfi_host_log(lane->host, WEFT_LOG_WARN,
                     "host: the peer wrote a malformed message into a ring: its lane is closed");
        wfi_host_lane_break(lane);
        return;
    }
    if (!filled)
        return;
    while (lane->state == WFI_HOST_CONNECTED && filled) {
        if (!lane->is_in_message) {
            if (!begin_message(lane))
                break;
            filled -= WFI_HOST_ALIGN;
        }
        filled -= fill_message(lane, filled);
    }
    if (lane->state == WFI_HOST_CONNECTED && wfi_host_ring_release(&lane->in))
        wfi_host_doorbell_signal(&lane->peer.doorbell, lane->peer.slot);
}

weft_status wfi_host_post_recv(wfi_lane *lane, wfi_fabric_op *user_op, const wfi_receive_buffer *buffers, size_t count)
{
    if (count == 0 || count > WFI_RECEIVE_BUFFERS_MAX)
        return WEFT_ERR_INVALID;
    wfi_host_op *op = (wfi_host_op *)user_op;
    wfi_mutex_lock(&lane->lock);
    weft_status status = lane->state >= WFI_HOST_BROKEN             ? WEFT_ERR_UNREACHABLE
                         : lane->receive_count == WFI_HOST_LANE_OPS ? WEFT_ERR_AGAIN
                                                                    : WEFT_OK;
    if (status == WEFT_OK) {
        *op = (wfi_host_op){.kind = WFI_HOST_RECEIVE};
        for (size_t i = 0; i < count; i++) {
            op->parts[i] = (wfi_host_part){.data = buffers[i].data, .size = buffers[i].size};
            op->size += buffers[i].size;
        }
        wfi_list_push_back(&lane->receives, &op->link);
        lane->receive_count++;
        if (lane->has_unexpected)
            wfi_host_doorbell_signal(&lane->host->doorbell, lane->slot);
        lane->has_unexpected = false;
    }
    wfi_mutex_unlock(&lane->lock);
    return status;
}

/* ---- Sending --------------------------------------------------------------------------------------------------- */

/* Writes a message, or as much of it as there is room for. Once the head is written, op->status is WEFT_ERR_AGAIN.
 * Returns whether all is written. */
static bool write_message(wfi_lane *lane, wfi_host_op *op, uint32_t room)
{
    const uint64_t head = op->size;
    if (!op->status) {
        if (room < sizeof(head))
            return false;
        wfi_host_ring_put(&lane->out, &head, sizeof(head));
        room -= (uint32_t)sizeof(head);
        op->status = WEFT_ERR_AGAIN;
    }
    while (op->done < op->size && room) {
        size_t size, left = op->size - op->done;
        const uint8_t *place = place_of(op, left < room ? left : room, &size);
        wfi_host_ring_put(&lane->out, place, (uint32_t)size);
        op->done += size;
        room -= (uint32_t)size;
    }
    if (op->done == op->size)
        wfi_host_ring_publish(&lane->out);
    else /* the rest follows without padding */
        atomic_store_explicit(&lane->out.ring->tail, lane->out.tail, memory_order_release);
    return op->done == op->size;
}

static void written(wfi_lane *lane, wfi_host_op *op)
{
    if (op->kind == WFI_HOST_INJECT)
        free(wfi_container_of(op, injected, op));
    else
        wfi_host_complete(lane->host, op, WEFT_OK, op->size);
}

/* Writes messages while there is room. True: all were written, or the lane is broken. */
static bool push(wfi_lane *lane)
{
    while (!wfi_list_empty(&lane->sends)) {
        wfi_host_op *op = wfi_container_of(lane->sends.next, wfi_host_op, link);
        uint32_t room;
        if (!wfi_host_ring_room(&lane->out, &room)) {
            wfi_host_log(lane->host, WEFT_LOG_WARN,
                         "host: the peer wrote a malformed message into a ring: its lane is closed");
            wfi_host_lane_break(lane);
            return true;
        }
        if (!write_message(lane, op, room))
            return false;
        wfi_list_remove(&op->link);
        lane->send_count--;
        written(lane, op);
    }
    return true;
}

void wfi_host_push(wfi_lane *lane)
{
    wfi_assert_held(&lane->lock);
    if (wfi_list_empty(&lane->sends))
        return;
    uint32_t before = lane->out.tail;
    if (!push(lane)) {
        wfi_host_ring_want_room(&lane->out);
        (void)push(lane); /* if room was made meanwhile, no signal follows */
    }
    if (lane->state == WFI_HOST_CONNECTED && lane->out.tail != before)
        wfi_host_doorbell_signal(&lane->peer.doorbell, lane->peer.slot);
}

static void enqueue(wfi_lane *lane, wfi_host_op *op)
{
    wfi_list_push_back(&lane->sends, &op->link);
    lane->send_count++;
    if (lane->send_count == 1)
        wfi_host_push(lane);
}

weft_status wfi_host_send(wfi_lane *lane, wfi_fabric_op *user_op, const wfi_iov *iov, size_t count)
{
    wfi_host_op *op = (wfi_host_op *)user_op;
    size_t size = 0;
    if (count == 0 || count > WFI_RECEIVE_BUFFERS_MAX)
        return WEFT_ERR_INVALID;
    for (size_t i = 0; i < count; i++)
        size += iov[i].size;
    if (size > WFI_HOST_MESSAGE_MAX)
        return WEFT_ERR_TOO_LARGE;
    wfi_mutex_lock(&lane->lock);
    weft_status status = is_open(lane);
    if (status == WEFT_OK && lane->send_count + lane->read_count >= WFI_HOST_LANE_OPS)
        status = WEFT_ERR_AGAIN;
    if (status == WEFT_OK) {
        *op = (wfi_host_op){.kind = WFI_HOST_SEND, .size = size};
        for (size_t i = 0; i < count; i++)
            op->parts[i] = (wfi_host_part){.data = (uint8_t *)(uintptr_t)iov[i].data, .size = iov[i].size};
        enqueue(lane, op);
    }
    wfi_mutex_unlock(&lane->lock);
    return status;
}

/* Writes the message into the ring. If there is no room, or other messages wait, keeps a copy of it instead. */
static weft_status put_injected(wfi_lane *lane, const void *data, size_t size)
{
    uint32_t room;
    bool waits = lane->send_count > 0 || !wfi_host_ring_room(&lane->out, &room) ||
                 room < sizeof(uint64_t) + size + WFI_HOST_ALIGN;
    if (!waits) {
        wfi_host_op op = {.size = size, .parts = {{.data = (uint8_t *)(uintptr_t)data, .size = size}}};
        bool is_whole = write_message(lane, &op, room);
        assert(is_whole);
        (void)is_whole;
        wfi_host_doorbell_signal(&lane->peer.doorbell, lane->peer.slot);
        return WEFT_OK;
    }
    injected *copy = malloc(sizeof(*copy));
    if (!copy)
        return WEFT_ERR_MEMORY;
    copy->op = (wfi_host_op){.kind = WFI_HOST_INJECT, .size = size, .parts = {{.data = copy->data, .size = size}}};
    memcpy(copy->data, data, size);
    enqueue(lane, &copy->op);
    return WEFT_OK;
}

weft_status wfi_host_inject(wfi_lane *lane, const void *data, size_t size)
{
    if (size == 0 || size > WFI_HOST_INJECT_MAX)
        return WEFT_ERR_INVALID;
    wfi_mutex_lock(&lane->lock);
    weft_status status = is_open(lane);
    if (status == WEFT_OK)
        status = put_injected(lane, data, size);
    wfi_mutex_unlock(&lane->lock);
    return status;
}
