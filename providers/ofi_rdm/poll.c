/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poll.c - reads libfabric's completions, sends waiting frames and the next frames of each lane, and reports completed
 * operations.
 */
#include "base/clock.h"
#include "ofi_rdm/rdm.h"

#include <rdma/fi_eq.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BATCH 32
#define BATCHES 4 /* read by one poll, at most */

static void receive_again(wfrdm *rdm, wfrdm_buffer *buffer)
{
    int ret = wfrdm_receive_post(rdm, buffer);
    if (ret != 0)
        wfrdm_log(rdm, WEFT_LOG_ERROR, "%s: posting a receive: %s", rdm->base.ops->name, fi_strerror(-ret));
}

static void read_error(wfrdm *rdm)
{
    struct fi_cq_err_entry entry = {0};
    if (fi_cq_readerr(rdm->cq, &entry, 0) != 1 || !entry.op_context)
        return;
    wfrdm_buffer *buffer = entry.op_context;
    if (buffer->is_receive) { /* a message that is longer than a buffer: no worker sends one */
        if (entry.err != FI_ECANCELED)
            receive_again(rdm, buffer);
        return;
    }
    wfrdm_peer_fail(rdm, buffer->peer, fi_strerror(entry.err));
    wfrdm_transmit_done(rdm, buffer);
}

/* Returns whether there may be more. */
static bool read_batch(wfrdm *rdm)
{
    struct fi_cq_msg_entry entries[BATCH];
    ssize_t count = fi_cq_read(rdm->cq, entries, BATCH);
    if (count == -FI_EAVAIL) {
        read_error(rdm);
        return true;
    }
    for (ssize_t i = 0; i < count; i++) {
        wfrdm_buffer *buffer = entries[i].op_context;
        rdm->has_worked = true;
        if (!buffer)
            continue;
        if (!buffer->is_receive) {
            wfrdm_transmit_done(rdm, buffer);
            continue;
        }
        wfrdm_on_frame(rdm, buffer->bytes, entries[i].len);
        receive_again(rdm, buffer);
    }
    if (count < 0 && count != -FI_EAGAIN)
        wfrdm_log(rdm, WEFT_LOG_ERROR, "%s: reading completions: %s", rdm->base.ops->name, fi_strerror((int)-count));
    return count == BATCH;
}

/* Each lane with work gets a turn, as long as the budget lasts. The next poll begins with those that had none. */
static void push_lanes(wfrdm *rdm)
{
    size_t budget = WFRDM_ROUND_BYTES;
    for (size_t turns = rdm->lane_count; turns && budget && !wfi_list_empty(&rdm->work); turns--)
        wfrdm_lane_push(wfi_container_of(rdm->work.next, wfi_lane, work), &budget);
}

void wfrdm_progress(wfrdm *rdm)
{
    wfi_assert_held(&rdm->lock);
    for (int i = 0; i < BATCHES && read_batch(rdm); i++)
        ;
    if (!wfi_list_empty(&rdm->stalled))
        wfrdm_transmit_again(rdm);
    if (!wfi_list_empty(&rdm->work))
        push_lanes(rdm);
    if (!wfi_list_empty(&rdm->failed))
        wfrdm_peers_lost(rdm);
    if (rdm->is_untidy)
        wfrdm_peers_tidy(rdm);
}

size_t wfrdm_poll(wfi_fabric *base, wfi_completion *out, size_t room)
{
    wfrdm *rdm = wfrdm_of(base);
    size_t count = 0;
    wfi_mutex_lock(&rdm->lock);
    rdm->is_polling = true;
    wfrdm_progress(rdm);
    rdm->is_polling = false;
    rdm->was_polled = true;
    for (wfi_list *node; count < room && (node = wfi_list_pop_front(&rdm->completed));) {
        wfrdm_op *op = wfi_container_of(node, wfrdm_op, link);
        out[count++] = (wfi_completion){.op = (wfi_fabric_op *)op, .status = op->status, .size = op->size};
    }
    wfi_mutex_unlock(&rdm->lock);
    return count;
}

int wfrdm_wait_fd(wfi_fabric *base)
{
    return wfrdm_of(base)->wait_fd;
}

/* False if frames moved since the last call. Then the peer probably sends more, even if poll reported nothing. */
bool wfrdm_may_sleep(wfi_fabric *base)
{
    wfrdm *rdm = wfrdm_of(base);
    wfi_mutex_lock(&rdm->lock);
    bool may = wfi_list_empty(&rdm->completed) && wfi_list_empty(&rdm->failed) && !rdm->has_worked;
    rdm->has_worked = false;
    if (may && rdm->wait_fd >= 0) {
        struct fid *queue = &rdm->cq->fid;
        uint64_t count;
        (void)!read(rdm->timer_fd, &count, sizeof(count));
        (void)eventfd_read(rdm->wake_fd, &count); /* of operations that have been reported */
        may = fi_trywait(rdm->fabric, &queue, 1) == FI_SUCCESS;
    }
    wfi_mutex_unlock(&rdm->lock);
    return may;
}
