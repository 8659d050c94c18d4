/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.c - reports what happened to lanes and requests.
 *
 * Frames that connect or end a lane arrive as completions. `poll` reads these, but no thread may be polling. So
 * poll_events reads completions too: if `poll` was not called for IDLE_NS while there is no lane, or for BUSY_NS while
 * there is one. A provider without a descriptor cannot wake the event thread, so this thread looks at these intervals
 * for a HELLO.
 */
#include "base/clock.h"
#include "ofi_rdm/rdm.h"

#include <string.h>
#include <sys/eventfd.h>

#define IDLE_NS UINT64_C(10000000)
#define BUSY_NS UINT64_C(50000000)

static void report_lane(const wfrdm_notice *notice, wfi_lane *lane, wfi_event *out)
{
    *out = (wfi_event){.kind = notice->kind, .lane = lane, .lane_user = lane->user};
    if (notice->kind == WFI_EVENT_CLOSED) {
        out->status = lane->why;
        out->why = lane->why_text;
        return;
    }
    const wfrdm *rdm = lane->rdm;
    out->why = !lane->has_no_reads    ? NULL
               : rdm->limits.no_reads ? rdm->limits.no_reads
                                      : "reads do not work with the peer's version of libfabric";
    out->data_size = lane->data_size;
    memcpy(out->data, lane->data, lane->data_size);
}

static void report(wfrdm_notice *notice, wfi_event *out)
{
    if (notice->kind != WFI_EVENT_REQUEST) {
        report_lane(notice,
                    notice->kind == WFI_EVENT_CLOSED ? wfi_container_of(notice, wfi_lane, down)
                                                     : wfi_container_of(notice, wfi_lane, up),
                    out);
        return;
    }
    wfi_connect_request *request = wfi_container_of(notice, wfi_connect_request, asks);
    *out = (wfi_event){.kind = WFI_EVENT_REQUEST, .request = request, .data_size = request->data_size};
    memcpy(out->data, request->data, request->data_size);
}

/* Reads completions if nobody else does. */
static void look(wfrdm *rdm, uint64_t now)
{
    uint64_t pause = rdm->lane_count ? BUSY_NS : IDLE_NS;
    if (rdm->was_polled) {
        rdm->was_polled = false;
        rdm->checked_ns = now;
    }
    if (now - rdm->checked_ns >= pause) {
        rdm->checked_ns = now;
        wfrdm_progress(rdm);
    }
    wfrdm_dials_check(rdm, now);
    wfrdm_stalled_check(rdm, now);
    if (rdm->kind->is_local && wfrdm_local_check(rdm))
        wfrdm_stalled_probe(rdm);
    wfrdm_peers_lost(rdm);
}

size_t wfrdm_poll_events(wfi_fabric *base, wfi_event *out, size_t room)
{
    wfrdm *rdm = wfrdm_of(base);
    size_t count = 0;
    wfi_mutex_lock(&rdm->lock);
    look(rdm, wfi_now(&wfi_clock_real));
    for (wfi_list *node; count < room && (node = wfi_list_pop_front(&rdm->notices));)
        report(wfi_container_of(node, wfrdm_notice, link), &out[count++]);
    wfi_mutex_unlock(&rdm->lock);
    return count;
}

bool wfrdm_events_arm(wfi_fabric *base, uint64_t *due_ns)
{
    wfrdm *rdm = wfrdm_of(base);
    eventfd_t count;
    wfi_mutex_lock(&rdm->lock);
    uint64_t now = wfi_now(&wfi_clock_real), due = now + (rdm->lane_count ? BUSY_NS : IDLE_NS);
    look(rdm, now);
    bool is_empty = wfi_list_empty(&rdm->notices);
    if (is_empty)
        (void)eventfd_read(rdm->notice_fd, &count);
    due = rdm->wait_fd >= 0 ? UINT64_MAX : due;
    due = rdm->dials_due_ns < due ? rdm->dials_due_ns : due;
    if (due < *due_ns)
        *due_ns = due;
    wfi_mutex_unlock(&rdm->lock);
    return is_empty;
}

int wfrdm_events_fd(wfi_fabric *base)
{
    return wfrdm_of(base)->events_fd;
}
