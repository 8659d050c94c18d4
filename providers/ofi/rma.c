/* SPDX-License-Identifier: Apache-2.0 */
/* rma.c - posting: receives, sends, remote reads and writes. */
#include "objects.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define SEND_IOV_MAX 8

/*
 * Adds the operation to its lane's list before it is posted: it may complete on another thread before the post returns.
 * The number in flight is limited to the sizes that the provider states; 1.17's tcp itself would accept any number.
 */
static weft_status enter(wfi_lane *lane, wfofi_op *op, wfofi_op_kind kind)
{
    const struct fi_info *info = lane->fabric->info;
    weft_status status = WEFT_OK;
    wfi_mutex_lock(&lane->lock);
    if (lane->state == WFOFI_BROKEN || lane->state == WFOFI_CLOSING)
        status = WEFT_ERR_UNREACHABLE;
    else if (kind == WFOFI_RECEIVE)
        status = lane->receives < info->rx_attr->size ? WEFT_OK : WEFT_ERR_AGAIN;
    else if (lane->state != WFOFI_CONNECTED) /* libfabric 1.17's tcp crashes on it */
        status = WEFT_ERR_STATE;
    else
        status = lane->sends < info->tx_attr->size ? WEFT_OK : WEFT_ERR_AGAIN;
    if (status == WEFT_OK) {
        op->lane = lane;
        op->kind = kind;
        wfi_list_push_back(&lane->ops, &op->link);
        lane->receives += kind == WFOFI_RECEIVE;
        lane->sends += kind != WFOFI_RECEIVE;
        lane->reads += kind == WFOFI_READ;
    }
    wfi_mutex_unlock(&lane->lock);
    return status;
}

/* `ret` is the result of the post. If it is not 0, the operation was not accepted and will not be reported. */
static weft_status leave(wfofi_op *op, ssize_t ret)
{
    if (ret == 0)
        return WEFT_OK;
    wfi_lane *lane = op->lane;
    wfi_mutex_lock(&lane->lock);
    wfi_list_remove(&op->link);
    lane->receives -= op->kind == WFOFI_RECEIVE;
    lane->sends -= op->kind != WFOFI_RECEIVE;
    lane->reads -= op->kind == WFOFI_READ;
    wfi_mutex_unlock(&lane->lock);
    return wfofi_status((int)ret);
}

/* Whether an operation goes through a bounce buffer: memory must be registered, and this is not. */
static bool bounces(const wfi_lane *lane, const wfi_region *region)
{
    return lane->fabric->limits.needs_local_regions && !region;
}

static void *descriptor_of(const wfi_region *region)
{
    return region ? region->descriptor : NULL;
}

weft_status wfofi_post_recv(wfi_lane *lane, wfi_fabric_op *user_op, const wfi_receive_buffer *buffers, size_t count)
{
    if (count == 0 || count > WFI_RECEIVE_BUFFERS_MAX)
        return WEFT_ERR_INVALID;
    for (size_t i = 0; i < count; i++)
        if (bounces(lane, buffers[i].region)) /* libfabric would crash */
            return WEFT_ERR_INVALID;
    struct iovec iov[WFI_RECEIVE_BUFFERS_MAX];
    void *descriptors[WFI_RECEIVE_BUFFERS_MAX];
    for (size_t i = 0; i < count; i++) {
        iov[i] = (struct iovec){.iov_base = buffers[i].data, .iov_len = buffers[i].size};
        descriptors[i] = descriptor_of(buffers[i].region);
    }
    wfofi_op *op = (wfofi_op *)user_op;
    weft_status status = enter(lane, op, WFOFI_RECEIVE);
    if (status != WEFT_OK)
        return status;
    return leave(op, fi_recvv(lane->ep, iov, descriptors, count, FI_ADDR_UNSPEC, op));
}

weft_status wfofi_send(wfi_lane *lane, wfi_fabric_op *user_op, const wfi_iov *iov, size_t count)
{
    if (count == 0 || count > SEND_IOV_MAX || count > lane->fabric->info->tx_attr->iov_limit)
        return WEFT_ERR_INVALID;
    struct iovec vectors[SEND_IOV_MAX];
    void *descriptors[SEND_IOV_MAX];
    bool bounced = false;
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        bounced = bounced || (iov[i].size && bounces(lane, iov[i].region));
        total += iov[i].size;
        vectors[i] = (struct iovec){.iov_base = (void *)(uintptr_t)iov[i].data, .iov_len = iov[i].size};
        descriptors[i] = descriptor_of(iov[i].region);
    }
    if (bounced && total > lane->fabric->limits.copied_max)
        return WEFT_ERR_INVALID;
    wfofi_op *op = (wfofi_op *)user_op;
    weft_status status = enter(lane, op, WFOFI_SEND);
    if (status != WEFT_OK)
        return status;
    if (bounced)
        return leave(op, wfofi_bounce_send(lane->fabric, op, iov, count));
    const struct fi_msg message = {.msg_iov = vectors, .desc = descriptors, .iov_count = count, .context = op};
    return leave(op, fi_sendmsg(lane->ep, &message, FI_COMPLETION));
}

