/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport.c - the open fabric: opening it, regions that last, what its completions belong to, and posts that found no room.
 */
#include "net/net_internal.h"

#include "base/error.h"

#include <stdlib.h>

#define EVENTS_BATCH 8
#define UNPRIVILEGED 1024 /* the first port that anybody may have */

static weft_status refuse_value(weft_error **error, const char *what, const char *value, const char *hint)
{
    wfi_error_detail detail = {.code = WEFT_ERR_INVALID, .worker = -1};
    if (error)
        wfi_error_give(error, wfi_error_create(&detail, "%s is \"%s\": %s", what, value, hint));
    return WEFT_ERR_INVALID;
}

static bool read_port(const char **text, long *out)
{
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    *out = strtol(*text, &end, 10);
    *text = end;
    return *out >= 1 && *out <= 65535;
}

/* "low-high", or one port; but "1" is as likely to be meant for "yes". */
static bool read_ports(const char *text, wfi_fabric_options *out)
{
    long low, high;
    if (!text || !*text)
        return true;
    if (!read_port(&text, &low))
        return false;
    high = low;
    if (*text == '-') {
        text++;
        if (!read_port(&text, &high))
            return false;
    } else if (low < UNPRIVILEGED) {
        return false;
    }
    out->port_low = (int)low;
    out->port_high = (int)high;
    return !*text && low <= high;
}

weft_status wfi_transport_open(wfi_net *net, const wfi_net_options *options, weft_error **error)
{
    const weft_agent_options *agent = options->agent;
    wfi_fabric_options how = {.rank = net->progress.fibers ? net->progress.group
                                      : agent->has_rank    ? net->rank
                                                           : -1,
                              .iface = agent->iface,
                              .towards = agent->master_addr,
                              .port_spared = agent->master_port,
                              .sim = options->sim,
                              .ready = wfi_fiber_ready,
                              .ready_arg = &net->progress};
    net->ops = wfi_fabric_find(agent->fabric);
    if (!net->ops)
        return refuse_value(error, "fabric (WEFT_FABRIC)", agent->fabric, "this build has \"tcp\" and \"sim\"");
    if (!read_ports(agent->ports, &how))
        return refuse_value(error, "ports (WEFT_PORTS)", agent->ports,
                            "\"low-high\", each 1 to 65535, low not above high; or one port from 1024 on");
    weft_status status = net->ops->open(&how, &net->fabric, error);
    if (status)
        return status;
    net->limits = net->ops->limits(net->fabric);
    return WEFT_OK;
}

/* ---- Regions that last ----------------------------------------------------------------------------------------- */

static weft_status cache_open(void *domain, void *data, size_t size, void **region)
{
    wfi_net *net = domain;
    return net->ops->region_open(net->fabric, data, size, WFI_REMOTE_READ | WFI_REMOTE_WRITE | WFI_LOCAL,
                                 (wfi_region **)region);
}

static void cache_close(void *domain, void *region)
{
    wfi_net *net = domain;
    net->ops->region_close(net->fabric, region);
}

weft_status wfi_cache_create(wfi_net *net)
{
    static const wfi_reg_ops ops = {.open = cache_open, .close = cache_close};
    if (net->limits->keys_per_transfer && !net->limits->needs_local_regions)
        return WEFT_OK;
    return wfi_reg_cache_create(&ops, net, 256, &net->cache);
}

void *wfi_local_region(wfi_net *net, wfi_storage *storage, weft_status *status)
{
    void *region = NULL;
    *status = wfi_reg_cache_get(net->cache, storage, &region);
    return region;
}

void wfi_local_region_put(wfi_net *net, wfi_storage *storage)
{
    wfi_reg_cache_put(net->cache, storage);
}

/* ---- Completions ----------------------------------------------------------------------------------------------- */

