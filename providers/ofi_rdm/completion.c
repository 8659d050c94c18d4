/* SPDX-License-Identifier: Apache-2.0 */
/* completion.c - queues completed operations, events and lost peers, which `poll` and `poll_events` report. */
#include "ofi_rdm/rdm.h"

#include <sys/eventfd.h>

void wfrdm_wake(const wfrdm *rdm)
{
    if (rdm->wake_fd >= 0)
        (void)eventfd_write(rdm->wake_fd, 1);
    else if (rdm->ready_fn)
        rdm->ready_fn(rdm->ready_arg);
}

void wfrdm_complete(wfrdm *rdm, wfrdm_op *op, weft_status status, size_t size)
{
    wfi_assert_held(&rdm->lock);
    bool wakes = !rdm->is_polling && wfi_list_empty(&rdm->completed);
    op->status = status;
    op->size = size;
    wfi_list_push_back(&rdm->completed, &op->link);
    if (wakes)
        wfrdm_wake(rdm);
}

void wfrdm_notify(wfrdm *rdm, wfrdm_notice *notice, wfi_event_kind kind)
{
    wfi_assert_held(&rdm->lock);
    notice->kind = kind;
    if (wfi_list_empty(&rdm->notices))
        (void)eventfd_write(rdm->notice_fd, 1);
    wfi_list_push_back(&rdm->notices, &notice->link);
}

void wfrdm_peer_fail(wfrdm *rdm, wfrdm_peer *peer, const char *why)
{
    wfi_assert_held(&rdm->lock);
    if (peer->is_dead)
        return;
    wfrdm_log(rdm, WEFT_LOG_DEBUG, "%s: a peer is lost: %s", rdm->base.ops->name, why);
    peer->is_dead = true;
    peer->why = why;
    wfi_list_push_back(&rdm->failed, &peer->failed);
    if (!rdm->is_polling)
        wfrdm_wake(rdm);
}