/* The slot of the next injected message; the message that used it before has arrived. */
static weft_status take_slot(wfi_lane *lane, uint8_t **out)
{
    weft_status status = WEFT_OK;
    wfi_mutex_lock(&lane->lock);
    if (lane->state != WFOFI_CONNECTED)
        status = lane->state == WFOFI_CONNECTING ? WEFT_ERR_STATE : WEFT_ERR_UNREACHABLE;
    else if (!lane->injected && !(lane->injected = malloc((size_t)WFI_INJECT_AHEAD * WFOFI_INJECT_MAX)))
        status = WEFT_ERR_MEMORY;
    else
        *out = lane->injected + (size_t)(lane->injected_count % WFI_INJECT_AHEAD) * WFOFI_INJECT_MAX;
    wfi_mutex_unlock(&lane->lock);
    return status;
}

/*
 * libfabric's tcp signals every completion over a pair of sockets, which costs a write and a read. An injected message
 * has no completion. Its slot is free at the latest when the peer has received the message. So a lane has
 * WFI_INJECT_AHEAD slots: the caller never sends more messages ahead of the peer.
 */
weft_status wfofi_inject(wfi_lane *lane, const void *data, size_t size)
{
    uint8_t *slot;
    if (size == 0 || size > lane->fabric->limits.inject_max)
        return WEFT_ERR_INVALID;
    weft_status status = take_slot(lane, &slot);
    if (status != WEFT_OK)
        return status;
    memcpy(slot, data, size);
    const struct iovec iov = {.iov_base = slot, .iov_len = size};
    const struct fi_msg message = {.msg_iov = &iov, .iov_count = 1}; /* without descriptors: no memory is registered */
    ssize_t ret = fi_sendmsg(lane->ep, &message, 0);
    if (ret != 0)
        /* the slot stays the next one: the other slots hold messages that are in flight */
        return wfofi_status((int)ret);
    lane->injected_count++;
    return WEFT_OK;
}

weft_status wfofi_read(wfi_lane *lane, wfi_fabric_op *user_op, void *local, size_t size, wfi_region *region,
                       uint64_t remote, uint64_t key)
{
    if (size == 0 || size > lane->fabric->limits.rma_max)
        return WEFT_ERR_INVALID;
    wfofi_op *op = (wfofi_op *)user_op;
    weft_status status = enter(lane, op, WFOFI_READ);
    if (status != WEFT_OK)
        return status;
    if (bounces(lane, region))
        return leave(op, wfofi_bounce_rma(lane->fabric, op, local, size, remote, key));
    struct iovec iov = {.iov_base = local, .iov_len = size};
    void *descriptor = descriptor_of(region);
    struct fi_rma_iov from = {.addr = remote, .len = size, .key = key};
    const struct fi_msg_rma message = {.msg_iov = &iov,
                                       .desc = &descriptor,
                                       .iov_count = 1,
                                       .addr = FI_ADDR_UNSPEC,
                                       .rma_iov = &from,
                                       .rma_iov_count = 1,
                                       .context = op};
    return leave(op, fi_readmsg(lane->ep, &message, FI_COMPLETION));
}

/* FI_DELIVERY_COMPLETE: the tcp provider's target acknowledges a write once its last byte is in memory. */
weft_status wfofi_write(wfi_lane *lane, wfi_fabric_op *user_op, const void *local, size_t size, wfi_region *region,
                        uint64_t remote, uint64_t key)
{
    if (size == 0 || size > lane->fabric->limits.rma_max)
        return WEFT_ERR_INVALID;
    wfofi_op *op = (wfofi_op *)user_op;
    weft_status status = enter(lane, op, WFOFI_WRITE);
    if (status != WEFT_OK)
        return status;
    if (bounces(lane, region))
        return leave(op, wfofi_bounce_rma(lane->fabric, op, (void *)(uintptr_t)local, size, remote, key));
    struct iovec iov = {.iov_base = (void *)(uintptr_t)local, .iov_len = size};
    void *descriptor = descriptor_of(region);
    struct fi_rma_iov to = {.addr = remote, .len = size, .key = key};
    const struct fi_msg_rma message = {.msg_iov = &iov,
                                       .desc = &descriptor,
                                       .iov_count = 1,
                                       .addr = FI_ADDR_UNSPEC,
                                       .rma_iov = &to,
                                       .rma_iov_count = 1,
                                       .context = op};
    return leave(op, fi_writemsg(lane->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE));
}
