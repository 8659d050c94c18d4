/* SPDX-License-Identifier: Apache-2.0 */
/* completion.c - completed operations wait in host->completed until poll reports them. Broken lanes. */
#include "host/host.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

weft_status wfi_host_status(int errnum)
{
    switch (errnum) {
    case 0:
        return WEFT_OK;
    case EMFILE:
    case ENFILE:
        return WEFT_ERR_SYSTEM;
    case ENOMEM:
    case ENOSPC:
    case ENOBUFS:
        return WEFT_ERR_MEMORY;
    default:
        return WEFT_ERR_FABRIC;
    }
}

void wfi_host_complete(wfi_host *host, wfi_host_op *op, weft_status status, size_t size)
{
    op->status = status;
    op->size = size;
    op->next = atomic_load(&host->completed);
    while (!atomic_compare_exchange_weak(&host->completed, &op->next, op))
        continue;
    wfi_host_doorbell_wake(&host->doorbell);
}

static void flush_list(wfi_host *host, wfi_list *ops, weft_status status)
{
    for (wfi_list *node; (node = wfi_list_pop_front(ops));) {
        wfi_host_op *op = wfi_container_of(node, wfi_host_op, link);
        if (op->kind == WFI_HOST_INJECT)
            free(op); /* the first member of the struct that message.c has allocated */
        else
            wfi_host_complete(host, op, status, 0);
    }
}

void wfi_host_lane_flush(wfi_lane *lane, weft_status status)
{
    wfi_assert_held(&lane->lock);
    flush_list(lane->host, &lane->receives, status);
    flush_list(lane->host, &lane->sends, status);
    flush_list(lane->host, &lane->reads, status);
    lane->receive_count = lane->send_count = lane->read_count = 0;
    lane->is_in_message = false;
}

/* Shutting the socket down makes the event threads of both sides find its end, and announce it (connect.c). */
void wfi_host_lane_break(wfi_lane *lane)
{
    wfi_assert_held(&lane->lock);
    if (lane->state >= WFI_HOST_BROKEN)
        return;
    lane->state = WFI_HOST_BROKEN;
    wfi_host_lane_flush(lane, WEFT_ERR_UNREACHABLE);
    if (lane->source.fd >= 0)
        shutdown(lane->source.fd, SHUT_RDWR);
}
