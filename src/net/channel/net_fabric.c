/* SPDX-License-Identifier: Apache-2.0 */
/* net_fabric.c - an open fabric as a source of progress: passes completions to their owners, and events to
 * accept.c. */
#include "net/channel/channel.h"

#include "base/error.h"

#include <assert.h>

#define EVENTS_BATCH 8

/* ---- A source of progress -------------------------------------------------------------------------------------- */

static wfi_net_fabric *fabric_of(wfi_source *source)
{
    return wfi_container_of(source, wfi_net_fabric, source);
}

static size_t fabric_poll(wfi_source *source)
{
    wfi_net_fabric *fabric = fabric_of(source);
    return fabric->completion_count = fabric->ops->poll(fabric->fabric, fabric->completions, WFI_POLL_MAX);
}

static void fabric_take(wfi_source *source)
{
    wfi_net_fabric *fabric = fabric_of(source);
    for (size_t i = 0; i < fabric->completion_count; i++) {
        const wfi_completion *completion = &fabric->completions[i];
        wfi_io *io = wfi_container_of(completion->op, wfi_io, op);
        wfi_conn *conn = io->conn;
        io->ops->completed(io, completion); /* afterwards `io` may be reused or freed */
        wfi_conn_reported(conn);
    }
    fabric->completion_count = 0;
    if (!fabric->stuck)
        return;
    fabric->stuck = false;
    wfi_transport_post_again(fabric->transport);
}

/* Opens the lanes of `dials` without the lock: lane_open may resolve the peer's address, which can take seconds. */
static void make_lanes(wfi_net_fabric *fabric)
{
    wfi_progress *progress = fabric->transport->progress;
    wfi_progress_round_begin(progress, wfi_now(progress->clock));
    for (wfi_list *node; (node = wfi_list_pop_front(&fabric->dials));) {
        wfi_conn *conn = wfi_container_of(node, wfi_conn, dial);
        const wfi_peer_address *to = &conn->peer->addresses[wfi_net_fabric_index(fabric)];
        wfi_lane *lane = NULL;
        conn->outstanding++; /* keeps it */
        wfi_progress_unlock(progress);
        weft_status status =
            fabric->ops->lane_open(fabric->fabric, to->bytes, to->size, (void *)(uintptr_t)conn->id, &lane);
        wfi_progress_round_begin(progress, wfi_now(progress->clock));
        if (conn->closed && !status) {
            fabric->ops->lane_close(lane);
        } else if (!conn->closed) {
            conn->lane = lane;
            wfi_channel_dialled(conn, status);
        }
        wfi_conn_reported(conn);
    }
    wfi_progress_unlock(progress);
}

static size_t fabric_events(wfi_source *source)
{
    wfi_net_fabric *fabric = fabric_of(source);
    if (atomic_exchange(&fabric->dials_due, false))
        make_lanes(fabric);
    wfi_event events[EVENTS_BATCH];
    size_t count = fabric->ops->poll_events(fabric->fabric, events, EVENTS_BATCH);
    wfi_progress *progress = fabric->transport->progress;
    if (!count)
        return 0;
    wfi_progress_round_begin(progress, wfi_now(progress->clock));
    for (size_t i = 0; i < count; i++)
        wfi_transport_event(fabric, &events[i]);
    wfi_progress_unlock(progress);
    return count;
}

static bool fabric_events_arm(wfi_source *source, uint64_t *due_ns)
{
    wfi_net_fabric *fabric = fabric_of(source);
    bool armed = fabric->ops->events_arm(fabric->fabric, due_ns);
    return armed && !atomic_load(&fabric->dials_due);
}

static int fabric_events_fd(wfi_source *source)
{
    wfi_net_fabric *fabric = fabric_of(source);
    return fabric->ops->events_fd(fabric->fabric);
}

static int fabric_wait_fd(wfi_source *source)
{
    wfi_net_fabric *fabric = fabric_of(source);
    return fabric->ops->wait_fd(fabric->fabric);
}

