/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unreachable.c - references whose owner lives, but cannot be reached from here: nobody waits for its word, and the handle
 * stays announced until the word comes, so that the owner's count and ours agree in the end.
 */
#include "rpc/payload/inbound.h"
#include "rpc/refs/internal.h"

static struct wfi_intake *take_waiter(weft_agent *agent, const wfi_peer *owner)
{
    size_t cursor = 0;
    uint64_t fork;
    for (weft_rref *rref; (rref = wfi_map_next(&agent->forks, &cursor, &fork));) {
        struct wfi_intake *waiter = rref->owner == owner ? rref->waiter : NULL;
        if (!waiter)
            continue;
        rref->waiter = NULL;
        return waiter;
    }
    return NULL;
}

void wfi_rrefs_peer_unreachable(weft_agent *agent, const wfi_peer *peer)
{
    for (struct wfi_intake *waiter; (waiter = take_waiter(agent, peer));) /* each anew: the table changes under us */
        wfi_intake_confirmed(waiter, WEFT_ERR_UNREACHABLE);
}

bool wfi_rrefs_await_owners(const weft_agent *agent)
{
    size_t cursor = 0;
    uint64_t fork;
    for (const weft_rref *rref; (rref = wfi_map_next(&agent->forks, &cursor, &fork));)
        if (!rref->owner || !wfi_peer_is_unreachable(rref->owner))
            return true;
    return false;
}
