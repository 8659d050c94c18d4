/* SPDX-License-Identifier: Apache-2.0 */
/* transport.c - opens and closes the fabrics. */
#include "net/channel/channel.h"

#include "base/alloc.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNPRIVILEGED 1024          /* the first port that needs no privileges */
#define AUTOMATIC "host,verbs,tcp" /* the list that "auto" stands for */

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

weft_status wfi_net_fabric_list_read(const char *text, wfi_fabric_list *out, weft_error **error)
{
    char name[32];
    out->automatic = strcmp(text, "auto") == 0;
    if (!*text)
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "fabric (WEFT_FABRIC) is \"%s\": it names none; this build has %s", text,
                              wfi_fabric_names());
    for (const char *at = out->automatic ? AUTOMATIC : text, *end;; at = end + 1) {
        end = at + strcspn(at, ",");
        snprintf(name, sizeof(name), "%.*s", (int)(end - at), at);
        const wfi_fabric_ops *ops = wfi_fabric_find(name);
        for (size_t i = 0; i < out->count; i++) {
            if (out->ops[i] == ops)
                return wfi_error_fail(error, WEFT_ERR_INVALID, "fabric (WEFT_FABRIC) is \"%s\": it names %s twice",
                                      text, name);
        }
        if (!*name || strcmp(name, "auto") == 0)
            return wfi_error_fail(error, WEFT_ERR_INVALID, "fabric (WEFT_FABRIC) is \"%s\": %s", text,
                                  *name ? "\"auto\" stands alone: it names \"" AUTOMATIC "\""
                                        : "a name is empty: a comma stands only between two names");
        if (!ops)
            return wfi_error_fail(error, WEFT_ERR_INVALID,
                                  "fabric (WEFT_FABRIC) is \"%s\": this build has no \"%s\"; it has %s, and \"auto\"",
                                  text, name, wfi_fabric_names());
        if (out->count == WFI_FABRICS_MAX)
            return wfi_error_fail(error, WEFT_ERR_INVALID, "fabric (WEFT_FABRIC) is \"%s\": more than %d fabrics", text,
                                  WFI_FABRICS_MAX);
        out->ops[out->count++] = ops;
        if (!*end)
            return WEFT_OK;
    }
}

/* If none of the open fabrics has reads, payloads need one more: tcp. */
static weft_status open_for_reads(wfi_transport *transport, const wfi_fabric_options *how, weft_error **error)
{
    bool has_reads = false;
    for (size_t i = 0; i < transport->fabric_count; i++)
        has_reads = has_reads || !transport->fabrics[i].limits->no_reads;
    for (size_t i = 0; i < transport->fabric_count && has_reads; i++) {
        const wfi_net_fabric *fabric = &transport->fabrics[i];
        if (fabric->limits->no_reads)
            wfi_log_net(transport, WEFT_LOG_INFO, "%s carries messages only, and payloads take the other fabrics: %s",
                        fabric->ops->name, fabric->limits->no_reads);
    }
    if (has_reads)
        return WEFT_OK;
    const wfi_net_fabric *first = &transport->fabrics[0];
    wfi_log_net(transport, WEFT_LOG_WARN, "%s carries messages only, and payloads take tcp: %s", first->ops->name,
                first->limits->no_reads);
    weft_status status =
        wfi_net_fabric_open(&transport->fabrics[transport->fabric_count], transport, &wfi_fabric_tcp, how, error);
    transport->fabric_count += !status;
    return status;
}

/*
 * Opens the fabrics of the list. A fabric that does not open is only recorded, unless the list has no other. Two
 * failures count on any list: an option is invalid for a fabric (WEFT_ERR_INVALID), or no network leads to the store
 * (WEFT_ERR_UNREACHABLE), which every job needs. If none opens, the error has all reasons.
 */