static bool fabric_may_sleep(wfi_source *source)
{
    wfi_net_fabric *fabric = fabric_of(source);
    return fabric->ops->may_sleep(fabric->fabric);
}

static wfi_expects fabric_expects(wfi_source *source)
{
    const wfi_net_fabric *fabric = fabric_of(source);
    if (!atomic_load_explicit(&fabric->conns, memory_order_relaxed))
        return WFI_EXPECTS_NOTHING;
    if (fabric->limits->target_must_progress || atomic_load_explicit(&fabric->posted, memory_order_relaxed))
        return WFI_EXPECTS_RESULTS;
    return WFI_EXPECTS_MESSAGES;
}

static size_t fabric_outstanding(wfi_source *source)
{
    return fabric_of(source)->zombies;
}

static const wfi_source_ops source_ops = {.poll = fabric_poll,
                                          .take = fabric_take,
                                          .events = fabric_events,
                                          .events_arm = fabric_events_arm,
                                          .events_fd = fabric_events_fd,
                                          .wait_fd = fabric_wait_fd,
                                          .may_sleep = fabric_may_sleep,
                                          .expects = fabric_expects,
                                          .outstanding = fabric_outstanding};

/* ---- Registered memory ----------------------------------------------------------------------------------------- */

/* Adds local access, which gives peers nothing: local reads, and local writes if the memory is to be written. So a
 * later local use needs no second registration. */
static unsigned with_local(unsigned access)
{
    bool writes = access & (WFI_REMOTE_WRITE | WFI_LOCAL_WRITE);
    return access | (writes ? WFI_LOCAL : WFI_LOCAL_READ);
}

weft_status wfi_net_fabric_register(wfi_net_fabric *fabric, wfi_storage *storage, unsigned access, void **region)
{
    assert(!wfi_mutex_is_mine(&fabric->transport->progress->lock) && "registering delays all that wait for the lock");
    return wfi_reg_cache_get(fabric->cache, storage, with_local(access), region);
}

bool wfi_net_fabric_find(const wfi_net_fabric *fabric, wfi_storage *storage, unsigned access, void **region)
{
    return wfi_reg_cache_find(fabric->cache, storage, with_local(access), region);
}

/* ---- Opening and closing --------------------------------------------------------------------------------------- */

static weft_status cache_open(void *domain, const wfi_memory *memory, unsigned access, void **region)
{
    wfi_net_fabric *fabric = domain;
    return fabric->ops->region_open(fabric->fabric, memory, access, (wfi_region **)region);
}

static void cache_close(void *domain, void *region)
{
    wfi_net_fabric *fabric = domain;
    fabric->ops->region_close(fabric->fabric, region);
}

weft_status wfi_net_fabric_open(wfi_net_fabric *fabric, wfi_transport *transport, const wfi_fabric_ops *ops,
                                const wfi_fabric_options *how, weft_error **error)
{
    static const wfi_reg_ops cached = {.open = cache_open, .close = cache_close};
    *fabric = (wfi_net_fabric){.source.ops = &source_ops, .transport = transport, .ops = ops};
    wfi_list_init(&fabric->dials);
    wfi_list_init(&fabric->spares);
    weft_status status = ops->open(how, &fabric->fabric, error);
    if (status)
        return status;
    fabric->limits = ops->limits(fabric->fabric);
    if (!fabric->limits->keys_per_transfer || fabric->limits->needs_local_regions)
        status = wfi_reg_cache_create(&cached, fabric, 256, &fabric->cache);
    if (!status)
        return WEFT_OK;
    ops->close(fabric->fabric);
    return wfi_error_fail(error, WEFT_ERR_MEMORY, "out of memory");
}

void wfi_net_fabric_close(wfi_net_fabric *fabric)
{
    if (fabric->cache)
        wfi_reg_cache_destroy(fabric->cache);
    fabric->ops->close(fabric->fabric);
}