static void dispatch(const wfi_completion *completion)
{
    wfi_flight *flight = wfi_container_of(completion->op, wfi_flight, op);
    wfi_conn *conn = flight->conn;
    switch (flight->kind) {
    case WFI_FLIGHT_RECEIVE:
        wfi_frame_received(wfi_container_of(flight, wfi_rx, flight), completion);
        break;
    case WFI_FLIGHT_FRAME:
        wfi_frame_sent(wfi_container_of(flight, wfi_tx, flight), completion->status);
        break;
    case WFI_FLIGHT_CHUNK:
        wfi_chunk_reported(wfi_container_of(flight, wfi_chunk, flight), completion);
        break;
    }
    wfi_conn_reported(conn);
}

/* Some post found no room; completions since then may have made some. */
static void post_again(wfi_net *net)
{
    net->stuck = false;
    for (int rank = 0; rank < net->world_size; rank++) {
        if (net->peers[rank]) {
            wfi_peer_flush(net->peers[rank]);
            wfi_works_pump(net->peers[rank]);
        }
    }
}

#define STARVED_TRIES 200
#define STARVED_NS UINT64_C(5000000)

void wfi_net_starve(wfi_net *net)
{
    net->starving = true;
    if (!net->starved_timer.heap_index && !net->closing)
        (void)wfi_timer_set(&net->progress, &net->starved_timer, wfi_now(net->progress.clock) + STARVED_NS);
}

/* Tries again what there was no memory for. After a second of that, what has not begun ends with that error. */
void wfi_starved_due(wfi_timer *timer)
{
    wfi_net *net = wfi_container_of(timer, wfi_net, starved_timer);
    net->starving = false;
    post_again(net);
    net->starved = net->starving ? net->starved + 1 : 0;
    if (net->starved < STARVED_TRIES)
        return;
    net->starved = 0;
    for (int rank = 0; rank < net->world_size; rank++) {
        if (net->peers[rank]) {
            wfi_peer_fail_queued(net->peers[rank], WEFT_ERR_MEMORY);
            wfi_works_fail(net->peers[rank], WEFT_ERR_MEMORY);
        }
    }
}

/* ---- A source of progress -------------------------------------------------------------------------------------- */

static wfi_net *net_of(wfi_source *source)
{
    return wfi_container_of(source, wfi_net, source);
}

static size_t transport_poll(wfi_source *source)
{
    wfi_net *net = net_of(source);
    return net->completion_count = net->ops->poll(net->fabric, net->completions, WFI_BATCH);
}

static void transport_take(wfi_source *source)
{
    wfi_net *net = net_of(source);
    for (size_t i = 0; i < net->completion_count; i++)
        dispatch(&net->completions[i]);
    net->completion_count = 0;
    if (net->stuck)
        post_again(net);
}

static size_t transport_events(wfi_source *source, int timeout_ms, int wake_fd, uint64_t *due_ns)
{
    wfi_net *net = net_of(source);
    wfi_event events[EVENTS_BATCH];
    size_t count = net->ops->poll_events(net->fabric, events, EVENTS_BATCH, timeout_ms, wake_fd);
    (void)due_ns; /* there is no telling */
    if (!count)
        return 0;
    wfi_progress_round_begin(&net->progress, wfi_now(net->progress.clock));
    for (size_t i = 0; i < count; i++)
        wfi_net_event(net, &events[i]);
    wfi_progress_unlock(&net->progress);
    return count;
}

static int transport_wait_fd(wfi_source *source)
{
    wfi_net *net = net_of(source);
    return net->ops->wait_fd(net->fabric);
}

static bool transport_may_sleep(wfi_source *source)
{
    wfi_net *net = net_of(source);
    return net->ops->may_sleep(net->fabric);
}

static size_t transport_outstanding(wfi_source *source)
{
    return net_of(source)->zombies;
}

const wfi_source_ops wfi_transport_source = {.poll = transport_poll,
                                             .take = transport_take,
                                             .events = transport_events,
                                             .wait_fd = transport_wait_fd,
                                             .may_sleep = transport_may_sleep,
                                             .outstanding = transport_outstanding};