static weft_status open_listed(wfi_transport *transport, const char *text, const wfi_fabric_options *how,
                               weft_error **error)
{
    wfi_fabric_list list = {0};
    weft_error *why = NULL;
    weft_status status = wfi_net_fabric_list_read(text, &list, error);
    if (status)
        return status;
    for (size_t i = 0; i < list.count; i++) {
        status = wfi_net_fabric_open(&transport->fabrics[transport->fabric_count], transport, list.ops[i], how, &why);
        if (!status) {
            transport->fabric_count++;
            continue;
        }
        if (status == WEFT_ERR_INVALID || status == WEFT_ERR_UNREACHABLE) {
            wfi_error_give(error, why);
            return status;
        }
        if (list.count == 1) {
            bool has_advice = status == WEFT_ERR_EXISTS; /* the fabric works, and the ports must change */
            (void)wfi_error_fail(error, status, "fabric (WEFT_FABRIC) is \"%s\": it does not open: %s%s", text,
                                 why ? weft_error_message(why) : weft_status_text(status),
                                 has_advice ? "" : "; \"auto\" takes one that opens");
            weft_error_unref(why);
            return status;
        }
        wfi_unopened *unopened = &transport->unopened[transport->unopened_count++];
        unopened->name = list.ops[i]->name;
        snprintf(unopened->why, sizeof(unopened->why), "%s", why ? weft_error_message(why) : weft_status_text(status));
        weft_error_unref(why);
        why = NULL;
        bool is_usual = list.automatic && i + 1 < list.count; /* the last one reaches every worker */
        wfi_log_net(transport, is_usual ? WEFT_LOG_INFO : WEFT_LOG_WARN, "fabric %s does not open: %s", unopened->name,
                    unopened->why);
    }
    if (transport->fabric_count)
        return open_for_reads(transport, how, error);
    char reasons[WFI_FABRICS_MAX * (sizeof(transport->unopened->why) + 32)] = "";
    for (size_t i = 0, used = 0; i < transport->unopened_count; i++)
        used += (size_t)snprintf(reasons + used, sizeof(reasons) - used, "%s%s: %s", i ? "; " : "",
                                 transport->unopened[i].name, transport->unopened[i].why);
    return wfi_error_fail(error, status, "fabric (WEFT_FABRIC) is \"%s\": none of %zu fabrics opens: %s", text,
                          list.count, reasons);
}

weft_status wfi_transport_open(wfi_transport *transport, const weft_agent_options *agent, weft_error **error)
{
    wfi_fabric_options how = {.rank = transport->progress->fibers ? transport->progress->group
                                      : agent->has_rank           ? transport->rank
                                                                  : -1,
                              .iface = agent->iface,
                              .towards = agent->master_addr,
                              .port_spared = agent->master_port,
                              .peers = transport->world_size,
                              .lane_sends = WFI_LANE_SENDS,
                              .lane_receives = WFI_LANE_RECEIVES,
                              .sim = transport->sim,
                              .ready = wfi_progress_ready,
                              .ready_arg = transport->progress};
    if (!read_ports(agent->ports, &how))
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "ports (WEFT_PORTS) is \"%s\": \"low-high\", each 1 to 65535, low not above high; or one "
                              "port from 1024 on",
                              agent->ports);
    transport->peers = wfi_calloc((size_t)transport->world_size, sizeof(*transport->peers));
    if (!transport->peers)
        return wfi_error_fail(error, WEFT_ERR_MEMORY, "out of memory");
    weft_status status = open_listed(transport, agent->fabric, &how, error);
    transport->chunk_bytes = WFI_CHUNK_BYTES;
    transport->message_max = SIZE_MAX;
    for (size_t i = 0; i < transport->fabric_count; i++) {
        const wfi_fabric_limits *limits = transport->fabrics[i].limits;
        if (limits->rma_max < transport->chunk_bytes)
            transport->chunk_bytes = limits->rma_max;
        if (limits->message_max < transport->message_max)
            transport->message_max = limits->message_max;
    }
    return status;
}

/* ---- Opening and closing --------------------------------------------------------------------------------------- */

void wfi_transport_init(wfi_transport *transport, wfi_progress *progress, const weft_agent_options *agent,
                        weft_sim *sim)
{
    *transport = (wfi_transport){.progress = progress,
                                 .sim = sim,
                                 .rank = agent->rank,
                                 .world_size = agent->world_size,
                                 .death_timeout_ms = agent->death_timeout_ms,
                                 .queue_limit_bytes = agent->queue_limit_bytes,
                                 .turn_timer = {.fire = wfi_channel_turns_due, .reserved = true},
                                 .starved_timer = {.fire = wfi_transport_starved_due, .reserved = true},
                                 .silent_timer = {.fire = wfi_silent_due, .reserved = true}};
    wfi_map_init(&transport->conns);
    wfi_list_init(&transport->known);
    wfi_list_init(&transport->turns);
    wfi_list_init(&transport->turns_again);
    wfi_list_init(&transport->spare_chunks);
}

void wfi_transport_begin_closing(wfi_transport *transport)
{
    transport->closing = true;
    wfi_timer_clear(transport->progress, &transport->starved_timer);
    wfi_timer_clear(transport->progress, &transport->turn_timer);
    wfi_timer_clear(transport->progress, &transport->silent_timer);
}

void wfi_transport_fini(wfi_transport *transport)
{
    while (transport->fabric_count)
        wfi_net_fabric_close(&transport->fabrics[--transport->fabric_count]);
    wfi_peers_destroy(transport);
    wfi_map_fini(&transport->conns);
}
