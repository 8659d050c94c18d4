/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transmit.c - completes and sends frames, and gives them to libfabric. If libfabric returns FI_EAGAIN (a queue is
 * full, or the connection is not ready), the frame waits in the list of its peer. So a peer that does not read delays
 * no other one, and the frames of a peer stay in order.
 */
#include "base/clock.h"
#include "ofi_rdm/rdm.h"

#include <string.h>
#include <sys/timerfd.h>

#define WAIT_MAX_NS UINT64_C(10000000000) /* a frame for a peer without a lane is discarded after this time */
#define AGAIN_NS 1000000                  /* between two attempts, where the poller sleeps on a descriptor */

static void release(wfrdm *rdm, wfrdm_buffer *frame)
{
    frame->peer->frames--;
    rdm->is_untidy = true;
    wfrdm_frame_give(rdm, frame);
}

/* Returns 0 or libfabric's error. The frame is in no list. */
static ssize_t post(wfrdm *rdm, wfrdm_buffer *frame)
{
    wfrdm_peer *peer = frame->peer;
    if (peer->is_dead) {
        release(rdm, frame);
        return 0;
    }
    peer->was_tried = true;
    bool injects = frame->size <= rdm->inject_max;
    ssize_t ret = injects ? fi_inject(rdm->ep, frame->bytes, frame->size, peer->to)
                          : fi_send(rdm->ep, frame->bytes, frame->size, frame->descriptor, peer->to, frame);
    if (ret == -FI_EAGAIN)
        return ret;
    if (ret == 0) {
        peer->was_reached = rdm->has_worked = true;
        if (injects)
            release(rdm, frame);
        return 0;
    }
    release(rdm, frame);
    wfrdm_peer_fail(rdm, peer, fi_strerror((int)-ret));
    return ret;
}

static void run_timer(const wfrdm *rdm, bool does)
{
    const struct itimerspec when = {.it_value.tv_nsec = does ? AGAIN_NS : 0,
                                    .it_interval.tv_nsec = does ? AGAIN_NS : 0};
    if (rdm->timer_fd >= 0)
        (void)timerfd_settime(rdm->timer_fd, 0, &when, NULL);
}

void wfrdm_transmit(wfrdm *rdm, wfrdm_peer *peer, wfrdm_buffer *frame, size_t size)
{
    wfi_assert_held(&rdm->lock);
    frame->peer = peer;
    frame->size = size;
    peer->frames++;
    if (wfi_list_empty(&peer->waiting) && post(rdm, frame) != -FI_EAGAIN)
        return;
    if (wfi_list_empty(&peer->waiting)) {
        peer->waited_ns = wfi_now(&wfi_clock_real);
        if (wfi_list_empty(&rdm->stalled))
            run_timer(rdm, true);
        wfi_list_push_back(&rdm->stalled, &peer->stalled);
    }
    wfi_list_push_back(&peer->waiting, &frame->link);
}

void wfrdm_transmit_done(wfrdm *rdm, wfrdm_buffer *frame)
{
    wfi_assert_held(&rdm->lock);
    release(rdm, frame);
}

void wfrdm_transmit_drop(wfrdm *rdm, wfrdm_peer *peer)
{
    wfi_assert_held(&rdm->lock);
    while (!wfi_list_empty(&peer->waiting))
        release(rdm, wfi_container_of(peer->waiting.next, wfrdm_buffer, link));
    wfi_list_remove(&peer->stalled);
    if (wfi_list_empty(&rdm->stalled))
        run_timer(rdm, false);
}

static void send_waiting(wfrdm *rdm, wfrdm_peer *peer)
{
    uint64_t now = wfi_now(&wfi_clock_real);
    while (!wfi_list_empty(&peer->waiting)) {
        wfrdm_buffer *frame = wfi_container_of(peer->waiting.next, wfrdm_buffer, link);
        wfi_list_remove(&frame->link);
        if (post(rdm, frame) == -FI_EAGAIN) {
            wfi_list_push_front(&peer->waiting, &frame->link);
            break;
        }
        peer->waited_ns = now;
    }
    bool is_lost = !wfi_list_empty(&peer->waiting) && peer->users == 0 && now - peer->waited_ns > WAIT_MAX_NS;
    if (is_lost || wfi_list_empty(&peer->waiting))
        wfrdm_transmit_drop(rdm, peer);
}

void wfrdm_transmit_again(wfrdm *rdm)
{
    wfi_assert_held(&rdm->lock);
    for (wfi_list *node = rdm->stalled.next, *next; node != &rdm->stalled; node = next) {
        next = node->next; /* sending to one peer changes the place of no other in the list */
        wfrdm_peer *peer = wfi_container_of(node, wfrdm_peer, stalled);
        send_waiting(rdm, peer);
    }
}

/* ---- Frames of lanes --------------------------------------------------------------------------------------------- */

void wfrdm_lane_send_frame(wfi_lane *lane, wfrdm_buffer *frame, wfrdm_head *head)
{
    head->to = lane->id | lane->is_dialler;
    head->sequence = lane->frames_out++;
    head->consumed = lane->data_reported = lane->data_consumed;
    wfrdm_head_write(head, frame->bytes);
    wfrdm_transmit(lane->rdm, lane->peer, frame, WFRDM_HEAD_BYTES + head->size);
}

bool wfrdm_lane_send(wfi_lane *lane, wfrdm_frame_kind kind, uint8_t flags, const void *content, size_t size)
{
    wfrdm_buffer *frame = wfrdm_frame_take(lane->rdm);
    if (!frame)
        return false;
    if (size)
        memcpy(frame->bytes + WFRDM_HEAD_BYTES, content, size);
    wfrdm_head head = {.kind = (uint8_t)kind, .flags = flags, .size = (uint16_t)size};
    wfrdm_lane_send_frame(lane, frame, &head);
    return true;
}

void wfrdm_send_bye(wfrdm *rdm, wfrdm_peer *peer, uint64_t to)
{
    wfrdm_buffer *frame = peer->is_dead ? NULL : wfrdm_frame_take(rdm);
    if (!frame) /* without memory the peer learns nothing, as if the BYE were lost with this process */
        return;
    const wfrdm_head head = {.kind = WFRDM_BYE, .to = to};
    wfrdm_head_write(&head, frame->bytes);
    wfrdm_transmit(rdm, peer, frame, WFRDM_HEAD_BYTES);
}
