/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport.c - opens and closes the fabric, passes its completions to their flights, and repeats posts that failed
 * because a queue was full or memory was out.
 */
#include "net/channel/channel.h"

#include "base/alloc.h"
#include "base/error.h"

#include <assert.h>
#include <stdlib.h>

#define EVENTS_BATCH 8
#define RARE_NS                                                                                                        \
    UINT64_C(5000000)     /* interval of polls for events without threads: events have no descriptor to wait on */
#define UNPRIVILEGED 1024 /* the first port that needs no privileges */

static bool read_port(const char **text, long *out)
{
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    *out = strtol(*text, &end, 10);
    *text = end;
    return *out >= 1 && *out <= 65535;
}

/* Reads "low-high", or one unprivileged port: "1" might mean "yes". */
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

static weft_status cache_open(void *domain, void *data, size_t size, void **region)
{
    wfi_transport *transport = domain;
    return transport->ops->region_open(transport->fabric, data, size, WFI_REMOTE_READ | WFI_REMOTE_WRITE | WFI_LOCAL,
                                       (wfi_region **)region);
}

static void cache_close(void *domain, void *region)
{
    wfi_transport *transport = domain;
    transport->ops->region_close(transport->fabric, region);
}

weft_status wfi_transport_open(wfi_transport *transport, const weft_agent_options *agent, weft_error **error)
{
    static const wfi_reg_ops cached = {.open = cache_open, .close = cache_close};
    wfi_fabric_options how = {.rank = transport->progress->fibers ? transport->progress->group
                                      : agent->has_rank           ? transport->rank
                                                                  : -1,
                              .iface = agent->iface,
                              .towards = agent->master_addr,
                              .port_spared = agent->master_port,
                              .sim = transport->sim,
                              .ready = wfi_fiber_ready,
                              .ready_arg = transport->progress};
    transport->ops = wfi_fabric_find(agent->fabric);
    if (!transport->ops)
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "fabric (WEFT_FABRIC) is \"%s\": this build has \"tcp\" and \"sim\"", agent->fabric);
    if (!read_ports(agent->ports, &how))
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "ports (WEFT_PORTS) is \"%s\": \"low-high\", each 1 to 65535, low not above high; or one "
                              "port from 1024 on",
                              agent->ports);
    weft_status status = transport->ops->open(&how, &transport->fabric, error);
    if (status)
        return status;
    transport->limits = transport->ops->limits(transport->fabric);
    if (!transport->limits->keys_per_transfer || transport->limits->needs_local_regions)
        status = wfi_reg_cache_create(&cached, transport, 256, &transport->cache);
    transport->peers = wfi_calloc((size_t)transport->world_size, sizeof(*transport->peers));
    if (!transport->peers || status)
        return wfi_error_fail(error, WEFT_ERR_MEMORY, "out of memory");
    return WEFT_OK;
}

/* ---- Completions ----------------------------------------------------------------------------------------------- */

/* Repeats posts that failed because a queue was full: completions may have made room. */
static void post_again(wfi_transport *transport)
{
    transport->stuck = false;
    for (int rank = 0; rank < transport->world_size; rank++) {
        wfi_peer *peer = transport->peers[rank];
        for (int kind = 0; peer && kind < WFI_LANE_KINDS; kind++)
            peer->channels[kind]->ops->retry(peer->channels[kind]);
    }
}

#define STARVED_TRIES 200
#define STARVED_NS UINT64_C(5000000)

void wfi_transport_starve(wfi_transport *transport)
{
    transport->starving = true;
    if (!transport->starved_timer.heap_index && !transport->closing)
        (void)wfi_timer_set(transport->progress, &transport->starved_timer,
                            wfi_now(transport->progress->clock) + STARVED_NS);
}

/* Repeats posts that failed because memory was out. If they fail for a second, operations that have not begun fail. */
static void starved_due(wfi_timer *timer)
{
    wfi_transport *transport = wfi_container_of(timer, wfi_transport, starved_timer);
    transport->starving = false;
    post_again(transport);
    transport->starved = transport->starving ? transport->starved + 1 : 0;
    if (transport->starved < STARVED_TRIES)
        return;
    transport->starved = 0;
    for (int rank = 0; rank < transport->world_size; rank++) {
        wfi_peer *peer = transport->peers[rank];
        for (int kind = 0; peer && kind < WFI_LANE_KINDS; kind++)
            peer->channels[kind]->ops->starved(peer->channels[kind], WEFT_ERR_MEMORY);
    }
}

