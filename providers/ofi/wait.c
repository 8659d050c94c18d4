/* SPDX-License-Identifier: Apache-2.0 */
/* wait.c - sleeping until there are completions. */
#include "objects.h"

int wfofi_wait_fd(wfi_fabric *base)
{
    return wfofi_of(base)->cq_fd;
}

/*
 * What lane_close puts into `ready` shows on no socket; it signals the completion queue afterwards, so that one who slept
 * on the strength of this answer is woken.
 */
bool wfofi_may_sleep(wfi_fabric *base)
{
    wfofi_fabric *fabric = wfofi_of(base);
    struct fid *queue = &fabric->cq->fid;
    if (fi_trywait(fabric->fabric, &queue, 1) != FI_SUCCESS)
        return false;
    wfi_mutex_lock(&fabric->cq_lock);
    bool nothing = wfi_list_empty(&fabric->ready);
    wfi_mutex_unlock(&fabric->cq_lock);
    return nothing;
}
