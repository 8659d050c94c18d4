/* SPDX-License-Identifier: Apache-2.0 */
/* poll.c - reports completed operations in order, and waits for completions. */
#include "objects.h"

#include <sys/eventfd.h>

size_t wfofi_poll(wfi_fabric *base, wfi_completion *out, size_t room)
{
    wfofi_fabric *fabric = wfofi_of(base);
    size_t count = 0;
    wfi_mutex_lock(&fabric->cq_lock);
    wfofi_cq_progress(fabric);
    while (count < room) {
        wfi_list *link = wfi_list_pop_front(&fabric->completed);
        if (!link)
            break;
        wfofi_op *op = wfi_container_of(link, wfofi_op, link);
        out[count++] = (wfi_completion){.op = (wfi_fabric_op *)op, .status = op->done.status, .size = op->done.size};
    }
    wfi_mutex_unlock(&fabric->cq_lock);
    if (fabric->hooks->polled)
        fabric->hooks->polled(fabric);
    return count;
}

int wfofi_wait_fd(wfi_fabric *base)
{
    return wfofi_of(base)->wait_fd;
}

/*
 * Operations that lane_close adds to `completed` make no socket readable. lane_close calls wfofi_wake afterwards, so a
 * thread that waits because of this answer is woken.
 */
bool wfofi_may_sleep(wfi_fabric *base)
{
    wfofi_fabric *fabric = wfofi_of(base);
    struct fid *queue = &fabric->cq->fid;
    if (fi_trywait(fabric->fabric, &queue, 1) != FI_SUCCESS)
        return false;
    wfi_mutex_lock(&fabric->cq_lock);
    bool nothing = wfi_list_empty(&fabric->completed) && wfi_list_empty(&fabric->bounces.stalled);
    eventfd_t count;
    if (nothing && fabric->wake_fd >= 0)
        (void)eventfd_read(fabric->wake_fd, &count); /* of operations that have been reported */
    wfi_mutex_unlock(&fabric->cq_lock);
    return nothing;
}