/* ---- A source of progress -------------------------------------------------------------------------------------- */

static wfi_transport *transport_of(wfi_source *source)
{
    return wfi_container_of(source, wfi_transport, source);
}

static size_t transport_poll(wfi_source *source)
{
    wfi_transport *transport = transport_of(source);
    return transport->completion_count = transport->ops->poll(transport->fabric, transport->completions, WFI_POLL_MAX);
}

static void transport_take(wfi_source *source)
{
    wfi_transport *transport = transport_of(source);
    for (size_t i = 0; i < transport->completion_count; i++) {
        const wfi_completion *completion = &transport->completions[i];
        wfi_flight *flight = wfi_container_of(completion->op, wfi_flight, op);
        wfi_conn *conn = flight->conn;
        flight->ops->completed(flight, completion); /* afterwards the flight may be reused or freed */
        wfi_conn_reported(conn);
    }
    transport->completion_count = 0;
    if (transport->stuck)
        post_again(transport);
}

static size_t transport_events(wfi_source *source, int timeout_ms, int wake_fd, uint64_t *due_ns)
{
    wfi_transport *transport = transport_of(source);
    wfi_event events[EVENTS_BATCH];
    size_t count = transport->ops->poll_events(transport->fabric, events, EVENTS_BATCH, timeout_ms, wake_fd);
    uint64_t now = wfi_now(transport->progress->clock);
    *due_ns = now + RARE_NS < *due_ns ? now + RARE_NS : *due_ns;
    if (!count)
        return 0;
    wfi_progress_round_begin(transport->progress, now);
    for (size_t i = 0; i < count; i++)
        wfi_transport_event(transport, &events[i]);
    wfi_progress_unlock(transport->progress);
    return count;
}

static int transport_wait_fd(wfi_source *source)
{
    wfi_transport *transport = transport_of(source);
    return transport->ops->wait_fd(transport->fabric);
}

static bool transport_may_sleep(wfi_source *source)
{
    wfi_transport *transport = transport_of(source);
    return transport->ops->may_sleep(transport->fabric);
}

static size_t transport_outstanding(wfi_source *source)
{
    return transport_of(source)->zombies;
}

static const wfi_source_ops source_ops = {.poll = transport_poll,
                                          .take = transport_take,
                                          .events = transport_events,
                                          .wait_fd = transport_wait_fd,
                                          .may_sleep = transport_may_sleep,
                                          .outstanding = transport_outstanding};

/* ---- Opening and closing --------------------------------------------------------------------------------------- */

void wfi_transport_init(wfi_transport *transport, wfi_progress *progress, const weft_agent_options *agent,
                        weft_sim *sim)
{
    *transport = (wfi_transport){.source.ops = &source_ops,
                                 .progress = progress,
                                 .sim = sim,
                                 .rank = agent->rank,
                                 .world_size = agent->world_size,
                                 .death_timeout_ms = agent->death_timeout_ms,
                                 .queue_limit_bytes = agent->queue_limit_bytes,
                                 .turn_timer = {.fire = wfi_channel_turns_due, .reserved = true},
                                 .starved_timer = {.fire = starved_due, .reserved = true},
                                 .silent_timer = {.fire = wfi_silent_due, .reserved = true}};
    wfi_map_init(&transport->conns);
    wfi_list_init(&transport->known);
    wfi_list_init(&transport->turns);
    wfi_list_init(&transport->turns_again);
    for (int kind = 0; kind < WFI_LANE_KINDS; kind++)
        wfi_list_init(&transport->spares[kind]);
}

void wfi_transport_quiet(wfi_transport *transport)
{
    transport->closing = true;
    wfi_timer_clear(transport->progress, &transport->starved_timer);
    wfi_timer_clear(transport->progress, &transport->turn_timer);
    wfi_timer_clear(transport->progress, &transport->silent_timer);
}

void wfi_transport_fini(wfi_transport *transport)
{
    if (transport->cache)
        wfi_reg_cache_destroy(transport->cache);
    if (transport->fabric)
        transport->ops->close(transport->fabric);
    wfi_peers_destroy(transport);
    wfi_map_fini(&transport->conns);
}
