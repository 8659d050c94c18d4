/* SPDX-License-Identifier: Apache-2.0 */
/* completion.c - completed operations wait in `completed` until poll reports them. */
#include "objects.h"

#include <sys/eventfd.h>

/* Moves the operation from its lane's list to `completed`. */
void wfofi_complete(wfofi_fabric *fabric, wfofi_op *op, weft_status status, size_t size)
{
    wfi_assert_held(&fabric->cq_lock);
    wfi_lane *lane = op->lane;
    wfi_mutex_lock(&lane->lock);
    wfi_list_remove(&op->link);
    if (op->kind == WFOFI_RECEIVE)
        lane->receives--;
    else
        lane->sends--;
    if (op->kind == WFOFI_READ)
        lane->reads--;
    wfi_mutex_unlock(&lane->lock);
    op->lane = NULL;
    op->done.status = status;
    op->done.size = size;
    wfi_list_push_back(&fabric->completed, &op->link);
}

void wfofi_wake(wfofi_fabric *fabric)
{
    if (fabric->provider->signal_wakes)
        (void)fi_cq_signal(fabric->cq);
    else
        (void)eventfd_write(fabric->wake_fd, 1);
}
