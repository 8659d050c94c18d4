/* SPDX-License-Identifier: Apache-2.0 */
/* close.c - closing a lane. */
#include "objects.h"

void wfofi_lane_close(wfi_lane *lane)
{
    if (!lane)
        return;
    wfi_fabric *fabric = &lane->fabric->base;
    const wfofi_hooks *hooks = lane->fabric->hooks;
    wfi_connect_request *unanswered = lane->request;
    wfi_mutex_lock(&lane->lock);
    lane->state = WFOFI_CLOSING;
    wfi_mutex_unlock(&lane->lock);
    wfofi_events_forget(lane);
    if (!hooks->lane_drain || hooks->lane_drain(lane))
        wfofi_lane_end(lane);
    if (unanswered)
        wfofi_reject(fabric, unanswered); /* after the endpoint: this also frees libfabric's handle */
}
