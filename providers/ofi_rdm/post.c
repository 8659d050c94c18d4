/* SPDX-License-Identifier: Apache-2.0 */
/* post.c - posts operations: receives, sends and reads. */
#include "ofi_rdm/rdm.h"

#include <stdlib.h>
#include <string.h>

static weft_status is_open(const wfi_lane *lane)
{
    if (lane->state == WFRDM_CONNECTED)
        return WEFT_OK;
    return lane->state < WFRDM_CONNECTED ? WEFT_ERR_STATE : WEFT_ERR_UNREACHABLE;
}

weft_status wfrdm_post_recv(wfi_lane *lane, wfi_fabric_op *user_op, const wfi_receive_buffer *buffers, size_t count)
{
    wfrdm *rdm = lane->rdm;
    if (count == 0 || count > WFI_RECEIVE_BUFFERS_MAX)
        return WEFT_ERR_INVALID;
    wfrdm_op *op = (wfrdm_op *)user_op;
    wfi_mutex_lock(&rdm->lock);
    weft_status status = lane->state == WFRDM_BROKEN             ? WEFT_ERR_UNREACHABLE
                         : lane->receive_count == WFRDM_LANE_OPS ? WEFT_ERR_AGAIN
                                                                 : WEFT_OK;
    if (status == WEFT_OK) {
        *op = (wfrdm_op){.kind = WFRDM_OP_RECEIVE};
        for (size_t i = 0; i < count; i++) {
            op->parts[i] = (wfrdm_part){.data = buffers[i].data, .size = buffers[i].size};
            op->size += buffers[i].size;
        }
        wfi_list_push_back(&lane->receives, &op->link);
        lane->receive_count++;
        if (!wfi_list_empty(&lane->unexpected))
            wfrdm_consume_unexpected(lane);
    }
    wfi_mutex_unlock(&rdm->lock);
    return status;
}

weft_status wfrdm_read(wfi_lane *lane, wfi_fabric_op *user_op, void *local, size_t size, wfi_region *region,
                       uint64_t remote, uint64_t key)
{
    wfrdm *rdm = lane->rdm;
    wfrdm_op *op = (wfrdm_op *)user_op;
    (void)region; /* bytes are copied to `local` */
    if (size == 0)
        return WEFT_ERR_INVALID;
    if (size > WFRDM_RMA_MAX)
        return WEFT_ERR_TOO_LARGE;
    wfi_mutex_lock(&rdm->lock);
    weft_status status = lane->state == WFRDM_BROKEN                             ? WEFT_ERR_UNREACHABLE
                         : lane->state != WFRDM_CONNECTED                        ? WEFT_ERR_STATE
                         : lane->has_no_reads                                    ? WEFT_ERR_UNSUPPORTED
                         : lane->send_count + lane->read_count >= WFRDM_LANE_OPS ? WEFT_ERR_AGAIN
                                                                                 : WEFT_OK;
    if (status == WEFT_OK) {
        size_t budget = WFRDM_TURN_BYTES;
        *op = (wfrdm_op){.kind = WFRDM_OP_READ, .size = size, .read = {.local = local, .remote = remote, .key = key}};
        wfi_list_push_back(&lane->reads, &op->link);
        lane->read_count++;
        if (wfi_list_empty(&lane->work))
            wfrdm_lane_push(lane, &budget);
    }
    wfi_mutex_unlock(&rdm->lock);
    return status;
}

static void enqueue(wfi_lane *lane, wfrdm_op *op)
{
    size_t budget = WFRDM_TURN_BYTES;
    wfi_list_push_back(&lane->sends, &op->link);
    lane->send_count++;
    if (wfi_list_empty(&lane->work))
        wfrdm_lane_push(lane, &budget);
}

weft_status wfrdm_send(wfi_lane *lane, wfi_fabric_op *user_op, const wfi_iov *iov, size_t count)
{
    wfrdm *rdm = lane->rdm;
    wfrdm_op *op = (wfrdm_op *)user_op;
    size_t size = 0;
    if (count == 0 || count > WFI_RECEIVE_BUFFERS_MAX)
        return WEFT_ERR_INVALID;
    for (size_t i = 0; i < count; i++)
        size += iov[i].size;
    if (size > WFRDM_MESSAGE_MAX)
        return WEFT_ERR_TOO_LARGE;
    wfi_mutex_lock(&rdm->lock);
    weft_status status = is_open(lane);
    if (status == WEFT_OK && lane->send_count + lane->read_count >= WFRDM_LANE_OPS)
        status = WEFT_ERR_AGAIN;
    if (status == WEFT_OK) {
        *op = (wfrdm_op){.kind = WFRDM_OP_SEND, .size = size};
        for (size_t i = 0; i < count; i++)
            op->parts[i] = (wfrdm_part){.data = (uint8_t *)(uintptr_t)iov[i].data, .size = iov[i].size};
        enqueue(lane, op);
    }
    wfi_mutex_unlock(&rdm->lock);
    return status;
}

/* Sends it at once, or copies it if it has to wait. */
static weft_status put_injected(wfi_lane *lane, const void *data, size_t size)
{
    bool waits = !wfi_list_empty(&lane->sends) || !wfrdm_has_credit(lane) || lane->peer->frames >= WFRDM_PEER_FRAMES;
    wfrdm_op now = {.size = size, .parts = {{.data = (uint8_t *)(uintptr_t)data, .size = size}}};
    if (!waits && wfrdm_send_part(lane, &now))
        return WEFT_OK;
    wfrdm_injected *copy = malloc(sizeof(*copy));
    if (!copy)
        return WEFT_ERR_MEMORY;
    copy->op = (wfrdm_op){.kind = WFRDM_OP_INJECT, .size = size, .parts = {{.data = copy->data, .size = size}}};
    memcpy(copy->data, data, size);
    enqueue(lane, &copy->op);
    return WEFT_OK;
}

weft_status wfrdm_inject(wfi_lane *lane, const void *data, size_t size)
{
    wfrdm *rdm = lane->rdm;
    if (size == 0 || size > WFRDM_INJECT_MAX)
        return WEFT_ERR_INVALID;
    wfi_mutex_lock(&rdm->lock);
    weft_status status = is_open(lane);
    if (status == WEFT_OK)
        status = put_injected(lane, data, size);
    wfi_mutex_unlock(&rdm->lock);
    return status;
}
