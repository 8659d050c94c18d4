/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stalled.c - detects that this endpoint of libfabric's shm has stopped receiving. The check runs with every version of
 * libfabric, and matters from 1.18 on.
 *
 * In libfabric 1.18 and later, a process that is killed while it writes a message can block the receiver's queue
 * forever. So after the death of a peer the endpoint sends a frame to itself. If the frame does not come within
 * STALLED_NS, all lanes of the endpoint are closed and no new one is connected. weft then uses the other fabrics of the
 * list.
 */
#include "ofi_rdm/rdm.h"

#include "base/clock.h"

#include <sodium.h>

#define STALLED_NS UINT64_C(2000000000)
#define STALLED_TEXT "libfabric's shm receives nothing any more, because a worker was killed while it sent"

void wfrdm_stalled_probe(wfrdm *rdm)
{
    wfi_assert_held(&rdm->lock);
    if (rdm->is_stalled || rdm->probe_due_ns)
        return;
    if (!rdm->self && wfrdm_peer_use(rdm, rdm->address, rdm->address_size, &rdm->self) != WEFT_OK)
        return; /* memory is out: the next death asks */
    randombytes_buf(&rdm->probe, sizeof(rdm->probe));
    rdm->probe_due_ns = wfi_now(&wfi_clock_real) + STALLED_NS;
    wfrdm_send_bye(rdm, rdm->self, rdm->probe);
}

bool wfrdm_stalled_answered(wfrdm *rdm, const wfrdm_head *head)
{
    if (!rdm->probe_due_ns || head->to != rdm->probe)
        return false;
    rdm->probe_due_ns = 0;
    return true;
}

const char *wfrdm_stalled_text(const wfrdm *rdm)
{
    return rdm->is_stalled ? STALLED_TEXT : NULL;
}

void wfrdm_stalled_check(wfrdm *rdm, uint64_t now)
{
    wfi_assert_held(&rdm->lock);
    if (!rdm->probe_due_ns || now < rdm->probe_due_ns)
        return;
    rdm->probe_due_ns = 0;
    rdm->is_stalled = true;
    wfrdm_log(rdm, WEFT_LOG_WARN, "shm: %s; other fabrics of WEFT_FABRIC are used", STALLED_TEXT);
    wfrdm_peer_fail(rdm, rdm->self, STALLED_TEXT);
    WFI_FOR_LIST (wfi_lane, lane, &rdm->lanes, link) {
        if (lane->state >= WFRDM_CONNECTING)
            wfrdm_lane_break(lane, WEFT_ERR_FABRIC, STALLED_TEXT);
    }
}
