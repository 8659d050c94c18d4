/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - one endpoint and the list of its operations. */
#include "base/alloc.h"
#include "objects.h"

#include "base/text/log.h"

#include <stdlib.h>

static int bind_endpoint(wfofi_fabric *fabric, struct fid_ep *ep)
{
    int ret = fi_ep_bind(ep, &fabric->eq->fid, 0);
    if (ret == 0)
        ret = fi_ep_bind(ep, &fabric->cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION);
    if (ret == 0)
        ret = fi_ep_bind(ep, &fabric->cq->fid, FI_RECV);
    return ret == 0 ? fi_enable(ep) : ret;
}

/*
 * Reserves entries of the completion queue for a lane. False: the queue has no room for them. A queue that overflows
 * breaks all lanes. libfabric 1.17 also refuses such a lane; 2.1 does not check.
 */
static bool reserve(wfofi_fabric *fabric)
{
    size_t need = fabric->lane_sends + fabric->lane_receives;
    if (!fabric->cq_size)
        return true;
    wfi_mutex_lock(&fabric->events_lock);
    bool fits = fabric->cq_room >= need;
    fabric->cq_room -= fits ? need : 0;
    wfi_mutex_unlock(&fabric->events_lock);
    if (!fits)
        wfofi_log(fabric, WEFT_LOG_DEBUG, "the completion queue of %zu entries has no room for another connection",
                  fabric->cq_size);
    return fits;
}

static void release(wfofi_fabric *fabric)
{
    wfi_assert_held(&fabric->events_lock);
    fabric->cq_room += fabric->cq_size ? fabric->lane_sends + fabric->lane_receives : 0;
}

/* The lane is listed when this returns, because its events may come at once. */
weft_status wfofi_lane_create(wfofi_fabric *fabric, struct fi_info *info, void *user, wfi_lane **out)
{
    wfi_lane *lane = wfi_calloc(1, sizeof(*lane));
    if (!lane)
        return WEFT_ERR_MEMORY;
    lane->fabric = fabric;
    lane->user = user;
    wfi_list_init(&lane->link);
    wfi_list_init(&lane->ops);
    int ret = reserve(fabric) ? 0 : -FI_ENOMEM;
    if (ret != 0)
        goto free_lane;
    ret = fi_endpoint(fabric->domain, info, &lane->ep, lane);
    if (ret == 0)
        ret = bind_endpoint(fabric, lane->ep);
    if (ret != 0)
        goto release;
    wfi_mutex_init(&lane->lock);
    wfi_mutex_lock(&fabric->events_lock);
    wfi_list_push_back(&fabric->lanes, &lane->link);
    wfi_mutex_unlock(&fabric->events_lock);
    *out = lane;
    return WEFT_OK;

release:
    wfi_mutex_lock(&fabric->events_lock);
    if (lane->ep)
        fi_close(&lane->ep->fid);
    release(fabric);
    wfi_mutex_unlock(&fabric->events_lock);
free_lane:
    free(lane);
    if (info->handle && ret == -FI_EINVAL) /* verbs: the worker that asked has gone */
        wfofi_log(fabric, WEFT_LOG_DEBUG, "taking a connection: %s", fi_strerror(-ret));
    else
        wfofi_log_failed(fabric, "opening an endpoint", ret);
    weft_status status = wfofi_status(ret);
    return status == WEFT_ERR_MEMORY || status == WEFT_ERR_SYSTEM ? status : WEFT_ERR_FABRIC;
}

static void close_endpoint(wfi_lane *lane)
{
    wfofi_fabric *fabric = lane->fabric;
    wfi_mutex_lock(&fabric->events_lock);
    wfi_list_remove(&lane->link);
    const struct fid *closed = &lane->ep->fid;
    int ret = fi_close(&lane->ep->fid);
    wfofi_events_closed(fabric, closed);
    release(fabric);
    wfi_mutex_unlock(&fabric->events_lock);
    if (ret != 0)
        wfofi_log(fabric, WEFT_LOG_ERROR, "closing an endpoint: %s", fi_strerror(-ret));
}

/* Settles the operations of this lane that the queue still has, then those that libfabric dropped. */
static void cancel_rest(wfi_lane *lane)
{
    wfofi_fabric *fabric = lane->fabric;
    wfi_mutex_lock(&fabric->cq_lock);
    wfofi_cq_drain(fabric);
    while (!wfi_list_empty(&lane->ops))
        wfofi_complete(fabric, wfi_container_of(lane->ops.next, wfofi_op, link), WEFT_ERR_CANCELLED, 0);
    wfofi_bounces_forget(fabric, lane);
    bool any_completed = !wfi_list_empty(&fabric->completed);
    wfi_mutex_unlock(&fabric->cq_lock);
    if (any_completed)
        wfofi_wake(fabric);
}

void wfofi_lane_end(wfi_lane *lane)
{
    close_endpoint(lane);
    cancel_rest(lane);
    wfi_mutex_fini(&lane->lock);
    free(lane->injected);
    free(lane);
}
